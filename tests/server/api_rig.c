/* api_rig.c - see api_rig.h. */
#include "tests/server/api_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/json_arena.h"
#include "engine/device/layer_group.h"
#include "server/api/completions.h"
#include "server/routes.h"
#include "server/settings/log.h"
#include "tests/server/fake_engine.h"

static struct api_key some_keys[] = {
    {.name = (char[]){"a"}, .key = (char[]){"secret"}, .weight = 1, .tenant = 1},
    {.name = (char[]){"b"},
     .key = (char[]){"other"},
     .weight = 3,
     .tokens_per_minute = 20,
     .tenant = 2}};
const struct api_keys rig_keys = {.all = some_keys, .n = 2};

int rig_set_up(void **state) {
    static const struct layer_group group = {0, 2, 4};
    struct rig *rig = calloc(1, sizeof(*rig));
    assert_non_null(rig);
    log_set_level(LOG_ERROR);
    uv_loop_init(&rig->loop);
    struct server *server = &rig->server;
    server->loop = &rig->loop;
    server->engine = fake_engine_create(NULL, NULL);
    server->info = engine_info(server->engine);
    server->model_name = "m";
    server->created = 7;
    server->limits = (struct request_limits){.model_name = "m",
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
    engine_stop(rig->server.engine);
    completions_take_events(&rig->server);
    assert_null(rig->server.completions);
    engine_destroy(rig->server.engine);
    assert_int_equal(uv_loop_close(&rig->loop), 0);
    free(rig);
    return 0;
}

struct http_exchange rig_post(const char *path, const char *body) {
    return (struct http_exchange){.method = "POST", .path = path, .body = body};
}

void rig_begin(struct rig *rig, struct http_exchange *exchange) {
    if (routes_admit(exchange, &rig->server)) routes_handle(exchange, &rig->server);
    uv_run(&rig->loop, UV_RUN_DEFAULT);
}

void rig_step(struct rig *rig) {
    fake_engine_step(rig->server.engine);
    completions_take_events(&rig->server);
}

void rig_finish(struct rig *rig) {
    while (fake_engine_n_live(rig->server.engine) > 0) rig_step(rig);
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

void assert_json(const json_t *value, const char *expected) {
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
    assert_non_null(text);
    assert_string_equal(text, expected);
    json_arena_free(text);
}
