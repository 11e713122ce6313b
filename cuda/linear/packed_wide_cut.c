/* packed_wide_cut.c - see packed_wide_cut.h.  Thread: any.  Memory: none. */
#include "cuda/linear/packed_wide_cut.h"

#include <math.h>

#include "engine/base/sizes.h"

enum { ROWS = 0, BLOCKS = -1, ANY_SCALE = -1, GROUP_OUTPUTS = 64, UNIT_COLUMNS = 64 };

static const struct {
    enum element element;
    int scale, per; /* columns of a block, or a divisor of them if 128 */
    bool has_min;
    uint32_t widen; /* clocks of 64 columns of a warpgroup, beside int4's with scales of bf16 */
} formats[N_PACKED_WIDE_FORMATS] = {
    [PACKED_I4_ROWS] = {ELEMENT_I4, ANY_SCALE, ROWS, false, 0},
    [PACKED_I4_BF16] = {ELEMENT_I4, SCALE_BF16, 128, false, 0},
    [PACKED_I4_BF16_64] = {ELEMENT_I4, SCALE_BF16, 64, false, 0},
    [PACKED_I4_BF16_32] = {ELEMENT_I4, SCALE_BF16, 32, false, 0},
    [PACKED_I4_F16] = {ELEMENT_I4, SCALE_F16, 128, false, 0},
    [PACKED_I4_F16_64] = {ELEMENT_I4, SCALE_F16, 64, false, 0},
    [PACKED_I4_F16_32] = {ELEMENT_I4, SCALE_F16, 32, false, 60},
    [PACKED_I4_F16_16] = {ELEMENT_I4, SCALE_F16, 16, false, 100},
    [PACKED_I4_F32] = {ELEMENT_I4, SCALE_F32, 128, false, 0},
    [PACKED_I4_F32_MIN] = {ELEMENT_I4, SCALE_F32, 128, true, 60},
    [PACKED_I4_F32_64_MIN] = {ELEMENT_I4, SCALE_F32, 64, true, 60},
    [PACKED_I4_F32_32_MIN] = {ELEMENT_I4, SCALE_F32, 32, true, 100},
    [PACKED_I4_F16_32_MIN] = {ELEMENT_I4, SCALE_F16, 32, true, 100},
    [PACKED_I4_F16_16_MIN] = {ELEMENT_I4, SCALE_F16, 16, true, 100},
    [PACKED_I8_ROWS] = {ELEMENT_I8, ANY_SCALE, ROWS, false, 0},
    [PACKED_I8_BF16] = {ELEMENT_I8, SCALE_BF16, 128, false, 0},
    [PACKED_I8_F16] = {ELEMENT_I8, SCALE_F16, 128, false, 0},
    [PACKED_I8_F16_32] = {ELEMENT_I8, SCALE_F16, 32, false, 100},
    [PACKED_I8_F16_16] = {ELEMENT_I8, SCALE_F16, 16, false, 100},
    [PACKED_I8_F16_32_MIN] = {ELEMENT_I8, SCALE_F16, 32, true, 100},
    [PACKED_E4M3_ROWS] = {ELEMENT_E4M3, ANY_SCALE, ROWS, false, 0},
    [PACKED_E4M3_BLOCKS] = {ELEMENT_E4M3, SCALE_F32, BLOCKS, false, 100},
    [PACKED_E2M1_32] = {ELEMENT_E2M1, SCALE_E8M0, 32, false, 100}};

static bool is_power_of_two(uint32_t n) {
    return (n & (n - 1)) == 0;
}

/* Says whether blocks have so many columns.  A shift finds the block of a column. */
static bool has_columns(const struct weight_format *f, int per) {
    return f->block_cols > 0 && is_power_of_two(f->block_cols) &&
           (per == 128 ? f->block_cols >= 128 : f->block_cols == per);
}

static bool has_scales(const struct weight_format *f, int type, int per) {
    if (per == ROWS)
        return f->block_cols == 0 && f->block_rows <= 1 && f->scale >= SCALE_F32 &&
               f->scale <= SCALE_BF16;
    if ((int)f->scale != type) return false;
    /* A warpgroup's outputs are in one block. */
    if (per == BLOCKS)
        return f->block_rows > 1 && f->block_rows % GROUP_OUTPUTS == 0 && has_columns(f, 128);
    return f->block_rows == 1 && has_columns(f, per);
}

enum packed_wide_format packed_wide_find_format(const struct weight_format *format) {
    int i = 0;
    while (i < N_PACKED_WIDE_FORMATS &&
           !(format->element == formats[i].element && format->has_min == formats[i].has_min &&
             has_scales(format, formats[i].scale, formats[i].per)))
        i++;
    return (enum packed_wide_format)i;
}

static uint32_t count_tiles(const struct product *p, const struct packed_wide_tile *tile) {
    const uint32_t width = tile->groups * GROUP_OUTPUTS;
    uint32_t n = 0;
    if (p->gated) n = (uint32_t)div_up(p->parts[0].n_out, width / 2);
    for (uint32_t i = 0; i < p->n_parts && !p->gated; i++)
        n += (uint32_t)div_up(p->parts[i].n_out, width);
    return n * (uint32_t)div_up(p->n_rows, tile->rows);
}

/* Estimates a product's clocks.  The numbers were fitted to measured products.  wgmma takes half a
 * clock for each row of x and 16 columns of a warpgroup.  What a stage waits for besides grows with
 * the warpgroups, and counts more where stages have fewer columns; `widen` of a format does not.
 * Shares of sums move 12 bytes in a clock.  Behind whole tiles the blocks of a cluster come to
 * their shares at different times. */
static double estimate_clocks(const struct product *p, uint32_t widen, struct packed_wide_cut cut,
                              const struct packed_wide_device *device) {
    const struct packed_wide_tile *tile = &packed_wide_tiles[cut.tile];
    const double n_units = ceil((double)p->n_in / UNIT_COLUMNS),
                 wait = (110.0 * tile->groups + 50) * (tile->rows > 128 ? 1.6 : 1) +
                        (double)widen * tile->groups,
                 unit = hypot(2.0 * tile->groups * tile->rows, wait),
                 others = 1 - 1.0 / cut.n_splits,
                 sums = others * tile->groups * GROUP_OUTPUTS * tile->rows * sizeof(float),
                 exchange = cut.n_splits > 1 ? 2500 + 2 * sums / 12 : 0,
                 finish = 500 + 0.1 * tile->groups * GROUP_OUTPUTS * tile->rows;
    const uint32_t n_tiles = count_tiles(p, tile), n_clusters = device->n_clusters[cut.n_splits],
                   at_once = n_clusters * cut.n_splits;
    if (at_once == 0) return INFINITY;
    const uint32_t n_waves = n_tiles / at_once, n_left = n_tiles % at_once;
    const double meet = cut.n_splits > 1 && n_waves > 0 ? 6000 : 0;
    /* Blocks that wait for each other must run at the same time, and each has a stage. */
    if (cut.n_splits > 1 && (n_left == 0 || n_left > n_clusters)) return INFINITY;
    if (cut.n_splits > div_up(p->n_in, PACKED_WIDE_STAGE_COLUMNS)) return INFINITY;
    return n_waves * (n_units * unit + finish) +
           (n_left > 0) * (ceil(n_units / cut.n_splits) * unit + finish + exchange + meet);
}

struct packed_wide_cut packed_wide_choose_cut(const struct product *p,
                                              const struct packed_wide_device *device) {
    const enum packed_wide_format format = packed_wide_find_format(&p->w_format);
    const uint32_t widen = format < N_PACKED_WIDE_FORMATS ? formats[format].widen : 0;
    struct packed_wide_cut best = {0, 1};
    double least = INFINITY;
    for (uint32_t tile = 0; tile < N_PACKED_WIDE_TILES; tile++)
        for (uint32_t n_splits = 1; n_splits <= PACKED_WIDE_MAX_SPLITS; n_splits++) {
            const struct packed_wide_cut cut = {tile, n_splits};
            const double clocks = estimate_clocks(p, widen, cut, device);
            if (clocks >= least) continue;
            least = clocks;
            best = cut;
        }
    return best;
}
