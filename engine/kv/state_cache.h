/* state_cache.h - states of sequences that keep a budget, found again by the tokens that made them.
 *
 *   name                                  holds
 *   "You are a helpful…", salt, budget    pages of every layer: keys, values, positions, scores
 *   "You are a helpful… Yes.", the same   the same a turn later: all of it, not what is new
 *
 * What a bounded cache keeps of a prefix depends on what follows it, so states share no pages, and
 * a state is used as a whole.  Its name is all of its tokens, the salt, and whatever decides what
 * is kept.  Tokens are compared on every hit.
 *
 * A cached state has no users.  Its pages can be freed at any time, least recently used first, in
 * one order with the blocks of the prefix cache.  With a host pool an evicted state moves there if
 * there is space.  It is found as before, and copied from there.  A state that is not known to be
 * valid yet is not found.  With a tier on disk (disk/disk.h) a state that leaves the host pool, or
 * the device where there is none, is offered to it.
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
    uint32_t chunk; /* of prompts, in tokens; 0: the whole prompt */
};

/* All that a sequence had after n_tokens tokens. */
struct kv_state {
    struct kv_state *older, *newer; /* in the cache */
    struct kv_state **owner; /* NULL, or set to NULL when the cache drops it or gives it away */
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

/* Which of the notes of a state's file has which member of struct kv_state. */
enum kv_state_note { STATE_TURN, STATE_PHASE };

/* Returns the key of the states of sequences with this plan and salt. */
struct kv_state_key kv_state_key(const struct kv_plan *plan, uint64_t salt);

/* Returns the key of the file of a state of n_tokens tokens; it points to `tokens`. */
struct disk_key kv_state_disk_key(const struct kv_state_key *key, const uint32_t *tokens,
                                  uint32_t n_tokens);

/* Makes a state without pages, which the caller owns, with capacity for n_pages pages a layer.
 * tokens: copied; NULL: kv_state_name() sets them later, or the caller sets the array if n_tokens
 * is 0.  with_lists: it has lists; else the caller sets `layers`.  NULL: there is no memory. */
struct kv_state *kv_state_create(const struct kv_space *space, const struct kv_state_key *key,
                                 const uint32_t *tokens, uint32_t n_tokens, uint64_t n_pages,
                                 bool with_lists);
/* Returns which pages of a sequence's list a state of n_tokens tokens and n_pages pages in all
 * has in this layer.  With a window these are those that the window sees.  All other layers have
 * equally many, from the first one on.  kv_state_is_possible() must hold. */
struct kv_range kv_state_range(const struct kv_space *space, uint32_t n_tokens, uint32_t n_pages,
                               uint32_t layer);
/* Tells whether layers can share n_pages pages as kv_state_range() says. */
bool kv_state_is_possible(const struct kv_space *space, uint32_t n_tokens, uint32_t n_pages);
/* Copies what a sequence's lists, [n_layers], hold of the state to the state's pages; back: from
 * the state's pages to the lists'.  The state is not offloaded, and the lists reach as far as
 * kv_state_range() says.  ERR_DEVICE. */
int kv_state_copy(const struct kv_space *space, const struct kv_state *state,
                  const struct page_list *lists, bool back, struct error *err);
/* Copies the state's n_tokens tokens into the space that kv_state_create() made for them. */
void kv_state_name(struct kv_state *state, const uint32_t *tokens);
/* Performs the state's pending copy, if there is one, from the borrower's lists to the state's own
 * pages.  The sequence then borrows it no longer: *owner becomes NULL.  Slots that the sequence has
 * added since do not matter.  On ERR_DEVICE the device is lost, and the copy is not tried again. */
int kv_state_return(const struct kv_space *space, struct kv_state *state, struct error *err);
/* Frees a state that is not cached, and gives its pages and host blocks back.  NULL is allowed. */
void kv_state_destroy(const struct kv_space *space, struct kv_state *state);

/* Creates an empty cache, which the caller owns.  The space is borrowed, has a prefix cache, and is
 * complete but for its `states`.  ERR_NOMEM. */
int state_cache_create(struct state_cache **out, const struct kv_space *space, struct error *err);
/* Frees the cache and all states in it; NULL is allowed. */
void state_cache_destroy(struct state_cache *cache);

/* Returns a hash of the key and n_tokens tokens, never 0, under a key of this cache. */
uint64_t state_cache_hash(const struct state_cache *cache, const struct kv_state_key *key,
                          const uint32_t *tokens, uint32_t n_tokens);

/* Tells state_cache_find() whether a state of the right key will do; ctx is its caller's. */
typedef bool (*state_suits)(const void *ctx, const struct kv_state *state);
/* Returns the longest valid state of this key that suits() accepts, and whose tokens, at most
 * n_max, begin the text.  It stays in the cache.  NULL: there is none. */
struct kv_state *state_cache_find(const struct state_cache *cache, const struct kv_state_key *key,
                                  const uint32_t *tokens, uint32_t n_max, state_suits suits,
                                  const void *ctx);
/* Takes ownership of the state, as the most recently used one, and drops the oldest ones beyond the
 * bounds.  Of two equal valid ones, one that is cached with pages stays and this one is freed.  One
 * that is offloaded is dropped.  It is freed, too, if it has more than STATE_MAX_TOKENS. */
void state_cache_insert(struct state_cache *cache, struct kv_state *state);
/* Gives a cached state to the caller, which owns it then.  Performs its pending copy first. */
void state_cache_take(struct state_cache *cache, struct kv_state *state);

/* Returns when the least recently used state with pages was used, as a value of
 * prefix_cache_tick(); UINT64_MAX: there is none. */
uint64_t state_cache_oldest(const struct state_cache *cache);
/* Returns what state_cache_evict_oldest() should do with that state, which there must be. */
struct kv_demotion state_cache_demotion(const struct state_cache *cache);
/* Evicts that state, whose pages become free.  It moves to the host pool if the demotion says so
 * and enough host blocks are free.  Else it is offered to the tier on disk and dropped. */
void state_cache_evict_oldest(struct state_cache *cache, struct kv_demotion demotion);
/* Returns how many pages of the pool the cached states have. */
uint32_t state_cache_n_idle_pages(const struct state_cache *cache);

/* Offers valid states to the tier on disk, the newest first, as far as the pass goes (offer.h). */
enum kv_save_result state_cache_save(struct state_cache *cache, struct kv_saving *saving);

/* Returns when the least recently used state in the host pool was used; UINT64_MAX: none. */
uint64_t state_cache_oldest_offloaded(const struct state_cache *cache);
/* Drops the least recently used state in the host pool, which there must be; it is offered to the
 * tier on disk first. */
void state_cache_drop_oldest_offloaded(struct state_cache *cache);
/* Returns how many pages the states in the host pool have there. */
uint32_t state_cache_n_offloaded_pages(const struct state_cache *cache);
/* Returns how many host blocks those pages take. */
uint32_t state_cache_n_offloaded_blocks(const struct state_cache *cache);

#endif
