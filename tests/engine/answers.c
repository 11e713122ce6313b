/* answers.c - see answers.h. */
#include "tests/engine/answers.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/error.h"
#include "engine/grammar/grammar.h"

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
