/* test_patterns.c - pattern files: published ones, those that `quire tune` writes, and what is
 * wrong in a file is named. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/base/json_guard.h"
#include "engine/device/sparse.h"
#include "engine/sparsity/patterns.h"
#include "engine/sparsity/provenance.h"
#include "tests/test.h"

enum { MOST_TEXT = 4 << 20 };

static int parse(struct patterns *out, const char *text, uint32_t n_layers, uint32_t n_heads,
                 struct error *err) {
    return patterns_parse(out, text, strlen(text), "FILE", n_layers, n_heads, err);
}

static struct patterns expect_parsed(const char *text, uint32_t n_layers, uint32_t n_heads) {
    struct patterns patterns = {0};
    struct error err = {0};
    if (parse(&patterns, text, n_layers, n_heads, &err)) fail_msg("%s", err.text);
    return patterns;
}

static void assert_pattern(const struct attn_pattern *pattern, enum attn_pattern_kind kind,
                           uint32_t p1, uint32_t p2) {
    assert_int_equal(pattern->kind, kind);
    assert_int_equal(pattern->p1, p1);
    assert_int_equal(pattern->p2, p2);
}

/* The shapes of the files that exist, and every entry that is in one of them. */
TEST(published_files_are_read) {
    static const struct {
        uint32_t n_layers, n_heads;
    } shapes[] = {{32, 32}, {80, 64}, {48, 32}, {40, 32}, {28, 28}, {64, 40}, {48, 40}};
    static const struct {
        const char *text;
        struct attn_pattern pattern;
    } entries[] = {
        {"[\"vertical_and_slash\", 1000, 6096, 0.607]", {PATTERN_VERTICAL_SLASH, 1000, 6096}},
        {"[\"vertical_and_slash\", 30, 800, 20000000]", {PATTERN_VERTICAL_SLASH, 30, 800}},
        {"[\"vertical_and_slash\", 3500, 100, 1.0]", {PATTERN_VERTICAL_SLASH, 3500, 100}},
        {"[\"vertical_and_slash\", 512, 2048, 0]", {PATTERN_VERTICAL_SLASH, 512, 2048}},
        {"[\"vertical_and_slash\", 22032, 18532, 1]", {PATTERN_VERTICAL_SLASH, 22032, 18532}},
        {"[\"stream_llm\", 100, 800, 0.99]", {PATTERN_A_SHAPE, 100, 800}},
        {"[\"block_sparse\", 1000, 6096, 0.5]", {PATTERN_BLOCK_SPARSE, 100, 0}},
    };
    enum { N_ENTRIES = sizeof(entries) / sizeof(*entries) };
    char *text = malloc(MOST_TEXT);
    assert_non_null(text);
    for (size_t s = 0; s < sizeof(shapes) / sizeof(*shapes); s++) {
        const uint32_t n_layers = shapes[s].n_layers, n_heads = shapes[s].n_heads;
        size_t n = 0, entry = 0;
        for (uint32_t i = 0; i < n_layers; i++)
            for (uint32_t h = 0; h < n_heads; h++)
                n += (size_t)snprintf(text + n, MOST_TEXT - n, "%s\"%u\": %s%s",
                                      h   ? ", "
                                      : i ? ", {"
                                          : "[{",
                                      h, entries[entry++ % N_ENTRIES].text,
                                      h + 1 < n_heads ? "" : "}");
        snprintf(text + n, MOST_TEXT - n, "]");
        struct patterns patterns = expect_parsed(text, n_layers, n_heads);
        for (size_t i = 0; i < entry; i++) {
            const struct attn_pattern *expected = &entries[i % N_ENTRIES].pattern;
            assert_pattern(&patterns.heads[i], expected->kind, expected->p1, expected->p2);
        }
        assert_int_equal(patterns_min_sparse_tokens(&patterns, "cpu"), 0);
        patterns_fini(&patterns);
    }
    free(text);
}

TEST(an_unnamed_head_has_the_documented_default) {
    struct error err = {0};
    struct patterns patterns = expect_parsed("[{\"1\": [\"dense\", 7, 8, 1]}, {}]", 2, 2), all;
    assert_pattern(&patterns.heads[0], PATTERN_VERTICAL_SLASH, 1000, 6096);
    assert_pattern(&patterns.heads[1], PATTERN_DENSE, 0, 0);
    assert_pattern(&patterns.heads[3], PATTERN_VERTICAL_SLASH, 1000, 6096);
    patterns_fini(&patterns);
    patterns = expect_parsed("[{}, {}]", 2, 2);
    assert_int_equal(patterns_default(&all, 2, 2, &err), 0);
    assert_memory_equal(all.heads, patterns.heads, 4 * sizeof(*all.heads));
    patterns_fini(&patterns);
    patterns_fini(&all);
}

TEST(the_second_form_has_pages_of_its_own) {
    struct patterns patterns =
        expect_parsed("{\"format\": \"quire-patterns-1\", \"provenance\": {\"model\": \"a\"},"
                      " \"min_sparse_tokens\": {\"cpu\": 2304, \"cuda\": 4294967295},"
                      " \"layers\": [{\"0\": [\"block_sparse\", 37, 5, 0.5]}]}",
                      1, 1);
    assert_pattern(&patterns.heads[0], PATTERN_BLOCK_SPARSE, 37, 0);
    assert_true(patterns.scores[0] == 0.5);
    assert_int_equal(patterns_min_sparse_tokens(&patterns, "cpu"), 2304);
    assert_int_equal(patterns_min_sparse_tokens(&patterns, "cuda"), UINT32_MAX);
    assert_int_equal(patterns_min_sparse_tokens(&patterns, "cp"), 0);
    patterns_fini(&patterns);
}

#define BREAK_EVENS(text)                                                                          \
    "{\"format\": \"quire-patterns-1\", \"min_sparse_tokens\": " text ", \"layers\": [{}, {}]}"

TEST(what_is_wrong_is_named) {
    static const struct {
        const char *text, *needle;
    } cases[] = {
        {"", "FILE: line"},
        {"7", "FILE: line"},
        {"[{}]", "FILE: patterns of 1 layers, the model has 2"},
        {"[{}, {}, {}]", "FILE: patterns of 3 layers, the model has 2"},
        {"[{}, []]", "FILE: layer 1 is not an object"},
        {"[{}, {\"2\": [\"dense\", 0, 0, 0]}]", "layer 1, head 2: the model has heads 0 to 1"},
        {"[{}, {\"01\": [\"dense\", 0, 0, 0]}]", "layer 1, head 01: "},
        {"[{}, {\"-1\": [\"dense\", 0, 0, 0]}]", "layer 1, head -1: "},
        {"[{}, {\"\": [\"dense\", 0, 0, 0]}]", "layer 1, head : "},
        {"[{}, {\"4294967297\": [\"dense\", 0, 0, 0]}]", "layer 1, head 4294967297: "},
        {"[{}, {\"1\": {}}]", "layer 1, head 1: it is not a list"},
        {"[{}, {\"1\": [\"dense\", 0, 0]}]", "layer 1, head 1: it is not a list"},
        {"[{}, {\"1\": [\"dense\", 0, 0, \"good\"]}]", "layer 1, head 1: it is not a list"},
        {"[{}, {\"1\": [\"vertical\", 0, 0, 0]}]", "layer 1, head 1: the pattern is not"},
        {"[{}, {\"1\": [3, 0, 0, 0]}]", "layer 1, head 1: the pattern is not"},
        {"[{}, {\"1\": [\"vertical_and_slash\", -1, 0, 0]}]", "head 1: p1 is not a whole number"},
        {"[{}, {\"1\": [\"vertical_and_slash\", 1.5, 0, 0]}]", "head 1: p1 is not a whole number"},
        {"[{}, {\"1\": [\"vertical_and_slash\", 24577, 0, 0]}]", "from 0 to 24576"},
        {"[{}, {\"1\": [\"vertical_and_slash\", 1, 16777217, 0]}]", "p2 is not a whole number"},
        {"[{}, {\"1\": [\"vertical_and_slash\", 1, \"1\", 0]}]", "p2 is not a whole number"},
        {"[{}, {\"1\": [\"stream_llm\", 1, 0, 0]}]", "p2 is not a whole number from 1 to"},
        {"[{}, {\"1\": [\"dense\", 0, 0, 0], \"1\": [\"dense\", 0, 0, 0]}]", "duplicate"},
        {"{}", "FILE: 'format' is not quire-patterns-1"},
        {"{\"format\": \"quire-patterns-2\"}", "FILE: 'format' is not quire-patterns-1"},
        {"{\"format\": \"quire-patterns-1\"}", "FILE: 'layers' is not a list"},
        {BREAK_EVENS("16384"), "FILE: 'min_sparse_tokens' is not an object with backends"},
        {BREAK_EVENS("{\"cpu\": 1, \"cuda\": -1}"), "of cuda: it is not a number of tokens"},
        {BREAK_EVENS("{\"cpu\": 0}"), "of cpu: it is not a number of tokens"},
        {BREAK_EVENS("{\"cpu\": 4294967296}"), "of cpu: it is not a number of tokens"},
        {BREAK_EVENS("{\"cpu\": \"1\"}"), "of cpu: it is not a number of tokens"},
        {BREAK_EVENS("{\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,\"i\":1}"),
         "of i: there are too many backends"},
        {BREAK_EVENS("{\"abcdefghijklmnopqrstuvwxyz012345\": 1}"), "or the name is too long"},
        {"{\"format\": \"quire-patterns-1\", \"layers\": [{\"0\": [\"block_sparse\", 0, 0, 0]}, "
         "{}]}",
         "layer 0, head 0: p1 is not a whole number from 1 to 1024"},
        {"{\"format\": \"quire-patterns-1\", \"layers\": [{\"0\": [\"block_sparse\", 1025, 0, 0]}, "
         "{}]}",
         "layer 0, head 0: p1 is not a whole number from 1 to 1024"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct patterns patterns = {.n_heads = 5};
        struct error err = {0};
        assert_int_equal(parse(&patterns, cases[i].text, 2, 2, &err), ERR_INVALID);
        if (!strstr(err.text, cases[i].needle))
            fail_msg("%s: '%s' does not say '%s'", cases[i].text, err.text, cases[i].needle);
        assert_int_equal(patterns.n_heads, 5); /* untouched */
    }
}

TEST(depth_is_bounded) {
    char text[2 * (JSON_GUARD_MAX_DEPTH + 1)];
    struct patterns patterns;
    struct error err = {0};
    memset(text, '[', sizeof(text) / 2);
    memset(text + sizeof(text) / 2, ']', sizeof(text) / 2);
    assert_int_equal(patterns_parse(&patterns, text, sizeof(text), "FILE", 1, 1, &err),
                     ERR_INVALID);
    assert_non_null(strstr(err.text, "nests deeper"));
}

TEST(what_is_saved_is_loaded) {
    char path[] = "/tmp/test_patterns_XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    struct patterns given = expect_parsed(
        "[{\"0\": [\"stream_llm\", 4, 8, 0.125], \"1\": [\"block_sparse\", 1, 2, 3]},"
        " {\"0\": [\"dense\", 0, 0, 1], \"1\": [\"vertical_and_slash\", 50, 60, 2e7]}]",
        2, 2);
    given.heads[1].p1 = 77;
    assert_int_equal(patterns_set_min_sparse_tokens(&given, "a \"quoted\" one", UINT32_MAX), 0);
    assert_int_equal(patterns_set_min_sparse_tokens(&given, "cpu", 7), 0);
    assert_int_equal(patterns_set_min_sparse_tokens(&given, "cpu", 12345), 0);
    const struct provenance_note notes[] = {{"model", "a \"quoted\" name"}, {"samples", "3"}};
    struct error err = {0};
    assert_int_equal(patterns_save(&given, notes, 2, path, &err), 0);
    struct patterns loaded = {0};
    if (patterns_load(&loaded, path, 2, 2, &err)) fail_msg("%s", err.text);
    assert_memory_equal(loaded.heads, given.heads, 4 * sizeof(*loaded.heads));
    assert_memory_equal(loaded.scores, given.scores, 4 * sizeof(*loaded.scores));
    assert_int_equal(loaded.n_break_evens, 2);
    assert_int_equal(patterns_min_sparse_tokens(&loaded, "cpu"), 12345);
    assert_int_equal(patterns_min_sparse_tokens(&loaded, "a \"quoted\" one"), UINT32_MAX);
    patterns_fini(&loaded);
    /* A file that cannot be written leaves the one that is there, and nothing beside it. */
    const struct provenance_note bad = {"model", "\xff"};
    assert_int_equal(patterns_save(&given, &bad, 1, path, &err), ERR_INVALID);
    assert_int_equal(patterns_load(&loaded, path, 2, 2, &err), 0);
    patterns_fini(&loaded);
    patterns_fini(&given);
    unlink(path);
}

TEST(files_that_are_none_are_told_apart) {
    struct patterns patterns;
    struct error err = {0};
    assert_int_equal(patterns_load(&patterns, "/nowhere/at/all.json", 1, 1, &err), ERR_NOT_FOUND);
    assert_int_equal(patterns_load(&patterns, "/tmp", 1, 1, &err), ERR_INVALID);
    struct patterns given = expect_parsed("[{}]", 1, 1);
    assert_int_equal(patterns_save(&given, NULL, 0, "/nowhere/at/all.json", &err), ERR_IO);
    patterns_fini(&given);
}
