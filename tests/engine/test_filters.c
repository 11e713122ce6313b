/* test_filters.c - files of filters, the groups of layers that come of them, and those that are
 * shipped. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/device/layer_group.h"
#include "engine/sparsity/filters.h"
#include "engine/sparsity/provenance.h"
#include "tests/test.h"

static const char *shipped_dir;

static int parse(struct filters *out, const char *text, struct error *err) {
    return filters_parse(out, text, strlen(text), "FILE", err);
}

#define FILTERS(layers, wait)                                                                      \
    "{\"format\": \"quire-filters-1\", \"filters\": " layers ", \"wait\": " wait "}"

static void assert_groups_among(const struct filters *filters, const uint32_t *windows,
                                uint32_t n_layers, const struct layer_group *expected, int n) {
    struct layer_group groups[MAX_LAYER_GROUPS];
    struct error err = {0};
    assert_int_equal(filters_groups(filters, windows, n_layers, groups, &err), n);
    for (int i = 0; i < n; i++) {
        assert_int_equal(groups[i].filter, expected[i].filter);
        assert_int_equal(groups[i].first, expected[i].first);
        assert_int_equal(groups[i].end, expected[i].end);
    }
}

static void assert_groups(const struct filters *filters, uint32_t n_layers,
                          const struct layer_group *expected, int n) {
    assert_groups_among(filters, NULL, n_layers, expected, n);
}

TEST(layers_follow_the_filter_before_them) {
    struct filters filters;
    struct error err = {0};
    assert_int_equal(parse(&filters, FILTERS("[2, 8, 18]", "1"), &err), 0);
    const struct layer_group three[] = {{2, 4, 8}, {8, 10, 18}, {18, 20, 32}};
    assert_groups(&filters, 32, three, 3);
    assert_int_equal(parse(&filters, FILTERS("[0]", "0"), &err), 0);
    const struct layer_group one[] = {{0, 1, 2}};
    assert_groups(&filters, 2, one, 1);
}

TEST(a_filter_that_no_layer_follows_has_no_group) {
    struct filters filters;
    struct error err = {0};
    assert_int_equal(parse(&filters, FILTERS("[1, 3, 9]", "1"), &err), 0);
    const struct layer_group one[] = {{3, 5, 9}};
    assert_groups(&filters, 11, one, 1); /* 2 waits, and so does 10 */
    const struct layer_group two[] = {{3, 5, 9}, {9, 11, 12}};
    assert_groups(&filters, 12, two, 2);
}

/* A window in every second layer, the first one too; or in all but every sixth. */
TEST(layers_with_a_window_follow_no_filter) {
    uint32_t second[24], sixth[24], all[24];
    struct filters filters;
    struct error err = {0};
    for (uint32_t l = 0; l < 24; l++) {
        second[l] = l % 2 ? 0 : 4096;
        sixth[l] = l % 6 == 5 ? 0 : 1024;
        all[l] = 1024;
    }
    assert_int_equal(parse(&filters, FILTERS("[1, 9]", "1"), &err), 0);
    const struct layer_group two[] = {{1, 3, 8}, {9, 11, 24}}; /* 2 and 10 wait */
    assert_groups_among(&filters, second, 24, two, 2);
    assert_groups_among(&filters, second, 23, (struct layer_group[]){{1, 3, 8}, {9, 11, 22}}, 2);
    assert_int_equal(group_n_layers(&two[0], second), 3);
    assert_int_equal(group_n_before(&two[0], second, 7), 2);
    assert_true(group_has(&two[0], second, 7));
    assert_false(group_has(&two[0], second, 6) || group_has(&two[0], second, 9));
    assert_int_equal(parse(&filters, FILTERS("[1, 9]", "2"), &err), 0);
    assert_groups_among(&filters, second, 24, (struct layer_group[]){{1, 5, 8}, {9, 13, 24}}, 2);

    assert_int_equal(parse(&filters, FILTERS("[5]", "1"), &err), 0);
    assert_groups_among(&filters, sixth, 24, (struct layer_group[]){{5, 11, 24}}, 1);
    assert_groups_among(&filters, sixth, 23, (struct layer_group[]){{5, 11, 18}}, 1);
    assert_int_equal(parse(&filters, FILTERS("[5, 11]", "6"), &err), 0);
    assert_groups_among(&filters, sixth, 24, (struct layer_group[]){{11, 23, 24}}, 1);
    assert_groups_among(&filters, sixth, 23, NULL, 0);
    for (int i = 0; i < 2; i++) {
        struct layer_group groups[MAX_LAYER_GROUPS];
        assert_int_equal(parse(&filters, FILTERS("[5, 12]", "0"), &err), 0);
        assert_int_equal(filters_groups(&filters, i ? all : sixth, 24, groups, &err), ERR_INVALID);
        assert_non_null(strstr(err.text, i ? "layer 5 " : "layer 12 "));
        assert_non_null(strstr(err.text, "1024 tokens at most"));
    }
}

TEST(filters_must_be_layers_of_the_model) {
    struct layer_group groups[MAX_LAYER_GROUPS];
    struct filters filters;
    struct error err = {0};
    assert_int_equal(parse(&filters, FILTERS("[2, 8]", "1"), &err), 0);
    assert_true(filters_groups(&filters, NULL, 9, groups, &err) > 0);
    assert_int_equal(filters_groups(&filters, NULL, 8, groups, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "layer 8 "));
}

TEST(what_is_wrong_is_named) {
    static const struct {
        const char *text, *needle;
    } cases[] = {
        {"", "FILE: line"},
        {"[]", "FILE: "},
        {"{}", "FILE: 'format' is not quire-filters-1"},
        {"{\"format\": \"quire-patterns-1\"}", "FILE: 'format' is not quire-filters-1"},
        {"{\"format\": \"quire-filters-1\", \"wait\": 1}", "FILE: 'filters' is not a list of 1 to"},
        {"{\"format\": \"quire-filters-1\", \"filters\": [1]}", "FILE: 'wait' is not a number"},
        {FILTERS("[]", "1"), "'filters' is not a list of 1 to"},
        {FILTERS("3", "1"), "'filters' is not a list of 1 to"},
        {FILTERS("[1,2,3,4,5,6,7,8,9]", "1"), "'filters' is not a list of 1 to 8 layers"},
        {FILTERS("[2, 2]", "1"), "in ascending order"},
        {FILTERS("[8, 2]", "1"), "in ascending order"},
        {FILTERS("[-1]", "1"), "not numbers of layers"},
        {FILTERS("[1.0]", "1"), "not numbers of layers"},
        {FILTERS("[\"1\"]", "1"), "not numbers of layers"},
        {FILTERS("[4294967297]", "1"), "not numbers of layers"},
        {FILTERS("[1]", "-1"), "'wait' is not a number"},
        {FILTERS("[1]", "4294967295"), "'wait' is not a number"},
        {FILTERS("[1]", "true"), "'wait' is not a number"},
        {"{\"filters\": [1], \"filters\": [2]}", "duplicate"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct filters filters = {.n = 77};
        struct error err = {0};
        assert_int_not_equal(parse(&filters, cases[i].text, &err), 0);
        if (!strstr(err.text, cases[i].needle)) fail_msg("%s: %s", cases[i].text, err.text);
        assert_int_equal(filters.n, 77);
    }
}

/* The published sets leave as many layers dense as their authors say. */
TEST(shipped_files_are_read) {
    static const struct {
        const char *name;
        uint32_t n_layers, n_groups, n_sparse;
    } files[] = {{"llama-3-8b", 32, 3, 24},
                 {"yi-9b", 48, 3, 36},
                 {"llama-3.1-70b", 80, 3, 70},
                 {"quire-31m", 12, 0, 0}}; /* tuned: whatever it is */
    for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
        char path[512];
        struct layer_group groups[MAX_LAYER_GROUPS];
        struct filters filters;
        struct error err = {0};
        uint32_t n_sparse = 0;
        snprintf(path, sizeof(path), "%s/%s.json", shipped_dir, files[i].name);
        if (filters_read(&filters, path, &err)) fail_msg("%s", err.text);
        const int n = filters_groups(&filters, NULL, files[i].n_layers, groups, &err);
        assert_true(n > 0);
        for (int g = 0; g < n; g++) n_sparse += groups[g].end - groups[g].first;
        if (files[i].n_groups == 0) continue;
        assert_int_equal(n, files[i].n_groups);
        assert_int_equal(n_sparse, files[i].n_sparse);
    }
}

TEST(what_is_saved_is_read_again) {
    const struct filters given = {.layers = {2, 8, 18}, .n = 3, .n_wait = 1};
    const struct provenance_note note = {"model", "a \"quoted\" name"}, bad = {"model", "\xff"};
    struct filters found = {0};
    struct error err = {0};
    char path[] = "/tmp/test_filters.XXXXXX";
    const int file = mkstemp(path);
    assert_true(file >= 0 && close(file) == 0);
    if (filters_save(&given, &note, 1, path, &err)) fail_msg("%s", err.text);
    if (filters_read(&found, path, &err)) fail_msg("%s", err.text);
    assert_memory_equal(&found, &given, sizeof(given));
    /* What cannot be written leaves the old one. */
    assert_int_equal(filters_save(&(struct filters){.n = 1}, &bad, 1, path, &err), ERR_INVALID);
    if (filters_read(&found, path, &err)) fail_msg("%s", err.text);
    assert_memory_equal(&found, &given, sizeof(given));
    assert_int_equal(filters_save(&given, NULL, 0, "/nowhere/at/all.json", &err), ERR_IO);
    unlink(path);
}

TEST(a_missing_file_is_not_found) {
    struct filters filters;
    struct error err = {0};
    assert_int_equal(filters_read(&filters, "/nonexistent/filters.json", &err), ERR_NOT_FOUND);
}

int main(int argc, char **argv) {
    if (argc != 2) return 1;
    shipped_dir = argv[1];
    return tests_run("tests", NULL, NULL);
}
