/* populate.h - gives memory its pages before it is written, in one call instead of a fault for
 * each.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_BASE_POPULATE_H
#define ENGINE_BASE_POPULATE_H

#include <stddef.h>

/* Prepares memory that is about to be written as a whole.  It may do nothing: the faults come
 * then. */
void populate(void *bytes, size_t size);

#endif
