/* test_responses.c - POST /v1/responses on an engine without a model: what items become in the
 * prompt, and answers, events in their order, and errors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "server/api/conversation/request.h"
#include "server/api/responses/request.h"
#include "server/api/responses/store.h"
#include "tests/server/api_rig.h"
#include "tests/server/fake_engine.h"
#include "tests/test.h"

static int set_up(void **state) {
    return rig_set_up_chat(state, rig_template, 512);
}

/* ---- the prompt ---- */

/* The rig's only client, and what it has stored. */
static struct history_source source_of(const struct rig *rig) {
    return (struct history_source){.store = rig->server.responses, .max_bytes = 1 << 20};
}

static void check_prompt(struct rig *rig, const char *fields, const char *expected) {
    char body[2048];
    struct completion_request request;
    struct chat_request read;
    struct responses_asked asked = {0};
    struct api_error err = {0};
    const struct history_source source = source_of(rig);
    snprintf(body, sizeof(body), "{%s}", fields);
    const int rc = responses_request_parse(&request, &read, &asked, body, strlen(body), &source,
                                           &rig->server.limits, &err);
    if (rc) fail_msg("%s: %s", body, err.message);
    assert_string_equal(request.prompts.items[0].text, expected);
    completion_request_fini(&request);
    chat_request_fini(&read);
    responses_asked_fini(&asked, rig->server.responses);
}

TEST_WITH(a_string_is_the_users, set_up, rig_tear_down_chat) {
    check_prompt(*state, "\"input\":\"hi\"", "[user: hi]>");
    check_prompt(*state, "\"input\":\"hi\",\"instructions\":\"s\"", "[system: s][user: hi]>");
}

TEST_WITH(messages_have_parts, set_up, rig_tear_down_chat) {
    check_prompt(*state,
                 "\"input\":[{\"role\":\"developer\",\"content\":\"d\"},{\"type\":\"message\","
                 "\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"},"
                 "{\"type\":\"input_text\",\"text\":\"b\"}]}]",
                 "[system: d][user: a\nb]>");
}

TEST_WITH(an_assistants_items_are_one_message, set_up, rig_tear_down_chat) {
    check_prompt(
        *state,
        "\"input\":[{\"role\":\"user\",\"content\":\"q\"},"
        "{\"type\":\"reasoning\",\"id\":\"r\",\"summary\":[],"
        "\"content\":[{\"type\":\"reasoning_text\",\"text\":\"h\"}]},"
        "{\"type\":\"message\",\"role\":\"assistant\","
        "\"content\":[{\"type\":\"output_text\",\"text\":\"so\"}]},"
        "{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\",\"arguments\":\"{\\\"x\\\":1}"
        "\"},"
        "{\"type\":\"custom_tool_call\",\"call_id\":\"2\",\"name\":\"g\",\"input\":\"free\"},"
        "{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":\"one\"},"
        "{\"type\":\"custom_tool_call_output\",\"call_id\":\"2\",\"output\":[{\"type\":"
        "\"input_text\",\"text\":\"two\"}]},"
        "{\"type\":\"message\",\"role\":\"assistant\",\"content\":\"a\"},"
        "{\"type\":\"message\",\"role\":\"assistant\",\"content\":\"b\"}]",
        "[user: q][assistant thinks h: so 1=f({\"x\": 1}) 2=g({\"input\": \"free\"})]"
        "[tool 1: one][tool 2: two][assistant: a][assistant: b]>");
}

TEST_WITH(reasoning_may_be_a_summary_or_unreadable, set_up, rig_tear_down_chat) {
    check_prompt(
        *state,
        "\"input\":[{\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":\"x\"},"
        "{\"role\":\"assistant\",\"content\":\"a\"},"
        "{\"type\":\"reasoning\",\"summary\":[{\"type\":\"summary_text\",\"text\":\"s\"}]},"
        "{\"role\":\"assistant\",\"content\":\"b\"}]",
        "[assistant: a][assistant thinks s: b]>");
}

TEST_WITH(tools_are_functions, set_up, rig_tear_down_chat) {
    check_prompt(*state,
                 "\"input\":\"q\",\"tools\":[{\"type\":\"function\",\"name\":\"f\","
                 "\"parameters\":{\"type\":\"object\"},\"strict\":null},{\"type\":\"web_search\"}]",
                 "[user: q]{\"type\": \"function\", \"function\": {\"name\": \"f\", "
                 "\"parameters\": {\"type\": \"object\"}}}>");
    check_prompt(*state, "\"input\":\"q\",\"reasoning\":{\"effort\":\"low\"}",
                 "[user: q] effort=low>");
}

/* ---- answers ---- */

#define TOOLS                                                                                      \
    ",\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{\"type\":\"custom\",\"name\":\"g\"}]"
#define TEXT_ITEM(id, text) MESSAGE_ITEM(id, "completed", text)
#define MESSAGE_ITEM(id, status, text)                                                             \
    "{\"id\":\"msg_the-id_" id "\",\"type\":\"message\",\"role\":\"assistant\",\"status\":"        \
    "\"" status "\",\"content\":[{\"type\":\"output_text\",\"text\":\"" text                       \
    "\",\"annotations\":[],\"logprobs\":[]}]}"

static json_t *ask(struct rig *rig, const char *text, const char *body, unsigned status) {
    fake_engine_answer(rig->engine, text);
    return rig_ask(rig, "/v1/responses", body, status);
}

static void check_answer(json_t *answer, const char *output, const char *status) {
    assert_json(json_object_get(answer, "output"), output);
    assert_string_equal(json_string_value(json_object_get(answer, "status")), status);
    assert_string_equal(json_string_value(json_object_get(answer, "id")), "resp_the-id");
    json_decref(answer);
}

TEST_WITH(an_answer_has_items, set_up, rig_tear_down_chat) {
    check_answer(ask(*state, "hi", "{\"input\":\"q\"}", 200), "[" TEXT_ITEM("0", "hi") "]",
                 "completed");
    check_answer(ask(*state, "", "{\"input\":\"q\"}", 200), "[]", "completed");
    check_answer(ask(*state, NULL, "{\"input\":\"q\",\"max_output_tokens\":2}", 200),
                 "[" MESSAGE_ITEM("0", "incomplete", "ab") "]", "incomplete");
    check_answer(
        ask(*state,
            "<think>h</think>so<tool_call>{\"name\":\"f\",\"arguments\":{\"x\": 1}}</tool_call>"
            "<tool_call>{\"name\":\"g\",\"arguments\":{\"input\": \"free\"}}</tool_call>",
            "{\"input\":\"q\"" TOOLS "}", 200),
        "[{\"id\":\"rs_the-id_0\",\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":null,"
        "\"status\":\"completed\",\"content\":[{\"type\":\"reasoning_text\",\"text\":\"h\"}]}"
        "," TEXT_ITEM(
            "1",
            "so") ","
                  "{\"id\":\"fc_the-id_2\",\"type\":\"function_call\",\"status\":\"completed\","
                  "\"call_id\":\"call_ZR6XiXyQn\",\"name\":\"f\",\"arguments\":\"{\\\"x\\\": 1}\"},"
                  "{\"id\":\"ctc_the-id_3\",\"type\":\"custom_tool_call\",\"status\":\"completed\","
                  "\"call_id\":\"call_wGn2vIHET\",\"name\":\"g\",\"input\":\"free\"}]",
        "completed");
}

/* Collects the names of the events, whose numbers must go up by one. */
static json_t *events_of(const char *stream, char *names) {
    json_t *last = NULL;
    int n = 0;
    *names = 0;
    for (const char *at = stream; (at = strstr(at, "event: response.")); at++, n++) {
        char name[64];
        assert_int_equal(sscanf(at, "event: response.%63[a-z_.]", name), 1);
        const char *data = strstr(at, "\ndata: "), *end = strstr(at, "\n\n");
        json_decref(last);
        last = json_loadb(data + 7, (size_t)(end - data) - 7, 0, NULL);
        assert_string_equal(json_string_value(json_object_get(last, "type")) + 9, name);
        assert_int_equal(json_integer_value(json_object_get(last, "sequence_number")), n);
        strcat(strcat(names, name), " ");
    }
    return last;
}

/* A call that the limit has cut is text, which comes behind the whole calls before it. */
TEST_WITH(a_cut_call_is_text_in_its_place, set_up, rig_tear_down_chat) {
    static const char said[] = "so<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>then"
                               "<tool_call>{\"name\":\"f\"}</tool_call><tool_call>{\"na";
    static const char *const bodies[] = {"{\"input\":\"q\"" TOOLS "}",
                                         "{\"input\":\"q\",\"stream\":true" TOOLS "}"};
    struct rig *rig = *state;
    check_answer(
        ask(rig, said, bodies[0], 200),
        "[" TEXT_ITEM(
            "0",
            "so") ",{\"id\":\"fc_the-id_1\",\"type\":\"function_call\","
                  "\"status\":\"completed\",\"call_id\":\"call_ZR6XiXyQn\",\"name\":\"f\","
                  "\"arguments\":\"{}\"}," TEXT_ITEM(
                      "2",
                      "then") ",{\"id\":\"fc_the-id_3\","
                              "\"type\":\"function_call\",\"status\":\"completed\",\"call_id\":"
                              "\"call_wGn2vIHET\",\"name\":\"f\",\"arguments\":\"{}\"}," TEXT_ITEM(
                                  "4", "<tool_call>{\\\"na") "]",
        "completed");
    char names[4096];
    fake_engine_answer(rig->engine, said);
    struct http_exchange exchange = rig_post("/v1/responses", bodies[1]);
    rig_begin(rig, &exchange);
    rig_finish(rig);
    json_t *last = events_of(exchange.out.data, names), *whole = ask(rig, said, bodies[0], 200);
    assert_true(json_equal(json_object_get(json_object_get(last, "response"), "output"),
                           json_object_get(whole, "output")));
    json_decref(whole);
    json_decref(last);
    fake_http_fini(&exchange);
}

TEST_WITH(an_answer_repeats_its_request, set_up, rig_tear_down_chat) {
    json_t *a = ask(*state, "hi",
                    "{\"input\":\"q\",\"instructions\":\"s\",\"temperature\":0.5,"
                    "\"metadata\":{\"a\":\"b\"},\"store\":true}",
                    200);
    assert_json(json_object_get(a, "instructions"), "\"s\"");
    assert_json(json_object_get(a, "temperature"), "0.5");
    assert_json(json_object_get(a, "metadata"), "{\"a\":\"b\"}");
    assert_json(json_object_get(a, "store"), "false");
    assert_json(json_object_get(a, "tool_choice"), "\"auto\"");
    json_decref(a);
}

/* ---- streams ---- */

TEST_WITH(events_come_in_order, set_up, rig_tear_down_chat) {
    struct rig *rig = *state;
    char names[4096];
    fake_engine_answer(rig->engine, "<think>h</think>s<tool_call>{\"name\":\"f\"}</tool_call>");
    struct http_exchange exchange =
        rig_post("/v1/responses", "{\"input\":\"q\",\"stream\":true" TOOLS "}");
    rig_begin(rig, &exchange);
    assert_non_null(strstr(exchange.out.data, "response.in_progress")); /* before any token */
    rig_finish(rig);
    json_t *last = events_of(exchange.out.data, names);
    assert_string_equal(names, "created in_progress "
                               "output_item.added content_part.added reasoning_text.delta "
                               "reasoning_text.done content_part.done output_item.done "
                               "output_item.added content_part.added output_text.delta "
                               "output_text.done content_part.done output_item.done "
                               "output_item.added function_call_arguments.delta "
                               "function_call_arguments.done output_item.done completed ");
    const json_t *response = json_object_get(last, "response");
    assert_int_equal(json_array_size(json_object_get(response, "output")), 3);
    assert_true(json_is_object(json_object_get(response, "usage")));
    json_decref(last);
    fake_http_fini(&exchange);
}

TEST_WITH(logprobs_come_with_the_text, set_up, rig_tear_down_chat) {
    json_t *a = ask(*state, "hi", "{\"input\":\"q\",\"top_logprobs\":1}", 200);
    const json_t *part = json_array_get(
        json_object_get(json_array_get(json_object_get(a, "output"), 0), "content"), 0);
    assert_int_equal(json_array_size(json_object_get(part, "logprobs")), 2);
    json_decref(a);
}

TEST_WITH(a_failed_stream_says_so, set_up, rig_tear_down_chat) {
    struct rig *rig = *state;
    char names[1024];
    fake_engine_fail_after(rig->engine, 1);
    struct http_exchange exchange = rig_post("/v1/responses", "{\"input\":\"q\",\"stream\":true}");
    rig_begin(rig, &exchange);
    rig_finish(rig);
    json_t *last = events_of(exchange.out.data, names);
    assert_non_null(strstr(names, "output_text.delta failed "));
    assert_json(json_object_get(json_object_get(last, "response"), "status"), "\"failed\"");
    json_decref(last);
    fake_http_fini(&exchange);
}

/* ---- errors ---- */

TEST_WITH(what_is_wrong_is_named, set_up, rig_tear_down_chat) {
    static const struct {
        const char *body, *param, *message;
    } cases[] = {
        {"{}", "input", "input is required"},
        {"{\"input\":[]}", "input", "input must be"},
        {"{\"input\":[3]}", "input", "input[0] must be an object"},
        {"{\"input\":[{\"role\":\"x\",\"content\":\"\"}]}", "input", "input[0].role must be"},
        {"{\"input\":[{\"role\":\"user\"}]}", "input", "input[0].content must be"},
        {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]}", "input",
         "input[0].content[0]: parts of the type 'input_image'"},
        {"{\"input\":[{\"type\":\"item_reference\",\"id\":\"x\"}]}", "input", "nothing is stored"},
        {"{\"input\":[{\"type\":\"computer_call\"}]}", "input", "no item says anything"},
        {"{\"input\":[{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\","
         "\"arguments\":\"[]\"}]}",
         "input", "input[0].arguments must be a JSON object"},
        {"{\"input\":[{\"type\":\"function_call\",\"name\":\"f\",\"arguments\":\"{}\"}]}", "input",
         "input[0].call_id must be"},
        {"{\"input\":\"q\",\"previous_response_id\":\"x\"}", "previous_response_id",
         "nothing is stored"},
        {"{\"input\":\"q\",\"previous_response_id\":3}", "previous_response_id",
         "must be a string"},
        {"{\"input\":\"q\",\"conversation\":\"x\"}", "conversation", "previous_response_id"},
        {"{\"input\":\"q\",\"truncation\":\"middle\"}", "truncation", "must be disabled or auto"},
        {"{\"input\":\"q\",\"background\":true}", "background", "not supported"},
        {"{\"input\":\"q\",\"tools\":[{\"type\":\"mcp\"}]}", "tools", "'mcp' is not supported"},
        {"{\"input\":\"q\",\"tools\":[{\"type\":\"web_search\"}],\"tool_choice\":\"required\"}",
         "tool_choice", "none of those in tools"},
        {"{\"input\":\"q\",\"tool_choice\":{\"type\":\"x\"}}", "tool_choice", "type must be auto"},
        {"{\"input\":\"q\",\"text\":{\"format\":{\"type\":\"json_object\"}}}", "text", ""},
        {"{\"input\":\"q\",\"max_output_tokens\":-2}", "max_output_tokens", "must be between"},
        {"{\"input\":\"q\",\"max_output_tokens\":100000}", "max_output_tokens", "context"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        json_t *a = rig_ask(*state, "/v1/responses", cases[i].body, 400);
        const json_t *error = json_object_get(a, "error");
        const char *message = json_string_value(json_object_get(error, "message"));
        if (!strstr(message, cases[i].message)) fail_msg("%s: %s", cases[i].body, message);
        assert_string_equal(json_string_value(json_object_get(error, "param")), cases[i].param);
        json_decref(a);
    }
}

/* ---- stored responses ---- */

enum { STORE_BYTES = 1 << 20, LONG_BODY = 400 << 10 };

static int set_up_stored(void **state) {
    static const struct responses_store_config config = {.max_bytes = STORE_BYTES};
    rig_set_up_chat(state, rig_template, 512);
    struct server *server = &((struct rig *)*state)->server;
    server->max_body_bytes = LONG_BODY;
    return responses_store_create(&server->responses, &config, NULL);
}

static int tear_down_stored(void **state) {
    struct responses_store *store = ((struct rig *)*state)->server.responses;
    const int rc = rig_tear_down_chat(state);
    responses_store_destroy(store);
    return rc;
}

/* Asks a route of stored responses; the parsed answer is the caller's. */
static json_t *look(struct rig *rig, struct http_exchange exchange, unsigned status) {
    rig_begin(rig, &exchange);
    assert_true(exchange.completed);
    if (exchange.status != status) fail_msg("%u: %s", exchange.status, exchange.out.data);
    json_t *answer = json_loadb(exchange.out.data, exchange.out.length, 0, NULL);
    assert_non_null(answer);
    fake_http_fini(&exchange);
    return answer;
}

static json_t *get(struct rig *rig, const char *path, unsigned status) {
    return look(rig, (struct http_exchange){.method = "GET", .path = path}, status);
}

static void check_error(json_t *answer, const char *code, const char *message) {
    const json_t *error = json_object_get(answer, "error");
    const char *said = json_string_value(json_object_get(error, "message"));
    assert_json(json_object_get(error, "code"), code);
    if (!strstr(said, message)) fail_msg("%s", said);
    json_decref(answer);
}

#define SAID "<think>h</think>so<tool_call>{\"name\":\"f\",\"arguments\":{\"x\": 1}}</tool_call>"
#define GO_ON "\"previous_response_id\":\"resp_the-id\""

TEST_WITH(a_conversation_goes_on_from_a_response, set_up_stored, tear_down_stored) {
    static const char whole[] =
        "[system: s][user: q][assistant thinks h: so call_nTxTlOP4K=f({\"x\": 1})]"
        "[tool call_nTxTlOP4K: 5]>";
    struct rig *rig = *state;
    json_t *first = ask(rig, SAID, "{\"input\":\"q\",\"instructions\":\"first\"" TOOLS "}", 200);
    assert_json(json_object_get(first, "store"), "true");
    assert_json(json_object_get(first, "previous_response_id"), "null");
    check_prompt(rig,
                 "\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"call_nTxTlOP4K\","
                 "\"output\":\"5\"}],\"instructions\":\"s\"," GO_ON,
                 whole);
    json_t *second = ask(rig, "five", "{\"input\":\"and?\"," GO_ON "}", 200);
    assert_json(json_object_get(second, "previous_response_id"), "\"resp_the-id\"");
    assert_json(json_object_get(second, "id"), "\"resp_the-id-1\""); /* the first has the other */
    assert_json(json_object_get(json_array_get(json_object_get(second, "output"), 0), "id"),
                "\"msg_the-id-1_0\"");
    json_decref(look(
        rig, (struct http_exchange){.method = "DELETE", .path = "/v1/responses/resp_the-id"}, 200));
    check_prompt(rig, "\"input\":\"x\",\"previous_response_id\":\"resp_the-id-1\"",
                 "[user: q][assistant thinks h: so call_nTxTlOP4K=f({\"x\": 1})][user: and?]"
                 "[assistant: five][user: x]>");
    json_decref(first);
    json_decref(second);
}

/* A client chooses the id of a request that is what another one's ids would be made of. */
TEST_WITH(no_response_takes_the_place_of_another, set_up_stored, tear_down_stored) {
    struct rig *rig = *state;
    struct responses_store *store = rig->server.responses;
    json_t *first = ask(rig, "one", "{\"input\":\"q\"}", 200);
    struct buffer input = {0}, output = {0};
    struct stored_turn *before = NULL;
    const struct new_response other = {.id = "resp_the-id-1",
                                       .head = {"{\"is\":\"another\"", 15},
                                       .tail = {"}", 1},
                                       .input = &input,
                                       .output = &output,
                                       .before = &before};
    responses_store_add(store, &other, 0);
    json_t *second = ask(rig, "two", "{\"input\":\"q\"}", 200);
    json_t *kept = get(rig, "/v1/responses/resp_the-id-1", 200);
    assert_json(kept, "{\"is\":\"another\"}");
    json_t *stored = get(rig, "/v1/responses/resp_the-id-2", 200);
    assert_true(json_equal(second, stored));
    json_decref(first);
    json_decref(second);
    json_decref(kept);
    json_decref(stored);
}

TEST_WITH(a_stored_response_is_as_it_was_answered, set_up_stored, tear_down_stored) {
    static const char *const bodies[] = {"{\"input\":\"q\",\"metadata\":{\"a\":\"b\"}" TOOLS "}",
                                         "{\"input\":\"q\",\"stream\":true" TOOLS "}"};
    struct rig *rig = *state;
    char names[4096];
    json_t *whole = ask(rig, SAID, bodies[0], 200);
    json_t *stored = get(rig, "/v1/responses/resp_the-id", 200);
    assert_true(json_equal(whole, stored));
    json_decref(whole);
    json_decref(stored);
    fake_engine_answer(rig->engine, SAID);
    struct http_exchange exchange = rig_post("/v1/responses", bodies[1]);
    rig_begin(rig, &exchange);
    rig_finish(rig);
    json_t *last = events_of(exchange.out.data, names);
    stored = get(rig, "/v1/responses/resp_the-id-1", 200);
    assert_true(json_equal(json_object_get(last, "response"), stored));
    json_decref(last);
    json_decref(stored);
    fake_http_fini(&exchange);
}

TEST_WITH(what_is_not_stored_is_not_found, set_up_stored, tear_down_stored) {
    struct rig *rig = *state;
    json_t *a = ask(rig, "hi", "{\"input\":\"q\",\"store\":false}", 200);
    assert_json(json_object_get(a, "store"), "false");
    json_decref(a);
    check_error(get(rig, "/v1/responses/resp_the-id", 404), "\"not_found\"", "not found");
    check_error(get(rig, "/v1/responses/resp_the-id/input_items", 404), "\"not_found\"",
                "not found");
    check_error(rig_ask(rig, "/v1/responses", "{\"input\":\"q\"," GO_ON "}", 400),
                "\"previous_response_not_found\"", "Previous response with id 'resp_the-id'");
    check_error(look(rig, rig_post("/v1/responses/resp_the-id/cancel", NULL), 404), "\"not_found\"",
                "/v1/requests/{id}/cancel");
    json_decref(ask(rig, "hi", "{\"input\":\"q\",\"store\":null}", 200)); /* the default */
    check_error(look(rig, rig_post("/v1/responses/resp_the-id/cancel", NULL), 400),
                "\"unsupported\"", "has ended");
    a = look(rig, (struct http_exchange){.method = "DELETE", .path = "/v1/responses/resp_the-id"},
             200);
    assert_json(a, "{\"id\":\"resp_the-id\",\"object\":\"response\",\"deleted\":true}");
    json_decref(a);
    check_error(get(rig, "/v1/responses/resp_the-id", 404), "\"not_found\"", "not found");
}

TEST_WITH(a_key_finds_its_own_responses_only, set_up_stored, tear_down_stored) {
    struct rig *rig = *state;
    rig->server.keys = &rig_keys;
    struct http_exchange exchange = rig_post("/v1/responses", "{\"input\":\"q\"}");
    exchange.authorization = "Bearer secret";
    rig_begin(rig, &exchange);
    rig_finish(rig);
    fake_http_fini(&exchange);
    struct http_exchange by_key = {.method = "GET", .path = "/v1/responses/resp_the-id"};
    by_key.authorization = "Bearer secret";
    json_decref(look(rig, by_key, 200));
    by_key.authorization = "Bearer other";
    json_decref(look(rig, by_key, 404));
    by_key = rig_post("/v1/responses", "{\"input\":\"q\"," GO_ON "}");
    by_key.authorization = "Bearer other";
    check_error(look(rig, by_key, 400), "\"previous_response_not_found\"", "another API key's");
    by_key = rig_post("/v1/responses",
                      "{\"input\":[{\"type\":\"item_reference\",\"id\":\"msg_the-id_0\"}]}");
    by_key.authorization = "Bearer other";
    check_error(look(rig, by_key, 404), "null", "item with id 'msg_the-id_0' not found");
}

/* With a key in one header, the other header makes no other client of its holder. */
TEST_WITH(a_key_is_one_client_in_either_header, set_up_stored, tear_down_stored) {
    struct rig *rig = *state;
    rig->server.keys = &rig_keys;
    struct http_exchange exchange = rig_post("/v1/responses", "{\"input\":\"q\"}");
    exchange.api_key = "secret";
    exchange.authorization = "Bearer anything";
    rig_begin(rig, &exchange);
    rig_finish(rig);
    fake_http_fini(&exchange);
    struct http_exchange shown = {.method = "GET", .path = "/v1/responses/resp_the-id"};
    shown.authorization = "Bearer secret";
    json_decref(look(rig, shown, 200));
    shown.authorization = "Bearer other";
    json_decref(look(rig, shown, 404));
}

TEST_WITH(a_reference_stands_for_its_item, set_up_stored, tear_down_stored) {
    struct rig *rig = *state;
    json_decref(ask(rig, SAID, "{\"input\":\"q\"" TOOLS "}", 200));
    check_prompt(rig,
                 "\"input\":[{\"type\":\"item_reference\",\"id\":\"item_the-id_in0\"},"
                 "{\"id\":\"rs_the-id_0\"},{\"id\":\"msg_the-id_1\",\"type\":null},"
                 "{\"type\":\"item_reference\",\"id\":\"fc_the-id_2\"},"
                 "{\"type\":\"function_call_output\",\"call_id\":\"call_ZR6XiXyQn\","
                 "\"output\":\"5\"}]",
                 "[user: q][assistant thinks h: so call_ZR6XiXyQn=f({\"x\": 1})]"
                 "[tool call_ZR6XiXyQn: 5]>");
    check_error(rig_ask(rig, "/v1/responses",
                        "{\"input\":[{\"role\":\"user\",\"content\":\"x\"},"
                        "{\"type\":\"item_reference\",\"id\":\"msg_the-id_9\"}]}",
                        404),
                "null", "input[1]: item with id");
    check_error(rig_ask(rig, "/v1/responses", "{\"input\":[{\"type\":\"item_reference\"}]}", 400),
                "null", "input[0].id must be a string");
    /* What a reference names is stored as the item itself. */
    json_decref(ask(rig, "hi", "{\"input\":[{\"id\":\"item_the-id_in0\"}]}", 200));
    json_decref(look(
        rig, (struct http_exchange){.method = "DELETE", .path = "/v1/responses/resp_the-id"}, 200));
    check_prompt(rig, "\"input\":\"x\",\"previous_response_id\":\"resp_the-id-1\"",
                 "[user: q][assistant: hi][user: x]>");
}

static void check_page(struct rig *rig, const char *const arguments[4][2], const char *ids,
                       bool has_more) {
    struct http_exchange exchange = {.method = "GET",
                                     .path = "/v1/responses/resp_the-id/input_items"};
    char found[256] = "";
    memcpy(exchange.arguments, arguments, sizeof(exchange.arguments));
    json_t *page = look(rig, exchange, 200);
    const json_t *data = json_object_get(page, "data");
    for (size_t i = 0; i < json_array_size(data); i++) {
        strcat(found, json_string_value(json_object_get(json_array_get(data, i), "id")));
        strcat(found, " ");
    }
    assert_string_equal(found, ids);
    assert_int_equal(json_is_true(json_object_get(page, "has_more")), has_more);
    json_decref(page);
}

TEST_WITH(input_items_are_listed, set_up_stored, tear_down_stored) {
    struct rig *rig = *state;
    json_decref(ask(rig, "hi",
                    "{\"input\":[{\"role\":\"user\",\"content\":\"a\"},"
                    "{\"role\":\"assistant\",\"id\":\"own\",\"content\":\"b\"},"
                    "{\"role\":\"user\",\"content\":\"c\"}]}",
                    200));
    check_page(rig, (const char *const[4][2]){{0}}, "item_the-id_in2 own item_the-id_in0 ", false);
    check_page(rig, (const char *const[4][2]){{"order", "asc"}, {"limit", "2"}},
               "item_the-id_in0 own ", true);
    check_page(rig, (const char *const[4][2]){{"order", "asc"}, {"after", "own"}},
               "item_the-id_in2 ", false);
    check_page(rig, (const char *const[4][2]){{"after", "own"}}, "item_the-id_in0 ", false);
    check_page(rig, (const char *const[4][2]){{"after", "item_the-id_in0"}}, "", false);
    json_t *page = get(rig, "/v1/responses/resp_the-id/input_items", 200);
    assert_json(json_array_get(json_object_get(page, "data"), 1),
                "{\"role\":\"assistant\",\"id\":\"own\",\"content\":[{\"type\":\"output_text\","
                "\"text\":\"b\"}],\"type\":\"message\"}");
    assert_json(json_object_get(page, "last_id"), "\"item_the-id_in0\"");
    json_decref(page);
    static const char *const wrong[][3] = {{"limit", "0", "limit must be"},
                                           {"limit", "101", "limit must be"},
                                           {"limit", "2x", "limit must be"},
                                           {"order", "up", "order must be"},
                                           {"after", "gone", "has no input item 'gone'"}};
    for (size_t i = 0; i < COUNT(wrong); i++)
        check_error(look(rig,
                         (struct http_exchange){.method = "GET",
                                                .path = "/v1/responses/resp_the-id/input_items",
                                                .arguments = {{wrong[i][0], wrong[i][1]}}},
                         400),
                    "null", wrong[i][2]);
}

TEST_WITH(a_client_that_leaves_stores_nothing, set_up_stored, tear_down_stored) {
    struct rig *rig = *state;
    const uint64_t empty = responses_store_stats(rig->server.responses).n_bytes;
    struct http_exchange exchange = rig_post("/v1/responses", "{\"input\":\"q\",\"stream\":true}");
    fake_engine_answer(rig->engine, "hello");
    rig_begin(rig, &exchange);
    rig_step(rig);
    fake_http_leave(&exchange);
    rig_finish(rig);
    assert_int_equal(responses_store_stats(rig->server.responses).n_bytes, empty);
    fake_http_fini(&exchange);
}

TEST_WITH(nothing_goes_on_from_a_failed_response, set_up_stored, tear_down_stored) {
    struct rig *rig = *state;
    fake_engine_fail_after(rig->engine, 1);
    struct http_exchange exchange = rig_post("/v1/responses", "{\"input\":\"q\",\"stream\":true}");
    rig_begin(rig, &exchange);
    rig_finish(rig);
    fake_http_fini(&exchange);
    json_t *stored = get(rig, "/v1/responses/resp_the-id", 200);
    assert_json(json_object_get(stored, "status"), "\"failed\"");
    json_decref(stored);
    check_error(rig_ask(rig, "/v1/responses", "{\"input\":\"q\"," GO_ON "}", 400), "null",
                "has failed");
}

/* Asks with a text of n letters. */
static json_t *ask_long(struct rig *rig, size_t n, const char *members, unsigned status) {
    char *body = malloc(n + 256);
    assert_non_null(body);
    const size_t at = (size_t)sprintf(body, "{\"store\":true%s,\"input\":\"", members);
    memset(body + at, 'x', n);
    strcpy(body + at + n, "\"}");
    json_t *answer = ask(rig, "hi", body, status);
    free(body);
    return answer;
}

TEST_WITH(a_long_conversation_is_bounded_as_a_body_is, set_up_stored, tear_down_stored) {
    struct rig *rig = *state;
    rig->server.limits.max_model_len = rig->server.limits.trained_context = 10 << 20;
    json_decref(ask_long(rig, JOB_LONG_BYTES + 10, "", 200)); /* read in the lane of long bodies */
    json_t *a = ask(rig, "hi", "{\"input\":\"and?\"," GO_ON "}", 200);
    const json_t *usage = json_object_get(a, "usage");
    assert_true(json_integer_value(json_object_get(usage, "input_tokens")) > 1000);
    json_decref(a);
    json_decref(ask_long(rig, LONG_BODY - JOB_LONG_BYTES, "," GO_ON, 200));
    check_error(ask(rig, "hi", "{\"input\":\"q\",\"previous_response_id\":\"resp_the-id-2\"}", 400),
                "null", "a request may have");
}

TEST_WITH(what_was_evicted_is_named_with_its_setting, set_up_stored, tear_down_stored) {
    static const char why[] =
        "it was evicted, because later responses needed its space (--responses-store-size 1048576)";
    struct rig *rig = *state;
    rig->server.limits.max_model_len = rig->server.limits.trained_context = 10 << 20;
    for (int i = 0; i < 4; i++) json_decref(ask_long(rig, 380 << 10, "", 200));
    check_error(get(rig, "/v1/responses/resp_the-id", 404), "\"not_found\"", why);
    check_error(get(rig, "/v1/responses/resp_the-id/input_items", 404), "\"not_found\"", why);
    check_error(rig_ask(rig, "/v1/responses", "{\"input\":\"q\"," GO_ON "}", 400),
                "\"previous_response_not_found\"", why);
    check_error(rig_ask(rig, "/v1/responses", "{\"input\":[{\"id\":\"msg_the-id_0\"}]}", 404),
                "null", why);
    check_error(rig_ask(rig, "/v1/responses", "{\"input\":[{\"id\":\"msg_the-id-3_9\"}]}", 404),
                "null", "it has no such item");
    check_error(get(rig, "/v1/responses/resp_other", 404), "\"not_found\"", "store: false");
    const struct responses_store_stats stats = responses_store_stats(rig->server.responses);
    assert_int_equal(stats.n_misses[RESPONSE_EVICTED], 4);
    assert_int_equal(stats.n_misses[RESPONSE_UNKNOWN], 1);
}

/* A reference takes few bytes, and what it names may take many. */
TEST_WITH(what_references_name_is_bounded_as_a_body_is, set_up_stored, tear_down_stored) {
    enum { N_REFERENCES = 100 };
    struct rig *rig = *state;
    rig->server.limits.max_model_len = rig->server.limits.trained_context = 10 << 20;
    json_decref(ask_long(rig, LONG_BODY / 10, "", 200));
    for (int stores = 0; stores < 2; stores++) {
        struct buffer body = {0};
        buffer_puts(&body, "{\"input\":[");
        for (int i = 0; i < N_REFERENCES; i++)
            buffer_printf(&body, "%s{\"id\":\"item_the-id_in0\"}", i ? "," : "");
        buffer_printf(&body, "],\"store\":%s}", stores ? "true" : "false");
        check_error(ask(rig, "hi", body.data, 400), "null",
                    "refers to have more than 409600 bytes");
        buffer_fini(&body);
    }
    json_decref(ask(
        rig, "hi", "{\"input\":[{\"id\":\"item_the-id_in0\"},{\"id\":\"item_the-id_in0\"}]}", 200));
}
