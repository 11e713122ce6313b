/* draft_length.c - see draft_length.h.
 *
 * Thread: engine (init: any).  Memory: none. */
#include "engine/speculate/draft_length.h"

#include "engine/base/sizes.h"

/* All in 1 / 64 of a step. */
enum { STEP = 64, PER_TOKEN = 1, CREDIT_FIRST = STEP, CREDIT_MAX = 4 * STEP };
enum { PRICE_MAX = STEP, PRICE_EACH = STEP / 8 };
enum { LIMIT_FIRST = 4, DOUBT_FIRST = 2, DOUBT_MAX = 16, DOUBT_LASTS = 64 };

void draft_length_init(struct draft_length *length, struct draft_fund *fund) {
    *length = (struct draft_length){
        .fund = fund, .n_running = 1, .credit = CREDIT_FIRST, .limit = LIMIT_FIRST};
}

void draft_length_share(struct draft_length *length, uint32_t n_running) {
    length->n_running = n_running;
}

/* Returns the price of one guess. */
static uint32_t price_each(const struct draft_length *length) {
    return min_u32(length->n_running, PRICE_MAX / PRICE_EACH) * PRICE_EACH;
}

uint32_t draft_length_most(const struct draft_length *length, uint32_t n_matched) {
    if (length->fund)
        return draft_account_most(&length->account, length->fund, length->n_running, n_matched);
    if (length->credit < STEP && n_matched < length->doubt) return 0;
    return min_u32(min_u32(length->limit, n_matched), length->credit / price_each(length));
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
    if (length->fund) {
        draft_account_learn(&length->account, length->fund, length->n_running, n_tokens, n_drafted,
                            n_accepted);
        return;
    }
    length->credit += n_tokens * PER_TOKEN + n_accepted * STEP;
    length->credit -= min_u32(length->credit, n_drafted * price_each(length));
    length->credit = min_u32(length->credit, CREDIT_MAX);
    learn_doubt(length, n_tokens, n_drafted, n_accepted);
    if (n_drafted > 0) length->limit = min_u32(2 * n_accepted + 1, DRAFT_FEW);
}

void draft_length_waited(struct draft_length *length) {
    if (length->fund) draft_account_waited(&length->account, length->fund, length->n_running);
}

bool draft_length_bear(struct draft_length *length) {
    return draft_account_bear(&length->account, length->fund, length->n_running);
}
