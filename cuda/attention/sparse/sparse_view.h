/* sparse_view.h - which keys the tiles of a sparse prompt visit, as the index kernels leave it for
 * one layer and as the attention kernels read it (engine/device/sparse.h).
 *
 * Rows [0, n_rows) of the index are slots first_slot on; tile t has rows [128 t, 128 t + 128), its
 * first slot T = first_slot + 128 t and its first group R = T / SPARSE_GROUP; its halves begin at
 * groups R and R + 4.
 *
 *   groups   0 .. n_first   first groups: both halves of every tile
 *            R .. R + 7     the tile's own: both
 *            R - d          d > 0, ascending, from three lists, which follow each other in
 *                           distances[head]: of both halves, of the lower one, of the upper one
 *            columns        single slots below T in groups that are none of these
 *
 *   from a half's first group ->   ... . # # . . # # | # # # #     marks: bit d + 4 for each
 *                                    7 6 5 4 3 2 1     own: 0 .. -3           distance of a half
 *
 * So a distance d from R is visited by the lower half if d is marked, by the upper one if d + 4 is.
 *
 * With PATTERN_FILTERS a tile visits the columns, all of them before first_slot, and the slots from
 * there on.
 *
 * A reader drops what lies before group 0 or from n_slots on.  A group that is both a first group
 * and at a listed distance is visited once.  Columns are chosen for the head, whatever the tile.  A
 * reader stops at T and drops the columns that both halves cover (sparse_covers()); column_count
 * says how many remain.  A half does not see the remaining ones that it covers itself: it visits
 * them with their group.
 *
 * Thread: device code; the structs are C, too.  Memory: none, sparse.c owns what is pointed to. */
#ifndef CUDA_ATTENTION_SPARSE_SPARSE_VIEW_H
#define CUDA_ATTENTION_SPARSE_SPARSE_VIEW_H

#include <stdint.h>

#include "engine/device/pages.h"
#include "engine/device/sparse.h"

enum {
    SPARSE_TILE_GROUPS = SPARSE_TILE / SPARSE_GROUP,
    SPARSE_HALF_GROUPS = SPARSE_HALF / SPARSE_GROUP,
    SPARSE_MARK_SHIFT = SPARSE_HALF_GROUPS,
    SPARSE_PAGE_GROUPS = PAGE_TOKENS / SPARSE_GROUP
};

struct sparse_head {
    int32_t kind; /* enum attn_pattern_kind; PATTERN_DENSE also if the head visited too much */
    int32_t n_first, n_both, n_lower, n_upper, n_columns; /* unless block-sparse or dense */
};

/* All pointers are device memory. */
struct sparse_view {
    struct sparse_head *heads; /* [n_heads] */
    int32_t *distances;        /* [n_heads][max_distances]: three lists */
    uint32_t *marks;           /* [n_heads][mark_words] */
    int32_t *columns;          /* [n_heads][column_stride], ascending */
    int32_t *column_count;     /* [n_heads][max_tiles]: columns that a half visits one by one */
    int32_t *blocks;           /* [n_heads][max_tiles][max_blocks]: pages, ascending, the tile's own
                                  and page 0 among them */
    int32_t *block_count;      /* [n_heads][max_tiles] */
    uint32_t max_distances, mark_words, max_columns, max_tiles, max_blocks;
    uint32_t column_stride; /* max_columns; or 0: all heads have the same columns */
    uint32_t n_heads;
    uint32_t first_slot, n_rows, n_slots; /* n_slots = first_slot + n_rows */
    uint32_t n_tiles;
    uint32_t first_dense_tile; /* tiles from this one on visit everything, whatever the patterns */
};

#ifdef __CUDACC__

/* Returns a head's columns. */
static __device__ __forceinline__ int32_t *sparse_columns(const struct sparse_view &s,
                                                          uint32_t head) {
    return s.columns + (size_t)head * s.column_stride;
}

/* Returns the tile of the index that a sequence's first row of a step belongs to. */
static __host__ __device__ __forceinline__ uint32_t sparse_first_tile(const struct sparse_view &s,
                                                                      uint32_t n_slots,
                                                                      uint32_t n_rows) {
    return (n_slots - n_rows - s.first_slot) / SPARSE_TILE;
}

static __device__ __forceinline__ uint32_t sparse_tile_group(const struct sparse_view &s,
                                                             uint32_t tile) {
    return s.first_slot / SPARSE_GROUP + tile * SPARSE_TILE_GROUPS;
}

static __device__ __forceinline__ bool sparse_is_marked(const struct sparse_view &s, uint32_t head,
                                                        int32_t distance) {
    const uint32_t bit = (uint32_t)(distance + SPARSE_MARK_SHIFT);
    return s.marks[(size_t)head * s.mark_words + bit / 32] >> bit % 32 & 1;
}

/* Returns whether a half (0: lower, 1: upper) of a tile that begins at group R visits the whole of
 * group g < R.  The head is neither block-sparse nor dense. */
static __device__ __forceinline__ bool sparse_covers(const struct sparse_view &s, uint32_t head,
                                                     int32_t R, int32_t half, int32_t g) {
    if (s.heads[head].kind == PATTERN_FILTERS) return g >= (int32_t)(s.first_slot / SPARSE_GROUP);
    return g < s.heads[head].n_first ||
           sparse_is_marked(s, head, R + half * SPARSE_HALF_GROUPS - g);
}

static __device__ inline bool sparse_contains(const int32_t *ascending, int32_t n, int32_t x) {
    int32_t low = 0;
    while (low < n) {
        const int32_t middle = (low + n) / 2;
        if (ascending[middle] == x) return true;
        if (ascending[middle] < x) low = middle + 1;
        else n = middle;
    }
    return false;
}

/* Returns whether the half's rows from `slot` on visit `slot`: the definition.  The half belongs to
 * tile half / 2. */
static __device__ inline bool sparse_visits(const struct sparse_view &s, uint32_t head,
                                            uint32_t half, uint32_t slot) {
    const struct sparse_head &h = s.heads[head];
    const uint32_t tile = half / 2;
    const size_t at = (size_t)head * s.max_tiles + tile;
    if (h.kind == PATTERN_DENSE || tile >= s.first_dense_tile) return true;
    if (h.kind == PATTERN_BLOCK_SPARSE)
        return sparse_contains(s.blocks + at * s.max_blocks, s.block_count[at],
                               (int32_t)(slot / PAGE_TOKENS));
    const int32_t R = (int32_t)sparse_tile_group(s, tile), g = (int32_t)(slot / SPARSE_GROUP);
    return g >= R || sparse_covers(s, head, R, (int32_t)half % 2, g) ||
           sparse_contains(sparse_columns(s, head), h.n_columns, (int32_t)slot);
}

#endif

#endif
