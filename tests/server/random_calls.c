/* random_calls.c - see random_calls.h. */
#include "tests/server/random_calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json_arena.h"
#include "tests/test.h"

uint32_t random_below(uint32_t n) {
    return (uint32_t)rand() % n;
}

static json_t *random_string(void) {
    static const char *const parts[] = {"a",      "Zürich", "\"",           "\\",   "\n", "{",
                                        "}",      "[",      "],",           "日本", "😀",  "</tool",
                                        "_call>", "</s>",   "};",           " ",    ":",  "<",
                                        ">",      "[ARGS]", "</tool_call>", "%s",   "\t", "'"};
    char text[256] = "";
    for (uint32_t i = random_below(8); i > 0; i--)
        strcat(text, parts[random_below(sizeof(parts) / sizeof(*parts))]);
    return json_string(text);
}

static json_t *random_value(int depth) {
    switch (random_below(depth > 0 ? 8 : 5)) {
    case 0: return json_integer((json_int_t)random_below(1000000) - 500000);
    case 1: return json_real(random_below(1000) / 8.0);
    case 2: return json_boolean(random_below(2));
    case 3: return json_null();
    case 5: {
        json_t *list = json_array();
        for (uint32_t i = random_below(4); i > 0; i--)
            json_array_append_new(list, random_value(depth - 1));
        return list;
    }
    case 6: {
        json_t *object = json_object();
        for (uint32_t i = random_below(4); i > 0; i--) {
            char key[16];
            snprintf(key, sizeof(key), "k%u", random_below(100));
            json_object_set_new(object, key, random_value(depth - 1));
        }
        return object;
    }
    default: return random_string();
    }
}

void calls_make(struct calls *calls, uint32_t max_calls) {
    calls->n = 1 + random_below(max_calls);
    for (uint32_t i = 0; i < calls->n; i++) {
        snprintf(calls->names[i], sizeof(calls->names[i]), "get_%c-%u", 'a' + (int)random_below(26),
                 random_below(1000));
        calls->arguments[i] = json_object();
        for (uint32_t k = random_below(4); k > 0; k--) {
            char key[16];
            snprintf(key, sizeof(key), "p_%u", random_below(100));
            json_object_set_new(calls->arguments[i], key, random_value(2));
        }
    }
}

void calls_free(struct calls *calls) {
    for (uint32_t i = 0; i < calls->n; i++) json_decref(calls->arguments[i]);
}

/* ---- how formats write them ---- */

void put_json(struct buffer *out, const json_t *value) {
    const size_t flags[] = {JSON_COMPACT, 0, JSON_INDENT(2)};
    char *text = json_dumps(value, JSON_ENCODE_ANY | flags[random_below(3)]);
    buffer_puts(out, text);
    json_arena_free(text);
}

void put_object(struct buffer *out, const struct calls *calls, uint32_t i, const char *arguments) {
    buffer_printf(out, "{\"name\": \"%s\", \"%s\": ", calls->names[i], arguments);
    put_json(out, calls->arguments[i]);
    buffer_puts(out, "}");
}

void put_array(struct buffer *out, const struct calls *calls) {
    for (uint32_t i = 0; i < calls->n; i++) {
        buffer_puts(out, i ? ", " : "[");
        put_object(out, calls, i, "arguments");
    }
    buffer_puts(out, "]");
}

void put_bare(struct buffer *out, const json_t *value) {
    if (json_is_string(value)) buffer_puts(out, json_string_value(value));
    else put_json(out, value);
}

void put_functions(struct buffer *out, const struct calls *calls) {
    for (uint32_t i = 0; i < calls->n; i++) {
        const char *key;
        json_t *value;
        buffer_printf(out, "%s<tool_call>\n<function=%s>\n", i ? "\n" : "", calls->names[i]);
        json_object_foreach(calls->arguments[i], key, value) {
            buffer_printf(out, "<parameter=%s>\n", key);
            put_bare(out, value);
            buffer_puts(out, "\n</parameter>\n");
        }
        buffer_puts(out, "</function>\n</tool_call>");
    }
}

/* ---- reading them ---- */

/* Whether a value may be read back as another one: a bare string that is JSON, too, or that has a
 * mark or an outer line end. */
static bool is_ambiguous(const json_t *arguments) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)arguments, key, value) {
        const char *text = json_string_value(value);
        const size_t n = json_string_length(value);
        if (!text) continue;
        json_t *other = json_loads(text, JSON_DECODE_ANY, NULL);
        json_decref(other);
        if (other || n == 0 || strchr("\n", text[0]) || text[n - 1] == '\n' ||
            strstr(text, "</tool_call>"))
            return true;
    }
    return false;
}

bool calls_are_ambiguous(const struct calls *calls) {
    for (uint32_t i = 0; i < calls->n; i++)
        if (is_ambiguous(calls->arguments[i])) return true;
    return false;
}

void check_calls(const struct tool_split *split, const struct calls *calls, const char *text) {
    if (split->n_calls != calls->n)
        fail_msg("%u calls, not %u: %s", split->n_calls, calls->n, text);
    for (uint32_t i = 0; i < calls->n; i++) {
        assert_string_equal(split->calls[i].name.data, calls->names[i]);
        json_t *found = json_loads(split->calls[i].arguments.data, 0, NULL);
        if (!json_equal(found, calls->arguments[i]))
            fail_msg("%s\n is not read from\n%s", split->calls[i].arguments.data, text);
        json_decref(found);
    }
}

void split_pieces(struct tool_split *split, const char *text, size_t n, size_t piece,
                  struct buffer *answer) {
    for (size_t i = 0; i < n; i += piece)
        tool_split_add(split, text + i, n - i < piece ? n - i : piece, answer);
}

void check_split(const char *sign, const json_t *names, const char *text, const char *cut,
                 uint32_t n_calls, const char *expected) {
    for (size_t piece = 1; piece < 9; piece++) {
        struct buffer answer = {0};
        struct tool_split split = {
            .format = tool_format_of(sign), .strings = names, .max_calls = TOOL_MAX_CALLS};
        split_pieces(&split, text, strlen(text), piece, &answer);
        tool_split_end(&split, &answer, cut);
        if (split.n_calls != n_calls || strcmp(answer.data ? answer.data : "", expected) != 0)
            fail_msg("'%s': %u calls, '%s'", text, split.n_calls, answer.data);
        tool_split_fini(&split);
        buffer_fini(&answer);
    }
}
