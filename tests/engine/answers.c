/* answers.c - see answers.h. */
#include "tests/engine/answers.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/cpu/cpu.h"
#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/grammar/grammar.h"
#include "engine/model/model.h"
#include "tests/engine/late_backend.h"

const char *model_dir;
struct backend *backend;
uint32_t n_layers;
uint64_t page_bytes, plain_page_bytes;
struct attn_pattern mixed[MAX_HEADS];

struct recipe recipe_make(uint32_t n_prompt, uint32_t max_tokens) {
    struct recipe r = {.n_prompt = n_prompt, .params = sampling_defaults()};
    for (uint32_t i = 0; i < n_prompt; i++) r.prompt[i] = (uint32_t)rand() % 8000;
    r.params.max_tokens = max_tokens;
    r.params.ignore_eos = true;
    r.params.has_seed = true;
    r.params.seed = (uint64_t)rand();
    r.params.n_logprobs = 0;
    return r;
}

struct engine_config answers_config(void) {
    return (struct engine_config){.model_dir = model_dir,
                                  .backend = backend,
                                  .max_num_seqs = 16,
                                  .max_model_len = 2048,
                                  .max_batched_tokens = 256,
                                  .max_queued = 64,
                                  .kv_format = PAGE_F32,
                                  .kv_cache_bytes = 1u << 28,
                                  .sparse_prefill = true,
                                  .patterns = mixed,
                                  .min_sparse_tokens = 1 << 20};
}

struct engine *answers_start(const struct engine_config *config) {
    struct engine *engine;
    struct error err = {0};
    if (engine_create(&engine, config, &err)) fail_msg("%s", err.text);
    return engine;
}

void answers_drain(struct engine *engine) {
    for (struct engine_event *e = engine_take_events(engine), *next; e; e = next) {
        struct answer *a = e->user;
        next = e->next;
        assert_false(a->finished);
        a->n_events++;
        size_t n = a->text ? strlen(a->text) : 0;
        a->text = realloc(a->text, n + e->text_length + 1);
        memcpy(a->text + n, e->text, e->text_length + 1);
        struct token_info **list = e->kind == EVENT_PROMPT ? &a->prompt : &a->tokens;
        uint32_t *count = e->kind == EVENT_PROMPT ? &a->n_prompt_infos : &a->n_tokens;
        *list = realloc(*list, (*count + e->n_tokens + 1) * sizeof(**list));
        memcpy(*list + *count, e->tokens, e->n_tokens * sizeof(**list));
        *count += e->n_tokens;
        if (e->kind == EVENT_FINISH) {
            a->finished = true;
            a->last = *e;
        }
        engine_event_free(e);
    }
}

void answers_wait(struct engine *engine, struct answer *answers, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        for (answers_drain(engine); !answers[i].finished; answers_drain(engine)) poll(NULL, 0, 1);
}

void answer_forget(struct answer *a) {
    free(a->text);
    free(a->tokens);
    free(a->prompt);
    *a = (struct answer){0};
}

void answers_leave_no_page(struct engine *engine) {
    struct engine_stats stats;
    engine_stats(engine, &stats);
    for (int i = 0; i < 5000 && stats.pages_free + stats.pages_cached < stats.pages_total; i++) {
        poll(NULL, 0, 1);
        engine_stats(engine, &stats);
    }
    assert_int_equal(stats.n_running + stats.n_waiting, 0);
    assert_int_equal(stats.pages_free + stats.pages_cached, stats.pages_total);
}

uint64_t recipe_submit(struct engine *engine, const struct recipe *recipe, struct answer *answer) {
    struct engine_request r = {.n_prompt = recipe->n_prompt,
                               .params = recipe->params,
                               .kv = recipe->kv,
                               .kv_override = recipe->kv_override,
                               .prefill = recipe->prefill,
                               .speculation = recipe->speculation,
                               .user = answer};
    struct error err = {0};
    uint64_t id;
    grammar_ref(r.params.grammar); /* the engine's */
    r.prompt = malloc(recipe->n_prompt * sizeof(*r.prompt));
    memcpy(r.prompt, recipe->prompt, recipe->n_prompt * sizeof(*r.prompt));
    if (recipe->stop) {
        r.params.n_stop = 1;
        r.params.stop = malloc(sizeof(*r.params.stop));
        r.params.stop[0] = strdup(recipe->stop);
    }
    if (recipe->stop_token) {
        r.params.n_stop_tokens = 1;
        r.params.stop_tokens = malloc(sizeof(*r.params.stop_tokens));
        r.params.stop_tokens[0] = *recipe->stop_token;
    }
    if (engine_submit(engine, &r, 1, &id, &err)) fail_msg("%s", err.text);
    return id;
}

int recipe_try(struct engine *engine, const struct recipe *r, struct error *err) {
    struct engine_request request = {.prompt = (uint32_t *)r->prompt,
                                     .n_prompt = r->n_prompt,
                                     .params = r->params,
                                     .kv = r->kv,
                                     .kv_override = r->kv_override,
                                     .prefill = r->prefill};
    uint64_t id;
    return engine_submit(engine, &request, 1, &id, err);
}

struct answer answers_one(struct engine *engine, const struct recipe *recipe) {
    struct answer answer = {0};
    recipe_submit(engine, recipe, &answer);
    answers_wait(engine, &answer, 1);
    if (answer.last.reason == FINISH_ERROR) fail_msg("%s", answer.last.error_text);
    answers_leave_no_page(engine);
    return answer;
}

void answers_assert_same(const struct answer *a, const struct answer *b) {
    assert_int_equal(a->last.reason, b->last.reason);
    assert_int_equal(a->n_tokens, b->n_tokens);
    for (uint32_t i = 0; i < a->n_tokens; i++) {
        assert_int_equal(a->tokens[i].token, b->tokens[i].token);
        /* To the bit. */
        assert_memory_equal(&a->tokens[i].logprob, &b->tokens[i].logprob, sizeof(float));
    }
    assert_int_equal(a->n_prompt_infos, b->n_prompt_infos);
    for (uint32_t i = 1; i < a->n_prompt_infos; i++)
        assert_memory_equal(&a->prompt[i].logprob, &b->prompt[i].logprob, sizeof(float));
    assert_string_equal(a->text, b->text);
    assert_int_equal(a->last.kv.values[KV_RESIDENT_TOKENS], b->last.kv.values[KV_RESIDENT_TOKENS]);
    assert_int_equal(a->last.kv.values[KV_EVICTED_TOKENS], b->last.kv.values[KV_EVICTED_TOKENS]);
    assert_memory_equal(&a->last.kv.values[KV_RETAINED_ATTENTION],
                        &b->last.kv.values[KV_RETAINED_ATTENTION], sizeof(double));
}

struct engine_stats answers_compare(struct engine *engine, const struct recipe *recipes,
                                    const struct answer *expected, uint32_t n) {
    struct answer *together = calloc(n, sizeof(*together));
    struct engine_stats stats;
    for (uint32_t i = 0; i < n; i++) recipe_submit(engine, &recipes[i], &together[i]);
    answers_wait(engine, together, n);
    for (uint32_t i = 0; i < n; i++) {
        answers_assert_same(&expected[i], &together[i]);
        answer_forget(&together[i]);
    }
    answers_leave_no_page(engine);
    engine_stats(engine, &stats);
    engine_destroy(engine);
    free(together);
    return stats;
}

void answers_compare_in_company(const struct engine_config *config, const struct recipe *recipes,
                                const struct answer *expected, uint32_t n) {
    struct engine_config varied = *config;
    varied.prefix_caching = true;
    answers_compare(answers_start(&varied), recipes, expected, n);
    late_backend_begin(backend);
    answers_compare(answers_start(&varied), recipes, expected, n);
    assert_true(late_backend_end() > 0);
    varied.max_itl_ms = 1;
    answers_compare(answers_start(&varied), recipes, expected, n);
    varied.max_itl_ms = 0;
    varied.batch_invariant = true;
    answers_compare(answers_start(&varied), recipes, expected, n);
}

static void make_mixed_patterns(void) {
    static const struct attn_pattern kinds[] = {{PATTERN_A_SHAPE, 64, 256},
                                                {PATTERN_VERTICAL_SLASH, 60, 150},
                                                {PATTERN_BLOCK_SPARSE, 3, 0},
                                                {PATTERN_DENSE, 0, 0}};
    for (int i = 0; i < MAX_HEADS; i++) mixed[i] = kinds[i % 4];
}

static int measure_pages(struct error *err) {
    struct model_config model;
    const int code = model_config_load(&model, model_dir, 0, err);
    if (code) return code;
    struct kv_pool pool = {
        .format = PAGE_F32, .n_kv_heads = model.n_kv_heads, .head_dim = model.head_dim};
    n_layers = model.n_layers;
    plain_page_bytes = kv_page_bytes(&pool);
    pool.tracked = true;
    page_bytes = kv_page_bytes(&pool);
    model_config_fini(&model);
    return 0;
}

int answers_main(int argc, char **argv, CMFixtureFunction setup) {
    int n_failed = argc < 2;
    make_mixed_patterns();
    for (int i = 1; i < argc; i++) {
        struct error err = {0};
        model_dir = argv[i];
        if (measure_pages(&err) ||
            cpu_backend_create(&backend, &(struct cpu_config){.n_threads = 1}, &err)) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        n_failed += tests_run(model_dir, setup, NULL);
        backend->ops->destroy(backend);
    }
    return n_failed;
}
