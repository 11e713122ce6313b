/* tcp_progress.h - how much of what we sent the peer has acknowledged.
 *
 * A module of its own because the kernel's header that knows the counter cannot be included
 * together with the C library's netinet/tcp.h, which uv.h includes.
 *
 * Thread: any.  Memory: none. */
#ifndef SERVER_HTTP_TCP_PROGRESS_H
#define SERVER_HTTP_TCP_PROGRESS_H

#include <stdint.h>

/* Only grows.  0 when the socket cannot say. */
uint64_t tcp_progress(int fd);

#endif
