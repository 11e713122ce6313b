/* split_lines.c - splits answers into text and calls for tests in other languages, in pieces of
 * every size.
 *
 *   {"template": "...", "parts": ["text", {"special": "[TOOL_CALLS]"}, "text"], "tools": [...]}
 *   {"format": "mistral", "answer": "...", "calls": [{"name": "f", "arguments": "{...}"}]}
 *   {"error": "..."}
 *
 * Each line of stdin is an answer, each line of stdout its result.  `tools` may be missing.  A text
 * of n bytes is given in pieces of 1 byte, of 2, up to n; results that differ are an error.
 *
 * Thread: main.  Memory: one answer at a time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "server/api/conversation/tool_calls.h"
#include "server/api/conversation/tool_strings.h"

static void add_text(struct tool_split *split, const json_t *text, size_t piece,
                     struct buffer *answer) {
    const char *bytes = json_string_value(text);
    const size_t n = json_string_length(text);
    for (size_t i = 0; i < n; i += piece)
        tool_split_add(split, bytes + i, n - i < piece ? n - i : piece, answer);
}

static json_t *result_of(const struct tool_split *split, const struct buffer *answer) {
    json_t *calls = json_array();
    for (uint32_t i = 0; i < split->n_calls; i++) {
        const struct tool_call *call = &split->calls[i];
        json_array_append_new(
            calls, json_pack("{s:s#, s:s#, s:I}", "name", call->name.data, (int)call->name.length,
                             "arguments", call->arguments.data, (int)call->arguments.length, "at",
                             (json_int_t)call->at));
    }
    return json_pack("{s:s, s:s#, s:o}", "format", split->format->name, "answer",
                     answer->data ? answer->data : "", (int)answer->length, "calls", calls);
}

static json_t *split_once(const struct tool_format *format, const json_t *strings,
                          const json_t *parts, size_t piece) {
    struct tool_split split = {.format = format, .strings = strings, .max_calls = TOOL_MAX_CALLS};
    struct buffer answer = {0};
    size_t i;
    json_t *part;
    json_array_foreach((json_t *)parts, i, part) {
        const json_t *special = json_object_get(part, "special");
        add_text(&split, special ? special : part, piece, &answer);
    }
    tool_split_end(&split, &answer, NULL);
    json_t *result = result_of(&split, &answer);
    tool_split_fini(&split);
    buffer_fini(&answer);
    return result;
}

static json_t *split_all(const json_t *request, const json_t *strings) {
    const char *source = json_string_value(json_object_get(request, "template"));
    const struct tool_format *format = source ? tool_format_of(source) : NULL;
    const json_t *parts = json_object_get(request, "parts");
    size_t n = 1, i;
    json_t *part;
    if (!format) return json_pack("{s:s}", "error", "the template has no format of calls");
    json_array_foreach((json_t *)parts, i, part) {
        if (json_string_length(part) > n) n = json_string_length(part);
    }
    json_t *first = split_once(format, strings, parts, 1);
    for (size_t piece = 2; piece <= n; piece++) {
        json_t *other = split_once(format, strings, parts, piece);
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
