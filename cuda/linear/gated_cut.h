/* gated_cut.h - how a gated product of many rows is cut for linear_gated.cu, and whether it takes it.
 *
 * Thread: engine.  Memory: none. */
#ifndef CUDA_LINEAR_GATED_CUT_H
#define CUDA_LINEAR_GATED_CUT_H

#include <stdint.h>

#include "cuda/host/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    GATED_CLUSTER = 2,
    GATED_TILE_ROWS = 128,
    GATED_TILE_OUTPUTS = 128,
    GATED_STAGE_COLUMNS = 64, /* of x and W that a block multiplies at a time */
    GATED_SLICES = 8          /* of a tile; each is stored in a stage of the next */
};

/* Tiles along x and along W make n_whole pairs, at which n_clusters take turns.  Where the last turn
 * would be of half of them or fewer, n_halves of them take half of a pair each, and n_turns counts
 * half a turn. */
struct gated_cut {
    uint32_t n_row_tiles, n_tiles, n_whole, n_halves, n_clusters;
    float n_turns;
};

struct gated_cut gated_choose_cut(const struct skinny_params *p, uint32_t max_clusters);

#ifdef __cplusplus
}
#endif

#endif
