/* stats.c - see stats.h. */
#include "engine/schedule/stats.h"

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
