/* counters.c - see counters.h. */
#include "server/api/counters.h"

#include <stddef.h>

const double counters_bounds[COUNTERS_N_BUCKETS] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                                    1,    2.5,   5,    10,  30,   60};

void counters_count_answer(struct counters *counters, unsigned status) {
    counters->by_class[status / 100 < 6 ? status / 100 : 5]++;
}

void counters_count_prompt(struct counters *counters, enum prefill_mode mode) {
    if (mode == PREFILL_SPARSE) counters->sparse_prompts++;
    else counters->dense_prompts++;
}

void counters_observe(struct histogram *histogram, double seconds) {
    size_t i = 0;
    while (i < COUNTERS_N_BUCKETS && seconds > counters_bounds[i]) i++;
    histogram->buckets[i]++;
    histogram->n++;
    histogram->sum += seconds;
}
