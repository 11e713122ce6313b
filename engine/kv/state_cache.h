/* state_cache.h - states of sequences that keep a budget, found again by the tokens that made them.
 *
 *   name                                  holds
 *   "You are a helpful…", salt, budget    pages of every layer: keys, values, positions, scores
 *   "You are a helpful… Yes.", the same   the same a turn later: a copy, not the rest of it
 *
 * What a bounded cache keeps of a prefix depends on what follows it, so states share no pages, and
 * a state is used as a whole.  Its name is all of its tokens, the salt, and whatever decides what
 * is kept.  Tokens are compared on every hit.
 *
 * A state is cached from its insertion on, and unused: its pages can be freed at any time, least
 * recently used first, in one order with the blocks of the prefix cache.  With a host pool an
 * evicted state moves there if there is space.  It is found as before, and
 * copied from there.  A state that is not known to be valid yet is not found.  With a tier on disk
 * (disk/disk.h) a state that leaves the host pool, or the device where there is none, is offered to
 * it.
 *
 * Thread: engine (kv_state_create: any).  Memory: a state is made by its sequence, before it runs;
 * the cache bounds their number and the length of their names, and frees them. */
#ifndef ENGINE_KV_STATE_CACHE_H
#define ENGINE_KV_STATE_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/evict.h"
#include "engine/kv/disk/index.h"
#include "engine/kv/kv_space.h"
#include "engine/kv/offer.h"

struct disk_key;
struct error;
struct kv_plan;
struct state_cache; /* opaque: the fields live in state_cache.c */

enum {
    STATE_MAX_STATES = 1024,
    STATE_MAX_TOKENS = 1 << 24 /* of all names together: 64 MiB */
};

/* What decides, beside the tokens, what a state holds. */
struct kv_state_key {
    uint64_t salt;
    struct kv_budget budget;
    uint32_t chunk; /* of prompts; 0: they are read whole */
};

struct kv_state {
    struct kv_state *older, *newer; /* in the cache */
    struct kv_state **owner; /* NULL, or what is set to NULL when the cache drops it, or gives
                                       it away */
    struct kv_state_key key;
    uint32_t *tokens; /* owned */
    uint32_t n_tokens;
    uint32_t turn;        /* kv_sequence.turn of a sequence that resumes here */
    uint32_t state_phase; /* what kv_state_ops.phase() returned */
    /* Its pages, [n_layers], as kv_state_range() says; or host blocks that hold what they had. */
    struct page_list *layers, blocks;
    /* NULL, or the lists of a sequence, whose first pages must still be copied into this state's
     * own (copy on write). */
    const struct page_list *pending_copy_from;
    uint32_t n_pages;    /* of all layers together */
    uint64_t since;      /* when it was used last */
    uint64_t written_at; /* kv_disk_n_submitted() of its copy to the host pool */
    struct disk_id id;   /* its name on disk; kind 0: not worked out yet */
    bool is_cached, is_valid, is_offloaded;
};

/* What the notes of a state's file are. */
enum kv_state_note { STATE_TURN, STATE_PHASE };

/* Returns the key of the states of sequences with this plan and salt. */
struct kv_state_key kv_state_key(const struct kv_plan *plan, uint64_t salt);

/* Returns the key of a state's file. */
struct disk_key kv_state_disk_key(const struct kv_state_key *key, const uint32_t *tokens,
                                  uint32_t n_tokens);

/* Makes an empty state for up to n_pages pages a layer.  tokens: the text that it is computed from,
 * which is copied; NULL: kv_state_name() sets it later, or, with n_tokens 0, the caller sets the
 * array.  with_lists: it has lists of its own.  Returns NULL if there is no memory. */
struct kv_state *kv_state_create(const struct kv_space *space, const struct kv_state_key *key,
                                 const uint32_t *tokens, uint32_t n_tokens, uint64_t n_pages,
                                 bool with_lists);
/* Returns which pages of a layer's list a state of n_tokens tokens has, if it has n_pages in all:
 * in a layer with a window those that the window sees, in the others equally many from the first
 * one on.  n_pages must be possible. */
struct kv_range kv_state_range(const struct kv_space *space, uint32_t n_tokens, uint32_t n_pages,
                               uint32_t layer);
/* Tells whether a state of n_tokens tokens may have n_pages in all. */
bool kv_state_is_possible(const struct kv_space *space, uint32_t n_tokens, uint32_t n_pages);
/* Copies what a sequence's lists hold of the state to its pages, or back.  ERR_DEVICE. */
int kv_state_copy(const struct kv_space *space, const struct kv_state *state,
                  const struct page_list *lists, bool back, struct error *err);
/* Copies the tokens into the space that kv_state_create() made for n_tokens of them. */
void kv_state_name(struct kv_state *state, const uint32_t *tokens);
/* Performs the pending copy.  Slots that the sequence has added since do not matter.  On ERR_DEVICE
 * the device is lost. */
int kv_state_return(const struct kv_space *space, struct kv_state *state, struct error *err);
/* Gives its pages and host blocks back and frees it; it must not be cached.  NULL is allowed. */
void kv_state_destroy(const struct kv_space *space, struct kv_state *state);

/* Creates an empty cache for the space, which is borrowed and complete, with a prefix cache, but
 * for its `states`. */
int state_cache_create(struct state_cache **out, const struct kv_space *space, struct error *err);
void state_cache_destroy(struct state_cache *cache); /* drops all; NULL is allowed */

/* Returns a hash of the key and tokens, never 0: equal names have equal hashes. */
uint64_t state_cache_hash(const struct state_cache *cache, const struct kv_state_key *key,
                          const uint32_t *tokens, uint32_t n_tokens);

/* Tells whether the sequence `ctx` can go on from a state of its key. */
typedef bool (*state_suits)(const void *ctx, const struct kv_state *state);
/* Returns the longest valid state of this key with tokens that begin the text, at most n_max of
 * them; NULL: there is none that `suits`. */
struct kv_state *state_cache_find(const struct state_cache *cache, const struct kv_state_key *key,
                                  const uint32_t *tokens, uint32_t n_max, state_suits suits,
                                  const void *ctx);
/* Takes ownership of the state.  If there is one of its name, that one is kept; if the name is too
 * long to be kept, none is. */
void state_cache_insert(struct state_cache *cache, struct kv_state *state);
/* Returns ownership of a state to the caller; its pages are then not idle. */
void state_cache_take(struct state_cache *cache, struct kv_state *state);

/* Returns when the least recently used state with pages was used, UINT64_MAX if there is none; on
 * the same clock as prefix_cache_oldest(). */
uint64_t state_cache_oldest(const struct state_cache *cache);
/* Returns what becomes of that state when it is evicted; there must be one. */
struct kv_demotion state_cache_demotion(const struct state_cache *cache);
/* Frees that state's pages.  It moves to the host pool if the demotion says so and that many host
 * blocks are free; else it is dropped. */
void state_cache_evict_oldest(struct state_cache *cache, struct kv_demotion demotion);
/* Returns how many pages of the pool the cached states have. */
uint32_t state_cache_n_idle_pages(const struct state_cache *cache);

/* Offers valid states to the tier on disk, the newest first, as far as the pass goes (offer.h). */
enum kv_save_result state_cache_save(struct state_cache *cache, struct kv_saving *saving);

/* Returns when the least recently used state in the host pool was used, UINT64_MAX if there is
 * none. */
uint64_t state_cache_oldest_offloaded(const struct state_cache *cache);
/* Drops that state, which there must be; it is offered to the tier on disk first. */
void state_cache_drop_oldest_offloaded(struct state_cache *cache);
/* Returns how many pages states have in the host pool. */
uint32_t state_cache_n_offloaded_pages(const struct state_cache *cache);
/* Returns how many host blocks those pages take. */
uint32_t state_cache_n_offloaded_blocks(const struct state_cache *cache);

#endif
