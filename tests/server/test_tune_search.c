/* test_tune_search.c - which pattern a head gets of what was measured, by hand-made results. */
#include <math.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"
#include "engine/tune/tune_search.h"
#include "tests/test.h"

enum { N_HEADS = 2 };
static const struct tune_goal goal = {.target = 0.95, .floor = 0.8};

/* Results of one layer in which nothing is known yet but that dense attention takes a second for
 * each head. */
static struct tune_results make(uint32_t n_samples, uint32_t n_candidates) {
    struct tune_results r;
    struct error err = {0};
    struct attn_pattern candidates[TUNE_MAX_CANDIDATES];
    for (uint32_t i = 0; i < n_candidates; i++)
        candidates[i] = (struct attn_pattern){PATTERN_A_SHAPE, i, 100};
    assert_int_equal(
        tune_results_init(&r, n_samples, 1, N_HEADS, n_candidates, candidates, true, &err), 0);
    for (uint32_t s = 0; s < n_samples; s++) {
        tune_results_at(&r, s, 0)->done = true;
        tune_results_at(&r, s, 0)->dense_s = N_HEADS;
    }
    return r;
}

/* Both heads alike: this recall, and this part of the dense time, half of it for the index. */
static void set(struct tune_results *r, uint32_t sample, uint32_t candidate, float recall,
                double cost) {
    struct tune_layer *layer = tune_results_at(r, sample, 0);
    layer->index_s[candidate] = layer->attention_s[candidate] = cost;
    for (uint32_t h = 0; h < N_HEADS; h++) {
        layer->recall[candidate * N_HEADS + h] = recall;
        layer->density[candidate * N_HEADS + h] = 0.25f;
    }
}

TEST(the_cheapest_that_reaches_the_target_wins) {
    struct tune_results r = make(1, 4);
    set(&r, 0, 0, 0.94f, 0.1);
    set(&r, 0, 1, 0.99f, 0.5);
    set(&r, 0, 2, 0.96f, 0.3);
    set(&r, 0, 3, 1.00f, 0.4);
    const struct tune_choice choice = tune_choose(&r, &goal, 0, 1);
    assert_int_equal(choice.candidate, 2);
    assert_true(fabs(choice.cost - 0.3) < 1e-9);
    assert_true(fabs(choice.mean_recall - 0.96) < 1e-6);
    assert_true(fabs(choice.density - 0.25) < 1e-9);
    tune_results_fini(&r);
}

TEST(every_sample_must_reach_the_target) {
    struct tune_results r = make(2, 2);
    set(&r, 0, 0, 1.00f, 0.1);
    set(&r, 1, 0, 0.92f, 0.1); /* the mean would do */
    set(&r, 0, 1, 0.95f, 0.4);
    set(&r, 1, 1, 0.97f, 0.4);
    const struct tune_choice choice = tune_choose(&r, &goal, 0, 0);
    assert_int_equal(choice.candidate, 1);
    assert_true(fabs(choice.worst_recall - 0.95) < 1e-6);
    assert_true(fabs(choice.mean_recall - 0.96) < 1e-6);
    tune_results_fini(&r);
}

TEST(without_one_that_does_the_best_recall_wins) {
    struct tune_results r = make(1, 3);
    set(&r, 0, 0, 0.85f, 0.1);
    set(&r, 0, 1, 0.94f, 0.9);
    set(&r, 0, 2, 0.93f, 0.2);
    assert_int_equal(tune_choose(&r, &goal, 0, 0).candidate, 1);
    tune_results_fini(&r);
}

TEST(a_head_that_nothing_suits_is_dense) {
    struct tune_results r = make(1, 2);
    set(&r, 0, 0, 0.79f, 0.1);  /* below the floor */
    set(&r, 0, 1, 1.00f, 0.96); /* hardly cheaper than dense */
    const struct tune_choice choice = tune_choose(&r, &goal, 0, 0);
    assert_int_equal(choice.candidate, -1);
    assert_true(choice.worst_recall == 1 && choice.cost == 1 && choice.density == 1);
    tune_results_fini(&r);
}

/* One slow run does not spoil a candidate: costs are medians over samples. */
TEST(a_cost_is_the_median_of_the_samples) {
    struct tune_results r = make(3, 2);
    for (uint32_t s = 0; s < 3; s++) {
        set(&r, s, 0, 1, s == 1 ? 50 : 0.2);
        set(&r, s, 1, 1, 0.5);
    }
    assert_int_equal(tune_choose(&r, &goal, 0, 0).candidate, 0);
    tune_results_fini(&r);
}

TEST(heads_pay_for_what_they_visit) {
    struct tune_results r = make(1, 1);
    struct tune_layer *layer = tune_results_at(&r, 0, 0);
    set(&r, 0, 0, 1, 0);
    layer->attention_s[0] = 0.8;
    layer->index_s[0] = 0.2;
    layer->density[0] = 0.3f;
    layer->density[1] = 0.1f;
    assert_true(fabs(tune_choose(&r, &goal, 0, 0).cost - (0.6 + 0.1)) < 1e-6);
    assert_true(fabs(tune_choose(&r, &goal, 0, 1).cost - (0.2 + 0.1)) < 1e-6);
    tune_results_fini(&r);
}

/* Of candidates that visit the same: cost is no question, and a target no end. */
TEST(with_equal_flops_the_best_recall_wins) {
    static const struct tune_goal equal = {.objective = TUNE_FLOPS, .target = 0.95, .floor = 0.8};
    struct tune_results r = make(2, 4);
    for (uint32_t s = 0; s < 2; s++) {
        set(&r, s, 0, 0.96f, 0.1); /* the cheapest that reaches the target */
        set(&r, s, 1, s ? 0.97f : 1.0f, 0.3);
        set(&r, s, 2, 0.98f, 1.5); /* the best in its worst prompt, slower than dense */
        set(&r, s, 3, 0.99f, 0.1);
        /* Its size for head 1 is none: it visits everything there. */
        tune_results_patterns(&r, 0, 3)[1] = (struct attn_pattern){.kind = PATTERN_DENSE};
    }
    assert_int_equal(tune_choose(&r, &goal, 0, 1).candidate, 0);
    assert_int_equal(tune_choose(&r, &equal, 0, 1).candidate, 2);
    assert_int_equal(tune_choose(&r, &equal, 0, 0).candidate, 3);
    tune_results_fini(&r);
    r = make(1, 1);
    set(&r, 0, 0, 0.79f, 0.1); /* below the floor */
    assert_int_equal(tune_choose(&r, &equal, 0, 0).candidate, -1);
    tune_results_fini(&r);
}

TEST(patterns_begin_as_the_candidates) {
    struct tune_results r = make(1, 3);
    for (uint32_t c = 0; c < 3; c++)
        for (uint32_t h = 0; h < N_HEADS; h++)
            assert_int_equal(tune_results_patterns(&r, 0, c)[h].p1, c);
    assert_true(r.fitted[0]);
    tune_results_fini(&r);
}

/* Those of the paper's Table 7 among them. */
TEST(published_candidates_are_tried) {
    static const struct attn_pattern published[] = {
        {PATTERN_A_SHAPE, 1024, 4096},       {PATTERN_VERTICAL_SLASH, 30, 2048},
        {PATTERN_VERTICAL_SLASH, 100, 1800}, {PATTERN_VERTICAL_SLASH, 500, 1500},
        {PATTERN_VERTICAL_SLASH, 3000, 200}, {PATTERN_BLOCK_SPARSE, 100, 0}};
    struct attn_pattern out[TUNE_MAX_CANDIDATES];
    const uint32_t n = tune_candidates(32768, out);
    for (size_t i = 0; i < sizeof(published) / sizeof(*published); i++) {
        uint32_t at = 0;
        while (at < n && memcmp(&out[at], &published[i], sizeof(*out)) != 0) at++;
        assert_true(at < n);
    }
}

TEST(candidates_are_smaller_than_the_prompt) {
    struct attn_pattern out[TUNE_MAX_CANDIDATES];
    bool kinds[PATTERN_N_KINDS] = {false};
    assert_int_equal(tune_candidates(100, out), 0);
    uint32_t before = 0;
    for (uint32_t length = 128; length <= 32768; length *= 2) {
        const uint32_t n = tune_candidates(length, out);
        assert_true(n >= before && n <= TUNE_MAX_CANDIDATES);
        before = n;
        for (uint32_t i = 0; i < n; i++) {
            const bool pages = out[i].kind == PATTERN_BLOCK_SPARSE;
            assert_true((pages ? out[i].p1 * PAGE_TOKENS : out[i].p1 + out[i].p2) < length);
            kinds[out[i].kind] = true;
        }
    }
    assert_true(kinds[PATTERN_A_SHAPE] && kinds[PATTERN_VERTICAL_SLASH] &&
                kinds[PATTERN_BLOCK_SPARSE] && !kinds[PATTERN_DENSE]);
}

TEST(recall_is_the_share_of_the_sum) {
    const float dense[] = {3, 0, 1, 1, NAN, 0}, sparse[] = {2, 0, 1.001f, -INFINITY, 0, NAN};
    double sums[N_HEADS] = {0};
    tune_add_recall(sums, sparse, dense, 3, N_HEADS);
    /* Half of the first row; never more than all; none of NaN. */
    assert_true(fabs(sums[0] - 1.5) < 1e-9);
    assert_true(fabs(sums[1] - 1.0) < 1e-9);
}

TEST(short_prompts_count_three_quarters) {
    assert_int_equal(tune_first_row(4096), 1024);
    assert_int_equal(tune_first_row(10000), 2500);
    assert_int_equal(tune_first_row(131072), 2500);
}

/* ---- the ladder ---- */

/* Climbs with prompts whose dense time is 1: sparse ones are slower where slow says so. */
struct climb {
    struct tune_rung rungs[TUNE_MAX_RUNGS];
    uint32_t n, asked[TUNE_MAX_RUNGS]; /* in the order they were measured */
};

static struct climb climb(bool (*is_slow)(uint32_t n_tokens), uint32_t top) {
    struct climb c = {.n = 0};
    uint32_t n_tokens;
    while ((n_tokens = tune_next_rung(c.rungs, c.n, top)) > 0) {
        const struct tune_rung rung = {n_tokens, 1, is_slow(n_tokens) ? 1.01 : 1};
        assert_true(c.n < TUNE_MAX_RUNGS);
        c.asked[c.n] = n_tokens;
        tune_insert_rung(c.rungs, c.n++, &rung);
    }
    for (uint32_t i = 1; i < c.n; i++) assert_true(c.rungs[i - 1].n_tokens < c.rungs[i].n_tokens);
    return c;
}

static bool is_below_20000(uint32_t n_tokens) {
    return n_tokens < 20000;
}

TEST(a_ladder_doubles_and_then_halves) {
    static const uint32_t expected[] = {1024,  2048,  4096,  8192,  16384,
                                        32768, 65536, 24576, 20480, 18432};
    const struct climb c = climb(is_below_20000, 131072);
    assert_int_equal(c.n, 10);
    assert_memory_equal(c.asked, expected, sizeof(expected));
    assert_int_equal(tune_break_even(c.rungs, c.n), 20480);
}

/* One win is none until it is confirmed, but for the longest, behind which there is no other. */
TEST(a_ladder_ends_at_its_top) {
    static const uint32_t expected[] = {1024, 2048, 4096, 8192, 16384, 24000, 20224, 18304, 19328};
    const struct climb c = climb(is_below_20000, 24000);
    assert_int_equal(c.n, 9);
    assert_memory_equal(c.asked, expected, sizeof(expected));
    assert_int_equal(tune_break_even(c.rungs, c.n), 20224);
}

static bool is_always(uint32_t n_tokens) {
    (void)n_tokens;
    return true;
}

static bool is_never(uint32_t n_tokens) {
    (void)n_tokens;
    return false;
}

TEST(a_ladder_without_both_outcomes_has_nothing_to_halve) {
    const struct climb lost = climb(is_always, 4095), won = climb(is_never, 131072),
                       single = climb(is_never, 700);
    assert_int_equal(lost.n, 3);
    assert_int_equal(lost.asked[2], 4095);
    assert_int_equal(tune_break_even(lost.rungs, lost.n), TUNE_NEVER);
    assert_int_equal(won.n, 2);
    assert_int_equal(tune_break_even(won.rungs, won.n), 1024);
    assert_int_equal(single.n, 1);
    assert_int_equal(tune_break_even(single.rungs, single.n), 768); /* in tiles */
    assert_int_equal(tune_break_even(NULL, 0), TUNE_NEVER);
}

static bool is_at_2048(uint32_t n_tokens) {
    return n_tokens == 2048;
}

/* Faster once, by chance, and slower after that: what counts is the last loss. */
TEST(a_win_below_a_loss_does_not_count) {
    const struct tune_rung uneven[] = {{1024, 1, 0.9}, {2048, 1, 2}, {4096, 1, 0.5}};
    assert_int_equal(tune_break_even(uneven, 3), 4096);
    const struct climb c = climb(is_at_2048, 131072);
    assert_int_equal(c.n, 7); /* 1024 did not end it: three halvings */
    assert_int_equal(tune_break_even(c.rungs, c.n), 2304);
}
