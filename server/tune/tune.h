/* tune.h - `quire tune`: finds which keys each head may leave out of a long prompt, and the length
 * from which that pays on this machine (MInference section 3.2).  It also finds which layers may
 * choose the tokens that other layers attend to (OmniKV section 4.2).
 *
 *   tune_prompts.c    calibration prompts
 *   tune_pass.c       one prompt through the model, attention measured at each layer
 *   tune_search.c     the candidates, and the choice among them
 *   tune_fit.c        candidates of equal cost
 *   tune_layers.c     the tokens that layers choose at the end of a prompt, and their similarity
 *   tune_filters.c    the choice of filter layers
 *   tune_state.c      the measurements on disk, so that a second run continues
 *   tune_loss.c       what the patterns lose on held-out text, through an engine
 *   tune_ladder.c     the length from which whole prompts are faster, through the same one
 *   tune_output.c     the pattern file, and what is printed
 *   tune_trial.c      the answers with each set of filter layers
 *   tune_plan.c       the flags
 *   tune.c            the order of all this; progress.c prints how far it is
 *
 * A run may be killed at any time: the state file holds every layer that was measured, and the
 * similarity of the layers for every prompt.
 *
 * Thread: main.  Memory: its own, freed on return. */
#ifndef SERVER_TUNE_TUNE_H
#define SERVER_TUNE_TUNE_H

#include "server/bench/bench.h"

struct backend;
struct option_table;
struct options;

enum tune_find { TUNE_FIND_BOTH, TUNE_FIND_PATTERNS, TUNE_FIND_FILTERS };

struct tune_plan {
    uint64_t find;                                  /* enum tune_find */
    struct bench_sizes lengths;                     /* n 0: the default */
    char *lengths_text, *out, *filters_out, *state; /* all but the first: NULL means the default */
    char *text;                                     /* NULL: the default */
    uint64_t n_samples;                             /* of each length */
    uint64_t seed;
    uint64_t objective;   /* enum tune_objective */
    double budget;        /* TUNE_FLOPS: share of the pairs that a fitted candidate may visit */
    double target, floor; /* struct tune_goal; floor 0: raised until the patterns lose little */
    uint64_t n_selected, n_dense; /* 0: the default */
    uint64_t max_filters, n_wait;
};

/* Reads the flags of `quire tune` from argv and leaves the others, in order, in argv[0..*argc). */
int tune_plan_read(struct tune_plan *plan, int *argc, char **argv, struct error *err);
void tune_plan_fini(struct tune_plan *plan);
void tune_print_help(void);
/* Returns the command's own options. */
const struct option_table *tune_options(void);

/* Tunes the model on the backend, which is borrowed; prints the choice to stdout. */
int tune_run(const struct tune_plan *plan, const struct options *options, const char *model_dir,
             struct backend *backend, struct error *err);

#endif
