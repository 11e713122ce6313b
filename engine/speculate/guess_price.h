/* guess_price.h - what guesses cost on a backend that runs ahead, learned from the times of steps.
 *
 * Such a backend computes a step with guesses by the kernels of prompts.  What that costs depends
 * on the model and the device.  A small model takes twice the time of a plain step, in which each
 * sequence has one row.  A large model takes hardly more.  So steps with and without guesses are
 * timed separately, for 1, 2, 3-4, 5-8 … sequences:
 *
 *   delay  = seconds of a step with guesses / seconds of a plain one - 1
 *   price  = delay / sequences that guess in the step * running sequences, which are all delayed
 *            + a wait
 *
 * Behind its guesses a sequence cannot run ahead.  That is the wait: the step that others compute
 * meanwhile, or the time in which the device has nothing to do.
 *
 * Rows are not counted, because the kernels compute a few dozen in hardly more time than one.  A
 * step without a CUDA graph yet takes far longer than later ones, and is not measured.  Neither is
 * the first plain step.  No measurement counts as more than twice the expected value.
 *
 * An unmeasured number of sequences has the delay of the nearest smaller one, else of the nearest
 * larger one.  Before the first measurement the delay is GUESS_PRICE_FIRST.  A delay that was not
 * measured for 4,096 plain steps is forgotten.
 *
 * Thread: engine.  Memory: embedded. */
#ifndef ENGINE_SPECULATE_GUESS_PRICE_H
#define ENGINE_SPECULATE_GUESS_PRICE_H

#include <stdint.h>

enum {
    GUESS_PRICE_STEP = 128, /* prices are in 128ths of a plain step */
    GUESS_PRICE_FIRST = 64, /* a half: more than that of a large model */
    GUESS_PRICE_SIZES = 8   /* classes of numbers of sequences */
};

/* Averages of measurements.  Element i is for up to 2^i sequences in a step, the last one for all
 * larger numbers.  Zeroed: nothing has been measured. */
struct guess_price {
    double plain_s[GUESS_PRICE_SIZES];                         /* seconds of a plain step */
    double delay[GUESS_PRICE_SIZES], share[GUESS_PRICE_SIZES]; /* `delay` above; by guessing seq. */
    uint32_t n_plain[GUESS_PRICE_SIZES], n_guessing[GUESS_PRICE_SIZES]; /* measurements */
    uint32_t n_since[GUESS_PRICE_SIZES]; /* plain steps since the newest with guesses */
};

/* Adds the measured seconds of a step of n_seqs generating sequences, n_drafting of them with
 * guesses; 0: a plain step.  A plain step must have been submitted before the results of the step
 * before it were known.  Ignored are seconds of 0 or less, and steps with guesses while few plain
 * steps of so many sequences are known. */
void guess_price_measure(struct guess_price *price, uint32_t n_seqs, uint32_t n_drafting,
                         double seconds);
/* Returns the `price` above: what n_running sequences lose together, in 128ths of a plain step, if
 * one of them has guesses in a step.  The wait is included. */
uint32_t guess_price_step(const struct guess_price *price, uint32_t n_running);
/* Returns the `delay` above in 128ths of a plain step.  Each of n_running sequences loses that by a
 * step with guesses, whether it guesses or not. */
uint32_t guess_price_delay(const struct guess_price *price, uint32_t n_running);
/* Returns, in 128ths of a plain step, what a sequence loses that waits for its newest token: a step
 * beside others.  Alone it is the gap between two steps, taken as a quarter of one. */
uint32_t guess_price_wait(uint32_t n_running);

#endif
