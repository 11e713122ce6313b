/* bench.h - `quire bench`: the engine's speed without HTTP, beside what the machine could do.
 *
 * Thread: main.  Memory: its own, freed on return. */
#ifndef SERVER_BENCH_H
#define SERVER_BENCH_H

#include <stdint.h>

struct backend;
struct error;
struct options;

enum { BENCH_MAX_SIZES = 8 };

struct bench_plan {
    uint32_t prompts[BENCH_MAX_SIZES], n_prompts; /* tokens */
    uint32_t batches[BENCH_MAX_SIZES], n_batches; /* sequences */
    uint32_t n_generate;                          /* decode steps that are timed */
    uint32_t n_runs;
    uint64_t max_resident; /* tokens: combinations that would need more are named and not run; 0: no
                              bound */
};

/* Reads --prompts, --batches, --generate, --runs and --max-resident out of argv (512,4096,16384;
 * 1,8,64; 64; 3; 65536 when absent) and leaves the rest, in order, in argv[0..*argc). */
int bench_plan_read(struct bench_plan *plan, int *argc, char **argv, struct error *err);
void bench_print_help(void);

/* Makes an engine of the model, runs the plan and prints CSV to stdout.  backend is a CPU backend,
 * borrowed. */
int bench_run(const struct bench_plan *plan, const struct options *options, const char *model_dir,
              struct backend *backend, struct error *err);

#endif
