/* wide_cut.h - how a product of 9 to 256 rows is cut for linear_wide.cu.
 *
 *   tile     all rows of x against `width` rows of W; of gated products half are gate's, half up's
 *   cluster  a pair of neighbouring tiles; of more than 192 rows the halves of one tile's
 *   share    where tiles are too few for the device, each sum is split along n_in; blocks that have
 *            a tile's shares wait for each other, so all of them must run at the same time
 *
 * All functions only calculate.  Thread: any.  Memory: none. */
#ifndef CUDA_LINEAR_WIDE_CUT_H
#define CUDA_LINEAR_WIDE_CUT_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    WIDE_CLUSTER = 2,
    WIDE_STAGE_COLUMNS = 64, /* of x and W that a block multiplies at a time */
    WIDE_GROUP_ROWS = 64,    /* of x that a warpgroup multiplies */
    WIDE_WHOLE_ROWS = 192,   /* the most rows of x in one block */
    WIDE_MAX_SPLITS = 4      /* the most shares of a sum */
};

/* The shape of a product: rows, columns of x and W, and rows of each part's W. */
struct wide_shape {
    uint32_t n_rows, n_in, n_parts, n_out[LINEAR_MAX_PARTS];
    bool gated; /* the parts are gate and up, of equal n_out */
};

/* Says whether each block of a cluster has half of the rows of one tile, because there are more
 * than WIDE_WHOLE_ROWS.  Else it has all rows of a tile of its own. */
static inline bool wide_halves(const struct wide_shape *shape) {
    return shape->n_rows > WIDE_WHOLE_ROWS;
}

/* How a product is cut. */
struct wide_cut {
    uint32_t width;    /* rows of W in a tile: 112, 96, 64 or 48; if wide_halves() 224 to 64 */
    uint32_t n_splits; /* shares of each sum, 1 to WIDE_MAX_SPLITS */
};

/* Returns how many tiles of `width` rows of W the product has, each part rounded up.  If gated, a
 * tile has width / 2 rows of each of gate and up. */
uint32_t wide_count_tiles(const struct wide_shape *shape, uint32_t width);

/* Returns how many items clusters compute: shares of two tiles, or of one if wide_halves(). */
uint32_t wide_count_items(const struct wide_shape *shape, struct wide_cut cut);

/* Returns the cut with the least estimated time if n_clusters > 0 clusters run at the same time. */
struct wide_cut wide_choose_cut(const struct wide_shape *shape, uint32_t n_clusters);

#ifdef __cplusplus
}
#endif

#endif
