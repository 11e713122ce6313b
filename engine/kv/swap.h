/* swap.h - what sequences that lost their place had in their pages, in the store until they go on.
 *
 *   pages of a layer   [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ]     others use blocks 0 and 1 of the prefix cache,
 *   in the store                 [ 2 ][ 3 ][ 4 ]     too: these are found there again
 *
 * Layers with windows give back pages while a text grows.  Where there are any, nothing goes here.
 *
 * Nobody depends on what is here.  Whoever runs may have the blocks of those that wait; a sequence
 * whose pages are gone, or whose first blocks are, is computed again.
 *
 * Thread: engine.  Memory: a list of blocks per sequence, which grows in kv_swap_out(). */
#ifndef ENGINE_KV_SWAP_H
#define ENGINE_KV_SWAP_H

#include "engine/kv/policy.h"

/* Before the sequence's pages are given back: copies to the store what nobody else has, if it has
 * room, and if there is anything that the prefix cache did not give.  ERR_DEVICE. */
int kv_swap_out(struct kv_sequence *kv, struct error *err);
/* Tokens that it will have when kv_swap_in() brings that back: it has found the blocks that it
 * needs besides.  0: it is of no use. */
uint32_t kv_swap_tokens(const struct kv_sequence *kv);
/* Once it has pages for these tokens: brings them back.  ERR_DEVICE. */
int kv_swap_in(struct kv_sequence *kv, struct error *err);
/* Nothing of the sequence is in the store any more. */
void kv_swap_drop(const struct kv_space *space, struct kv_swap *swap);

/* Blocks of the store that a running sequence could have: those that are free, the prefix cache's,
 * and those of sequences that wait.  0: there is no store. */
uint32_t kv_spare_blocks(const struct kv_space *space);
/* That many free, at the expense of the prefix cache and then of those that have waited longest.
 * ERR_FULL: nothing is dropped in vain. */
int kv_make_blocks(const struct kv_space *space, uint32_t n_blocks);

#endif
