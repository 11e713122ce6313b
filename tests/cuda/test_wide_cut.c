/* test_wide_cut.c - cuts of products of 9 to 256 rows: tiles for every output, blocks that wait for
 * each other run at the same time, and for Llama-3-8B what was fastest on an H100. */
#include <stdlib.h>

#include "cuda/linear/wide_cut.h"
#include "tests/test.h"

enum { H100_CLUSTERS = 66 };

static bool is_width(const struct wide_shape *s, uint32_t width) {
    static const uint32_t pairs[] = {112, 96, 64, 48, 0}, halves[] = {224, 192, 128, 96, 64, 0};
    const uint32_t *widths = wide_halves(s) ? halves : pairs;
    while (*widths && *widths != width) widths++;
    return *widths != 0;
}

static void check_cut(const struct wide_shape *s, uint32_t n_clusters) {
    const struct wide_cut cut = wide_choose_cut(s, n_clusters);
    const uint32_t n_stages = (s->n_in + WIDE_STAGE_COLUMNS - 1) / WIDE_STAGE_COLUMNS,
                   width = s->gated ? cut.width / 2 : cut.width;
    uint32_t n_tiles = 0;
    assert_true(is_width(s, cut.width));
    assert_in_range(cut.n_splits, 1, WIDE_MAX_SPLITS);
    for (uint32_t i = 0; i < (s->gated ? 1 : s->n_parts); i++) {
        uint32_t n = 0;
        while (n * width < s->n_out[i]) n++;
        n_tiles += n;
    }
    assert_int_equal(wide_count_tiles(s, cut.width), n_tiles);
    assert_int_equal(wide_count_items(s, cut),
                     (wide_halves(s) ? n_tiles : (n_tiles + 1) / 2) * cut.n_splits);
    if (cut.n_splits == 1) return;
    assert_true(wide_count_items(s, cut) <= n_clusters);
    assert_true(cut.n_splits <= n_stages);
}

TEST(every_product_has_a_cut) {
    srand(11);
    for (int round = 0; round < 20000; round++) {
        struct wide_shape s = {.n_rows = 9 + (uint32_t)rand() % 248,
                               .n_in = 8 * (1 + (uint32_t)rand() % (1u << rand() % 12)),
                               .n_parts = 1 + (uint32_t)rand() % 3,
                               .gated = rand() % 3 == 0};
        for (uint32_t i = 0; i < s.n_parts; i++)
            s.n_out[i] = 8 * (1 + (uint32_t)rand() % (1u << rand() % 15));
        if (s.gated) s.n_parts = 2, s.n_out[1] = s.n_out[0];
        check_cut(&s, 1 + (uint32_t)rand() % 80);
    }
}

static void assert_cut(const struct wide_shape *s, uint32_t width, uint32_t n_splits) {
    const struct wide_cut cut = wide_choose_cut(s, H100_CLUSTERS);
    assert_int_equal(cut.width, width);
    assert_int_equal(cut.n_splits, n_splits);
}

TEST(the_fastest_cuts_are_chosen) {
    static const struct {
        uint32_t n_rows;
        struct wide_cut qkv, output, gated, down;
    } rows[] = {{32, {48, 1}, {48, 1}, {112, 1}, {64, 2}},
                {64, {48, 1}, {64, 2}, {112, 1}, {64, 2}},
                {128, {48, 1}, {64, 2}, {112, 1}, {64, 2}},
                {192, {96, 2}, {64, 2}, {112, 1}, {96, 3}},
                {256, {96, 1}, {128, 2}, {224, 1}, {128, 2}}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const uint32_t n = rows[i].n_rows;
        const struct wide_shape qkv = {n, 4096, 1, {6144}, false},
                                output = {n, 4096, 1, {4096}, false},
                                gated = {n, 4096, 2, {14336, 14336}, true},
                                down = {n, 14336, 1, {4096}, false};
        assert_cut(&qkv, rows[i].qkv.width, rows[i].qkv.n_splits);
        assert_cut(&output, rows[i].output.width, rows[i].output.n_splits);
        assert_cut(&gated, rows[i].gated.width, rows[i].gated.n_splits);
        assert_cut(&down, rows[i].down.width, rows[i].down.n_splits);
    }
}
