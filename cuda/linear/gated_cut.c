/* gated_cut.c - see gated_cut.h.  Thread: engine.  Memory: none. */
#include "cuda/linear/gated_cut.h"

#include "cuda/linear/wide_cut.h"
#include "engine/base/sizes.h"

/* Cuts a product into tiles of so many outputs. */
static struct gated_cut cut_into(uint32_t tile_outputs, uint32_t n_rows, uint32_t n_out,
                                 uint32_t max_clusters) {
    struct gated_cut c = {.tile_outputs = tile_outputs};
    c.n_row_tiles = (uint32_t)div_up(n_rows, GATED_TILE_ROWS);
    c.n_tiles = (uint32_t)div_up(n_out, tile_outputs);
    c.n_whole = c.n_row_tiles / 2 * c.n_tiles + c.n_row_tiles % 2 * ((c.n_tiles + 1) / 2);
    const uint32_t n_waves = (uint32_t)div_up(c.n_whole, max_clusters),
                   n_left = c.n_whole % max_clusters;
    c.n_clusters = (uint32_t)div_up(c.n_whole, n_waves); /* as many as can have equal numbers */
    c.n_waves = (float)n_waves;
    if (n_left == 0 || n_left > max_clusters / 2) return c;
    c.n_whole -= n_left;
    c.n_halves = 2 * n_left;
    c.n_clusters = n_waves > 1 ? max_clusters : c.n_halves;
    c.n_waves -= 0.5f;
    return c;
}

/* Returns how many outputs of its rows a cluster computes. */
static float count_outputs(const struct gated_cut *cut) {
    return cut->n_waves * (float)cut->tile_outputs;
}

struct gated_cut gated_choose_cut(uint32_t n_rows, uint32_t n_out, uint32_t max_clusters) {
    /* For as many outputs small tiles take some 5 % longer. */
    const float gain = 0.95f;
    const struct gated_cut large = cut_into(GATED_LARGE_TILE, n_rows, n_out, max_clusters),
                           small = cut_into(GATED_SMALL_TILE, n_rows, n_out, max_clusters);
    return count_outputs(&small) < gain * count_outputs(&large) ? small : large;
}

bool gated_takes(uint32_t n_rows, uint32_t n_in, uint32_t n_out) {
    return n_rows > GATED_TILE_ROWS && n_out % 8 == 0 && n_in % GATED_STAGE_COLUMNS == 0 &&
           n_in >= GATED_SLICES * GATED_STAGE_COLUMNS;
}

/* Tells whether enough of what the clusters compute are outputs: cuBLASLt is slower where 85 % are,
 * and faster where 64 % are. */
bool gated_fills(uint32_t n_rows, uint32_t n_out, uint32_t n_clusters) {
    const float least = 0.84f;
    const struct gated_cut cut = gated_choose_cut(n_rows, n_out, n_clusters);
    return (float)n_rows * (float)n_out >=
           least * GATED_CLUSTER * GATED_TILE_ROWS * (float)n_clusters * count_outputs(&cut);
}

/* Compares what a cluster computes of 256 rows, as many as either kernel does.  The gated
 * kernel is faster by what it stores while it multiplies, so clusters must have a second wave. */
bool gated_beats_wide(uint32_t n_in, uint32_t n_out, uint32_t n_clusters) {
    const uint32_t n_rows = 2 * GATED_TILE_ROWS;
    const struct wide_shape shape = {n_rows, n_in, 2, {n_out, n_out}, true};
    const struct wide_cut wide = wide_choose_cut(&shape, n_clusters);
    const struct gated_cut cut = gated_choose_cut(n_rows, n_out, n_clusters);
    const uint64_t n_waves = div_up(wide_count_items(&shape, wide), n_clusters);
    return cut.n_waves >= 2 &&
           count_outputs(&cut) * (float)wide.n_splits <= (float)(n_waves * wide.width / 2);
}
