/* test_guess_price.c - what guesses cost, by the times of steps. */

#include "engine/speculate/guess_price.h"
#include "tests/test.h"

enum { STEP = GUESS_PRICE_STEP };

static void measure(struct guess_price *price, uint32_t n_times, uint32_t n_seqs,
                    uint32_t n_drafting, double seconds) {
    for (uint32_t i = 0; i < n_times; i++) guess_price_measure(price, n_seqs, n_drafting, seconds);
}

/* Prices are whole parts of a step, rounded up. */
static void assert_near(uint32_t price, double steps) {
    assert_in_range(price, (uint32_t)(steps * STEP * 0.97), (uint32_t)(steps * STEP * 1.03) + 2);
}

TEST(before_the_first_measurement_a_price_is_assumed) {
    struct guess_price price = {0};
    assert_int_equal(guess_price_step(&price, 1), GUESS_PRICE_FIRST + STEP / 4);
    assert_int_equal(guess_price_step(&price, 4), 4 * GUESS_PRICE_FIRST + STEP);
    assert_int_equal(guess_price_delay(&price, 4), GUESS_PRICE_FIRST);
    measure(&price, 5, 1, 1, 10); /* a step with guesses, and none to compare it with */
    assert_int_equal(guess_price_step(&price, 1), GUESS_PRICE_FIRST + STEP / 4);
}

TEST(a_wait_costs_a_step_beside_others) {
    assert_int_equal(guess_price_wait(1), STEP / 4);
    assert_int_equal(guess_price_wait(2), STEP);
    assert_int_equal(guess_price_wait(100), STEP);
}

TEST(prices_follow_what_steps_take) {
    struct guess_price price = {0};
    measure(&price, 100, 1, 0, 0.002);
    measure(&price, 30, 1, 1, 0.0066);
    assert_near(guess_price_step(&price, 1), 2.3 + 0.25);
    measure(&price, 60, 1, 1, 0.0022); /* it falls */
    assert_near(guess_price_step(&price, 1), 0.1 + 0.25);
    measure(&price, 60, 1, 1, 0.008); /* it rises */
    assert_near(guess_price_step(&price, 1), 3 + 0.25);
    measure(&price, 100, 1, 0, 0.004); /* plain steps become slower */
    measure(&price, 60, 1, 1, 0.008);
    assert_near(guess_price_step(&price, 1), 1 + 0.25);
    measure(&price, 60, 1, 1,
            0.003); /* nothing is gained by a step that was faster than plain ones */
    assert_near(guess_price_step(&price, 1), 0.25);
}

TEST(all_running_sequences_lose_and_those_that_guess_share_it) {
    struct guess_price price = {0};
    measure(&price, 100, 4, 0, 0.002);
    measure(&price, 60, 4, 1, 0.005);
    assert_near(guess_price_step(&price, 4), 4 * 1.5 + 1);
    measure(&price, 60, 4, 4, 0.005);
    assert_near(guess_price_step(&price, 4), 4 * 1.5 / 4 + 1);
    assert_near(guess_price_delay(&price, 4),
                1.5); /* for those that guess nothing it is the same */
}

TEST(the_first_step_of_a_shape_says_little) {
    struct guess_price price = {0};
    measure(&price, 1, 1, 0, 1); /* captures a graph */
    measure(&price, 50, 1, 0, 0.002);
    measure(&price, 1, 1, 1, 0.5); /* loads kernels */
    assert_true(guess_price_step(&price, 1) < 3 * STEP);
    measure(&price, 10, 1, 1, 0.004);
    assert_true(guess_price_step(&price, 1) < 2 * STEP);
}

TEST(an_outlier_moves_prices_a_little) {
    struct guess_price price = {0};
    measure(&price, 100, 1, 0, 0.002);
    measure(&price, 100, 1, 1, 0.004);
    const uint32_t usual = guess_price_step(&price, 1);
    guess_price_measure(&price, 1, 1, 5);
    assert_in_range(guess_price_step(&price, 1), usual, usual * 5 / 4);
    measure(&price, 40, 1, 1, 0.004);
    guess_price_measure(&price, 1, 0, 5);
    guess_price_measure(&price, 1, 1, 0.004);
    assert_in_range(guess_price_step(&price, 1), usual * 9 / 10, usual);
    guess_price_measure(&price, 1, 1, 0); /* a clock that has not moved */
    assert_in_range(guess_price_step(&price, 1), usual * 9 / 10, usual);
}

TEST(other_numbers_of_sequences_are_expected_to_be_delayed_alike) {
    struct guess_price price = {0};
    measure(&price, 100, 2, 0, 0.002);
    measure(&price, 60, 2, 1, 0.003);
    assert_near(guess_price_step(&price, 1), 0.5 + 0.25);
    assert_near(guess_price_step(&price, 8), 8 * 0.5 + 1);
    measure(&price, 100, 7, 0, 0.002);
    measure(&price, 60, 7, 1, 0.006);
    assert_near(guess_price_step(&price, 2), 2 * 0.5 + 1);
    assert_near(guess_price_step(&price, 4), 4 * 0.5 + 1); /* the nearest below */
    assert_near(guess_price_step(&price, 8), 8 * 2 + 1);
    assert_near(guess_price_step(&price, 1000), 1000 * 2 + 1);
}

TEST(what_has_not_been_measured_for_long_is_forgotten) {
    struct guess_price price = {0};
    measure(&price, 100, 8, 0, 0.002);
    measure(&price, 60, 8, 1, 0.05);
    assert_true(guess_price_step(&price, 8) > 100 * STEP);
    measure(&price, 4000, 8, 0, 0.002);
    assert_true(guess_price_step(&price, 8) > 100 * STEP);
    measure(&price, 100, 8, 0, 0.002);
    assert_int_equal(guess_price_step(&price, 8), 8 * GUESS_PRICE_FIRST + STEP);
}
