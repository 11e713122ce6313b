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
 * The first tile of a block needs no look-up, and only data change from step to step, unless `few`
 * does.  A captured CUDA graph therefore stays valid: a block without work finds an empty tile.
 * The blocks that have tiles are the first ones.  The last of them to end merge the items, and wait
 * for each other's partials; so all blocks must be resident at once.
 *
 * There are four ways to cut.  `fixed` is asked for; of the others the fastest is taken, by an
 * estimate:
 *   fixed     (split_slots > 0) every split_slots slots: a row's bits depend on its own length only
 *   whole     no item is cut
 *   parts     each item is cut into equal parts, one to a block
 *   even      each block gets the same number of units, wherever items begin and end
 *
 * Thread: engine.  Memory: the caller's. */
#ifndef CUDA_ATTENTION_ATTN_PLAN_H
#define CUDA_ATTENTION_ATTN_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Tiles begin at a multiple of a unit, the rows that a warp attends at a time. */
enum { ATTN_UNIT_SLOTS = 16, ATTN_FIXED_SPLIT_SLOTS = 512 };

struct attn_tile {
    int32_t seq, kv_head;
    int32_t begin, end; /* slots; begin == end: no work */
    int32_t pages;      /* where the pages begin in the layer's part of the block table */
    int32_t partial;    /* number of its partial, -1: it writes the output */
    int32_t next;       /* the block's next tile, -1: none */
    int32_t n_merges;   /* of the plan */
};

struct attn_merge {
    int32_t seq, kv_head;
    int32_t first_partial, n_partials;
};

/* How items are merged when blocks have attended their tiles. */
struct attn_plan_end {
    int32_t n_blocks;  /* that have tiles: the first ones */
    int32_t n_readers; /* a power of two up to 32: threads that share the partials of an item */
    int32_t unused[2]; /* what follows it in memory begins at a multiple of 16 bytes */
};

struct attn_plan_shape {
    uint32_t n_blocks; /* the grid's; all are resident at once */
    uint32_t n_few;    /* the grid's if `few` */
    uint32_t n_kv_heads;
    uint32_t split_slots; /* 0: the batch decides; otherwise a multiple of ATTN_UNIT_SLOTS */
    uint32_t part_units;  /* parts begin at multiples of so many units: 2 where units have 8 bits */
    bool few;             /* n_few blocks are enough: see attn_plan_suits_few() */
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
    struct attn_plan_end *end;
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

/* Says whether the items are so few and short that n_few blocks read them about as fast as all.
 * The multiprocessors that these leave idle begin with the weights of the next product meanwhile.
 * The caller decides for all plans of a step together, because it sets the launch. */
bool attn_plan_suits_few(const struct attn_plan_shape *shape, const struct attn_plan_batch *batch);

/* Returns how many blocks to launch. */
uint32_t attn_plan_grid(const struct attn_plan_shape *shape);

/* Fills plan->tiles, plan->merges and plan->end. */
void attn_plan_build(struct attn_plan *plan, const struct attn_plan_shape *shape,
                     const struct attn_plan_batch *batch);

#ifdef __cplusplus
}
#endif

#endif
