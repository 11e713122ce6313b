/* test_json_arena.c - one allocation a document, made before the parser runs; when it fails nothing
 * else happens.  What is read is what jansson reads, but for numbers that it cannot hold. */
#include <float.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/base/json_reader.h"
#include "engine/base/json_tree.h"
#include "tests/test.h"

static struct {
    unsigned n;
    bool fails;
} mallocs;

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);

void *__wrap_malloc(size_t size) {
    mallocs.n++;
    return mallocs.fails ? NULL : __real_malloc(size);
}

static json_t *load(const char *text, size_t length) {
    json_t *root = NULL;
    json_error_t why;
    mallocs.n = 0;
    if (json_arena_load(&root, text, length, JSON_DECODE_ANY, &why)) fail_msg("%s", why.text);
    assert_int_equal(mallocs.n, 1);
    return root;
}

/* Texts of repeated pieces: open, n times the piece with a number in it, close. */
static const struct shape {
    const char *open, *piece, *close;
} shapes[] = {
    {"[", "%u,", "0]"},
    {"[", "-%u.5e3,", "0]"},
    {"[", "1e%u,", "0]"},
    {"[", "100000000000000000000000000000%u,", "0]"},
    {"", "1%u", "0"},
    {"[", "[],", "[]]"},
    {"[", "{},", "%u]"},
    {"[", "{\"a\":{\"b\":%u}},", "0]"},
    {"[", "\"%u\",", "\"\"]"},
    {"[", "\"\",", "\"\"]"},
    {"{", "\"%u\":0,", "\"\":0}"},
    {"{", "\"%u\":\"\",", "\"\":[]}"},
    {"{", "\"a long key indeed, longer than its entry %u\":{},", "\"\":[]}"},
    {"\"", "%u", "\""},
    {"\"", "\\u00e9%u", "\""},
    {"{\"", "key%u", "\":1}"},
};

static char *make(const struct shape *shape, unsigned n, size_t *length) {
    const size_t size = 64 + n * (strlen(shape->piece) + 10);
    char *text = malloc(size);
    size_t at = (size_t)snprintf(text, size, "%s", shape->open);
    for (unsigned i = 0; i < n; i++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        at += (size_t)snprintf(text + at, size - at, shape->piece, i);
#pragma GCC diagnostic pop
    }
    at += (size_t)snprintf(text + at, size - at, "%s",
                           strcmp(shape->close, "%u]") ? shape->close : "0]");
    *length = at;
    return text;
}

/* The arena asserts that the bound holds. */
TEST(every_shape_fits_what_was_reserved) {
    for (size_t s = 0; s < sizeof(shapes) / sizeof(*shapes); s++) {
        for (unsigned n = 0; n < 5000; n = n < 70 ? n + 1 : 2 * n - 1) {
            size_t length;
            char *text = make(&shapes[s], n, &length);
            json_decref(load(text, length));
            free(text);
        }
    }
}

TEST(long_strings_fit_at_either_side_of_a_doubling) {
    char *text = malloc((1 << 18) + 8);
    for (size_t n = 8; n <= 1 << 18; n *= 2) {
        for (size_t length = n - 4; length <= n + 4; length++) {
            memset(text, 'a', length);
            text[0] = text[length - 1] = '"';
            json_t *root = load(text, length);
            assert_int_equal(json_string_length(root), length - 2);
            assert_int_equal(json_string_value(root)[length - 3], 'a');
            json_decref(root);
        }
    }
    free(text);
}

TEST(a_failed_reserve_is_no_memory_and_nothing_else) {
    static const char text[] = "{\"a\":[1,2,\"three\"]}";
    json_t *root = NULL;
    json_error_t why = {.line = 77};
    mallocs.n = 0;
    mallocs.fails = true;
    const int rc = json_arena_load(&root, text, strlen(text), 0, &why);
    mallocs.fails = false;
    assert_int_equal(rc, ERR_NOMEM);
    assert_int_equal(mallocs.n, 1);
    assert_null(root);
    assert_int_equal(why.line, 77);
}

TEST(what_is_wrong_is_invalid) {
    json_t *root = NULL;
    json_error_t why;
    assert_int_equal(json_arena_load(&root, "[1,\n,]", 6, 0, &why), ERR_INVALID);
    assert_int_equal(why.line, 2);
    assert_int_equal(json_arena_load(&root, "", 0, 0, &why), ERR_INVALID);
    assert_null(root);
}

TEST(documents_outlive_each_other_in_any_order) {
    json_t *a = load("[\"one\"]", 7), *b = load("{\"two\":2}", 9), *made = json_object();
    json_t *one = json_incref(json_array_get(a, 0));
    json_decref(a);
    assert_int_equal(json_object_set_new(made, "one", one), 0);
    assert_int_equal(json_object_set(made, "two", json_object_get(b, "two")), 0);
    json_decref(b);
    assert_string_equal(json_string_value(json_object_get(made, "one")), "one");
    assert_int_equal(json_integer_value(json_object_get(made, "two")), 2);
    json_decref(made);
}

/* ---- long strings ---- */

static const char *const pieces[] = {
    "a",
    "word ",
    "\\n",
    "\\\"",
    "\\\\",
    "\\/",
    "\\t",
    "\\b\\f\\r",
    "\\u0041",
    "\\u00e9",
    "\\u20AC",
    "\\ud83d\\ude00",
    "\u00e9",
    "\u20ac",
    "\U0001f600",
    "\\u0001",
    "\x7f",
    "{",
    "]",
    ",",
    ":",
    /* what makes a string wrong, or leaves it to jansson */
    "\\u0000",
    "\\ud83d",
    "\\ude00",
    "\\ud83d\\u0041",
    "\\x",
    "\\u12g4",
    "\\u12",
    "\n",
    "\x01",
    "\x80",
    "\xc3",
    "\xed\xa0\x80",
    "\xf5\x80\x80\x80",
};
enum { N_PIECES = sizeof(pieces) / sizeof(*pieces), N_RIGHT = 21 };

/* The last ones are not jansson's. */
static const char *const scalars[] = {
    "null",
    "true",
    "false",
    "0",
    "-0",
    "9223372036854775807",
    "-9223372036854775808",
    "12",
    "1.0",
    "-1.5e3",
    "1E-400",
    "0.10",
    "18446744073709551615",
    "-9223372036854775809",
    "1e400",
    "01",
    "1.",
    "+1",
    "1e",
    "nul",
    ".5",
};
enum { N_SCALARS = sizeof(scalars) / sizeof(*scalars) };

struct random_text {
    char bytes[16384];
    size_t n;
};

static void add(struct random_text *text, const char *piece) {
    const size_t n = strlen(piece);
    assert_true(text->n + n <= sizeof(text->bytes));
    memcpy(text->bytes + text->n, piece, n);
    text->n += n;
}

/* About one of four strings is long, and one of `wrong` pieces is one of the last. */
static void add_string(struct random_text *text, int wrong) {
    const size_t begin = text->n,
                 least = rand() % 4 ? (size_t)rand() % 8 : 490 + (size_t)rand() % 60;
    add(text, "\"");
    while (text->n - begin < least)
        add(text, pieces[rand() % wrong ? rand() % N_RIGHT : rand() % N_PIECES]);
    add(text, "\"");
}

static void add_value(struct random_text *text, int depth, int wrong) {
    char number[16];
    switch (depth > 4 || text->n > 8192 ? 3 : rand() % 5) {
    case 0:
        add(text, "[");
        for (int n = rand() % 4; n > 0; n--) {
            add_value(text, depth + 1, wrong);
            add(text, n > 1 ? " , " : " ");
        }
        add(text, "]");
        return;
    case 1:
        add(text, "{");
        for (int n = rand() % 4; n > 0; n--) {
            if (rand() % 2) add_string(text, wrong);
            else {
                snprintf(number, sizeof(number), "\"%d\"", n);
                add(text, number);
            }
            add(text, rand() % 2 ? ":" : " \n:");
            add_value(text, depth + 1, wrong);
            if (n > 1) add(text, ",");
        }
        add(text, "}");
        return;
    case 2: add(text, scalars[rand() % N_SCALARS]); return;
    default: add_string(text, wrong);
    }
}

/* What is parsed, and what is wrong, is as jansson says, but for numbers that it cannot hold. */
TEST(random_documents_are_those_of_jansson) {
    static const size_t flags[] = {JSON_DECODE_ANY,
                                   JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL};
    static struct random_text text;
    unsigned n_parsed = 0, n_wrong = 0;
    srand(11);
    for (int round = 0; round < 20000; round++) {
        text.n = 0;
        add_value(&text, 0, round % 2 ? 1000000 : 300);
        if (round % 16 == 0 && text.n > 0)
            text.bytes[(size_t)rand() % text.n] = "\"\\{}[]:, x"[rand() % 10];
        const size_t length = round % 16 == 1 ? (size_t)rand() % (text.n + 1) : text.n;
        json_error_t why = {0}, expected = {0};
        json_t *root = NULL, *plain = json_loadb(text.bytes, length, flags[round % 2], &expected);
        const int rc = json_arena_load(&root, text.bytes, length, flags[round % 2], &why);
        const bool is_large = !plain && json_error_code(&expected) == json_error_numeric_overflow;
        assert_true(rc == (plain ? 0 : ERR_INVALID) || (rc == 0 && is_large));
        if (plain) assert_true(json_equal(plain, root));
        if (rc) assert_true(why.text[0] && why.position <= (int)length);
        n_parsed += plain != NULL;
        n_wrong += plain == NULL;
        json_decref(plain);
        json_decref(root);
    }
    assert_true(n_parsed > 10000 && n_wrong > 1000);
}

/* ---- numbers ---- */

/* Reads one number, and what is known of it. */
static void expect_number(const char *text, json_type type, double value, bool is_kept) {
    json_t *root = load(text, strlen(text));
    assert_int_equal(json_typeof(root), type);
    assert_true(json_number_value(root) == value);
    if (is_kept) assert_string_equal(json_number_text(root), text);
    else assert_null(json_number_text(root));
    json_decref(root);
}

TEST(numbers_keep_what_their_value_does_not_tell) {
    expect_number("0", JSON_INTEGER, 0, false);
    expect_number("-12", JSON_INTEGER, -12, false);
    expect_number("9223372036854775807", JSON_INTEGER, 9223372036854775807.0, false);
    expect_number("-9223372036854775808", JSON_INTEGER, -9223372036854775808.0, false);
    expect_number("-0", JSON_INTEGER, 0, true);
    expect_number("9223372036854775808", JSON_REAL, 9223372036854775808.0, true);
    expect_number("-9223372036854775809", JSON_REAL, -9223372036854775808.0, true);
    expect_number("18446744073709551615", JSON_REAL, 18446744073709551615.0, true);
    expect_number("100000000000000000000", JSON_REAL, 1e20, true);
    expect_number("1.0", JSON_REAL, 1, true);
    expect_number("0.1000", JSON_REAL, 0.1, true);
    expect_number("1E+2", JSON_REAL, 100, true);
    expect_number("-0.0", JSON_REAL, 0, true);
    expect_number("1e400", JSON_REAL, DBL_MAX, true);
    expect_number("-1e400", JSON_REAL, -DBL_MAX, true);
    expect_number("1e-400", JSON_REAL, 0, true);
}

/* A number has no text of its own unless a reader gave it one. */
TEST(made_numbers_have_no_text) {
    json_t *made = json_pack("[i, f, s, b, n]", 1, 1.5, "1.5", 1);
    for (size_t i = 0; i < json_array_size(made); i++)
        assert_null(json_number_text(json_array_get(made, i)));
    assert_null(json_number_text(NULL));
    json_decref(made);
}

static int append(const char *bytes, size_t n, void *data) {
    struct random_text *text = data;
    assert_true(text->n + n <= sizeof(text->bytes));
    memcpy(text->bytes + text->n, bytes, n);
    text->n += n;
    return 0;
}

TEST(trees_are_copied_and_written_as_they_were) {
    static const char text[] =
        "{\"a\":[1.0,-0,1e400,18446744073709551616,\"1.0\",\"\\u0001\"],\"\\u0000\":{},"
        "\"\":[],\"\u00e9\":null}";
    static struct random_text written;
    json_t *root = NULL, *copy;
    json_error_t why;
    assert_int_equal(json_arena_load(&root, text, strlen(text), JSON_ALLOW_NUL, &why), 0);
    copy = json_tree_copy(root);
    json_array_append_new(json_object_get(copy, "a"), json_null());
    assert_int_equal(json_array_size(json_object_get(root, "a")), 6);
    json_decref(copy);
    written.n = 0;
    assert_int_equal(json_tree_write(root, append, &written), 0);
    assert_int_equal(written.n, strlen(text));
    assert_memory_equal(written.bytes, text, written.n);
    assert_int_equal(json_tree_size(root), written.n);
    json_decref(root);
}

/* Strings have jansson's own escapes.  Every character of one and two bytes stands alone, between
 * others, and in a name. */
TEST(strings_are_written_as_jansson_writes_them) {
    static struct random_text written;
    for (unsigned c = 0; c < 0x800; c++) {
        const char two[] = {(char)(0xC0 | c >> 6), (char)(0x80 | (c & 0x3F))}, one = (char)c;
        const char *sign = c < 0x80 ? &one : two;
        const size_t n = c < 0x80 ? 1 : 2;
        json_t *strings = json_pack("[s%, s#, {s:b}]", sign, n, "a\"b", 3, "k", 1);
        char around[8] = "xy";
        memcpy(around + 2, sign, n);
        memcpy(around + 2 + n, "z\\", 2);
        assert_non_null(strings);
        json_array_append_new(strings, json_stringn(around, n + 4));
        json_object_setn_new_nocheck(json_array_get(strings, 2), around, n + 4, json_null());
        char *expected = json_dumps(strings, JSON_COMPACT);
        written.n = 0;
        assert_int_equal(json_tree_write(strings, append, &written), 0);
        assert_int_equal(written.n, strlen(expected));
        assert_memory_equal(written.bytes, expected, written.n);
        json_arena_free(expected);
        json_decref(strings);
    }
}

/* ---- the rest ---- */

TEST(halves_are_refused_or_replaced) {
    static const char *const texts[][2] = {
        {"\"\\ud83d\"", "\uFFFD"},         {"\"\\ude00\"", "\uFFFD"},
        {"\"\\ud83dx\"", "\uFFFDx"},       {"\"\\ud83d\\ud83d\\ude00\"", "\uFFFD\U0001f600"},
        {"\"\\ud83d\\u0041\"", "\uFFFDA"},
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        const char *text = texts[i][0];
        json_t *root = NULL;
        json_error_t why;
        struct json_oddities odd;
        assert_int_equal(json_arena_load(&root, text, strlen(text), JSON_DECODE_ANY, &why),
                         ERR_INVALID);
        assert_non_null(strstr(why.text, "Unicode"));
        assert_int_equal(json_arena_read(&root, text, strlen(text),
                                         JSON_DECODE_ANY | JSON_ALLOW_HALVES, &odd, &why),
                         0);
        assert_string_equal(json_string_value(root), texts[i][1]);
        assert_int_equal(odd.n_halves, 1);
        json_decref(root);
    }
}

TEST(doubled_members_are_counted) {
    static const char text[] = "{\"a\":1,\"b\":{\"c\":1,\"c\":{\"c\":2}},\"\\u0061\":3}";
    json_t *root = NULL;
    json_error_t why;
    struct json_oddities odd;
    assert_int_equal(json_arena_read(&root, text, strlen(text), 0, &odd, &why), 0);
    assert_int_equal(odd.n_doubled, 2);
    assert_int_equal(json_integer_value(json_object_get(root, "a")), 3);
    json_decref(root);
    assert_int_equal(json_arena_load(&root, text, strlen(text), JSON_REJECT_DUPLICATES, &why),
                     ERR_INVALID);
    assert_non_null(strstr(why.text, "duplicate object key"));
}

TEST(nesting_ends_at_the_stated_level) {
    static char text[2 * (JSON_MAX_LEVELS + 1)];
    for (size_t n = JSON_MAX_LEVELS; n <= JSON_MAX_LEVELS + 1; n++) {
        json_t *root = NULL;
        json_error_t why;
        memset(text, '[', n);
        memset(text + n, ']', n);
        assert_int_equal(json_arena_load(&root, text, 2 * n, 0, &why),
                         n == JSON_MAX_LEVELS ? 0 : ERR_INVALID);
        json_decref(root);
    }
}
