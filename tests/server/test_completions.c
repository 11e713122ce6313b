/* test_completions.c - answers, streams, errors and departures, on an engine without a model and a
 * transport without sockets. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/device/layer_group.h"
#include "server/api/choice.h"
#include "server/api/completions.h"
#include "server/api/server.h"
#include "server/routes.h"
#include "server/settings/log.h"
#include "tests/kv_types.h"
#include "tests/server/api_rig.h"
#include "tests/server/fake_engine.h"
#include "tests/server/fake_http.h"
#include "tests/test.h"

static struct http_exchange post(const char *body) {
    return rig_post("/v1/completions", body);
}

static json_t *ask(struct rig *rig, const char *body, unsigned status) {
    return rig_ask(rig, "/v1/completions", body, status);
}

static const json_t *choice_at(const json_t *answer, size_t i) {
    return json_array_get(json_object_get(answer, "choices"), i);
}

static const char *text_at(const json_t *answer, size_t i) {
    return json_string_value(json_object_get(choice_at(answer, i), "text"));
}

static json_int_t usage_of(const json_t *answer, const char *name) {
    return json_integer_value(json_object_get(json_object_get(answer, "usage"), name));
}

TEST_WITH(a_whole_answer_has_openais_shape, rig_set_up, rig_tear_down) {
    json_t *a = ask(*state, "{\"model\":\"m\",\"prompt\":\"hi\",\"max_tokens\":3,\"seed\":0}", 200);
    assert_string_equal(json_string_value(json_object_get(a, "id")), "cmpl-the-id");
    assert_string_equal(json_string_value(json_object_get(a, "object")), "text_completion");
    assert_string_equal(json_string_value(json_object_get(a, "model")), "m");
    assert_true(json_is_integer(json_object_get(a, "created")));
    assert_json(json_object_get(a, "choices"),
                "[{\"index\":0,\"text\":\"abc\",\"logprobs\":null,\"finish_reason\":\"length\","
                "\"stop_reason\":null}]");
    assert_int_equal(usage_of(a, "prompt_tokens"), 3);
    assert_int_equal(usage_of(a, "completion_tokens"), 3);
    assert_int_equal(usage_of(a, "total_tokens"), 6);
    json_decref(a);
}

TEST_WITH(choices_are_numbered_across_prompts, rig_set_up, rig_tear_down) {
    json_t *a = ask(*state, "{\"prompt\":[\"x\",\"yy\"],\"n\":2,\"max_tokens\":2,\"seed\":3}", 200);
    static const char *const texts[] = {"de", "ef", "de", "ef"};
    assert_int_equal(json_array_size(json_object_get(a, "choices")), 4);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(json_integer_value(json_object_get(choice_at(a, i), "index")), i);
        assert_string_equal(text_at(a, i), texts[i]);
    }
    assert_int_equal(usage_of(a, "prompt_tokens"), 5);
    assert_int_equal(usage_of(a, "completion_tokens"), 8);
    json_decref(a);
}

/* The fake gives 'a' -0.5, 'b' -1, ...: early letters are likelier. */
TEST_WITH(best_of_keeps_the_likeliest, rig_set_up, rig_tear_down) {
    json_t *a =
        ask(*state, "{\"prompt\":\"x\",\"n\":2,\"best_of\":4,\"max_tokens\":1,\"seed\":24}", 200);
    assert_string_equal(text_at(a, 0), "a"); /* of y, z, a, b */
    assert_string_equal(text_at(a, 1), "b");
    assert_json(json_object_get(choice_at(a, 0), "logprobs"), "null"); /* looked at, not shown */
    assert_int_equal(usage_of(a, "completion_tokens"), 4);
    json_decref(a);
}

TEST_WITH(stop_strings_end_and_are_named, rig_set_up, rig_tear_down) {
    json_t *a = ask(*state, "{\"prompt\":\"x\",\"stop\":[\"d\"],\"max_tokens\":9,\"seed\":0}", 200);
    assert_json(json_object_get(a, "choices"),
                "[{\"index\":0,\"text\":\"abc\",\"logprobs\":null,\"finish_reason\":\"stop\","
                "\"stop_reason\":\"d\"}]");
    json_decref(a);
}

TEST_WITH(logprobs_have_the_legacy_shape, rig_set_up, rig_tear_down) {
    json_t *a = ask(*state, "{\"prompt\":\"x\",\"logprobs\":2,\"max_tokens\":2,\"seed\":0}", 200);
    assert_json(json_object_get(choice_at(a, 0), "logprobs"),
                "{\"tokens\":[\"a\",\"b\"],\"token_logprobs\":[-0.5,-1],"
                "\"top_logprobs\":[{\"a\":-0.5,\"z\":-9999.0},{\"b\":-1,\"z\":-9999.0}],"
                "\"text_offset\":[0,1]}");
    json_decref(a);
    a = ask(*state, "{\"prompt\":\"x\",\"logprobs\":0,\"max_tokens\":1,\"seed\":0}", 200);
    assert_json(json_object_get(choice_at(a, 0), "logprobs"),
                "{\"tokens\":[\"a\"],\"token_logprobs\":[-0.5],\"top_logprobs\":[{\"a\":-0.5}],"
                "\"text_offset\":[0]}");
    json_decref(a);
}

TEST_WITH(echo_puts_the_prompt_before_the_answer, rig_set_up, rig_tear_down) {
    json_t *a =
        ask(*state, "{\"prompt\":[\"x\\u00e9\"],\"echo\":true,\"max_tokens\":2,\"seed\":0}", 200);
    assert_string_equal(text_at(a, 0), "x\xC3\xA9"
                                       "ab");
    json_decref(a);
    a = ask(*state, "{\"prompt\":[104,105],\"echo\":true,\"max_tokens\":0}", 200);
    assert_string_equal(text_at(a, 0), "hi");
    assert_int_equal(usage_of(a, "completion_tokens"), 0);
    json_decref(a);
}

/* The beginning of the text is a token without text; offsets count characters. */
TEST_WITH(echo_with_logprobs_scores_the_prompt, rig_set_up, rig_tear_down) {
    json_t *a =
        ask(*state, "{\"prompt\":\"hi\",\"echo\":true,\"logprobs\":1,\"max_tokens\":1,\"seed\":0}",
            200);
    assert_string_equal(text_at(a, 0), "hia");
    assert_json(
        json_object_get(choice_at(a, 0), "logprobs"),
        "{\"tokens\":[\"<s>\",\"h\",\"i\",\"a\"],\"token_logprobs\":[null,-4,-4.5,-0.5],"
        "\"top_logprobs\":[null,{\"h\":-4},{\"i\":-4.5},{\"a\":-0.5}],\"text_offset\":[0,0,1,2]}");
    json_decref(a);
}

TEST_WITH(half_characters_are_shown_as_bytes, rig_set_up, rig_tear_down) {
    json_t *a =
        ask(*state, "{\"prompt\":[195],\"echo\":true,\"logprobs\":0,\"max_tokens\":0}", 200);
    assert_string_equal(
        json_string_value(json_array_get(
            json_object_get(json_object_get(choice_at(a, 0), "logprobs"), "tokens"), 0)),
        "bytes:\\xc3");
    json_decref(a);
}

TEST_WITH(token_ids_are_returned_when_asked_for, rig_set_up, rig_tear_down) {
    json_t *a = ask(
        *state, "{\"prompt\":\"h\",\"return_token_ids\":true,\"max_tokens\":2,\"seed\":0}", 200);
    assert_json(json_object_get(choice_at(a, 0), "prompt_token_ids"), "[256,104]");
    assert_json(json_object_get(choice_at(a, 0), "token_ids"), "[97,98]");
    json_decref(a);
}

/* ---- streams ---- */

#define HEAD "{\"id\":\"cmpl-the-id\",\"object\":\"text_completion\",\"created\":"

/* The stream without what repeats in each chunk: id, object, created, model. */
static void assert_stream(struct http_exchange *exchange, const char *expected) {
    struct buffer brief = {0};
    const char *at = exchange->out.data ? exchange->out.data : "";
    while (*at) {
        if (strncmp(at, HEAD, strlen(HEAD)) == 0) at = strstr(at, "\"choices\"");
        assert_non_null(at);
        buffer_append(&brief, at++, 1);
    }
    assert_string_equal(brief.data ? brief.data : "", expected);
    buffer_fini(&brief);
}

#define CHUNK(index, text, end)                                                                    \
    "data: \"choices\":[{\"index\":" index ",\"text\":\"" text                                     \
    "\",\"logprobs\":null,\"finish_reason\":" end ",\"stop_reason\":null}]"

TEST_WITH(a_stream_is_chunks_and_done, rig_set_up, rig_tear_down) {
    struct rig *rig = *state;
    struct http_exchange exchange =
        post("{\"prompt\":\"x\",\"stream\":true,\"max_tokens\":2,\"seed\":0}");
    rig_begin(rig, &exchange);
    assert_true(exchange.begun); /* headers go once the engine has accepted it */
    assert_string_equal(exchange.content_type, "text/event-stream; charset=utf-8");
    assert_string_equal(exchange.headers.data, "Cache-Control: no-cache\nX-Accel-Buffering: no\n");
    assert_stream(&exchange, "");
    rig_step(rig);
    assert_stream(&exchange, CHUNK("0", "a", "null") "}\n\n");
    rig_finish(rig);
    assert_true(exchange.completed);
    assert_stream(&exchange, CHUNK("0", "a", "null") "}\n\n" CHUNK("0", "b", "null") "}\n\n" CHUNK(
                                 "0", "", "\"length\"") "}\n\n"
                                                        "data: [DONE]\n\n");
    fake_http_fini(&exchange);
}

#define USAGE(n, total, kv)                                                                        \
    "\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":" n ",\"total_tokens\":" total           \
    ",\"prompt_tokens_details\":{\"cached_tokens\":0}" kv "}}\n\n"
#define KV_3                                                                                       \
    ",\"kv\":{\"policy\":\"full\",\"budget_tokens\":null,\"resident_tokens\":3,"                   \
    "\"evicted_tokens\":0,\"retained_attention\":null,\"offloaded_tokens\":null,"                  \
    "\"selected_tokens\":null,\"bytes_fetched_per_token\":null,\"hit_rate\":null}"                 \
    ",\"prefill\":{\"mode\":\"dense\",\"density\":1,\"index_ms\":null,"                            \
    "\"attention_ms\":null,\"reused_tokens\":0,\"why_dense\":\"short\"},\"speculation\":null"

TEST_WITH(usage_comes_last_or_with_every_chunk, rig_set_up, rig_tear_down) {
    struct rig *rig = *state;
    struct http_exchange exchange =
        post("{\"prompt\":\"x\",\"stream\":true,\"max_tokens\":1,\"seed\":0,"
             "\"stream_options\":{\"include_usage\":true}}");
    rig_begin(rig, &exchange);
    rig_finish(rig);
    assert_stream(&exchange, CHUNK("0", "a", "null") ",\"usage\":null}\n\n" CHUNK(
                                 "0", "", "\"length\"") ",\"usage\":null}\n\n"
                                                        "data: \"choices\":[]," USAGE(
                                                            "1", "3", KV_3) "data: [DONE]\n\n");
    fake_http_fini(&exchange);

    exchange = post("{\"prompt\":\"x\",\"stream\":true,\"max_tokens\":1,\"seed\":0,"
                    "\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true}}");
    rig_begin(rig, &exchange);
    rig_finish(rig);
    assert_stream(
        &exchange,
        CHUNK("0", "a", "null") "," USAGE("1", "3", "") CHUNK("0", "", "\"length\"") "," USAGE(
            "1", "3", KV_3) "data: \"choices\":[]," USAGE("1", "3", KV_3) "data: [DONE]\n\n");
    fake_http_fini(&exchange);
}

TEST_WITH(usage_tells_how_prompts_were_computed, rig_set_up, rig_tear_down) {
    json_t *a = ask(*state,
                    "{\"prompt\":[\"hello\",\"x\"],\"max_tokens\":4,\"prefill\":{\"mode\":"
                    "\"sparse\",\"pattern\":{\"type\":\"a_shape\"}}}",
                    200);
    assert_json(json_object_get(json_object_get(a, "usage"), "prefill"),
                "{\"mode\":\"sparse\",\"density\":0.25,\"index_ms\":2.0,\"attention_ms\":5.0,"
                "\"reused_tokens\":6,\"why_dense\":null}");
    json_decref(a);
    /* As with cached_tokens, further choices of a prompt are not counted. */
    a = ask(*state, "{\"prompt\":\"hello\",\"n\":3,\"max_tokens\":4,\"prefill\":\"sparse\"}", 200);
    assert_json(
        json_object_get(json_object_get(json_object_get(a, "usage"), "prefill"), "reused_tokens"),
        "3");
    json_decref(a);
    a = ask(*state, "{\"prompt\":\"hello\",\"prefill\":\"quick\"}", 400);
    assert_json(json_object_get(json_object_get(a, "error"), "param"), "\"prefill\"");
    json_decref(a);
}

/* Counts are sums over the sequences, attention their mean. */
TEST_WITH(usage_tells_what_was_kept, rig_set_up, rig_tear_down) {
    static const struct {
        const char *body, *kv;
    } cases[] = {
        {"{\"prompt\":\"hello\",\"max_tokens\":4}",
         "{\"policy\":\"full\",\"budget_tokens\":null,\"resident_tokens\":10,"
         "\"evicted_tokens\":0,\"retained_attention\":null,\"offloaded_tokens\":null,"
         "\"selected_tokens\":null,\"bytes_fetched_per_token\":null,\"hit_rate\":null}"},
        {"{\"prompt\":\"hello\",\"max_tokens\":40,\"kv_policy\":"
         "{\"type\":\"streaming\",\"sink\":2,\"recent\":14}}",
         "{\"policy\":\"streaming\",\"budget_tokens\":16,\"resident_tokens\":16,"
         "\"evicted_tokens\":30,\"retained_attention\":null,\"offloaded_tokens\":null,"
         "\"selected_tokens\":null,\"bytes_fetched_per_token\":null,\"hit_rate\":null}"},
        {"{\"prompt\":[\"hello\",\"abcdefghi\"],\"n\":2,\"max_tokens\":40,"
         "\"kv_policy\":{\"type\":\"heavy_hitter\",\"sink\":0,\"recent\":0.5,\"heavy\":1}}",
         "{\"policy\":\"heavy_hitter\",\"budget_tokens\":20,\"resident_tokens\":20,"
         "\"evicted_tokens\":172,\"retained_attention\":0.5,\"offloaded_tokens\":null,"
         "\"selected_tokens\":null,\"bytes_fetched_per_token\":null,\"hit_rate\":null}"},
        {"{\"prompt\":\"hello\",\"n\":2,\"max_tokens\":4,"
         "\"kv_policy\":{\"type\":\"offload\",\"selected\":64}}",
         "{\"policy\":\"offload\",\"budget_tokens\":null,\"resident_tokens\":20,"
         "\"evicted_tokens\":0,\"retained_attention\":null,\"offloaded_tokens\":10,"
         "\"selected_tokens\":64,\"bytes_fetched_per_token\":360,\"hit_rate\":0.75}"},
        {"{\"prompt\":\"hello\",\"max_tokens\":4,"
         "\"kv_policy\":{\"type\":\"offload\",\"selected\":64,\"offload\":false}}",
         "{\"policy\":\"offload\",\"budget_tokens\":null,\"resident_tokens\":10,"
         "\"evicted_tokens\":0,\"retained_attention\":null,\"offloaded_tokens\":0,"
         "\"selected_tokens\":32,\"bytes_fetched_per_token\":600,\"hit_rate\":0.75}"},
        {"{\"prompt\":\"hello\",\"max_tokens\":0,"
         "\"kv_policy\":{\"type\":\"offload\",\"selected\":64,\"offload\":false}}",
         "{\"policy\":\"offload\",\"budget_tokens\":null,\"resident_tokens\":6,"
         "\"evicted_tokens\":0,\"retained_attention\":null,\"offloaded_tokens\":0,"
         "\"selected_tokens\":0,\"bytes_fetched_per_token\":null,\"hit_rate\":null}"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        json_t *a = ask(*state, cases[i].body, 200);
        assert_json(json_object_get(json_object_get(a, "usage"), "kv"), cases[i].kv);
        json_decref(a);
    }
}

TEST_WITH(choices_of_a_stream_interleave, rig_set_up, rig_tear_down) {
    struct rig *rig = *state;
    struct http_exchange exchange =
        post("{\"prompt\":\"x\",\"stream\":true,\"max_tokens\":1,\"seed\":0,\"n\":2}");
    rig_begin(rig, &exchange);
    rig_finish(rig);
    assert_stream(
        &exchange,
        CHUNK("0", "a", "null") "}\n\n" CHUNK("1", "b", "null") "}\n\n" CHUNK(
            "0", "", "\"length\"") "}\n\n" CHUNK("1", "", "\"length\"") "}\n\n"
                                                                        "data: [DONE]\n\n");
    fake_http_fini(&exchange);
}

TEST_WITH(an_echo_is_streamed_before_the_answer, rig_set_up, rig_tear_down) {
    struct rig *rig = *state;
    struct http_exchange exchange =
        post("{\"prompt\":\"x\",\"stream\":true,\"max_tokens\":1,\"seed\":0,\"echo\":true}");
    rig_begin(rig, &exchange);
    rig_finish(rig);
    assert_stream(&exchange,
                  CHUNK("0", "xa", "null") "}\n\n" CHUNK("0", "", "\"length\"") "}\n\n"
                                                                                "data: [DONE]\n\n");
    fake_http_fini(&exchange);
}

TEST_WITH(a_failure_midway_is_an_error_event, rig_set_up, rig_tear_down) {
    struct rig *rig = *state;
    struct http_exchange exchange =
        post("{\"prompt\":\"x\",\"stream\":true,\"max_tokens\":9,\"seed\":0,\"n\":2}");
    rig_begin(rig, &exchange);
    fake_engine_fail_after(rig->engine, 1);
    rig_finish(rig);
    assert_true(exchange.completed);
    assert_stream(
        &exchange,
        CHUNK("0", "a", "null") "}\n\n" CHUNK(
            "1", "b",
            "null") "}\n\n"
                    "data: {\"error\":{\"message\":\"the fake engine failed\","
                    "\"type\":\"server_error\",\"param\":null,\"code\":\"engine_failed\"}}\n\n");
    fake_http_fini(&exchange);
}

TEST_WITH(a_silent_stream_gets_comments, rig_set_up, rig_tear_down) {
    struct rig *rig = *state;
    struct http_exchange exchange =
        post("{\"prompt\":\"x\",\"stream\":true,\"max_tokens\":1,\"seed\":0}");
    rig_begin(rig, &exchange);
    uv_update_time(&rig->loop);
    completions_tick(&rig->server);
    assert_stream(&exchange, ""); /* not silent for long enough */
    uv_sleep(COMPLETIONS_SILENCE_MS + 20);
    uv_update_time(&rig->loop);
    completions_tick(&rig->server);
    completions_tick(&rig->server);
    assert_stream(&exchange, ": ping\n\n");
    rig_finish(rig);
    fake_http_fini(&exchange);
}

/* ---- refusals, departures, the end ---- */

static void assert_error(json_t *answer, const char *code) {
    const json_t *error = json_object_get(answer, "error");
    assert_string_equal(json_string_value(json_object_get(error, "code")), code);
    assert_true(json_string_length(json_object_get(error, "message")) > 0);
    json_decref(answer);
}

TEST_WITH(the_engines_refusals_become_statuses, rig_set_up, rig_tear_down) {
    struct rig *rig = *state;
    for (int stream = 0; stream < 2; stream++) {
        const char *body =
            stream ? "{\"prompt\":\"x\",\"stream\":true}" : "{\"prompt\":\"x\",\"n\":3}";
        fake_engine_refuse(rig->engine, ERR_FULL, NULL);
        struct http_exchange exchange = post(body);
        rig_begin(rig, &exchange);
        assert_int_equal(exchange.status, 429);
        assert_string_equal(exchange.headers.data, "Retry-After: 1\n");
        fake_http_fini(&exchange);
        fake_engine_refuse(rig->engine, ERR_TOO_LONG, NULL);
        assert_error(ask(rig, body, 400), "context_length_exceeded");
        fake_engine_refuse(rig->engine, ERR_DEVICE, NULL);
        assert_error(ask(rig, body, 503), "engine_failed");
        fake_engine_refuse(rig->engine, 0, NULL);
    }
    assert_int_equal(fake_engine_n_live(rig->engine), 0);
}

TEST_WITH(a_full_queue_refuses_before_the_body_is_read, rig_set_up, rig_tear_down) {
    struct rig *rig = *state;
    struct http_exchange exchange = post("{\"prompt\":");
    fake_engine_leave_room(rig->engine, 0);
    rig_begin(rig, &exchange);
    assert_int_equal(exchange.status, 429);
    assert_string_equal(exchange.headers.data, "Retry-After: 1\n");
    assert_int_equal(rig->server.counters.n_queue_full, 1);
    fake_http_fini(&exchange);
    assert_error(ask(rig, "{\"prompt\":\"x\"}", 429), "queue_full");
    fake_engine_leave_room(rig->engine, 1);
    json_decref(ask(rig, "{\"prompt\":", 400));
    assert_int_equal(rig->server.counters.n_queue_full, 2);
}

TEST_WITH(a_request_that_is_being_prepared_has_its_place, rig_set_up, rig_tear_down) {
    struct rig *rig = *state;
    struct http_exchange first = post("{\"prompt\":\"x\",\"max_tokens\":1}"), second = first;
    fake_engine_leave_room(rig->engine, 1);
    routes_handle(&first, &rig->server);
    routes_handle(&second, &rig->server);
    assert_int_equal(second.status, 429); /* at once */
    uv_run(&rig->loop, UV_RUN_DEFAULT);
    rig_finish(rig);
    assert_int_equal(first.status, 200);
    fake_http_fini(&first);
    fake_http_fini(&second);
    json_decref(ask(rig, "{\"prompt\":\"x\"}", 200)); /* and is given back */
}

/* The engine knows what suits the pool and the model; the API, what the budget is called. */
TEST_WITH(a_refused_budget_is_called_by_its_name, rig_set_up, rig_tear_down) {
    struct rig *rig = *state;
    static const int codes[] = {ERR_INVALID, ERR_TOO_LONG};
    static const char body[] = "{\"prompt\":\"x\",\"kv_policy\":{\"type\":\"streaming\","
                               "\"recent\":8}}";
    for (size_t i = 0; i < sizeof(codes) / sizeof(*codes); i++) {
        fake_engine_refuse(rig->engine, codes[i], "kv_policy");
        json_t *answer = ask(rig, body, 400);
        const json_t *error = json_object_get(answer, "error");
        assert_json(json_object_get(error, "param"), "\"kv_policy\"");
        assert_json(json_object_get(error, "message"), "\"kv_policy: the fake engine refuses\"");
        json_decref(answer);
    }
    fake_engine_refuse(rig->engine, ERR_FULL, NULL);
    assert_error(ask(rig, body, 429), "queue_full");
    fake_engine_refuse(rig->engine, 0, NULL);
}

TEST_WITH(a_failed_sequence_fails_the_answer, rig_set_up, rig_tear_down) {
    struct rig *rig = *state;
    fake_engine_fail_after(rig->engine, 1);
    assert_error(ask(rig, "{\"prompt\":[\"x\",\"y\"],\"max_tokens\":5}", 503), "engine_failed");
}

TEST_WITH(leaving_cancels_every_sequence, rig_set_up, rig_tear_down) {
    struct rig *rig = *state;
    for (int stream = 0; stream < 2; stream++) {
        for (int n_steps = 0; n_steps < 3; n_steps++) {
            const uint32_t before = fake_engine_n_cancelled(rig->engine);
            struct http_exchange exchange =
                post(stream ? "{\"prompt\":[\"x\",\"y\"],\"n\":2,\"stream\":true}"
                            : "{\"prompt\":[\"x\",\"y\"],\"n\":2}");
            rig_begin(rig, &exchange);
            for (int i = 0; i < n_steps; i++) rig_step(rig);
            fake_http_leave(&exchange);
            assert_int_equal(fake_engine_n_cancelled(rig->engine), before + 4);
            rig_finish(rig);
            assert_null(rig->server.completions);
            fake_http_fini(&exchange);
        }
    }
}

TEST_WITH(leaving_before_the_job_is_done_submits_nothing, rig_set_up, rig_tear_down) {
    struct rig *rig = *state;
    struct http_exchange exchange = post("{\"prompt\":\"x\"}");
    if (routes_admit(&exchange, &rig->server)) routes_handle(&exchange, &rig->server);
    fake_http_leave(&exchange);
    uv_run(&rig->loop, UV_RUN_DEFAULT);
    assert_int_equal(fake_engine_n_live(rig->engine), 0);
    assert_null(rig->server.completions);
    fake_http_fini(&exchange);
}

TEST_WITH(draining_refuses_what_is_new_only, rig_set_up, rig_tear_down) {
    struct rig *rig = *state;
    struct http_exchange running = post("{\"prompt\":\"x\",\"max_tokens\":2,\"seed\":0}");
    rig_begin(rig, &running);
    rig->server.draining = true;
    assert_error(ask(rig, "{\"prompt\":\"x\"}", 503), "shutting_down");
    rig_finish(rig);
    assert_int_equal(running.status, 200);
    fake_http_fini(&running);
}

TEST_WITH(cancelling_all_tells_the_clients, rig_set_up, rig_tear_down) {
    struct rig *rig = *state;
    struct http_exchange whole = post("{\"prompt\":\"x\"}"),
                         stream = post("{\"prompt\":\"x\",\"stream\":true}");
    rig_begin(rig, &whole);
    rig_begin(rig, &stream);
    completions_cancel_all(&rig->server);
    rig_finish(rig);
    assert_int_equal(whole.status, 503);
    assert_true(stream.completed);
    assert_non_null(strstr(stream.out.data, "data: {\"error\":"));
    assert_null(strstr(stream.out.data, "[DONE]"));
    fake_http_fini(&whole);
    fake_http_fini(&stream);
}

/* ---- the other routes ---- */

static unsigned status_of(struct rig *rig, const char *method, const char *path, const char *key) {
    struct http_exchange exchange = {
        .method = method, .path = path, .authorization = key, .body = "{}"};
    rig_begin(rig, &exchange);
    assert_true(exchange.completed);
    const unsigned status = exchange.status;
    if (status == 405) assert_non_null(strstr(exchange.headers.data, "Allow: "));
    fake_http_fini(&exchange);
    return status;
}

TEST_WITH(paths_and_methods_are_checked, rig_set_up, rig_tear_down) {
    static const struct {
        const char *method, *path;
        unsigned status;
    } cases[] = {
        {"GET", "/v1/models", 200},       {"HEAD", "/v1/models", 200},
        {"POST", "/v1/models", 405},      {"GET", "/v1/models/m", 200},
        {"GET", "/v1/models/x", 404},     {"GET", "/v1/completions", 405},
        {"GET", "/nowhere", 404},         {"OPTIONS", "/tokenize", 405},
        {"GET", "/health", 200},          {"GET", "/live", 200},
        {"GET", "/ready", 200},           {"GET", "/version", 200},
        {"GET", "/metrics", 200},         {"GET", "/tokenizer_info", 200},
        {"POST", "/tokenize", 400},       {"POST", "/v1/completions", 400},
        {"GET", "/v1/completions/", 404},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const unsigned status = status_of(*state, cases[i].method, cases[i].path, NULL);
        if (status != cases[i].status)
            fail_msg("%s %s: %u", cases[i].method, cases[i].path, status);
    }
}

TEST_WITH(the_model_lists_its_policies, rig_set_up, rig_tear_down) {
    struct rig *rig = *state;
    rig->server.limits.kv.allowed[TYPE_STREAMING] = false;
    struct http_exchange exchange = {.method = "GET", .path = "/v1/models/m", .body = ""};
    rig_begin(rig, &exchange);
    json_t *model = json_loadb(exchange.out.data, exchange.out.length, 0, NULL);
    assert_json(json_object_get(model, "kv_policy"), "{\"type\":\"full\"}");
    assert_json(json_object_get(model, "kv_policies"),
                "[{\"type\":\"full\"},{\"type\":\"heavy_hitter\",\"sink\":4,\"recent\":1020,"
                "\"heavy\":1024,\"score\":\"sum\",\"prompt\":\"chunks\",\"chunk\":512,"
                "\"positions\":\"text\"},"
                "{\"type\":\"offload\",\"sink\":4,\"selected\":2048,\"tail\":512,"
                "\"selector\":\"last\",\"offload\":true}]");
    assert_json(json_object_get(json_object_get(model, "offload"), "layers"),
                "{\"dense\":[1],\"filter\":[0],\"sparse\":[2,3],\"windowed\":[]}");
    assert_json(json_object_get(model, "prefill"),
                "{\"mode\":\"auto\",\"modes\":[\"auto\",\"dense\",\"sparse\"],"
                "\"pattern_file\":null,\"min_sparse_tokens\":null,\"measured_on\":null,"
                "\"dense_tail\":0}");
    json_decref(model);
    fake_http_fini(&exchange);
}

TEST_WITH(metrics_count_by_policy, rig_set_up, rig_tear_down) {
    struct http_exchange exchange = {.method = "GET", .path = "/metrics", .body = ""};
    rig_begin(*state, &exchange);
    assert_non_null(strstr(exchange.out.data,
                           "# TYPE quire_kv_evicted_tokens_total counter\n"
                           "quire_kv_evicted_tokens_total{policy=\"full\"} 0\n"));
    assert_non_null(
        strstr(exchange.out.data, "quire_kv_evicted_tokens_total{policy=\"heavy_hitter\"} 8\n"));
    assert_non_null(
        strstr(exchange.out.data, "quire_kv_resident_tokens{policy=\"streaming\"} 2\n"));
    fake_http_fini(&exchange);
}

TEST_WITH(metrics_tell_of_what_leaves, rig_set_up, rig_tear_down) {
    struct http_exchange exchange = {.method = "GET", .path = "/metrics", .body = ""};
    rig_begin(*state, &exchange);
    static const char *const samples[] = {
        "quire_kv_selected_tokens_total 4000\n", "quire_kv_fetched_tokens_total 1000\n",
        "quire_kv_fetched_bytes_total 284000\n", "quire_kv_store_bytes 1048576\n",
        "quire_kv_store_used_bytes 12345\n",     "quire_kv_pages_stored 24\n",
        "quire_kv_pages_swapped_out_total 36\n", "quire_kv_pages_swapped_in_total 12\n"};
    for (size_t i = 0; i < sizeof(samples) / sizeof(*samples); i++)
        assert_non_null(strstr(exchange.out.data, samples[i]));
    fake_http_fini(&exchange);
}

TEST_WITH(metrics_count_by_pattern, rig_set_up, rig_tear_down) {
    json_decref(ask(*state, "{\"prompt\":[\"a\",\"b\"],\"prefill\":\"sparse\"}", 200));
    json_decref(ask(*state, "{\"prompt\":\"a\"}", 200));
    struct http_exchange exchange = {.method = "GET", .path = "/metrics", .body = ""};
    rig_begin(*state, &exchange);
    static const char *const samples[] = {
        "quire_prefill_prompts_total{mode=\"dense\"} 1\n",
        "quire_prefill_prompts_total{mode=\"sparse\"} 2\n",
        "quire_sparse_visited_pairs_total{pattern=\"a_shape\"} 2\n",
        "quire_sparse_causal_pairs_total{pattern=\"block_sparse\"} 8000000000\n",
        "quire_sparse_dense_heads_total 9\n",
        "quire_sparse_index_seconds_total 1.5\n",
        "quire_sparse_attention_seconds_total 2.5\n",
    };
    for (size_t i = 0; i < sizeof(samples) / sizeof(*samples); i++)
        assert_non_null(strstr(exchange.out.data, samples[i]));
    fake_http_fini(&exchange);
}

TEST_WITH(the_key_is_asked_for, rig_set_up, rig_tear_down) {
    struct rig *rig = *state;
    rig->server.keys = &rig_keys;
    static const char *const wrong[] = {NULL,           "",
                                        "Bearer",       "Bearer ",
                                        "Bearer secre", "Bearer secret2",
                                        "secret",       "Basic secret",
                                        "Bearer Secret"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        assert_int_equal(status_of(rig, "GET", "/v1/models", wrong[i]), 401);
        assert_int_equal(status_of(rig, "GET", "/nowhere", wrong[i]), 401);
        assert_int_equal(status_of(rig, "GET", "/live", wrong[i]), 200);
    }
    assert_int_equal(status_of(rig, "GET", "/v1/models", "Bearer secret"), 200);
    assert_int_equal(status_of(rig, "GET", "/v1/models", "bearer secret"), 200);
    assert_int_equal(status_of(rig, "GET", "/v1/models", "Bearer other"), 200);
}

/* Asks for ten tokens behind ten; returns the status. */
static unsigned ask_with(struct rig *rig, const char *key, struct buffer *headers) {
    struct http_exchange exchange =
        rig_post("/v1/completions", "{\"prompt\":\"0123456789\",\"max_tokens\":10}");
    exchange.authorization = key;
    rig_begin(rig, &exchange);
    rig_finish(rig);
    assert_true(exchange.completed);
    const unsigned status = exchange.status;
    if (exchange.headers.length > 0) buffer_puts(headers, exchange.headers.data);
    fake_http_fini(&exchange);
    return status;
}

TEST_WITH(a_key_has_its_tokens_of_a_minute, rig_set_up, rig_tear_down) {
    struct rig *rig = *state;
    struct buffer headers = {0};
    rig->server.keys = &rig_keys;
    assert_int_equal(ask_with(rig, "Bearer other", &headers), 200);
    assert_int_equal(ask_with(rig, "Bearer other", &headers), 429);
    assert_non_null(strstr(headers.data, "Retry-After: "));
    assert_int_equal(ask_with(rig, "Bearer secret", &headers), 200);
    assert_int_equal(ask_with(rig, "Bearer secret", &headers), 200);
    buffer_fini(&headers);
}

TEST_WITH(a_bucket_fills_with_time, rig_set_up, rig_tear_down) {
    struct rate_limit rate = {0};
    assert_int_equal(rate_limit_wait(&rate, 60, 1000), 0);
    rate_limit_take(&rate, 59);
    assert_int_equal(rate_limit_wait(&rate, 60, 1000), 0); /* one is left */
    rate_limit_take(&rate, 11);
    assert_int_equal(rate_limit_wait(&rate, 60, 1000), 12);
    assert_int_equal(rate_limit_wait(&rate, 60, 6000), 7);
    assert_int_equal(rate_limit_wait(&rate, 60, 12001), 0);
    assert_int_equal(rate_limit_wait(&rate, 60, 1000000), 0);
    rate_limit_take(&rate, 60); /* a minute is all that is saved up */
    assert_in_range(rate_limit_wait(&rate, 60, 1000000), 1, 2);
    rate_limit_take(&rate, 1000000);
    assert_int_equal(rate_limit_wait(&rate, 0, 1000000), 0); /* no limit */
}

TEST_WITH(readiness_ends_with_draining, rig_set_up, rig_tear_down) {
    struct rig *rig = *state;
    rig->server.draining = true;
    assert_int_equal(status_of(rig, "GET", "/ready", NULL), 503);
    assert_int_equal(status_of(rig, "GET", "/health", NULL), 200);
}

static json_t *ask_path(struct rig *rig, const char *path, const char *body, unsigned status) {
    struct http_exchange exchange = {.method = "POST", .path = path, .body = body};
    rig_begin(rig, &exchange);
    assert_int_equal(exchange.status, status);
    json_t *answer = json_loadb(exchange.out.data, exchange.out.length, 0, NULL);
    assert_non_null(answer);
    fake_http_fini(&exchange);
    return answer;
}

TEST_WITH(texts_become_tokens_and_back, rig_set_up, rig_tear_down) {
    json_t *a =
        ask_path(*state, "/tokenize", "{\"prompt\":\"hi\",\"return_token_strs\":true}", 200);
    assert_json(a, "{\"count\":3,\"max_model_len\":128,\"tokens\":[256,104,105],"
                   "\"token_strs\":[\"<s>\",\"h\",\"i\"]}");
    json_decref(a);
    a = ask_path(*state, "/tokenize", "{\"text\":\"h\",\"add_special_tokens\":false}", 200);
    assert_json(json_object_get(a, "tokens"), "[104]");
    json_decref(a);
    a = ask_path(*state, "/detokenize", "{\"tokens\":[256,104]}", 200);
    assert_json(a, "{\"prompt\":\"<s>h\"}");
    json_decref(a);
    a = ask_path(*state, "/detokenize", "{\"tokens\":[ ]}", 200);
    assert_json(a, "{\"prompt\":\"\"}");
    json_decref(a);
    json_decref(ask_path(*state, "/tokenize", "{\"prompt\":\"h\",\"model\":\"m\"}", 200));
    json_decref(ask_path(*state, "/tokenize", "{\"prompt\":\"h\",\"model\":\"m\\u0000x\"}", 404));
    static const char *const bad[] = {"{}",
                                      "{\"tokens\":1}",
                                      "{\"tokens\":[[1]]}",
                                      "{\"tokens\":[257]}",
                                      "{\"tokens\":[\"a\"]}",
                                      "{\"tokens\":[-1]}"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        a = ask_path(*state, "/detokenize", bad[i], 400);
        assert_json(json_object_get(json_object_get(a, "error"), "param"), "\"tokens\"");
        json_decref(a);
    }
}

TEST_WITH(tokens_of_one_text_keep_their_log_probabilities, rig_set_up, rig_tear_down) {
    const struct token_logprob top[] = {{'a', -1}, {'a', -2}, {'b', -3}, {'b', -4}};
    const struct token_info info = {.token = 'b', .logprob = -3, .n_top = 4, .top = top};
    const struct choice_format format = {.tokenizer = fake_tokenizer()};
    struct choice choice;
    choice_init(&choice, NULL, NULL, 0);
    choice_add_logprobs(&choice, &format, &info, false);
    json_t *told = json_loads(choice.top_logprobs.data, 0, NULL);
    assert_int_equal(json_object_size(told), 3); /* b twice is one token */
    assert_true(json_number_value(json_object_get(told, "a")) == -1);
    assert_true(json_number_value(json_object_get(told, "token_id:97")) == -2);
    json_decref(told);
    choice_fini(&choice);
}
