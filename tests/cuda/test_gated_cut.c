/* test_gated_cut.c - cuts of gated products of many rows: every output is computed once, the blocks
 * of a cluster share what linear_gated.cu lets them copy for each other, and products that would
 * leave the device idle are left to other kernels. */
#include <stdlib.h>
#include <string.h>

#include "cuda/linear/gated_cut.h"
#include "tests/test.h"

enum { MAX_ROW_TILES = 48, MAX_BOXES = 280, H100_CLUSTERS = 66 };

/* How often the outputs of each box are computed. */
static uint8_t computed[MAX_ROW_TILES][MAX_BOXES];

static void count(const struct gated_item *item, uint32_t box_outputs) {
    assert_int_equal(item->row % GATED_TILE_ROWS, 0);
    assert_int_equal(item->out % box_outputs, 0);
    assert_in_range(item->n_boxes, 1, 2);
    for (uint32_t box = 0; box < item->n_boxes; box++) {
        const uint32_t row = item->row / GATED_TILE_ROWS, at = item->out / box_outputs + box;
        assert_true(row < MAX_ROW_TILES && at < MAX_BOXES);
        computed[row][at]++;
    }
}

static void check_pair(const struct gated_item *a, const struct gated_item *b,
                       uint32_t tile_outputs) {
    assert_int_equal(a->n_boxes, b->n_boxes);
    assert_int_equal(a->shares_x, b->shares_x);
    if (a->shares_x) {
        assert_int_equal(a->row, b->row);
        assert_int_equal(a->out + tile_outputs, b->out);
    } else {
        assert_int_equal(a->row + GATED_TILE_ROWS, b->row);
        assert_int_equal(a->out, b->out);
    }
}

/* Counts what a cluster computes, and returns how many waves it takes; a wave of halves is the
 * last. */
static uint32_t count_cluster(const struct gated_cut *cut, uint32_t cluster) {
    uint32_t wave = 0, n_boxes = 2;
    for (;; wave++) {
        const struct gated_item a = gated_find_item(cut, wave, cluster, cut->n_clusters, 0),
                                b = gated_find_item(cut, wave, cluster, cut->n_clusters, 1);
        if (a.n_boxes == 0) {
            assert_int_equal(b.n_boxes, 0);
            return wave;
        }
        assert_int_equal(n_boxes, 2);
        n_boxes = a.n_boxes;
        check_pair(&a, &b, cut->tile_outputs);
        count(&a, cut->tile_outputs / 2);
        count(&b, cut->tile_outputs / 2);
    }
}

static void check_cut(uint32_t n_rows, uint32_t n_out, uint32_t max_clusters) {
    const struct gated_cut cut = gated_choose_cut(n_rows, n_out, max_clusters);
    uint32_t most_waves = 0;
    assert_in_range(cut.n_clusters, 1, max_clusters);
    memset(computed, 0, sizeof(computed));
    for (uint32_t i = 0; i < cut.n_clusters; i++) {
        const uint32_t n = count_cluster(&cut, i);
        if (n > most_waves) most_waves = n;
    }
    assert_true((float)most_waves - cut.n_waves == (cut.n_halves > 0 ? 0.5f : 0.0f));
    for (uint32_t row = 0; row < MAX_ROW_TILES; row++)
        for (uint32_t box = 0; box < MAX_BOXES; box++) {
            const uint32_t first_row = row * GATED_TILE_ROWS,
                           first_out = box * cut.tile_outputs / 2;
            if (first_row < n_rows && first_out < n_out) assert_int_equal(computed[row][box], 1);
            else assert_in_range(computed[row][box], 0, 1);
        }
}

TEST(every_output_is_computed_once) {
    srand(12);
    check_cut(257, 8, 60);
    check_cut(8 * 2 * GATED_TILE_ROWS + 1, 1000, 7); /* one pair of row tiles more than at once */
    for (int round = 0; round < 3000; round++)
        check_cut(129 + (uint32_t)rand() % 5000, 8 * (1 + (uint32_t)rand() % 1900),
                  1 + (uint32_t)rand() % 70);
}

TEST(small_tiles_are_for_turns_that_they_fill_better) {
    static const struct {
        uint32_t n_rows, n_out, max_clusters, tile_outputs, n_clusters;
        float n_waves;
    } cuts[] = {
        {256, 14336, H100_CLUSTERS, GATED_SMALL_TILE, 64, 2.0f},
        {256, 14336, 57, GATED_LARGE_TILE, 56, 2.0f}, /* 128 small tiles would take 2.5 */
        {256, 11008, H100_CLUSTERS, GATED_SMALL_TILE, 66, 1.5f},
        {384, 14336, H100_CLUSTERS, GATED_SMALL_TILE, 64, 3.0f},
        {768, 14336, H100_CLUSTERS, GATED_LARGE_TILE, 66, 5.5f}, /* 6 x 112: not 5 % less */
        {8192, 14336, H100_CLUSTERS, GATED_LARGE_TILE, 66, 54.5f},
    };
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        const struct gated_cut cut =
            gated_choose_cut(cuts[i].n_rows, cuts[i].n_out, cuts[i].max_clusters);
        assert_int_equal(cut.tile_outputs, cuts[i].tile_outputs);
        assert_int_equal(cut.n_clusters, cuts[i].n_clusters);
        assert_true(cut.n_waves == cuts[i].n_waves);
    }
}

/* The wide kernel has narrower tiles for 18,944 outputs, and the clusters of 8,192 have one wave,
 * in which nothing is stored while they multiply. */
TEST(the_wide_kernel_keeps_what_it_cuts_better) {
    static const uint32_t ahead[] = {14336, 2 * 66 * GATED_SMALL_TILE},
                          behind[] = {18944, 8192, 136};
    for (size_t i = 0; i < sizeof(ahead) / sizeof(ahead[0]); i++)
        assert_true(gated_beats_wide(4096, ahead[i], H100_CLUSTERS));
    for (size_t i = 0; i < sizeof(behind) / sizeof(behind[0]); i++)
        assert_false(gated_beats_wide(4096, behind[i], H100_CLUSTERS));
}

TEST(products_that_leave_the_device_idle_do_not_fit) {
    static const uint32_t fit[] = {256, 333, 384, 512, 640, 768, 896, 1024, 2048, 4096, 8192},
                          do_not[] = {193, 257, 288, 332, 400};
    for (size_t i = 0; i < sizeof(fit) / sizeof(fit[0]); i++)
        assert_true(gated_fills(fit[i], 14336, H100_CLUSTERS));
    for (size_t i = 0; i < sizeof(do_not) / sizeof(do_not[0]); i++)
        assert_false(gated_fills(do_not[i], 14336, H100_CLUSTERS));
    assert_false(gated_takes(128, 4096, 14336));
    assert_false(gated_takes(8192, 4096 + 8, 14336));
    assert_false(gated_takes(8192, 448, 14336));
    assert_false(gated_takes(8192, 4096, 14336 + 4));
    assert_false(gated_fills(1024, 128, H100_CLUSTERS));
}
