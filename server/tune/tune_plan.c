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
     "what to find: patterns for sparse prefill, filter layers for offload, or both"},
    {"lengths", OPTION_STRING, AT(lengths_text), 0, 0, NULL, NULL,
     "lengths of the measured prompts, in tokens, separated by commas [the context, at most 32768; "
     "on the CPU 8192]"},
    {"samples", OPTION_NUMBER, AT(n_samples), 1, TUNE_MAX_SAMPLES, "3", NULL,
     "prompts of each length; retrieval, needles, prose and several needles of a name take turns"},
    {"objective", OPTION_CHOICE, AT(objective), 0, 0, "recall", objective_words,
     "recall: a head gets the cheapest pattern that reaches --recall; flops: each pattern visits "
     "--budget of all pairs, and a head gets the one with the best recall"},
    {"budget", OPTION_FRACTION, AT(budget), 1, 99, "0.31", NULL,
     "share of all pairs that a pattern visits under --objective flops; the default is that of the "
     "first 1024 and nearest 4096 keys in 30000 tokens"},
    {"recall", OPTION_FRACTION, AT(target), 1, 100, "0.95", NULL,
     "share of a head's attention that its pattern must find in every prompt"},
    {"floor", OPTION_FRACTION, AT(floor), 0, 100, "0", NULL,
     "least share that a pattern must find; a head without such a pattern stays dense; 0: 0.8, "
     "then "
     "0.9, 0.95 and 0.98 until the patterns lose 0.2 of perplexity at most"},
    {"selected", OPTION_NUMBER, AT(n_selected), 0, 1 << 20, "0", NULL,
     "tokens that a filter selects; 0: a sixteenth of the prompt"},
    {"max-filters", OPTION_NUMBER, AT(max_filters), 1, TUNE_MAX_FILTERS, "3", NULL,
     "most layers that become filters"},
    {"dense-layers", OPTION_NUMBER, AT(n_dense), 0, 1 << 16, "0", NULL,
     "most layers that see every token: the filters, --wait layers behind each, and all before the "
     "first; 0: a quarter, but enough for all filters"},
    {"wait", OPTION_NUMBER, AT(n_wait), 0, 1 << 16, "1", NULL,
     "layers right behind each filter that also see every token, while the selected tokens are "
     "fetched; choose 0 where few tokens are moved"},
    {"text", OPTION_STRING, AT(text), 0, 0, NULL, NULL,
     "held-out text by which is measured what the patterns lose [eval/held_out.txt of the model, "
     "or "
     "of the default model]"},
    {"seed", OPTION_NUMBER, AT(seed), 0, UINT32_MAX, "1", NULL, "seed of the prompts"},
    {"out", OPTION_STRING, AT(out), 0, 0, NULL, NULL,
     "pattern file to write [MODEL.json in this directory]"},
    {"filters-out", OPTION_STRING, AT(filters_out), 0, 0, NULL, NULL,
     "filters file to write [MODEL.filters.json in this directory]"},
    {"state", OPTION_STRING, AT(state), 0, 0, NULL, NULL,
     "file with the measurements so far, from which a second run continues; removed at the end "
     "[OUT.state, or FILTERS-OUT.state with --find filters]"},
};
static const struct option_table flags = {entries, sizeof(entries) / sizeof(*entries)};

const struct option_table *tune_options(void) {
    return &flags;
}

int tune_plan_read(struct tune_plan *plan, int *argc, char **argv, struct error *err) {
    *plan = (struct tune_plan){0};
    int rc = option_table_take(&flags, plan, argc, argv, err);
    if (!rc && plan->lengths_text)
        rc = bench_sizes_read(&plan->lengths, "lengths", plan->lengths_text, 1u << 22, err);
    if (!rc && plan->lengths.n * plan->n_samples > TUNE_MAX_SAMPLES)
        rc = error_set(err, ERR_INVALID, "--lengths and --samples: at most %d prompts",
                       TUNE_MAX_SAMPLES);
    if (rc) tune_plan_fini(plan);
    return rc;
}

void tune_plan_fini(struct tune_plan *plan) {
    option_table_free(&flags, plan);
}

void tune_print_help(void) {
    puts("usage: quire tune [MODEL] [options of `quire serve`] [options below]\n"
         "\n"
         "Finds a pattern of keys for every head, and the length from which sparse prefill with\n"
         "these patterns is faster on this machine.  Finds the filter layers, which select the\n"
         "tokens that the other layers see under the KV policy offload.  Writes the pattern file\n"
         "and the filters file that `quire serve` reads.  Prints each head's pattern, and the\n"
         "similarity of layers, as CSV.\n"
         "A run that was stopped continues when it is started again.\n");
    option_table_print(stdout, &flags);
}
