/* timing.c - see timing.h. */
#include "engine/schedule/timing.h"

#include "engine/schedule/stats.h"

void timing_queue(struct timing *timing, double now_s) {
    timing->queued_s = now_s;
    if (timing->arrived_s == 0) timing->arrived_s = now_s;
}

void timing_token(struct timing *timing, struct engine_stats *stats, double now_s) {
    if (timing->first_s == 0) {
        timing->first_s = now_s;
        engine_stats_observe(stats, ENGINE_FIRST_TOKEN_S, now_s - timing->arrived_s);
    } else {
        engine_stats_observe(stats, ENGINE_BETWEEN_TOKENS_S, now_s - timing->newest_s);
    }
    timing->newest_s = now_s;
}

void timing_finish(const struct timing *timing, struct engine_stats *stats, uint32_t n_prompt,
                   uint32_t n_generated, double now_s) {
    /* A request for no token has no first one: all its work is prefill. */
    const double first_s = timing->first_s > 0 ? timing->first_s : now_s;
    engine_stats_observe(stats, ENGINE_WHOLE_S, now_s - timing->arrived_s);
    engine_stats_observe(stats, ENGINE_QUEUED_S, timing->started_s - timing->queued_s);
    engine_stats_observe(stats, ENGINE_RUNNING_S, now_s - timing->started_s);
    engine_stats_observe(stats, ENGINE_PREFILL_S, first_s - timing->started_s);
    engine_stats_observe(stats, ENGINE_DECODE_S, now_s - first_s);
    engine_stats_observe(stats, ENGINE_PROMPT_TOKENS, n_prompt);
    engine_stats_observe(stats, ENGINE_GENERATED_TOKENS, n_generated);
    if (n_generated > 1)
        engine_stats_observe(stats, ENGINE_PER_TOKEN_S,
                             (timing->newest_s - first_s) / (n_generated - 1));
}
