/* stats.h - counts what the engine has done so far and what it holds now, for metrics.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_SCHEDULE_STATS_H
#define ENGINE_SCHEDULE_STATS_H

#include <stdint.h>

#include "engine/device/sparse.h"
#include "engine/request/kv_choice.h"
#include "engine/request/kv_policies.h"

struct engine_stats {
    uint32_t n_running, n_waiting, pages_free, pages_cached, pages_total;
    uint64_t n_submitted, n_finished, n_cancelled, n_failed, n_preempted;
    uint64_t prompt_tokens, cached_tokens, generated_tokens, n_steps;
    /* By kv_choice.type, as in struct kv_usage: evicted of all requests so far, resident of those
     * that run now. */
    uint64_t kv_evicted[KV_MAX_POLICIES], kv_resident[KV_MAX_POLICIES];
    uint64_t n_chosen, n_fetched, n_copies; /* struct select_total, of all requests so far */
    uint64_t n_moved;                       /* how many of n_copies came from the host pool */
    uint64_t host_pool_used_bytes; /* of engine_info.host_pool_bytes, but for cached blocks */
    uint32_t pages_stored;         /* pages that the prefix cache keeps in the host pool */
    uint64_t n_swapped_out, n_swapped_in; /* pages swapped to the host pool, and back */
    /* Prompts that began to be computed sparsely, and what their steps visited, by pattern. */
    uint64_t n_sparse;
    struct sparse_totals sparse;
};

#endif
