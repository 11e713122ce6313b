/* select.h - the launchers of selections, and what they work in.
 *
 *   worth    each candidate's largest weight over the heads, as a key; how many share the top bits
 *   narrow   the digits of the n_selected-th key, one after the other
 *   mark     bits: whose key is above it, whose equals it
 *   choose   ties are settled; slots whose token is not chosen again get the new tokens; a list of
 *            what must be fetched
 *   fetch    their keys and values into the slots, layer by layer
 *
 * What is to be fetched is known on the device only: grids are fixed, and a recorded step learns it
 * there.
 *
 * Thread: engine.  Memory: the caller's. */
#ifndef CUDA_KV_SELECT_H
#define CUDA_KV_SELECT_H

#include "cuda/host/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SELECT_DIGITS = 3, SELECT_BINS = 2048 };

/* A token that goes into a slot of every sparse layer of its group. */
struct fetch {
    uint32_t seq, slot;
    uint32_t source; /* block * PAGE_TOKENS + place in it; where the store is pages, the token */
    uint32_t unused; /* 16 bytes in all: one load */
};

enum fetch_kind { FETCH_BLOCKS, FETCH_PAGES, FETCH_KINDS };

/* Device memory, of the group that was selected for last. */
struct select_workspace {
    /* By candidate; a sequence's begin at keys_at. */
    uint32_t *keys;             /* larger is better */
    uint32_t *chosen, *equal;   /* bits */
    /* By row; histograms are zero between selections. */
    uint32_t *histograms;       /* [SELECT_DIGITS][SELECT_BINS] */
    uint32_t *found;            /* [SELECT_DIGITS][2]: the key's bits so far, how many to take */
    uint32_t *free_slots;       /* [max_selected] */
    struct select_total *totals;
    struct fetch *fetches[FETCH_KINDS]; /* [max_fetches] */
    uint32_t *n_fetches;        /* [FETCH_KINDS] */
    uint32_t max_selected;
};

struct select_params {
    const struct device_step *step;
    struct attn_stats attn_stats; /* of the filter's attention */
    struct kv_pool kv;
    uint32_t n_heads, group_index;
    uint32_t n_layers; /* sparse ones of the group */
    uint32_t state_slots, n_blocks; /* n_blocks: as many as fill the device */
    struct select_workspace room;
    float *worth; /* select_args */
};

struct fetch_params {
    const struct device_step *step;
    struct kv_pool kv;
    struct host_pool store; /* base NULL: the store is pages of the pool */
    const struct fetch *fetches;
    const uint32_t *n_fetches;
    uint32_t first_layer, first_host_layer;
};

enum { STORE_MOST_PAGES = 448 }; /* 4 KiB of parameters */

struct host_pool_params {
    struct kv_pool kv;
    struct host_pool store;
    uint32_t plane, n;
    struct {
        uint32_t page, block;
    } copies[STORE_MOST_PAGES];
};

/* Of n_rows rows: from the scores to the bits; from these to the list of what must be fetched. */
cudaError_t launch_select_keys(const struct select_params *p, uint32_t n_rows,
                               struct launch launch);
cudaError_t launch_select_slots(const struct select_params *p, uint32_t n_rows,
                                struct launch launch);
/* For n_layers layers from the first on. */
cudaError_t launch_fetch(const struct fetch_params *p, uint32_t n_layers, struct launch launch);
cudaError_t launch_host_pool(const struct host_pool_params *p, struct launch launch);
/* The same where the store is fp8; theirs to call. */
cudaError_t launch_fetch_fp8(const struct fetch_params *p, uint32_t n_layers,
                             struct launch launch);
cudaError_t launch_store_fp8(const struct host_pool_params *p, struct launch launch);

#ifdef __cplusplus
}
#endif

#endif
