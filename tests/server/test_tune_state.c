/* test_tune_state.c - a search goes on where it stopped, however it stopped. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/device/sparse.h"
#include "engine/tune/tune_state.h"
#include "tests/test.h"

enum { N_SAMPLES = 2, N_LAYERS = 3, N_HEADS = 2, N_CANDIDATES = 2 };
#define SETTINGS "model \"m\", seed 1"

static char path[64];

static int fresh_path(void **state) {
    snprintf(path, sizeof(path), "/tmp/test_tune_state.XXXXXX");
    const int file = mkstemp(path);
    if (file < 0) return -1;
    close(file);
    return unlink(path);
}

static int remove_path(void **state) {
    unlink(path);
    return 0;
}

static struct tune_results make(bool fitted) {
    static const struct attn_pattern candidates[N_CANDIDATES] = {
        {PATTERN_VERTICAL_SLASH, 500, 1500}, {PATTERN_BLOCK_SPARSE, 100, 0}};
    struct tune_results r;
    struct error err = {0};
    assert_int_equal(
        tune_results_init(&r, N_SAMPLES, N_LAYERS, N_HEADS, N_CANDIDATES, candidates, fitted, &err),
        0);
    return r;
}

static struct tune_results make_results(void) {
    return make(true);
}

static struct tune_state *open_state(struct tune_results *results) {
    struct tune_state *state = NULL;
    struct error err = {0};
    if (tune_state_open(&state, path, SETTINGS, results, &err)) fail_msg("%s", err.text);
    return state;
}

static void add_layer(struct tune_state *state, struct tune_results *r, uint32_t sample,
                      uint32_t layer) {
    struct error err = {0};
    struct tune_layer *at = tune_results_at(r, sample, layer);
    at->done = true;
    at->dense_s = 1 + sample;
    for (uint32_t c = 0; c < N_CANDIDATES; c++) {
        at->index_s[c] = 0.001 * (c + 1);
        at->attention_s[c] = 0.1 * (c + 1);
        for (uint32_t h = 0; h < N_HEADS; h++) {
            at->recall[c * N_HEADS + h] = 0.9f + 0.01f * (float)(c * N_HEADS + h);
            at->density[c * N_HEADS + h] = 0.1f * (float)(layer + 1);
        }
    }
    assert_int_equal(tune_state_add_layer(state, r, sample, layer, &err), 0);
}

static uint32_t count_done(const struct tune_results *r) {
    uint32_t n = 0;
    for (uint32_t s = 0; s < N_SAMPLES; s++)
        for (uint32_t l = 0; l < N_LAYERS; l++) n += tune_results_at(r, s, l)->done;
    return n;
}

TEST_WITH(results_come_back, fresh_path, remove_path) {
    struct tune_results before = make_results(), after = make_results();
    struct tune_state *file = open_state(&before);
    const struct tune_rung rung = {4096, 2.5, 1.25};
    struct tune_rung found;
    struct error err = {0};
    assert_int_equal(count_done(&before), 0);
    add_layer(file, &before, 0, 0);
    add_layer(file, &before, 1, 2);
    assert_int_equal(tune_state_add_rung(file, UINT64_MAX - 1, &rung, &err), 0);
    assert_true(tune_state_find_rung(file, UINT64_MAX - 1, 4096, &found));
    tune_state_close(file);

    file = open_state(&after);
    assert_int_equal(count_done(&after), 2);
    const struct tune_layer *a = tune_results_at(&before, 1, 2), *b = tune_results_at(&after, 1, 2);
    assert_true(b->done && b->dense_s == 2 && !tune_results_at(&after, 1, 1)->done);
    for (uint32_t i = 0; i < N_CANDIDATES * N_HEADS; i++)
        assert_true(a->recall[i] == b->recall[i] && a->density[i] == b->density[i]);
    for (uint32_t c = 0; c < N_CANDIDATES; c++)
        assert_true(a->index_s[c] == b->index_s[c] && a->attention_s[c] == b->attention_s[c]);
    assert_true(tune_state_find_rung(file, UINT64_MAX - 1, 4096, &found));
    assert_true(found.dense_s == 2.5 && found.sparse_s == 1.25);
    assert_false(tune_state_find_rung(file, UINT64_MAX - 1, 8192, &found));
    assert_false(tune_state_find_rung(file, 1, 4096, &found)); /* of other patterns */
    tune_state_close(file);
    tune_results_fini(&before);
    tune_results_fini(&after);
}

TEST_WITH(comparisons_come_back, fresh_path, remove_path) {
    struct tune_results before = make_results(), after = make_results();
    struct tune_state *file = open_state(&before);
    struct error err = {0};
    double *given = tune_results_similarity(&before, 1);
    for (uint32_t i = 0; i < N_LAYERS * N_LAYERS; i++) given[i] = 0.125 * i;
    assert_int_equal(tune_state_add_similarity(file, &before, 1, &err), 0);
    add_layer(file, &before, 0, 0);
    tune_state_close(file);

    tune_state_close(open_state(&after));
    assert_true(after.compared[1] && !after.compared[0]);
    assert_int_equal(count_done(&after), 1);
    assert_memory_equal(tune_results_similarity(&after, 1), given,
                        N_LAYERS * N_LAYERS * sizeof(*given));
    tune_results_fini(&before);
    tune_results_fini(&after);
}

/* Before the layers that were measured with them: of a layer that is not fitted nothing counts. */
TEST_WITH(fits_come_back, fresh_path, remove_path) {
    struct tune_results before = make(false), after = make(false);
    struct tune_state *file = open_state(&before);
    struct error err = {0};
    const struct attn_pattern lines = {PATTERN_VERTICAL_SLASH, 150, 450},
                              pages = {PATTERN_BLOCK_SPARSE, 7, 0}, none = {PATTERN_DENSE, 0, 0};
    tune_results_patterns(&before, 1, 0)[0] = lines;
    tune_results_patterns(&before, 1, 0)[1] = none;
    tune_results_patterns(&before, 1, 1)[0] = none;
    tune_results_patterns(&before, 1, 1)[1] = pages;
    assert_int_equal(tune_state_add_fitted(file, &before, 1, &err), 0);
    add_layer(file, &before, 0, 1);
    add_layer(file, &before, 0, 2); /* not fitted */
    tune_state_close(file);

    tune_state_close(open_state(&after));
    assert_true(after.fitted[1] && !after.fitted[0] && !after.fitted[2]);
    const struct attn_pattern *found = tune_results_patterns(&after, 1, 0);
    const struct attn_pattern expected[] = {lines, none, none, pages};
    assert_memory_equal(found, expected, sizeof(expected));
    assert_true(tune_results_at(&after, 0, 1)->done && !tune_results_at(&after, 0, 2)->done);
    assert_int_equal(count_done(&after), 1);
    tune_results_fini(&before);
    tune_results_fini(&after);
}

static size_t file_size(void) {
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    return (size_t)status.st_size;
}

/* Cut anywhere, the file gives its whole lines, and what is added then comes back, too. */
TEST_WITH(half_a_line_is_dropped, fresh_path, remove_path) {
    struct tune_results whole = make_results();
    struct tune_state *file = open_state(&whole);
    const size_t head = file_size();
    add_layer(file, &whole, 0, 0);
    const size_t one = file_size();
    add_layer(file, &whole, 0, 1);
    tune_state_close(file);
    for (size_t size = file_size() - 1; size > head; size = size > 40 ? size - 37 : 0) {
        struct tune_results cut = make_results(), again = make_results();
        assert_int_equal(truncate(path, (off_t)size), 0);
        file = open_state(&cut);
        assert_int_equal(count_done(&cut), size >= one ? 1 : 0);
        add_layer(file, &cut, 1, 1);
        tune_state_close(file);
        tune_state_close(open_state(&again));
        assert_true(tune_results_at(&again, 1, 1)->done);
        assert_int_equal(count_done(&again), size >= one ? 2 : 1);
        tune_results_fini(&cut);
        tune_results_fini(&again);
    }
    tune_results_fini(&whole);
}

TEST_WITH(a_file_cut_in_its_first_line_begins_anew, fresh_path, remove_path) {
    struct tune_results results = make_results();
    tune_state_close(open_state(&results));
    const size_t size = file_size();
    assert_int_equal(truncate(path, 5), 0);
    tune_state_close(open_state(&results));
    assert_int_equal(file_size(), size);
    tune_results_fini(&results);
}

TEST_WITH(lines_that_do_not_fit_end_the_file, fresh_path, remove_path) {
    static const char *const lines[] = {
        "{\"sample\": 2, \"layer\": 0}",
        "{\"sample\": 0, \"layer\": 0, \"dense_s\": 1}",
        "{\"patterns\": \"xyz\"}",
        "[]",
        "",
        "{\"compared\": 0, \"similarity\": [[1,1,1],[1,1,1]]}",
        "{\"compared\": 2, \"similarity\": [[1,1,1],[1,1,1],[1,1,1]]}",
        "{\"fitted\": 0, \"p1\": [[9,9],[9,9]], \"p2\": [[9,9],[0,0]]}", /* it is already */
        "{\"sample\":0,\"layer\":0,\"dense_s\":1,\"index_s\":[0,0],\"attention_s\":[0,0],"
        "\"recall\":[[1,1],[1]],\"density\":[[1,1],[1,1]]}"};
    for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++) {
        struct tune_results results = make_results();
        tune_state_close(open_state(&results));
        const size_t good = file_size();
        FILE *file = fopen(path, "a");
        assert_non_null(file);
        fprintf(file, "%s\n", lines[i]);
        fclose(file);
        tune_state_close(open_state(&results));
        assert_int_equal(count_done(&results), 0);
        assert_false(results.compared[0] || results.compared[1]);
        assert_int_equal(file_size(), good);
        tune_results_fini(&results);
    }
}

TEST_WITH(fits_that_cannot_be_end_the_file, fresh_path, remove_path) {
    static const char *const lines[] = {
        "{\"fitted\": 3, \"p1\": [[9,9],[9,9]], \"p2\": [[9,9],[0,0]]}",
        "{\"fitted\": 0, \"p1\": [[9,9],[9]], \"p2\": [[9,9],[0,0]]}",
        "{\"fitted\": 0, \"p1\": [[9,9],[9,9]], \"p2\": [[9,-9],[0,0]]}",
        "{\"fitted\": 0, \"p1\": [[9,9],[9,\"9\"]], \"p2\": [[9,9],[0,0]]}",
        "{\"fitted\": 0, \"p1\": [[24577,9],[9,9]], \"p2\": [[9,9],[0,0]]}",
        "{\"fitted\": 0, \"p1\": [[9,9],[9,1025]], \"p2\": [[9,9],[0,0]]}"};
    for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++) {
        struct tune_results results = make(false);
        tune_state_close(open_state(&results));
        const size_t good = file_size();
        FILE *file = fopen(path, "a");
        assert_non_null(file);
        fprintf(file, "%s\n", lines[i]);
        fclose(file);
        tune_state_close(open_state(&results));
        assert_false(results.fitted[0]);
        assert_int_equal(file_size(), good);
        tune_results_fini(&results);
    }
}

TEST_WITH(a_file_of_other_settings_is_refused, fresh_path, remove_path) {
    struct tune_results results = make_results();
    struct tune_state *other = NULL;
    struct error err = {0};
    tune_state_close(open_state(&results));
    const size_t size = file_size();
    assert_int_equal(tune_state_open(&other, path, "model \"m\", seed 2", &results, &err),
                     ERR_INVALID);
    assert_non_null(strstr(err.text, path));
    assert_null(other);
    assert_int_equal(file_size(), size); /* nothing was cut off */
    tune_results_fini(&results);
}
