/* test_fp8_cut.c - cuts of products of E4M3 with E4M3: every output is computed once.  The blocks
 * of a cluster share what linear_fp8.cu lets them copy for each other. */
#include <stdlib.h>
#include <string.h>

#include "cuda/linear/fp8_cut.h"
#include "tests/test.h"

enum { MAX_ROW_TILES = 80, MAX_TILES = 1000, H100_CLUSTERS = 66 };

/* How often the outputs of each tile are computed. */
static uint8_t computed[MAX_ROW_TILES][MAX_TILES];

static struct product product_of(uint32_t n_rows, uint32_t n_in, const uint32_t *n_out,
                                 uint32_t n_parts, bool gated, bool blocks) {
    struct product p = {.n_rows = n_rows,
                        .n_in = n_in,
                        .n_parts = n_parts,
                        .gated = gated,
                        .x_scale_stride = blocks ? n_rows + 3 : 0};
    for (uint32_t i = 0; i < n_parts; i++) p.parts[i].n_out = n_out[i];
    return p;
}

static uint32_t count_tiles(const struct product *p, uint32_t width) {
    const uint32_t outputs = p->gated ? width / 2 : width;
    uint32_t n = 0;
    for (uint32_t i = 0; i < (p->gated ? 1 : p->n_parts); i++)
        n += (p->parts[i].n_out + outputs - 1) / outputs;
    return n;
}

static void check_cut(const struct product *p, uint32_t max_clusters) {
    const struct fp8_cut cut = fp8_choose_cut(p, max_clusters);
    const uint32_t n_pairs = cut.n_row_units * cut.n_tile_units,
                   n_row_tiles = (p->n_rows + FP8_TILE_ROWS - 1) / FP8_TILE_ROWS;
    assert_int_equal(cut.n_tiles, count_tiles(p, cut.width));
    if (p->gated) assert_int_equal(cut.width / 2 % FP8_STORE_COLUMNS, 0);
    assert_in_range(cut.n_clusters, 1, max_clusters);
    assert_true(n_row_tiles < MAX_ROW_TILES && cut.n_tiles < MAX_TILES);
    memset(computed, 0, sizeof(computed));
    for (uint32_t i = 0; i < n_pairs; i++) {
        const struct fp8_item a = fp8_find_item(&cut, i, 0), b = fp8_find_item(&cut, i, 1);
        assert_int_equal(a.row % FP8_TILE_ROWS, 0);
        assert_int_equal(b.row, a.row + (cut.pair == FP8_PAIR_ROWS ? FP8_TILE_ROWS : 0));
        assert_int_equal(b.tile, a.tile + (cut.pair == FP8_PAIR_OUTPUTS ? 1 : 0));
        computed[a.row / FP8_TILE_ROWS][a.tile]++;
        if (cut.pair != FP8_PAIR_COLUMNS) computed[b.row / FP8_TILE_ROWS][b.tile]++;
    }
    for (uint32_t row = 0; row < n_row_tiles; row++)
        for (uint32_t tile = 0; tile < cut.n_tiles; tile++)
            assert_int_equal(computed[row][tile], 1);
}

TEST(every_output_is_computed_once) {
    srand(5);
    for (int round = 0; round < 500; round++) {
        uint32_t n_out[LINEAR_MAX_PARTS];
        const bool gated = rand() % 3 == 0, blocks = rand() % 2;
        const uint32_t n_parts = gated ? 2 : 1 + (uint32_t)rand() % LINEAR_MAX_PARTS;
        for (uint32_t i = 0; i < n_parts; i++) n_out[i] = 128 * (1 + (uint32_t)rand() % 100);
        if (gated) n_out[1] = n_out[0];
        const struct product p =
            product_of(1 + (uint32_t)rand() % 9000, 128 * (1 + (uint32_t)rand() % 112), n_out,
                       n_parts, gated, blocks);
        check_cut(&p, 1 + (uint32_t)rand() % 80);
    }
}

/* Only a tile of all outputs that share a scale can find it. */
TEST(results_in_e4m3_have_tiles_of_whole_groups) {
    static uint8_t codes[1];
    for (uint32_t n_rows = 1; n_rows < 2000; n_rows += 37) {
        struct product p = product_of(n_rows, 4096, (uint32_t[]){1408, 1408}, 2, true, true);
        p.rounded.codes = codes;
        assert_int_equal(fp8_choose_cut(&p, H100_CLUSTERS).width, 2 * FP8_BLOCK);
    }
}

/* A wave of narrow tiles takes less than a wave of wide ones that leaves clusters idle. */
TEST(narrow_tiles_fill_the_device) {
    struct product p = product_of(1024, 4096, (uint32_t[]){6144}, 1, false, false);
    assert_int_equal(fp8_choose_cut(&p, H100_CLUSTERS).width, 192);
    p.n_rows = 8192;
    assert_int_equal(fp8_choose_cut(&p, H100_CLUSTERS).width, 256);
    p = product_of(384, 4096, (uint32_t[]){14336, 14336}, 2, true, false);
    /* Three row tiles would be two pairs. */
    assert_int_equal(fp8_choose_cut(&p, H100_CLUSTERS).pair, FP8_PAIR_OUTPUTS);
}

/* Halves of columns are exchanged where the ring has been, so a cluster has one tile of them. */
TEST(long_sums_of_few_tiles_are_cut_in_halves) {
    struct product p = product_of(192, 14336, (uint32_t[]){4096}, 1, false, true);
    assert_int_equal(fp8_choose_cut(&p, H100_CLUSTERS).pair, FP8_PAIR_COLUMNS);
    p.x_scale_stride = 0; /* others have no kernel for halves */
    assert_int_not_equal(fp8_choose_cut(&p, H100_CLUSTERS).pair, FP8_PAIR_COLUMNS);
    p = product_of(192, 128, (uint32_t[]){4096}, 1, false, true);
    assert_int_not_equal(fp8_choose_cut(&p, H100_CLUSTERS).pair, FP8_PAIR_COLUMNS);
    for (uint32_t n_rows = 1; n_rows < 2000; n_rows += 37) {
        p = product_of(n_rows, 14336, (uint32_t[]){4096}, 1, false, true);
        const struct fp8_cut cut = fp8_choose_cut(&p, H100_CLUSTERS);
        if (cut.pair == FP8_PAIR_COLUMNS)
            assert_int_equal(cut.n_clusters, cut.n_row_units * cut.n_tile_units);
    }
}
