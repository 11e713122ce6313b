/* fp8_cut.c - see fp8_cut.h.  Thread: engine.  Memory: none. */
#include "cuda/linear/fp8_cut.h"

#include <math.h>

#include "engine/base/sizes.h"

/* A tile's width, and its clocks: for each stage, at its end, and where blocks exchange halves of
 * its sums, if they can.  Fitted to measured products. */
struct fp8_tile {
    uint32_t width;
    float stage, end, exchange;
};

static const struct fp8_tile rows_tiles[] = {{256, 1050, 2800, 0},
                                             {192, 810, 1700, 0},
                                             {128, 560, 1500, 0},
                                             {0}},
                             block_tiles[] = {{256, 1225, 2000, 8000}, {128, 745, 1100, 4000}, {0}};

static uint32_t count_tiles_of(const struct product *p, uint32_t width) {
    uint32_t n = 0;
    if (p->gated) return (uint32_t)div_up(p->parts[0].n_out, width / 2);
    for (uint32_t i = 0; i < p->n_parts; i++) n += (uint32_t)div_up(p->parts[i].n_out, width);
    return n;
}

/* Returns how many pairs each cluster computes at most. */
static uint32_t count_waves(const struct fp8_cut *cut, uint32_t max_clusters) {
    return (uint32_t)div_up((uint64_t)cut->n_row_units * cut->n_tile_units, max_clusters);
}

static struct fp8_cut cut_into(const struct product *p, uint32_t width, enum fp8_pair pair,
                               uint32_t max_clusters) {
    const uint32_t n_row_tiles = (uint32_t)div_up(p->n_rows, FP8_TILE_ROWS),
                   n_tiles = count_tiles_of(p, width);
    struct fp8_cut cut = {.width = width, .n_tiles = n_tiles, .pair = pair};
    cut.n_row_units = pair == FP8_PAIR_ROWS ? (n_row_tiles + 1) / 2 : n_row_tiles;
    cut.n_tile_units = pair == FP8_PAIR_OUTPUTS ? (n_tiles + 1) / 2 : n_tiles;
    /* As many clusters as can have equal numbers. */
    cut.n_clusters = (uint32_t)div_up((uint64_t)cut.n_row_units * cut.n_tile_units,
                                      count_waves(&cut, max_clusters));
    return cut;
}

/* Estimates what a cut takes.  INFINITY: there are no halves of its columns, or more of them than
 * clusters. */
static float estimate_clocks(const struct product *p, const struct fp8_tile *tile,
                             const struct fp8_cut *cut, uint32_t max_clusters) {
    const float n_stages = (float)(p->n_in / FP8_BLOCK),
                n_waves = (float)count_waves(cut, max_clusters);
    if (cut->pair != FP8_PAIR_COLUMNS) return n_waves * (tile->stage * n_stages + tile->end);
    if (tile->exchange == 0 || n_waves > 1 || n_stages < 2) return INFINITY;
    return tile->stage * ceilf(n_stages / 2) + tile->end + tile->exchange;
}

struct fp8_cut fp8_choose_cut(const struct product *p, uint32_t max_clusters) {
    const struct fp8_tile *tile = p->x_scale_stride > 0 ? block_tiles : rows_tiles;
    /* Results in E4M3 need the first, whose outputs share a scale. */
    const bool is_first = p->rounded.codes != NULL;
    struct fp8_cut best = {0};
    float least = INFINITY;
    for (; tile->width; tile++) {
        if (p->gated && tile->width % (2 * FP8_STORE_COLUMNS) != 0) continue;
        for (uint32_t pair = FP8_PAIR_ROWS; pair <= FP8_PAIR_COLUMNS; pair++) {
            const struct fp8_cut cut = cut_into(p, tile->width, (enum fp8_pair)pair, max_clusters);
            const float clocks = estimate_clocks(p, tile, &cut, max_clusters);
            if (clocks >= least || (is_first && best.width > tile->width)) continue;
            least = clocks;
            best = cut;
        }
    }
    return best;
}
