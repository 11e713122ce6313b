/* wide_cut.c - see wide_cut.h.  Thread: any.  Memory: none. */
#include "cuda/linear/wide_cut.h"

#include <math.h>

#include "engine/base/sizes.h"

uint32_t wide_count_tiles(const struct wide_shape *shape, uint32_t width) {
    uint32_t n = 0;
    if (shape->gated) return (uint32_t)div_up(shape->n_out[0], width / 2);
    for (uint32_t i = 0; i < shape->n_parts; i++) n += (uint32_t)div_up(shape->n_out[i], width);
    return n;
}

uint32_t wide_count_items(const struct wide_shape *shape, struct wide_cut cut) {
    const uint32_t n_tiles = wide_count_tiles(shape, cut.width);
    return (uint32_t)div_up(n_tiles, wide_halves(shape) ? 1 : WIDE_CLUSTER) * cut.n_splits;
}

/* Estimates a product's clocks.  The rates were fitted to measured products, in bytes a clock
 * of a multiprocessor.  Shared memory moves 128.  48 arrive there, 24 of them weights, or 13 where
 * all read weights.  Shares of sums move 8.5.  wgmma takes 2 clocks for each column of a group's
 * stage, and a third more where the device's power is the limit. */
static double estimate_clocks(const struct wide_shape *shape, struct wide_cut cut,
                              uint32_t n_clusters) {
    const double row_bytes = WIDE_STAGE_COLUMNS * 2, n_blocks = wide_halves(shape) ? 2 : 1;
    const uint32_t n_tiles = wide_count_tiles(shape, cut.width),
                   n_waves = (uint32_t)div_up(wide_count_items(shape, cut), n_clusters),
                   n_stages = (uint32_t)div_up(shape->n_in, WIDE_STAGE_COLUMNS);
    const double rows = shape->n_rows / n_blocks, groups = ceil(rows / WIDE_GROUP_ROWS),
                 x = rows * row_bytes, w = cut.width * row_bytes,
                 read = groups * (WIDE_GROUP_ROWS * row_bytes + w),
                 wgmma = groups * cut.width * 8 / 3,
                 arrival = fmax((x + w + read) / 128, (x + w) / 48),
                 stage = fmax(fmax(arrival, wgmma), fmax(w / n_blocks / 24, 200)),
                 blocks = n_waves * ceil((double)n_stages / cut.n_splits) * stage,
                 memory = (double)n_tiles * n_stages * w / (13.0 * WIDE_CLUSTER * n_clusters),
                 others = 1 - 1.0 / cut.n_splits,
                 exchange = 2 * others * rows * cut.width * sizeof(float) / 8.5;
    /* Blocks that wait for each other must run at the same time. */
    if (cut.n_splits > 1 && (n_waves > 1 || cut.n_splits > n_stages)) return INFINITY;
    /* The slower of the two, and more where they are alike. */
    return pow(pow(blocks, 4) + pow(memory, 4), 0.25) + exchange + (cut.n_splits > 1 ? 900 : 0);
}

struct wide_cut wide_choose_cut(const struct wide_shape *shape, uint32_t n_clusters) {
    static const uint32_t tiles[] = {112, 96, 64, 48, 0}, halves[] = {224, 192, 128, 96, 64, 0};
    const uint32_t *width = wide_halves(shape) ? halves : tiles;
    struct wide_cut best = {*width, 1};
    double least = INFINITY;
    for (; *width; width++)
        for (uint32_t n_splits = 1; n_splits <= WIDE_MAX_SPLITS; n_splits++) {
            const struct wide_cut cut = {*width, n_splits};
            const double clocks = estimate_clocks(shape, cut, n_clusters);
            if (clocks >= least) continue;
            least = clocks;
            best = cut;
        }
    return best;
}
