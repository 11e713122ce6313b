/* tune_job.h - a search under way: what tune.c sets up and runs, tune_ladder.c ends, and
 * tune_output.c tells of.
 *
 * Thread: main.  Memory: tune.c's. */
#ifndef SERVER_TUNE_TUNE_JOB_H
#define SERVER_TUNE_TUNE_JOB_H

#include <limits.h>

#include "engine/engine.h"
#include "engine/model/model.h"
#include "engine/sparsity/patterns.h"
#include "engine/sparsity/provenance.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tune/tune_filters.h"
#include "engine/tune/tune_search.h"
#include "server/bench/progress.h"
#include "server/json/buffer.h"
#include "server/tune/tune.h"
#include "server/tune/tune_prompts.h"

struct tune_pass;
struct tune_state;

/* Which tokens the layers of a prompt choose, and of all prompts what came of it. */
struct tune_comparison {
    uint32_t max_selected; /* of any prompt; 0: layers are not compared */
    uint32_t max_dense;
    uint32_t *chosen;   /* [n_layers][rows that are looked at][max_selected], of one prompt */
    float *worth;       /* [longest] */
    double *similarity; /* [n_layers][n_layers], the mean of all samples; with a window: 0 */
    struct tune_filters best[TUNE_N_CHOICES];
    uint32_t n_best;
};

struct tune {
    const struct tune_plan *plan;
    const struct options *options;
    const char *model_dir, *model_name;
    struct backend *be;
    struct engine_config config;
    struct model_config model;
    struct bench_sizes lengths;
    uint32_t longest, shortest, top; /* top: of the ladder */
    bool finds_patterns, finds_filters;
    char out[PATH_MAX], filters_out[PATH_MAX], state_path[PATH_MAX];
    struct tokenizer *tokenizer; /* NULL: weights are made up, and so are tokens */
    char *prose;                 /* NULL: the model has none */
    struct tune_pass *pass; /* NULL: layers have been measured */
    struct attn_pattern candidates[TUNE_MAX_CANDIDATES];
    struct tune_results results;
    struct tune_state *state;
    struct progress progress;
    struct token_list prompt;
    struct patterns patterns; /* what was chosen */
    struct tune_rung rungs[TUNE_MAX_RUNGS]; /* by length */
    uint32_t n_rungs;
    struct tune_comparison comparison;
};

/* Layers with a window take no part: they are dense, neither filters nor sparse. */
static inline bool tune_has_window(const struct tune *tune, uint32_t layer) {
    return layer_has_window(tune->model.windows, layer);
}

uint32_t tune_n_full_attention(const struct tune *tune); /* the others */

/* Means over heads, and the worst head, of layers without a window. */
struct tune_summary {
    double recall, worst, cost;
};

/* What the head gets, by all that was measured. */
struct tune_choice tune_choice_of(const struct tune *tune, uint32_t layer, uint32_t head);

/* Makes t->prompt; the number tells it from others of its kind. */
int tune_make_prompt(struct tune *t, enum tune_text kind, uint64_t number, uint32_t n_tokens,
                     struct error *err);

/* Finds t->rungs; nothing else of the search may hold a device's memory.  None: every head is
 * dense. */
int tune_climb_ladder(struct tune *t, struct error *err);
/* What is expected of it, in runs of a candidate on the longest prompt. */
double tune_ladder_work(const struct tune *t);

/* All that a measurement depends on, in a line. */
void tune_print_settings(struct buffer *out, const struct tune *tune);
/* What each head got, to stdout. */
void tune_print_heads(const struct tune *tune);
void tune_print_summary(const struct tune *tune, const struct tune_summary *sum);
/* Writes the pattern file, with what it was found by. */
int tune_save(struct tune *tune, const struct tune_summary *sum, struct error *err);

enum { TUNE_MAX_NOTES = 11 };

/* What a file says of its making. */
struct tune_notes {
    struct buffer texts[TUNE_MAX_NOTES];
    struct provenance_note notes[TUNE_MAX_NOTES];
    size_t n;
};

/* Begins with what all files of a search say. */
void tune_notes_init(struct tune_notes *notes, const struct tune *tune);
struct buffer *tune_notes_add(struct tune_notes *notes, const char *name); /* the text to write */
int tune_notes_finish(struct tune_notes *notes, struct error *err); /* notes->notes are there */
void tune_notes_fini(struct tune_notes *notes);

/* tune_layers.c: the comparison of layers. */
int tune_layers_open(struct tune *tune, struct error *err);
void tune_layers_close(struct tune *tune);
/* Of the sample's prompt, in the layer that was entered last; layers come in order, from 0. */
int tune_layers_compare(struct tune *tune, uint32_t sample, uint32_t layer, struct error *err);
/* How a text is read whose prompt has so many tokens: what filters choose of it, and the tail. */
struct kv_choice tune_layers_choice(const struct tune *tune, uint32_t n_tokens);
/* All samples are compared: makes the shortlist, tries it, and writes the file of the best.
 * Nothing else of the search may hold a device's memory. */
int tune_layers_save(struct tune *tune, struct error *err);
void tune_layers_print(const struct tune *tune); /* the matrix to stdout, a summary to stderr */

/* tune_trial.c: answers with each set of the shortlist, which is sorted by them. */
int tune_trial(struct tune *tune, struct error *err);
void tune_trial_describe(struct buffer *out);
/* What is expected of it, like tune_ladder_work(). */
double tune_trial_work(const struct tune *tune);

#endif
