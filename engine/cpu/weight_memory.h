/* weight_memory.h - memory for repacked weights, many of them in a mapping.
 *
 * A step reads all weights, and a processor reads ahead within a page only.  With a mapping of its
 * own, a weight smaller than a huge page would have small ones.  So weights lie one behind the
 * other in large mappings, for which huge pages are asked for.
 *
 *   mapping   | weight | weight | weight |  free  |   unmapped when its last weight is given back
 *
 * Thread: engine, or the one that loads.  Memory: mappings of 64 MiB or one larger weight; what is
 * not used of them is not resident. */
#ifndef ENGINE_CPU_WEIGHT_MEMORY_H
#define ENGINE_CPU_WEIGHT_MEMORY_H

#include <stddef.h>

struct error;
struct weight_mapping; /* opaque: the fields live in weight_memory.c */

/* All mappings, the newest first.  Zeros are none. */
struct weight_memory {
    struct weight_mapping *mappings;
};

/* Takes `bytes` of zeros, 64-byte aligned. */
int weight_memory_take(struct weight_memory *memory, size_t bytes, void **out, struct error *err);
/* Gives back what was taken. */
void weight_memory_give(struct weight_memory *memory, const void *taken);

#endif
