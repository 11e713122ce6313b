/* tune_filters.c - see tune_filters.h.
 *
 * The loss of a filter depends only on the end of its group, so it is summed beforehand for each
 * filter and end.  Then all sets of filters are tried: four of a hundred layers are four million
 * sums.  A set that already loses more than the worst of the best is not extended, because more
 * layers only add to the loss. */
#include "engine/tune/tune_filters.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/layer_group.h"

double tune_share(const float *token_scores, uint32_t n_scores, const uint32_t *chosen,
                  uint32_t n_chosen) {
    double all = 0, found = 0;
    for (uint32_t i = 0; i < n_scores; i++)
        all += token_scores[i] > 0 ? (double)token_scores[i] : 0;
    for (uint32_t i = 0; i < n_chosen; i++)
        found += token_scores[chosen[i]] > 0 ? (double)token_scores[chosen[i]] : 0;
    return all > 0 ? found / all : 0;
}

struct filter_search {
    const struct tune_filter_goal *goal;
    double *lost;          /* [n_layers][n_layers + 1]: the loss, by filter and end of its group */
    uint32_t *full_before; /* [n_layers + 1]: how many full-attention layers come before */
    uint32_t n_layers, n;
    struct tune_filters *best; /* [n], ascending */
};

static double lost_until(const struct filter_search *s, uint32_t filter, uint32_t end) {
    return s->lost[(size_t)filter * (s->n_layers + 1) + end];
}

static void sum_losses(struct filter_search *s, const double *similarity) {
    const uint32_t *windows = s->goal->windows, n_layers = s->n_layers;
    for (uint32_t l = 0; l < n_layers; l++)
        s->full_before[l + 1] = s->full_before[l] + !layer_has_window(windows, l);
    for (uint32_t f = 0; f < n_layers; f++) {
        double *of = s->lost + (size_t)f * (n_layers + 1);
        for (uint32_t j = f + 1 + s->goal->n_wait; j < n_layers; j++)
            of[j + 1] =
                of[j] +
                (layer_has_window(windows, j) ? 0 : 1 - similarity[(size_t)f * n_layers + j]);
    }
}

/* Counts the full-attention layers in [first, end). */
static uint32_t n_full(const struct filter_search *s, uint32_t first, uint32_t end) {
    return first < end ? s->full_before[end] - s->full_before[first] : 0;
}

/* Tells whether some layer before `end` would follow the filter. */
static bool is_followed(const struct filter_search *s, uint32_t filter, uint32_t end) {
    return n_full(s, filter + 1 + s->goal->n_wait, end) > 0;
}

static void keep(struct filter_search *s, const struct tune_filters *set) {
    uint32_t at = s->n;
    while (at > 0 && set->lost < s->best[at - 1].lost) at--;
    if (at == TUNE_N_CHOICES) return;
    if (s->n < TUNE_N_CHOICES) s->n++;
    memmove(&s->best[at + 1], &s->best[at], (s->n - 1 - at) * sizeof(*set));
    s->best[at] = *set;
}

static bool is_hopeless(const struct filter_search *s, const struct tune_filters *set) {
    return set->n_dense > s->goal->max_dense ||
           (s->n == TUNE_N_CHOICES && set->lost >= s->best[TUNE_N_CHOICES - 1].lost);
}

/* Tries every set that extends `set`, whose `lost` does not include its last filter's loss. */
static void extend(struct filter_search *s, const struct tune_filters *set) {
    const uint32_t n = set->filters.n, last = n ? set->filters.layers[n - 1] : 0,
                   n_wait = s->goal->n_wait;
    if (n > 0) {
        struct tune_filters whole = *set;
        whole.lost += lost_until(s, last, s->n_layers);
        keep(s, &whole);
    }
    if (n == s->goal->max_filters) return;
    for (uint32_t f = n ? last + 1 : 0; is_followed(s, f, s->n_layers); f++) {
        struct tune_filters next = *set;
        if (n_full(s, f, f + 1) == 0 || (n > 0 && !is_followed(s, last, f))) continue;
        next.filters.layers[next.filters.n++] = f;
        next.n_dense += n_full(s, n ? f : 0, f + 1 + n_wait);
        next.lost += n ? lost_until(s, last, f) : 0;
        if (!is_hopeless(s, &next)) extend(s, &next);
    }
}

int tune_filters_choose(struct tune_filters best[TUNE_N_CHOICES], const double *similarity,
                        uint32_t n_layers, const struct tune_filter_goal *goal, struct error *err) {
    struct filter_search search = {.goal = goal, .n_layers = n_layers, .best = best};
    const struct tune_filters none = {.filters = {.n_wait = goal->n_wait}};
    search.lost = calloc((size_t)n_layers * (n_layers + 1), sizeof(*search.lost));
    search.full_before = calloc((size_t)n_layers + 1, sizeof(*search.full_before));
    const bool has_room = search.lost && search.full_before;
    if (has_room) {
        sum_losses(&search, similarity);
        extend(&search, &none);
    }
    free(search.lost);
    free(search.full_before);
    return has_room ? (int)search.n
                    : error_set(err, ERR_NOMEM, "tune: no memory for %u layers", n_layers);
}

/* Compares by `kept`; of two sets that keep the same, the one with more sparse layers is better. */
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
