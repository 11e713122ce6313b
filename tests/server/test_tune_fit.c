/* test_tune_fit.c - the size of a pattern that visits as much as a budget allows, by hand-made
 * densities. */

#include "engine/device/pages.h"
#include "engine/device/sparse.h"
#include "engine/tune/tune_fit.h"
#include "tests/test.h"

enum { N_TOKENS = 30000 };

/* As if what is visited grew evenly with the pattern, to everything at n_all keys or pages. */
static struct attn_pattern fit(const struct attn_pattern *start, uint32_t n_all, double budget,
                               uint32_t n_tokens) {
    struct tune_fit fit;
    uint32_t n_tried = 0;
    tune_fit_begin(&fit, start, n_tokens);
    for (; !tune_fit_is_done(&fit); n_tried++) {
        const struct attn_pattern p = tune_fit_next(&fit);
        assert_int_equal(p.kind, start->kind);
        assert_true(n_tried < 20);
        tune_fit_add(&fit, (double)(p.p1 + p.p2) / n_all <= budget);
    }
    const struct attn_pattern found = tune_fit_next(&fit);
    tune_fit_add(&fit, true); /* of another head, whose fit takes a step more: changes nothing */
    tune_fit_add(&fit, false);
    const struct attn_pattern again = tune_fit_next(&fit);
    assert_true(again.p1 == found.p1 && again.p2 == found.p2 && again.kind == found.kind);
    return found;
}

TEST(the_largest_that_fits_is_found) {
    struct attn_pattern starts[TUNE_N_STARTS];
    tune_fit_starts(starts);
    for (int i = 0; i < TUNE_N_STARTS; i++) {
        const bool pages = starts[i].kind == PATTERN_BLOCK_SPARSE;
        const uint32_t n_all = pages ? N_TOKENS / PAGE_TOKENS : N_TOKENS;
        const struct attn_pattern p = fit(&starts[i], n_all, 0.25, N_TOKENS);
        assert_int_equal(p.kind, starts[i].kind);
        /* A step more, of 50 and its share or of a page, would be too much. */
        assert_true(p.p1 + p.p2 <= n_all / 4 && p.p1 + p.p2 + (pages ? 1 : 100) > n_all / 4);
        /* As its numbers were to each other. */
        assert_in_range((uint64_t)p.p1 * starts[i].p2 + N_TOKENS, (uint64_t)p.p2 * starts[i].p1,
                        (uint64_t)p.p2 * starts[i].p1 + 2 * N_TOKENS);
    }
}

/* Forced keys alone may be more than the budget. */
TEST(what_does_not_fit_is_dense) {
    struct attn_pattern starts[TUNE_N_STARTS];
    tune_fit_starts(starts);
    for (int i = 0; i < TUNE_N_STARTS; i++)
        assert_int_equal(fit(&starts[i], 1, 0.5, N_TOKENS).kind, PATTERN_DENSE);
}

/* Nothing is larger than can be indexed, nor than the prompt. */
TEST(sizes_have_an_end) {
    struct attn_pattern starts[TUNE_N_STARTS];
    tune_fit_starts(starts);
    for (int i = 0; i < TUNE_N_STARTS; i++) {
        const struct attn_pattern large = fit(&starts[i], UINT32_MAX, 1, 1 << 20),
                                  small = fit(&starts[i], UINT32_MAX, 1, 1000);
        if (large.kind == PATTERN_VERTICAL_SLASH) assert_true(large.p1 <= SPARSE_MAX_COLUMNS);
        if (large.kind == PATTERN_BLOCK_SPARSE) assert_int_equal(large.p1, SPARSE_MAX_PAGES);
        assert_true(large.p2 <= 1 << 20);
        assert_true(small.p1 <= 1000 && small.p2 <= 1000);
        assert_int_equal(fit(&starts[i], UINT32_MAX, 1, 10).kind, starts[i].kind);
    }
}

/* The paper's Table 7. */
TEST(it_begins_with_the_published_candidates) {
    static const struct attn_pattern published[TUNE_N_STARTS] = {
        {PATTERN_A_SHAPE, 1024, 4096},       {PATTERN_VERTICAL_SLASH, 30, 2048},
        {PATTERN_VERTICAL_SLASH, 100, 1800}, {PATTERN_VERTICAL_SLASH, 500, 1500},
        {PATTERN_VERTICAL_SLASH, 3000, 200}, {PATTERN_BLOCK_SPARSE, 100, 0}};
    struct attn_pattern starts[TUNE_N_STARTS];
    tune_fit_starts(starts);
    assert_memory_equal(starts, published, sizeof(published));
}
