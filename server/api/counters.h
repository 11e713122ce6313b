/* counters.h - the routes' counters: answers, prompts, times.  server/ops/metrics.h writes them.
 *
 * Thread: loop.  Memory: fixed. */
#ifndef SERVER_API_COUNTERS_H
#define SERVER_API_COUNTERS_H

#include <stdint.h>

#include "engine/request/prefill_choice.h"

enum { COUNTERS_N_BUCKETS = 12 };

/* The upper bound of each bucket in seconds; one more bucket counts the times above them all. */
extern const double counters_bounds[COUNTERS_N_BUCKETS];

/* Times in seconds, counted per bucket (not cumulated: that is done when written). */
struct histogram {
    uint64_t buckets[COUNTERS_N_BUCKETS + 1], n;
    double sum;
};

/* Zero-initialise. */
struct counters {
    uint64_t by_class[6]; /* answers by first digit of the status; [0]: client gone */
    uint64_t sparse_prompts, dense_prompts; /* of sequences that have ended */
    struct histogram first_token, whole;    /* completions: until the first token, until the end */
};

void counters_count_answer(struct counters *counters, unsigned status);
void counters_count_prompt(struct counters *counters, enum prefill_mode mode);
void counters_observe(struct histogram *histogram, double seconds);

#endif
