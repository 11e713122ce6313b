/* test_json_guard.c - bombs are refused before anything is built, and the bulk array is found and
 * cut. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "server/json/json_guard.h"
#include "tests/test.h"

static int scan(const char *text, struct json_span *bulk) {
    struct error err = {0};
    return json_guard_scan(text, strlen(text), "prompt", bulk, &err);
}

TEST(finds_the_bulk_array_only_at_the_top) {
    static const struct {
        const char *body, *span; /* NULL: none */
    } cases[] = {
        {"{\"prompt\":[1,2,3],\"n\":1}", "[1,2,3]"},
        {"{\"n\":1, \"prompt\" :\n [ [1], [2] ] }", "[ [1], [2] ]"},
        {"{\"pr\\u006fmpt\":[\"]\"]}", "[\"]\"]"},
        {"{\"prompt\":[\"a\\\"]\",\"b\"]}", "[\"a\\\"]\",\"b\"]"},
        {"{\"prompt\":\"[1]\"}", NULL},
        {"{\"x\":{\"prompt\":[1]}}", NULL},
        {"{\"x\":\"prompt\",\"y\":[1]}", NULL},
        {"{\"prompt\":{\"a\":[1]}}", NULL},
        {"[\"prompt\",[1]]", NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct json_span bulk;
        assert_int_equal(scan(cases[i].body, &bulk), 0);
        if (!cases[i].span) {
            assert_null(bulk.start);
            continue;
        }
        assert_non_null(bulk.start);
        assert_int_equal(bulk.length, strlen(cases[i].span));
        assert_memory_equal(bulk.start, cases[i].span, bulk.length);
    }
}

TEST(broken_bodies_are_refused) {
    static const char *const bodies[] = {
        "",
        "{",
        "}",
        "{]",
        "[1,2}",
        "nul",
        "[]",
        "1",
        "{a:1}",
        "{\"a\":1,}",
        "{\"a\":\"b}",
        "{\"prompt\":[1,2}",
        "{\"prompt\"::[1]}",
        "{\"prompt\":[1]1}",
        "{\"prompt\":[1],\"prompt\":[2]}",
        "{\"prompt\":[1],\"prompt\":\"a\"}",
        "{\"a\":NaN}",
        "{\"a\":Infinity}",
        "{\"a\":-Infinity}",
        "{\"a\":01}",
        "{\"a\":\"\\",
        "{\"a\":\"\\ud800\"}",
        "{\"a\":\"\xC3\"}",
        "{\"a\":\"\xC0\x80\"}",
        "{\"a\":\"\xED\xA0\x80\"}",
        "{\"a\":\"\xF5\x80\x80\x80\"}",
    };
    for (size_t i = 0; i < sizeof(bodies) / sizeof(*bodies); i++) {
        struct error err = {0};
        struct json_span bulk;
        json_t *root = NULL;
        assert_int_equal(
            json_guard_load(&root, bodies[i], strlen(bodies[i]), "prompt", &bulk, &err),
            ERR_INVALID);
        assert_null(root);
        assert_true(err.text[0] != 0);
    }
}

TEST(numbers_beyond_64_bits_are_kept_as_they_are_written) {
    const char *body = "{\"a\":1e999,\"b\":99999999999999999999}";
    struct json_span bulk;
    json_t *root = NULL;
    assert_int_equal(json_guard_load(&root, body, strlen(body), NULL, &bulk, NULL), 0);
    assert_string_equal(json_number_text(json_object_get(root, "a")), "1e999");
    assert_string_equal(json_number_text(json_object_get(root, "b")), "99999999999999999999");
    json_decref(root);
}

/* jansson alone would read {"a":null} here. */
TEST(a_nul_byte_is_not_overlooked) {
    static const char body[] = "{\"a\":null\0}";
    struct json_span bulk;
    json_t *root = NULL;
    assert_int_equal(json_guard_load(&root, body, sizeof(body) - 1, NULL, &bulk, NULL),
                     ERR_INVALID);
}

TEST(the_rest_is_parsed_with_the_bulk_as_null) {
    const char *body = "{\"n\":3,\"prompt\":[1,2,[3]],\"user\":\"\xC3\xA9\"}";
    struct json_span bulk;
    json_t *root = NULL;
    assert_int_equal(json_guard_load(&root, body, strlen(body), "prompt", &bulk, NULL), 0);
    assert_int_equal(json_object_size(root), 3);
    assert_true(json_is_null(json_object_get(root, "prompt")));
    assert_int_equal(json_integer_value(json_object_get(root, "n")), 3);
    assert_string_equal(json_string_value(json_object_get(root, "user")), "\xC3\xA9");
    json_decref(root);
}

/* A body of `unit` repeated, between head and tail. */
static char *repeated(const char *head, const char *unit, size_t n, const char *tail) {
    const size_t size = strlen(unit);
    char *text = malloc(strlen(head) + n * size + strlen(tail) + 1);
    assert_non_null(text);
    char *at = stpcpy(text, head);
    for (size_t i = 0; i < n; i++) at = stpcpy(at, unit);
    stpcpy(at, tail);
    return text;
}

TEST(depth_and_width_are_bounded) {
    struct json_span bulk;
    static const struct {
        const char *head, *unit, *tail;
        size_t n;
        int rc;
    } cases[] = {
        {"{\"a\":[1", ",{}", "]}", 2000000, ERR_INVALID},
        {"{\"a\":[1", ",{}", "]}", JSON_MAX_CONTAINERS, ERR_INVALID},
        {"{\"a\":[1", ",{}", "]}", JSON_MAX_CONTAINERS - 2, 0},
        {"{\"a\":[1", ",1", "]}", JSON_MAX_VALUES, ERR_INVALID},
        {"{\"a\":[1", ",1", "]}", JSON_MAX_VALUES - 3, 0},
        {"", "[", "", 1000000, ERR_INVALID},
        {"", "{\"a\":", "", 1000000, ERR_INVALID},
        {"{\"a\":1", ",\"a\":1", "}", 500000, ERR_INVALID},
        {"{\"prompt\":[1", ",1", "]}", 4000000, 0}, /* the member that may be large */
        {"{\"prompt\":[1", ",1", "],\"x\":[[[]]]}", 4000000, 0},
        {"{\"prompt\":[1],\"prompt\":[1", ",1", "]}", 4000000, ERR_INVALID}, /* but only once */
        {"{\"x\":\"", "[{", "\"}", 1000000, 0}, /* text is not structure */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char *text = repeated(cases[i].head, cases[i].unit, cases[i].n, cases[i].tail);
        assert_int_equal(scan(text, &bulk), cases[i].rc);
        free(text);
    }
}

TEST(nesting_stops_at_the_stated_depth) {
    struct json_span bulk;
    for (int depth = JSON_MAX_DEPTH; depth <= JSON_MAX_DEPTH + 1; depth++) {
        char text[2 * JSON_MAX_DEPTH + 4] = {0};
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        assert_int_equal(scan(text, &bulk), depth == JSON_MAX_DEPTH ? 0 : ERR_INVALID);
    }
}
