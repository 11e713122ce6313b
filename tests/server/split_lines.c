/* split_lines.c - splits answers into text and calls for tests in other languages, in pieces of
 * every size.
 *
 *   {"template": "...", "parts": ["text", {"special": "[TOOL_CALLS]"}, "text"], "tools": [...]}
 *   {"format": "mistral", "answer": "...", "calls": [{"name": "f", "arguments": "{...}"}],
 *    "reasoning": "..."}
 *   {"error": "..."}
 *
 * Each line of stdin is an answer, each line of stdout its result.  `tools` may be missing.  A text
 * of n bytes is given in pieces of 1 byte, of 2, up to n.  Twice it is given in pieces of random
 * sizes.  Results that differ are an error.  Of a template with channels the answer begins behind
 * <|start|>assistant, and the marks are the bytes of channels.h.
 *
 * Thread: main.  Memory: one answer at a time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "engine/request/channels.h"
#include "server/api/conversation/reasoning.h"
#include "server/api/conversation/tool_calls.h"
#include "server/api/conversation/tool_strings.h"

enum { N_RANDOM = 2, MOST_RANDOM = 24 };

/* An answer that is being split. */
struct splitting {
    struct reasoning_split reasons;
    struct tool_split calls;
    struct buffer said, reasoning, answer;
};

/* Gives what is no reasoning to the second split. */
static void find_calls(struct splitting *s) {
    tool_split_add(&s->calls, s->said.data, s->said.length, &s->answer);
    buffer_clear(&s->said);
}

/* piece 0: of random sizes. */
static void add_text(struct splitting *s, const char *bytes, size_t n, size_t piece) {
    for (size_t i = 0; i < n;) {
        const size_t most = piece ? piece : 1 + (size_t)rand() % MOST_RANDOM,
                     some = n - i < most ? n - i : most;
        reasoning_add(&s->reasons, bytes + i, some, &s->reasoning, &s->said);
        find_calls(s);
        i += some;
    }
}

static void add_special(struct splitting *s, const char *text, bool is_channel, size_t piece) {
    const struct channel_mark *mark = channel_marks;
    while (mark->token && (!is_channel || strcmp(mark->token, text) != 0)) mark++;
    if (mark->token) add_text(s, &mark->byte, 1, piece);
    else add_text(s, text, strlen(text), piece);
}

static json_t *result_of(const struct splitting *s) {
    json_t *calls = json_array();
    for (uint32_t i = 0; i < s->calls.n_calls; i++) {
        const struct tool_call *call = &s->calls.calls[i];
        json_array_append_new(
            calls, json_pack("{s:s#, s:s#, s:I}", "name", call->name.data, (int)call->name.length,
                             "arguments", call->arguments.data, (int)call->arguments.length, "at",
                             (json_int_t)call->at));
    }
    return json_pack("{s:s, s:s#, s:s#, s:o}", "format", s->calls.format->name, "answer",
                     s->answer.data ? s->answer.data : "", (int)s->answer.length, "reasoning",
                     s->reasoning.data ? s->reasoning.data : "", (int)s->reasoning.length, "calls",
                     calls);
}

static json_t *split_once(const struct tool_format *format, bool is_channel, const json_t *strings,
                          const json_t *parts, size_t piece) {
    struct splitting s = {
        .calls = {.format = format, .strings = strings, .max_calls = TOOL_MAX_CALLS}};
    size_t i;
    json_t *part;
    if (is_channel) s.reasons.thought = channels_begin();
    s.reasons.thought.has_calls = true;
    json_array_foreach((json_t *)parts, i, part) {
        const json_t *special = json_object_get(part, "special");
        if (special) add_special(&s, json_string_value(special), is_channel, piece);
        else add_text(&s, json_string_value(part), json_string_length(part), piece);
    }
    reasoning_end(&s.reasons, &s.reasoning, &s.said);
    find_calls(&s);
    tool_split_end(&s.calls, &s.answer, NULL);
    json_t *result = result_of(&s);
    reasoning_split_fini(&s.reasons);
    tool_split_fini(&s.calls);
    buffer_fini(&s.said);
    buffer_fini(&s.reasoning);
    buffer_fini(&s.answer);
    return result;
}

static json_t *split_all(const json_t *request, const json_t *strings) {
    const char *source = json_string_value(json_object_get(request, "template"));
    const struct tool_format *format = source ? tool_format_of(source) : NULL;
    const bool is_channel = source && strstr(source, channel_marks[0].token);
    const json_t *parts = json_object_get(request, "parts");
    size_t n = 1, i;
    json_t *part;
    if (!format) return json_pack("{s:s}", "error", "the template has no format of calls");
    json_array_foreach((json_t *)parts, i, part) {
        if (json_string_length(part) > n) n = json_string_length(part);
    }
    json_t *first = split_once(format, is_channel, strings, parts, 1);
    for (size_t k = 2; k <= n + N_RANDOM; k++) {
        const size_t piece = k <= n ? k : 0;
        json_t *other = split_once(format, is_channel, strings, parts, piece);
        const bool same = json_equal(first, other);
        json_decref(other);
        if (same) continue;
        json_decref(first);
        return json_pack("{s:s, s:I}", "error", "pieces make a difference", "piece",
                         (json_int_t)piece);
    }
    return first;
}

int main(void) {
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, stdin) > 0) {
        json_t *request = json_loads(line, 0, NULL);
        json_t *strings = tool_strings_create(json_object_get(request, "tools"));
        json_t *out = split_all(request, strings);
        json_dumpf(out, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(out);
        json_decref(strings);
        json_decref(request);
    }
    free(line);
    return 0;
}
