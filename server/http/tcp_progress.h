/* tcp_progress.h - how many of the sent bytes the peer has acknowledged.
 *
 * It is a separate module because the kernel's header with the counter cannot be included together
 * with the C library's netinet/tcp.h, which uv.h includes.
 *
 * Thread: any.  Memory: none. */
#ifndef SERVER_HTTP_TCP_PROGRESS_H
#define SERVER_HTTP_TCP_PROGRESS_H

#include <stdint.h>

/* Returns a count that only grows; 0 when the socket does not tell. */
uint64_t tcp_progress(int fd);

#endif
