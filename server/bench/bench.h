/* bench.h - `quire bench`: measures the speed without HTTP, beside what the machine could do.
 *
 *   bench.c          the plan from the flags, the ceilings, and one of:
 *   bench_engine.c   whole prompts and batches through the engine
 *   bench_schedule.c when each prompt of a batch is computed, and so what a batch needs
 *   bench_kernels.c  single operations of the backend (--kernels)
 *
 * Thread: main.  Memory: its own, freed on return. */
#ifndef SERVER_BENCH_BENCH_H
#define SERVER_BENCH_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "server/settings/kv_policy.h"
#include "server/settings/offload_rules.h"

struct backend;
struct ceilings;
struct option_table;
struct options;

enum { BENCH_MAX_SIZES = 16, BENCH_MAX_RUNS = 100 };

struct bench_sizes {
    uint32_t sizes[BENCH_MAX_SIZES], n;
};

struct bench_plan {
    struct bench_sizes prompts; /* tokens */
    struct bench_sizes batches; /* sequences */
    uint64_t n_generate;        /* timed decode steps */
    uint64_t n_runs;
    uint64_t max_resident; /* tokens: larger combinations are named and not run; 0: no bound */
    bool kernels, table;
    char *prompts_text, *batches_text;
};

/* Reads the flags of `quire bench` from argv and leaves the others, in order, in argv[0..*argc). */
int bench_plan_read(struct bench_plan *plan, int *argc, char **argv, struct error *err);
void bench_plan_fini(struct bench_plan *plan);
void bench_print_help(void);
/* Returns the command's own options. */
const struct option_table *bench_options(void);

/* Reads a list such as "512,4096": whole numbers from 1 to high.  name: the flag, for errors. */
int bench_sizes_read(struct bench_sizes *out, const char *name, const char *text,
                     unsigned long high, struct error *err);

/* Measures the backend, runs the plan on it and prints to stdout.  backend is borrowed. */
int bench_run(const struct bench_plan *plan, const struct options *options, const char *model_dir,
              struct backend *backend, struct error *err);

/* How whole prompts are computed, and which of their tokens are retained. */
struct bench_requests {
    struct kv_policy kv;
    struct offload_rules offload; /* for policies that select */
    struct prefill_choice prefill;
};

/* Runs one of the two halves: whole prompts here, single operations in bench_kernels_run().
 * config comes from engine_setup_config(). */
int bench_engine_run(const struct bench_plan *plan, const struct ceilings *ceilings,
                     struct engine_config config, const struct bench_requests *like,
                     struct error *err);
int bench_kernels_run(const struct bench_plan *plan, const struct ceilings *ceilings,
                      const struct engine_config *config, struct error *err);

#endif
