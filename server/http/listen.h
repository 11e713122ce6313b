/* listen.h - the sockets on which a transport accepts: one for each address that its host has.
 *
 * Thread: loop.  Memory: the caller closes the descriptors. */
#ifndef SERVER_HTTP_LISTEN_H
#define SERVER_HTTP_LISTEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;

enum { LISTEN_MAX = 16 };

/* Listens on every address of a name or an address, all of one port, and writes the descriptors.
 * localhost is 127.0.0.1 besides what the system says of it.
 * Addresses that this machine does not have are left out, unless it has none of them.  *port: the
 * port; 0: any free one, which is written there. */
int listen_open(int fds[LISTEN_MAX], size_t *n, const char *host, uint16_t *port,
                struct error *err);
/* Returns whether only this machine reaches the socket. */
bool listen_is_loopback(int fd);

#endif
