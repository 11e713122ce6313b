/* test_messages.c - POST /v1/messages on an engine without a model: what a body's blocks become in
 * the prompt, and answers, streams and errors in Anthropic's shape. */
#include <stdio.h>
#include <string.h>
#include <jansson.h>

#include "server/api/conversation/request.h"
#include "server/api/conversation/tools.h"
#include "server/api/messages/blocks.h"
#include "server/api/messages/request.h"
#include "server/settings/chat_template.h"
#include "tests/server/api_rig.h"
#include "tests/server/fake_engine.h"
#include "tests/test.h"

static int set_up(void **state) {
    return rig_set_up_chat(state, rig_template, 512);
}

/* ---- the prompt ---- */

static void check_prompt(struct rig *rig, const char *fields, const char *expected) {
    char body[2048];
    struct completion_request request;
    struct chat_request read;
    struct api_error err = {0};
    snprintf(body, sizeof(body), "{\"max_tokens\":4,%s}", fields);
    const int rc = messages_request_parse(&request, &read, false, body, strlen(body),
                                          &rig->server.limits, &err);
    if (rc) fail_msg("%s: %s", body, err.message);
    assert_string_equal(request.prompts.items[0].text, expected);
    completion_request_fini(&request);
    chat_request_fini(&read);
}

TEST_WITH(text_is_the_content, set_up, rig_tear_down_chat) {
    check_prompt(*state, "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]", "[user: hi]>");
    check_prompt(
        *state,
        "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\","
        "\"cache_control\":{\"type\":\"ephemeral\"}},{\"type\":\"text\",\"text\":\"b\"}]}]",
        "[user: a\nb]>");
}

TEST_WITH(the_system_is_the_first_message, set_up, rig_tear_down_chat) {
    check_prompt(*state, "\"system\":\"s\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]",
                 "[system: s][user: hi]>");
    check_prompt(*state,
                 "\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: cch=1\"},"
                 "{\"type\":\"text\",\"text\":\"s\"},{\"type\":\"text\",\"text\":\"t\"}],"
                 "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]",
                 "[system: s\nt][user: hi]>");
}

/* The texts are gathered in one pass: a body of some MB took minutes, as each one was copied with
 * all of those before it. */
TEST(the_thinking_of_many_blocks_is_one) {
    enum { N = 30000, EACH = 400 };
    static char thought[EACH + 1];
    struct api_error err = {0};
    struct tool_list tools = {0};
    bool continues;
    memset(thought, 'x', EACH);
    json_t *blocks = json_array(), *messages = json_array();
    for (int i = 0; i < N; i++)
        json_array_append_new(blocks,
                              json_pack("{s:s, s:s}", "type", "thinking", "thinking", thought));
    json_t *from = json_pack("[{s:s, s:o}]", "role", "assistant", "content", blocks);
    assert_int_equal(blocks_read_messages(messages, &tools, from, &continues, NULL, &err), 0);
    const json_t *all = json_object_get(json_array_get(messages, 0), "reasoning_content");
    assert_int_equal(json_string_length(all), N * (EACH + 1) - 1);
    json_decref(from);
    json_decref(messages);
    tool_list_fini(&tools);
}

TEST_WITH(calls_and_results_are_messages, set_up, rig_tear_down_chat) {
    check_prompt(
        *state,
        "\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":["
        "{\"type\":\"thinking\",\"thinking\":\"h\",\"signature\":\"\"},"
        "{\"type\":\"thinking\",\"thinking\":\"m\",\"signature\":\"\"},"
        "{\"type\":\"text\",\"text\":\"so\"},"
        "{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\",\"input\":{\"x\":[1]}},"
        "{\"type\":\"tool_use\",\"id\":\"2\",\"name\":\"g\",\"input\":{}}]},"
        "{\"role\":\"user\",\"content\":["
        "{\"type\":\"tool_result\",\"tool_use_id\":\"1\",\"content\":\"one\"},"
        "{\"type\":\"tool_result\",\"tool_use_id\":\"2\",\"content\":["
        "{\"type\":\"text\",\"text\":\"t\"},{\"type\":\"text\",\"text\":\"wo\"}]},"
        "{\"type\":\"tool_result\",\"tool_use_id\":\"3\"},"
        "{\"type\":\"text\",\"text\":\"next\"}]}]",
        "[user: q][assistant thinks h\nm: so 1=f({\"x\": [1]}) 2=g({})]"
        "[tool 1: one][tool 2: t\nwo][tool 3: ][user: next]>");
}

TEST_WITH(a_last_assistant_is_continued, set_up, rig_tear_down_chat) {
    rig_change_template("{% for m in messages %}{{ m.content }}|{% endfor %}");
    check_prompt(*state,
                 "\"messages\":[{\"role\":\"user\",\"content\":\"q\"},"
                 "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"It is\"}]}]",
                 "q|It is");
}

TEST_WITH(tools_are_functions, set_up, rig_tear_down_chat) {
    check_prompt(*state,
                 "\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"tools\":[{\"name\":\"f\","
                 "\"description\":\"d\",\"input_schema\":{\"type\":\"object\"},"
                 "\"cache_control\":{\"type\":\"ephemeral\"}}],\"tool_choice\":{\"type\":\"auto\"}",
                 "[user: q]{\"type\": \"function\", \"function\": {\"name\": \"f\", "
                 "\"description\": \"d\", \"parameters\": {\"type\": \"object\"}}}>");
    check_prompt(*state,
                 "\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"tools\":[{\"name\":\"f\","
                 "\"input_schema\":{}}],\"tool_choice\":{\"type\":\"none\"}",
                 "[user: q]>");
}

TEST_WITH(thinking_is_the_templates_matter, set_up, rig_tear_down_chat) {
    check_prompt(*state,
                 "\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],"
                 "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024}",
                 "[user: q] thinking=True>");
    check_prompt(*state,
                 "\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],"
                 "\"thinking\":{\"type\":\"disabled\"},\"output_config\":{\"effort\":\"low\"}",
                 "[user: q] thinking=False effort=low>");
}

/* ---- answers ---- */

#define HEAD "{\"max_tokens\":90,\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]"
#define TOOLS ",\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":\"object\"}}]"

static json_t *ask(struct rig *rig, const char *text, const char *body, unsigned status) {
    fake_engine_answer(rig->engine, text);
    return rig_ask(rig, "/v1/messages", body, status);
}

static void check_answer(json_t *answer, const char *content, const char *reason) {
    assert_json(json_object_get(answer, "content"), content);
    assert_string_equal(json_string_value(json_object_get(answer, "stop_reason")), reason);
    assert_string_equal(json_string_value(json_object_get(answer, "id")), "msg_the-id");
    assert_string_equal(json_string_value(json_object_get(answer, "type")), "message");
    json_decref(answer);
}

TEST_WITH(an_answer_has_blocks, set_up, rig_tear_down_chat) {
    check_answer(ask(*state, "hi", HEAD "}", 200),
                 "[{\"type\":\"text\",\"text\":\"hi\",\"citations\":null}]", "end_turn");
    check_answer(ask(*state, "", HEAD "}", 200), "[]", "end_turn");
    check_answer(ask(*state,
                     "<think>h</think>so<tool_call>{\"name\":\"f\",\"arguments\":{\"x\": 1}}"
                     "</tool_call>",
                     HEAD TOOLS "}", 200),
                 "[{\"type\":\"thinking\",\"thinking\":\"h\",\"signature\":\"\"},"
                 "{\"type\":\"text\",\"text\":\"so\",\"citations\":null},"
                 "{\"type\":\"tool_use\",\"id\":\"toolu_Odwpam4qJ\",\"name\":\"f\","
                 "\"input\":{\"x\":1}}]",
                 "tool_use");
    check_answer(ask(*state, /* what the limit has cut is text, behind the calls before it */
                     "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call><tool_call>{\"na",
                     HEAD TOOLS "}", 200),
                 "[{\"type\":\"tool_use\",\"id\":\"toolu_Odwpam4qJ\",\"name\":\"f\",\"input\":{}},"
                 "{\"type\":\"text\",\"text\":\"<tool_call>{\\\"na\",\"citations\":null}]",
                 "tool_use");
}

TEST_WITH(the_reason_names_why_it_ended, set_up, rig_tear_down_chat) {
    json_t *a = ask(*state, NULL,
                    "{\"max_tokens\":3,\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}", 200);
    assert_string_equal(json_string_value(json_object_get(a, "stop_reason")), "max_tokens");
    json_decref(a);
    a = ask(*state, NULL,
            "{\"max_tokens\":9999,\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}", 200);
    assert_string_equal(json_string_value(json_object_get(a, "stop_reason")),
                        "model_context_window_exceeded");
    json_decref(a);
}

TEST_WITH(usage_tells_input_from_cache, set_up, rig_tear_down_chat) {
    json_t *a = ask(*state, "hi", HEAD "}", 200);
    const json_t *usage = json_object_get(a, "usage");
    assert_int_equal(json_integer_value(json_object_get(usage, "input_tokens")) +
                         json_integer_value(json_object_get(usage, "cache_read_input_tokens")),
                     (json_int_t)strlen("[user: q]>"));
    assert_int_equal(json_integer_value(json_object_get(usage, "output_tokens")), 2);
    assert_true(json_is_object(json_object_get(usage, "kv")));
    json_decref(a);
}

/* Collects the names of the events, and each must be the type of its data. */
static void names_of(const char *stream, char *names) {
    *names = 0;
    for (const char *at = stream; (at = strstr(at, "event: ")); at++) {
        char name[64];
        assert_int_equal(sscanf(at, "event: %63[a-z_]", name), 1);
        const char *data = strstr(at, "\ndata: "), *end = strstr(at, "\n\n");
        json_t *event = json_loadb(data + 7, (size_t)(end - data) - 7, 0, NULL);
        assert_string_equal(json_string_value(json_object_get(event, "type")), name);
        json_decref(event);
        strcat(strcat(names, name), " ");
    }
}

TEST_WITH(a_stream_has_one_open_block, set_up, rig_tear_down_chat) {
    struct rig *rig = *state;
    char names[4096];
    fake_engine_answer(rig->engine, "<think>h</think>s<tool_call>{\"name\":\"f\"}</tool_call>");
    struct http_exchange exchange = rig_post("/v1/messages", HEAD TOOLS ",\"stream\":true}");
    rig_begin(rig, &exchange);
    assert_int_equal(exchange.out.length, 0); /* the cache has not been looked at */
    rig_finish(rig);
    assert_true(exchange.completed);
    names_of(exchange.out.data, names);
    assert_string_equal(names, "message_start ping "
                               "content_block_start content_block_delta content_block_stop "
                               "content_block_start content_block_delta content_block_stop "
                               "content_block_start content_block_delta content_block_stop "
                               "message_delta message_stop ");
    assert_non_null(strstr(exchange.out.data,
                           "\"index\":2,\"content_block\":{\"type\":\"tool_use\",\"id\":"
                           "\"toolu_Odwpam4qJ\",\"name\":\"f\",\"input\":{}}"));
    assert_non_null(strstr(exchange.out.data, "\"delta\":{\"type\":\"input_json_delta\","
                                              "\"partial_json\":\"{}\"}"));
    assert_non_null(strstr(exchange.out.data, "\"stop_reason\":\"tool_use\""));
    fake_http_fini(&exchange);
}

TEST_WITH(a_failed_stream_ends_with_an_error, set_up, rig_tear_down_chat) {
    struct rig *rig = *state;
    char names[1024];
    fake_engine_fail_after(rig->engine, 1);
    struct http_exchange exchange = rig_post("/v1/messages", HEAD ",\"stream\":true}");
    rig_begin(rig, &exchange);
    rig_finish(rig);
    names_of(exchange.out.data, names);
    assert_string_equal(names, "message_start ping content_block_start content_block_delta error ");
    fake_http_fini(&exchange);
}

TEST_WITH(tokens_are_counted, set_up, rig_tear_down_chat) {
    json_t *a = rig_ask(*state, "/v1/messages/count_tokens",
                        "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}", 200);
    assert_json(a, "{\"input_tokens\":10}");
    json_decref(a);
}

/* ---- errors ---- */

static void check_refusal(struct rig *rig, const char *body, const char *message) {
    json_t *a = rig_ask(rig, "/v1/messages", body, 400);
    const json_t *error = json_object_get(a, "error");
    assert_string_equal(json_string_value(json_object_get(a, "type")), "error");
    assert_string_equal(json_string_value(json_object_get(error, "type")), "invalid_request_error");
    const char *given = json_string_value(json_object_get(error, "message"));
    if (!strstr(given, message)) fail_msg("%s: %s", body, given);
    json_decref(a);
}

#define CONTENT(blocks)                                                                            \
    "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[" blocks "]}]}"
#define WITH(fields) HEAD "," fields "}"

TEST_WITH(what_is_wrong_is_named, set_up, rig_tear_down_chat) {
    static const struct {
        const char *body, *message;
    } cases[] = {
        {"{}", "messages is required"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", "max_tokens is required"},
        {"{\"max_tokens\":1,\"messages\":[]}", "messages must be"},
        {"{\"max_tokens\":1,\"messages\":[3]}", "messages[0] must be an object"},
        {"{\"max_tokens\":1,\"messages\":[{\"role\":\"x\"}]}", "messages[0].role must be"},
        {"{\"max_tokens\":1,\"messages\":[{\"role\":\"user\"}]}", "messages[0].content must be"},
        {CONTENT(""), "messages[0].content must not be empty"},
        {CONTENT("{\"type\":\"image\"}"), "messages[0].content[0]: blocks of the type 'image'"},
        {CONTENT("{\"type\":\"tool_use\"}"), "'tool_use' are not supported here"},
        {CONTENT("{\"type\":\"text\"}"), "messages[0].content[0].text must be a string"},
        {CONTENT("{\"type\":\"tool_result\"}"), "messages[0].content[0].tool_use_id must be"},
        {CONTENT("{\"type\":\"tool_result\",\"tool_use_id\":\"1\",\"content\":["
                 "{\"type\":\"document\"}]}"),
         "messages[0].content[0].content[0]: blocks of the type 'document'"},
        {WITH("\"system\":3"), "system must be"},
        {WITH("\"stop_sequences\":\"x\""), "stop_sequences must be"},
        {WITH("\"tools\":[{\"type\":\"of_tomorrow\",\"name\":\"w\"}]"),
         "tools[0].type: 'of_tomorrow' is not supported"},
        {WITH("\"tools\":[{\"type\":\"web_search_20250305\",\"name\":\"w\"}],"
              "\"tool_choice\":{\"type\":\"any\"}"),
         "none of those in tools"},
        {WITH("\"tools\":[{\"name\":\"f\"}]"), "tools[0].input_schema must be an object"},
        {WITH("\"tool_choice\":{\"type\":\"x\"}"), "tool_choice.type must be"},
        {WITH("\"tool_choice\":{\"type\":\"tool\"}"), "tool_choice must name a tool"},
        {WITH("\"thinking\":{\"type\":\"x\"}"), "thinking.type must be"},
        {WITH("\"output_config\":{\"format\":{}}"), "output_config.format must be"},
        {WITH("\"container\":\"x\""), "container is not supported"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        check_refusal(*state, cases[i].body, cases[i].message);
}

TEST_WITH(either_header_carries_the_key, set_up, rig_tear_down_chat) {
    struct rig *rig = *state;
    rig->server.keys = &rig_keys;
    struct http_exchange without = rig_post("/v1/messages", HEAD "}");
    rig_begin(rig, &without);
    assert_int_equal(without.status, 401);
    assert_non_null(strstr(without.out.data, "authentication_error"));
    fake_http_fini(&without);
    struct http_exchange with = rig_post("/v1/messages", HEAD "}");
    with.api_key = "secret";
    rig_begin(rig, &with);
    rig_finish(rig);
    assert_int_equal(with.status, 200);
    fake_http_fini(&with);
    struct http_exchange wrong = rig_post("/v1/messages", HEAD "}");
    wrong.api_key = "secretive";
    rig_begin(rig, &wrong);
    assert_int_equal(wrong.status, 401);
    fake_http_fini(&wrong);
}
