/* wide_cut.h - how a product of 9 to 256 rows is cut for linear_wide.cu.
 *
 *   tile     all rows of x against `width` rows of W; of gated products half are gate's, half up's
 *   cluster  a pair of neighbouring tiles; of more than 192 rows the halves of one tile's
 *   share    where tiles are too few for the device, each sum is split along n_in; blocks that have
 *            a tile's shares wait for each other, so all of them must run at the same time
 *
 * Thread: any.  Memory: none. */
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
    WIDE_WHOLE_ROWS = 192,   /* at most so many rows of x are in one block */
    WIDE_MAX_SPLITS = 4
};

/* A product, as linear_args has it. */
struct wide_shape {
    uint32_t n_rows, n_in, n_parts, n_out[LINEAR_MAX_PARTS];
    bool gated; /* the parts are gate and up, of equal n_out */
};

/* Says whether the blocks of a cluster have the halves of the rows. */
static inline bool wide_halves(const struct wide_shape *shape) {
    return shape->n_rows > WIDE_WHOLE_ROWS;
}

struct wide_cut {
    uint32_t width; /* 112, 96, 64 or 48; of halves 224, 192, 128, 96 or 64 */
    uint32_t n_splits;
};

/* Returns how many tiles of `width` rows of W the parts have; gated: half of a tile is gate's. */
uint32_t wide_count_tiles(const struct wide_shape *shape, uint32_t width);

/* Returns how many shares of tiles, or of pairs of them, the clusters have to compute. */
uint32_t wide_count_items(const struct wide_shape *shape, struct wide_cut cut);

/* Returns the cut that takes the least time by an estimate, on a device that runs n_clusters at the
 * same time. */
struct wide_cut wide_choose_cut(const struct wide_shape *shape, uint32_t n_clusters);

#ifdef __cplusplus
}
#endif

#endif
