/* draft_length.c - see draft_length.h. */
#include "engine/speculate/draft_length.h"

#include "engine/base/sizes.h"

/* All in 1 / 64 of a step. */
enum { STEP = 64, PER_TOKEN = 1, CREDIT_FIRST = STEP, CREDIT_MAX = 4 * STEP };
enum { PRICE_MAX = STEP, PRICE_EACH = STEP / 8 };
enum { LIMIT_FIRST = 4, MATCH_FIRST = 2, MATCH_MAX = 16, MATCH_LASTS = 64 };

void draft_length_init(struct draft_length *length, struct shared_credit *shared) {
    *length = (struct draft_length){
        .shared = shared, .n_running = 1, .credit = CREDIT_FIRST, .limit = LIMIT_FIRST};
}

void draft_length_share(struct draft_length *length, uint32_t n_running) {
    length->n_running = n_running;
}

/* Returns the price of one guess. */
static uint32_t price_each(const struct draft_length *length) {
    return min_u32(length->n_running, PRICE_MAX / PRICE_EACH) * PRICE_EACH;
}

uint32_t draft_length_most(const struct draft_length *length, uint32_t n_matched) {
    if (length->shared)
        return draft_account_most(&length->account, length->shared, length->n_running, n_matched);
    if (length->credit < STEP && n_matched < length->min_match) return 0;
    return min_u32(min_u32(length->limit, n_matched), length->credit / price_each(length));
}

/* Doubles min_match if no guess was right, and sets it to 0 if one was.  It falls by one for every
 * MATCH_LASTS tokens without guesses. */
static void learn_min_match(struct draft_length *length, uint32_t n_tokens, uint32_t n_drafted,
                            uint32_t n_accepted) {
    length->n_since_change = n_drafted > 0 ? 0 : length->n_since_change + n_tokens;
    if (n_accepted > 0) {
        length->min_match = 0;
    } else if (n_drafted > 0) {
        length->min_match = min_u32(2 * max_u32(length->min_match, MATCH_FIRST), MATCH_MAX);
    } else if (length->n_since_change >= MATCH_LASTS) {
        length->min_match -= length->min_match > 0;
        length->n_since_change = 0;
    }
}

void draft_length_learn(struct draft_length *length, uint32_t n_tokens, uint32_t n_drafted,
                        uint32_t n_accepted) {
    if (length->shared) {
        draft_account_learn(&length->account, length->shared, length->n_running, n_tokens,
                            n_drafted, n_accepted);
        return;
    }
    length->credit += n_tokens * PER_TOKEN + n_accepted * STEP;
    length->credit -= min_u32(length->credit, n_drafted * price_each(length));
    length->credit = min_u32(length->credit, CREDIT_MAX);
    learn_min_match(length, n_tokens, n_drafted, n_accepted);
    if (n_drafted > 0) length->limit = min_u32(2 * n_accepted + 1, DRAFT_FEW);
}

void draft_length_waited(struct draft_length *length) {
    if (length->shared) draft_account_waited(&length->account, length->shared, length->n_running);
}

bool draft_length_pay_delay(struct draft_length *length) {
    return draft_account_pay_delay(&length->account, length->shared, length->n_running);
}
