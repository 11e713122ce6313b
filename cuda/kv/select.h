/* select.h - the launchers of selections, and their workspace.
 *
 *   score    each candidate's largest attention weight over the heads becomes a key; the keys' top
 *            digits are counted.  Observed queries' weights are kept, and added up first
 *   narrow   the digits of the n_selected-th key are found, one after the other
 *   mark     bits: the keys above it, and the keys equal to it
 *   choose   ties are decided; slots whose token is not chosen again get the new tokens; the tokens
 *            that must be fetched are listed
 *   fetch    their keys and values are copied into the slots, layer by layer
 *
 * Only the device knows what must be fetched.  So grids are fixed and kernels read the list, also
 * when a CUDA graph launches them.
 *
 * Thread: engine.  Memory: the caller's. */
#ifndef CUDA_KV_SELECT_H
#define CUDA_KV_SELECT_H

#include "cuda/host/kernels.h"
#include "engine/device/host_pool.h"
#include "engine/device/layer_group.h"
#include "engine/device/pages.h"

struct select_total;

#ifdef __cplusplus
extern "C" {
#endif

enum { SELECT_DIGITS = 3, SELECT_BINS = 2048 };

/* A token that is copied into a slot of every sparse layer of its group. */
struct fetch {
    uint32_t seq, slot;
    uint32_t source; /* host block * PAGE_TOKENS + place in it; without a host pool, the token */
    uint32_t unused; /* 16 bytes in all: one load */
};

enum fetch_kind { FETCH_BLOCKS, FETCH_PAGES, FETCH_KINDS };

/* Device memory; it describes the group that was selected last. */
struct select_workspace {
    /* By candidate; a sequence's candidates begin at keys_at. */
    uint32_t *keys;           /* larger is better */
    uint32_t *chosen, *equal; /* bits */
    /* By row; histograms are zero between selections. */
    uint32_t *histograms; /* [SELECT_DIGITS][SELECT_BINS] */
    uint32_t *found;      /* [SELECT_DIGITS][2]: key bits so far, equal keys to take */
    uint32_t *free_slots; /* [max_selected] */
    struct select_total *totals;
    struct fetch *fetches[FETCH_KINDS]; /* [max_fetches] */
    uint32_t *n_fetches;                /* [FETCH_KINDS] */
    uint32_t max_selected;
};

struct select_params {
    const struct device_step *step;
    struct attn_stats attn_stats; /* of the filter layer's attention */
    struct kv_pool kv;
    uint32_t n_heads, group_index;
    struct layer_group group;
    uint32_t n_layers;              /* sparse layers of the group */
    uint32_t state_slots, n_blocks; /* n_blocks: as many as fill the device */
    struct select_workspace room;
    float *token_scores; /* select_args */
};

struct fetch_params {
    const struct device_step *step;
    struct kv_pool kv;
    struct host_pool store; /* base NULL: tokens come from pages of the pool */
    const struct fetch *fetches;
    const uint32_t *n_fetches;
    uint32_t first_layer, first_host_layer;
};

enum { STORE_MOST_PAGES = 448 }; /* a kernel has at most 4 KiB of parameters */

struct offload_params {
    struct kv_pool kv;
    struct host_pool store;
    uint32_t host_layer, n;
    struct {
        uint32_t page, block;
    } copies[STORE_MOST_PAGES];
};

/* Launches the kernels that turn n_rows rows' attention scores into bits, and those that turn the
 * bits into the list of what must be fetched. */
cudaError_t launch_select_keys(const struct select_params *p, uint32_t n_rows,
                               struct launch launch);
/* Launches only the first of them: in a step where no sequence selects, it keeps what observed
 * queries give tokens. */
cudaError_t launch_select_observe(const struct select_params *p, uint32_t n_rows,
                                  struct launch launch);
cudaError_t launch_select_slots(const struct select_params *p, uint32_t n_rows,
                                struct launch launch);
/* Launches the copies for n_layers layers, from p->first_layer on. */
cudaError_t launch_fetch(const struct fetch_params *p, uint32_t n_layers, struct launch launch);
cudaError_t launch_offload_pages(const struct offload_params *p, struct launch launch);
/* Launches the copies back, from an exact host pool. */
cudaError_t launch_reload_pages(const struct offload_params *p, struct launch launch);
/* Launches the copies where the host pool is fp8 and pages are not; only launch_fetch() and
 * launch_offload_pages() call these. */
cudaError_t launch_fetch_fp8(const struct fetch_params *p, uint32_t n_layers, struct launch launch);
cudaError_t launch_offload_fp8(const struct offload_params *p, struct launch launch);

#ifdef __cplusplus
}
#endif

#endif
