/* swap.h - what preempted sequences had in their pages, in the host pool until they continue.
 *
 *   pages of a layer   [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ]     others use blocks 0 and 1 of the prefix cache,
 *   in the host pool             [ 2 ][ 3 ][ 4 ]     too: these are found there again
 *   with a window                     [ 3 ][ 4 ]     all that it has, used by others or not
 *   a selection        [ c ][ c ][ 4 ][ 5 ][ . ]     all of the list, which includes the tail
 *
 * Layers follow one another, then comes the state of the selection.  Host blocks that hold sparse
 * layers' tokens stay where they are meanwhile.
 *
 * Swapped data are only a cache.  A running sequence may take the blocks of waiting ones, always
 * all of a sequence's.  A sequence whose swapped pages, or whose first blocks in the prefix cache,
 * are gone is computed again.
 *
 * Thread: engine.  Memory: a list of blocks per sequence, which grows in kv_swap_out(). */
#ifndef ENGINE_KV_SWAP_H
#define ENGINE_KV_SWAP_H

#include "engine/kv/policy.h"

/* Saves in the host pool what no other sequence has, before the sequence's pages are given back.
 * Does nothing if the host pool has no space, or if nothing has been computed since match().
 * ERR_DEVICE. */
int kv_swap_out(struct kv_sequence *kv, struct error *err);
/* Claims the sequence's swapped data before it continues.  The prefix cache has n_blocks blocks of
 * its text, which alone would give it n_tokens tokens.  Returns true if the data have more tokens
 * and fit these blocks.  Then their host blocks cannot be dropped until kv_swap_in(), or until
 * kv_swap_out() if the sequence got no pages. */
bool kv_swap_match(struct kv_sequence *kv, uint32_t n_blocks, uint32_t n_tokens);
/* Brings matched data back once the sequence has as many pages as before, and frees their host
 * blocks.  Drops data that are not matched.  ERR_DEVICE. */
int kv_swap_in(struct kv_sequence *kv, struct error *err);
/* Drops all that the sequence has in the host pool. */
void kv_swap_drop(const struct kv_space *space, struct kv_swap *swap);

/* Returns how many blocks of matched data are free once the pages are back.  Later writes to them
 * are ordered after the copies that read them, so a sequence with pages may use them at once.  The
 * other function moves n_blocks of them to `to`, for the sequence's tokens. */
uint32_t kv_swap_n_lendable(const struct kv_swap *swap);
void kv_swap_lend(struct kv_swap *swap, struct page_list *to, uint32_t n_blocks);

/* Returns how many host blocks a running sequence could have, 0 without a host pool.  These are the
 * free ones, the prefix cache's, and those of waiting sequences. */
uint32_t kv_spare_blocks(const struct kv_space *space);
/* Makes n_blocks host blocks free: drops the prefix cache's first, then those of the sequences that
 * have waited longest.  ERR_FULL: nothing has been dropped. */
int kv_make_blocks(const struct kv_space *space, uint32_t n_blocks);

#endif
