/* descriptors.h - how many connections the process may open files for.
 *
 * Thread: main, at start.  Memory: none. */
#ifndef SERVER_DESCRIPTORS_H
#define SERVER_DESCRIPTORS_H

#include <stdint.h>

struct error;

/* Raises the soft limit of open files to what so many connections need, where the hard one allows
 * it; else *out is less than wanted, and the log says so.  ERR_INVALID: not even one can be served.
 * Called before the server opens anything. */
int descriptors_for_connections(uint32_t *out, uint64_t wanted, struct error *err);

#endif
