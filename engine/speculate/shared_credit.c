/* shared_credit.c - see shared_credit.h. */
#include "engine/speculate/shared_credit.h"

#include "engine/base/sizes.h"

/* All in 1 / 128 of a step. */
enum { STEP = GUESS_PRICE_STEP, HALF_PER_TOKEN = STEP / 128, CREDIT_MAX = 4 * STEP };

/* The shared credit is at most what a first step with guesses can save. */
enum { SHARED_MAX = DRAFT_FEW * STEP };

/* The tokens for which an answer must have followed a match, for each step of the price and of
 * debt. */
enum { FOLLOWED_EACH = 3 };

/* Plain sequences may lose a 128th of all steps by guesses, and one and a half steps at once. */
enum { DELAY_EACH = STEP / 128, DELAY_MAX = 3 * STEP / 2 };

/* Beside more sequences than one, guesses may delay a step by a quarter of its time at most. */
enum { FEW_RUNNING = 2, LITTLE_DELAY = STEP / 4 };

struct shared_credit shared_credit_make(void) {
    return (struct shared_credit){
        .credit = SHARED_MAX, .delay_credit = DELAY_MAX, .delays_plain = true};
}

static int32_t delay_price(const struct shared_credit *shared, uint32_t n_running) {
    return (int32_t)guess_price_delay(&shared->price, n_running);
}

void shared_credit_note_plain(struct shared_credit *shared) {
    if (shared->delay_credit < DELAY_MAX) shared->delay_credit += DELAY_EACH;
}

void shared_credit_note_guesses(struct shared_credit *shared, uint32_t n_seqs, bool delays_plain) {
    shared->delays_plain = delays_plain;
    if (delays_plain) shared->delay_credit -= delay_price(shared, n_seqs);
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

/* Tells whether plain sequences may be delayed once more. */
static bool may_delay(const struct shared_credit *shared, uint32_t n_running) {
    const int32_t delay = delay_price(shared, n_running);
    if (n_running > FEW_RUNNING && delay > LITTLE_DELAY) return false;
    return n_running == 1 || !shared->delays_plain ||
           shared->delay_credit >= (delay < DELAY_MAX ? delay : DELAY_MAX);
}

uint32_t draft_account_most(const struct draft_account *account, const struct shared_credit *shared,
                            uint32_t n_running, uint32_t n_matched) {
    const int32_t price = (int32_t)guess_price_step(&shared->price, n_running),
                  lacks = account->credit > 0 ? price - account->credit : price;
    const uint32_t most = min_u32(account->gains_much ? DRAFT_MAX : DRAFT_FEW, n_matched);
    if ((int64_t)most * STEP <= price) return 0; /* would not pay if all were right */
    if (!may_delay(shared, n_running)) return 0;
    if (account->gains && lacks <= 0) return most;
    return is_followed(account, n_matched, price) && lacks <= shared->credit ? most : 0;
}

/* Adds the amount to the account.  The shared credit gets debts back and what is more than
 * CREDIT_MAX, and pays what a negative amount leaves lacking. */
static void pay(struct draft_account *account, struct shared_credit *shared, int32_t amount) {
    const int32_t debt = debt_of(account);
    account->credit += amount;
    shared->credit += debt - debt_of(account);
    if (account->credit > CREDIT_MAX) {
        shared->credit += account->credit - CREDIT_MAX;
        account->credit = CREDIT_MAX;
    }
    if (shared->credit > SHARED_MAX) shared->credit = SHARED_MAX;
}

void draft_account_learn(struct draft_account *account, struct shared_credit *shared,
                         uint32_t n_running, uint32_t n_tokens, uint32_t n_drafted,
                         uint32_t n_accepted) {
    const uint32_t price = n_drafted > 0 ? guess_price_step(&shared->price, n_running) : 0;
    const int32_t half = (int32_t)(n_tokens * HALF_PER_TOKEN),
                  gain = (int32_t)(n_accepted * STEP) - (int32_t)price;
    account->n_answered += n_tokens;
    shared->credit += half;
    pay(account, shared, half + gain);
    if (n_drafted == 0) return;
    account->gains = gain > 0;
    account->gains_much = account->gains && n_accepted >= DRAFT_FEW;
}

void draft_account_waited(struct draft_account *account, struct shared_credit *shared,
                          uint32_t n_running) {
    pay(account, shared, -(int32_t)guess_price_wait(n_running));
}

bool draft_account_pay_delay(struct draft_account *account, const struct shared_credit *shared,
                             uint32_t n_running) {
    const int32_t price = delay_price(shared, n_running);
    if (account->credit < price) return false;
    account->credit -= price;
    return true;
}
