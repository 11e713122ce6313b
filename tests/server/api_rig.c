/* api_rig.c - see api_rig.h. */
#include "tests/server/api_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/device/layer_group.h"
#include "engine/template/template.h"
#include "server/api/completions.h"
#include "server/api/conversation/call_ids.h"
#include "server/routes.h"
#include "server/settings/chat_template.h"
#include "server/settings/log.h"
#include "server/settings/model_names.h"
#include "tests/server/fake_engine.h"
#include "tests/test.h"

static struct api_key some_keys[] = {
    {.name = (char[]){"a"}, .key = (char[]){"secret"}, .weight = 1, .tenant = 1},
    {.name = (char[]){"b"},
     .key = (char[]){"other"},
     .weight = 3,
     .tokens_per_minute = 20,
     .tenant = 2}};
const struct api_keys rig_keys = {.all = some_keys, .n = 2};

static const struct model_names rig_models = {.names = {"m"}, .n = 1};

int rig_set_up(void **state) {
    static const struct layer_group group = {0, 2, 4};
    struct rig *rig = calloc(1, sizeof(*rig));
    assert_non_null(rig);
    log_set_level(LOG_ERROR);
    uv_loop_init(&rig->loop);
    struct server *server = &rig->server;
    server->loop = &rig->loop;
    struct error err;
    rig->engine = fake_engine_create(NULL, NULL);
    assert_int_equal(replicas_create(&server->replicas, &rig->engine, 1, true, 0, &err), 0);
    server->info = engine_info(rig->engine);
    server->model_name = "m";
    server->created = 7;
    server->limits = (struct request_limits){.models = &rig_models,
                                             .n_vocab = FAKE_N_VOCAB,
                                             .max_model_len = FAKE_MAX_LEN,
                                             .max_sequences = 1280,
                                             .trained_context = FAKE_MAX_LEN,
                                             .kv_tokens = FAKE_KV_TOKENS,
                                             .kv = {.allowed = {true, true, true, true},
                                                    .offload = {.groups = &group,
                                                                .n_groups = 1,
                                                                .n_layers = 4,
                                                                .max_selected = 64,
                                                                .filters_file = "m.json",
                                                                .host_pool_bytes = FAKE_STORE_BYTES,
                                                                .page_bytes = 100,
                                                                .moved_bytes = 60}},
                                             .prefill = {.sparse = true, .n_heads = 2}};
    *state = rig;
    return 0;
}

int rig_tear_down(void **state) {
    struct rig *rig = *state;
    uv_run(&rig->loop, UV_RUN_DEFAULT);
    engine_stop(rig->engine);
    completions_take_events(&rig->server);
    assert_null(rig->server.completions);
    replicas_destroy(rig->server.replicas);
    assert_int_equal(uv_loop_close(&rig->loop), 0);
    free(rig);
    return 0;
}

const char rig_template[] =
    "{% for m in messages %}[{{ m.role }}"
    "{% if m.reasoning_content %} thinks {{ m.reasoning_content }}{% endif %}"
    "{% if m.tool_call_id %} {{ m.tool_call_id }}{% endif %}: {{ m.content }}"
    "{% for c in m.tool_calls %} {{ c.id }}={{ c.function.name }}({{ c.function.arguments | tojson "
    "}})"
    "{% endfor %}]{% endfor %}"
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    "{% if enable_thinking is defined %} thinking={{ enable_thinking }}{% endif %}"
    "{% if reasoning_effort %} effort={{ reasoning_effort }}{% endif %}"
    "{% if add_generation_prompt %}>{% endif %}{# <tool_call> <think> </think> #}";

static struct chat_template chat;

void rig_change_template(const char *source) {
    template_destroy(chat.plain);
    assert_int_equal(template_compile(&chat.plain, source, strlen(source), NULL, NULL), 0);
}

int rig_set_up_chat(void **state, const char *source, uint32_t context) {
    chat = (struct chat_template){
        .own = json_object(), .tool_text = strdup(source), .marks_reasoning = true};
    rig_change_template(source);
    rig_set_up(state);
    struct request_limits *limits = &((struct rig *)*state)->server.limits;
    limits->chat = &chat;
    limits->max_model_len = limits->trained_context = context;
    return 0;
}

int rig_tear_down_chat(void **state) {
    const int rc = rig_tear_down(state);
    chat_template_fini(&chat);
    return rc;
}

struct http_exchange rig_post(const char *path, const char *body) {
    return (struct http_exchange){.method = "POST", .path = path, .body = body};
}

void rig_begin(struct rig *rig, struct http_exchange *exchange) {
    if (routes_admit(exchange, &rig->server)) routes_handle(exchange, &rig->server);
    uv_run(&rig->loop, UV_RUN_DEFAULT);
}

void rig_step(struct rig *rig) {
    fake_engine_step(rig->engine);
    completions_take_events(&rig->server);
}

void rig_finish(struct rig *rig) {
    while (fake_engine_n_live(rig->engine) > 0) rig_step(rig);
}

json_t *rig_ask(struct rig *rig, const char *path, const char *body, unsigned status) {
    struct http_exchange exchange = rig_post(path, body);
    rig_begin(rig, &exchange);
    rig_finish(rig);
    assert_true(exchange.completed);
    if (exchange.status != status) fail_msg("%s: %u, %s", body, exchange.status, exchange.out.data);
    json_t *answer = json_loadb(exchange.out.data, exchange.out.length, 0, NULL);
    if (!answer) fail_msg("no JSON: %s", exchange.out.data);
    fake_http_fini(&exchange);
    return answer;
}

void rig_number_calls(const json_t *answer) {
    const json_t *usage = json_object_get(answer, "usage"),
                 *choices = json_object_get(answer, "choices");
    const json_int_t n_prompt = json_integer_value(json_object_get(usage, "prompt_tokens"));
    for (size_t i = 0; i < json_array_size(choices); i++) {
        const json_t *message = json_object_get(json_array_get(choices, i), "message"),
                     *calls = json_object_get(message, "tool_calls");
        for (size_t k = 0; k < json_array_size(calls); k++) {
            char id[CALL_ID_LENGTH + 1], number[64];
            json_t *call = json_array_get(calls, k);
            call_id_make(id, "the-id", (uint32_t)n_prompt, (uint32_t)i, (uint32_t)k);
            assert_true(call_id_fits(id, strlen(id)));
            assert_string_equal(json_string_value(json_object_get(call, "id")), id);
            snprintf(number, sizeof(number), "call_the-id_%zu_%zu", i, k);
            assert_int_equal(json_object_set_new(call, "id", json_string(number)), 0);
        }
    }
}

void assert_json(const json_t *value, const char *expected) {
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
    assert_non_null(text);
    assert_string_equal(text, expected);
    json_arena_free(text);
}
