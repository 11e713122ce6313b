/* draft_fund.c - see draft_fund.h.
 *
 * Thread: engine (draft_fund_make: any).  Memory: none. */
#include "engine/speculate/draft_fund.h"

#include "engine/base/sizes.h"

/* All in 1 / 128 of a step. */
enum { STEP = GUESS_PRICE_STEP, HALF_PER_TOKEN = STEP / 128, CREDIT_MAX = 4 * STEP };

/* The fund holds at most what a first step with guesses can save: it lends for no dearer one. */
enum { FUND_MAX = DRAFT_FEW * STEP };

/* The tokens for which an answer must have followed a match, for each step of the price and of
 * debt. */
enum { FOLLOWED_EACH = 3 };

/* Sequences that only lose by guesses may lose a 128th of all steps, and one and a half at once. */
enum { PATIENCE_EACH = STEP / 128, PATIENCE_MAX = 3 * STEP / 2 };

/* Beside more sequences than one, guesses may delay a step by a quarter of its time at most. */
enum { FEW_RUNNING = 2, LITTLE_DELAY = STEP / 4 };

struct draft_fund draft_fund_make(void) {
    return (struct draft_fund){
        .credit = FUND_MAX, .patience = PATIENCE_MAX, .has_bystanders = true};
}

static int32_t delay_price(const struct draft_fund *fund, uint32_t n_running) {
    return (int32_t)guess_price_delay(&fund->price, n_running);
}

void draft_fund_plain(struct draft_fund *fund) {
    if (fund->patience < PATIENCE_MAX) fund->patience += PATIENCE_EACH;
}

void draft_fund_delay(struct draft_fund *fund, uint32_t n_seqs, bool has_bystanders) {
    fund->has_bystanders = has_bystanders;
    if (has_bystanders) fund->patience -= delay_price(fund, n_seqs);
}

static int32_t debt_of(const struct draft_account *account) {
    return account->credit < 0 ? -account->credit : 0;
}

/* Tells whether the answer itself has followed the match for so long that it is more than
 * chance. */
static bool is_followed(const struct draft_account *account, uint32_t n_matched, int32_t price) {
    const uint64_t n_followed = min_u32(n_matched, account->n_answered),
                   n_needed = FOLLOWED_EACH * (uint64_t)(price + debt_of(account));
    return n_followed * STEP >= n_needed;
}

/* Tells whether others may be delayed once more. */
static bool may_delay(const struct draft_fund *fund, uint32_t n_running) {
    const int32_t delay = delay_price(fund, n_running);
    if (n_running > FEW_RUNNING && delay > LITTLE_DELAY) return false;
    return n_running == 1 || !fund->has_bystanders ||
           fund->patience >= (delay < PATIENCE_MAX ? delay : PATIENCE_MAX);
}

uint32_t draft_account_most(const struct draft_account *account, const struct draft_fund *fund,
                            uint32_t n_running, uint32_t n_matched) {
    const int32_t price = (int32_t)guess_price_step(&fund->price, n_running),
                  lacks = account->credit > 0 ? price - account->credit : price;
    const uint32_t most = min_u32(account->gains_much ? DRAFT_MAX : DRAFT_FEW, n_matched);
    if ((int64_t)most * STEP <= price) return 0; /* would not pay if all were right */
    if (!may_delay(fund, n_running)) return 0;
    if (account->gains && lacks <= 0) return most;
    return is_followed(account, n_matched, price) && lacks <= fund->credit ? most : 0;
}

/* Adds the amount to the account, and to the fund what it gets back and what is too much.  The fund
 * lends what a negative one leaves lacking. */
static void pay(struct draft_account *account, struct draft_fund *fund, int32_t amount) {
    const int32_t debt = debt_of(account);
    account->credit += amount;
    fund->credit += debt - debt_of(account);
    if (account->credit > CREDIT_MAX) {
        fund->credit += account->credit - CREDIT_MAX;
        account->credit = CREDIT_MAX;
    }
    if (fund->credit > FUND_MAX) fund->credit = FUND_MAX;
}

void draft_account_learn(struct draft_account *account, struct draft_fund *fund, uint32_t n_running,
                         uint32_t n_tokens, uint32_t n_drafted, uint32_t n_accepted) {
    const uint32_t price = n_drafted > 0 ? guess_price_step(&fund->price, n_running) : 0;
    const int32_t half = (int32_t)(n_tokens * HALF_PER_TOKEN),
                  gain = (int32_t)(n_accepted * STEP) - (int32_t)price;
    account->n_answered += n_tokens;
    fund->credit += half;
    pay(account, fund, half + gain);
    if (n_drafted == 0) return;
    account->gains = gain > 0;
    account->gains_much = account->gains && n_accepted >= DRAFT_FEW;
}

void draft_account_waited(struct draft_account *account, struct draft_fund *fund,
                          uint32_t n_running) {
    pay(account, fund, -(int32_t)guess_price_wait(n_running));
}

bool draft_account_bear(struct draft_account *account, const struct draft_fund *fund,
                        uint32_t n_running) {
    const int32_t price = delay_price(fund, n_running);
    if (account->credit < price) return false;
    account->credit -= price;
    return true;
}
