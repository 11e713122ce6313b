/* draft_length.c - see draft_length.h. */
#include "engine/speculate/draft_length.h"

#include "engine/base/sizes.h"

/* All in 1 / 64 of a step. */
enum { STEP = 64, PER_TOKEN = 1, CREDIT_FIRST = STEP, CREDIT_MAX = 4 * STEP };
enum { PRICE_MAX = STEP, PRICE_EACH = STEP / 8 };
enum { LIMIT_FIRST = 4, DOUBT_FIRST = 2, DOUBT_MAX = 16, DOUBT_LASTS = 64 };

/* The guesses for which there must be credit where a step's first one costs whole steps: a single right
 * one would not pay for the next. */
enum { AHEAD_LIMIT = 4 };

void draft_length_init(struct draft_length *length, bool runs_ahead) {
    *length = (struct draft_length){.runs_ahead = runs_ahead,
                                    .credit = runs_ahead ? 2 * CREDIT_FIRST : CREDIT_FIRST,
                                    .limit = LIMIT_FIRST};
    draft_length_share(length, 1);
}

void draft_length_share(struct draft_length *length, uint32_t n_running) {
    length->price = min_u32(n_running, PRICE_MAX / PRICE_EACH) * PRICE_EACH;
    length->first = length->runs_ahead ? n_running * STEP : length->price;
}

/* Returns the price of n guesses in one step. */
static uint32_t price_of(const struct draft_length *length, uint32_t n) {
    return n == 0 ? 0 : length->first + (n - 1) * length->price;
}

/* Returns how many guesses the credit pays for. */
static uint32_t affordable(const struct draft_length *length) {
    if (length->credit < price_of(length, length->runs_ahead ? AHEAD_LIMIT : 1)) return 0;
    return 1 + (length->credit - length->first) / length->price;
}

uint32_t draft_length_most(const struct draft_length *length, uint32_t n_matched) {
    const uint32_t little = length->runs_ahead ? 2 * STEP : STEP;
    if (length->credit < little && n_matched < length->doubt) return 0;
    return min_u32(min_u32(length->limit, n_matched), affordable(length));
}

/* Doubles the length that matches must have if no guess was right, and forgets it if one was.  It
 * falls by one for every DOUBT_LASTS tokens without guesses. */
static void learn_doubt(struct draft_length *length, uint32_t n_tokens, uint32_t n_drafted,
                        uint32_t n_accepted) {
    length->n_idle = n_drafted > 0 ? 0 : length->n_idle + n_tokens;
    if (n_accepted > 0) {
        length->doubt = 0;
    } else if (n_drafted > 0) {
        length->doubt = min_u32(2 * max_u32(length->doubt, DOUBT_FIRST), DOUBT_MAX);
    } else if (length->n_idle >= DOUBT_LASTS) {
        length->doubt -= length->doubt > 0;
        length->n_idle = 0;
    }
}

void draft_length_learn(struct draft_length *length, uint32_t n_tokens, uint32_t n_drafted,
                        uint32_t n_accepted) {
    const uint32_t spent = price_of(length, n_drafted),
                   earned = n_tokens * PER_TOKEN + n_accepted * STEP;
    length->credit += earned;
    length->credit -= min_u32(length->credit, spent);
    length->credit = min_u32(length->credit, CREDIT_MAX);
    learn_doubt(length, n_tokens, n_drafted, n_accepted);
    if (n_drafted == 0) return;
    length->limit = min_u32(2 * n_accepted + 1, DRAFT_MAX);
    if (length->runs_ahead) length->limit = max_u32(length->limit, AHEAD_LIMIT);
}
