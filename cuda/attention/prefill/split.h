/* split.h - few prompt rows behind many keys: which block of the prefill attention takes which
 * rows and which part of their keys.
 *
 *   tile    rows of one sequence, with all query heads of one KV head: block_rows / group rows fill
 *           the matrix that a block multiplies, and the keys are read once for the whole group
 *   pair    128 keys (two pages), the step in which a block goes along the keys
 *   piece   a run of the pairs that a tile's rows see, for one block; a tile with one piece writes
 *           its output itself, the others' partial results are merged
 *
 *   pairs   | piece 0 | piece 1 | ... | piece n - 1 |      shares that differ by one pair at most
 *
 * Attention of one block per (128 rows, query head) leaves most of a device idle while a prompt has
 * few rows to compute behind a long prefix, and half of it when its blocks are a few more than fit
 * at once.  The plan looks for the cut that is soonest done, by a count of pairs, and says where
 * leaving prompts whole is as good: they are then attended as long ones are.
 *
 *   items   first pieces of cut tiles | their other pieces, number after number | uncut tiles
 *           the merge takes the first run; pieces that read the same keys stand side by side
 *
 * How keys are cut depends on all prompts of the step, and a row's sums on how they are cut: a
 * batch-invariant backend makes no such plan.  All layers use the same one.  It is made for the
 * layers that see most; where a window shows less, pieces stay long enough and the last are empty.
 *
 * Thread: engine.  Memory: the caller's. */
#ifndef CUDA_ATTENTION_PREFILL_SPLIT_H
#define CUDA_ATTENTION_PREFILL_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define ATTN_SPLIT_CALL __host__ __device__
#else
#define ATTN_SPLIT_CALL
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ATTN_SPLIT_PAIR = 128, /* keys */
    /* A piece shorter than this costs more than it saves. */
    ATTN_SPLIT_MIN_PAIRS = 4,
    /* Pieces that a plan may have, for every multiprocessor: several rounds of blocks even out
     * numbers of tiles that do not divide the device; their partial results take the memory. */
    ATTN_SPLIT_MAX = 6
};

/* A tile's piece, for each KV head. */
struct attn_split_item {
    int32_t seq, row, n_rows; /* rows [row, row + n_rows) of the sequence's in the step */
    int32_t split, n_splits;
    int32_t partial; /* number of its partial result; -1: it writes the output */
};

struct attn_split_shape {
    uint32_t n_heads, n_kv_heads;
    uint32_t block_rows; /* of a block's matrix; no fewer than the heads of a group */
    uint32_t n_blocks;   /* resident at once on the device */
    uint32_t max_blocks; /* that a plan may have; 0: there are no plans */
};

/* A tile before it is cut. */
struct attn_split_tile {
    int32_t seq, row, n_rows;
    uint32_t n_pairs, n_splits;
    int32_t partial;
};

struct attn_split_plan {
    struct attn_split_item *items;        /* [attn_split_max_items()] */
    struct attn_split_tile *tiles;        /* the same */
    uint32_t n_items, n_merges, n_partials; /* n_items 0: nothing is split */

    /* While it is made: its tiles, more than there is room for or not, and the blocks that whole
     * prompts would have. */
    uint64_t n_tiles;
    uint64_t whole_blocks, whole_pairs;
    uint32_t longest_whole;
};

/* Of a plan; it has no more partial results either. */
static inline uint32_t attn_split_max_items(const struct attn_split_shape *shape) {
    return shape->max_blocks / shape->n_kv_heads;
}

/* Rows of a sequence in a tile. */
static inline uint32_t attn_split_tile_rows(const struct attn_split_shape *shape) {
    return shape->block_rows / (shape->n_heads / shape->n_kv_heads);
}

/* Floats of n partial results of all KV heads: [n][n_kv_heads][block_rows] rows of head_dim, and as
 * many log-sum-exps behind them. */
static inline uint64_t attn_split_floats(const struct attn_split_shape *shape, uint32_t n_partials,
                                         uint32_t head_dim) {
    return (uint64_t)n_partials * shape->n_kv_heads * shape->block_rows * (head_dim + 1);
}

/* Rows [first_row, n_rows) of a sequence's n_rows rows in the step, which are the last of its
 * n_slots slots, and of which each sees only the newest `window` (0: all). */
struct attn_split_rows {
    uint32_t seq, first_row, n_rows, n_slots;
    uint32_t window; /* of the layers that see most */
};

/* begin, add for each prompt, cut. */
void attn_split_begin(struct attn_split_plan *plan);
void attn_split_add(struct attn_split_plan *plan, const struct attn_split_shape *shape,
                    const struct attn_split_rows *rows);
void attn_split_cut(struct attn_split_plan *plan, const struct attn_split_shape *shape);

/* ---- what the kernels ask, too ---- */

/* Of n_splits, those that a tile has pairs enough for; the others are empty. */
static inline ATTN_SPLIT_CALL int32_t attn_split_count(int32_t n_pairs, int32_t n_splits) {
    const int32_t most = n_pairs < 2 * ATTN_SPLIT_MIN_PAIRS ? 1 : n_pairs / ATTN_SPLIT_MIN_PAIRS;
    return n_splits < most ? n_splits : most;
}

/* The first of n_pairs pairs that is in a piece or behind it; n_pairs for those that are empty. */
static inline ATTN_SPLIT_CALL int32_t attn_split_begin_of(int32_t n_pairs, int32_t n_splits,
                                                          int32_t split) {
    const int32_t n = attn_split_count(n_pairs, n_splits);
    return split < n ? (int32_t)((int64_t)n_pairs * split / n) : n_pairs;
}

#ifdef __cplusplus
}
#endif

#endif
