/* test_tool_bare.c - tool calls without the marks of their format, in pieces of every size. */
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "engine/base/json_arena.h"
#include "tests/server/random_calls.h"
#include "tests/test.h"

static void put_alone(struct buffer *out, const struct calls *calls) {
    for (uint32_t i = 0; i < calls->n; i++) {
        buffer_puts(out, i ? "\n" : "");
        put_object(out, calls, i, i % 2 ? "arguments" : "parameters");
    }
}

static void put_fenced(struct buffer *out, const struct calls *calls) {
    static const char *const languages[] = {"json\n", "tool_call\n", "\n", " "};
    for (uint32_t i = 0; i < calls->n; i++) {
        buffer_printf(out, "%s```%s", i ? "\n" : "", languages[random_below(4)]);
        put_object(out, calls, i, "arguments");
        buffer_puts(out, "\n```");
    }
}

/* Some models close a fence that they have not opened. */
static void put_half_fenced(struct buffer *out, const struct calls *calls) {
    put_alone(out, calls);
    buffer_puts(out, "\n```");
}

/* The mark of the end is written more often than that of the beginning. */
static void put_elements(struct buffer *out, const struct calls *calls) {
    struct buffer whole = {0};
    put_functions(&whole, calls);
    const bool has_end = random_below(2);
    for (const char *at = whole.data; *at;) {
        static const char *const marks[] = {"<tool_call>\n", "\n</tool_call>"};
        const bool drops_begin = strncmp(at, marks[0], strlen(marks[0])) == 0,
                   drops_end = !has_end && strncmp(at, marks[1], strlen(marks[1])) == 0;
        if (drops_begin || drops_end) at += strlen(marks[drops_end]);
        else buffer_append(out, at++, 1);
    }
    buffer_fini(&whole);
}

static json_t *names_of(const struct calls *calls) {
    json_t *names = json_object();
    json_object_set_new(names, "get", json_null());
    for (uint32_t i = 0; i < calls->n; i++)
        json_object_set_new(names, calls->names[i], json_null());
    return names;
}

static bool has_function_mark(const struct calls *calls) {
    bool has = false;
    for (uint32_t i = 0; i < calls->n; i++) {
        char *text = json_dumps(calls->arguments[i], 0);
        has |= strstr(text, "</tool_call>") || strstr(text, "```");
        json_arena_free(text);
    }
    return has;
}

TEST(calls_need_no_marks_where_they_name_a_tool) {
    static const struct {
        const char *sign;
        bool is_ambiguous;
        void (*put)(struct buffer *out, const struct calls *calls);
    } bare[] = {{"<tool_call>", false, put_alone},       {"<tool_call>", false, put_fenced},
                {"<tool_call>", false, put_half_fenced}, {"[TOOL_CALLS]", false, put_array},
                {"<|tool_call|>", false, put_fenced},    {"<function=", true, put_elements},
                {"<function=", false, put_fenced}};
    srand(7);
    for (size_t w = 0; w < sizeof(bare) / sizeof(*bare); w++) {
        int n_compared = 0;
        for (int round = 0; round < CALLS_N_ROUNDS; round++) {
            struct calls calls;
            struct buffer text = {0};
            calls_make(&calls, CALLS_MAX);
            bare[w].put(&text, &calls);
            json_t *names = names_of(&calls);
            for (size_t piece = 1; piece < 1 + text.length; piece += 1 + piece / 4) {
                if (bare[w].is_ambiguous &&
                    (calls_are_ambiguous(&calls) || has_function_mark(&calls)))
                    break;
                struct buffer answer = {0};
                struct tool_split split = {.format = tool_format_of(bare[w].sign),
                                           .strings = names,
                                           .max_calls = TOOL_MAX_CALLS};
                split_pieces(&split, text.data, text.length, piece, &answer);
                tool_split_end(&split, &answer, NULL);
                check_calls(&split, &calls, text.data);
                assert_string_equal(answer.data ? answer.data : "", "");
                tool_split_fini(&split);
                buffer_fini(&answer);
                n_compared++;
            }
            json_decref(names);
            buffer_fini(&text);
            calls_free(&calls);
        }
        assert_true(n_compared > 1000);
    }
}

/* Reads a text where the tools are get, get_time and add. */
static void check_bare(const char *sign, const char *text, const char *cut, uint32_t n_calls,
                       const char *expected) {
    json_t *names = json_pack("{s:n, s:n, s:n}", "get", "get_time", "add");
    check_split(sign, names, text, cut, n_calls, expected);
    json_decref(names);
}

#define ADD "{\"name\": \"add\", \"arguments\": {\"a\": 1}}"

TEST(what_names_no_tool_or_comes_later_is_text) {
    static const char hermes[] = "<tool_call>", functions[] = "<function=";
    static const char *const texts[] = {
        "{\"name\": \"sub\", \"arguments\": {}}",
        "{\"name\": \"ad\", \"arguments\": {}}",
        "{\"name\": \"addition\", \"arguments\": {}}",
        "{\"name\": \"add\"}",
        "{\"name\": \"add\", \"age\": 5}",
        "{\"name\": \"add\", \"arguments\": [1]}",
        "{\"name\": \"add\", \"arguments\": {x}}",
        "{\"name\": \"add\", \"arguments\": {\"a\": 1}",
        "[1, 2]",
        "[" ADD ", 5]",
        "```python\nadd(1)\n```",
        "```jsonc\n" ADD "\n```",
        "``",
        "```",
        "I call it:\n" ADD,
        "For example:\n```json\n" ADD "\n```",
        "<function=sub></function>",
        "  {\"a\": 1}  ",
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        check_bare(hermes, texts[i], NULL, 0, texts[i]);
        check_bare(functions, texts[i], NULL, 0, texts[i]);
    }
    check_bare(hermes, "<function=add></function>", NULL, 0, "<function=add></function>");
}

TEST(calls_without_marks_end_where_they_are_whole) {
    static const char hermes[] = "<tool_call>", functions[] = "<function=";
    check_bare(hermes, ADD "\n{\"sum\": 4}", NULL, 1, "{\"sum\": 4}");
    check_bare(hermes, ADD "\n```\nThe sum is 4.", NULL, 1, "The sum is 4.");
    check_bare(hermes, "```json\n" ADD "\n```\n```python\nx\n```", NULL, 1, "```python\nx\n```");
    check_bare(hermes, ADD " ``", NULL, 1, "``");
    check_bare(hermes, ADD "<tool_call>" ADD "</tool_call>" ADD, NULL, 3, "");
    check_bare(hermes, "So <tool_call>" ADD "</tool_call>\n" ADD " and", NULL, 2, "So and");
    check_bare(functions, "<function=get_time></function></tool_call>.", NULL, 1, ".");
    check_bare(functions, "<function=get></function>\n<function=add></function>", NULL, 2, "");
    check_bare("<minimax:tool_call>", "<invoke name=\"get\"></invoke>", NULL, 1, "");
    check_bare(hermes, "{\"name\": \"add\", \"argum", "", 0, "");
    check_bare(hermes, "{\"name\": \"add", "", 0, "{\"name\": \"add");
    check_bare(functions, "<function=add>\n<para", "", 0, "");
    check_bare(functions, "<funct", "", 0, "<funct");
}

/* A long call costs one look at each of its bytes. */
TEST(a_long_call_without_marks_is_read_once) {
    enum { N = 1 << 20 };
    struct buffer answer = {0};
    json_t *names = json_pack("{s:n}", "add");
    struct tool_split split = {
        .format = tool_format_of("<tool_call>"), .strings = names, .max_calls = 1};
    static const char begin[] = "{\"name\": \"add\", \"arguments\": {\"a\": \"", end[] = "\"}}";
    tool_split_add(&split, begin, strlen(begin), &answer);
    for (int i = 0; i < N; i++) tool_split_add(&split, "}", 1, &answer);
    assert_int_equal(split.bare.n_seen, strlen(begin) + N);
    tool_split_add(&split, end, strlen(end), &answer);
    tool_split_end(&split, &answer, NULL);
    assert_int_equal(split.n_calls, 1);
    assert_int_equal(split.calls[0].arguments.length, strlen("{\"a\": \"\"}") + N);
    tool_split_fini(&split);
    buffer_fini(&answer);
    json_decref(names);
}

/* White space without an end costs a bounded look at each piece, and clients see it at once.  It
 * comes before a call, in one, or behind one. */
TEST(endless_white_space_is_not_held) {
    enum { N = 1 << 18, MOST = 1025 };
    static const char *const begins[] = {"", "{", "```json", "[{\"name\" ", ADD};
    json_t *names = json_pack("{s:n}", "add");
    for (size_t b = 0; b < COUNT(begins); b++) {
        struct buffer answer = {0};
        struct tool_split split = {
            .format = tool_format_of("<tool_call>"), .strings = names, .max_calls = 1};
        tool_split_add(&split, begins[b], strlen(begins[b]), &answer);
        for (int i = 0; i < N; i++) tool_split_add(&split, "\n", 1, &answer);
        assert_true(tool_split_held(&split) <= MOST);
        tool_split_end(&split, &answer, NULL);
        const bool is_call = split.n_calls > 0;
        assert_int_equal(is_call, b + 1 == COUNT(begins));
        assert_int_equal(answer.length, is_call ? 0 : strlen(begins[b]) + N);
        tool_split_fini(&split);
        buffer_fini(&answer);
    }
    json_decref(names);
}

TEST(much_white_space_comes_before_text) {
    for (int n = 1000; n <= 1100; n += 10) {
        char call[2048], *at = call;
        for (int i = 0; i < n; i++) *at++ = ' ';
        strcpy(at, ADD);
        const bool is_call = n <= 1010;
        check_bare("<tool_call>", call, NULL, is_call, is_call ? "" : call);
        call[0] = '{';
        strcpy(at, &ADD[1]);
        check_bare("<tool_call>", call, NULL, is_call, is_call ? "" : call);
    }
}
