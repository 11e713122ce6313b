/* qkv_order.h - q, k and v out of a tensor whose rows lie by KV head.
 *
 * Falcon and GPT-NeoX store the three projections as one tensor, and in it each KV head's queries
 * beside its key and its value.  Operations read q, k and v apart, so the rows of each are copied
 * together once, at loading.
 *
 *   in the file       q0 q1 k0 v0 | q2 q3 k1 v1     two queries in the group of a KV head
 *   for the decoder   q0 q1 q2 q3,  k0 k1,  v0 v1   each head_dim rows
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_MODEL_QKV_ORDER_H
#define ENGINE_MODEL_QKV_ORDER_H

#include <stddef.h>

/* Copies, for each of n_groups groups of group_bytes, part_bytes that begin at first_byte. */
void qkv_order(void *out, const void *in, size_t n_groups, size_t group_bytes, size_t first_byte,
               size_t part_bytes);

#endif
