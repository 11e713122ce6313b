/* test_stats.c - histograms count at their bounds, times of a sequence add up, and a reader of the
 * board gets whole statistics while the engine writes. */
#include <pthread.h>
#include <stdlib.h>

#include "engine/schedule/stats_board.h"
#include "engine/schedule/timing.h"
#include "tests/test.h"

enum { N_WRITES = 20000 };

TEST(a_bound_belongs_to_its_bucket) {
    static const struct histogram_bounds bounds = {3, {1, 2, 5}};
    static const double values[] = {0, 1, 1.5, 2, 2.5, 5, 6, 1e9};
    struct histogram h = {0};
    for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++)
        histogram_add(&h, &bounds, values[i]);
    for (unsigned i = 0; i < 4; i++) assert_int_equal(h.buckets[i], 2);
    assert_int_equal(h.n, 8);
    assert_true(h.sum == 1e9 + 18);
}

/* The tables are written by hand: none may be out of order or have a bound of 0. */
TEST(bounds_ascend) {
    for (unsigned i = 0; i < ENGINE_N_HISTOGRAMS; i++) {
        const struct histogram_bounds *bounds = engine_histogram_bounds[i];
        assert_in_range(bounds->n, 1, HISTOGRAM_MAX_BOUNDS);
        for (uint32_t k = 0; k < bounds->n; k++)
            assert_true(bounds->upper[k] > (k ? bounds->upper[k - 1] : 0));
    }
}

static double sum_of(const struct engine_stats *stats, enum engine_histogram which) {
    return stats->histograms[which].sum;
}

TEST(times_add_up) {
    struct engine_stats *stats = calloc(1, sizeof(*stats));
    assert_non_null(stats);
    struct timing timing = {.arrived_s = 10};
    timing_queue(&timing, 11);
    timing.started_s = 14;
    timing_token(&timing, stats, 20);
    timing_token(&timing, stats, 21);
    timing_token(&timing, stats, 24);
    timing_finish(&timing, stats, 100, 3, 24);
    assert_true(sum_of(stats, ENGINE_FIRST_TOKEN_S) == 10);
    assert_true(sum_of(stats, ENGINE_BETWEEN_TOKENS_S) == 4);
    assert_int_equal(stats->histograms[ENGINE_BETWEEN_TOKENS_S].n, 2);
    assert_true(sum_of(stats, ENGINE_PER_TOKEN_S) == 2);
    assert_true(sum_of(stats, ENGINE_WHOLE_S) == 14);
    assert_true(sum_of(stats, ENGINE_QUEUED_S) == 3);
    assert_true(sum_of(stats, ENGINE_RUNNING_S) == 10);
    assert_true(sum_of(stats, ENGINE_PREFILL_S) == 6);
    assert_true(sum_of(stats, ENGINE_DECODE_S) == 4);
    assert_true(sum_of(stats, ENGINE_PROMPT_TOKENS) == 100);
    assert_true(sum_of(stats, ENGINE_GENERATED_TOKENS) == 3);
    free(stats);
}

TEST(a_sequence_without_tokens_is_all_prefill) {
    struct engine_stats *stats = calloc(1, sizeof(*stats));
    assert_non_null(stats);
    struct timing timing = {0};
    timing_queue(&timing, 5);
    timing.started_s = 6;
    timing_finish(&timing, stats, 10, 0, 9);
    assert_true(sum_of(stats, ENGINE_WHOLE_S) == 4); /* no arrival was told */
    assert_true(sum_of(stats, ENGINE_PREFILL_S) == 3);
    assert_true(sum_of(stats, ENGINE_DECODE_S) == 0);
    assert_int_equal(stats->histograms[ENGINE_FIRST_TOKEN_S].n, 0);
    assert_int_equal(stats->histograms[ENGINE_PER_TOKEN_S].n, 0);
    free(stats);
}

/* Writes statistics whose members all say the same number. */
static void *write_all(void *arg) {
    struct engine_stats *stats = calloc(1, sizeof(*stats));
    for (uint64_t i = 1; stats && i <= N_WRITES; i++) {
        stats->n_steps = stats->generated_tokens = stats->sparse.n_dense = i;
        stats->histograms[ENGINE_STEP_TOKENS].n = i;
        stats_board_write(arg, stats);
    }
    free(stats);
    return NULL;
}

static void *read_all(void *arg) {
    struct engine_stats *stats = calloc(1, sizeof(*stats));
    uint64_t last = 0;
    while (stats && last < N_WRITES) {
        stats_board_read(arg, stats);
        const uint64_t n = stats->n_steps;
        if (n < last || stats->generated_tokens != n || stats->sparse.n_dense != n ||
            stats->histograms[ENGINE_STEP_TOKENS].n != n)
            break;
        last = n;
    }
    free(stats);
    return last == N_WRITES ? arg : NULL;
}

TEST(readers_see_whole_statistics_in_order) {
    struct stats_board *board = calloc(1, sizeof(*board));
    pthread_t writer, readers[2];
    void *done;
    assert_non_null(board);
    stats_board_init(board);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&readers[i], NULL, read_all, board), 0);
    assert_int_equal(pthread_create(&writer, NULL, write_all, board), 0);
    pthread_join(writer, NULL);
    for (int i = 0; i < 2; i++) {
        pthread_join(readers[i], &done);
        assert_non_null(done); /* it saw the last one, and none that was torn or old */
    }
    stats_board_fini(board);
    free(board);
}

TEST(pages_without_a_user_are_not_in_use) {
    struct engine_stats stats = {.pages_total = 100, .pages_free = 40, .pages_cached = 35};
    assert_true(engine_stats_kv_use(&stats) == 0.25);
    stats = (struct engine_stats){0};
    assert_true(engine_stats_kv_use(&stats) == 0);
}
