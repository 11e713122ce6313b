/* throughput.c - see throughput.h. */
#include "server/api/throughput.h"

#include <math.h>
#include <stdio.h>

#include "engine/engine.h"
#include "server/settings/log.h"

static void begin_window(struct throughput *t, const struct engine_stats *stats, uint64_t now_ms) {
    t->begun_ms = now_ms;
    t->n_steps = stats->n_steps;
    t->prompt_tokens = stats->prompt_tokens;
    t->cached_tokens = stats->cached_tokens;
    t->queried_tokens = stats->queried_tokens;
    t->generated_tokens = stats->generated_tokens;
}

bool throughput_tick(struct throughput *t, const struct engine_stats *stats, uint64_t now_ms) {
    if (t->begun_ms == 0) t->begun_ms = now_ms; /* the first window counts from zero */
    if (now_ms - t->begun_ms < THROUGHPUT_WINDOW_MS) return false;
    const double seconds = 1e-3 * (double)(now_ms - t->begun_ms);
    const uint64_t n_prompt = stats->prompt_tokens - t->prompt_tokens,
                   n_cached = stats->cached_tokens - t->cached_tokens,
                   n_queried = stats->queried_tokens - t->queried_tokens;
    const bool worked = stats->n_steps > t->n_steps;
    t->prompt_per_s = (double)(n_prompt - n_cached) / seconds;
    t->generated_per_s = (double)(stats->generated_tokens - t->generated_tokens) / seconds;
    t->hit_rate = n_queried > 0 ? (double)n_cached / (double)n_queried : NAN;
    begin_window(t, stats, now_ms);
    return worked;
}

void throughput_log(const struct throughput *t, const struct engine_stats *stats) {
    char hit_rate[16] = "-";
    if (!isnan(t->hit_rate)) snprintf(hit_rate, sizeof(hit_rate), "%.3f", t->hit_rate);
    log_event(LOG_INFO,
              "throughput prompt_tokens_per_s=%.1f generated_tokens_per_s=%.1f running=%u "
              "waiting=%u kv_use=%.3f hit_rate=%s",
              t->prompt_per_s, t->generated_per_s, stats->n_running, stats->n_waiting,
              engine_stats_kv_use(stats), hit_rate);
}
