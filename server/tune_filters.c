/* tune_filters.c - see tune_filters.h.
 *
 * What a filter loses depends on where its group ends and on nothing before it, so it is summed
 * beforehand, for each filter and end.  Then all sets of filters are tried: four of a hundred
 * layers are four million sums.  A set that has lost more than the worst of the best already is
 * left, since more layers only lose more. */
#include "server/tune_filters.h"

#include <stdlib.h>
#include <string.h>

#include "engine/error.h"

double tune_share(const float *worth, uint32_t n_worth, const uint32_t *chosen, uint32_t n_chosen) {
    double all = 0, found = 0;
    for (uint32_t i = 0; i < n_worth; i++) all += worth[i] > 0 ? (double)worth[i] : 0;
    for (uint32_t i = 0; i < n_chosen; i++)
        found += worth[chosen[i]] > 0 ? (double)worth[chosen[i]] : 0;
    return all > 0 ? found / all : 0;
}

struct search {
    const struct tune_filter_goal *goal;
    const double *lost; /* [n_layers][n_layers + 1]: of a filter whose group ends there */
    uint32_t n_layers, n;
    struct tune_filters *best; /* [n], ascending */
};

static double lost_until(const struct search *s, uint32_t filter, uint32_t end) {
    return s->lost[(size_t)filter * (s->n_layers + 1) + end];
}

static double *sum_losses(const double *similarity, uint32_t n_layers, uint32_t n_wait) {
    double *lost = calloc((size_t)n_layers * (n_layers + 1), sizeof(*lost));
    for (uint32_t f = 0; lost && f < n_layers; f++) {
        double *of = lost + (size_t)f * (n_layers + 1);
        for (uint32_t j = f + 1 + n_wait; j < n_layers; j++)
            of[j + 1] = of[j] + 1 - similarity[(size_t)f * n_layers + j];
    }
    return lost;
}

static void keep(struct search *s, const struct tune_filters *set) {
    uint32_t at = s->n;
    while (at > 0 && set->lost < s->best[at - 1].lost) at--;
    if (at == TUNE_N_CHOICES) return;
    if (s->n < TUNE_N_CHOICES) s->n++;
    memmove(&s->best[at + 1], &s->best[at], (s->n - 1 - at) * sizeof(*set));
    s->best[at] = *set;
}

static bool is_hopeless(const struct search *s, const struct tune_filters *set) {
    return set->n_dense > s->goal->max_dense ||
           (s->n == TUNE_N_CHOICES && set->lost >= s->best[TUNE_N_CHOICES - 1].lost);
}

/* set: without what its last filter loses. */
static void extend(struct search *s, const struct tune_filters *set) {
    const uint32_t n = set->filters.n, last = n ? set->filters.layers[n - 1] : 0,
                   n_wait = s->goal->n_wait, first = n ? last + n_wait + 2 : 0;
    if (n > 0) {
        struct tune_filters whole = *set;
        whole.lost += lost_until(s, last, s->n_layers);
        keep(s, &whole);
    }
    if (n == s->goal->max_filters) return;
    for (uint32_t f = first; f + n_wait + 1 < s->n_layers; f++) {
        struct tune_filters next = *set;
        next.filters.layers[next.filters.n++] = f;
        next.n_dense += 1 + n_wait + (n ? 0 : f);
        next.lost += n ? lost_until(s, last, f) : 0;
        if (!is_hopeless(s, &next)) extend(s, &next);
    }
}

int tune_filters_choose(struct tune_filters best[TUNE_N_CHOICES], const double *similarity,
                        uint32_t n_layers, const struct tune_filter_goal *goal,
                        struct error *err) {
    double *lost = sum_losses(similarity, n_layers, goal->n_wait);
    struct search search = {.goal = goal, .lost = lost, .n_layers = n_layers, .best = best};
    const struct tune_filters none = {.filters = {.n_wait = goal->n_wait}};
    if (!lost) return error_set(err, ERR_NOMEM, "tune: no memory for %u layers", n_layers);
    extend(&search, &none);
    free(lost);
    return (int)search.n;
}

/* Of two that keep as much, the one with more sparse layers is worth more. */
static bool is_better(const struct tune_filters *a, const struct tune_filters *b) {
    return a->kept > b->kept || (a->kept == b->kept && a->n_dense < b->n_dense);
}

void tune_filters_rank(struct tune_filters *sets, uint32_t n) {
    for (uint32_t i = 1; i < n; i++) {
        const struct tune_filters set = sets[i];
        uint32_t at = i;
        for (; at > 0 && is_better(&set, &sets[at - 1]); at--) sets[at] = sets[at - 1];
        sets[at] = set;
    }
}
