/* tune_job.h - a running search: tune.c sets it up and runs it, tune_ladder.c ends it, and
 * tune_output.c prints it.
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
#include "server/json/buffer.h"
#include "server/settings/progress.h"
#include "server/tune/tune.h"
#include "server/tune/tune_prompts.h"

struct tune_pass;
struct tune_state;
struct timed_engine;

/* The tokens that layers choose in one prompt, and what all prompts have shown. */
struct tune_comparison {
    uint32_t max_selected; /* of any prompt; 0: layers are not compared */
    uint32_t max_dense;
    uint32_t *chosen;    /* [n_layers][compared rows][max_selected], of one prompt */
    float *token_scores; /* [longest] */
    double *similarity;  /* [n_layers][n_layers], mean of all samples; 0 with a window */
    struct tune_filters best[TUNE_N_CHOICES];
    uint32_t n_best;
};

/* What the chosen patterns lose on held-out text; the perplexities are in struct patterns. */
struct tune_loss {
    bool is_known;     /* of the patterns as they are; or that there is nothing to measure it by */
    uint32_t n_tokens; /* of a window; 0: none has been read */
    double dense;      /* the windows' perplexity, read densely */
    double dense_s;    /* what a dense prompt of that length took */
    double density;
    double pair_s; /* what one dense and one sparse prompt of that length took; 0: not measured */
};

struct tune {
    const struct tune_plan *plan;
    const struct options *options;
    const char *model_dir, *model_name;
    struct backend *be;
    struct engine_config config;
    struct model_config model;
    struct bench_sizes lengths;
    uint32_t longest, shortest, top; /* top: the longest prompt of the ladder */
    bool finds_patterns, finds_filters;
    char out[PATH_MAX], filters_out[PATH_MAX], state_path[PATH_MAX];
    struct tokenizer *tokenizer; /* NULL: weights and tokens are random */
    char *prose;                 /* NULL: the model has none */
    char *held_out;              /* --text; NULL: the prose */
    struct tune_pass *pass;      /* NULL: all layers have been measured */
    struct attn_pattern candidates[TUNE_MAX_CANDIDATES];
    struct tune_results results;
    struct tune_state *state;
    struct progress progress;
    double unit_s;  /* seconds of a unit of work; 1 while work is given in units */
    double after_s; /* seconds of what follows the ladder */
    struct token_list prompt;
    double floor;                           /* by which they were chosen */
    struct patterns patterns;               /* the chosen ones */
    struct tune_rung rungs[TUNE_MAX_RUNGS]; /* by length */
    uint32_t n_rungs;
    struct tune_loss loss;
    struct tune_comparison comparison;
};

/* Returns whether the layer has a window.  Such layers take no part: they are dense, neither
 * filters nor sparse. */
static inline bool tune_has_window(const struct tune *tune, uint32_t layer) {
    return layer_has_window(tune->model.windows, layer);
}

uint32_t tune_n_full_attention(const struct tune *tune); /* layers without a window */

/* Means over heads, and the worst head, of layers without a window. */
struct tune_summary {
    double recall, worst, cost;
};

/* Returns the head's choice, from all that was measured. */
struct tune_choice tune_choice_of(const struct tune *tune, uint32_t layer, uint32_t head);

/* Makes t->prompt; prompts of one kind differ by their number. */
int tune_make_prompt(struct tune *t, enum tune_text kind, uint64_t number, uint32_t n_tokens,
                     struct error *err);

/* Opens an engine as `quire serve` would with these options and patterns, for one sequence of
 * t->top tokens. */
int tune_open_engine(struct tune *t, struct timed_engine *timed, struct error *err);
/* Measures what the patterns lose (t->loss); nothing else of the search may hold a device's memory.
 * Without a text, or with one that is shorter than a prompt, nothing is measured. */
int tune_measure_loss(struct tune *t, struct error *err);
double tune_loss_work(const struct tune *t); /* in the unit of tune_ladder_work() */
void tune_describe_loss(struct buffer *out, const struct tune *t);

/* Measures t->rungs; nothing else of the search may hold a device's memory.  There are none when
 * every head is dense. */
int tune_climb_ladder(struct tune *t, struct error *err);
bool tune_is_all_dense(const struct tune *t);
/* Returns the expected work of tune_climb_ladder(), in runs of a candidate on the longest
 * prompt. */
double tune_ladder_work(const struct tune *t);

/* Prints everything that a measurement depends on, in one line. */
void tune_print_settings(struct buffer *out, const struct tune *tune);
/* Prints each head's choice to stdout. */
void tune_print_heads(const struct tune *tune);
void tune_print_summary(const struct tune *tune, const struct tune_summary *sum);
/* Writes the pattern file, with notes on how it was found.  Without rungs it has no break-even of
 * this backend. */
int tune_save(struct tune *tune, const struct tune_summary *sum, struct error *err);

enum { TUNE_MAX_NOTES = 12 };

/* Notes in a file on how it was made. */
struct tune_notes {
    struct buffer texts[TUNE_MAX_NOTES];
    struct provenance_note notes[TUNE_MAX_NOTES];
    size_t n;
};

/* Begins with the notes that all files of a search have. */
void tune_notes_init(struct tune_notes *notes, const struct tune *tune);
/* Adds a note and returns its text, for the caller to write. */
struct buffer *tune_notes_add(struct tune_notes *notes, const char *name);
int tune_notes_finish(struct tune_notes *notes, struct error *err); /* fills notes->notes */
void tune_notes_fini(struct tune_notes *notes);

/* Sets up the comparison of layers (tune_layers.c). */
int tune_layers_open(struct tune *tune, struct error *err);
void tune_layers_close(struct tune *tune);
/* Compares the layer that was entered last, on the sample's prompt, with those before it.  Layers
 * come in order, from 0. */
int tune_layers_compare(struct tune *tune, uint32_t sample, uint32_t layer, struct error *err);
/* Returns how a text with a prompt of n_tokens is read: how many tokens filters choose of it, and
 * the tail. */
struct kv_choice tune_layers_choice(const struct tune *tune, uint32_t n_tokens);
/* Makes the shortlist once all samples are compared, tries it, and writes the file of the best set.
 * Nothing else of the search may hold a device's memory. */
int tune_layers_save(struct tune *tune, struct error *err);
void tune_layers_print(const struct tune *tune); /* the matrix to stdout, a summary to stderr */

/* Generates answers with each set of the shortlist, and sorts the list by them (tune_trial.c). */
int tune_trial(struct tune *tune, struct error *err);
void tune_trial_describe(struct buffer *out);
/* Returns the expected work of tune_trial(), in the unit of tune_ladder_work(). */
double tune_trial_work(const struct tune *tune);

#endif
