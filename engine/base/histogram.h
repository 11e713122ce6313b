/* histogram.h - counts of values by fixed upper bounds, as Prometheus has them.
 *
 * Thread: its owner's.  Memory: fixed. */
#ifndef ENGINE_BASE_HISTOGRAM_H
#define ENGINE_BASE_HISTOGRAM_H

#include <stdint.h>

enum { HISTOGRAM_MAX_BOUNDS = 28 };

/* The inclusive upper bound of each bucket, ascending.  One more bucket has what is above them. */
struct histogram_bounds {
    uint32_t n;
    double upper[HISTOGRAM_MAX_BOUNDS];
};

/* For seconds until a first token, between two tokens, and of whole requests; all end at 2,560 or
 * above.  For tokens of a request, for tokens of a step, and for small numbers. */
extern const struct histogram_bounds histogram_first_token_s, histogram_token_s,
    histogram_request_s, histogram_tokens, histogram_step_tokens, histogram_choices;

/* Zero-initialise.  Buckets are not cumulated: that is done when they are written. */
struct histogram {
    uint64_t buckets[HISTOGRAM_MAX_BOUNDS + 1], n;
    double sum;
};

void histogram_add(struct histogram *histogram, const struct histogram_bounds *bounds,
                   double value);

#endif
