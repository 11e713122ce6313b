/* guess_price.c - see guess_price.h. */
#include "engine/speculate/guess_price.h"

#include <math.h>

#include "engine/base/sizes.h"

/* The newest measurement counts at least an eighth of the average.  The average of fewer is their
 * mean. */
enum { LEAST_WEIGHT = 8 };

/* Plain steps before their average is good enough to compare with, and the one that is left out. */
enum { ENOUGH_PLAIN = LEAST_WEIGHT + 1 };

/* A delay of nearly nothing may grow by more than twofold at once. */
static const double least_jump = 0.25;

/* Plain steps after which a delay is forgotten.  A price that rose by chance must not rule out for
 * good what would measure it again. */
enum { FORGETS_AFTER = 4096 };

static uint32_t size_of(uint32_t n_seqs) {
    uint32_t size = 0;
    while (size + 1 < GUESS_PRICE_SIZES && 1u << size < n_seqs) size++;
    return size;
}

/* Returns the average of the nearest size that has been measured. */
static double nearest(const struct guess_price *price, const double *averages, uint32_t size) {
    for (uint32_t i = size + 1; i-- > 0;)
        if (price->n_guessing[i] > 0) return averages[i];
    for (uint32_t i = size + 1; i < GUESS_PRICE_SIZES; i++)
        if (price->n_guessing[i] > 0) return averages[i];
    return (double)GUESS_PRICE_FIRST / GUESS_PRICE_STEP;
}

static double average(double value, double measured, uint32_t n_before) {
    return value + (measured - value) / min_u32(n_before + 1, LEAST_WEIGHT);
}

static void measure_plain(struct guess_price *price, uint32_t size, double seconds) {
    double *plain_s = &price->plain_s[size];
    const uint32_t n = price->n_plain[size];
    if (n < ENOUGH_PLAIN) price->n_plain[size]++;
    if (++price->n_since[size] > FORGETS_AFTER) price->n_guessing[size] = price->n_since[size] = 0;
    if (n == 0) return;
    *plain_s = n == 1 ? seconds : average(*plain_s, fmin(seconds, 2 * *plain_s), n - 1);
}

/* Returns the new average.  The expected value counts as a measurement. */
static double expected_and(double expected, double measured, uint32_t n_before) {
    return average(expected, fmin(measured, 2 * expected + least_jump), n_before + 1);
}

static void measure_guessing(struct guess_price *price, uint32_t size, uint32_t n_drafting,
                             double delay) {
    const double expected = nearest(price, price->delay, size),
                 expected_share = nearest(price, price->share, size);
    const uint32_t n = price->n_guessing[size];
    price->delay[size] = expected_and(expected, delay, n);
    price->share[size] = expected_and(expected_share, delay / n_drafting, n);
    if (n < LEAST_WEIGHT) price->n_guessing[size]++;
    price->n_since[size] = 0;
}

void guess_price_measure(struct guess_price *price, uint32_t n_seqs, uint32_t n_drafting,
                         double seconds) {
    const uint32_t size = size_of(n_seqs);
    if (seconds <= 0) return;
    if (n_drafting == 0) measure_plain(price, size, seconds);
    else if (price->n_plain[size] >= ENOUGH_PLAIN)
        measure_guessing(price, size, n_drafting, fmax(0, seconds / price->plain_s[size] - 1));
}

uint32_t guess_price_wait(uint32_t n_running) {
    return n_running > 1 ? GUESS_PRICE_STEP : GUESS_PRICE_STEP / 4;
}

static uint32_t whole(double steps) {
    return (uint32_t)fmin(ceil(steps * GUESS_PRICE_STEP), INT32_MAX / 4);
}

uint32_t guess_price_delay(const struct guess_price *price, uint32_t n_running) {
    return whole(nearest(price, price->delay, size_of(n_running)));
}

uint32_t guess_price_step(const struct guess_price *price, uint32_t n_running) {
    const double share = nearest(price, price->share, size_of(n_running));
    return whole(share * n_running) + guess_price_wait(n_running);
}
