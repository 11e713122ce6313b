/* fuzz_tool_calls.c - whatever a model writes, in whatever pieces: every call has a name and legal
 * arguments, and the pieces make no difference.
 *
 * The first byte chooses the format and whether a schema is known, the second the size of the
 * pieces. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "server/api/conversation/reasoning.h"
#include "server/api/conversation/tool_calls.h"
#include "server/api/conversation/tool_strings.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int truth) {
    if (!truth) abort();
}

static const char *const signs[] = {"<tool_call>",
                                    "[TOOL_CALLS]",
                                    "<|tool_call|>",
                                    "<function=",
                                    "<arg_key>",
                                    "\"parameters\": dictionary",
                                    "请使用 Json 格式表示调用的参数"};

struct parts {
    struct buffer reasoning, said, answer;
    struct tool_split tools;
};

/* Makes what is known of a tool with an argument of each kind. */
static json_t *make_strings(void) {
    static const char tools[] =
        "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"type\":"
        "\"string\"},\"b\":{\"type\":\"string\",\"pattern\":\"x\"},\"c\":{}}}}}]";
    json_t *list = json_loads(tools, 0, NULL), *strings = tool_strings_create(list);
    json_decref(list);
    return strings;
}

static void split(struct parts *parts, const struct tool_format *format, const json_t *strings,
                  const char *text, size_t n, size_t piece) {
    struct reasoning_split reasoning = {0};
    *parts = (struct parts){
        .tools = {.format = format, .strings = strings, .max_calls = TOOL_MAX_CALLS}};
    if (format->is_special) tool_split_special(&parts->tools, format->begin, strlen(format->begin));
    for (size_t i = 0; i < n; i += piece) {
        reasoning_add(&reasoning, text + i, n - i < piece ? n - i : piece, &parts->reasoning,
                      &parts->said);
        tool_split_add(&parts->tools, parts->said.data, parts->said.length, &parts->answer);
        buffer_clear(&parts->said);
    }
    reasoning_end(&reasoning, &parts->reasoning, &parts->said);
    tool_split_add(&parts->tools, parts->said.data, parts->said.length, &parts->answer);
    tool_split_end(&parts->tools, &parts->answer);
    require(!parts->tools.failed && parts->tools.n_calls <= TOOL_MAX_CALLS);
}

static void free_parts(struct parts *parts) {
    buffer_fini(&parts->reasoning);
    buffer_fini(&parts->said);
    buffer_fini(&parts->answer);
    tool_split_fini(&parts->tools);
}

static void require_equal(const struct buffer *a, const struct buffer *b) {
    require(a->length == b->length && (a->length == 0 || !memcmp(a->data, b->data, a->length)));
}

static void check_calls(const struct tool_split *tools) {
    for (uint32_t i = 0; i < tools->n_calls; i++) {
        const struct buffer *arguments = &tools->calls[i].arguments;
        json_t *parsed = json_loadb(arguments->data, arguments->length, JSON_ALLOW_NUL, NULL);
        require(json_is_object(parsed));
        json_decref(parsed);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    const struct tool_format *format = tool_format_of(signs[data[0] % 7]);
    const char *text = (const char *)data + 2;
    struct parts whole, cut;
    json_t *strings = data[0] / 7 % 2 ? make_strings() : NULL;
    split(&whole, format, strings, text, size - 2, size);
    split(&cut, format, strings, text, size - 2, 1 + data[1] % 32);
    check_calls(&whole.tools);
    require_equal(&whole.reasoning, &cut.reasoning);
    require_equal(&whole.answer, &cut.answer);
    require(whole.tools.n_calls == cut.tools.n_calls);
    for (uint32_t i = 0; i < whole.tools.n_calls; i++) {
        require_equal(&whole.tools.calls[i].name, &cut.tools.calls[i].name);
        require_equal(&whole.tools.calls[i].arguments, &cut.tools.calls[i].arguments);
    }
    free_parts(&whole);
    free_parts(&cut);
    json_decref(strings);
    return 0;
}
