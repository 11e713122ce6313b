/* tune_search.c - see tune_search.h. */
#include "engine/tune/tune_search.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/pages.h"

/* The sizes of the published search and of its files, and smaller numbers of pages. */
static const struct attn_pattern candidates[] = {
    {PATTERN_A_SHAPE, 100, 800},          {PATTERN_A_SHAPE, 1024, 4096},
    {PATTERN_VERTICAL_SLASH, 30, 800},    {PATTERN_VERTICAL_SLASH, 100, 750},
    {PATTERN_VERTICAL_SLASH, 500, 700},   {PATTERN_VERTICAL_SLASH, 30, 2048},
    {PATTERN_VERTICAL_SLASH, 100, 1800},  {PATTERN_VERTICAL_SLASH, 500, 1500},
    {PATTERN_VERTICAL_SLASH, 3000, 200},  {PATTERN_VERTICAL_SLASH, 3500, 100},
    {PATTERN_VERTICAL_SLASH, 1000, 4096}, {PATTERN_VERTICAL_SLASH, 1000, 6096},
    {PATTERN_BLOCK_SPARSE, 25, 0},        {PATTERN_BLOCK_SPARSE, 50, 0},
    {PATTERN_BLOCK_SPARSE, 100, 0},
};
enum { N_CANDIDATES = sizeof(candidates) / sizeof(*candidates), FIRST_ROW = 2500 };
_Static_assert(sizeof(candidates) <= TUNE_MAX_CANDIDATES * sizeof(*candidates),
               "all of them are tried at once");

static uint64_t pattern_size(const struct attn_pattern *p) {
    return p->kind == PATTERN_BLOCK_SPARSE ? (uint64_t)p->p1 * PAGE_TOKENS
                                           : (uint64_t)p->p1 + p->p2;
}

uint32_t tune_candidates(uint32_t n_tokens, struct attn_pattern out[TUNE_MAX_CANDIDATES]) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < N_CANDIDATES; i++)
        if (pattern_size(&candidates[i]) < n_tokens) out[n++] = candidates[i];
    return n;
}

uint32_t tune_first_row(uint32_t n_tokens) {
    return n_tokens / 4 < FIRST_ROW ? n_tokens / 4 : FIRST_ROW;
}

void tune_add_recall(double *sums, const float *sparse, const float *dense, uint32_t n_rows,
                     uint32_t n_heads) {
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t h = 0; h < n_heads; h++) {
            const size_t i = (size_t)r * n_heads + h;
            const float recall = exp2f(sparse[i] - dense[i]);
            /* The sum of nearly all keys may come out a little above 1; NaN counts as 0. */
            if (recall > 0) sums[h] += recall < 1 ? recall : 1;
        }
}

/* ---- results ---- */

static void set_patterns(struct tune_results *r, const struct attn_pattern *candidates,
                         bool fitted) {
    for (uint32_t l = 0; l < r->n_layers; l++) {
        r->fitted[l] = fitted;
        for (uint32_t i = 0; i < r->n_candidates * r->n_heads; i++)
            tune_results_patterns(r, l, 0)[i] = candidates[i / r->n_heads];
    }
}

int tune_results_init(struct tune_results *out, uint32_t n_samples, uint32_t n_layers,
                      uint32_t n_heads, uint32_t n_candidates,
                      const struct attn_pattern *candidates, bool fitted, struct error *err) {
    const size_t n = (size_t)n_samples * n_layers, per_head = (size_t)n_candidates * n_heads;
    const size_t bytes = 2 * (n_candidates * sizeof(double) + per_head * sizeof(float));
    *out = (struct tune_results){.n_samples = n_samples,
                                 .n_layers = n_layers,
                                 .n_heads = n_heads,
                                 .n_candidates = n_candidates};
    out->layers = calloc(n, sizeof(*out->layers));
    out->similarity = calloc(n * n_layers, sizeof(*out->similarity));
    out->compared = calloc(n_samples, sizeof(*out->compared));
    out->arena = calloc(n, round_up(bytes + 1, sizeof(double))); /* never of no bytes */
    out->patterns = calloc(n_layers * per_head + 1, sizeof(*out->patterns));
    out->fitted = calloc(n_layers, sizeof(*out->fitted));
    if (!out->layers || !out->arena || !out->similarity || !out->compared || !out->patterns ||
        !out->fitted) {
        tune_results_fini(out);
        return error_set(err, ERR_NOMEM, "tune: no memory for the results of %zu layers", n);
    }
    char *at = out->arena;
    for (size_t i = 0; i < n; i++) {
        struct tune_layer *layer = &out->layers[i];
        layer->index_s = (double *)at;
        layer->attention_s = layer->index_s + n_candidates;
        layer->recall = (float *)(layer->attention_s + n_candidates);
        layer->density = layer->recall + per_head;
        at = (char *)(layer->density + per_head);
    }
    set_patterns(out, candidates, fitted);
    return 0;
}

void tune_results_fini(struct tune_results *results) {
    free(results->layers);
    free(results->arena);
    free(results->similarity);
    free(results->compared);
    free(results->patterns);
    free(results->fitted);
    *results = (struct tune_results){0};
}

struct tune_layer *tune_results_at(const struct tune_results *results, uint32_t sample,
                                   uint32_t layer) {
    assert(sample < results->n_samples && layer < results->n_layers);
    return &results->layers[(size_t)sample * results->n_layers + layer];
}

struct attn_pattern *tune_results_patterns(const struct tune_results *results, uint32_t layer,
                                           uint32_t candidate) {
    const size_t first = (size_t)layer * results->n_candidates + candidate;
    return results->patterns + first * results->n_heads;
}

double *tune_results_similarity(const struct tune_results *results, uint32_t sample) {
    assert(sample < results->n_samples);
    return results->similarity + (size_t)sample * results->n_layers * results->n_layers;
}

struct tune_finding tune_finding_of(const struct tune_results *r, uint32_t candidate) {
    struct tune_finding found = {0};
    uint64_t n = 0;
    for (size_t l = 0; l < (size_t)r->n_samples * r->n_layers; l++)
        for (uint32_t h = 0; h < r->n_heads && r->layers[l].done; h++, n++) {
            const size_t i = (size_t)candidate * r->n_heads + h;
            found.recall += r->layers[l].recall[i];
            found.density += r->layers[l].density[i];
        }
    return (struct tune_finding){found.recall / (double)n, found.density / (double)n};
}

/* ---- choice ---- */

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t n) {
    qsort(values, n, sizeof(*values), compare_doubles);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static double head_cost(const struct tune_results *r, const struct tune_layer *layer,
                        uint32_t candidate, uint32_t head) {
    const float *density = layer->density + (size_t)candidate * r->n_heads;
    double all = 0;
    for (uint32_t h = 0; h < r->n_heads; h++) all += density[h];
    const double attention = layer->attention_s[candidate] * (all > 0 ? density[head] / all : 0);
    const double index = layer->index_s[candidate] / r->n_heads;
    return (attention + index) / (layer->dense_s / r->n_heads);
}

/* Returns the measurements of a head's candidate over all samples: recall, density, and the median
 * cost. */
static struct tune_choice judge(const struct tune_results *r, uint32_t layer, uint32_t head,
                                uint32_t candidate) {
    struct tune_choice choice = {.candidate = (int32_t)candidate, .worst_recall = 1};
    double costs[TUNE_MAX_SAMPLES];
    assert(r->n_samples > 0 && r->n_samples <= TUNE_MAX_SAMPLES);
    for (uint32_t s = 0; s < r->n_samples; s++) {
        const struct tune_layer *at = tune_results_at(r, s, layer);
        const size_t i = (size_t)candidate * r->n_heads + head;
        assert(at->done);
        choice.mean_recall += at->recall[i] / r->n_samples;
        if (at->recall[i] < choice.worst_recall) choice.worst_recall = at->recall[i];
        choice.density += at->density[i] / r->n_samples;
        costs[s] = head_cost(r, at, candidate, head);
    }
    choice.cost = median(costs, r->n_samples);
    return choice;
}

/* Compares by cost if the objective is recall and both candidates reach the target.  Otherwise one
 * that reaches it is better, and then the one of higher recall; TUNE_FLOPS compares by recall
 * only. */
static bool is_better(const struct tune_choice *a, const struct tune_choice *b,
                      const struct tune_goal *goal) {
    if (goal->objective == TUNE_FLOPS) return a->worst_recall > b->worst_recall;
    const bool a_reaches = a->worst_recall >= goal->target,
               b_reaches = b->worst_recall >= goal->target;
    if (a_reaches != b_reaches) return a_reaches;
    return a_reaches ? a->cost < b->cost : a->worst_recall > b->worst_recall;
}

/* The highest cost of a candidate that may be chosen.  A smaller gain is within the noise of its
 * measurement, and no reason to leave keys out. */
static const double MAX_COST = 0.95;

static bool may_be_chosen(const struct tune_results *r, const struct tune_goal *goal,
                          const struct tune_choice *choice, uint32_t layer, uint32_t head) {
    if (choice->worst_recall < goal->floor) return false;
    if (goal->objective == TUNE_RECALL) return choice->cost <= MAX_COST;
    return tune_results_patterns(r, layer, (uint32_t)choice->candidate)[head].kind != PATTERN_DENSE;
}

struct tune_choice tune_choose(const struct tune_results *results, const struct tune_goal *goal,
                               uint32_t layer, uint32_t head) {
    struct tune_choice best = TUNE_DENSE;
    for (uint32_t c = 0; c < results->n_candidates; c++) {
        const struct tune_choice choice = judge(results, layer, head, c);
        if (!may_be_chosen(results, goal, &choice, layer, head)) continue;
        if (best.candidate < 0 || is_better(&choice, &best, goal)) best = choice;
    }
    return best;
}

/* ---- the ladder ---- */

enum {
    ENOUGH_WINS = 2, /* longer prompts gain more, so no more are measured */
    N_HALVINGS = 3
};

static bool has_won(const struct tune_rung *rung) {
    return rung->sparse_s <= rung->dense_s;
}

/* Returns the first rung from which on sparse prompts were no slower, or n if there is none. */
static uint32_t first_win(const struct tune_rung *rungs, uint32_t n) {
    uint32_t first = n;
    while (first > 0 && has_won(&rungs[first - 1])) first--;
    return first;
}

/* Returns twice n_tokens, at most `top`. */
static uint32_t double_length(uint32_t n_tokens, uint32_t top) {
    return n_tokens > top / 2 ? top : 2 * n_tokens;
}

static bool is_halfway(uint32_t n_tokens, uint32_t top) {
    uint32_t length = TUNE_FIRST_RUNG;
    while (length < n_tokens) length = double_length(length, top);
    return length != n_tokens;
}

/* Returns the length halfway between the last loss and the first win, or 0 if no more are
 * needed. */
static uint32_t halve(const struct tune_rung *rungs, uint32_t n, uint32_t top) {
    const uint32_t first = first_win(rungs, n);
    uint32_t n_halvings = 0;
    for (uint32_t i = 0; i < n; i++) n_halvings += is_halfway(rungs[i].n_tokens, top);
    if (first == 0 || first == n || n_halvings == N_HALVINGS) return 0;
    const uint32_t slow = rungs[first - 1].n_tokens, fast = rungs[first].n_tokens;
    const uint32_t middle = (uint32_t)round_up(slow + (fast - slow) / 2, SPARSE_TILE);
    return middle < fast ? middle : 0;
}

uint32_t tune_next_rung(const struct tune_rung *rungs, uint32_t n, uint32_t top) {
    if (n == TUNE_MAX_RUNGS) return 0;
    if (n == 0) return min_u32(TUNE_FIRST_RUNG, top);
    const uint32_t last = rungs[n - 1].n_tokens;
    if (last >= top || n - first_win(rungs, n) >= ENOUGH_WINS) return halve(rungs, n, top);
    return double_length(last, top);
}

void tune_insert_rung(struct tune_rung *rungs, uint32_t n, const struct tune_rung *rung) {
    uint32_t at = n;
    for (; at > 0 && rungs[at - 1].n_tokens > rung->n_tokens; at--) rungs[at] = rungs[at - 1];
    rungs[at] = *rung;
}

uint32_t tune_break_even(const struct tune_rung *rungs, uint32_t n) {
    const uint32_t first = first_win(rungs, n);
    return first == n ? TUNE_NEVER : (uint32_t)round_up(rungs[first].n_tokens, SPARSE_TILE);
}
