/* test_tool_calls.c - tool calls and reasoning in generated text, whatever pieces it comes in.
 *
 * Random calls are written as each family writes them, by code of the test's own, cut into pieces
 * of every size, and read back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "engine/base/json_arena.h"
#include "server/api/conversation/arguments.h"
#include "server/api/conversation/tool_calls.h"
#include "server/api/conversation/tool_strings.h"
#include "tests/test.h"

enum { N_ROUNDS = 500, MAX_CALLS = 4 };

static uint32_t random_below(uint32_t n) {
    return (uint32_t)rand() % n;
}

/* ---- random calls ---- */

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

struct calls {
    uint32_t n;
    char names[MAX_CALLS][32];
    json_t *arguments[MAX_CALLS];
};

static void make_calls(struct calls *calls, uint32_t max_calls) {
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

static void free_calls(struct calls *calls) {
    for (uint32_t i = 0; i < calls->n; i++) json_decref(calls->arguments[i]);
}

/* ---- how families write them ---- */

static void put_json(struct buffer *out, const json_t *value) {
    const size_t flags[] = {JSON_COMPACT, 0, JSON_INDENT(2)};
    char *text = json_dumps(value, JSON_ENCODE_ANY | flags[random_below(3)]);
    buffer_puts(out, text);
    json_arena_free(text);
}

static void put_object(struct buffer *out, const struct calls *calls, uint32_t i,
                       const char *arguments) {
    buffer_printf(out, "{\"name\": \"%s\", \"%s\": ", calls->names[i], arguments);
    put_json(out, calls->arguments[i]);
    buffer_puts(out, "}");
}

static void put_hermes(struct buffer *out, const struct calls *calls) {
    for (uint32_t i = 0; i < calls->n; i++) {
        buffer_puts(out, i ? "\n<tool_call>\n" : "<tool_call>\n");
        put_object(out, calls, i, "arguments");
        buffer_puts(out, "\n</tool_call>");
    }
}

static void put_array(struct buffer *out, const struct calls *calls) {
    for (uint32_t i = 0; i < calls->n; i++) {
        buffer_puts(out, i ? ", " : "[");
        put_object(out, calls, i, "arguments");
    }
    buffer_puts(out, "]");
}

/* The marks between are special tokens, which a text may show or not. */
static void put_named(struct buffer *out, const struct calls *calls) {
    const bool shows_marks = random_below(2);
    for (uint32_t i = 0; i < calls->n; i++) {
        buffer_printf(out, "%s%s", calls->names[i], shows_marks ? "[ARGS]" : "");
        put_json(out, calls->arguments[i]);
    }
}

static void put_llama(struct buffer *out, const struct calls *calls) {
    for (uint32_t i = 0; i < calls->n; i++) {
        buffer_puts(out, i ? "; " : "");
        put_object(out, calls, i, "parameters");
    }
}

static void put_lines(struct buffer *out, const struct calls *calls) {
    for (uint32_t i = 0; i < calls->n; i++) {
        buffer_printf(out, "%s%s\n", i ? "\n" : "", calls->names[i]);
        put_json(out, calls->arguments[i]);
    }
}

/* Strings stand bare, as the templates write them. */
static void put_bare(struct buffer *out, const json_t *value) {
    if (json_is_string(value)) buffer_puts(out, json_string_value(value));
    else put_json(out, value);
}

static void put_functions(struct buffer *out, const struct calls *calls) {
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

static void put_glm(struct buffer *out, const struct calls *calls) {
    for (uint32_t i = 0; i < calls->n; i++) {
        const char *key;
        json_t *value;
        buffer_printf(out, "<tool_call>%s\n", calls->names[i]);
        json_object_foreach(calls->arguments[i], key, value) {
            buffer_printf(out, "<arg_key>%s</arg_key>\n<arg_value>", key);
            put_bare(out, value);
            buffer_puts(out, "</arg_value>\n");
        }
        buffer_puts(out, "</tool_call>");
    }
}

struct way {
    const char *sign; /* a template's */
    const char *format;
    uint32_t max_calls;
    bool answers_before;
    const char *special;
    bool is_bare; /* a string that looks like JSON cannot be told from it */
    void (*put)(struct buffer *out, const struct calls *calls);
};

static const struct way ways[] = {
    {"x<tool_call>x", "hermes", MAX_CALLS, true, NULL, false, put_hermes},
    {"[TOOL_CALLS]", "mistral", MAX_CALLS, true, "[TOOL_CALLS]", false, put_array},
    {"[TOOL_CALLS]", "mistral", MAX_CALLS, true, "[TOOL_CALLS]", false, put_named},
    {"<|tool_call|>", "phi-4", MAX_CALLS, true, "<|tool_call|>", false, put_array},
    {"{\"name\": x, \"parameters\": dictionary", "llama-3", MAX_CALLS, false, NULL, false,
     put_llama},
    {"请使用 Json 格式表示调用的参数", "glm-4", MAX_CALLS, false, NULL, false, put_lines},
    {"<tool_call><function=x", "qwen3-coder", MAX_CALLS, true, NULL, true, put_functions},
    {"<tool_call><arg_key>", "glm-4.5", MAX_CALLS, true, NULL, true, put_glm},
};

/* ---- reading them ---- */

static struct tool_split read_in_pieces(const struct way *way, const char *before,
                                        const struct buffer *text, size_t piece,
                                        struct buffer *answer) {
    struct tool_split split = {.format = tool_format_of(way->sign), .max_calls = TOOL_MAX_CALLS};
    assert_non_null(split.format);
    assert_string_equal(split.format->name, way->format);
    for (size_t i = 0; i < strlen(before); i += piece) {
        const size_t left = strlen(before) - i;
        tool_split_add(&split, before + i, left < piece ? left : piece, answer);
    }
    for (size_t i = 0; way->special && i < strlen(way->special); i += piece) {
        const size_t left = strlen(way->special) - i;
        tool_split_add(&split, way->special + i, left < piece ? left : piece, answer);
    }
    for (size_t i = 0; i < text->length; i += piece) {
        const size_t left = text->length - i;
        tool_split_add(&split, text->data + i, left < piece ? left : piece, answer);
    }
    tool_split_end(&split, answer, NULL);
    assert_false(split.failed);
    return split;
}

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

static bool any_ambiguous(const struct calls *calls) {
    for (uint32_t i = 0; i < calls->n; i++)
        if (is_ambiguous(calls->arguments[i])) return true;
    return false;
}

static void check_calls(const struct tool_split *split, const struct calls *calls,
                        const char *text) {
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

TEST(what_families_write_is_read) {
    static const char *const openings[] = {"", "I will look.", "Use < and <tool, then:\n"};
    srand(11);
    for (size_t w = 0; w < sizeof(ways) / sizeof(*ways); w++) {
        int n_compared = 0;
        for (int round = 0; round < N_ROUNDS; round++) {
            struct calls calls;
            struct buffer text = {0};
            const char *before = ways[w].answers_before ? openings[round % 3] : "";
            make_calls(&calls, ways[w].max_calls);
            ways[w].put(&text, &calls);
            for (size_t piece = 1; piece < 1 + text.length; piece += 1 + piece / 4) {
                if (ways[w].is_bare && any_ambiguous(&calls)) break;
                struct buffer answer = {0};
                struct tool_split split = read_in_pieces(&ways[w], before, &text, piece, &answer);
                check_calls(&split, &calls, text.data);
                assert_string_equal(answer.data ? answer.data : "", before);
                tool_split_fini(&split);
                buffer_fini(&answer);
                n_compared++;
            }
            buffer_fini(&text);
            free_calls(&calls);
        }
        assert_true(n_compared > 1000);
    }
}

/* Text that seems to be a call, and is none, comes back as it was. */
TEST(other_text_is_the_answer) {
    static const char *const texts[] = {
        "no call",
        "<tool_call>",
        "<tool_call>{\"name\": 5}</tool_call>",
        "<tool_call>{\"name\": \"f\"",
        "<tool_call>words</tool_call> and more",
        "a <tool_ call> b",
        "{\"name\": \"f\", \"parameters\": 5}",
        "{not JSON}",
        "  x",
        "name",
        "name\n",
        "name\nx",
        "name\n{\"x\"",
        "name\n{} and more words",
        "",
        "<tool_call>{\"name\": \"f\", \"arguments\": {}}",
    };
    for (size_t w = 0; w < sizeof(ways) / sizeof(*ways); w++) {
        for (size_t i = 0; i + 1 < sizeof(texts) / sizeof(*texts); i++) {
            struct buffer answer = {0}, text = {0};
            buffer_puts(&text, texts[i]);
            struct way way = ways[w];
            way.special = NULL;
            if (strcmp(way.format, "glm-4.5") == 0 && strstr(texts[i], "words")) continue;
            for (size_t piece = 1; piece < 9; piece++) {
                struct tool_split split = read_in_pieces(&way, "", &text, piece, &answer);
                assert_int_equal(split.n_calls, 0);
                assert_string_equal(answer.data ? answer.data : "", texts[i]);
                buffer_clear(&answer);
                tool_split_fini(&split);
            }
            buffer_fini(&answer);
            buffer_fini(&text);
        }
    }
}

/* A text of ends costs no more than a few looks at it. */
TEST(endless_ends_are_text) {
    struct buffer text = {0}, answer = {0};
    buffer_puts(&text, "<tool_call>");
    for (int i = 0; i < 100000; i++) buffer_puts(&text, "</tool_call>{");
    struct tool_split split = read_in_pieces(&ways[0], "", &text, 13, &answer);
    assert_int_equal(split.n_calls, 0);
    assert_string_equal(answer.data, text.data);
    tool_split_fini(&split);
    buffer_fini(&text);
    buffer_fini(&answer);
}

/* Nor does one of values that begin like JSON. */
TEST(endless_open_values_are_strings) {
    enum { N = 50000 };
    struct buffer text = {0}, answer = {0};
    struct tool_split split = {.format = tool_format_of("<function="), .max_calls = 1};
    buffer_puts(&text, "<tool_call><function=f>");
    for (int i = 0; i < N; i++) buffer_printf(&text, "<parameter=k%d>{</parameter>", i);
    buffer_puts(&text, "</function></tool_call>");
    tool_split_add(&split, text.data, text.length, &answer);
    assert_int_equal(split.n_calls, 1);
    json_t *arguments = json_loads(split.calls[0].arguments.data, 0, NULL);
    assert_int_equal(json_object_size(arguments), N);
    assert_string_equal(json_string_value(json_object_get(arguments, "k17")), "{");
    json_decref(arguments);
    tool_split_fini(&split);
    buffer_fini(&text);
    buffer_fini(&answer);
}

TEST(only_so_many_calls_count) {
    struct buffer answer = {0};
    struct tool_split split = {.format = tool_format_of("<tool_call>"), .max_calls = 1};
    for (int i = 0; i < 3; i++) {
        static const char call[] = "<tool_call>{\"name\":\"f\"}</tool_call>";
        tool_split_add(&split, call, strlen(call), &answer);
    }
    tool_split_end(&split, &answer, NULL);
    assert_int_equal(split.n_calls, 1);
    assert_string_equal(split.calls[0].arguments.data, "{}");
    assert_null(answer.data);
    tool_split_fini(&split);
}

/* Arguments are copied as they are written, and not by what a parser makes of them, but for what
 * other parsers refuse. */
TEST(all_that_json_allows_is_read) {
    static const char *const texts[][2] = {
        {"{\"a\": -6e6155577, \"b\": 123456789012345678901234567890}", NULL},
        {"{\"a\" :1.50 , \"b\":[-0, 1E+2],\n\"\": {}}", NULL},
        {"{\"a\": \"\\udedd\", \"\\ud83d\\ude00\\ud83d\": \"\\uD83D\"}",
         "{\"a\": \"\\ufffd\", \"\\ud83d\\ude00\\ufffd\": \"\\ufffd\"}"},
        {"{\"\\u0000\": \"\\u0000\"}", NULL},
        {"{\"a\": 1.0, \"b\": {\"c\": 1e999}, \"a\": 2}", "{\"a\":2,\"b\":{\"c\":1e999}}"},
        {"{\"a\": [{\"b\": \"\\ud83d\", \"b\": \"\\ud83d\"}]}", "{\"a\":[{\"b\":\"\uFFFD\"}]}"},
        {"{\"a\": \"\\\\ud83d\"}", NULL},
        {"null", "{}"},
        {"\"\"", "{}"},
        {"\" null \"", "{}"},
        {"\"{\\\"a\\\": 1}\"", "{\"a\": 1}"},
        {"\"{\\\"a\\\": \\\"\\\\ud83d\\\"}\"", "{\"a\": \"\\ufffd\"}"}};
    static const char *const wrong[] = {"{\"a\": 01}",
                                        "{\"a\": 1.}",
                                        "{\"a\": 1 2}",
                                        "{\"a\": 1e}",
                                        "{\"\\ud8g0\": 1}",
                                        "{\"a\": -}",
                                        "[]",
                                        "\"1\"",
                                        "1"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts) + sizeof(wrong) / sizeof(*wrong); i++) {
        const bool is_wrong = i >= sizeof(texts) / sizeof(*texts);
        const char *arguments = is_wrong ? wrong[i - sizeof(texts) / sizeof(*texts)] : texts[i][0];
        struct buffer text = {0}, answer = {0};
        struct tool_split split = {.format = tool_format_of("<tool_call>"), .max_calls = 1};
        buffer_printf(&text, "<tool_call>{\"name\": \"f\", \"arguments\": %s}</tool_call>",
                      arguments);
        tool_split_add(&split, text.data, text.length, &answer);
        tool_split_end(&split, &answer, NULL);
        assert_int_equal(split.n_calls, is_wrong ? 0 : 1);
        if (!is_wrong)
            assert_string_equal(split.calls[0].arguments.data,
                                texts[i][1] ? texts[i][1] : arguments);
        tool_split_fini(&split);
        buffer_fini(&text);
        buffer_fini(&answer);
    }
}

TEST(of_two_arguments_the_last_counts) {
    static const char *const values[][2] = {{"1", "{}"}, {"{\"a\":1}", "{ }"}, {"{}", "1"}};
    for (size_t i = 0; i < 3; i++) {
        struct buffer text = {0}, answer = {0};
        struct tool_split split = {.format = tool_format_of("<tool_call>"), .max_calls = 1};
        buffer_printf(&text,
                      "<tool_call>{\"name\":\"f\",\"arguments\":%s,\"arguments\":%s}</tool_call>",
                      values[i][0], values[i][1]);
        tool_split_add(&split, text.data, text.length, &answer);
        tool_split_end(&split, &answer, NULL);
        assert_int_equal(split.n_calls, i < 2);
        if (i < 2) assert_string_equal(split.calls[0].arguments.data, "{}");
        else assert_string_equal(answer.data, text.data);
        tool_split_fini(&split);
        buffer_fini(&text);
        buffer_fini(&answer);
    }
}

/* Arguments come back inside of other values. */
TEST(arguments_are_nested_as_deep_as_they_may_come_back) {
    for (int n = 1; n <= JSON_MAX_DEPTH; n++) {
        struct buffer text = {0}, answer = {0};
        struct tool_split split = {.format = tool_format_of("<tool_call>"), .max_calls = 1};
        buffer_puts(&text, "<tool_call>{\"name\":\"f\",\"arguments\":");
        for (int i = 0; i < n; i++) buffer_puts(&text, "{\"\":");
        buffer_puts(&text, "0");
        for (int i = 0; i < n; i++) buffer_puts(&text, "}");
        buffer_puts(&text, "}</tool_call>");
        tool_split_add(&split, text.data, text.length, &answer);
        tool_split_end(&split, &answer, NULL);
        assert_int_equal(split.n_calls, n <= ARGUMENTS_MAX_DEPTH);
        tool_split_fini(&split);
        buffer_fini(&text);
        buffer_fini(&answer);
    }
}

/* Reads a text in pieces of every size; names: of the tools, or NULL. */
static void check_split(const char *sign, const json_t *names, const char *text, const char *cut,
                        uint32_t n_calls, const char *expected) {
    for (size_t piece = 1; piece < 9; piece++) {
        struct buffer answer = {0};
        struct tool_split split = {
            .format = tool_format_of(sign), .strings = names, .max_calls = TOOL_MAX_CALLS};
        for (size_t i = 0; i < strlen(text); i += piece) {
            const size_t left = strlen(text) - i;
            tool_split_add(&split, text + i, left < piece ? left : piece, &answer);
        }
        tool_split_end(&split, &answer, cut);
        if (split.n_calls != n_calls || strcmp(answer.data ? answer.data : "", expected) != 0)
            fail_msg("'%s': %u calls, '%s'", text, split.n_calls, answer.data);
        tool_split_fini(&split);
        buffer_fini(&answer);
    }
}

static void check_cut(const char *sign, const char *text, const char *cut, uint32_t n_calls,
                      const char *expected) {
    check_split(sign, NULL, text, cut, n_calls, expected);
}

TEST(what_is_cut_off_is_no_text) {
    static const char hermes[] = "<tool_call>", call[] = "<tool_call>{\"name\":\"f\"}</tool_call>";
    check_cut(hermes, "So <tool_call>", "", 0, "So ");
    check_cut(hermes, "So <tool_c", "", 0, "So ");
    check_cut(hermes, "a <", "", 0, "a <");
    check_cut(hermes, "So <tool_call>\n{\"name\": \"f\", \"arg", "", 0, "So ");
    check_cut(hermes, "<tool_call>{\"name\": \"f\"}", "", 1, "");
    check_cut(hermes, "<tool_call>{\"name\": \"f\"}</tool", "", 0, "");
    check_cut(hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"</tool_call>", "", 0,
              "");
    check_cut(hermes, "The mark <tool_call> begins a c", "", 0, "The mark <tool_call> begins a c");
    check_cut(hermes, "<tool_call>{\"name\": 5}</tool_call> and", "", 0,
              "<tool_call>{\"name\": 5}</tool_call> and");
    check_cut(hermes, "So <t", "ool_call>", 0, "So ");
    check_cut(hermes, "a<b <", "tool", 0, "a<b <");
    check_cut(hermes, "So <tool_call>{\"na", "me", 0, "So ");
    check_cut("<tool_call><function=x", "<tool_call>\n<func", "", 0, "");
    check_cut("<tool_call><function=x", "<tool_call>\n<function=f>\n<parameter=a>\nx", "", 0, "");
    check_cut("<arg_key>", "<tool_call>get_w", "", 0, "");
    check_cut("<arg_key>", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_va", "", 0, "");
    check_cut("[TOOL_CALLS]", "x[TOOL_CALLS][{\"name\": \"f\"", "", 0, "x");
    check_cut("[TOOL_CALLS]", "[TOOL_CALLS]f[AR", "", 0, "");
    check_cut("[TOOL_CALLS]", "[TOOL_CALLS]f[ARGS]{}", "", 1, "");
    check_cut("<|tool_call|>", "<|tool_call|>[{\"name\": \"f\"}, {", "", 0, "");
    check_cut("{\"name\": x, \"parameters\": dictionary", "{\"name\": \"f\", \"para", "", 0, "");
    check_cut("请使用 Json 格式表示调用的参数", "f\n{\"a\": ", "", 0, "");
    for (size_t n = 2; n < strlen(call); n++) {
        char text[64] = "";
        memcpy(text, call, n);
        const bool is_whole = strstr(text, "}") && n == strlen("<tool_call>{\"name\":\"f\"}");
        check_cut(hermes, text, "", is_whole, "");
    }
}

TEST(marks_may_stand_before_each_call) {
    static const char sign[] = "[TOOL_CALLS]";
    check_cut(sign, "x[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{\"a\": 1}", NULL, 2, "x");
    check_cut(sign, "[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{}", NULL, 1, "");
    check_cut(sign, "[TOOL_CALLS] [{\"name\": \"f\"}]\n[TOOL_CALLS] [{\"name\": \"g\"}]", NULL, 2,
              "");
    check_cut(sign, "[TOOL_CALLS]f{}g{}", NULL, 2, "");
    check_cut(sign, "[TOOL_CALLS]words", NULL, 0, "[TOOL_CALLS]words");
    check_cut(sign, "x [TOOL_CALLS]", NULL, 0, "x [TOOL_CALLS]");
    check_cut("<|tool_call|>", "<|tool_call|>[{\"name\": \"f\"}]<|/tool_call|>", NULL, 1, "");
}

/* ---- calls without the marks of their format ---- */

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
        for (int round = 0; round < N_ROUNDS; round++) {
            struct calls calls;
            struct buffer text = {0};
            make_calls(&calls, MAX_CALLS);
            bare[w].put(&text, &calls);
            json_t *names = names_of(&calls);
            for (size_t piece = 1; piece < 1 + text.length; piece += 1 + piece / 4) {
                if (bare[w].is_ambiguous && (any_ambiguous(&calls) || has_function_mark(&calls)))
                    break;
                struct buffer answer = {0};
                struct tool_split split = {.format = tool_format_of(bare[w].sign),
                                           .strings = names,
                                           .max_calls = TOOL_MAX_CALLS};
                for (size_t i = 0; i < text.length; i += piece) {
                    const size_t left = text.length - i;
                    tool_split_add(&split, text.data + i, left < piece ? left : piece, &answer);
                }
                tool_split_end(&split, &answer, NULL);
                check_calls(&split, &calls, text.data);
                assert_string_equal(answer.data ? answer.data : "", "");
                tool_split_fini(&split);
                buffer_fini(&answer);
                n_compared++;
            }
            json_decref(names);
            buffer_fini(&text);
            free_calls(&calls);
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

/* Reads what stands between LFM2's marks; arguments NULL: it is no call, and stays as it is. */
static void check_python(const char *inner, uint32_t n_calls, const char *arguments) {
    struct buffer text = {0}, answer = {0};
    struct tool_split split = {.format = tool_format_of("List of tools: ["), .max_calls = 4};
    buffer_printf(&text, "<|tool_call_start|>%s<|tool_call_end|>", inner);
    tool_split_add(&split, text.data, text.length, &answer);
    tool_split_end(&split, &answer, NULL);
    if (split.n_calls != n_calls) fail_msg("%u calls: %s", split.n_calls, inner);
    if (arguments) assert_string_equal(split.calls[0].arguments.data, arguments);
    else assert_string_equal(answer.data, text.data);
    tool_split_fini(&split);
    buffer_fini(&text);
    buffer_fini(&answer);
}

TEST(calls_are_read_as_python_means_them) {
    check_python("[f(a=\"x\", b=-1.50, c=True, d=None)]", 1,
                 "{\"a\":\"x\",\"b\":-1.50,\"c\":true,\"d\":null}");
    check_python("[f()]", 1, "{}");
    check_python("f(a = 'it\"s', )", 1, "{\"a\":\"it\\\"s\"}");
    check_python("[f(a={'k': [1, (2, false)], \"m\": {}}), g.h(), i(z=[])]", 3,
                 "{\"a\":{\"k\":[1,[2,false]],\"m\":{}}}");
    check_python("[f(a='\\'\\x41\\n\\q\\u00e9\\\\', b='),(')]", 1,
                 "{\"a\":\"'\\u0041\\n\\\\q\\u00e9\\\\\",\"b\":\"),(\"}");
    check_python("[f(a=\"\"\"print(\"x\")\n\"\"\", b='''it's''', c='')]", 1,
                 "{\"a\":\"print(\\\"x\\\")\\u000a\",\"b\":\"it's\",\"c\":\"\"}");
    check_python("[f(a='two\nlines\t')]", 1, "{\"a\":\"two\\u000alines\\u0009\"}");
    check_python("[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]", 1, "{\"a\": 1}");
    static const char *const wrong[] = {"",           "words",       "[f]",          "[f(]",
                                        "[f(1)]",     "[f(a=)]",     "[f(a=b)]",     "[f(a='x)]",
                                        "[f(a=1 b)]", "[f(a=[1)]",   "[f(a={1:2})]", "[f(a=1);g()]",
                                        "[f(a=01)]",  "[f(a='x\\')]"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) check_python(wrong[i], 0, NULL);
}

/* ---- arguments without quotes ---- */

static const char typed_tools[] =
    "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{"
    "\"text\":{\"type\":\"string\"},\"word\":{\"enum\":[\"1\",\"x\"]},"
    "\"code\":{\"type\":\"string\",\"pattern\":\"x\"},\"number\":{\"type\":\"number\"},"
    "\"maybe\":{\"type\":[\"string\",\"null\"]}},"
    "\"additionalProperties\":{\"type\":\"string\"}}}}]";

/* Reads a call of one argument in both formats that write it bare. */
static void check_typed(const json_t *strings, const char *key, const char *value,
                        const char *expected) {
    static const char *const signs[] = {"<function=", "<arg_key>"};
    for (int i = 0; i < 2; i++) {
        struct tool_split split = {
            .format = tool_format_of(signs[i]), .strings = strings, .max_calls = 1};
        struct buffer text = {0}, answer = {0};
        char arguments[256];
        if (i == 0)
            buffer_printf(&text,
                          "<tool_call>\n<function=f>\n<parameter=%s>\n%s\n</parameter>\n"
                          "</function>\n</tool_call>",
                          key, value);
        else
            buffer_printf(&text,
                          "<tool_call>f\n<arg_key>%s</arg_key>\n<arg_value>%s</arg_value>\n"
                          "</tool_call>",
                          key, value);
        tool_split_add(&split, text.data, text.length, &answer);
        tool_split_end(&split, &answer, NULL);
        snprintf(arguments, sizeof(arguments), "{\"%s\":%s}", key, expected);
        assert_int_equal(split.n_calls, 1);
        assert_string_equal(split.calls[0].arguments.data, arguments);
        tool_split_fini(&split);
        buffer_fini(&text);
        buffer_fini(&answer);
    }
}

TEST(schemas_tell_strings_from_others) {
    json_t *tools = json_loads(typed_tools, 0, NULL), *strings = tool_strings_create(tools);
    check_typed(strings, "text", "12", "\"12\"");
    check_typed(strings, "text", "\"a\"", "\"\\\"a\\\"\"");
    check_typed(strings, "text", "None", "\"None\"");
    check_typed(strings, "text", "", "\"\"");
    check_typed(strings, "word", "1", "\"1\"");
    check_typed(strings, "code", "12", "\"12\"");
    check_typed(strings, "code", "\"</arg_value></parameter>\"", "\"</arg_value></parameter>\"");
    check_typed(strings, "number", "12", "12");
    check_typed(strings, "number", "-1e99999", "-1e99999");
    check_typed(strings, "number", "123456789012345678901234567890",
                "123456789012345678901234567890");
    check_typed(strings, "number", "01", "\"01\"");
    check_typed(strings, "number", "1.", "\"1.\"");
    check_typed(strings, "maybe", "null", "null");
    check_typed(strings, "maybe", "\"null\"", "\"null\"");
    check_typed(strings, "other", "12", "\"12\"");
    check_typed(NULL, "text", "12", "12");
    json_decref(strings);
    json_decref(tools);
}
