/* test_bench_schedule.c - prompts are read in the steps in which the scheduler's rules put them. */

#include "server/bench/bench_schedule.h"
#include "tests/test.h"

static struct bench_schedule make(uint32_t n_sequences, uint32_t n_prompt, uint32_t max_rows,
                                  uint32_t chunk) {
    struct bench_schedule schedule;
    const struct bench_shape shape = {
        .n_sequences = n_sequences, .n_prompt = n_prompt, .max_rows = max_rows, .chunk = chunk};
    bench_schedule_make(&schedule, &shape);
    return schedule;
}

TEST(pieces_fill_each_step) {
    struct bench_schedule s = make(3, 3, 4, 3);
    assert_int_equal(s.n_first, 1);
    assert_int_equal(s.n_last, 2);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(s.behind[i], i);
    s = make(1, 1000, 64, 1000);
    assert_int_equal(s.n_first, 16);
    assert_int_equal(s.n_last, 1);
    assert_int_equal(s.behind[0], 0);
}

TEST(short_prompts_are_read_together) {
    const struct bench_schedule s = make(64, 16, 2048, 16);
    assert_int_equal(s.n_first, 1);
    assert_int_equal(s.n_last, 1);
    assert_int_equal(s.behind[63], 0);
}

/* Each step has room for fewer rows of prompts, as more sequences generate: 256 prompts of 2,048
 * take 64 steps of 8,192 rows, and two more for those rows. */
TEST(sequences_that_generate_take_a_row_each) {
    const struct bench_schedule s = make(256, 2048, 8192, 2048);
    assert_int_equal(s.n_first, 1);
    assert_in_range(s.behind[255], 64, 66);
    for (uint32_t i = 1; i < 256; i++) assert_true(s.behind[i] >= s.behind[i - 1]);
    /* 10/8 + 10/7 + ... + 10/1 steps one after another, less the first and what shares a step. */
    assert_in_range(make(8, 10, 8, 10).behind[7], 22, 26);
}

/* A chunk ends where it ends, however much room there is; another prompt takes that. */
TEST(chunks_are_not_crossed) {
    struct bench_schedule s = make(2, 100, 1000, 30);
    assert_int_equal(s.n_first, 4);
    assert_int_equal(s.behind[1], 0);
    assert_int_equal(s.n_last, 1);
    s = make(2, 100, 40, 30); /* 30 and 10 rows, 30 and 20, 30 and 10, ... */
    assert_int_equal(s.n_first, 4);
    assert_true(s.behind[1] >= 2 && s.behind[1] <= 3);
}

TEST(a_prompt_may_be_read_alone) {
    struct bench_schedule s;
    const struct bench_shape shape = {
        .n_sequences = 3, .n_prompt = 100, .max_rows = 64, .chunk = 100, .n_alone = 12};
    bench_schedule_make(&s, &shape);
    assert_int_equal(s.n_first, 12);
    assert_int_equal(s.behind[2], 24);
    assert_int_equal(s.n_last, 25);
}

/* In its last steps there is room for one row of a prompt. */
TEST(the_greatest_batch_ends) {
    const struct bench_schedule s = make(BENCH_MAX_BATCH, 70, BENCH_MAX_BATCH, 64);
    assert_true(s.behind[BENCH_MAX_BATCH - 1] > 70);
    assert_true(s.n_last > 1);
}
