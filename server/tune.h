/* tune.h - `quire tune`: finds for every head which keys it may leave out of a long prompt, and
 * from which length on that pays on this machine (MInference section 3.2).
 *
 *   tune_prompts.c    calibration prompts
 *   tune_pass.c       one prompt through the model, attention measured at each layer
 *   tune_search.c     what is tried, and what is chosen of it
 *   tune_state.c      what has been measured, so that a second run goes on
 *   tune_progress.c   how far it is
 *   tune_ladder.c     from which length on whole prompts are faster, through an engine
 *   tune_output.c     the file, and what is printed
 *   tune.c            the flags, and the order of all this
 *
 * A run may be killed at any time: every layer that was measured is in the state file.
 *
 * Thread: main.  Memory: its own, freed on return. */
#ifndef SERVER_TUNE_H
#define SERVER_TUNE_H

#include "server/bench.h"

struct backend;
struct options;

struct tune_plan {
    struct bench_sizes lengths; /* n 0: the default */
    char *lengths_text, *out, *state; /* out, state: NULL, the default */
    uint64_t n_samples;               /* of each length */
    uint64_t seed;
    double target, floor; /* struct tune_goal */
};

/* Reads the flags of `quire tune` out of argv and leaves the rest, in order, in argv[0..*argc). */
int tune_plan_read(struct tune_plan *plan, int *argc, char **argv, struct error *err);
void tune_plan_fini(struct tune_plan *plan);
void tune_print_help(void);

/* Tunes the model on the backend, which is borrowed; prints what was chosen to stdout. */
int tune_run(const struct tune_plan *plan, const struct options *options, const char *model_dir,
             struct backend *backend, struct error *err);

#endif
