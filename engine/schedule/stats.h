/* stats.h - counts what the engine has done so far and what it holds now, for metrics.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_SCHEDULE_STATS_H
#define ENGINE_SCHEDULE_STATS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/histogram.h"
#include "engine/device/sparse.h"
#include "engine/kv/checkpoints.h"
#include "engine/kv/disk/disk.h"
#include "engine/request/kv_choice.h"
#include "engine/request/kv_policies.h"
#include "engine/request/speculation.h"
#include "engine/request/usage.h"

/* What is counted in histograms.  Times begin where timing.h says, and all but the
 * first two are those of sequences that finished by themselves, not cancelled and not failed. */
enum engine_histogram {
    ENGINE_FIRST_TOKEN_S,    /* from the request's arrival to the sequence's first token */
    ENGINE_BETWEEN_TOKENS_S, /* between two steps with a new token of it */
    ENGINE_PER_TOKEN_S,      /* from the first token to the last, by the tokens behind the first */
    ENGINE_WHOLE_S,          /* from the request's arrival to the end */
    ENGINE_QUEUED_S,         /* until it first ran */
    ENGINE_RUNNING_S,        /* from then to its end */
    ENGINE_PREFILL_S,        /* from then to its first token */
    ENGINE_DECODE_S,         /* from its first token to its end */
    ENGINE_PROMPT_TOKENS,
    ENGINE_GENERATED_TOKENS,
    ENGINE_STEP_TOKENS, /* of each step: prompt tokens that it completed, and sampled ones */
    ENGINE_N_HISTOGRAMS
};

extern const struct histogram_bounds *const engine_histogram_bounds[ENGINE_N_HISTOGRAMS];

/* Of the sequences of one policy; tokens are counted as in the sums over all policies. */
struct engine_policy_stats {
    uint32_t n_running, n_pages; /* now; a page that several share counts for each */
    uint64_t n_finished, prompt_tokens, cached_tokens, generated_tokens;
};

/* Running sequences that are told of one by one: the first ones by rank. */
enum { STATS_MAX_SHOWN = 32 };

/* A sequence that runs now, for people to look at. */
struct running_sequence {
    uint32_t type;        /* kv_choice.type */
    uint32_t n_prompt;    /* tokens; */
    uint32_t n_processed; /* of these, computed or found; a layer-major prompt's with its end */
    uint32_t n_generated;
    uint32_t n_pages; /* in the pool, those that it shares among them */
    bool was_sparse;  /* some of its prompt was computed sparsely */
};

/* All numbers: n_ and tokens are counts since the start, or say what is there now. */
struct engine_stats {
    uint32_t n_running, n_waiting, pages_free, pages_cached, pages_total;
    /* Of the waiting sequences, those that wait for a shared prefix, the disk or another sparse
     * prompt, and not for space. */
    uint32_t n_deferred;
    uint32_t n_suspended; /* of the waiting ones, those that have run before */
    uint64_t n_submitted, n_finished, n_cancelled, n_failed, n_preempted;
    uint64_t n_finished_by_length; /* of n_finished */
    uint64_t n_not_numbers;        /* of n_failed: the model's output was not a number */
    /* queried_tokens: prompt tokens that were looked for in the caches. */
    uint64_t prompt_tokens, queried_tokens, cached_tokens, generated_tokens, n_steps;
    /* By kv_number and kv_choice.type: counts of all requests so far, levels of those that run
     * now. */
    uint64_t kv[KV_N_NUMBERS][KV_MAX_POLICIES];
    struct engine_policy_stats policies[KV_MAX_POLICIES]; /* by kv_choice.type */
    struct histogram histograms[ENGINE_N_HISTOGRAMS];
    struct running_sequence shown[STATS_MAX_SHOWN];
    uint32_t n_shown;
    uint64_t host_pool_used_bytes; /* of engine_info.host_pool_bytes, but for cached blocks */
    uint32_t pages_offloaded;      /* pages that the prefix cache keeps in the host pool */
    uint64_t n_swapped_out, n_swapped_in; /* pages swapped to the host pool, and back */
    uint64_t expert_fetched_bytes;        /* of experts that lie in the machine's memory */
    /* Recurrent states in use, checkpoints among them (kv/checkpoints.h). */
    uint32_t n_states_used;
    struct checkpoint_stats checkpoints;
    /* Prompts that began to be computed sparsely, and what their steps visited, by pattern. */
    uint64_t n_sparse;
    struct sparse_totals sparse;
    struct speculation_usage speculation;   /* is_on is unused here */
    struct kv_disk_stats disk;              /* all zero: there is none */
    uint64_t n_kv_events, n_kv_feed_broken; /* of the feed of cached blocks (kv_feed.h) */
};

/* Returns the sum of one kind of number over all policies. */
static inline uint64_t engine_stats_kv(const struct engine_stats *stats, enum kv_number number) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < KV_MAX_POLICIES; i++) sum += stats->kv[number][i];
    return sum;
}

/* Returns the share of the KV pool's pages that sequences use, [0, 1].  Pages that only cached
 * prefixes and states use count as free. */
double engine_stats_kv_use(const struct engine_stats *stats);

/* Adds the numbers of another engine.  Of the running sequences that are shown one by one, those of
 * *one come behind the others, as far as there is space. */
void engine_stats_add(struct engine_stats *sum, const struct engine_stats *one);

/* Adds a value to one of the histograms. */
void engine_stats_observe(struct engine_stats *stats, enum engine_histogram which, double value);

#endif
