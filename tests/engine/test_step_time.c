/* test_step_time.c - pieces of prompts are cut to a time that is learned. */
#include <math.h>

#include "engine/schedule/step_time.h"
#include "tests/test.h"

TEST(rows_are_the_most_that_the_work_allows) {
    const struct step_time step_time = step_time_make(1000, 100, 2, 0);
    const uint32_t before[] = {0, 1, 1000, 1000000}, rows[] = {1, 64, 5000, 300000};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            const double work = step_time_work(&step_time, STEP_TIME_ALL, rows[j], before[i]);
            for (int sign = -1; sign <= 1; sign += 2)
                assert_int_equal(
                    step_time_rows(&step_time, STEP_TIME_ALL, work * (1 + sign * 1e-9), before[i]),
                    rows[j] - (sign < 0));
        }
    assert_int_equal(step_time_rows(&step_time, STEP_TIME_ALL, 0, 7), 0);
    assert_int_equal(step_time_rows(&step_time, STEP_TIME_ALL, INFINITY, 7), UINT32_MAX);
}

TEST(nothing_fits_before_anything_is_known) {
    const struct step_time step_time = step_time_make(10, 2, 1, 0.1);
    assert_true(step_time_budget(&step_time, STEP_TIME_STEP, 0.1) == 0);
    assert_true(step_time_budget(&step_time, STEP_TIME_SLICE, 0.1) == 0);
    assert_int_equal(step_time_rows(&step_time, 0, 0, 0), 0);
}

TEST(slices_of_the_first_layer_cost_less) {
    (void)state;
    const struct step_time step_time = step_time_make(1000, 100, 2, 0);
    for (uint32_t layer = 0; layer < 2; layer++) {
        const double work = step_time_work(&step_time, layer, 5000, 7);
        assert_true(layer > 0 ? work == step_time_work(&step_time, STEP_TIME_ALL, 5000, 7)
                              : work == 5000 * 100.0);
        assert_int_equal(step_time_rows(&step_time, layer, work * (1 + 1e-9), 7), 5000);
    }
}

/* A machine where work takes 2 us and generating 5 ms. */
TEST(the_machine_is_learned) {
    struct step_time step_time = step_time_make(10, 2, 1, 0.1);
    for (int i = 0; i < 10; i++) step_time_measure(&step_time, STEP_TIME_STEP, 0, true, 5e-3);
    for (int i = 0; i < 10; i++) step_time_measure(&step_time, STEP_TIME_STEP, 1000, true, 7e-3);
    for (int i = 0; i < 10; i++) step_time_measure(&step_time, STEP_TIME_SLICE, 1000, false, 8e-3);
    assert_true(fabs(step_time_seconds(&step_time, STEP_TIME_STEP, 500) - 6e-3) < 1e-6);
    assert_true(fabs(step_time_seconds(&step_time, STEP_TIME_SLICE, 500) - 4e-3) < 1e-6);
    assert_true(fabs(step_time_budget(&step_time, STEP_TIME_STEP, 2e-3) - 1000) < 1e-3);
    assert_true(step_time_budget(&step_time, STEP_TIME_STEP, -1e-3) == 0);
}

TEST(a_change_is_followed_and_an_outlier_forgotten) {
    struct step_time step_time = step_time_make(10, 2, 1, 0.1);
    step_time_measure(&step_time, STEP_TIME_SLICE, 1000, false, 1e-3);
    for (int i = 0; i < 20; i++) step_time_measure(&step_time, STEP_TIME_SLICE, 1000, false, 4e-3);
    assert_true(fabs(step_time_seconds(&step_time, STEP_TIME_SLICE, 1000) - 4e-3) < 1e-5);
    for (int i = 0; i < 10; i++) step_time_measure(&step_time, STEP_TIME_STEP, 0, true, 5e-3);
    step_time_measure(&step_time, STEP_TIME_STEP, 0, true, 1); /* a first launch, say */
    assert_true(step_time.base_s < 0.06);
    for (int i = 0; i < 10; i++) step_time_measure(&step_time, STEP_TIME_STEP, 0, true, 5e-3);
    assert_true(step_time.base_s < 7e-3);
}

TEST(the_index_is_learned_by_itself) {
    struct step_time step_time = step_time_make(10, 2, 1, 0.1);
    assert_true(step_time_index_seconds(&step_time, 1000) == 0);
    for (int i = 0; i < 10; i++) step_time_measure_index(&step_time, 1000, 5e-3);
    assert_true(fabs(step_time_index_seconds(&step_time, 3000) - 15e-3) < 1e-9);
}

/* Rows far from the beginning see no more than was measured; those near it see what there is. */
TEST(what_sparse_rows_see_is_learned_anew) {
    struct step_time step_time = step_time_make(10, 2, 1, 0.1);
    assert_int_equal(step_time_seen(&step_time, 100000), 100000);
    for (int i = 0; i < 20; i++) step_time_measure_seen(&step_time, 7000);
    assert_int_equal(step_time_seen(&step_time, 100000), 7000);
    assert_int_equal(step_time_seen(&step_time, 500), 500);
    step_time_measure_index(&step_time, 1000, 5e-3);
    step_time_begin_prompt(&step_time);
    assert_int_equal(step_time_seen(&step_time, 100000), 100000);
    assert_true(step_time_index_seconds(&step_time, 1000) == 0);
}

/* Whatever was measured, a step is never free. */
TEST(a_step_faster_than_its_base_costs_something) {
    struct step_time step_time = step_time_make(10, 2, 1, 0.1);
    step_time_measure(&step_time, STEP_TIME_STEP, 0, true, 5e-3);
    step_time_measure(&step_time, STEP_TIME_STEP, 1000, true, 1e-3);
    assert_true(step_time.s_per_work[STEP_TIME_STEP] > 0);
}

/* Two clocks: what is left of a slice's time without its index may be less than nothing. */
TEST(time_that_cannot_be_is_not_learned) {
    struct step_time step_time = step_time_make(10, 2, 1, 0.1);
    step_time_measure(&step_time, STEP_TIME_SLICE, 1000, true, -1e-3);
    assert_true(step_time.s_per_work[STEP_TIME_SLICE] == 0);
    step_time_measure(&step_time, STEP_TIME_SLICE, 1000, true, 2e-3);
    step_time_measure(&step_time, STEP_TIME_SLICE, 1000, true, -1);
    assert_true(fabs(step_time_seconds(&step_time, STEP_TIME_SLICE, 1000) - 2e-3) < 1e-9);
}

int main(void) {
    return tests_run("pace", NULL, NULL);
}
