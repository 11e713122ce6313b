/* attn_plan.h - which block of the decode attention reads which keys.
 *
 *   item        one (sequence, KV head): all of its slots, read once for the whole group of heads;
 *               if the layer has a window, from the unit on that holds the window's first slot
 *   tile        a run of slots of one item, attended by one block; the blocks are a fixed number
 *   partial     the result of a tile that is only part of its item
 *   merge       the partials of one item, in the order of their slots
 *
 *   tiles  [0] [1] ... [n_blocks-1] | more tiles ...      block b: tile b, then what `next` says
 *           |_______________________^
 *
 * The first tile of a block needs no look-up, and only data change from step to step, unless
 * n_cluster does.  A captured CUDA graph therefore stays valid: a block without work finds an empty
 * tile, and tile 0 holds the number of merges.
 *
 * There are four ways to cut; the first that fits is taken:
 *   fixed     (split_slots > 0) every split_slots slots: a row's bits depend on its own length only
 *   clusters  (n_cluster > 1) the blocks of a cluster share an item, and merge what they have by
 *             themselves: block n_cluster * item + i has the i-th part.  The caller decides, for all
 *             plans of a step together, because it sets the launch
 *   whole     no item is cut, unless blocks would be so unequal that cutting is faster
 *   even      each block gets the same number of units, wherever items begin and end
 *
 * Thread: engine.  Memory: the caller's. */
#ifndef CUDA_ATTENTION_ATTN_PLAN_H
#define CUDA_ATTENTION_ATTN_PLAN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Tiles begin at a multiple of a unit, the rows that a warp attends at a time. */
enum { ATTN_UNIT_SLOTS = 16, ATTN_FIXED_SPLIT_SLOTS = 512 };
enum { ATTN_MAX_CLUSTER = 16 }; /* blocks; 2 are the least */

struct attn_tile {
    int32_t seq, kv_head;
    int32_t begin, end; /* slots; begin == end: no work */
    int32_t pages;      /* where the pages begin in the layer's part of the block table */
    int32_t partial;    /* number of its partial, -1: it writes the output */
    int32_t next;       /* the block's next tile, -1: none */
    int32_t n_merges;   /* in tile 0 only: the plan's number of merges */
};

struct attn_merge {
    int32_t seq, kv_head;
    int32_t first_partial, n_partials;
};

struct attn_plan_shape {
    uint32_t n_blocks; /* the grid's; all are resident at once */
    uint32_t n_kv_heads;
    uint32_t split_slots; /* 0: the batch decides; otherwise a multiple of ATTN_UNIT_SLOTS */
    uint32_t max_clusters[ATTN_MAX_CLUSTER + 1]; /* [n]: clusters of n blocks, resident at once */
    uint32_t n_cluster; /* blocks that share an item; 0 or 1: none.  See attn_plan_cluster() */
};

/* The longest arrays that plans of up to max_seqs sequences with max_slots slots together need. */
struct attn_plan_budget {
    uint32_t n_tiles, n_merges, n_partials, n_loads;
};

/* The units of a block, or of a sequence's item. */
struct attn_load {
    uint32_t units;
    uint32_t owner; /* number of the block, or of the sequence */
};

struct attn_plan {
    struct attn_tile *tiles;   /* [n_tiles of the attn_plan_budget] */
    struct attn_merge *merges; /* [n_merges of the attn_plan_budget] */
    struct attn_load *loads;   /* [n_loads of the attn_plan_budget]: scratch */
    uint32_t n_tiles, n_merges, n_partials;
};

struct attn_plan_budget attn_plan_budget(const struct attn_plan_shape *shape, uint32_t max_seqs,
                                         uint64_t max_slots);

/* A layer's sequences: how many slots each has (0: it gets no tile), and where its pages begin in
 * the layer's part of the block table (device_step.table_at). */
struct attn_plan_batch {
    const uint32_t *n_slots;
    const int32_t *table_at;
    uint32_t n_seqs;
    uint32_t window; /* the layer's: only the newest `window` slots are seen; 0: all */
};

/* Returns how many blocks of a cluster should share each item: 2 to ATTN_MAX_CLUSTER.  1: clusters do
 * not suit the batch, because its items are too many, too long or too unequal.  0: they are not
 * needed, because the items are so short that one block reads each. */
uint32_t attn_plan_cluster(const struct attn_plan_shape *shape,
                           const struct attn_plan_batch *batch);

/* Returns the grid of n_seqs sequences: the shape's blocks, or the clusters that have an item. */
uint32_t attn_plan_grid(const struct attn_plan_shape *shape, uint32_t n_seqs);

/* Fills plan->tiles and plan->merges. */
void attn_plan_build(struct attn_plan *plan, const struct attn_plan_shape *shape,
                     const struct attn_plan_batch *batch);

#ifdef __cplusplus
}
#endif

#endif
