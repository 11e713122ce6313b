/* test_json_arena.c - one allocation a document, made before the parser runs; when it fails nothing
 * else happens.  Long strings take two more, freed before the document is returned, and are those
 * that jansson would decode. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"

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

static json_t *load_by(const char *text, size_t length, unsigned n_mallocs) {
    json_t *root = NULL;
    json_error_t why;
    mallocs.n = 0;
    if (json_arena_load(&root, text, length, JSON_DECODE_ANY, &why)) fail_msg("%s", why.text);
    assert_int_equal(mallocs.n, n_mallocs);
    return root;
}

static json_t *load(const char *text, size_t length) {
    return load_by(text, length, 1);
}

enum { LONG = 512 }; /* bytes of a string that the arena decodes itself */

/* Texts of repeated pieces: open, n times the piece with a number in it, close. */
static const struct shape {
    const char *open, *piece, *close;
} shapes[] = {
    {"[", "%u,", "0]"},
    {"[", "-%u.5e3,", "0]"},
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
static void every_shape_fits_what_was_reserved(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof(shapes) / sizeof(*shapes); s++) {
        for (unsigned n = 0; n < 5000; n = n < 70 ? n + 1 : 2 * n - 1) {
            size_t length;
            char *text = make(&shapes[s], n, &length);
            const bool is_long = *shapes[s].open == '"' && length - 2 >= LONG;
            json_decref(load_by(text, length, is_long ? 3 : 1));
            free(text);
        }
    }
}

static void long_strings_fit_at_either_side_of_a_doubling(void **state) {
    (void)state;
    char *text = malloc((1 << 18) + 8);
    for (size_t n = 8; n <= 1 << 18; n *= 2) {
        for (size_t length = n - 4; length <= n + 4; length++) {
            memset(text, 'a', length);
            text[0] = text[length - 1] = '"';
            json_t *root = load_by(text, length, length - 2 >= LONG ? 3 : 1);
            assert_int_equal(json_string_length(root), length - 2);
            assert_int_equal(json_string_value(root)[length - 3], 'a');
            json_decref(root);
        }
    }
    free(text);
}

static void a_failed_reserve_is_no_memory_and_nothing_else(void **state) {
    (void)state;
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

static void what_is_wrong_is_invalid(void **state) {
    (void)state;
    json_t *root = NULL;
    json_error_t why;
    assert_int_equal(json_arena_load(&root, "[1,\n,]", 6, 0, &why), ERR_INVALID);
    assert_int_equal(why.line, 2);
    assert_int_equal(json_arena_load(&root, "", 0, 0, &why), ERR_INVALID);
    assert_null(root);
}

static void documents_outlive_each_other_in_any_order(void **state) {
    (void)state;
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
    case 2: add(text, rand() % 2 ? "null" : "-1.5e3"); return;
    default: add_string(text, wrong);
    }
}

/* What is parsed, and what is wrong and where, is as jansson says. */
static void random_documents_are_those_of_jansson(void **state) {
    (void)state;
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
        assert_int_equal(rc, plain ? 0 : ERR_INVALID);
        if (plain) assert_true(json_equal(plain, root));
        else assert_string_equal(why.text, expected.text);
        if (!plain) assert_int_equal(why.position, expected.position);
        n_parsed += plain != NULL;
        n_wrong += plain == NULL;
        json_decref(plain);
        json_decref(root);
    }
    assert_true(n_parsed > 10000 && n_wrong > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_fits_what_was_reserved),
        cmocka_unit_test(long_strings_fit_at_either_side_of_a_doubling),
        cmocka_unit_test(a_failed_reserve_is_no_memory_and_nothing_else),
        cmocka_unit_test(what_is_wrong_is_invalid),
        cmocka_unit_test(documents_outlive_each_other_in_any_order),
        cmocka_unit_test(random_documents_are_those_of_jansson),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
