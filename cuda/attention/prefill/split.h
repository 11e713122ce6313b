/* split.h - few prompt rows after many keys: which block of the prefill attention takes which rows
 * and which part of their keys.
 *
 *   tile    rows of one sequence, with all query heads of one KV head: block_rows / group rows fill
 *           the matrix that a block multiplies, and the keys are read once for the whole group
 *   pair    128 keys (two pages), a block's step along the keys
 *   split   a run of the pairs that a tile's rows see, for one block; a tile with one split writes
 *           its output itself, partial results of several are merged
 *
 *   pairs   | split 0 | split 1 | ... | split n - 1 |     lengths that differ by one pair at most
 *
 * One block per (128 rows, query head) leaves most of a device idle if a prompt has few rows to
 * compute after a long prefix.  It leaves half of it idle if there are a few more blocks than fit
 * at once.  The plan searches for the cut that is done soonest, by a count of pairs.  If whole
 * prompts are as fast, it cuts nothing, and they are attended like long ones.
 *
 *   items   splits 0 of cut tiles | their other splits, number after number | uncut tiles
 *           the merge takes the first run; splits that read the same keys are neighbours
 *
 * How keys are cut depends on all prompts of the step, and a row's sums depend on the cut: a
 * batch-invariant backend makes no such plan.  All layers use the same plan, which is made for the
 * layers that see most.  In a layer with a smaller window splits keep their least length, and the
 * last ones are empty.
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
    /* A shorter split costs more than it saves. */
    ATTN_SPLIT_MIN_PAIRS = 4,
    /* The most blocks that a plan may have per multiprocessor.  Several rounds of blocks even out
     * numbers of tiles that do not divide the device, but their partial results take memory. */
    ATTN_SPLIT_MAX = 6
};

/* One split of a tile, for each KV head. */
struct attn_split_item {
    int32_t seq, row, n_rows; /* rows [row, row + n_rows) of the sequence's in the step */
    int32_t split, n_splits;
    int32_t partial; /* number of its partial result; -1: it writes the output */
};

struct attn_split_shape {
    uint32_t n_heads, n_kv_heads;
    uint32_t block_rows; /* of a block's matrix; at least the heads of a group */
    uint32_t n_blocks;   /* resident at once on the device */
    uint32_t max_blocks; /* the most that a plan may have; 0: there are no plans */
};

/* A tile before it is cut. */
struct attn_split_tile {
    int32_t seq, row, n_rows;
    uint32_t n_pairs, n_splits;
    int32_t partial;
};

struct attn_split_plan {
    struct attn_split_item *items;          /* [attn_split_max_items()] */
    struct attn_split_tile *tiles;          /* [attn_split_max_items()] */
    uint32_t n_items, n_merges, n_partials; /* n_items 0: nothing is split */

    /* For making the plan: its tiles, which may exceed its capacity, and the blocks that whole
     * prompts would have. */
    uint64_t n_tiles;
    uint64_t whole_blocks, whole_pairs;
    uint32_t longest_whole;
};

/* Returns the most items of a plan, and the most partial results. */
static inline uint32_t attn_split_max_items(const struct attn_split_shape *shape) {
    return shape->max_blocks / shape->n_kv_heads;
}

/* Returns how many rows of a sequence a tile has. */
static inline uint32_t attn_split_tile_rows(const struct attn_split_shape *shape) {
    return shape->block_rows / (shape->n_heads / shape->n_kv_heads);
}

/* Returns the floats of n partial results of all KV heads: [n][n_kv_heads][block_rows] rows of
 * head_dim, and as many log-sum-exps after them. */
static inline uint64_t attn_split_floats(const struct attn_split_shape *shape, uint32_t n_partials,
                                         uint32_t head_dim) {
    return (uint64_t)n_partials * shape->n_kv_heads * shape->block_rows * (head_dim + 1);
}

/* Rows [first_row, n_rows) of a sequence's n_rows rows in the step.  These are the last of its
 * n_slots slots, and each row sees only the newest `window` slots (0: all). */
struct attn_split_rows {
    uint32_t seq, first_row, n_rows, n_slots;
    uint32_t window; /* of the layers that see most */
};

/* Makes a plan in three steps: begin, add for each prompt, cut. */
void attn_split_begin(struct attn_split_plan *plan);
void attn_split_add(struct attn_split_plan *plan, const struct attn_split_shape *shape,
                    const struct attn_split_rows *rows);
void attn_split_cut(struct attn_split_plan *plan, const struct attn_split_shape *shape);

/* ---- for the kernels, too ---- */

/* Returns how many of n_splits a tile has pairs enough for; the others are empty. */
static inline ATTN_SPLIT_CALL int32_t attn_split_count(int32_t n_pairs, int32_t n_splits) {
    const int32_t most = n_pairs < 2 * ATTN_SPLIT_MIN_PAIRS ? 1 : n_pairs / ATTN_SPLIT_MIN_PAIRS;
    return n_splits < most ? n_splits : most;
}

/* Returns the number of a split's first pair; n_pairs if the split is empty or past the last. */
static inline ATTN_SPLIT_CALL int32_t attn_split_begin_of(int32_t n_pairs, int32_t n_splits,
                                                          int32_t split) {
    const int32_t n = attn_split_count(n_pairs, n_splits);
    return split < n ? (int32_t)((int64_t)n_pairs * split / n) : n_pairs;
}

#ifdef __cplusplus
}
#endif

#endif
