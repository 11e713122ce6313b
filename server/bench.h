/* bench.h - `quire bench`: the engine's speed without HTTP, beside what the machine could do.
 *
 * Thread: main.  Memory: its own, freed on return. */
#ifndef SERVER_BENCH_H
#define SERVER_BENCH_H

#include "engine/engine.h"

struct cpu_ceiling;

enum { BENCH_MAX_SIZES = 8 };

struct bench_plan {
    uint32_t prompts[BENCH_MAX_SIZES], n_prompts; /* tokens */
    uint32_t batches[BENCH_MAX_SIZES], n_batches; /* sequences */
    uint32_t n_generate;                          /* decode steps that are timed */
    uint32_t n_runs;
    uint64_t max_resident; /* tokens: combinations that would need more are named and not run; 0: no bound */
};

/* Reads --prompts, --batches, --generate, --runs and --max-resident out of argv (512,4096,16384; 1,8,64; 64; 3;
 * 65536 when absent) and leaves the rest, in order, in argv[0..*argc). */
int bench_plan_read(struct bench_plan *plan, int *argc, char **argv, struct error *err);
void bench_print_help(void);

/* The engine's wake callback and its context for the engine that bench_run() drives. */
struct bench_bell;
int bench_bell_create(struct bench_bell **out, struct error *err);
void bench_bell_destroy(struct bench_bell *bell);
void bench_wake(void *bell);

/* Prints CSV to stdout. ceiling may be NULL: no fractions. */
int bench_run(struct engine *engine, struct bench_bell *bell, const struct bench_plan *plan,
              const struct cpu_ceiling *ceiling, struct error *err);

#endif
