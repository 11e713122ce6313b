/* fp8_cut.h - how a product of E4M3 with E4M3 of many rows is cut for linear_fp8.cu.
 *
 *   tile     FP8_TILE_ROWS rows of x against `width` rows of W; of gated products half are gate's,
 *            half up's
 *   pair     what a cluster of two blocks computes at a time: tiles of the same outputs and
 *            neighbouring rows, tiles of the same rows and neighbouring outputs, or one tile, of
 *            whose columns each block has half
 *   order    FP8_ROWS_AT_ONCE row tiles against all outputs, then the next.  So x stays in L2 while
 *            all of W passes through
 *
 * All functions only calculate.  Thread: any, and device code.  Memory: none. */
#ifndef CUDA_LINEAR_FP8_CUT_H
#define CUDA_LINEAR_FP8_CUT_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/linear/product.h"

#ifdef __CUDACC__
#define FP8_CALL static __host__ __device__ __forceinline__
#else
#define FP8_CALL static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum {
    FP8_TILE_ROWS = 128,
    FP8_ROWS_AT_ONCE = 16, /* row tiles */
    FP8_STORE_COLUMNS = 64 /* outputs that are stored at a time */
};

enum fp8_pair { FP8_PAIR_ROWS, FP8_PAIR_OUTPUTS, FP8_PAIR_COLUMNS };

/* How a product is cut: into n_row_units x n_tile_units pairs, for n_clusters clusters.  Of halves
 * of columns each cluster has one tile. */
struct fp8_cut {
    uint32_t width, n_tiles; /* of outputs */
    enum fp8_pair pair;
    uint32_t n_row_units, n_tile_units, n_clusters;
};

/* Returns the cut with the least estimated time for at most max_clusters > 0 clusters. */
struct fp8_cut fp8_choose_cut(const struct product *p, uint32_t max_clusters);

/* What a block computes at a time: from this row on, tile number `tile` of all parts.  A tile past
 * the last one is not stored. */
struct fp8_item {
    uint32_t row, tile;
};

/* Returns what block `rank`, 0 or 1, of a cluster has of pair i. */
FP8_CALL struct fp8_item fp8_find_item(const struct fp8_cut *cut, uint32_t i, uint32_t rank) {
    const bool is_rows = cut->pair == FP8_PAIR_ROWS;
    const uint32_t at_once = is_rows ? FP8_ROWS_AT_ONCE / 2 : FP8_ROWS_AT_ONCE,
                   most = at_once * cut->n_tile_units, first = i / most * at_once,
                   left = cut->n_row_units - first, n = left < at_once ? left : at_once,
                   at = i % most, rows = first + at % n, tile = at / n;
    const struct fp8_item item = {(is_rows ? 2 * rows + rank : rows) * FP8_TILE_ROWS,
                                  cut->pair == FP8_PAIR_OUTPUTS ? 2 * tile + rank : tile};
    return item;
}

#ifdef __cplusplus
}
#endif

#endif
