/* stats.c - see stats.h. */
#include "engine/schedule/stats.h"

#include "engine/base/sizes.h"

const struct histogram_bounds *const engine_histogram_bounds[ENGINE_N_HISTOGRAMS] = {
    [ENGINE_FIRST_TOKEN_S] = &histogram_first_token_s,
    [ENGINE_BETWEEN_TOKENS_S] = &histogram_token_s,
    [ENGINE_PER_TOKEN_S] = &histogram_token_s,
    [ENGINE_WHOLE_S] = &histogram_request_s,
    [ENGINE_QUEUED_S] = &histogram_request_s,
    [ENGINE_RUNNING_S] = &histogram_request_s,
    [ENGINE_PREFILL_S] = &histogram_request_s,
    [ENGINE_DECODE_S] = &histogram_request_s,
    [ENGINE_PROMPT_TOKENS] = &histogram_tokens,
    [ENGINE_GENERATED_TOKENS] = &histogram_tokens,
    [ENGINE_STEP_TOKENS] = &histogram_step_tokens,
};

double engine_stats_kv_use(const struct engine_stats *stats) {
    if (stats->pages_total == 0) return 0;
    const uint32_t n_idle = stats->pages_free + stats->pages_cached;
    return (double)(stats->pages_total - n_idle) / stats->pages_total;
}

void engine_stats_observe(struct engine_stats *stats, enum engine_histogram which, double value) {
    histogram_add(&stats->histograms[which], engine_histogram_bounds[which], value);
}

static void add_histogram(struct histogram *sum, const struct histogram *one) {
    for (int i = 0; i <= HISTOGRAM_MAX_BOUNDS; i++) sum->buckets[i] += one->buckets[i];
    sum->n += one->n;
    sum->sum += one->sum;
}

static void add_policies(struct engine_stats *sum, const struct engine_stats *one) {
    for (unsigned i = 0; i < KV_MAX_POLICIES; i++) {
        struct engine_policy_stats *to = &sum->policies[i];
        const struct engine_policy_stats *from = &one->policies[i];
        to->n_running += from->n_running;
        to->n_pages += from->n_pages;
        to->n_finished += from->n_finished;
        to->prompt_tokens += from->prompt_tokens;
        to->cached_tokens += from->cached_tokens;
        to->generated_tokens += from->generated_tokens;
        for (unsigned k = 0; k < KV_N_NUMBERS; k++) sum->kv[k][i] += one->kv[k][i];
    }
}

static void add_shown(struct engine_stats *sum, const struct engine_stats *one) {
    const uint32_t n = min_u32(one->n_shown, STATS_MAX_SHOWN - sum->n_shown);
    for (uint32_t i = 0; i < n; i++) sum->shown[sum->n_shown++] = one->shown[i];
}

static void add_sparse(struct sparse_totals *sum, const struct sparse_totals *one) {
    for (int i = 0; i < PATTERN_N_KINDS; i++) {
        sum->visited[i] += one->visited[i];
        sum->causal[i] += one->causal[i];
    }
    sum->n_dense += one->n_dense;
    sum->index_s += one->index_s;
    sum->attention_s += one->attention_s;
}

static void add_checkpoints(struct checkpoint_stats *sum, const struct checkpoint_stats *one) {
    sum->n += one->n;
    sum->n_stored += one->n_stored;
    sum->n_added += one->n_added;
    sum->n_used += one->n_used;
}

static void add_disk(struct kv_disk_stats *sum, const struct kv_disk_stats *one) {
    sum->n_items += one->n_items;
    sum->bytes += one->bytes;
    sum->max_bytes += one->max_bytes;
    sum->n_written += one->n_written;
    sum->written_bytes += one->written_bytes;
    sum->n_read += one->n_read;
    sum->read_bytes += one->read_bytes;
    sum->n_dropped += one->n_dropped;
    sum->n_evicted += one->n_evicted;
    sum->n_refused += one->n_refused;
    sum->n_failed += one->n_failed;
}

/* Adds what the engine holds now. */
static void add_levels(struct engine_stats *sum, const struct engine_stats *one) {
    sum->n_running += one->n_running;
    sum->n_waiting += one->n_waiting;
    sum->n_deferred += one->n_deferred;
    sum->n_suspended += one->n_suspended;
    sum->pages_free += one->pages_free;
    sum->pages_cached += one->pages_cached;
    sum->pages_total += one->pages_total;
    sum->pages_offloaded += one->pages_offloaded;
    sum->host_pool_used_bytes += one->host_pool_used_bytes;
    sum->n_states_used += one->n_states_used;
}

/* Adds what it has done since its start. */
static void add_counts(struct engine_stats *sum, const struct engine_stats *one) {
    sum->n_submitted += one->n_submitted;
    sum->n_finished += one->n_finished;
    sum->n_cancelled += one->n_cancelled;
    sum->n_failed += one->n_failed;
    sum->n_preempted += one->n_preempted;
    sum->n_finished_by_length += one->n_finished_by_length;
    sum->n_not_numbers += one->n_not_numbers;
    sum->prompt_tokens += one->prompt_tokens;
    sum->queried_tokens += one->queried_tokens;
    sum->cached_tokens += one->cached_tokens;
    sum->generated_tokens += one->generated_tokens;
    sum->n_steps += one->n_steps;
    sum->n_swapped_out += one->n_swapped_out;
    sum->n_swapped_in += one->n_swapped_in;
    sum->expert_fetched_bytes += one->expert_fetched_bytes;
    sum->n_sparse += one->n_sparse;
    sum->n_kv_events += one->n_kv_events;
    sum->n_kv_feed_broken += one->n_kv_feed_broken;
}

void engine_stats_add(struct engine_stats *sum, const struct engine_stats *one) {
    add_levels(sum, one);
    add_counts(sum, one);
    add_policies(sum, one);
    for (int i = 0; i < ENGINE_N_HISTOGRAMS; i++)
        add_histogram(&sum->histograms[i], &one->histograms[i]);
    add_shown(sum, one);
    add_checkpoints(&sum->checkpoints, &one->checkpoints);
    add_sparse(&sum->sparse, &one->sparse);
    speculation_usage_add(&sum->speculation, &one->speculation);
    add_disk(&sum->disk, &one->disk);
}
