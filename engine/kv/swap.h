/* swap.h - what sequences that lost their place had in their pages, in the store until they go on.
 *
 *   pages of a layer   [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ]     others use blocks 0 and 1 of the prefix cache,
 *   in the store                 [ 2 ][ 3 ][ 4 ]     too: these are found there again
 *   with a window                     [ 3 ][ 4 ]     what it has, whoever uses the blocks
 *   what it selects    [ c ][ c ][ 4 ][ 5 ][ . ]     as it is: the tail is among it
 *
 * Layers follow one another, then comes the state of the selection.  Blocks that sparse layers'
 * tokens have been moved to stay where they are meanwhile.
 *
 * Nobody depends on what is here.  Whoever runs may have the blocks of those that wait, all that
 * one has at a time; a sequence whose pages are gone, or whose first blocks are, is computed again.
 *
 * Thread: engine.  Memory: a list of blocks per sequence, which grows in kv_swap_out(). */
#ifndef ENGINE_KV_SWAP_H
#define ENGINE_KV_SWAP_H

#include "engine/kv/policy.h"

/* Before the sequence's pages are given back: copies to the store what nobody else has, if it has
 * room, and if anything has been computed that was not found.  ERR_DEVICE. */
int kv_swap_out(struct kv_sequence *kv, struct error *err);
/* The sequence may go on, with the first n_blocks blocks of its text from the prefix cache, or
 * those that it has there.  True if there is more here, and it is of use with these: then nobody
 * else can have it until kv_swap_in(), or kv_swap_out() where there was no place. */
bool kv_swap_match(struct kv_sequence *kv, uint32_t n_blocks, uint32_t n_tokens);
/* Once it has pages, as many as it had: brings back what it has adopted.  Nothing of it is here any
 * more.  ERR_DEVICE. */
int kv_swap_in(struct kv_sequence *kv, struct error *err);
/* Nothing of the sequence is in the store any more. */
void kv_swap_drop(const struct kv_space *space, struct kv_swap *swap);

/* Blocks that will be free once the pages are back: all that are written to them afterwards come
 * later.  A sequence that has adopted them and has a place may have them for its tokens at once. */
uint32_t kv_swap_n_lendable(const struct kv_swap *swap);
void kv_swap_lend(struct kv_swap *swap, struct page_list *to, uint32_t n_blocks);

/* Blocks of the store that a running sequence could have: those that are free, the prefix cache's,
 * and those of sequences that wait.  0: there is no store. */
uint32_t kv_spare_blocks(const struct kv_space *space);
/* That many free, at the expense of the prefix cache and then of those that have waited longest.
 * ERR_FULL: nothing is dropped in vain. */
int kv_make_blocks(const struct kv_space *space, uint32_t n_blocks);

#endif
