/* test_numbers.c - numbers of schemas that 64 bits or a double cannot hold: values are written as
 * they are, and bounds are the bounds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/base/json_tree.h"
#include "engine/grammar/schema.h"
#include "tests/grammar/grammar_rig.h"
#include "tests/test.h"

enum { MAX_TEXT = 4096 };

#define DIGITS_17 "12345678901234567"
#define DIGITS_24 "123456789012345678901234"
#define DIGITS_40 "1234567890123456789012345678901234567890"

/* A schema, what it allows, and what it does not. */
static const struct {
    const char *schema, *right[8], *wrong[8];
} cases[] = {
    {"{\"type\":\"integer\",\"minimum\":0,\"maximum\":18446744073709551615}",
     {"0", "7", "9223372036854775808", "18446744073709551615", "9999999999999999999"},
     {"-1", "18446744073709551616", "20000000000000000000", "1.0", "01", "1e3"}},
    {"{\"type\":\"integer\",\"exclusiveMaximum\":18446744073709551616}",
     {"18446744073709551615", "-18446744073709551616", "0"},
     {"18446744073709551616", "99999999999999999999"}},
    {"{\"type\":\"integer\",\"minimum\":-9223372036854775809,\"maximum\":-9223372036854775808}",
     {"-9223372036854775809", "-9223372036854775808"},
     {"-9223372036854775807", "-9223372036854775810", "0", "9223372036854775808"}},
    {"{\"type\":\"integer\",\"minimum\":100000000000000000000}",
     {"100000000000000000000", DIGITS_40},
     {"99999999999999999999", "0", "-100000000000000000000"}},
    {"{\"type\":\"integer\",\"minimum\":1e20,\"maximum\":1.0e21}",
     {"100000000000000000000", "1000000000000000000000"},
     {"99999999999999999999", "1000000000000000000001"}},
    {"{\"type\":\"integer\",\"minimum\":-170141183460469231731687303715884105728}",
     {"-9999999999999999999999999999999999999", "0"},
     {"-999999999999999999999999999999999999999"}},
    {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":1e400}", {"5", DIGITS_40}, {"4", "-5"}},
    {"{\"type\":[\"integer\",\"null\"],\"maximum\":18446744073709551615,\"minimum\":0}",
     {"null", "18446744073709551615"},
     {"18446744073709551616", "-1"}},
    {"{\"type\":\"number\",\"minimum\":0.5,\"maximum\":18446744073709551616}",
     {"0.5", "0.75", "18446744073709551616", "9223372036854775808.5", "18446744073709551615.25"},
     {"0.4", "18446744073709551617", "18446744073709551616.5", "-1"}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":-1e20}",
     {"-99999999999999999999.5", "0.5", DIGITS_40},
     {"-100000000000000000000", "-100000000000000000001"}},
    {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1.7976931348623157e308}",
     {"0.25", "1234567890123456789012345678901234567"},
     {"-1"}},
    {"{\"type\":\"number\",\"maximum\":1e400}", {"1e30", "-5", "0.1"}, {"01"}},
    {"{\"type\":\"number\",\"minimum\":-1e999,\"maximum\":1e999}", {"1e30", "-5"}, {"01"}},
    {"{\"type\":\"integer\"}",
     {"0", "-7", DIGITS_24, "-" DIGITS_24},
     {DIGITS_24 "0", DIGITS_40, "-0", "1.0"}},
    {"{\"type\":\"number\"}",
     {"-0", "0." DIGITS_17, DIGITS_24 "." DIGITS_17 "e-99"},
     {"0." DIGITS_17 "1", DIGITS_24 "0", "1e100"}},
    {"{}", {DIGITS_24, "1.5"}, {DIGITS_40, "0." DIGITS_40}},
    {"{\"type\":\"array\"}", {"[" DIGITS_24 "]"}, {"[" DIGITS_40 "]"}},
    {"{\"enum\":[18446744073709551616]}",
     {"18446744073709551616"},
     {"18446744073709552000", "1.8446744073709552e+19", "1"}},
    {"{\"type\":\"integer\",\"enum\":[18446744073709551616,1.0,2.5]}",
     {"18446744073709551616", "1.0"},
     {"2.5"}},
    {"{\"const\":1e400}", {"1e400"}, {"1", "1e308"}},
    {"{\"const\":{\"a\":[0.1000,-0.0,1E2]}}",
     {"{\"a\":[0.1000,-0.0,1E2]}"},
     {"{\"a\":[0.1,0,100]}"}},
    {"{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":"
     "18446744073709551615}},\"required\":[\"n\"]}",
     {"{\"n\": 18446744073709551615}"},
     {"{\"n\": 18446744073709551616}"}},
};

struct text {
    char bytes[MAX_TEXT];
    size_t n;
};

static int append(const char *bytes, size_t n, void *data) {
    struct text *text = data;
    assert_true(text->n + n < sizeof(text->bytes));
    memcpy(text->bytes + text->n, bytes, n);
    text->n += n;
    return 0;
}

static int prepare(struct text *out, const char *schema, struct error *err) {
    json_t *parsed = NULL, *made = NULL;
    json_error_t why;
    if (json_arena_load(&parsed, schema, strlen(schema), 0, &why)) fail_msg("%s", why.text);
    const int rc = schema_prepare(&made, parsed, err);
    json_decref(parsed);
    if (rc) return rc;
    out->n = 0;
    assert_int_equal(json_tree_write(made, append, out), 0);
    json_decref(made);
    return 0;
}

TEST(values_and_bounds_are_those_of_the_text) {
    static struct text schema;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct error err = {0};
        struct grammar *grammar;
        if (prepare(&schema, cases[i].schema, &err) ||
            grammar_compile(&grammar, rig_vocab, GRAMMAR_JSON_SCHEMA, schema.bytes, schema.n, NULL,
                            &err))
            fail_msg("%s: %s", cases[i].schema, err.text);
        for (int k = 0; k < 8; k++) {
            const char *right = cases[i].right[k], *wrong = cases[i].wrong[k];
            if (right && !rig_takes(grammar, right, true))
                fail_msg("%s does not allow %s", cases[i].schema, right);
            if (wrong && rig_takes(grammar, wrong, true))
                fail_msg("%s allows %s", cases[i].schema, wrong);
        }
        grammar_unref(grammar);
    }
}

TEST(what_allows_no_number_is_refused_by_name) {
    static const char *const refused[][2] = {
        {"{\"type\":\"integer\",\"minimum\":1e400}", "#: minimum allows no number"},
        {"{\"type\":\"number\",\"exclusiveMaximum\":-1e38}",
         "#: exclusiveMaximum allows no number"},
        {"{\"type\":\"integer\",\"maximum\":\"18446744073709551615\"}",
         "#: maximum must be a number"},
        {"{\"type\":\"array\",\"maxItems\":18446744073709551615}",
         "#: maxItems must be an integer"},
        {"{\"type\":\"string\",\"maxLength\":1e400}", "#: maxLength must be an integer"},
    };
    static struct text schema;
    for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++) {
        struct error err = {0};
        assert_int_equal(prepare(&schema, refused[i][0], &err), ERR_INVALID);
        if (!strstr(err.text, refused[i][1])) fail_msg("%s: %s", refused[i][0], err.text);
    }
}

int main(int argc, char **argv) {
    if (!grammar_is_available()) return 77; /* Meson's number for a test that was skipped */
    return rig_main(argc, argv);
}
