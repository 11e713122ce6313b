/* gated_cut.h - how a gated product of many rows is cut for linear_gated.cu, and whether it takes
 * it.
 *
 *   pair   what a cluster of two blocks computes at a time: two tiles of the same outputs and
 *          neighbouring rows.  If the number of row tiles is odd, the last one makes pairs of its
 *          own rows and neighbouring outputs
 *   order  GATED_PAIRS_AT_ONCE pairs of row tiles against all outputs, tile after tile of these;
 *          then the next pairs.  So x stays in L2 while all of W passes through
 *   wave   one pair for each cluster, at the same time.  If the last wave has work for half of the
 *          clusters or fewer, twice as many take half of a pair's outputs each
 *   tile   128 rows and 128 outputs, or 112 if these fill the waves better: 256 rows and 14,336
 *          outputs are 112 pairs of large tiles or 128 of small ones, for 66 clusters two waves of
 *          either
 *
 * All functions only calculate.  Thread: any, and device code.  Memory: none. */
#ifndef CUDA_LINEAR_GATED_CUT_H
#define CUDA_LINEAR_GATED_CUT_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define GATED_CALL static __host__ __device__ __forceinline__
#else
#define GATED_CALL static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum {
    GATED_CLUSTER = 2,
    GATED_TILE_ROWS = 128,
    GATED_LARGE_TILE = 128,   /* outputs */
    GATED_SMALL_TILE = 112,   /* outputs */
    GATED_STAGE_COLUMNS = 64, /* of x and W that a block multiplies at a time */
    GATED_SLICES = 8,         /* of a tile; each is stored in a stage of the next */
    GATED_PAIRS_AT_ONCE = 8   /* 16 MB of x where n_in is 4,096: a third of L2 */
};

/* How a gated product is cut: n_row_tiles x n_tiles tiles of GATED_TILE_ROWS x tile_outputs.  They
 * are computed as n_whole full pairs, then n_halves half pairs, by n_clusters clusters. */
struct gated_cut {
    uint32_t tile_outputs, n_row_tiles, n_tiles, n_whole, n_halves, n_clusters;
    float n_waves; /* a wave of half pairs counts a half */
};

/* What a block computes in a wave, from this row and output on.  n_boxes 2: a whole tile; 1:
 * half of one; 0: nothing. */
struct gated_item {
    uint32_t row, out, n_boxes;
    bool shares_x; /* the blocks of the cluster have the same rows, and not the same outputs */
};

/* Returns the cut of a gated product of n_rows rows and n_out outputs each of gate and up, for at
 * most max_clusters clusters.  Chooses the tile that leaves a cluster less to compute. */
struct gated_cut gated_choose_cut(uint32_t n_rows, uint32_t n_out, uint32_t max_clusters);

/* Says whether the kernel can compute a gated product of this shape.  It needs more than 128 rows,
 * n_in a multiple of 64 and at least 512, and n_out a multiple of 8. */
bool gated_takes(uint32_t n_rows, uint32_t n_in, uint32_t n_out);

/* Says whether at least 84 % of what n_clusters > 0 clusters compute is the product's, so that the
 * kernel is likely to be faster than cuBLASLt.  Does not ask gated_takes(). */
bool gated_fills(uint32_t n_rows, uint32_t n_out, uint32_t n_clusters);

/* Says whether the gated kernel is likely to be faster than the wide kernel for 193 to 256 rows.
 * n_clusters > 0 clusters of either run at a time. */
bool gated_beats_wide(uint32_t n_in, uint32_t n_out, uint32_t n_clusters);

/* Returns the smaller number. */
GATED_CALL uint32_t gated_min(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* Returns the whole tile that block `rank`, 0 or 1, of a cluster computes of pair number i.  Pairs
 * have the order that the head of this file describes. */
GATED_CALL struct gated_item gated_find_tile(const struct gated_cut *cut, uint32_t i,
                                             uint32_t rank) {
    const uint32_t n_pairs = cut->n_row_tiles / 2, most = GATED_PAIRS_AT_ONCE * cut->n_tiles,
                   first = gated_min(i / most, (n_pairs - 1) / GATED_PAIRS_AT_ONCE) *
                           GATED_PAIRS_AT_ONCE,
                   left = n_pairs - first, n = gated_min(left, GATED_PAIRS_AT_ONCE),
                   n_single = left > n ? 0 : cut->n_row_tiles % 2, n_across = 2 * n + n_single,
                   at = i - first * cut->n_tiles, tile = at / n_across * 2, k = at % n_across;
    if (k < n * gated_min(2, cut->n_tiles - tile)) {
        const struct gated_item item = {(2 * (first + k % n) + rank) * GATED_TILE_ROWS,
                                        (tile + k / n) * cut->tile_outputs, 2, false};
        return item;
    }
    const struct gated_item item = {2 * n_pairs * GATED_TILE_ROWS,
                                    (tile + rank) * cut->tile_outputs, 2, true};
    return item;
}

/* Returns what block `rank`, 0 or 1, of this cluster of n_clusters computes in this wave. */
GATED_CALL struct gated_item gated_find_item(const struct gated_cut *cut, uint32_t wave,
                                             uint32_t cluster, uint32_t n_clusters, uint32_t rank) {
    const uint32_t i = wave * n_clusters + cluster, half = i - cut->n_whole;
    const struct gated_item none = {0, 0, 0, false};
    if (i < cut->n_whole) return gated_find_tile(cut, i, rank);
    if (half >= cut->n_halves) return none;
    struct gated_item item = gated_find_tile(cut, cut->n_whole + half / 2, rank);
    item.out += half % 2 * (cut->tile_outputs / 2);
    item.n_boxes = 1;
    return item;
}

#ifdef __cplusplus
}
#endif

#endif
