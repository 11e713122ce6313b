/* test_chat.c - chats on an engine without a model: what a model writes as calls and as reasoning
 * comes back in its own members, whole and streamed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "engine/template/template.h"
#include "server/api/conversation/call_ids.h"
#include "server/settings/chat_template.h"
#include "tests/server/api_rig.h"
#include "tests/server/fake_engine.h"
#include "tests/test.h"

static const char source[] = "{% for m in messages %}{{ m.content }}{% endfor %}{{ bos_token }}"
                             "{# <tool_call> <think> </think> #}";

static struct chat_template chat;

static int set_up(void **state) {
    chat = (struct chat_template){.own = json_pack("{s:s}", "bos_token", "<s>"),
                                  .tool_text = strdup(source),
                                  .marks_reasoning = true};
    assert_int_equal(template_compile(&chat.plain, source, strlen(source), NULL, NULL), 0);
    rig_set_up(state);
    struct rig *rig = *state;
    rig->server.limits.chat = &chat;
    return 0;
}

static int tear_down(void **state) {
    const int rc = rig_tear_down(state);
    chat_template_fini(&chat);
    return rc;
}

#define TOOLS "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"
#define ASK "{\"messages\":[{\"role\":\"user\",\"content\":\"<s>\"}]," TOOLS

static json_t *ask(struct rig *rig, const char *text, const char *body) {
    fake_engine_answer(rig->engine, text);
    return rig_ask(rig, "/v1/chat/completions", body, 200);
}

static const json_t *first_choice(const json_t *answer) {
    return json_array_get(json_object_get(answer, "choices"), 0);
}

static void check_message(const json_t *answer, const char *message, const char *finish) {
    const json_t *choice = first_choice(answer);
    rig_number_calls(answer);
    assert_json(json_object_get(choice, "message"), message);
    assert_string_equal(json_string_value(json_object_get(choice, "finish_reason")), finish);
}

TEST_WITH(the_templates_own_token_alone_is_special, set_up, tear_down) {
    json_t *a = ask(*state, "", ASK ",\"return_token_ids\":true}");
    assert_json(json_object_get(first_choice(a), "prompt_token_ids"), "[60,115,62,256]");
    json_decref(a);
}

TEST_WITH(calls_are_members_of_the_message, set_up, tear_down) {
    json_t *a = ask(*state,
                    "So:\n<tool_call>{\"name\":\"f\",\"arguments\":{\"x\": 1}}</tool_call>\n"
                    "<tool_call>{\"name\":\"g\"}</tool_call>",
                    ASK "}");
    check_message(a,
                  "{\"role\":\"assistant\",\"content\":\"So:\\n\",\"refusal\":null,\"tool_calls\":["
                  "{\"id\":\"call_the-id_0_0\",\"type\":\"function\",\"function\":{\"name\":\"f\","
                  "\"arguments\":\"{\\\"x\\\": 1}\"}},"
                  "{\"id\":\"call_the-id_0_1\",\"type\":\"function\",\"function\":{\"name\":\"g\","
                  "\"arguments\":\"{}\"}}]}",
                  "tool_calls");
    json_decref(a);
    a = ask(*state,
            "<tool_call>{\"name\":\"f\"}</tool_call><tool_call>{\"name\":\"g\"}</tool_call>",
            ASK ",\"parallel_tool_calls\":false}");
    check_message(a,
                  "{\"role\":\"assistant\",\"content\":null,\"refusal\":null,\"tool_calls\":["
                  "{\"id\":\"call_the-id_0_0\",\"type\":\"function\",\"function\":{\"name\":\"f\","
                  "\"arguments\":\"{}\"}}]}",
                  "tool_calls");
    json_decref(a);
}

TEST_WITH(without_tools_they_are_text, set_up, tear_down) {
    static const char *const bodies[] = {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
                                         ASK ",\"tool_choice\":\"none\"}"};
    for (int i = 0; i < 2; i++) {
        json_t *a = ask(*state, "<tool_call>{\"name\":\"f\"}</tool_call>", bodies[i]);
        check_message(a,
                      "{\"role\":\"assistant\",\"content\":\"<tool_call>{\\\"name\\\":\\\"f\\\"}"
                      "</tool_call>\",\"refusal\":null}",
                      "stop");
        json_decref(a);
    }
}

TEST_WITH(reasoning_comes_before_calls, set_up, tear_down) {
    json_t *a =
        ask(*state, "<think>\nh</think>\n\na<tool_call>{\"name\":\"f\"}</tool_call>", ASK "}");
    check_message(a,
                  "{\"role\":\"assistant\",\"content\":\"a\",\"refusal\":null,\"reasoning\":\"h\","
                  "\"reasoning_content\":\"h\",\"tool_calls\":[{\"id\":\"call_the-id_0_0\","
                  "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}",
                  "tool_calls");
    json_decref(a);
}

/* Joins a member of all deltas. */
static void join(char *out, const char *stream, const char *member) {
    *out = 0;
    for (const char *at = stream; (at = strstr(at, "data: {")); at++) {
        const char *end = strstr(at, "\n\n");
        json_t *event = json_loadb(at + 6, (size_t)(end - at) - 6, 0, NULL);
        const json_t *delta = json_object_get(first_choice(event), "delta"),
                     *value = json_object_get(delta, member);
        if (json_is_string(value)) strcat(out, json_string_value(value));
        json_decref(event);
    }
}

TEST_WITH(a_stream_has_the_same_parts, set_up, tear_down) {
    struct rig *rig = *state;
    char text[256], id[CALL_ID_LENGTH + 1];
    fake_engine_answer(rig->engine, "<think>hm</think>So<tool_call>{\"name\":\"f\"}</tool_call>");
    struct http_exchange exchange = rig_post("/v1/chat/completions", ASK ",\"stream\":true}");
    rig_begin(rig, &exchange);
    rig_finish(rig);
    assert_int_equal(exchange.status, 200);
    const char *stream = exchange.out.data;
    join(text, stream, "content");
    assert_string_equal(text, "So");
    join(text, stream, "reasoning");
    assert_string_equal(text, "hm");
    join(text, stream, "reasoning_content");
    assert_string_equal(text, "hm");
    join(text, stream, "role");
    assert_string_equal(text, "assistant");
    call_id_make(id, "the-id", 4, 0, 0); /* the prompt has 4 tokens */
    snprintf(text, sizeof(text),
             "\"tool_calls\":[{\"index\":0,\"id\":\"%s\",\"type\":\"function\",\"function\":{"
             "\"name\":\"f\",\"arguments\":\"{}\"}}]",
             id);
    assert_non_null(strstr(stream, text));
    assert_non_null(strstr(stream, "\"finish_reason\":\"tool_calls\""));
    assert_null(strstr(stream, "<tool"));
    assert_string_equal(stream + strlen(stream) - 14, "data: [DONE]\n\n");
    fake_http_fini(&exchange);
}

static void check_refusal(struct rig *rig, const char *fields, const char *param) {
    char body[512];
    snprintf(body, sizeof(body), "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],%s}",
             fields);
    json_t *a = rig_ask(rig, "/v1/chat/completions", body, 400);
    assert_string_equal(json_string_value(json_object_get(json_object_get(a, "error"), "param")),
                        param);
    json_decref(a);
}

TEST_WITH(what_cannot_be_forced_is_refused, set_up, tear_down) {
    check_refusal(*state, TOOLS ",\"tool_choice\":\"required\"", "tool_choice");
    check_refusal(*state,
                  TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":"
                        "\"f\"}}",
                  "tool_choice");
    check_refusal(*state,
                  "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
                  "\"strict\":true}}]",
                  "tools");
    check_refusal(*state, "\"tools\":[{\"type\":\"custom\"}]", "tools");
    check_refusal(*state, "\"tools\":[{\"type\":\"function\",\"function\":{}}]", "tools");
    check_refusal(*state, "\"tools\":3", "tools");
    check_refusal(*state, "\"functions\":[{}]", "functions");
    free(chat.tool_text);
    chat.tool_text = strdup("no format");
    check_refusal(*state, TOOLS, "tools");
}
