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

/* A sequence's part in the prefix cache; only sequence_prefix.c opens it. */
struct sequence_prefix {
    uint64_t *hashes; /* of the text's whole blocks, as far as known */
    uint32_t *blocks; /* the prefix cache's blocks that the sequence uses */
    uint32_t n_hashes, n_blocks, capacity;
    uint32_t n_without_window; /* leading blocks that need no pages of window layers */
};

/* The part of a text that the cache and the sequence's own swapped data have. */
struct prefix_match {
    uint32_t n_blocks; /* of the cache, to be used */
    uint32_t n_tokens;
    bool is_swapped; /* the rest of the tokens is swapped, and window pages come from there */
};

/* Makes capacity for the prompt's blocks and hashes them.  ERR_NOMEM. */
int sequence_prefix_prepare(struct kv_sequence *kv, const uint32_t *prompt);
/* Makes capacity for the blocks of n_tokens tokens.  ERR_NOMEM. */
int sequence_prefix_grow(struct kv_sequence *kv, uint32_t n_tokens);
/* Frees the part; no block is in use. */
void sequence_prefix_fini(struct kv_sequence *kv);
/* Looks for the text's first n_max tokens; changes nothing. */
struct prefix_match sequence_prefix_find(const struct kv_sequence *kv, const uint32_t *tokens,
                                         uint32_t n_max);
/* Does the same for a sequence that uses no blocks, and remembers those that it found. */
struct prefix_match sequence_prefix_match(struct kv_sequence *kv, const uint32_t *tokens,
                                          uint32_t n_max);
/* Uses the remembered blocks of the match, and puts their pages into the empty lists. */
void sequence_prefix_use(struct kv_sequence *kv, const struct prefix_match *match);
/* Inserts whole blocks of the first n_tokens tokens, which are stored and known to be valid, as far
 * as they may be shared. */
void sequence_prefix_insert(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_tokens);
/* Tells whether `other`, which is computing its prompt, will soon insert a block that `kv` needs
 * next. */
bool sequence_prefix_is_coming(const struct kv_sequence *kv, const struct kv_sequence *other);
/* Tells whether tokens that are not inserted yet will be. */
bool sequence_prefix_is_growing(const struct kv_sequence *kv);
/* Ends the need for window pages of blocks before number n. */
void sequence_prefix_expire(struct kv_sequence *kv, uint32_t n);
/* Copies used blocks that are in the host pool into the lists' pages, which have been taken.
 * Copies token blocks, too, unless the sequence selects from them there.  ERR_DEVICE. */
int sequence_prefix_resume(struct kv_sequence *kv, struct error *err);
/* Stops using the blocks; their pages stay in the lists. */
void sequence_prefix_release(struct kv_sequence *kv);

/* Returns how many blocks of the prefix cache the sequence uses: the text's first ones. */
uint32_t sequence_prefix_n_blocks(const struct kv_sequence *kv);
/* Returns the prefix cache's number of the text's block i, which the sequence uses. */
uint32_t sequence_prefix_block(const struct kv_sequence *kv, uint32_t i);
/* Returns how many of these blocks, from the first one on, other sequences use, too. */
uint32_t sequence_prefix_n_shared(const struct kv_sequence *kv);
/* Returns of how many of the text's whole blocks the hashes are known. */
uint32_t sequence_prefix_n_hashes(const struct kv_sequence *kv);
/* Returns the hash of the text's block i, which is known. */
uint64_t sequence_prefix_hash(const struct kv_sequence *kv, uint32_t i);

#endif
