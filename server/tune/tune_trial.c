/* tune_trial.c - the final comparison of filter sets, by the model's answers with them.
 *
 * The similarity of layers tells which sets deserve a trial, and no more: of two sets that find
 * equally much of the attention, one may miss what the answer depends on.  So the model answers new
 * prompts greedily with each set of the shortlist.  A set's result is how much of the answer
 * without filters its own answer begins with.  Both answers begin with the same token, which the
 * prompt's last step samples; it does not count.
 *
 *   without   8 1 4 4 0 2 9 3
 *   with        1 4 4 7             3 of 7
 *
 * Only prompts that ask for something are used, because prose has many good continuations.  If
 * several things are asked for, finding one is not enough: the next is looked up in the middle of
 * the answer.
 *
 * Thread: main.  Memory: an engine's for each set, one after the other. */
#include "server/tune/tune_job.h"

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "server/bench/timed_engine.h"

enum { N_PROMPTS = 12, N_ANSWER = 48 };

static const enum tune_text kinds[] = {TUNE_RETRIEVAL, TUNE_NEEDLES, TUNE_SEVERAL};
enum { N_KINDS = sizeof(kinds) / sizeof(*kinds) };

struct trial {
    struct tune *tune;
    struct timed_engine timed;
    uint32_t expected[N_PROMPTS][N_ANSWER]; /* the answer without filters, */
    uint32_t n_expected[N_PROMPTS];         /* up to the token that ends it */
};

double tune_trial_work(const struct tune *t) {
    return (double)(1 + TUNE_N_CHOICES) * N_PROMPTS * t->model.n_attention;
}

void tune_trial_describe(struct buffer *out) {
    buffer_printf(out,
                  "to %d prompts that were not compared, at most %d tokens each; what counts is "
                  "how many are as without filters, up to the first that is not",
                  N_PROMPTS, N_ANSWER);
}

/* Opens an engine as `quire serve` would with these options, for one sequence; groups is
 * borrowed. */
static int open_engine(struct trial *trial, const struct layer_group *groups, uint32_t n_groups,
                       struct error *err) {
    const struct tune *t = trial->tune;
    struct engine_config config = t->config;
    struct error why = {0};
    config.max_model_len = min_u32(t->longest + N_ANSWER, t->model.max_position);
    config.max_num_seqs = 1;
    config.groups = groups;
    config.n_groups = n_groups;
    config.max_selected = t->comparison.max_selected;
    const int rc = timed_engine_open(&trial->timed, config, &why);
    return rc ? error_set(err, rc, "the trial of the filters: %.400s", why.text) : 0;
}

/* Generates the answer to tune->prompt. */
static int answer(struct trial *trial, const struct kv_choice *kv, uint32_t out[N_ANSWER],
                  struct error *err) {
    const struct timed_batch batch = {.tokens = trial->tune->prompt.ids,
                                      .n_prompt = (uint32_t)trial->tune->prompt.n,
                                      .n_sequences = 1,
                                      .n_generate = N_ANSWER,
                                      .kv = *kv,
                                      .prefill = {.mode = PREFILL_DENSE},
                                      .generated = out};
    struct timing timing;
    const int rc = timed_engine_run(&trial->timed, &batch, &timing, err);
    progress_add(&trial->tune->progress, trial->tune->unit_s * trial->tune->model.n_attention,
                 "answers");
    return rc;
}

/* Returns the answer's length with the token that ends it.  N_ANSWER tokens are always generated;
 * those after the end are not part of the answer. */
static uint32_t length_of(const struct model_config *model, const uint32_t answer[N_ANSWER]) {
    uint32_t n = 0;
    while (n < N_ANSWER && !model_ends_with(model, answer[n])) n++;
    return n < N_ANSWER ? n + 1 : n;
}

static uint32_t count_kept(const uint32_t *expected, uint32_t n_expected,
                           const uint32_t *answered) {
    uint32_t n = 1;
    while (n < n_expected && answered[n] == expected[n]) n++;
    return n - 1;
}

static int make_prompt(struct tune *t, uint32_t i, struct error *err) {
    const uint32_t length = t->lengths.sizes[i / N_KINDS % t->lengths.n];
    return tune_make_prompt(t, kinds[i % N_KINDS], TUNE_MAX_SAMPLES + 1 + i,
                            min_u32(length, t->model.max_position - N_ANSWER), err);
}

/* Generates the answers to all prompts with the set.  For the first set it also generates the
 * expected answers, without filters. */
static int answer_all(struct trial *trial, struct tune_filters *set, bool is_first,
                      struct error *err) {
    static const struct kv_choice full = {.mechanism = KV_WHOLE};
    struct tune *t = trial->tune;
    uint32_t n_kept = 0, n_all = 0;
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        uint32_t answered[N_ANSWER];
        int rc = make_prompt(t, i, err);
        const struct kv_choice selecting = tune_layers_choice(t, (uint32_t)t->prompt.n);
        if (!rc && is_first) {
            rc = answer(trial, &full, trial->expected[i], err);
            trial->n_expected[i] = length_of(&t->model, trial->expected[i]);
        }
        if (!rc) rc = answer(trial, &selecting, answered, err);
        if (rc) return rc;
        n_kept += count_kept(trial->expected[i], trial->n_expected[i], answered);
        n_all += trial->n_expected[i] - 1;
    }
    set->kept = n_all ? (double)n_kept / n_all : 1;
    return 0;
}

static int try_set(struct trial *trial, struct tune_filters *set, bool is_first,
                   struct error *err) {
    struct layer_group groups[MAX_LAYER_GROUPS];
    const struct model_config *model = &trial->tune->model;
    const int n = filters_groups(&set->filters, model->windows, model->n_attention, groups, err);
    int rc = n < 0 ? n : open_engine(trial, groups, (uint32_t)n, err);
    if (rc) return rc;
    rc = answer_all(trial, set, is_first, err);
    timed_engine_close(&trial->timed);
    return rc;
}

int tune_trial(struct tune *t, struct error *err) {
    struct tune_comparison *c = &t->comparison;
    struct trial trial = {.tune = t};
    int rc = 0;
    for (uint32_t i = 0; i < c->n_best && !rc; i++) rc = try_set(&trial, &c->best[i], i == 0, err);
    if (!rc) tune_filters_rank(c->best, c->n_best);
    return rc;
}
