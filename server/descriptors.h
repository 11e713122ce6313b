/* descriptors.h - the standard descriptors, and how many connections the limit of files allows.
 *
 * Thread: main, at start.  Memory: none. */
#ifndef SERVER_DESCRIPTORS_H
#define SERVER_DESCRIPTORS_H

#include <stdint.h>

struct error;

/* Opens each standard descriptor that the caller has closed, so that nothing else gets its number:
 * libuv ends a process that closes one of them.  Reading and writing still fail, with EBADF. */
void descriptors_hold_standard(void);

/* Raises the soft limit of open files to what `wanted` connections need, n_each for each, if the
 * hard limit allows it.  Otherwise *out is less than wanted, which is logged.  Returns ERR_INVALID
 * when not even one can be served.  Call it before the server opens anything. */
int descriptors_for_connections(uint32_t *out, uint64_t wanted, uint32_t n_each, struct error *err);

#endif
