/* test_shared_credit.c - an account where the backend runs ahead: what it tries, and what that
 * costs. */

#include "engine/speculate/draft_length.h"
#include "tests/test.h"

enum { STEP = GUESS_PRICE_STEP };

/* An engine whose step with guesses takes as many plain ones, for so many running sequences. */
static struct shared_credit credit_of(double n_plain, uint32_t n_running) {
    struct shared_credit shared = shared_credit_make();
    for (int i = 0; i < 50; i++) guess_price_measure(&shared.price, n_running, 0, 1);
    for (int i = 0; i < 50; i++) guess_price_measure(&shared.price, n_running, 1, n_plain);
    return shared;
}

static struct draft_length account(struct shared_credit *shared, uint32_t n_running) {
    struct draft_length length;
    draft_length_init(&length, shared);
    draft_length_share(&length, n_running);
    return length;
}

static void answer_without_guesses(struct draft_length *length, uint32_t n_tokens) {
    for (uint32_t i = 0; i < n_tokens; i++) draft_length_learn(length, 1, 0, 0);
}

/* Gives the tokens one by one.  Each has a match of up to n_matched tokens, which the answer has
 * followed since its first one.  No guess is right.  Returns what guesses have cost, in 1 / 128. */
static uint64_t answer_in_vain(struct draft_length *length, uint32_t n_tokens, uint32_t n_matched) {
    uint64_t spent = 0;
    for (uint32_t i = 0; i < n_tokens; i++) {
        const uint32_t n = draft_length_most(length, n_matched);
        if (n > 0) spent += guess_price_step(&length->shared->price, length->n_running);
        draft_length_learn(length, 1, n, 0);
    }
    return spent;
}

TEST(a_match_is_tried_once_the_answer_has_followed_it) {
    struct shared_credit shared = credit_of(3.3, 1);
    struct draft_length length = account(&shared, 1);
    uint32_t n = 0;
    assert_int_equal(draft_length_most(&length, 64), 0); /* it is the prompt's */
    for (; draft_length_most(&length, 64) == 0; n++) draft_length_learn(&length, 1, 0, 0);
    assert_int_equal(n, 8); /* for 2.55 steps */
    assert_int_equal(draft_length_most(&length, 7), 0);
    assert_int_equal(draft_length_most(&length, 8), 8);
    assert_int_equal(draft_length_most(&length, 64), DRAFT_FEW);
    /* A guess that costs little is tried earlier. */
    shared = credit_of(1.1, 1);
    length = account(&shared, 1);
    for (n = 0; draft_length_most(&length, 64) == 0; n++) draft_length_learn(&length, 1, 0, 0);
    assert_int_equal(n, 2);
}

TEST(one_short_answer_loses_one_try) {
    struct shared_credit shared = credit_of(3.3, 1);
    struct draft_length length = account(&shared, 1);
    assert_in_range(answer_in_vain(&length, 128, 8), 2 * STEP, 128 * STEP / 50);
    assert_true(length.account.credit < 0);
}

TEST(many_answers_lose_a_64th_of_their_time) {
    const struct load {
        double n_plain;
        uint32_t n_running;
    } loads[] = {{1.1, 1}, {3.3, 1}, {2.5, 2}, {1.2, 2}, {1.2, 4}, {1.1, 8}};
    for (unsigned i = 0; i < sizeof(loads) / sizeof(*loads); i++) {
        enum { N_ANSWERS = 500, N_TOKENS = 128 };
        struct shared_credit shared = credit_of(loads[i].n_plain, loads[i].n_running);
        uint64_t spent = 0;
        shared.delays_plain = false; /* or nothing is tried at all */
        for (uint32_t k = 0; k < N_ANSWERS; k++) {
            struct draft_length length = account(&shared, loads[i].n_running);
            spent += answer_in_vain(&length, N_TOKENS, 64);
        }
        assert_true(spent > 0);
        assert_true(spent <= (uint64_t)N_ANSWERS * N_TOKENS * STEP / 64 + 17 * STEP);
    }
}

TEST(where_guesses_are_right_any_match_will_do) {
    struct shared_credit shared = credit_of(3.3, 1);
    struct draft_length length = account(&shared, 1);
    answer_without_guesses(&length, 20);
    assert_int_equal(draft_length_most(&length, 3), 0);
    draft_length_learn(&length, 16, 15, 15);
    assert_int_equal(draft_length_most(&length, 64), DRAFT_MAX);
    draft_length_learn(&length, 32, DRAFT_MAX, DRAFT_MAX);
    assert_int_equal(draft_length_most(&length, 64), DRAFT_MAX);
    draft_length_learn(&length, 11, DRAFT_MAX, 10);
    assert_int_equal(draft_length_most(&length, 64), DRAFT_FEW);
    assert_int_equal(draft_length_most(&length, 3), 3);
    assert_int_equal(draft_length_most(&length, 2), 0); /* both of them right would not pay */
    draft_length_learn(&length, 1, 3, 0);
    assert_int_equal(draft_length_most(&length, 3), 0);
    assert_int_equal(draft_length_most(&length, 8), 8); /* its own credit is left */
}

TEST(a_gain_fills_the_fund_for_later_answers) {
    struct shared_credit shared = credit_of(3.3, 1);
    shared.credit = 0;
    struct draft_length first = account(&shared, 1);
    answer_without_guesses(&first, 30);
    assert_int_equal(draft_length_most(&first, 64), 0);
    draft_length_learn(&first, 16, 15, 15);
    assert_true(shared.credit > 8 * STEP);
    struct draft_length second = account(&shared, 1);
    answer_without_guesses(&second, 8);
    assert_int_equal(draft_length_most(&second, 64), DRAFT_FEW);
}

TEST(an_empty_fund_recovers) {
    struct shared_credit shared = credit_of(3.3, 1);
    shared.credit = 0;
    struct draft_length other = account(&shared, 1);
    answer_without_guesses(&other, 400); /* quotes nothing */
    struct draft_length length = account(&shared, 1);
    answer_without_guesses(&length, 8);
    assert_int_equal(draft_length_most(&length, 64), DRAFT_FEW);
}

TEST(debt_asks_for_a_longer_match) {
    struct shared_credit shared = credit_of(3.3, 1);
    struct draft_length length = account(&shared, 1);
    answer_without_guesses(&length, 64);
    draft_length_learn(&length, 1, 15, 0);
    assert_int_equal(draft_length_most(&length, 8), 0);
    assert_int_equal(draft_length_most(&length, 20), DRAFT_FEW);
}

TEST(waits_in_vain_are_paid) {
    struct shared_credit shared = credit_of(1.5, 2);
    struct draft_length length = account(&shared, 2);
    answer_without_guesses(&length, 7);
    assert_int_equal(draft_length_most(&length, 7), 7); /* for two steps */
    const int32_t before = length.account.credit;
    draft_length_waited(&length);
    assert_int_equal(length.account.credit, before - STEP);
    assert_int_equal(draft_length_most(&length, 7), 0);
    assert_int_equal(shared.credit, (DRAFT_FEW - 1) * STEP + before); /* taken the rest */
    draft_length_init(&length, NULL);
    const uint32_t credit = length.credit;
    draft_length_waited(&length); /* nothing runs ahead: there are no waits */
    assert_int_equal(length.credit, credit);
}

TEST(plain_sequences_are_delayed_seldom) {
    enum { N_RUNNING = 2, N_STEPS = 10000 };
    struct shared_credit shared = credit_of(2.5, N_RUNNING);
    struct draft_length length = account(&shared, N_RUNNING);
    uint32_t n_delayed = 0;
    draft_length_learn(&length, 64, 0, 0);
    for (uint32_t i = 0; i < N_STEPS; i++) { /* of a quotation, beside what quotes nothing */
        const uint32_t n = draft_length_most(&length, 64);
        draft_length_learn(&length, n + 1, n, n);
        if (n > 0) shared_credit_note_guesses(&shared, N_RUNNING, true);
        else shared_credit_note_plain(&shared);
        n_delayed += n > 0;
    }
    assert_true(n_delayed > 0 && n_delayed * 1.5 <= 2 + N_STEPS / 128.0);
    /* Beside others that quote, too, that is no matter. */
    shared_credit_note_guesses(&shared, N_RUNNING, false);
    assert_int_equal(draft_length_most(&length, 64), DRAFT_MAX);
    assert_true(draft_length_pay_delay(&length));
    assert_int_equal(length.account.credit,
                     4 * STEP - (int32_t)guess_price_delay(&shared.price, N_RUNNING));
}

TEST(what_cannot_pay_is_not_tried) {
    struct shared_credit shared = credit_of(3, 8); /* 17 steps */
    struct draft_length length = account(&shared, 8);
    draft_length_learn(&length, 64, 0, 0);
    draft_length_learn(&length, 16, 15, 15);
    assert_int_equal(draft_length_most(&length, 64), 0);
    draft_length_share(&length, 2);
    assert_int_equal(draft_length_most(&length, 64), DRAFT_FEW);
}

TEST(many_are_delayed_little_or_not_at_all) {
    for (uint32_t n_running = 2; n_running <= 4; n_running++) {
        struct shared_credit dear = credit_of(1.3, n_running), cheap = credit_of(1.2, n_running);
        struct draft_length a = account(&dear, n_running), b = account(&cheap, n_running);
        draft_length_learn(&a, 64, 0, 0);
        draft_length_learn(&b, 64, 0, 0);
        assert_int_equal(draft_length_most(&a, 64), n_running == 2 ? DRAFT_FEW : 0);
        assert_int_equal(draft_length_most(&b, 64), DRAFT_FEW);
    }
}
