/* test_team.c - the whole engine where ranks share the model, against one rank: every tiny
 * checkpoint, with every mechanism of KV policies and order of prompts.
 *
 * A sum over ranks is rounded in another place, so numbers are compared within a bound.  Texts are
 * greedy; behind a token that differs in a near tie nothing is compared.  QUIRE_TEST_LONG takes
 * every checkpoint with everything, all numbers of ranks, and 200 failures of a rank.
 *
 * Usage: test_engine_team CHECKPOINTS [TEST]: only tests whose names match, such as a_rank_* */
#define _GNU_SOURCE /* nftw */
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/count.h"
#include "engine/base/error.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/collective.h"
#include "engine/device/layer_group.h"
#include "engine/engine.h"
#include "engine/model/feed_forward.h"
#include "engine/model/model.h"
#include "tests/engine/answers.h"
#include "tests/engine/rank_device.h"
#include "tests/engine/rank_kills.h"
#include "tests/kv_types.h"
#include "tests/model/tiny_models.h"
#include "tests/test.h"

/* How far a mean of what all ranks say may be off one rank's mean. */
#define MEAN_BOUND 1e-5f

enum { N_VOCAB = 131, N_PROMPT = 230, ROWS = 160 };

static const char *data; /* the folder of the tiny checkpoints */
static char dir[512];

static const struct layer_group group = {0, 1, 2};

/* What is compared: a request, and the pages that it runs with. */
struct subject {
    const char *name;
    enum page_format format;
    struct kv_choice kv;
    bool is_sparse, is_long; /* is_long: its prompt is layer-major */
    bool is_filtered;        /* a filter layer chooses what its prompt visits */
};

/* Of every head of a prompt that is_filtered. */
static struct attn_pattern filters[MAX_HEADS];

static const struct subject subjects[] = {
    {.name = "full", .kv = {.mechanism = KV_WHOLE, .type = TYPE_FULL}},
    {.name = "full, fp8 pages", .format = PAGE_FP8},
    {.name = "streaming",
     .kv = {.mechanism = KV_BOUNDED, .type = TYPE_STREAMING, .n_sink = 4, .n_recent = 90}},
    {.name = "heavy_hitter",
     .kv = {.mechanism = KV_BOUNDED,
            .type = TYPE_HEAVY_HITTER,
            .n_recent = 40,
            .n_heavy = 40,
            .score = KV_SCORE_SUM,
            .chunk = 100}},
    {.name = "heavy_hitter, of a window",
     .kv = {.mechanism = KV_BOUNDED,
            .type = TYPE_HEAVY_HITTER,
            .n_recent = 64,
            .n_heavy = 40,
            .score = KV_SCORE_WINDOW,
            .window = 32,
            .whole = true}},
    {.name = "offload",
     .kv = {.mechanism = KV_SELECTING,
            .type = TYPE_OFFLOAD,
            .n_sink = 4,
            .n_selected = 64,
            .n_tail = 64}},
    {.name = "offload, on the device",
     .kv = {.mechanism = KV_SELECTING,
            .type = TYPE_OFFLOAD,
            .n_sink = 4,
            .n_selected = 64,
            .n_tail = 64,
            .on_device = true}},
    {.name = "offload, uniform",
     .kv = {.mechanism = KV_SELECTING,
            .type = TYPE_OFFLOAD,
            .selector = KV_SELECTOR_UNIFORM,
            .n_sink = 4,
            .n_selected = 64,
            .n_tail = 64}},
    {.name = "offload, exponential",
     .kv = {.mechanism = KV_SELECTING,
            .type = TYPE_OFFLOAD,
            .selector = KV_SELECTOR_EXPONENTIAL,
            .n_sink = 4,
            .n_selected = 64,
            .n_tail = 64,
            .on_device = true}},
    {.name = "offload, accumulated",
     .kv = {.mechanism = KV_SELECTING,
            .type = TYPE_OFFLOAD,
            .selector = KV_SELECTOR_ACCUMULATED,
            .n_sink = 4,
            .n_selected = 64,
            .n_tail = 64}},
    {.name = "filters", .is_sparse = true, .is_filtered = true},
    {.name = "sparse", .is_sparse = true},
    {.name = "sparse, layer by layer", .is_sparse = true, .is_long = true},
};

static struct backend *take_ranks(uint32_t n, bool batch_invariant) {
    struct backend *be;
    struct error err = {0};
    if (rank_device.take(&be, n, batch_invariant, &err)) fail_msg("%s", err.text);
    return be;
}

/* Says whether both layers see everything, so that one can be the other's filter. */
static bool can_select(const struct model_config *model) {
    return model->recurrent.n_layers == 0 && !layer_has_window(model->windows, 0) &&
           !layer_has_window(model->windows, 1);
}

static enum ranks_share ranks_share; /* of the ranks that are compared */

static struct engine_config config_of(struct backend *be, const struct subject *s,
                                      const struct model_config *model) {
    return (struct engine_config){.model_dir = dir,
                                  .backend = be,
                                  .ranks_share = ranks_share,
                                  .max_num_seqs = 4,
                                  .max_batched_tokens = ROWS,
                                  .max_queued = 16,
                                  .kv_format = s->format ? s->format : rank_device.format,
                                  .kv_cache_bytes = 1u << 26,
                                  .host_pool_bytes = 1u << 22,
                                  .bounded_caches = true,
                                  .prefix_caching = true,
                                  .groups = &group,
                                  .n_groups = can_select(model),
                                  .max_selected = 128,
                                  .sparse_prefill = model_has_full_attention(model),
                                  .max_long_rows = s->is_long ? 512 : 1,
                                  .patterns = mixed,
                                  .min_sparse_tokens = UINT32_MAX,
                                  .tokens_only = true};
}

static struct recipe recipe_of(const struct subject *s, uint32_t n_prompt) {
    struct recipe r = recipe_make(n_prompt, 6);
    for (uint32_t i = 0; i < n_prompt; i++) r.prompt[i] = 3 + r.prompt[i] % (N_VOCAB - 3);
    r.params.sampler.temperature = 0;
    r.params.n_prompt_logprobs = s->is_sparse || s->kv.mechanism != KV_WHOLE ? -1 : 0;
    r.kv = s->kv;
    r.prefill.mode = s->is_sparse ? PREFILL_SPARSE : PREFILL_DENSE;
    r.prefill.patterns = s->is_filtered ? filters : NULL;
    return r;
}

/* How far ranks are off one. */
struct distance {
    float worst, sum;
    uint32_t n, n_flips;
};

static void add_distance(struct distance *to, const struct token_info *one,
                         const struct token_info *shared, struct rank_bounds bounds,
                         const char *what) {
    const float far = fabsf(one->logprob - shared->logprob);
    const bool is_flip = far > bounds.worst && bounds.flips > 0;
    if (!(far <= bounds.worst) && !is_flip)
        fail_msg("%s: logprob number %u: %g, not %g", what, to->n, shared->logprob, one->logprob);
    to->n_flips += is_flip;
    to->worst = fmaxf(to->worst, is_flip ? 0 : far);
    to->sum += far;
    to->n++;
}

/* Fails unless the two say the same, as far as sums in another order can.  *most: how far ranks
 * have been off so far. */
static void assert_like(const struct answer *one, const struct answer *shared,
                        struct rank_bounds bounds, struct rank_bounds *most, const char *what) {
    struct distance d = {0};
    bool are_same = true;
    assert_int_equal(one->n_prompt_infos, shared->n_prompt_infos);
    for (uint32_t i = 1; i < one->n_prompt_infos; i++)
        add_distance(&d, &one->prompt[i], &shared->prompt[i], bounds, what);
    assert_int_equal(one->n_tokens, shared->n_tokens);
    for (uint32_t i = 0; i < one->n_tokens && are_same; i++) {
        add_distance(&d, &one->tokens[i], &shared->tokens[i], bounds, what);
        are_same = one->tokens[i].token == shared->tokens[i].token; /* else a near tie */
    }
    most->worst = fmaxf(most->worst, d.worst);
    most->mean = fmaxf(most->mean, d.sum / (float)d.n);
    if (d.sum > bounds.mean * (float)d.n)
        fail_msg("%s: off by %g on average", what, d.sum / (float)d.n);
    if ((float)d.n_flips > bounds.flips * (float)d.n)
        fail_msg("%s: %u of %u are further off than %g", what, d.n_flips, d.n, bounds.worst);
    if (!are_same) return;
    for (int i = 0; i < KV_N_NUMBERS; i++)
        if (!(fabs(one->last.kv.values[i] - shared->last.kv.values[i]) <=
              fmaxf(bounds.worst, MEAN_BOUND)) &&
            !(isnan(one->last.kv.values[i]) && isnan(shared->last.kv.values[i])))
            fail_msg("%s: usage %d is %g, not %g", what, i, shared->last.kv.values[i],
                     one->last.kv.values[i]);
    if (fabs(one->last.prefill.density - shared->last.prefill.density) > 0.02)
        fail_msg("%s: density", what);
}

/* Tells whether the engine takes the recipe. */
static bool is_taken(struct engine *engine, const struct recipe *r, struct error *why) {
    struct engine_request request = {.prompt = (uint32_t *)r->prompt,
                                     .n_prompt = r->n_prompt,
                                     .params = r->params,
                                     .kv = r->kv,
                                     .prefill = r->prefill};
    const int code = engine_admit(engine, &request, 1, why);
    free(request.plan);
    return code == 0;
}

/* Returns true, and what n ranks answer to the recipe; or false, and why they refuse it. */
static bool ask(const struct subject *s, const struct model_config *model, uint32_t n_ranks,
                const struct recipe *recipe, struct answer *out, struct error *why) {
    struct backend *be = take_ranks(n_ranks, false);
    const struct engine_config config = config_of(be, s, model);
    struct engine *engine = NULL;
    *why = (struct error){0};
    const bool takes = engine_create(&engine, &config, why) == 0 && is_taken(engine, recipe, why);
    if (takes) *out = answers_one(engine, recipe);
    engine_destroy(engine);
    rank_device.give_back(be, false);
    return takes;
}

static bool divides_kv_heads(uint32_t n_heads, uint32_t n) {
    return n_heads % n == 0 || n % n_heads == 0;
}

/* Tells whether so many ranks can share the model, by its numbers. */
static bool is_divided(const struct model_config *c, uint32_t n) {
    bool divides = c->n_heads % n == 0 && divides_kv_heads(c->n_kv_heads, n);
    if (c->windowed.n_heads > 0) divides &= divides_kv_heads(c->windowed.n_heads, n);
    if (ranks_share == RANKS_SHARE_ROWS) return divides && c->recurrent.n_layers == 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        divides &= c->layers[i].ffn_dim % n == 0 && c->layers[i].shared_dim % n == 0 &&
                   c->layers[i].dense_dim % n == 0;
    if (c->recurrent.n_layers > 0)
        divides &= divides_kv_heads(c->recurrent.n_k_heads, n) && c->recurrent.n_v_heads % n == 0;
    return divides;
}

/* Tells whether the subject's heads choose tokens together. */
static bool selects(const struct subject *s) {
    return s->kv.mechanism == KV_SELECTING || s->is_filtered;
}

/* Returns how far ranks may be off one. */
static struct rank_bounds bounds_of(const struct subject *s) {
    if (ranks_share == RANKS_SHARE_ROWS) return rank_device.row_bounds;
    return s->format == PAGE_FP8 ? rank_device.fp8_bounds : rank_device.bounds;
}

static uint32_t n_compared[COUNT(subjects)];
static struct rank_bounds most_off[COUNT(subjects)];

/* Compares what n ranks answer with one rank's answer. */
static void compare(const struct subject *s, const struct model_config *model, uint32_t n,
                    const struct recipe *recipe, const struct answer *one) {
    struct answer shared = {0};
    struct error why;
    char what[640];
    const bool repeats = n > model->n_kv_heads, takes = ask(s, model, n, recipe, &shared, &why);
    snprintf(what, sizeof(what), "%s, %u ranks, %s", dir, n, s->name);
    const bool is_expected = is_divided(model, n) &&
                             (rank_device.shares_heads || !(repeats && s->kv.score)) &&
                             (rank_device.selects || !selects(s));
    /* Blocks of quantised weights may be larger than a rank's part of these small ones. */
    if (takes != is_expected && (takes || !*model->quantisation.method))
        fail_msg("%s: %s", what, takes ? "is not refused" : why.text);
    if (!takes && !strstr(why.text, ranks_setting(ranks_share))) fail_msg("%s: %s", what, why.text);
    /* Ranks with the same KV head add up its scores. */
    struct rank_bounds bounds = repeats && s->kv.score ? rank_device.bounds : bounds_of(s);
    if (feed_forward_experts(model, 1).n_experts == 0) bounds.flips = 0;
    if (takes) assert_like(one, &shared, bounds, &most_off[s - subjects], what);
    n_compared[s - subjects] += takes;
    answer_forget(&shared);
}

/* Returns a number of ranks, or several as a set of bits; most of them divide the model's heads. */
static unsigned choose_ranks(const struct model_config *c, int number) {
    if (getenv("QUIRE_TEST_LONG")) return 1 << 2 | 1 << 3 | 1 << 4 | 1 << 6;
    if (c->n_heads % 4 == 0 && number % 2 == 0) return 1 << 4;
    return c->n_heads % 3 == 0 ? 1 << 3 : 1 << 2;
}

/* Compares everything that a checkpoint takes; number: its own. */
static void compare_all(const char *name, int number) {
    struct model_config model;
    struct error why = {0};
    snprintf(dir, sizeof(dir), "%s/%s", data, name);
    if (model_config_load(&model, dir, 0, &why)) fail_msg("%s", why.text);
    const unsigned n_ranks = choose_ranks(&model, number);
    const uint32_t n_prompt = model.max_position < N_PROMPT + 8 ? model.max_position - 8 : N_PROMPT;
    for (size_t i = 0; i < COUNT(subjects); i++) {
        const size_t turns = ranks_share == RANKS_SHARE_ROWS ? 4 : 2;
        const bool is_left_out =
            i > 0 && (i + (size_t)number) % turns && !getenv("QUIRE_TEST_LONG");
        const struct recipe recipe = recipe_of(&subjects[i], n_prompt);
        struct answer one = {0};
        if (is_left_out) continue;
        if (!ask(&subjects[i], &model, 1, &recipe, &one, &why)) {
            const bool is_refused = rank_device.refuses && strstr(why.text, rank_device.refuses);
            if (i == 0 && !is_refused) fail_msg("%s: %s", dir, why.text); /* it is served whole */
            continue;
        }
        for (uint32_t n = 2; n < 8; n++)
            if (n_ranks >> n & 1) compare(&subjects[i], &model, n, &recipe, &one);
        answer_forget(&one);
    }
    model_config_fini(&model);
}

static void compare_models(enum ranks_share share) {
    ranks_share = share;
    memset(n_compared, 0, sizeof(n_compared));
    memset(most_off, 0, sizeof(most_off));
    for (int i = 0; i < N_TINY_MODELS; i++) {
        srand((unsigned)i + 1);
        compare_all(tiny_models[i], i);
    }
    ranks_share = RANKS_SHARE_WEIGHTS;
    for (size_t i = 0; i < COUNT(subjects); i++)
        printf("%s: %u compared, off by %.5f at most, %.5f on average\n", subjects[i].name,
               n_compared[i], most_off[i].worst, most_off[i].mean);
    for (size_t i = 0; i < COUNT(subjects); i++)
        if (n_compared[i] == 0 && (rank_device.selects || !selects(&subjects[i])))
            fail_msg("%s: no checkpoint takes it", subjects[i].name);
}

TEST(ranks_that_share_weights_answer_as_one_does) {
    compare_models(RANKS_SHARE_WEIGHTS);
}

TEST(ranks_that_share_rows_answer_as_one_does) {
    compare_models(RANKS_SHARE_ROWS);
}

/* ---- one checkpoint, four ranks ---- */

enum { N_RANKS = 4, N_AT_ONCE = 5, MOST_SECONDS = 60 };

/* Returns the settings of a checkpoint of four heads, which `model` describes from then on. */
static struct engine_config four_ranks(struct backend *be, struct model_config *model) {
    struct error err = {0};
    snprintf(dir, sizeof(dir), "%s/gqa-bf16-llama3-tied", data);
    assert_int_equal(model_config_load(model, dir, 0, &err), 0);
    return config_of(be, &subjects[0], model);
}

static struct recipe random_recipe(void) {
    struct recipe r = recipe_of(&subjects[0], 20 + (uint32_t)rand() % 200);
    r.params.sampler.temperature = 1;
    r.params.max_tokens = 20;
    return r;
}

/* Returns settings under which a request's bits depend on nothing else that runs. */
static struct engine_config invariant_ranks(struct backend *be, struct model_config *model) {
    struct engine_config config = four_ranks(be, model);
    config.batch_invariant = true;
    config.prefix_caching = false;
    return config;
}

/* Asks each request alone, on n ranks. */
static void ask_alone(uint32_t n_ranks, const struct recipe *recipes, struct answer *alone) {
    struct backend *be = take_ranks(n_ranks, true);
    struct model_config model;
    const struct engine_config config = invariant_ranks(be, &model);
    for (int i = 0; i < N_AT_ONCE; i++) {
        struct engine *engine = answers_start(&config);
        alone[i] = answers_one(engine, &recipes[i]);
        engine_destroy(engine);
    }
    model_config_fini(&model);
    rank_device.give_back(be, false);
}

/* Asks all at once, twice, on four ranks: each bit must be that of the request alone. */
static void ask_together(const struct recipe *recipes, const struct answer *alone) {
    struct backend *be = take_ranks(N_RANKS, true);
    struct model_config model;
    const struct engine_config config = invariant_ranks(be, &model);
    for (int again = 0; again < 2; again++)
        answers_compare(answers_start(&config), recipes, alone, N_AT_ONCE);
    model_config_fini(&model);
    rank_device.give_back(be, false);
}

static void compare_bits(uint32_t n_ranks_alone, enum ranks_share share) {
    struct recipe recipes[N_AT_ONCE];
    struct answer alone[N_AT_ONCE];
    srand(7);
    for (int i = 0; i < N_AT_ONCE; i++) recipes[i] = random_recipe();
    ranks_share = share;
    ask_alone(n_ranks_alone, recipes, alone);
    ask_together(recipes, alone);
    ranks_share = RANKS_SHARE_WEIGHTS;
    for (int i = 0; i < N_AT_ONCE; i++) answer_forget(&alone[i]);
}

/* A request's bits depend on the number of ranks, and on nothing else that runs. */
TEST(bits_are_the_same_in_company_and_again) {
    compare_bits(N_RANKS, RANKS_SHARE_WEIGHTS);
}

/* Where ranks share rows, nothing is added up between them: bits are those of one rank. */
TEST(bits_of_ranks_that_share_rows_are_one_rank_s) {
    compare_bits(1, RANKS_SHARE_ROWS);
}

/* ---- ranks that fail ---- */

/* Returns the subject, or the first one if four ranks of the device refuse it. */
static const struct subject *taken_subject(const char *name, const struct model_config *model) {
    size_t i = 0;
    while (strcmp(subjects[i].name, name) != 0) i++;
    const struct subject *s = &subjects[i];
    const bool repeats = N_RANKS > model->n_kv_heads;
    const bool is_refused = (selects(s) && !rank_device.selects) ||
                            (repeats && s->kv.score && !rank_device.shares_heads);
    return is_refused ? &subjects[0] : s;
}

/* Submits requests that take all ways through a step which the device has. */
static void submit_all(struct engine *engine, const struct model_config *model,
                       struct answer answers[N_AT_ONCE]) {
    static const char *const names[N_AT_ONCE] = {"full", "heavy_hitter", "offload", "sparse",
                                                 "streaming"};
    for (int k = 0; k < N_AT_ONCE; k++) {
        const struct subject *s = taken_subject(names[k], model);
        struct recipe r = recipe_of(s, 150 + (uint32_t)rand() % 70);
        r.params.max_tokens = 40;
        recipe_submit(engine, &r, &answers[k]);
    }
}

/* Runs the requests on ranks of which one fails at the n-th call of a kind, or at none.  Returns
 * whether it has failed.  calls: gets how many there were. */
static bool run_and_kill(uint32_t failing, enum rank_kill kind, uint32_t n,
                         uint32_t calls[N_KILLS]) {
    struct backend *be = take_ranks(N_RANKS, false);
    struct model_config model;
    const struct engine_config config = four_ranks(be, &model);
    struct answer answers[N_AT_ONCE] = {0};
    uint32_t n_failed = 0;
    struct engine *engine = answers_start(&config);
    alarm(MOST_SECONDS); /* a hang ends the test */
    rank_kills_begin(be->ranks[failing]);
    if (n > 0) rank_kills_at(kind, n);
    submit_all(engine, &model, answers);
    answers_wait(engine, answers, N_AT_ONCE);
    alarm(0);
    for (int k = 0; k < N_AT_ONCE; k++) {
        const struct engine_event *last = &answers[k].last;
        n_failed += last->reason == FINISH_ERROR;
        if (last->reason == FINISH_ERROR && !strstr(last->error_text, rank_kill_names[kind]))
            fail_msg("%s, number %u: %s", rank_kill_names[kind], n, last->error_text);
        answer_forget(&answers[k]);
    }
    for (int i = 0; i < N_KILLS; i++) calls[i] = rank_kills_calls(i);
    assert_int_equal(engine_healthy(engine), n_failed == 0);
    engine_destroy(engine);
    rank_kills_end();
    be->ops->collective->resume(be);
    model_config_fini(&model);
    rank_device.give_back(be, false);
    return n_failed > 0;
}

/* Whenever a rank fails, every request ends with an event, those that run with an error; nothing
 * hangs.  Moments are drawn from all calls that there are without a failure. */
static void kill_ranks(enum ranks_share share) {
    const uint32_t n_each = getenv("QUIRE_TEST_LONG") ? 14 : 1;
    uint32_t calls[N_KILLS], ignored[N_KILLS], n_killed = 0, n_run = 0;
    srand(8);
    ranks_share = share;
    assert_false(run_and_kill(0, 0, 0, calls)); /* rank 0 does all that others do, and samples */
    for (int kind = 0; kind < N_KILLS; kind++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < n_each && calls[kind] > 0; i++, n_run++)
            n += run_and_kill(kind == KILL_SAMPLE ? 0 : (uint32_t)rand() % N_RANKS, kind,
                              1 + (uint32_t)rand() % calls[kind], ignored);
        printf("%s: failed %u times, at one of %u calls\n", rank_kill_names[kind], n, calls[kind]);
        n_killed += n;
    }
    /* A later run may have fewer calls than the first one had. */
    printf("%u of %u ranks have failed\n", n_killed, n_run);
    uint32_t n_kinds = N_KILLS - 4;
    if (share == RANKS_SHARE_ROWS) n_kinds--;    /* exchanges, but neither sums nor columns */
    if (!rank_device.shares_heads) n_kinds -= 2; /* evictions by scores */
    if (!rank_device.selects) n_kinds -= 2;
    assert_true(n_killed > n_run / 2 && n_run >= n_kinds * n_each);
    assert_false(run_and_kill(1, 0, 0, ignored));
    ranks_share = RANKS_SHARE_WEIGHTS;
}

TEST(a_rank_that_fails_ends_all_requests) {
    kill_ranks(RANKS_SHARE_WEIGHTS);
}

TEST(a_rank_that_shares_rows_and_fails_ends_all_requests) {
    kill_ranks(RANKS_SHARE_ROWS);
}

/* A rank that cannot load its share ends the start, and the next one is whole. */
TEST(a_rank_that_cannot_load_ends_the_start) {
    const int n_times = getenv("QUIRE_TEST_LONG") ? 14 : 3;
    srand(9);
    for (int i = 0; i < n_times; i++) {
        struct backend *be = take_ranks(N_RANKS, false);
        struct model_config model;
        const struct engine_config config = four_ranks(be, &model);
        struct engine *engine = NULL;
        struct error why = {0};
        rank_kills_begin(be->ranks[rand() % N_RANKS]);
        rank_kills_at(KILL_LOAD, 1 + (uint32_t)rand() % 15);
        assert_int_equal(engine_create(&engine, &config, &why), ERR_DEVICE);
        assert_non_null(strstr(why.text, rank_kill_names[KILL_LOAD]));
        rank_kills_end();
        engine = answers_start(&config);
        engine_destroy(engine);
        model_config_fini(&model);
        rank_device.give_back(be, false);
    }
}

/* ---- recurrent states ---- */

enum { N_TURNS = 45, N_BEGINNINGS = 9 };

/* Asks prompts that share beginnings, one after the other; returns what the engine counts. */
static struct engine_stats ask_turns(uint32_t n_ranks, const struct recipe *recipes,
                                     struct answer *answers) {
    struct backend *be = take_ranks(n_ranks, false);
    struct model_config model;
    struct engine_stats stats;
    struct error err = {0};
    snprintf(dir, sizeof(dir), "%s/qwen3_5-wrapper-mha-f16-head32", data);
    assert_int_equal(model_config_load(&model, dir, 0, &err), 0);
    struct engine_config config = config_of(be, &subjects[1], &model); /* small pages */
    config.max_model_len = 320;
    config.max_num_seqs = 1;
    config.kv_cache_bytes = 160000; /* of few states: others leave their slots */
    struct engine *engine = answers_start(&config);
    for (int i = 0; i < N_TURNS; i++) answers[i] = answers_one(engine, &recipes[i]);
    engine_stats(engine, &stats);
    engine_destroy(engine);
    model_config_fini(&model);
    rank_device.give_back(be, false);
    return stats;
}

/* Texts begin from checkpoints in slots, and from those that have left them, on every rank. */
TEST(ranks_begin_from_the_same_checkpoints) {
    struct recipe recipes[N_TURNS];
    struct answer one[N_TURNS], shared[N_TURNS];
    struct rank_bounds most = {0};
    uint32_t n_found = 0;
    srand(11);
    for (int i = 0; i < N_TURNS; i++) {
        recipes[i] = recipe_of(&subjects[0], 200 + (uint32_t)i);
        recipes[i].params.n_prompt_logprobs = -1;
        if (i >= N_BEGINNINGS)
            memcpy(recipes[i].prompt, recipes[i - N_BEGINNINGS].prompt, 192 * sizeof(uint32_t));
    }
    ask_turns(1, recipes, one);
    const struct engine_stats stats = ask_turns(2, recipes, shared);
    for (int i = 0; i < N_TURNS; i++) {
        assert_like(&one[i], &shared[i], rank_device.fp8_bounds, &most, "checkpoints");
        assert_int_equal(one[i].last.n_cached, shared[i].last.n_cached);
        n_found += shared[i].last.n_cached > 0;
        answer_forget(&one[i]);
        answer_forget(&shared[i]);
    }
    assert_true(n_found > N_TURNS / 3 && stats.checkpoints.n_stored > 0);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at) {
    (void)info, (void)kind, (void)at;
    return remove(path);
}

/* Returns how many tokens of the prompt n ranks find, in a folder that they then save to. */
static uint32_t count_cached(uint32_t n_ranks, const char *folder, const struct recipe *r) {
    struct backend *be = take_ranks(n_ranks, false);
    struct model_config model;
    struct engine_config config = four_ranks(be, &model);
    config.disk_path = folder;
    config.disk_bytes = 1u << 26;
    struct engine *engine = answers_start(&config);
    struct answer answer = answers_one(engine, r);
    const uint32_t n_cached = answer.last.n_cached;
    answer_forget(&answer);
    engine_destroy(engine);
    model_config_fini(&model);
    rank_device.give_back(be, false);
    return n_cached;
}

TEST(a_cache_on_disk_is_found_by_as_many_ranks) {
    char folder[] = "/tmp/quire-team-XXXXXX";
    assert_non_null(mkdtemp(folder));
    srand(9);
    struct recipe r = recipe_of(&subjects[0], 200);
    r.params.n_prompt_logprobs = -1;
    assert_int_equal(count_cached(4, folder, &r), 0);
    assert_int_equal(count_cached(4, folder, &r), 192);
    assert_int_equal(count_cached(2, folder, &r), 0);
    assert_int_equal(count_cached(1, folder, &r), 0);
    assert_int_equal(count_cached(2, folder, &r), 192);
    ranks_share = RANKS_SHARE_ROWS;
    assert_int_equal(count_cached(2, folder, &r), 0);
    assert_int_equal(count_cached(2, folder, &r), 192);
    ranks_share = RANKS_SHARE_WEIGHTS;
    assert_int_equal(nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

int main(int argc, char **argv) {
    static const struct attn_pattern kinds[] = {{PATTERN_A_SHAPE, 32, 90},
                                                {PATTERN_VERTICAL_SLASH, 40, 100},
                                                {PATTERN_BLOCK_SPARSE, 1, 0},
                                                {PATTERN_DENSE, 0, 0}};
    for (int i = 0; i < MAX_HEADS; i++) mixed[i] = kinds[i % 4];
    for (int i = 0; i < MAX_HEADS; i++) filters[i] = (struct attn_pattern){PATTERN_FILTERS, 64, 64};
    data = argc > 1 ? argv[1] : "";
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    if (!rank_device.is_there()) return 77;
    return tests_run("team", NULL, NULL);
}
