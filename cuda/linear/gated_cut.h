/* gated_cut.h - how a gated product of many rows is cut for linear_gated.cu, and whether it takes
 * it.
 *
 *   pair   what a cluster of two blocks computes at a time: two tiles of the same outputs and
 *          neighbouring rows.  If the number of row tiles is odd, the last one makes pairs of its
 *          own rows and neighbouring outputs
 *   order  GATED_PAIRS_AT_ONCE pairs of row tiles against all outputs, tile after tile of these;
 *          then the next pairs.  So x stays in L2 while all of W passes through
 *   turn   clusters take turns at the pairs.  Where the last turn would be of half of them or
 *          fewer, twice as many take half of a pair's outputs each
 *   tile   128 rows and 128 outputs, or 112 if these fill the turns better: 256 rows and 14,336
 *          outputs are 112 pairs of large tiles or 128 of small ones, for 66 clusters two turns of
 *          either
 *
 * Thread: engine, and device code.  Memory: none. */
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

/* The grid has n_whole full tile pairs and n_halves half pairs.  n_turns: how often each cluster
 * computes a pair; the last time counts a half if it is a half pair. */
struct gated_cut {
    uint32_t tile_outputs, n_row_tiles, n_tiles, n_whole, n_halves, n_clusters;
    float n_turns;
};

/* What a block computes at a time: n_boxes halves of a tile's outputs, from a row and an output on.
 * n_boxes 0: no work is left. */
struct gated_item {
    uint32_t row, out, n_boxes;
    bool shares_x; /* the blocks of the cluster have the same rows, and not the same outputs */
};

/* Returns a gated product's cut into tiles of 128 or 112 outputs, for at most max_clusters
 * clusters.  Chooses the one that leaves a cluster less to compute. */
struct gated_cut gated_choose_cut(uint32_t n_rows, uint32_t n_out, uint32_t max_clusters);

/* Says whether the kernel can compute a gated product: more than 128 rows.  n_in is a multiple of
 * 64 and at least 512, n_out a multiple of 8. */
bool gated_takes(uint32_t n_rows, uint32_t n_in, uint32_t n_out);

/* Says whether tiles fill the clusters so well that the kernel is likely to be faster than
 * cuBLASLt; n_clusters > 0. */
bool gated_fills(uint32_t n_rows, uint32_t n_out, uint32_t n_clusters);

/* Says whether the gated kernel is likely to be faster than the wide kernel for 193 to 256 rows;
 * n_clusters > 0. */
bool gated_beats_wide(uint32_t n_in, uint32_t n_out, uint32_t n_clusters);

GATED_CALL uint32_t gated_min(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* Returns the tile of block `rank` of pair i. */
GATED_CALL struct gated_item gated_find_tile(const struct gated_cut *cut, uint32_t i,
                                             uint32_t rank) {
    const uint32_t n_pairs = cut->n_row_tiles / 2, most = GATED_PAIRS_AT_ONCE * cut->n_tiles,
                   first = gated_min(i / most, (n_pairs - 1) / GATED_PAIRS_AT_ONCE) *
                           GATED_PAIRS_AT_ONCE,
                   left = n_pairs - first, n = gated_min(left, GATED_PAIRS_AT_ONCE),
                   n_single = left > n ? 0 : cut->n_row_tiles % 2, n_turn = 2 * n + n_single,
                   at = i - first * cut->n_tiles, tile = at / n_turn * 2, k = at % n_turn;
    if (k < n * gated_min(2, cut->n_tiles - tile)) {
        const struct gated_item item = {(2 * (first + k % n) + rank) * GATED_TILE_ROWS,
                                        (tile + k / n) * cut->tile_outputs, 2, false};
        return item;
    }
    const struct gated_item item = {2 * n_pairs * GATED_TILE_ROWS,
                                    (tile + rank) * cut->tile_outputs, 2, true};
    return item;
}

/* Returns what block `rank` of a cluster, one of n_clusters, computes in a turn. */
GATED_CALL struct gated_item gated_find_item(const struct gated_cut *cut, uint32_t turn,
                                             uint32_t cluster, uint32_t n_clusters, uint32_t rank) {
    const uint32_t i = turn * n_clusters + cluster, half = i - cut->n_whole;
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
