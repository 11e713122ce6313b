/* tune_output.c - prints what a search has found: the pattern file and its provenance, a row of CSV
 * for each head, and a summary to read.
 *
 * Thread: main.  Memory: none that outlives a call. */
#include "server/tune/tune_job.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "engine/base/error.h"
#include "server/bench/report.h"
#include "server/json/buffer.h"
#include "server/settings/build_info.h"
#include "server/settings/options.h"

static void print_pattern(struct buffer *out, const struct attn_pattern *p) {
    buffer_printf(out, "%s %" PRIu32 " %" PRIu32, pattern_kind_name(p->kind), p->p1, p->p2);
}

static void print_lengths(struct buffer *out, const struct tune *t) {
    for (uint32_t i = 0; i < t->lengths.n; i++)
        buffer_printf(out, "%s%" PRIu32, i ? ", " : "", t->lengths.sizes[i]);
}

static void print_candidates(struct buffer *out, const struct tune *t) {
    for (uint32_t i = 0; i < t->results.n_candidates; i++) {
        buffer_puts(out, i ? ", " : "");
        print_pattern(out, &t->candidates[i]);
    }
}

void tune_print_settings(struct buffer *out, const struct tune *t) {
    buffer_printf(out,
                  "quire %s; %s, %" PRIu32 " layers, %" PRIu32 " heads; %s; "
                  "rows %" PRIu32 "; kv %d; lines %" PRIu32 "; seed %" PRIu64 "; samples %" PRIu64
                  "; lengths ",
                  build_info.version, t->model_name, t->model.n_attention, t->model.n_heads,
                  t->be->description, t->config.max_batched_tokens, (int)t->config.kv_format,
                  (uint32_t)t->options->synthetic_lines, t->plan->seed, t->plan->n_samples);
    print_lengths(out, t);
    buffer_printf(out, "; selected %" PRIu64 "; ", t->plan->n_selected);
    print_candidates(out, t);
    if (t->plan->objective == TUNE_FLOPS) buffer_printf(out, "; budget %.17g", t->plan->budget);
}

/* ---- the file ---- */

static void print_rungs(struct buffer *out, const struct tune *t) {
    buffer_puts(out, "prompts by tokens, dense and sparse: ");
    if (t->n_rungs == 0)
        buffer_puts(out, tune_is_all_dense(t) ? "none, because every head is dense"
                                              : "none: the search has not come so far");
    for (uint32_t i = 0; i < t->n_rungs; i++)
        buffer_printf(out, "%s%" PRIu32 ": %.4g and %.4g s", i ? "; " : "", t->rungs[i].n_tokens,
                      t->rungs[i].dense_s, t->rungs[i].sparse_s);
}

static void print_prompts(struct buffer *out, const struct tune *t) {
    buffer_printf(out, "%" PRIu64 " of each length", t->plan->n_samples);
    for (uint32_t i = 0; t->tokenizer && i < TUNE_N_TEXTS && i < t->plan->n_samples; i++)
        buffer_printf(out, ", %s", tune_text_name(i));
    if (!t->tokenizer) buffer_puts(out, " of random tokens");
    buffer_printf(out, "; seed %" PRIu64, t->plan->seed);
}

static void print_date(struct buffer *out) {
    char date[32];
    const time_t now = time(NULL);
    struct tm utc;
    strftime(date, sizeof(date), "%Y-%m-%d", gmtime_r(&now, &utc));
    buffer_puts(out, date);
}

struct buffer *tune_notes_add(struct tune_notes *notes, const char *name) {
    assert(notes->n < TUNE_MAX_NOTES);
    notes->notes[notes->n].name = name;
    return &notes->texts[notes->n++];
}

void tune_notes_init(struct tune_notes *notes, const struct tune *t) {
    *notes = (struct tune_notes){0};
    buffer_printf(tune_notes_add(notes, "model"), "%s, %" PRIu32 " layers of %" PRIu32 " heads",
                  t->model_name, t->model.n_attention, t->model.n_heads);
    buffer_printf(tune_notes_add(notes, "version"), "quire %s", build_info.version);
    buffer_printf(tune_notes_add(notes, "device"), "%s: %s", t->be->name, t->be->description);
    print_date(tune_notes_add(notes, "date"));
    print_lengths(tune_notes_add(notes, "lengths"), t);
    print_prompts(tune_notes_add(notes, "prompts"), t);
}

int tune_notes_finish(struct tune_notes *notes, struct error *err) {
    bool failed = false;
    for (size_t i = 0; i < notes->n; i++) {
        failed |= notes->texts[i].failed;
        notes->notes[i].text = notes->texts[i].data;
    }
    return failed ? error_set(err, ERR_NOMEM, "tune: no memory") : 0;
}

void tune_notes_fini(struct tune_notes *notes) {
    for (size_t i = 0; i < notes->n; i++) buffer_fini(&notes->texts[i]);
}

static void note_objective(struct tune_notes *notes, const struct tune *t) {
    struct buffer *objective = tune_notes_add(notes, "objective");
    if (t->plan->objective == TUNE_FLOPS)
        buffer_printf(objective,
                      "flops: each candidate is sized for each head to visit at most %.3g of the "
                      "pairs of the first prompt of %" PRIu32
                      " tokens; a head has the candidate with the best recall in its worst prompt",
                      t->plan->budget, t->longest);
    else buffer_puts(objective, "recall: a head has the cheapest candidate with enough recall");
}

static void note_recall(struct buffer *out, const struct tune *t, const struct tune_summary *sum) {
    buffer_puts(out, "asked for: ");
    if (t->plan->objective == TUNE_RECALL)
        buffer_printf(out, "%.3g of every prompt, ", t->plan->target);
    buffer_printf(out,
                  "at least %.3g; found: %.4f on average, %.4f in the worst head and prompt. A "
                  "head's score is its mean",
                  t->floor, sum->recall, sum->worst);
}

static void note_patterns(struct tune_notes *notes, const struct tune *t,
                          const struct tune_summary *sum) {
    print_candidates(tune_notes_add(notes, "candidates"), t);
    note_objective(notes, t);
    note_recall(tune_notes_add(notes, "recall"), t, sum);
    tune_describe_loss(tune_notes_add(notes, "held_out"), t);
    print_rungs(tune_notes_add(notes, "break_even"), t);
}

int tune_save(struct tune *t, const struct tune_summary *sum, struct error *err) {
    struct tune_notes notes;
    int rc = 0;
    if (t->n_rungs == 0 && !tune_is_all_dense(t))
        patterns_forget_min_sparse_tokens(&t->patterns, t->be->name);
    else
        rc = patterns_set_min_sparse_tokens(&t->patterns, t->be->name,
                                            tune_break_even(t->rungs, t->n_rungs));
    if (rc)
        return error_set(err, rc, "%.200s: 'min_sparse_tokens' has too many other backends",
                         t->out);
    tune_notes_init(&notes, t);
    note_patterns(&notes, t, sum);
    rc = tune_notes_finish(&notes, err);
    if (!rc) rc = patterns_save(&t->patterns, notes.notes, notes.n, t->out, err);
    tune_notes_fini(&notes);
    return rc;
}

static const char *const names[] = {"layer",       "head",         "pattern", "p1",  "p2",
                                    "mean_recall", "worst_recall", "density", "cost"};
enum { N_COLUMNS = sizeof(names) / sizeof(*names) };

void tune_print_heads(const struct tune *t) {
    const struct report report = {.names = names, .n = N_COLUMNS};
    const uint32_t n_heads = t->model.n_heads, n = t->model.n_attention * n_heads;
    report_begin(&report);
    for (uint32_t i = 0; i < n; i++) {
        char cells[N_COLUMNS][REPORT_CELL];
        const struct tune_choice choice = tune_choice_of(t, i / n_heads, i % n_heads);
        const struct attn_pattern *p = &t->patterns.heads[i];
        snprintf(cells[0], REPORT_CELL, "%" PRIu32, i / n_heads);
        snprintf(cells[1], REPORT_CELL, "%" PRIu32, i % n_heads);
        snprintf(cells[2], REPORT_CELL, "%s", pattern_kind_name(p->kind));
        snprintf(cells[3], REPORT_CELL, "%" PRIu32, p->p1);
        snprintf(cells[4], REPORT_CELL, "%" PRIu32, p->p2);
        snprintf(cells[5], REPORT_CELL, "%.4f", choice.mean_recall);
        snprintf(cells[6], REPORT_CELL, "%.4f", choice.worst_recall);
        snprintf(cells[7], REPORT_CELL, "%.3f", choice.density);
        snprintf(cells[8], REPORT_CELL, "%.3f", choice.cost);
        report_row(&report, (const char(*)[REPORT_CELL])cells);
    }
}

/* Prints the recall each candidate would reach on every head.  The families can then be compared,
 * and with --synthetic-lines the gain from lines found in the prompt. */
static void print_families(const struct tune *t) {
    for (uint32_t c = 0; c < t->results.n_candidates; c++) {
        const struct tune_finding found = tune_finding_of(&t->results, c);
        const struct attn_pattern *p = &t->candidates[c];
        fprintf(stderr,
                "tune: %s %" PRIu32 " %" PRIu32 "%s on every head: recall %.4f, density %.4f\n",
                pattern_kind_name(p->kind), p->p1, p->p2,
                t->plan->objective == TUNE_FLOPS ? ", fitted," : "", found.recall, found.density);
    }
}

void tune_print_summary(const struct tune *t, const struct tune_summary *sum) {
    uint32_t counts[PATTERN_N_KINDS] = {0};
    const size_t n = (size_t)t->model.n_attention * t->model.n_heads;
    for (size_t i = 0; i < n; i++) counts[t->patterns.heads[i].kind]++;
    print_families(t);
    for (unsigned kind = 0; kind < PATTERN_FILTERS; kind++) /* files have no heads of that kind */
        fprintf(stderr, "tune: %" PRIu32 " heads %s\n", counts[kind], pattern_kind_name(kind));
    fprintf(stderr, "tune: recall %.4f on average, %.4f at worst; attention takes %.2f of dense\n",
            sum->recall, sum->worst, sum->cost);
    struct buffer loss = {0};
    tune_describe_loss(&loss, t);
    if (!loss.failed) fprintf(stderr, "tune: held-out text: %s\n", loss.data);
    buffer_fini(&loss);
    if (tune_break_even(t->rungs, t->n_rungs) == TUNE_NEVER)
        fprintf(stderr, "tune: dense prompts are faster up to %" PRIu32 " tokens\n", t->top);
    else
        fprintf(stderr, "tune: sparse prompts are not slower from %" PRIu32 " tokens on\n",
                tune_break_even(t->rungs, t->n_rungs));
    fprintf(stderr, "tune: written to %s\n", t->out);
}
