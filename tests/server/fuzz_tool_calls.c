/* fuzz_tool_calls.c - whatever a model writes, in whatever pieces: every call has a name and legal
 * arguments, and the pieces make no difference.
 *
 * The first byte chooses the format and whether a schema is known, the second the size of the
 * pieces. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "engine/base/json_arena.h"
#include "engine/request/channels.h"
#include "server/api/conversation/arguments.h"
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
                                    "请使用 Json 格式表示调用的参数",
                                    "<|START_ACTION|>",
                                    "<minimax:tool_call>",
                                    "<|channel|>commentary",
                                    "<seed:tool_call>",
                                    "<|tool_call>",
                                    "<|tool_calls_section_begin|>",
                                    "<｜tool▁calls▁begin｜>",
                                    "List of tools: ",
                                    "<function_calls>",
                                    "<start_function_call>",
                                    "<TOOLCALL>",
                                    "functools["};

enum { N_SIGNS = sizeof(signs) / sizeof(*signs), STRINGS = 32 /* of the first byte */ };

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
    struct reasoning_split reasoning = {.thought = {.place = THOUGHT_BEFORE}};
    if (format->writing->is_message) reasoning.thought = channels_begin();
    reasoning.thought.has_calls = true;
    *parts = (struct parts){
        .tools = {.format = format, .strings = strings, .max_calls = TOOL_MAX_CALLS}};
    for (size_t i = 0; i < n; i += piece) {
        reasoning_add(&reasoning, text + i, n - i < piece ? n - i : piece, &parts->reasoning,
                      &parts->said);
        tool_split_add(&parts->tools, parts->said.data, parts->said.length, &parts->answer);
        buffer_clear(&parts->said);
    }
    reasoning_end(&reasoning, &parts->reasoning, &parts->said);
    reasoning_split_fini(&reasoning);
    tool_split_add(&parts->tools, parts->said.data, parts->said.length, &parts->answer);
    tool_split_end(&parts->tools, &parts->answer, n % 2 ? "" : NULL);
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

/* ---- what JSON is: jansson refuses large numbers, and escapes that are no character ---- */

static const char *skip(const char *at, const char *set) {
    return at + strspn(at, set);
}

static const char *skip_number(const char *at) {
    static const char digits[] = "0123456789";
    at += *at == '-';
    const char *end = *at == '0' ? at + 1 : skip(at, digits);
    require(end > at);
    if (*end == '.') {
        require(end[1] >= '0' && end[1] <= '9');
        end = skip(end + 1, digits);
    }
    if (*end != 'e' && *end != 'E') return end;
    end += 1 + (end[1] == '-' || end[1] == '+');
    require(*end >= '0' && *end <= '9');
    return skip(end, digits);
}

static const char *skip_string(const char *at) {
    require(*at++ == '"');
    for (; *at != '"'; at++) {
        require((unsigned char)*at >= 0x20);
        if (*at != '\\') continue;
        at++;
        require(*at && strchr("\"\\/bfnrtu", *at));
        if (*at != 'u') continue;
        require(strspn(at + 1, "0123456789abcdefABCDEF") >= 4);
        at += 4;
    }
    return at + 1;
}

static const char *skip_value(const char *at) {
    static const char space[] = " \t\r\n", *const words[] = {"true", "false", "null"};
    at = skip(at, space);
    for (int i = 0; i < 3; i++)
        if (strncmp(at, words[i], strlen(words[i])) == 0) return skip(at + strlen(words[i]), space);
    if (*at == '"') return skip(skip_string(at), space);
    if (*at != '{' && *at != '[') return skip(skip_number(at), space);
    const char end = *at == '{' ? '}' : ']';
    at = skip(at + 1, space);
    for (bool first = true; *at != end; first = false) {
        if (!first) require(*at++ == ',');
        at = skip(at, space);
        if (end == '}') {
            at = skip(skip_string(at), space);
            require(*at++ == ':');
        }
        at = skip_value(at);
    }
    return skip(at + 1, space);
}

/* What is answered is read when it is sent back, by strict parsers, too, and means the same
 * there. */
static void check_comes_back(const struct buffer *arguments) {
    json_t *back = NULL, *strict = NULL;
    json_error_t why;
    require(arguments_read(&back, arguments->data, arguments->length) == 0);
    require(json_arena_load(&strict, arguments->data, arguments->length,
                            JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why) == 0);
    struct buffer one = {0}, other = {0}; /* json_equal() takes keys for shorter that have a NUL */
    buffer_json_value(&one, back);
    buffer_json_value(&other, strict);
    require_equal(&one, &other);
    buffer_fini(&one);
    buffer_fini(&other);
    json_decref(back);
    json_decref(strict);
}

/* Marks are no text. */
static void check_text(const struct buffer *text) {
    for (size_t i = 0; i < text->length; i++) require(!channel_is_mark(text->data[i]));
}

static void check_calls(const struct tool_split *tools) {
    for (uint32_t i = 0; i < tools->n_calls; i++) {
        const struct buffer *arguments = &tools->calls[i].arguments;
        require(arguments->length > 0 && arguments->data[0] == '{');
        require(skip_value(arguments->data) == arguments->data + arguments->length);
        check_comes_back(arguments);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    const struct tool_format *format = tool_format_of(signs[data[0] % STRINGS % N_SIGNS]);
    const char *text = (const char *)data + 2;
    struct parts whole, cut;
    json_t *strings = data[0] & STRINGS ? make_strings() : NULL;
    split(&whole, format, strings, text, size - 2, size);
    split(&cut, format, strings, text, size - 2, 1 + data[1] % 32);
    check_calls(&whole.tools);
    check_text(&whole.answer);
    if (format->writing->is_message) check_text(&whole.reasoning);
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
