/* metrics.h - counters of the server and the engine as Prometheus text.
 *
 * Thread: loop.  Memory: fixed. */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include <stdint.h>

#include "engine/prefill_choice.h"

struct buffer;
struct engine_stats;
struct offload_rules;

enum { METRICS_N_BUCKETS = 12 };

/* Times in seconds, counted per bucket (not cumulated: that is done when written). */
struct histogram {
    uint64_t buckets[METRICS_N_BUCKETS + 1], n;
    double sum;
};

struct metrics {
    uint64_t by_class[6]; /* answers by the first digit of their status; [0]: nobody was left */
    uint64_t sparse_prompts, dense_prompts; /* of sequences that have ended */
    struct histogram first_token, whole; /* completions: until the first token, until the end */
};

void metrics_count_answer(struct metrics *metrics, unsigned status);
void metrics_count_prompt(struct metrics *metrics, enum prefill_mode mode);
void metrics_observe(struct histogram *histogram, double seconds);
void metrics_write(const struct metrics *metrics, const struct engine_stats *stats,
                   const struct offload_rules *offload, struct buffer *out);

#endif
