/* test_json_arena.c - one allocation a document, made before the parser runs; when it fails nothing
 * else happens. */
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
            json_decref(load(text, length));
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
            json_t *root = load(text, length);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_fits_what_was_reserved),
        cmocka_unit_test(long_strings_fit_at_either_side_of_a_doubling),
        cmocka_unit_test(a_failed_reserve_is_no_memory_and_nothing_else),
        cmocka_unit_test(what_is_wrong_is_invalid),
        cmocka_unit_test(documents_outlive_each_other_in_any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
