/* rotary_order.h - rows of q and k in the order in which the decoder rotates them.
 *
 * Operations rotate the pairs (i, i + n_freqs) of a head; some families were trained with the pairs
 * (2i, 2i + 1).  Attention only multiplies q with k, so the order of a head's elements is free as
 * long as both have the same.  So the rows of their weights are reordered once, at loading, and all
 * operations stay the same.
 *
 *   head of the file   a0 b0 a1 b1 a2 b2 | c0 c1      n_freqs 3, two elements that are not rotated
 *   of the decoder     a0 a1 a2 b0 b1 b2 | c0 c1
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_MODEL_ROTARY_ORDER_H
#define ENGINE_MODEL_ROTARY_ORDER_H

#include <stddef.h>
#include <stdint.h>

/* Returns where row i of a head in the decoder's order is in the file's order. */
uint32_t rotary_place(uint32_t i, uint32_t n_freqs);

/* Reorders n_rows rows of row_bytes: consecutive heads of head_dim rows each.  out is not in. */
void rotary_order(void *out, const void *in, size_t n_rows, size_t row_bytes, uint32_t head_dim,
                  uint32_t n_freqs);

#endif
