/* test_tune_filters.c - which layers become filters: against every set of layers there is, on
 * matrices at random. */
#include <math.h>
#include <stdio.h>

#include "engine/base/error.h"
#include "engine/base/rng.h"
#include "engine/device/layer_group.h"
#include "engine/tune/tune_filters.h"
#include "tests/test.h"

enum { MOST_LAYERS = 14, N_MATRICES = 300 };

static uint64_t n_sampled;

static double draw(void) {
    return rng_uniform(20, n_sampled++);
}

/* The definition, of the filters whose bits are set: false where one has a window, or has no layer
 * behind. */
static bool judge(uint32_t bits, const double *similarity, uint32_t n_layers,
                  const struct tune_filter_goal *goal, uint32_t *n_dense, double *lost) {
    const uint32_t *windows = goal->windows;
    struct filters filters = {.n_wait = goal->n_wait};
    struct layer_group groups[MAX_LAYER_GROUPS];
    for (uint32_t l = 0; l < n_layers; l++)
        if (bits >> l & 1) filters.layers[filters.n++] = l;
    const int n = filters_groups(&filters, windows, n_layers, groups, NULL);
    if (n != (int)filters.n) return false;
    *n_dense = 0;
    *lost = 0;
    for (uint32_t l = 0; l < n_layers; l++) *n_dense += !layer_has_window(windows, l);
    for (int g = 0; g < n; g++)
        for (uint32_t j = groups[g].first; j < groups[g].end; j++) {
            if (layer_has_window(windows, j)) continue;
            (*n_dense)--;
            *lost += 1 - similarity[groups[g].filter * n_layers + j];
        }
    return true;
}

/* The least that can be lost; INFINITY: there is no way. */
static double try_all(const double *similarity, uint32_t n_layers,
                      const struct tune_filter_goal *goal, double above) {
    double least = INFINITY;
    for (uint32_t bits = 1; bits < 1u << n_layers; bits++) {
        uint32_t n_dense;
        double lost;
        if ((uint32_t)__builtin_popcount(bits) > goal->max_filters) continue;
        if (!judge(bits, similarity, n_layers, goal, &n_dense, &lost)) continue;
        if (n_dense <= goal->max_dense && lost > above && lost < least) least = lost;
    }
    return least;
}

static uint32_t bits_of(const struct filters *filters) {
    uint32_t bits = 0;
    for (uint32_t i = 0; i < filters->n; i++) bits |= 1u << filters->layers[i];
    return bits;
}

static void check(const double *similarity, uint32_t n_layers,
                  const struct tune_filter_goal *goal) {
    struct tune_filters best[TUNE_N_CHOICES];
    struct error err = {0};
    const int n = tune_filters_choose(best, similarity, n_layers, goal, &err);
    double above = -INFINITY;
    assert_in_range(n, 0, TUNE_N_CHOICES);
    for (int i = 0; i < n; i++) {
        uint32_t n_dense;
        double lost;
        assert_int_equal(best[i].filters.n_wait, goal->n_wait);
        assert_true(judge(bits_of(&best[i].filters), similarity, n_layers, goal, &n_dense, &lost));
        assert_int_equal(best[i].n_dense, n_dense);
        assert_true(fabs(best[i].lost - lost) < 1e-9);
        assert_true(fabs(lost - try_all(similarity, n_layers, goal, above)) < 1e-9);
        above = lost + 1e-9;
    }
    if (n < TUNE_N_CHOICES) assert_true(isinf(try_all(similarity, n_layers, goal, above)));
}

/* Of every second matrix some layers have windows. */
TEST(nothing_loses_less) {
    for (uint32_t i = 0; i < N_MATRICES; i++) {
        double similarity[MOST_LAYERS * MOST_LAYERS];
        uint32_t windows[MOST_LAYERS];
        const double share = draw();
        for (uint32_t l = 0; l < MOST_LAYERS; l++) windows[l] = draw() < share ? 100 : 0;
        const uint32_t n_layers = 1 + i % MOST_LAYERS;
        const struct tune_filter_goal goal = {
            .max_filters = 1 + (uint32_t)(draw() * TUNE_MAX_FILTERS),
            .max_dense = (uint32_t)(draw() * (n_layers + 1)),
            .n_wait = (uint32_t)(draw() * 3),
            .windows = i / MOST_LAYERS % 2 ? windows : NULL};
        for (uint32_t k = 0; k < n_layers * n_layers; k++) similarity[k] = draw();
        check(similarity, n_layers, &goal);
    }
}

/* A layer that looks at everything counts as much as one whose filter finds everything. */
TEST(the_room_for_dense_layers_is_used) {
    enum { N = 6 };
    double similarity[N * N];
    struct tune_filters best[TUNE_N_CHOICES];
    struct error err = {0};
    for (uint32_t i = 0; i < N * N; i++) similarity[i] = 0.5;
    const struct tune_filter_goal goal = {.max_filters = 1, .max_dense = 4, .n_wait = 1};
    assert_int_equal(tune_filters_choose(best, similarity, N, &goal, &err), 3);
    assert_int_equal(best[0].filters.layers[0], 2);
    assert_true(best[0].n_dense == 4 && fabs(best[0].lost - 1) < 1e-9);
}

TEST(there_may_be_no_way) {
    const double similarity[9] = {0};
    struct tune_filters best[TUNE_N_CHOICES];
    struct error err = {0};
    struct tune_filter_goal goal = {.max_filters = 3, .max_dense = 1, .n_wait = 1};
    assert_int_equal(tune_filters_choose(best, similarity, 3, &goal, &err), 0);
    goal.max_dense = 2;
    assert_int_equal(tune_filters_choose(best, similarity, 2, &goal, &err), 0);
    assert_int_equal(tune_filters_choose(best, similarity, 3, &goal, &err), 1);
}

TEST(shares_are_of_positive_scores) {
    const float token_scores[] = {0.5f, -1, 0.25f, NAN, 0, 0.25f}, nothing[] = {-1, NAN, 0};
    const uint32_t chosen[] = {5, 1, 0, 3};
    assert_true(tune_share(token_scores, 6, chosen, 4) == 0.75);
    assert_true(tune_share(token_scores, 6, chosen, 1) == 0.25);
    assert_true(tune_share(nothing, 3, chosen + 1, 1) == 0);
}

TEST(what_keeps_the_answers_is_first) {
    enum { N = 5 };
    struct tune_filters sets[N] = {{.kept = 0.5, .n_dense = 4, .lost = 1},
                                   {.kept = 1, .n_dense = 6, .lost = 2},
                                   {.kept = 1, .n_dense = 5, .lost = 3},
                                   {.kept = 0.75, .n_dense = 3, .lost = 4},
                                   {.kept = 1, .n_dense = 5, .lost = 5}};
    static const double order[N] = {3, 5, 2, 4, 1};
    tune_filters_rank(sets, N);
    for (uint32_t i = 0; i < N; i++) assert_true(sets[i].lost == order[i]);
}
