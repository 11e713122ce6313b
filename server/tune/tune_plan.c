/* tune_plan.c - the flags of `quire tune`: see tune.h. */
#include "server/tune/tune.h"

#include <stddef.h>
#include <stdio.h>

#include "engine/base/error.h"
#include "engine/tune/tune_filters.h"
#include "engine/tune/tune_search.h"
#include "server/settings/options.h"

#define AT(member) offsetof(struct tune_plan, member)

static const char *const find_words[] = {"both", "patterns", "filters", NULL};

static const char *const objective_words[] = {"recall", "flops", NULL};

static const struct option entries[] = {
    {"find", OPTION_CHOICE, AT(find), 0, 0, "both", find_words,
     "patterns of sparse prompts, filters, which are layers that choose tokens for others, or "
     "both"},
    {"lengths", OPTION_STRING, AT(lengths_text), 0, 0, NULL, NULL,
     "prompt lengths, in tokens, at which patterns must do [the context, at most 32768; on the CPU "
     "8192]"},
    {"samples", OPTION_NUMBER, AT(n_samples), 1, TUNE_MAX_SAMPLES, "3", NULL,
     "prompts of each length: retrieval, needles, prose and several needles of a name take turns"},
    {"objective", OPTION_CHOICE, AT(objective), 0, 0, "recall", objective_words,
     "recall: a head gets the cheapest pattern that finds --recall; flops: patterns are sized to "
     "visit --budget of all pairs each, and a head gets the one that finds most, as published"},
    {"budget", OPTION_FRACTION, AT(budget), 1, 99, "0.31", NULL,
     "with --objective flops: share of the pairs; the default is what 1024 first and 4096 nearest "
     "keys are of 30000 tokens"},
    {"recall", OPTION_FRACTION, AT(target), 1, 100, "0.95", NULL,
     "share of its attention that a head must find in every prompt"},
    {"floor", OPTION_FRACTION, AT(floor), 0, 100, "0.8", NULL,
     "a head that finds less with every pattern stays dense"},
    {"selected", OPTION_NUMBER, AT(n_selected), 0, 1 << 20, "0", NULL,
     "tokens that a filter chooses; 0: a sixteenth of the prompt"},
    {"max-filters", OPTION_NUMBER, AT(max_filters), 1, TUNE_MAX_FILTERS, "3", NULL,
     "layers that may become filters"},
    {"dense-layers", OPTION_NUMBER, AT(n_dense), 0, 1 << 16, "0", NULL,
     "layers that may see everything: filters, those right behind and those before; 0: a quarter, "
     "but enough for all filters"},
    {"wait", OPTION_NUMBER, AT(n_wait), 0, 1 << 16, "1", NULL,
     "layers right behind each filter that see everything, too, while what it chose is fetched; 0 "
     "where little is moved"},
    {"seed", OPTION_NUMBER, AT(seed), 0, UINT32_MAX, "1", NULL, "of the prompts"},
    {"out", OPTION_STRING, AT(out), 0, 0, NULL, NULL,
     "the pattern file to write [MODEL.json in this directory]"},
    {"filters-out", OPTION_STRING, AT(filters_out), 0, 0, NULL, NULL,
     "the filters file to write [MODEL.filters.json in this directory]"},
    {"state", OPTION_STRING, AT(state), 0, 0, NULL, NULL,
     "what has been measured, so that a second run goes on [OUT.state, or FILTERS-OUT.state where "
     "no patterns are sought; removed at the end]"},
};
static const struct option_table flags = {entries, sizeof(entries) / sizeof(*entries)};

int tune_plan_read(struct tune_plan *plan, int *argc, char **argv, struct error *err) {
    *plan = (struct tune_plan){0};
    int rc = options_take(&flags, plan, argc, argv, err);
    if (!rc && plan->lengths_text)
        rc = bench_sizes_read(&plan->lengths, "lengths", plan->lengths_text, 1u << 22, err);
    if (!rc && plan->lengths.n * plan->n_samples > TUNE_MAX_SAMPLES)
        rc = error_set(err, ERR_INVALID, "--lengths and --samples: at most %d prompts",
                       TUNE_MAX_SAMPLES);
    if (rc) tune_plan_fini(plan);
    return rc;
}

void tune_plan_fini(struct tune_plan *plan) {
    options_free(&flags, plan);
}

void tune_print_help(void) {
    puts("usage: quire tune [MODEL] [options of `quire serve`] [options below]\n"
         "\n"
         "Finds for every head which keys it may leave out of a long prompt, and from which\n"
         "length on that is faster on this machine; and which layers choose the tokens that\n"
         "the others see under the KV policy offload.  Writes the pattern file and the filters\n"
         "file that `quire serve` reads.  What each head got, and how alike layers are, is\n"
         "printed as CSV.\n"
         "A run that was stopped goes on when it is started again.\n");
    options_print_table(stdout, &flags);
}
