/* test_refusals.c - what the whole engine refuses, with a small model on the CPU.
 *
 * The tables have a row for each sentence of engine_create() and engine_submit() in engine.h that
 * says when an answer is ERR_INVALID or ERR_TOO_LONG, and rows for what such a request may be. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/device/layer_group.h"
#include "engine/device/sparse.h"
#include "engine/engine.h"
#include "tests/engine/answers.h"
#include "tests/engine/late_backend.h"
#include "tests/test.h"

enum { CONTEXT = 1024, LONG_ROWS = 512 };

static char deep_dir[] = "/tmp/refusals-XXXXXX"; /* a config.json of more layers */
static struct attn_pattern dense[MAX_HEADS], unknown[MAX_HEADS], large[MAX_HEADS],
    filters[MAX_HEADS], some_filters[MAX_HEADS];
static const struct layer_group group = {2, 3, 12};

/* ---- settings ---- */

static struct engine_config plain_config(void) {
    return (struct engine_config){.model_dir = model_dir,
                                  .backend = backend,
                                  .max_num_seqs = 4,
                                  .max_model_len = CONTEXT,
                                  .max_batched_tokens = 256,
                                  .max_queued = 8,
                                  .kv_format = PAGE_F32,
                                  .kv_cache_bytes = 1u << 27};
}

static void no_sequence(struct engine_config *c) {
    c->max_num_seqs = 0;
}
static void fewer_rows_than_sequences(struct engine_config *c) {
    c->max_batched_tokens = 3;
}
static void more_than_the_context(struct engine_config *c) {
    c->max_model_len = 1u << 30;
}
static void a_disk_without_prefixes(struct engine_config *c) {
    c->disk_path = "/nowhere";
}
static void a_feed_without_prefixes(struct engine_config *c) {
    c->kv_feed = (struct kv_feed *)c; /* it is refused before anything looks at it */
}
static void too_large_patterns(struct engine_config *c) {
    c->patterns = large;
}
static void unknown_patterns(struct engine_config *c) {
    c->patterns = unknown;
}
static void mixed_patterns(struct engine_config *c) {
    c->patterns = some_filters;
}
static void a_tiny_host_pool(struct engine_config *c) {
    c->host_pool_bytes = 64;
}
static void groups_behind_the_last_layer(struct engine_config *c) {
    static const struct layer_group wrong = {2, 3, 99};
    c->groups = &wrong;
    c->n_groups = 1;
}
static void too_many_groups(struct engine_config *c) {
    static struct layer_group groups[MAX_LAYER_GROUPS + 1];
    for (uint32_t i = 0; i <= MAX_LAYER_GROUPS; i++)
        groups[i] = (struct layer_group){2 * i, 2 * i + 1, 2 * i + 2};
    c->groups = groups;
    c->n_groups = MAX_LAYER_GROUPS + 1;
    c->model_dir = deep_dir;
    c->random_weights = c->tokens_only = true;
}
static void offloaded_experts_of_no_mixture(struct engine_config *c) {
    c->expert_offload_bytes = 1;
}
static void a_cache_below_one_text(struct engine_config *c) {
    c->kv_cache_bytes = 1 << 16;
}

static bool note_loading(void *ctx, uint64_t done, uint64_t total) {
    (void)done, (void)total;
    *(bool *)ctx = true;
    return true;
}

TEST(settings_that_cannot_work_are_refused_by_name) {
    static const struct {
        void (*change)(struct engine_config *config);
        int code;
        const char *words;
        bool needs_weights; /* it is refused once they are loaded */
    } rows[] = {
        {no_sequence, ERR_INVALID, "--max-num-seqs", false},
        {fewer_rows_than_sequences, ERR_INVALID, "--max-num-batched-tokens", false},
        {more_than_the_context, ERR_INVALID, "--max-model-len", false},
        {a_disk_without_prefixes, ERR_INVALID, "--kv-disk-path", false},
        {a_feed_without_prefixes, ERR_INVALID, "--kv-events", false},
        {too_large_patterns, ERR_INVALID, "the pattern of layer 0, head 3", false},
        {unknown_patterns, ERR_INVALID, "the pattern of layer 0, head 3", false},
        {mixed_patterns, ERR_INVALID, "the pattern of layer 0, head 3", false},
        {a_tiny_host_pool, ERR_INVALID, "--kv-offload-size", true},
        {groups_behind_the_last_layer, ERR_INVALID, "filter layer 2", false},
        {too_many_groups, ERR_INVALID, "at most 8 filter layers", false},
        {offloaded_experts_of_no_mixture, ERR_UNSUPPORTED, "--moe-offload-size", false},
        {a_cache_below_one_text, ERR_NOMEM, "--max-model-len", true},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct engine_config config = plain_config();
        struct engine *engine = NULL;
        struct error err = {0};
        bool loads = false;
        config.load_progress = note_loading;
        config.load_ctx = &loads;
        rows[i].change(&config);
        assert_int_equal(engine_create(&engine, &config, &err), rows[i].code);
        if (!strstr(err.text, rows[i].words)) fail_msg("'%s': %s", rows[i].words, err.text);
        assert_int_equal(loads, rows[i].needs_weights);
        assert_null(engine);
    }
}

/* ---- requests ---- */

/* Changes a request of five tokens, whose prompt has space for 2,000. */
typedef void change_fn(struct engine_request *r);

static void nothing(struct engine_request *r) {
    (void)r;
}
static void empty(struct engine_request *r) {
    r->n_prompt = 0;
}
static void no_token(struct engine_request *r) {
    r->prompt[3] = 1u << 30;
}
static void top_p_zero(struct engine_request *r) {
    r->params.sampler.top_p = 0;
}
static void no_number(struct engine_request *r) {
    r->params.sampler.temperature = NAN;
}
static void dense_above(struct engine_request *r) {
    r->prefill.dense_above = 1.5f;
}
static void with_1020_tokens(struct engine_request *r) {
    r->n_prompt = 1020; /* 16 follow */
}

static void sparse(struct engine_request *r) {
    r->prefill.mode = PREFILL_SPARSE;
    r->n_prompt = 700;
}
static void sparse_with(struct engine_request *r, const struct attn_pattern *patterns) {
    sparse(r);
    r->prefill.patterns = patterns;
}
static void dense_patterns(struct engine_request *r) {
    sparse_with(r, dense);
}
static void large_patterns(struct engine_request *r) {
    sparse_with(r, large);
}
static void no_patterns(struct engine_request *r) {
    sparse_with(r, unknown);
}
static void filter_patterns(struct engine_request *r) {
    sparse_with(r, filters);
}
static void filters_with_budget(struct engine_request *r) {
    filter_patterns(r);
    r->kv = (struct kv_choice){.mechanism = KV_BOUNDED, .n_recent = 60, .whole = true};
}
static void filters_without_reuse(struct engine_request *r) {
    filter_patterns(r);
    r->prefill.no_reuse = true;
}
static void together(struct engine_request *r) {
    sparse(r);
    r->prefill.no_reuse = true;
}
static void scored_prompt(struct engine_request *r) {
    sparse(r);
    r->params.n_prompt_logprobs = 0;
}

static void budget(struct engine_request *r) {
    r->kv = (struct kv_choice){.mechanism = KV_BOUNDED, .n_sink = 4, .n_recent = 60};
}
static void no_recent(struct engine_request *r) {
    budget(r), r->kv.n_recent = 0;
}
static void sparse_in_chunks(struct engine_request *r) {
    sparse(r), budget(r);
}
static void sparse_whole(struct engine_request *r) {
    sparse_in_chunks(r), r->kv.whole = true;
}
static void sparse_rotated(struct engine_request *r) {
    sparse_whole(r);
    r->kv.cache_positions = true;
}
static void sparse_summed(struct engine_request *r) {
    sparse_whole(r);
    r->kv.n_heavy = 8;
    r->kv.score = KV_SCORE_SUM;
}
static void sparse_beyond(struct engine_request *r) {
    sparse_whole(r), r->n_prompt = 1100;
}
static void selecting(struct engine_request *r) {
    r->kv = (struct kv_choice){
        .mechanism = KV_SELECTING, .n_selected = 64, .n_tail = 64, .on_device = true};
}
static void sparse_accumulated(struct engine_request *r) {
    sparse(r);
    selecting(r);
    r->kv.selector = KV_SELECTOR_ACCUMULATED;
}
static void kept_budget(struct engine_request *r) {
    budget(r), r->kept = true;
}
static void kept_selection(struct engine_request *r) {
    selecting(r), r->kept = true;
}
static void kept_text(struct engine_request *r) {
    r->kept = true;
}
static void guessed(struct engine_request *r) {
    r->speculation = (struct speculation_choice){SPECULATION_SUFFIX, .is_asked = true};
}
static void guessed_penalty(struct engine_request *r) {
    guessed(r);
    r->params.sampler.presence_penalty = 1;
}
static void guessed_budget(struct engine_request *r) {
    guessed(r), budget(r);
}

struct row {
    change_fn *change;
    int code;
    const char *param, *words;
};

/* Submits each row's request alone and behind a good one: both or none are taken. */
static void assert_rows(struct engine *engine, const struct row *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t prompt[2000] = {1}, good[5] = {1};
        struct engine_request two[2] = {
            {.prompt = good, .n_prompt = 5, .params = sampling_defaults()},
            {.prompt = prompt, .n_prompt = 5, .params = sampling_defaults()}};
        struct error err = {0};
        uint64_t ids[2];
        rows[i].change(&two[1]);
        for (uint32_t first = 0; first < 2; first++) {
            assert_int_equal(engine_submit(engine, &two[first], 2 - first, ids, &err),
                             rows[i].code);
            assert_string_equal(err.param ? err.param : "", rows[i].param);
            if (!strstr(err.text, rows[i].words)) fail_msg("'%s': %s", rows[i].words, err.text);
        }
        assert_int_equal(engine_admit(engine, &two[1], 1, &err), rows[i].code);
    }
    assert_null(engine_take_events(engine));
    answers_leave_no_page(engine);
}

static void assert_taken(struct engine *engine, change_fn *const *changes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t prompt[2000] = {1};
        struct engine_request r = {.prompt = prompt, .n_prompt = 5, .params = sampling_defaults()};
        struct error err = {0};
        changes[i](&r);
        if (engine_admit(engine, &r, 1, &err)) fail_msg("%s", err.text);
        free(r.plan);
    }
}

TEST(plain_engines_refuse) {
    static const struct row rows[] = {
        {empty, ERR_INVALID, "prompt", "is empty"},
        {no_token, ERR_INVALID, "prompt", "ids end at"},
        {top_p_zero, ERR_INVALID, "", "top_p"},
        {no_number, ERR_INVALID, "", "temperature"},
        {with_1020_tokens, ERR_TOO_LONG, "prompt", "the context is at most 1024 tokens"},
        {dense_above, ERR_INVALID, "prefill", "between 0 and 1"},
        {sparse, ERR_INVALID, "prefill", "densely only"},
        {budget, ERR_INVALID, "kv_policy", "no bounded KV caches"},
        {selecting, ERR_INVALID, "kv_policy", "filter layers"},
        {guessed_penalty, ERR_INVALID, "speculation", "presence_penalty"},
    };
    static change_fn *const taken[] = {nothing, guessed, kept_text};
    const struct engine_config config = plain_config();
    struct engine *engine = answers_start(&config);
    assert_rows(engine, rows, COUNT(rows));
    assert_taken(engine, taken, COUNT(taken));
    engine_destroy(engine);
}

static struct engine_config full_config(void) {
    struct engine_config config = plain_config();
    config.bounded_caches = config.sparse_prefill = true;
    config.patterns = dense;
    config.max_long_rows = LONG_ROWS;
    config.groups = &group;
    config.n_groups = 1;
    config.max_selected = 512;
    return config;
}

TEST(sparse_prompts_are_refused) {
    static const struct row rows[] = {
        {no_patterns, ERR_INVALID, "prefill", "the pattern of layer 0, head 3"},
        {large_patterns, ERR_INVALID, "prefill", "the pattern of layer 0, head 3"},
        {filters_with_budget, ERR_INVALID, "prefill", "a kv_policy that evicts"},
        {filters_without_reuse, ERR_INVALID, "prefill", "prefill.reuse false"},
        {sparse_in_chunks, ERR_INVALID, "prefill", "kv_policy.prompt whole"},
        {sparse_rotated, ERR_INVALID, "prefill", "kv_policy.positions text"},
        {sparse_summed, ERR_INVALID, "prefill", "kv_policy.score window"},
        {sparse_accumulated, ERR_INVALID, "prefill", "than accumulated"},
        {sparse_beyond, ERR_TOO_LONG, "prompt", "a sparse prompt may have at most 1024 tokens"},
        {together, ERR_TOO_LONG, "prompt", "at most 512 tokens that are computed together"},
        {no_recent, ERR_INVALID, "kv_policy", "at least 1 recent token"},
        {guessed_budget, ERR_INVALID, "speculation", "a kv_policy that evicts"},
    };
    /* With a budget, and with log-probabilities of the prompt, too. */
    static change_fn *const taken[] = {sparse,        dense_patterns, filter_patterns, sparse_whole,
                                       scored_prompt, kept_budget,    kept_selection};
    struct engine_config config = full_config();
    struct engine *engine = answers_start(&config);
    assert_rows(engine, rows, COUNT(rows));
    assert_taken(engine, taken, COUNT(taken));
    engine_destroy(engine);
}

TEST(without_patterns_a_sparse_prompt_needs_its_own) {
    static const struct row rows[] = {{sparse, ERR_INVALID, "prefill", "needs patterns"}};
    static change_fn *const taken[] = {dense_patterns};
    struct engine_config config = full_config();
    config.patterns = NULL;
    struct engine *engine = answers_start(&config);
    assert_rows(engine, rows, COUNT(rows));
    assert_taken(engine, taken, COUNT(taken));
    engine_destroy(engine);
}

TEST(without_groups_filters_choose_nothing) {
    static const struct row rows[] = {{filter_patterns, ERR_INVALID, "prefill", "--filters-file"}};
    struct engine_config config = full_config();
    config.n_groups = 0;
    struct engine *engine = answers_start(&config);
    assert_rows(engine, rows, COUNT(rows));
    engine_destroy(engine);
}

/* A step that runs ahead may already have evicted what the answer saw. */
TEST(a_device_that_runs_ahead_cannot_tell_what_is_kept) {
    static const struct row rows[] = {
        {kept_budget, ERR_INVALID, "return_kept_positions", "which tokens a budget"},
        {kept_selection, ERR_INVALID, "return_kept_positions", "which tokens a budget"}};
    static change_fn *const taken[] = {kept_text};
    const struct engine_config config = full_config();
    late_backend_begin(backend);
    struct engine *engine = answers_start(&config);
    assert_rows(engine, rows, COUNT(rows));
    assert_taken(engine, taken, COUNT(taken));
    engine_destroy(engine);
    late_backend_end();
}

static void make_patterns(void) {
    for (int i = 0; i < MAX_HEADS; i++) filters[i].kind = PATTERN_FILTERS;
    large[3] = (struct attn_pattern){PATTERN_VERTICAL_SLASH, SPARSE_MAX_COLUMNS + 1, 1};
    some_filters[3].kind = PATTERN_FILTERS;
    unknown[3].kind = PATTERN_N_KINDS;
}

/* Writes the model's config.json with 18 layers in place of its 12. */
static int make_deep_model(const char *dir) {
    static char text[4096];
    char path[256];
    snprintf(path, sizeof(path), "%s/config.json", dir);
    FILE *file = fopen(path, "r");
    if (!file || !mkdtemp(deep_dir)) return 1;
    text[fread(text, 1, sizeof(text) - 1, file)] = 0;
    fclose(file);
    char *layers = strstr(text, "\"num_hidden_layers\": 12");
    snprintf(path, sizeof(path), "%s/config.json", deep_dir);
    file = fopen(path, "w");
    if (!file || !layers) return 1;
    memcpy(strstr(layers, "12"), "18", 2);
    fputs(text, file);
    return fclose(file);
}

static void remove_deep_model(void) {
    char path[256];
    snprintf(path, sizeof(path), "%s/config.json", deep_dir);
    remove(path);
    remove(deep_dir);
}

int main(int argc, char **argv) {
    if (argc < 2) return 1;
    make_patterns();
    if (make_deep_model(argv[1])) return 1;
    const int status = answers_main(argc, argv, NULL);
    remove_deep_model();
    return status;
}
