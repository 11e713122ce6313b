/* test_tool_calls.c - tool calls and reasoning in generated text, whatever pieces it comes in.
 *
 * Random calls are written as each family writes them, by code of the test's own, cut into pieces
 * of every size, and read back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "server/api/conversation/arguments.h"
#include "server/api/conversation/tool_strings.h"
#include "tests/server/random_calls.h"
#include "tests/test.h"

/* ---- how families write them ---- */

static void put_hermes(struct buffer *out, const struct calls *calls) {
    for (uint32_t i = 0; i < calls->n; i++) {
        buffer_puts(out, i ? "\n<tool_call>\n" : "<tool_call>\n");
        put_object(out, calls, i, "arguments");
        buffer_puts(out, "\n</tool_call>");
    }
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
    {"x<tool_call>x", "hermes", CALLS_MAX, true, NULL, false, put_hermes},
    {"[TOOL_CALLS]", "mistral", CALLS_MAX, true, "[TOOL_CALLS]", false, put_array},
    {"[TOOL_CALLS]", "mistral", CALLS_MAX, true, "[TOOL_CALLS]", false, put_named},
    {"<|tool_call|>", "phi-4", CALLS_MAX, true, "<|tool_call|>", false, put_array},
    {"{\"name\": x, \"parameters\": dictionary", "llama-3", CALLS_MAX, false, NULL, false,
     put_llama},
    {"请使用 Json 格式表示调用的参数", "glm-4", CALLS_MAX, false, NULL, false, put_lines},
    {"<tool_call><function=x", "qwen3-coder", CALLS_MAX, true, NULL, true, put_functions},
    {"<tool_call><arg_key>", "glm-4.5", CALLS_MAX, true, NULL, true, put_glm},
};

/* ---- reading them ---- */

static struct tool_split read_in_pieces(const struct way *way, const char *before,
                                        const struct buffer *text, size_t piece,
                                        struct buffer *answer) {
    struct tool_split split = {.format = tool_format_of(way->sign), .max_calls = TOOL_MAX_CALLS};
    assert_non_null(split.format);
    assert_string_equal(split.format->name, way->format);
    split_pieces(&split, before, strlen(before), piece, answer);
    if (way->special) split_pieces(&split, way->special, strlen(way->special), piece, answer);
    split_pieces(&split, text->data, text->length, piece, answer);
    tool_split_end(&split, answer, NULL);
    assert_false(split.failed);
    return split;
}

TEST(what_families_write_is_read) {
    static const char *const openings[] = {"", "I will look.", "Use < and <tool, then:\n"};
    srand(11);
    for (size_t w = 0; w < sizeof(ways) / sizeof(*ways); w++) {
        int n_compared = 0;
        for (int round = 0; round < CALLS_N_ROUNDS; round++) {
            struct calls calls;
            struct buffer text = {0};
            const char *before = ways[w].answers_before ? openings[round % 3] : "";
            calls_make(&calls, ways[w].max_calls);
            ways[w].put(&text, &calls);
            for (size_t piece = 1; piece < 1 + text.length; piece += 1 + piece / 4) {
                if (ways[w].is_bare && calls_are_ambiguous(&calls)) break;
                struct buffer answer = {0};
                struct tool_split split = read_in_pieces(&ways[w], before, &text, piece, &answer);
                check_calls(&split, &calls, text.data);
                assert_string_equal(answer.data ? answer.data : "", before);
                tool_split_fini(&split);
                buffer_fini(&answer);
                n_compared++;
            }
            buffer_fini(&text);
            calls_free(&calls);
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

TEST(an_end_that_an_argument_says_is_none) {
    check_cut("<function_calls>",
              "x<function_calls>f(a=\"</function_calls>\")\ng()</function_calls>", NULL, 2, "x");
    check_cut("<function_calls>", "<function_calls>f(a=1)</function_calls>y<function_calls>g()",
              NULL, 2, "y");
    check_cut("<function_calls>", "x<function_calls>f(a=1)\ng(b", "", 0, "x");
    check_cut("<function_calls>", "x<function_calls>f(a=1)", "", 1, "x");
    check_cut("<function_calls>", "x<function_calls>two words", "", 0,
              "x<function_calls>two words");
    check_cut("<TOOLCALL>",
              "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"a\": \"]</TOOLCALL>\"}}]"
              "</TOOLCALL>",
              NULL, 1, "");
    check_cut("functools[{", "import functools\nx", NULL, 0, "import functools\nx");
    check_cut("functools[{", "functools[{\"name\": \"f\"}, {\"name\": \"g\"}]", NULL, 2, "");
    check_cut("functools[{", "functools[0]", NULL, 0, "functools[0]");
    check_cut(
        "<start_function_call>",
        "<start_function_call>call:f{a:<escape>}<end_function_call><escape>}<end_function_call>",
        NULL, 1, "");
}

/* Reads what stands between LFM2's marks, and OLMo 3's; arguments NULL: it is no call, and stays as
 * it is. */
static void check_python(const char *inner, uint32_t n_calls, const char *arguments) {
    static const char *const signs[] = {"List of tools: [", "'<function_calls>'"};
    for (size_t i = 0; i < 2; i++) {
        struct buffer text = {0}, answer = {0};
        struct tool_split split = {.format = tool_format_of(signs[i]), .max_calls = 4};
        buffer_printf(&text, "%s%s%s", split.format->begin, inner, split.format->end);
        tool_split_add(&split, text.data, text.length, &answer);
        tool_split_end(&split, &answer, NULL);
        if (split.n_calls != n_calls) fail_msg("%u calls: %s", split.n_calls, inner);
        if (arguments) assert_string_equal(split.calls[0].arguments.data, arguments);
        else assert_string_equal(answer.data, text.data);
        tool_split_fini(&split);
        buffer_fini(&text);
        buffer_fini(&answer);
    }
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
    check_python("f(a=\"),\\ng(\", b=[{\"c\": \"\\u00e9[\"}])\ng(d='(\"')\n\nh()", 3,
                 "{\"a\":\"),\\ng(\",\"b\":[{\"c\":\"\\u00e9[\"}]}");
    check_python("[f(a=1) g(),\nh(),]", 3, "{\"a\":1}");
    static const char *const wrong[] = {
        "",          "words",        "[f]",        "[f(]",      "[f(1)]",       "[f(a=)]",
        "[f(a=b)]",  "[f(a='x)]",    "[f(a=1 b)]", "[f(a=[1)]", "[f(a={1:2})]", "[f(a=1);g()]",
        "[f(a=01)]", "[f(a='x\\')]", "f()g()",     "f() words"};
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
