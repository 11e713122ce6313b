/* stats.h - counts what the engine has done so far and what it holds now, for metrics.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_SCHEDULE_STATS_H
#define ENGINE_SCHEDULE_STATS_H

#include <stdint.h>

#include "engine/device/sparse.h"
#include "engine/kv/disk/disk.h"
#include "engine/request/kv_choice.h"
#include "engine/request/kv_policies.h"
#include "engine/request/usage.h"

struct engine_stats {
    uint32_t n_running, n_waiting, pages_free, pages_cached, pages_total;
    uint64_t n_submitted, n_finished, n_cancelled, n_failed, n_preempted;
    uint64_t prompt_tokens, cached_tokens, generated_tokens, n_steps;
    /* By kv_number and kv_choice.type: counts of all requests so far, levels of those that run
     * now. */
    uint64_t kv[KV_N_NUMBERS][KV_MAX_POLICIES];
    uint64_t host_pool_used_bytes; /* of engine_info.host_pool_bytes, but for cached blocks */
    uint32_t pages_stored;         /* pages that the prefix cache keeps in the host pool */
    uint64_t n_swapped_out, n_swapped_in; /* pages swapped to the host pool, and back */
    /* Prompts that began to be computed sparsely, and what their steps visited, by pattern. */
    uint64_t n_sparse;
    struct sparse_totals sparse;
    struct kv_disk_stats disk; /* all zero: there is none */
};

/* Returns a number over all policies. */
static inline uint64_t engine_stats_kv(const struct engine_stats *stats, enum kv_number number) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < KV_MAX_POLICIES; i++) sum += stats->kv[number][i];
    return sum;
}

#endif
