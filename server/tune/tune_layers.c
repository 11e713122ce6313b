/* tune_layers.c - the comparison of layers.  It finds the tokens that each layer would choose at
 * the end of a prompt, and the share of later layers' attention that they receive.  The shortlist
 * of filters and the file follow from that.
 *
 *   prompt   0 … │ … n_candidates - 1 │ tail … row      rows: the last, and one in ROW_STEP before
 *
 * Thread: main.  Memory: struct tune_comparison. */
#include "server/tune/tune_job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/tune/tune_pass.h"
#include "engine/tune/tune_state.h"

enum {
    N_ROWS = 8,
    ROW_STEP = 8,       /* the rows then cover a question and the beginning of its answer */
    SELECTED_PART = 16, /* of the prompt: for 32768 tokens, the policy's default of 2048 */
    TAIL_PART = 4,      /* of the selected tokens, as there */
    DENSE_PART = 4      /* of the layers without a window, as in the published sets, but enough for
                           all filters */
};

static uint32_t whole_pages(uint64_t n_tokens) {
    return max_u32((uint32_t)round_up(n_tokens, PAGE_TOKENS), PAGE_TOKENS);
}

struct kv_choice tune_layers_choice(const struct tune *t, uint32_t n_tokens) {
    const uint32_t n_selected =
        whole_pages(t->plan->n_selected ? t->plan->n_selected : n_tokens / SELECTED_PART);
    return (struct kv_choice){.mechanism = KV_SELECTING,
                              .n_selected = n_selected,
                              .n_tail = whole_pages(n_selected / TAIL_PART),
                              .on_device = true};
}

/* ---- memory ---- */

static uint32_t dense_bound(const struct tune *t) {
    const uint32_t needed = (uint32_t)(t->plan->max_filters * (1 + t->plan->n_wait));
    if (t->plan->n_dense) return (uint32_t)t->plan->n_dense;
    return max_u32((uint32_t)div_up(tune_n_full_attention(t), DENSE_PART), needed);
}

int tune_layers_open(struct tune *t, struct error *err) {
    struct tune_comparison *c = &t->comparison;
    const size_t n_layers = t->model.n_attention;
    if (!t->finds_filters) return 0;
    c->max_dense = dense_bound(t);
    if (c->max_dense < 1 + t->plan->n_wait)
        return error_set(err, ERR_INVALID,
                         "--dense-layers must be at least %" PRIu64 " for one filter",
                         1 + t->plan->n_wait);
    c->max_selected = tune_layers_choice(t, t->longest).n_selected;
    c->chosen = calloc(n_layers * N_ROWS * c->max_selected, sizeof(*c->chosen));
    c->token_scores = calloc(t->longest, sizeof(*c->token_scores));
    c->similarity = calloc(n_layers * n_layers, sizeof(*c->similarity));
    return c->chosen && c->token_scores && c->similarity
               ? 0
               : error_set(err, ERR_NOMEM, "tune: no memory for the tokens that layers choose");
}

void tune_layers_close(struct tune *t) {
    free(t->comparison.chosen);
    free(t->comparison.token_scores);
    free(t->comparison.similarity);
}

/* ---- measurement ---- */

static uint32_t *chosen_by(const struct tune *t, uint32_t layer, uint32_t i) {
    return t->comparison.chosen + ((size_t)layer * N_ROWS + i) * t->comparison.max_selected;
}

/* Adds the similarity that row i of N_ROWS shows. */
static int compare_row(struct tune *t, uint32_t sample, uint32_t layer, uint32_t i,
                       struct error *err) {
    const struct kv_choice choice =
        tune_layers_choice(t, t->lengths.sizes[sample / t->plan->n_samples]);
    const uint32_t n_layers = t->model.n_attention, row = (uint32_t)t->prompt.n - 1 - i * ROW_STEP,
                   n_selected = choice.n_selected, n_tail = choice.n_tail;
    const struct tune_look look = {.row = row,
                                   .n_selected = n_selected,
                                   .n_candidates = (row + 1 - n_tail) / PAGE_TOKENS * PAGE_TOKENS,
                                   .chosen = chosen_by(t, layer, i),
                                   .token_scores = t->comparison.token_scores};
    if (t->prompt.n < N_ROWS * ROW_STEP + n_tail + n_selected + PAGE_TOKENS)
        return error_set(err, ERR_INVALID,
                         "--selected: a prompt of %zu tokens is too short to choose %" PRIu32
                         " tokens",
                         t->prompt.n, n_selected);
    const int rc = tune_pass_select(t->pass, &look, err);
    double *similarity = tune_results_similarity(&t->results, sample);
    for (uint32_t l = 0; l <= layer && !rc; l++)
        if (!tune_has_window(t, l))
            similarity[(size_t)l * n_layers + layer] +=
                tune_share(look.token_scores, look.n_candidates, chosen_by(t, l, i), n_selected) /
                N_ROWS;
    return rc;
}

int tune_layers_compare(struct tune *t, uint32_t sample, uint32_t layer, struct error *err) {
    int rc = 0;
    for (uint32_t i = 0; i < N_ROWS && !rc && !tune_has_window(t, layer); i++)
        rc = compare_row(t, sample, layer, i, err);
    if (rc || layer + 1 < t->model.n_attention) return rc;
    t->results.compared[sample] = true;
    return tune_state_add_similarity(t->state, &t->results, sample, err);
}

/* ---- the choice ---- */

static int make_shortlist(struct tune *t, struct error *err) {
    struct tune_comparison *c = &t->comparison;
    const uint32_t n_layers = t->model.n_attention, n_samples = t->results.n_samples;
    const struct tune_filter_goal goal = {.max_filters = (uint32_t)t->plan->max_filters,
                                          .max_dense = c->max_dense,
                                          .n_wait = (uint32_t)t->plan->n_wait,
                                          .windows = t->model.windows};
    for (uint32_t s = 0; s < n_samples; s++)
        for (size_t i = 0; i < (size_t)n_layers * n_layers; i++)
            c->similarity[i] += tune_results_similarity(&t->results, s)[i] / n_samples;
    const int n = tune_filters_choose(c->best, c->similarity, n_layers, &goal, err);
    if (n > 0) c->n_best = (uint32_t)n;
    return n < 0 ? n : 0;
}

/* ---- output ---- */

static uint32_t n_sparse(const struct tune *t, const struct tune_filters *set) {
    return tune_n_full_attention(t) - set->n_dense;
}

static void print_set(struct buffer *out, const struct tune *t, const struct tune_filters *set) {
    for (uint32_t i = 0; i < set->filters.n; i++)
        buffer_printf(out, "%s%" PRIu32, i ? ", " : "", set->filters.layers[i]);
    buffer_printf(
        out, ": %.3f of the answers, %.4f of what %" PRIu32 " sparse layers look at (lost: %.4f)",
        set->kept, 1 - set->lost / n_sparse(t, set), n_sparse(t, set), set->lost);
}

static void note_choice(struct tune_notes *notes, const struct tune *t) {
    const struct tune_comparison *c = &t->comparison;
    struct buffer *next;
    buffer_printf(tune_notes_add(notes, "rows"),
                  "the last of each prompt and %d before it, one in %d; in the longest prompt "
                  "%" PRIu32 " tokens are chosen, and a tail of %" PRIu32 " is not counted",
                  N_ROWS - 1, ROW_STEP, c->max_selected, whole_pages(c->max_selected / TAIL_PART));
    buffer_printf(tune_notes_add(notes, "bounds"),
                  "%" PRIu64 " filters, %" PRIu32 " layers that see everything, %" PRIu64
                  " of them behind each filter",
                  t->plan->max_filters, c->max_dense, t->plan->n_wait);
    tune_trial_describe(tune_notes_add(notes, "answers"));
    print_set(tune_notes_add(notes, "choice"), t, &c->best[0]);
    next = tune_notes_add(notes, "next best");
    for (uint32_t i = 1; i < c->n_best; i++) {
        buffer_puts(next, i > 1 ? "; " : "");
        print_set(next, t, &c->best[i]);
    }
    if (c->n_best == 1) buffer_puts(next, "none");
}

int tune_layers_save(struct tune *t, struct error *err) {
    struct tune_notes notes;
    int rc = make_shortlist(t, err);
    if (!rc) rc = tune_trial(t, err);
    if (rc) return rc;
    tune_notes_init(&notes, t);
    note_choice(&notes, t);
    rc = tune_notes_finish(&notes, err);
    if (!rc)
        rc =
            filters_save(&t->comparison.best[0].filters, notes.notes, notes.n, t->filters_out, err);
    tune_notes_fini(&notes);
    return rc;
}

void tune_layers_print(const struct tune *t) {
    const struct tune_comparison *c = &t->comparison;
    const uint32_t n_layers = t->model.n_attention;
    printf("filter");
    for (uint32_t j = 0; j < n_layers; j++) printf(",%" PRIu32, j);
    for (uint32_t l = 0; l < n_layers; l++) {
        printf("\n%" PRIu32, l);
        for (uint32_t j = 0; j < n_layers; j++)
            if (j < l || tune_has_window(t, l) || tune_has_window(t, j)) printf(",");
            else printf(",%.4f", c->similarity[(size_t)l * n_layers + j]);
    }
    printf("\n");
    for (uint32_t i = 0; i < c->n_best; i++) {
        struct buffer line = {0};
        print_set(&line, t, &c->best[i]);
        fprintf(stderr, "tune: %s %s\n", i ? "next best: filters" : "filters",
                line.failed ? "" : line.data);
        buffer_fini(&line);
    }
    fprintf(stderr, "tune: written to %s\n", t->filters_out);
}
