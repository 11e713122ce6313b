/* probe.h - asks a server for one route, as a client that looks only at the status.
 *
 * Thread: any; it blocks.  Memory: freed on return. */
#ifndef SERVER_HTTP_PROBE_H
#define SERVER_HTTP_PROBE_H

#include <stdbool.h>
#include <stdint.h>

struct error;

enum { PROBE_WAIT_S = 2 }; /* for a connection, and for each further step */

struct probe {
    const char *host; /* 0.0.0.0 and :: are this machine */
    uint16_t port;
    bool tls; /* the server's certificate is not checked */
    const char *path;
};

/* Writes the answer's status.  ERR_IO: there is no answer, or none of HTTP; the text says why. */
int probe_ask(unsigned *status, const struct probe *probe, struct error *err);

#endif
