/* supervisor.h - tells the program that started this one how far it is: systemd's Type=notify.
 *
 * Each message is a datagram to the socket that NOTIFY_SOCKET names, a path or an abstract name
 * ("@name").  Without the variable nothing is sent.  systemd's library is not needed for it.
 *
 *   READY=1        the server takes requests   RELOADING=1  SIGHUP, then READY=1 again
 *   STOPPING=1     it drains or ends           WATCHDOG=1   while no step is stuck, twice in
 *                                                           WATCHDOG_USEC
 *
 * Thread: loop.  Memory: a descriptor. */
#ifndef SERVER_SUPERVISOR_H
#define SERVER_SUPERVISOR_H

#include <stdbool.h>
#include <stdint.h>

struct error;

struct supervisor {
    int socket;    /* -1: there is none */
    bool is_ready; /* READY=1 was sent, with this status */
    char status[256];
    uint64_t watchdog_ms, next_ms; /* 0: none is asked for; when the next message is due */
};

/* Opens the socket that the environment names, and reads what WATCHDOG_USEC asks for.  ERR_IO: it
 * is named, but cannot be reached. */
int supervisor_open(struct supervisor *supervisor, struct error *err);
void supervisor_close(struct supervisor *supervisor);

void supervisor_ready(struct supervisor *supervisor, const char *status);
void supervisor_stopping(struct supervisor *supervisor, const char *status);
/* Encloses what a reload does.  Before READY=1 and behind STOPPING=1 neither is sent. */
void supervisor_reloading(struct supervisor *supervisor);
void supervisor_reloaded(struct supervisor *supervisor);
/* Sends WATCHDOG=1 where one is due and the server is alive. */
void supervisor_tick(struct supervisor *supervisor, uint64_t now_ms, bool is_alive);

#endif
