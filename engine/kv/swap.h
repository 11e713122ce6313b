/* swap.h - what preempted sequences had in their pages, in the host pool until they continue.
 *
 *   pages of a layer   [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ]     others use blocks 0 and 1 of the prefix cache,
 *   in the host pool             [ 2 ][ 3 ][ 4 ]     too: these are found there again
 *   with a window                     [ 3 ][ 4 ]     all that it has, used by others or not
 *   a selection        [ c ][ c ][ 4 ][ 5 ][ . ]     all of the list, which includes the tail
 *
 * Layers follow one another, then comes the state of the selection.  Token blocks (prefix_cache.h)
 * stay where they are meanwhile.
 *
 * Swapped data are only a cache, and their blocks are offered (page_pool.h) until they are claimed.
 * A running sequence may take the blocks of waiting ones, always all of a sequence's.  A sequence
 * whose swapped pages, or whose first blocks in the prefix cache, are gone is computed again.  So
 * is one with a recurrent state, from its last checkpoint on (sequence_recurrent.h): without that
 * state its pages are of no use.
 *
 * Thread: engine.  Memory: a list of blocks per sequence, which grows in kv_swap_out(). */
#ifndef ENGINE_KV_SWAP_H
#define ENGINE_KV_SWAP_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/kv/kv_space.h"

struct error;
struct kv_sequence;

/* A suspended sequence's data in the host pool; only swap.c opens it. */
struct kv_swap {
    struct kv_swap *older, *newer;
    struct page_list blocks;        /* host blocks that hold its pages */
    struct page_list *token_blocks; /* selection_token_blocks(): dropped together with these */
    uint32_t n_tokens;              /* of the sequence; 0: nothing is swapped */
    uint32_t n_shared, n_expired;   /* see kv_swap_n_shared(), kv_swap_n_expired() */
    bool is_claimed;                /* it is about to continue: its blocks cannot be dropped */
    uint32_t n_reused;              /* last ones of `blocks` that have become token blocks */
};

/* Copies pages that no other sequence uses to the host pool, before they are given back.  Swaps
 * nothing if the host pool has no space for all of them.  Keeps older swapped data if nothing has
 * been computed since kv_match().  ERR_DEVICE. */
int kv_swap_out(struct kv_sequence *kv, struct error *err);
/* Claims the sequence's swapped data, which it must have, before it continues.  They cannot be
 * dropped until kv_swap_in(), or until kv_swap_out() if the sequence got no pages. */
void kv_swap_claim(struct kv_sequence *kv);
/* Copies claimed data into the sequence's reserved pages, and frees their host blocks.  Drops data
 * that are not claimed.  ERR_DEVICE. */
int kv_swap_in(struct kv_sequence *kv, struct error *err);
/* Drops the sequence's swapped data and token blocks, if it has swapped data; frees the blocks. */
void kv_swap_drop(struct kv_sequence *kv);
/* Frees the memory of the list of blocks, which must be empty. */
void kv_swap_fini(struct kv_sequence *kv);

/* Returns how many first tokens the swapped data restore, together with prefix blocks that others
 * used; 0: nothing is swapped. */
uint32_t kv_swap_n_tokens(const struct kv_sequence *kv);
/* Returns how many of a list's first pages are not swapped in layers without a window, because
 * others used them; meaningless if nothing is swapped. */
uint32_t kv_swap_n_shared(const struct kv_sequence *kv);
/* Returns how many of a list's first pages are not swapped in layers with a window, because they
 * had expired; meaningless if nothing is swapped. */
uint32_t kv_swap_n_expired(const struct kv_sequence *kv);
/* Tells whether the sequence has claimed its swapped data. */
bool kv_swap_is_claimed(const struct kv_sequence *kv);

/* Returns how many host blocks of claimed data the sequence may still reuse as token blocks.  They
 * are free once the pages are back, and later writes to them come after the copies that read them.
 * Returns 0 if nothing is claimed. */
uint32_t kv_swap_n_reusable(const struct kv_sequence *kv);
/* Appends n_blocks of these host blocks to the list `to`, which has capacity and now owns them. */
void kv_swap_reuse(struct kv_sequence *kv, struct page_list *to, uint32_t n_blocks);

/* Returns how many host blocks a running sequence could take; 0 without a host pool.  These are the
 * free ones, those of cached blocks and states, and those that only waiting sequences have. */
uint32_t kv_n_available_blocks(const struct kv_space *space);
/* Makes n_blocks host blocks free: drops what is cached first, then the swapped data of the
 * sequences that have waited longest.  ERR_FULL: nothing has been dropped. */
int kv_make_blocks(const struct kv_space *space, uint32_t n_blocks);

#endif
