/* sequence_prefix.h - the part of a sequence that it shares with others through the prefix cache.
 *
 *   blocks:  [ 0 ][ 1 ][ 2 ]              used blocks of the prefix cache: a page in every layer
 *   pages:   [ 7 ][ 4 ][ 9 ][ 3 ][ 8 ]    of a layer: 3 is full, not inserted yet, 8 is filling
 *
 * The sequence holds a reference to each of its pages.  It also uses the blocks that name its
 * tokens.  When two sequences computed the same block, the second keeps its own pages but uses the
 * first one's block.  So the chain of blocks has no gaps and its next blocks have a parent.
 *
 * Only what all layers have can be shared, so a sequence shares the least of what its kinds allow.
 *
 * A sequence that moves tokens shares no sparse pages.  It uses the token blocks of blocks instead
 * (prefix_cache.h), and has pages of its own for sparse layers, as long as these see the text.
 *
 * Thread: engine.  Memory: arrays of block numbers and hashes, which grow in prepare and grow. */
#ifndef ENGINE_KV_SEQUENCE_PREFIX_H
#define ENGINE_KV_SEQUENCE_PREFIX_H

#include <stdbool.h>
#include <stdint.h>

struct error;
struct kv_sequence;

/* What a sequence uses of the prefix cache; only sequence_prefix.c opens it. */
struct sequence_prefix {
    uint64_t *hashes; /* of the text's first whole blocks */
    uint32_t *blocks; /* the prefix cache's blocks that the sequence uses */
    uint32_t n_hashes, n_blocks, capacity;
    uint32_t n_without_window; /* leading blocks that need no pages of window layers */
};

/* The first tokens of a text that are found. */
struct prefix_match {
    uint32_t n_blocks; /* blocks of the cache with the first of them */
    uint32_t n_tokens; /* in all */
    uint32_t n_cached; /* whose blocks are cached, though a recurrent state may be missing */
    bool is_swapped;   /* the rest is in the sequence's swapped data, as are all window pages */
};

/* Makes capacity for the prompt's blocks, and hashes those that may be shared.  prompt:
 * [plan.n_prompt], not kept.  ERR_NOMEM. */
int sequence_prefix_prepare(struct kv_sequence *kv, const uint32_t *prompt);
/* Makes capacity for the blocks of n_tokens tokens in all.  ERR_NOMEM. */
int sequence_prefix_grow(struct kv_sequence *kv, uint32_t n_tokens);
/* Frees the arrays; no block may be in use. */
void sequence_prefix_fini(struct kv_sequence *kv);
/* Returns how much of the text's first n_max tokens is in the prefix cache, or in the sequence's
 * swapped data if that is more.  Changes nothing. */
struct prefix_match sequence_prefix_find(const struct kv_sequence *kv, const uint32_t *tokens,
                                         uint32_t n_max);
/* Does sequence_prefix_find() for a sequence that uses no blocks, and remembers what it found. */
struct prefix_match sequence_prefix_match(struct kv_sequence *kv, const uint32_t *tokens,
                                          uint32_t n_max);
/* Uses the match's remembered blocks, and puts their pages into the empty lists; pages that a block
 * does not have are left for kv_reserve(). */
void sequence_prefix_use(struct kv_sequence *kv, const struct prefix_match *match);
/* Inserts the whole blocks of the first n_tokens tokens that may be shared and are not inserted
 * yet.  The tokens are stored and valid. */
void sequence_prefix_insert(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_tokens);
/* Tells whether the next block that `other` inserts is one of the text of `kv`, which has not
 * begun.  `other` must be running: a waiting one inserts none soon. */
bool sequence_prefix_is_coming(const struct kv_sequence *kv, const struct kv_sequence *other);
/* Tells whether the sequence's kinds let others find any of its blocks. */
bool sequence_prefix_is_shared(const struct kv_sequence *kv);
/* Tells whether its kinds let the sequence insert more blocks than it uses now. */
bool sequence_prefix_is_growing(const struct kv_sequence *kv);
/* Ends the need for the window pages of the text's first n blocks. */
void sequence_prefix_expire(struct kv_sequence *kv, uint32_t n);
/* Copies used blocks that are in the host pool into the lists' pages, which have been taken.
 * Copies token blocks, too, unless the sequence selects from them there.  ERR_DEVICE. */
int sequence_prefix_resume(struct kv_sequence *kv, struct error *err);
/* Stops using all blocks; their pages stay in the lists. */
void sequence_prefix_release(struct kv_sequence *kv);

/* Returns how many blocks of the prefix cache the sequence uses: the text's first ones. */
uint32_t sequence_prefix_n_blocks(const struct kv_sequence *kv);
/* Returns the prefix cache's number of the text's block i, which the sequence uses. */
uint32_t sequence_prefix_block(const struct kv_sequence *kv, uint32_t i);
/* Returns how many of these blocks, before the first that no other sequence uses, are shared. */
uint32_t sequence_prefix_n_shared(const struct kv_sequence *kv);
/* Returns how many of the text's first blocks have been hashed. */
uint32_t sequence_prefix_n_hashes(const struct kv_sequence *kv);
/* Returns the hash of the text's block i, which has been hashed. */
uint64_t sequence_prefix_hash(const struct kv_sequence *kv, uint32_t i);

#endif
