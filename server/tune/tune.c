/* tune.c - see tune.h. */
#include "server/tune/tune.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/base/rng.h"
#include "engine/base/sizes.h"
#include "engine/tune/tune_fit.h"
#include "engine/tune/tune_pass.h"
#include "engine/tune/tune_state.h"
#include "server/bench/report.h"
#include "server/json/buffer.h"
#include "server/settings/data_dir.h"
#include "server/settings/engine_setup.h"
#include "server/settings/load_progress.h"
#include "server/settings/model_file.h"
#include "server/settings/options.h"
#include "server/tune/tune_job.h"
#include "server/tune/tune_prompts.h"

enum {
    DEFAULT_TOKENS = 32768,
    /* The default on the CPU backend, where a search at the other would take an hour. */
    SYSTEM_TOKENS = 8192,
    MAX_RUNS = 3
};
/* A measurement this long needs no repetition. */
static const double LONG_RUN_S = 0.2;
/* No head may be made dense while recall is measured. */
static const float NEVER_DENSE = 2;

/* ---- set up ---- */

static int choose_lengths(struct tune *t, struct error *err) {
    const uint32_t context = t->model.max_position, usual = min_u32(context, DEFAULT_TOKENS);
    t->lengths = t->plan->lengths;
    if (t->lengths.n == 0) {
        t->lengths.n = 1;
        t->lengths.sizes[0] =
            t->be->ops->memory(t->be).total ? usual : min_u32(usual, SYSTEM_TOKENS);
    }
    t->shortest = UINT32_MAX;
    for (uint32_t i = 0; i < t->lengths.n; i++) {
        const uint32_t length = t->lengths.sizes[i];
        if (length > context)
            return error_set(err, ERR_INVALID,
                             "--lengths must not be more than the model's context of %" PRIu32
                             " tokens",
                             context);
        if (length > t->longest) t->longest = length;
        if (length < t->shortest) t->shortest = length;
    }
    t->top = min_u32(t->longest, context - 1); /* the engine generates one token */
    return 0;
}

/* Writes `given` to path, or, if that is NULL, name followed by `appended`.  path: [PATH_MAX].
 * Returns false when it does not fit. */
static bool choose_path(char *path, const char *given, const char *name, const char *appended) {
    const int n = given ? snprintf(path, PATH_MAX, "%s", given)
                        : snprintf(path, PATH_MAX, "%s%s", name, appended);
    return n < PATH_MAX;
}

/* Derives the paths of the output files.  The default names are the last part of the model's
 * name, by which `quire serve` finds the files. */
static int choose_paths(struct tune *t, char name[PATH_MAX], struct error *err) {
    const struct tune_plan *plan = t->plan;
    model_name_write(name, t->model_dir);
    t->model_name = model_file_name(name);
    if (choose_path(t->out, plan->out, t->model_name, ".json") &&
        choose_path(t->filters_out, plan->filters_out, t->model_name, ".filters.json") &&
        choose_path(t->state_path, plan->state, t->finds_patterns ? t->out : t->filters_out,
                    ".state"))
        return 0;
    return error_set(err, ERR_INVALID, "--out, --filters-out or --state: the path is too long");
}

/* Returns whether the first full-attention layer, as a filter, would have layers behind it to
 * choose for. */
static bool has_enough_layers(const struct tune *t) {
    const uint32_t *windows = t->model.windows;
    uint32_t first = 0;
    while (layer_has_window(windows, first)) first++;
    for (uint64_t l = first + 1 + t->plan->n_wait; l < t->model.n_attention; l++)
        if (!layer_has_window(windows, (uint32_t)l)) return true;
    return false;
}

/* Decides whether to find patterns, filters or both.  Filters need a model with enough layers and
 * a backend that can select. */
static int choose_parts(struct tune *t, struct error *err) {
    const uint64_t find = t->plan->find;
    const char *why_not = NULL;
    if (!has_enough_layers(t))
        why_not = t->model.windows ? "too few layers of the model have no window"
                                   : "the model has too few layers";
    else if (!t->be->ops->select) why_not = "this backend cannot select tokens";
    if (why_not && find == TUNE_FIND_FILTERS)
        return error_set(err, ERR_UNSUPPORTED, "--find filters: %s", why_not);
    if (why_not && find == TUNE_FIND_BOTH)
        fprintf(stderr, "tune: filters are not searched: %s\n", why_not);
    t->finds_patterns = find != TUNE_FIND_FILTERS;
    t->finds_filters = find != TUNE_FIND_PATTERNS && !why_not;
    return 0;
}

static int open_state(struct tune *t, struct error *err) {
    struct buffer settings = {0};
    tune_print_settings(&settings, t);
    const int rc = settings.failed
                       ? error_set(err, ERR_NOMEM, "tune: no memory")
                       : tune_state_open(&t->state, t->state_path, settings.data, &t->results, err);
    buffer_fini(&settings);
    return rc;
}

/* Loads the pattern file of this name, if there is one.  Every head is chosen anew; what the file
 * has measured on other backends is retained. */
static int open_patterns(struct tune *t, struct error *err) {
    const uint32_t n_layers = t->model.n_attention, n_heads = t->model.n_heads;
    if (!t->finds_patterns) return 0;
    const int rc = patterns_load(&t->patterns, t->out, n_layers, n_heads, err);
    return rc == ERR_NOT_FOUND ? patterns_default(&t->patterns, n_layers, n_heads, err) : rc;
}

/* Sets the objective's candidates and returns their number.  It is 0 when a prompt of the shortest
 * length has nothing to leave out. */
static uint32_t choose_candidates(struct tune *t) {
    const uint32_t n = t->finds_patterns ? tune_candidates(t->shortest, t->candidates) : 0;
    if (n == 0 || t->plan->objective == TUNE_RECALL) return n;
    tune_fit_starts(t->candidates);
    return TUNE_N_STARTS;
}

/* Creates the measuring pass and logs how far the weights are loaded. */
static int create_pass(struct tune *t, struct error *err) {
    struct load_progress progress;
    struct engine_config config = t->config;
    engine_setup_tell(&config, &progress);
    return tune_pass_create(&t->pass, &config, t->longest, t->comparison.max_selected,
                            (uint32_t)t->options->synthetic_lines, err);
}

/* Loads what prompts are made of, and what the loss is measured by: --text, else the model's own
 * text, else the default model's. */
static int load_texts(struct tune *t, struct error *err) {
    char data[PATH_MAX], model[PATH_MAX];
    int rc = tune_prose_load(&t->prose, t->model_dir, err);
    if (!rc && t->plan->text) return tune_text_load(&t->held_out, t->plan->text, err);
    if (rc || t->prose || data_dir_find(data, NULL)) return rc;
    const int n = snprintf(model, sizeof(model), "%s/models/quire-31m", data);
    return n < PATH_MAX ? tune_prose_load(&t->held_out, model, err) : 0;
}

static int open_tune(struct tune *t, char *real_dir, struct error *err) {
    const uint32_t n_samples = (uint32_t)t->plan->n_samples;
    int rc = model_config_load(&t->model, t->model_dir, 0, err);
    if (!rc && !model_has_full_attention(&t->model))
        rc = error_set(
            err, ERR_UNSUPPORTED,
            "tune: every layer of this model has a window, so it has no patterns and no filters");
    if (!rc && model_without_slices(&t->model))
        rc = error_set(err, ERR_UNSUPPORTED, "tune: %s, so it has no sparse prompts to measure",
                       model_without_slices(&t->model));
    if (!rc) rc = choose_lengths(t, err);
    if (!rc) rc = choose_parts(t, err);
    if (!rc) rc = choose_paths(t, real_dir, err);
    if (!rc) rc = tune_layers_open(t, err);
    if (rc) return rc;
    const uint32_t n_candidates = choose_candidates(t);
    if (n_candidates == 0 && t->finds_patterns)
        return error_set(err, ERR_INVALID,
                         "--lengths: prompts of %" PRIu32
                         " tokens are too short for sparse patterns",
                         t->shortest);
    if (!t->config.random_weights) rc = tokenizer_load(&t->tokenizer, t->model_dir, err);
    if (!rc) rc = load_texts(t, err);
    if (!rc)
        rc = tune_results_init(&t->results, n_samples * t->lengths.n, t->model.n_attention,
                               t->model.n_heads, n_candidates, t->candidates,
                               t->plan->objective == TUNE_RECALL, err);
    if (!rc) rc = open_patterns(t, err);
    if (!rc) rc = open_state(t, err);
    return rc ? rc : create_pass(t, err);
}

static void close_tune(struct tune *t) {
    progress_end(&t->progress);
    tune_pass_destroy(t->pass);
    tune_state_close(t->state);
    tune_results_fini(&t->results);
    tune_layers_close(t);
    patterns_fini(&t->patterns);
    tokenizer_destroy(t->tokenizer);
    model_config_fini(&t->model);
    free(t->prompt.ids);
    free(t->prose);
    free(t->held_out);
}

/* ---- prompts ---- */

static int random_prompt(struct tune *t, uint64_t seed, uint32_t n_tokens, struct error *err) {
    uint32_t *ids = realloc(t->prompt.ids, n_tokens * sizeof(*ids));
    if (!ids) return error_set(err, ERR_NOMEM, "tune: no memory for a prompt");
    for (uint32_t i = 0; i < n_tokens; i++)
        ids[i] = (uint32_t)(rng_uniform(seed, i) * t->model.n_vocab);
    t->prompt = (struct token_list){ids, n_tokens, n_tokens};
    return 0;
}

int tune_make_prompt(struct tune *t, enum tune_text kind, uint64_t number, uint32_t n_tokens,
                     struct error *err) {
    const uint64_t seed = t->plan->seed * 1000003 + number;
    t->prompt.n = 0;
    return t->tokenizer
               ? tune_prompt_make(&t->prompt, t->tokenizer, t->prose, kind, seed, n_tokens, err)
               : random_prompt(t, seed, n_tokens, err);
}

/* ---- measurements ---- */

static bool is_enough(uint32_t n_runs, double seconds) {
    return n_runs == MAX_RUNS || seconds >= LONG_RUN_S;
}

static int time_dense(struct tune *t, double *seconds, struct error *err) {
    double times[MAX_RUNS], spent = 0;
    uint32_t n = 0;
    int rc = 0;
    while (!rc && !is_enough(n, spent)) {
        rc = tune_pass_dense(t->pass, &times[n], err);
        if (!rc) spent += times[n++];
    }
    if (!rc) *seconds = report_spread(times, n).median;
    return rc;
}

static int time_sparse(struct tune *t, const struct attn_pattern *heads, float dense_above,
                       struct tune_run *run, struct error *err) {
    double index[MAX_RUNS], attention[MAX_RUNS], spent = 0;
    uint32_t n = 0;
    int rc = 0;
    while (!rc && !is_enough(n, spent)) {
        rc = tune_pass_sparse(t->pass, heads, dense_above, run, err);
        if (rc) return rc;
        index[n] = run->index_s;
        attention[n++] = run->attention_s;
        spent += run->index_s + run->attention_s;
    }
    run->index_s = report_spread(index, n).median;
    run->attention_s = report_spread(attention, n).median;
    return rc;
}

static bool are_done(const struct tune_fit *fits, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (!tune_fit_is_done(&fits[i])) return false;
    return true;
}

/* Fits the candidate for each head, on the prompt that the layer was entered with. */
static int fit_candidate(struct tune *t, struct tune_fit *fits, float *density, uint32_t layer,
                         uint32_t candidate, struct error *err) {
    const uint32_t n_heads = t->model.n_heads;
    struct attn_pattern *heads = tune_results_patterns(&t->results, layer, candidate);
    int rc = 0;
    for (uint32_t h = 0; h < n_heads; h++)
        tune_fit_begin(&fits[h], &t->candidates[candidate], (uint32_t)t->prompt.n);
    while (!are_done(fits, n_heads)) {
        for (uint32_t h = 0; h < n_heads; h++) heads[h] = tune_fit_next(&fits[h]);
        rc = tune_pass_density(t->pass, heads, density, err);
        if (rc) return rc;
        for (uint32_t h = 0; h < n_heads; h++)
            tune_fit_add(&fits[h], (double)density[h] <= t->plan->budget);
    }
    for (uint32_t h = 0; h < n_heads; h++) heads[h] = tune_fit_next(&fits[h]);
    return 0;
}

static int fit_candidates(struct tune *t, uint32_t layer, struct error *err) {
    const uint32_t n_heads = t->model.n_heads;
    struct tune_fit *fits = calloc(n_heads, sizeof(*fits));
    float *density = calloc(n_heads, sizeof(*density));
    int rc = fits && density ? 0 : error_set(err, ERR_NOMEM, "tune: no memory");
    for (uint32_t c = 0; c < t->results.n_candidates && !rc; c++)
        rc = fit_candidate(t, fits, density, layer, c, err);
    free(fits);
    free(density);
    if (rc) return rc;
    t->results.fitted[layer] = true;
    return tune_state_add_fitted(t->state, &t->results, layer, err);
}

static int try_candidate(struct tune *t, struct tune_layer *at, uint32_t layer, uint32_t candidate,
                         struct error *err) {
    const uint32_t n_heads = t->model.n_heads;
    const struct attn_pattern *heads = tune_results_patterns(&t->results, layer, candidate);
    struct tune_run run = {.recall = at->recall + (size_t)candidate * n_heads,
                           .density = at->density + (size_t)candidate * n_heads};
    const int rc = time_sparse(t, heads, NEVER_DENSE, &run, err);
    at->index_s[candidate] = run.index_s;
    at->attention_s[candidate] = run.attention_s;
    return rc;
}

static int try_candidates(struct tune *t, uint32_t sample, uint32_t layer, const char *where,
                          struct error *err) {
    struct tune_layer *at = tune_results_at(&t->results, sample, layer);
    int rc = t->results.fitted[layer] ? 0 : fit_candidates(t, layer, err);
    if (!rc) rc = time_dense(t, &at->dense_s, err);
    for (uint32_t c = 0; c < t->results.n_candidates && !rc; c++) {
        rc = try_candidate(t, at, layer, c, err);
        progress_add(&t->progress, 1, where);
    }
    if (rc) return rc;
    at->done = true;
    return tune_state_add_layer(t->state, &t->results, sample, layer, err);
}

/* Returns whether nothing is left to try in the layer.  Layers with a window are always dense, so
 * they count as tried. */
static bool is_tried(const struct tune *t, uint32_t sample, uint32_t layer) {
    return tune_has_window(t, layer) || tune_results_at(&t->results, sample, layer)->done;
}

/* Measures the layer that follows in the pass.  compares: the layer is also compared with earlier
 * ones, for filters, which need all layers of a prompt in one pass. */
static int measure_layer(struct tune *t, uint32_t sample, uint32_t layer, bool compares,
                         struct error *err) {
    char where[64];
    int rc = tune_pass_enter(t->pass, layer, err);
    snprintf(where, sizeof(where),
             "prompt %" PRIu32 " of %" PRIu32 ", layer %" PRIu32 " of %" PRIu32, sample + 1,
             t->results.n_samples, layer + 1, t->results.n_layers);
    if (!rc && compares) {
        rc = tune_layers_compare(t, sample, layer, err);
        progress_add(&t->progress, 1, where);
    }
    if (!rc && t->finds_patterns && !is_tried(t, sample, layer))
        rc = try_candidates(t, sample, layer, where, err);
    return rc;
}

static uint32_t layers_to_do(const struct tune *t, uint32_t sample) {
    uint32_t n = t->finds_patterns ? t->results.n_layers : 0;
    while (n > 0 && is_tried(t, sample, n - 1)) n--;
    return n;
}

static int measure_sample(struct tune *t, uint32_t sample, struct error *err) {
    const bool compares = t->finds_filters && !t->results.compared[sample];
    const uint32_t n_each = (uint32_t)t->plan->n_samples,
                   n_layers = compares ? t->results.n_layers : layers_to_do(t, sample);
    if (n_layers == 0) return 0;
    int rc = tune_make_prompt(t, sample % n_each % TUNE_N_TEXTS, sample,
                              t->lengths.sizes[sample / n_each], err);
    if (!rc) tune_pass_begin(t->pass, t->prompt.ids, (uint32_t)t->prompt.n);
    for (uint32_t l = 0; l < n_layers && !rc; l++) rc = measure_layer(t, sample, l, compares, err);
    return rc;
}

/* ---- the choice ---- */

uint32_t tune_n_full_attention(const struct tune *t) {
    uint32_t n = 0;
    for (uint32_t l = 0; l < t->model.n_attention; l++) n += !tune_has_window(t, l);
    return n;
}

struct tune_choice tune_choice_of(const struct tune *t, uint32_t layer, uint32_t head) {
    const struct tune_goal goal = {t->plan->objective, t->plan->target, t->floor};
    return tune_has_window(t, layer) ? TUNE_DENSE : tune_choose(&t->results, &goal, layer, head);
}

static struct attn_pattern chosen_pattern(const struct tune *t, uint32_t head_of_all,
                                          int32_t candidate) {
    const uint32_t n_heads = t->model.n_heads;
    return tune_results_patterns(&t->results, head_of_all / n_heads,
                                 (uint32_t)candidate)[head_of_all % n_heads];
}

static struct tune_summary choose_all(struct tune *t) {
    const uint32_t n_heads = t->model.n_heads, n = tune_n_full_attention(t) * n_heads;
    struct tune_summary sum = {.worst = 1};
    for (uint32_t i = 0; i < t->model.n_attention * n_heads; i++) {
        const struct tune_choice choice = tune_choice_of(t, i / n_heads, i % n_heads);
        t->patterns.heads[i] = choice.candidate < 0 ? (struct attn_pattern){.kind = PATTERN_DENSE}
                                                    : chosen_pattern(t, i, choice.candidate);
        t->patterns.scores[i] = choice.mean_recall;
        if (tune_has_window(t, i / n_heads)) continue;
        sum.recall += choice.mean_recall / n;
        sum.cost += choice.cost / n;
        if (choice.worst_recall < sum.worst) sum.worst = choice.worst_recall;
    }
    return sum;
}

/* ---- all of it ---- */

static void begin_progress(struct tune *t) {
    const struct tune_results *r = &t->results;
    double n_done = 0, n_all = (double)r->n_samples * tune_n_full_attention(t) * r->n_candidates;
    for (uint32_t s = 0; s < r->n_samples; s++) {
        for (uint32_t l = 0; l < r->n_layers; l++)
            n_done += tune_results_at(r, s, l)->done ? r->n_candidates : 0;
        n_done += r->compared[s] ? r->n_layers : 0;
    }
    if (t->finds_filters) n_all += (double)r->n_samples * r->n_layers + tune_trial_work(t);
    if (t->finds_patterns) n_all += tune_ladder_work(t) + tune_loss_work(t);
    fprintf(stderr, "tune: measurements are saved in %s; another run continues from there\n",
            t->state_path);
    progress_begin(&t->progress, "tune", n_all, n_done);
}

/* Chooses the patterns of all heads, writes them, and measures what they lose.  A search that is
 * stopped from here on has its patterns. */
static int choose_and_try(struct tune *t, struct tune_summary *sum, double floor,
                          struct error *err) {
    t->floor = floor;
    t->loss.is_known = false;
    t->patterns.dense_perplexity = t->patterns.sparse_perplexity = 0; /* of others */
    *sum = choose_all(t);
    int rc = tune_save(t, sum, err);
    progress_end(&t->progress);
    if (rc) return rc;
    fprintf(stderr, "tune: the patterns with a floor of %.3g are in %s\n", floor, t->out);
    rc = tune_measure_loss(t, err);
    progress_end(&t->progress);
    if (!rc && t->loss.n_tokens)
        fprintf(stderr, "tune: they lose %.2f of perplexity on held-out text\n",
                patterns_loss(&t->patterns));
    return rc;
}

/* Does that with --floor, or with one floor after the other until the patterns lose little: heads
 * of low recall are few, and lose the most. */
static int choose_within_bound(struct tune *t, struct tune_summary *sum, struct error *err) {
    static const double floors[] = {0.8, 0.9, 0.95, 0.98};
    const double given = t->plan->floor;
    int rc = choose_and_try(t, sum, given > 0 ? given : floors[0], err);
    for (size_t i = 1; i < sizeof(floors) / sizeof(*floors) && !rc && given <= 0; i++) {
        if (patterns_loss(&t->patterns) <= PATTERNS_MOST_LOSS) break;
        progress_expect(&t->progress, tune_loss_work(t));
        rc = choose_and_try(t, sum, floors[i], err);
    }
    return rc;
}

static int find_patterns(struct tune *t, struct error *err) {
    struct tune_summary sum;
    tune_pass_destroy(t->pass); /* the engine needs its memory */
    t->pass = NULL;
    int rc = choose_within_bound(t, &sum, err);
    if (!rc) rc = tune_climb_ladder(t, err);
    progress_end(&t->progress);
    if (!rc) rc = tune_save(t, &sum, err);
    if (rc) return rc;
    tune_print_heads(t);
    tune_print_summary(t, &sum);
    return 0;
}

static int find_filters(struct tune *t, struct error *err) {
    tune_pass_destroy(t->pass); /* as above */
    t->pass = NULL;
    const int rc = tune_layers_save(t, err);
    progress_end(&t->progress);
    if (rc) return rc;
    if (t->finds_patterns) puts(""); /* between two tables */
    tune_layers_print(t);
    return 0;
}

/* Returns the sample that the candidates are fitted by: the first of the longest, where a budget
 * saves the most. */
static uint32_t first_sample(const struct tune *t) {
    uint32_t i = 0;
    while (t->lengths.sizes[i] != t->longest) i++;
    return i * (uint32_t)t->plan->n_samples;
}

static int run(struct tune *t, struct error *err) {
    const uint32_t n = t->results.n_samples, first = first_sample(t);
    int rc = 0;
    begin_progress(t);
    for (uint32_t s = 0; s < n && !rc; s++) rc = measure_sample(t, (first + s) % n, err);
    if (!rc && t->finds_patterns) rc = find_patterns(t, err);
    progress_end(&t->progress);
    if (!rc && t->finds_filters) rc = find_filters(t, err);
    if (!rc) unlink(t->state_path);
    return rc;
}

int tune_run(const struct tune_plan *plan, const struct options *options, const char *model_dir,
             struct backend *backend, struct error *err) {
    char real_dir[PATH_MAX];
    if (backend->n_ranks > 1)
        return error_set(err, ERR_INVALID,
                         "--tensor-parallel-size and --context-parallel-size must be 1: quire tune "
                         "computes on one rank");
    struct tune t = {.plan = plan,
                     .options = options,
                     .model_dir = model_dir,
                     .be = backend,
                     .unit_s = 1,
                     .config = engine_setup_config(options, model_dir, backend)};
    int rc = open_tune(&t, real_dir, err);
    if (!rc) rc = run(&t, err);
    close_tune(&t);
    return rc;
}
