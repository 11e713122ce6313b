/* test_json_check.c - what is a whole value of JSON, in pieces of any size. */
#include <string.h>

#include "server/json/json_check.h"
#include "tests/test.h"

static bool is_whole(const char *text, size_t piece) {
    struct json_check check = {0};
    const size_t n = strlen(text);
    for (size_t i = 0; i < n; i += piece)
        json_check_add(&check, text + i, n - i < piece ? n - i : piece);
    const bool whole = json_check_is_whole(&check);
    json_check_fini(&check);
    return whole;
}

static const char *const good[] = {"1",
                                   "-0",
                                   "0.5",
                                   "-12.25e+3",
                                   "1E9",
                                   "\"\"",
                                   "\"a\\u00e9\\n\"",
                                   "true",
                                   " null ",
                                   "[]",
                                   "{}",
                                   "[1,2 , [3]]",
                                   "{\"a\": {\"b\": [true, \"}\"]}}",
                                   "[\"\\\\\", \"\\\"\"]",
                                   "{\"a\":1,\"a\":2}\n"};
static const char *const bad[] = {
    "",          " ",    "-",     "01",        "1.",      ".5",          "1e",         "1e+",
    "+1",        "tru",  "nul l", "\"",        "\"\\x\"", "\"\\u12g4\"", "\"\n\"",     "[",
    "]",         "[1,]", "[,1]",  "[1 2]",     "{\"a\"}", "{\"a\":}",    "{\"a\":1,}", "{a:1}",
    "{\"a\":1]", "[1}",  "1 2",   "{\"p\": }", "{}{}",    "[1],"};

TEST(whole_values_are_told_from_others) {
    for (size_t piece = 1; piece < 4; piece++) {
        for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++)
            if (!is_whole(good[i], piece)) fail_msg("%s is refused", good[i]);
        for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
            if (is_whole(bad[i], piece)) fail_msg("%s is taken", bad[i]);
    }
}

TEST(depth_has_no_bound) {
    enum { DEPTH = 100000 };
    static char text[2 * DEPTH + 1];
    memset(text, '[', DEPTH);
    memset(text + DEPTH, ']', DEPTH);
    assert_true(is_whole(text, 4096));
    text[2 * DEPTH - 1] = 0;
    assert_false(is_whole(text, 4096));
}
