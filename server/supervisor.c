/* supervisor.c - see supervisor.h. */
#define _GNU_SOURCE /* SOCK_CLOEXEC */

#include "server/supervisor.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/error.h"

enum { MESSAGE_BYTES = 512 };

/* Writes the address of a path, or of a name behind '@', which begins with a zero byte instead and
 * has no end.  Returns its length; 0: it is neither, or too long. */
static socklen_t make_address(struct sockaddr_un *address, const char *name) {
    const size_t length = strlen(name);
    const bool is_abstract = name[0] == '@';
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if ((name[0] != '/' && !is_abstract) || length < 2 || length >= sizeof(address->sun_path))
        return 0;
    memcpy(address->sun_path, name, length);
    if (is_abstract) address->sun_path[0] = '\0';
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + !is_abstract);
}

/* Returns the milliseconds between two messages: half of what is asked of this process.  0:
 * nothing. */
static uint64_t watchdog_period(void) {
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (!usec || (pid && strtoll(pid, NULL, 10) != (long long)getpid())) return 0;
    const uint64_t period = strtoull(usec, NULL, 10) / 2000;
    return *usec == '-' ? 0 : period;
}

int supervisor_open(struct supervisor *supervisor, struct error *err) {
    const char *name = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address;
    *supervisor = (struct supervisor){.socket = -1};
    if (!name || !*name) return 0;
    const socklen_t length = make_address(&address, name);
    if (length == 0)
        return error_set(err, ERR_IO,
                         "NOTIFY_SOCKET: '%.120s' is neither a path nor an abstract name (@NAME)",
                         name);
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, length)) {
        const int why = errno;
        if (fd >= 0) close(fd);
        return error_set(err, ERR_IO, "NOTIFY_SOCKET: %.120s: %s", name, strerror(why));
    }
    supervisor->socket = fd;
    supervisor->watchdog_ms = watchdog_period();
    return 0;
}

void supervisor_close(struct supervisor *supervisor) {
    if (supervisor->socket >= 0) close(supervisor->socket);
    supervisor->socket = -1;
}

/* Sends a message.  A lost one costs the supervisor's view of the server only; it must not end
 * it. */
static void tell(const struct supervisor *supervisor, const char *state, const char *status) {
    char message[MESSAGE_BYTES];
    if (supervisor->socket < 0) return;
    const int length = snprintf(message, sizeof(message), "%s%s%s", state, status ? "STATUS=" : "",
                                status ? status : "");
    const size_t n = (size_t)length < sizeof(message) ? (size_t)length : sizeof(message) - 1;
    while (send(supervisor->socket, message, n, MSG_NOSIGNAL) < 0 && errno == EINTR) {
    }
}

void supervisor_ready(struct supervisor *supervisor, const char *status) {
    snprintf(supervisor->status, sizeof(supervisor->status), "%s", status);
    supervisor->is_ready = true;
    tell(supervisor, "READY=1\n", status);
}

void supervisor_stopping(struct supervisor *supervisor, const char *status) {
    supervisor->is_ready = false;
    tell(supervisor, "STOPPING=1\n", status);
}

/* Sends the time, too: Type=notify-reload tells the message from an older one by it. */
void supervisor_reloading(struct supervisor *supervisor) {
    struct timespec now;
    char state[80];
    if (!supervisor->is_ready) return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(state, sizeof(state), "RELOADING=1\nMONOTONIC_USEC=%" PRIu64 "\n",
             (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000);
    tell(supervisor, state, "reading certificates and keys again");
}

void supervisor_reloaded(struct supervisor *supervisor) {
    if (supervisor->is_ready) tell(supervisor, "READY=1\n", supervisor->status);
}

void supervisor_tick(struct supervisor *supervisor, uint64_t now_ms, bool is_alive) {
    if (supervisor->watchdog_ms == 0 || now_ms < supervisor->next_ms || !is_alive) return;
    supervisor->next_ms = now_ms + supervisor->watchdog_ms;
    tell(supervisor, "WATCHDOG=1\n", NULL);
}
