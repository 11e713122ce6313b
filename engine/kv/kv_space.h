/* kv_space.h - the pools and caches that all sequences of an engine share, and its layers' roles.
 *
 * Thread: engine; functions that only read a layer's role: any.  Memory: none. */
#ifndef ENGINE_KV_KV_SPACE_H
#define ENGINE_KV_KV_SPACE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/layer_group.h"
#include "engine/kv/page_io.h"
#include "engine/kv/page_list.h"

struct checkpoints;
struct kv_disk;
struct kv_feed;
struct kv_plan;
struct kv_readings;
struct kv_swap;
struct page_pool;
struct prefix_cache;
struct state_cache;

/* Set in the salts of blocks and states that must not outlive the process. */
#define KV_SALT_PRIVATE (UINT64_C(1) << 63)

/* Pages of the pool, blocks of the host pool (host_pool.h), and slots of recurrent states. */
struct kv_amount {
    uint64_t pages, blocks, states;
};

/* Pages number `first` to first + n - 1 of a layer's list. */
struct kv_range {
    uint32_t first, n;
};

/* Swapped data of waiting sequences (swap.h), in the order in which these were preempted. */
struct kv_swaps {
    struct kv_swap *oldest, *newest;
    uint64_t n_out, n_in; /* pages that anything has copied to the host pool and back, so far */
};

/* What becomes of what a cache evicts.  to_host: it moves to n_blocks host blocks.  Else it is
 * dropped; the tier on disk may take a copy first (offer.h). */
struct kv_demotion {
    bool to_host;
    uint32_t n_blocks;
};

/* All members are borrowed by the sequences.  Set once, before the first sequence. */
struct kv_space {
    struct page_pool *pool;
    struct page_pool *blocks;   /* of the host pool; NULL: there is none */
    struct prefix_cache *cache; /* NULL: prefixes are not shared */
    struct state_cache *states; /* NULL: states are not kept */
    uint32_t n_layers;          /* that attend: recurrent ones have no pages */
    /* Of a model with recurrent layers, else NULL: slots of their states, and those that are
     * checkpoints.  A text leaves one every checkpoint_tokens tokens. */
    struct page_pool *state_slots;
    struct checkpoints *checkpoints;
    uint32_t checkpoint_tokens; /* a multiple of PAGE_TOKENS */
    /* Steps cut prompts only behind a multiple of so many tokens, at the prompt's end, and where a
     * policy cuts it; 0: anywhere.  Of batch-invariant spaces (recurrent_ops.chunk). */
    uint32_t prompt_unit;
    bool ends_recurrent;          /* layers behind the last one with pages are recurrent */
    const uint32_t *windows;      /* as in struct step */
    uint32_t window;              /* the largest; 0: there is none, or sequences keep all pages */
    struct page_io io;            /* the memory of pages and host blocks */
    struct kv_swaps *swaps;       /* swapped data of waiting sequences; NULL: none */
    struct kv_disk *disk;         /* the tier below (disk/disk.h); NULL: none */
    struct kv_readings *readings; /* what is being read from it; NULL: none */
    struct kv_feed *feed;         /* is told of the cache's blocks; NULL: there is none */
    const struct layer_group *groups; /* host [n_groups]: the layers that are sparse where a */
    uint32_t n_groups;                /* sequence selects */
    /* A token's keys and values have different bits when another kernel computes them, so each is
     * computed once, by the kernel of its kind.  Requests get all their pages when they start, so
     * that none is preempted and computed again like a prompt.  Generated tokens are not shared
     * with prompts. */
    bool batch_invariant;
};

/* The roles of layers.  A sequence's plan assigns a kind (kind.h) to each. */
enum kv_role {
    KV_PLAIN,    /* it attends to the whole text */
    KV_WINDOWED, /* it has a window, and sequences keep only the window's pages */
    KV_SPARSE,   /* it is sparse where a sequence selects */
    KV_BUDGETED, /* it is among the layers that keep a budget, while others do not (kv_override) */
    KV_N_ROLES
};

/* The order in which host blocks, and files on disk, have the pages of a block of the prefix cache:
 * by role, then by layer.  Pages that the block does not have are left out. */
enum { KV_N_PLACED = 3 };
extern const enum kv_role kv_place_order[KV_N_PLACED];

/* Tells whether the layer has a window and sequences keep only the window's pages (`window`). */
static inline bool kv_has_window(const struct kv_space *space, uint32_t layer) {
    return space->window > 0 && layer_has_window(space->windows, layer);
}

/* Tells whether a filter group has the layer: sequences that select see only selected tokens. */
bool kv_is_sparse(const struct kv_space *space, uint32_t layer);
/* Returns the layer's role under the plan: KV_BUDGETED if the plan's budget is for some layers and
 * this is one, else the usual role. */
enum kv_role kv_role_of(const struct kv_space *space, const struct kv_plan *plan, uint32_t layer);
/* Returns the layer's role without a plan: KV_WINDOWED, KV_SPARSE or KV_PLAIN. */
enum kv_role kv_usual_role_of(const struct kv_space *space, uint32_t layer);

/* Returns how many sparse layers there are in all groups; each is one host layer (host_pool.h). */
uint32_t kv_n_sparse(const struct kv_space *space);
/* Returns the number of a sparse layer's host layer: how many sparse layers come before it. */
uint32_t kv_host_layer_of(const struct kv_space *space, uint32_t layer);
/* Returns the first sparse layer from this one on, n_layers if there are no more. */
uint32_t kv_next_sparse(const struct kv_space *space, uint32_t layer);

/* ---- pages of layers with a window ---- */

/* Returns how many of a list's first pages no row behind the first n_tokens tokens sees, in any
 * layer with a window; 0 without windows.  At least one whole page stays. */
uint32_t kv_window_n_behind(const struct kv_space *space, uint32_t n_tokens);
/* Returns which pages of a windowed layer's list rows behind the first n_tokens tokens may see.
 * These are those from kv_window_n_behind() on, up to that of the last token. */
struct kv_range kv_window_range(const struct kv_space *space, uint32_t n_tokens);
/* Returns the most pages that a layer with this window, in tokens, holds of n_tokens tokens; window
 * 0: all of their pages.  step_rows: the most rows that a step appends. */
uint64_t kv_window_n_pages(uint32_t window, uint32_t step_rows, uint32_t n_tokens);

#endif
