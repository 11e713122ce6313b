/* slab.h - products of weights that are not plain, as products of bf16 slabs.
 *
 *   parts  [ q rows          | k rows | v rows ]     one behind the other
 *   slabs  [ 0        | 1        | 2      ]          each is widened to the same memory in turn
 *
 * The last slab may have fewer rows than the others.  If gated, a slab has rows of gate, and behind
 * them the same rows of up.
 *
 * Thread: any.  Memory: none. */
#ifndef CUDA_LINEAR_SLAB_H
#define CUDA_LINEAR_SLAB_H

#include <stdint.h>

#include "cuda/linear/product.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SLAB_BYTES = 128 << 20 };

struct slab {
    struct product p; /* of the slab's rows; its parts are rows of the product's parts, in order */
    uint32_t part[LINEAR_MAX_PARTS];  /* whose rows they are, */
    uint32_t first[LINEAR_MAX_PARTS]; /* and the first of them */
};

/* Returns how many rows a slab has; if gated, of gate and up each. */
uint32_t slab_rows(const struct product *p);
/* Returns how many rows all slabs have together; if gated, of gate alone. */
uint32_t slab_all_rows(const struct product *p);
/* Makes *out the product of rows from `first` on, at most slab_rows(), widened to bf16 in memory
 * [SLAB_BYTES].  It has no norm. */
void slab_cut(const struct product *p, void *memory, uint32_t first, struct slab *out);

#ifdef __cplusplus
}
#endif

#endif
