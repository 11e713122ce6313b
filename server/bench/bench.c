/* bench.c - see bench.h. */
#include "server/bench/bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/device/collective.h"
#include "server/bench/bench_schedule.h"
#include "server/json/api_error.h"
#include "server/settings/engine_setup.h"
#include "server/settings/offload_setup.h"
#include "server/settings/options.h"
#include "server/settings/prefill_setup.h"

#define AT(member) offsetof(struct bench_plan, member)

static const struct option entries[] = {
    {"kernels", OPTION_BOOL, AT(kernels), 0, 0, "false", NULL,
     "single operations in place of whole prompts"},
    {"prompts", OPTION_STRING, AT(prompts_text), 0, 0, "512,4096,16384", NULL,
     "prompt lengths, in tokens; for --kernels: lengths of the context"},
    {"batches", OPTION_STRING, AT(batches_text), 0, 0, "1,8,64", NULL,
     "sequences that decode at once"},
    {"generate", OPTION_NUMBER, AT(n_generate), 2, 1 << 16, "64", NULL,
     "decode steps that are measured"},
    {"runs", OPTION_NUMBER, AT(n_runs), 1, BENCH_MAX_RUNS, "3", NULL,
     "runs of each measurement; the median, the least and the greatest are printed"},
    {"max-resident", OPTION_NUMBER, AT(max_resident), 0, UINT64_MAX, "65536", NULL,
     "largest product of prompt tokens and sequences in a decode row; 0: any"},
    {"table", OPTION_BOOL, AT(table), 0, 0, "false", NULL, "aligned columns in place of CSV"},
};
static const struct option_table flags = {entries, sizeof(entries) / sizeof(*entries)};

const struct option_table *bench_options(void) {
    return &flags;
}

int bench_sizes_read(struct bench_sizes *out, const char *name, const char *text,
                     unsigned long high, struct error *err) {
    for (out->n = 0;; text++) {
        char *end;
        errno = 0;
        const unsigned long value = strtoul(text, &end, 10);
        if (out->n == BENCH_MAX_SIZES)
            return error_set(err, ERR_INVALID, "--%s: at most %d sizes", name, BENCH_MAX_SIZES);
        if (end == text || *text == '-' || errno || value < 1 || value > high)
            return error_set(err, ERR_INVALID, "--%s: '%.64s' is not a number from 1 to %lu", name,
                             text, high);
        out->sizes[out->n++] = (uint32_t)value;
        if (*end == '\0') return 0;
        if (*end != ',')
            return error_set(err, ERR_INVALID, "--%s: sizes are separated by commas", name);
        text = end;
    }
}

int bench_plan_read(struct bench_plan *plan, int *argc, char **argv, struct error *err) {
    *plan = (struct bench_plan){0};
    int rc = option_table_take(&flags, plan, argc, argv, err);
    if (!rc) rc = bench_sizes_read(&plan->prompts, "prompts", plan->prompts_text, 1u << 22, err);
    if (!rc)
        rc = bench_sizes_read(&plan->batches, "batches", plan->batches_text, BENCH_MAX_BATCH, err);
    if (rc) bench_plan_fini(plan);
    return rc;
}

void bench_plan_fini(struct bench_plan *plan) {
    option_table_free(&flags, plan);
}

void bench_print_help(void) {
    puts("usage: quire bench [MODEL] [options of `quire serve`] [options below]\n"
         "\n"
         "Measures prefill and decode without HTTP, or single operations, and prints CSV.  A row\n"
         "has the median, least and greatest of the runs, and the fraction of the bound.  The\n"
         "bound is this machine's memory bandwidth or arithmetic, which is measured first.  The\n"
         "least time that the run takes, and its progress, go to stderr.\n");
    option_table_print(stdout, &flags);
}

/* Sets up offload if the policy selects; otherwise does nothing and reserves nothing. */
static int setup_offload(struct offload_setup *setup, struct bench_requests *like,
                         const struct options *options, struct engine_config *config,
                         struct error *err) {
    struct api_error refusal = {0};
    if (!kv_choice_selects(&like->kv.tokens)) return 0;
    int rc = offload_setup_load(setup, options, config, err);
    if (rc) return rc;
    offload_setup_configure(setup, options, config);
    offload_setup_rules(&like->offload, setup, options);
    if (like->offload.why_not)
        return error_set(err, ERR_UNSUPPORTED, "--kv-policy %s: %s",
                         kv_type_name(like->kv.tokens.type), like->offload.why_not);
    rc = offload_rules_apply(&like->offload, &like->kv, &refusal);
    return rc ? error_set(err, rc, "--kv-policy: %s", refusal.message) : 0;
}

static int run_engine(const struct bench_plan *plan, const struct options *options,
                      struct engine_config *config, const struct ceilings *ceilings,
                      struct error *err) {
    struct prefill_setup setup = {0};
    struct offload_setup offload = {0};
    int rc = prefill_setup_load(&setup, options, config, err);
    if (rc) return rc;
    prefill_setup_configure(&setup, options, config);
    /* Without a pattern file, an explicit sparse prefill has the default patterns. */
    if (options->prefill == PREFILL_SPARSE) config->patterns = setup.patterns.heads;
    config->sparse_prefill = config->sparse_prefill && config->patterns;
    struct bench_requests like = {.kv = options->kv_rules.initial,
                                  .prefill = {.mode = (enum prefill_mode)options->prefill,
                                              .dense_tail = (uint32_t)options->dense_tail,
                                              .synthetic = (uint32_t)options->synthetic_lines}};
    rc = setup_offload(&offload, &like, options, config, err);
    if (!rc) rc = bench_engine_run(plan, ceilings, *config, &like, err);
    offload_setup_fini(&offload);
    prefill_setup_fini(&setup);
    return rc;
}

int bench_run(const struct bench_plan *plan, const struct options *options, const char *model_dir,
              struct backend *backend, struct error *err) {
    struct engine_config config = engine_setup_config(options, model_dir, backend);
    struct ceilings ceilings;
    if (plan->kernels && backend->n_ranks > 1)
        return error_set(err, ERR_INVALID,
                         "%s must be 1 with --kernels: single operations run on one rank",
                         ranks_setting(config.ranks_share));
    printf("# %s\n", backend->description);
    if (backend->n_ranks > 1) printf("# the bounds are those of one rank\n");
    int rc = backend->ops->measure(backend, &ceilings, err);
    if (rc) return rc;
    printf("# copy %.1f GB/s (read + written), read %.1f GB/s, products %.1f Gflop/s\n",
           ceilings.copy_bytes_per_s * 1e-9, ceilings.read_bytes_per_s * 1e-9,
           ceilings.flops_per_s * 1e-9);
    return plan->kernels ? bench_kernels_run(plan, &ceilings, &config, err)
                         : run_engine(plan, options, &config, &ceilings, err);
}
