/* attn_plan.c - see attn_plan.h.  Thread: engine.  Memory: the caller's. */
#include "cuda/attention/attn_plan.h"

#include <assert.h>

#include "engine/base/sizes.h"

enum {
    /* A shorter tile costs more in partials and merging than it saves in reading. */
    MIN_TILE_UNITS = 8,
    /* Merging costs a block about as much as reading this many units: cutting must save more. */
    MERGE_COST_UNITS = 4,
    /* A merge within clusters saves 4 us, in which a block that reads as fast as it can reads this
     * many units: clusters may leave a block so many more than the mean. */
    CLUSTER_SAVES_UNITS = 40
};

/* The block that is being filled, and the tile it ends with. */
struct filler {
    struct attn_plan *plan;
    uint32_t n_blocks;
    uint32_t block;
    uint32_t last; /* tile number */
};

/* The batch as one row of units, item after item, that is divided among the blocks. */
struct course {
    uint64_t n_units;  /* in the batch */
    uint32_t n_blocks; /* blocks that get any units */
};

/* Returns where the unit begins that holds the first slot that the sequence sees. */
static uint32_t first_slot(const struct attn_plan_batch *batch, uint32_t seq) {
    const uint32_t n = batch->n_slots[seq];
    if (batch->window == 0 || n <= batch->window) return 0;
    return (n - batch->window) / ATTN_UNIT_SLOTS * ATTN_UNIT_SLOTS;
}

static uint32_t units_between(uint32_t begin, uint32_t end) {
    return (uint32_t)div_up(end - begin, ATTN_UNIT_SLOTS);
}

static uint32_t units_of(const struct attn_plan_batch *batch, uint32_t seq) {
    return units_between(first_slot(batch, seq), batch->n_slots[seq]);
}

static uint64_t units_of_batch(const struct attn_plan_shape *shape,
                               const struct attn_plan_batch *batch) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < batch->n_seqs; i++) sum += units_of(batch, i);
    return sum * shape->n_kv_heads;
}

struct attn_plan_budget attn_plan_budget(const struct attn_plan_shape *shape, uint32_t max_seqs,
                                         uint64_t max_slots) {
    uint64_t items = (uint64_t)max_seqs * shape->n_kv_heads, cuts = shape->n_blocks;
    if (shape->split_slots > 0) cuts = max_slots / shape->split_slots * shape->n_kv_heads;
    struct attn_plan_budget room = {
        .n_tiles = (uint32_t)(shape->n_blocks + items + cuts),
        .n_merges = (uint32_t)min_u64(items, cuts),
        .n_partials = (uint32_t)(cuts * 2),
    };
    return room;
}

/* Appends a tile to a block's chain.  Blocks are filled in order. */
static void add_tile(struct filler *f, uint32_t block, const struct attn_tile *tile) {
    struct attn_plan *plan = f->plan;
    assert(block < f->n_blocks && block >= f->block);
    uint32_t at = block;
    if (plan->tiles[block].end > 0) {
        at = plan->n_tiles++;
        plan->tiles[f->last].next = (int32_t)at;
    }
    plan->tiles[at] = *tile;
    f->block = block;
    f->last = at;
}

/* Returns an item's tile with slots [begin, end).  Unless it is the whole item, the tile gets a
 * partial, and the item's first tile adds the merge. */
static struct attn_tile make_tile(struct attn_plan *plan, const struct attn_plan_batch *batch,
                                  uint32_t seq, uint32_t kv_head, uint32_t begin, uint32_t end) {
    struct attn_tile tile = {.seq = (int32_t)seq,
                             .kv_head = (int32_t)kv_head,
                             .begin = (int32_t)begin,
                             .end = (int32_t)end,
                             .pages = batch->table_at[seq],
                             .partial = -1,
                             .next = -1};
    const uint32_t first = first_slot(batch, seq);
    if (begin == first && end == batch->n_slots[seq]) return tile;
    if (begin == first) {
        plan->merges[plan->n_merges++] = (struct attn_merge){
            .seq = tile.seq, .kv_head = tile.kv_head, .first_partial = (int32_t)plan->n_partials};
    }
    tile.partial = (int32_t)plan->n_partials++;
    plan->merges[plan->n_merges - 1].n_partials++;
    return tile;
}

/* Packs whole items, in order, into blocks of at most `capacity` units, and fills the blocks if `f`
 * is given.  Returns how many blocks that takes, UINT32_MAX if an item does not fit one. */
static uint32_t pack_whole(struct filler *f, const struct attn_plan_shape *shape,
                           const struct attn_plan_batch *batch, uint64_t capacity) {
    uint32_t block = 0;
    uint64_t used = 0;
    for (uint32_t seq = 0; seq < batch->n_seqs; seq++) {
        uint32_t units = units_of(batch, seq);
        if (units > capacity) return UINT32_MAX;
        for (uint32_t head = 0; units > 0 && head < shape->n_kv_heads; head++) {
            if (used + units > capacity) {
                block++;
                used = 0;
            }
            used += units;
            if (!f) continue;
            struct attn_tile tile =
                make_tile(f->plan, batch, seq, head, first_slot(batch, seq), batch->n_slots[seq]);
            add_tile(f, block, &tile);
        }
    }
    return block + 1;
}

/* Returns the last unit + 1 of a block if all blocks get equal shares. */
static uint64_t even_end(const struct course *c, uint32_t block) {
    return c->n_units * (block + 1) / c->n_blocks;
}

static void cut_evenly(struct filler *f, const struct attn_plan_shape *shape,
                       const struct attn_plan_batch *batch, const struct course *c) {
    uint64_t at = 0;
    uint32_t block = 0;
    for (uint32_t seq = 0; seq < batch->n_seqs; seq++) {
        const uint32_t n = batch->n_slots[seq], begin = first_slot(batch, seq);
        for (uint32_t head = 0; head < shape->n_kv_heads; head++) {
            uint64_t first = at, end = at + units_of(batch, seq);
            while (at < end) {
                while (even_end(c, block) <= at) block++;
                uint64_t stop = even_end(c, block) < end ? even_end(c, block) : end;
                uint64_t begin_slot = begin + (at - first) * ATTN_UNIT_SLOTS,
                         end_slot = stop == end ? n : begin + (stop - first) * ATTN_UNIT_SLOTS;
                struct attn_tile tile =
                    make_tile(f->plan, batch, seq, head, (uint32_t)begin_slot, (uint32_t)end_slot);
                add_tile(f, block, &tile);
                at = stop;
            }
        }
    }
}

/* Cuts every item by the same rule, at multiples of split_slots.  A tile goes to the block in whose
 * even share its middle lies. */
static void cut_fixed(struct filler *f, const struct attn_plan_shape *shape,
                      const struct attn_plan_batch *batch, const struct course *c) {
    uint64_t at = 0;
    for (uint32_t seq = 0; seq < batch->n_seqs; seq++) {
        uint32_t n = batch->n_slots[seq], split = shape->split_slots;
        for (uint32_t head = 0; head < shape->n_kv_heads; head++) {
            for (uint32_t begin = first_slot(batch, seq), end; begin < n; begin = end) {
                end = min_u32((begin / split + 1) * split, n);
                uint32_t units = units_between(begin, end);
                uint64_t block = (2 * at + units) * c->n_blocks / (2 * c->n_units);
                struct attn_tile tile = make_tile(f->plan, batch, seq, head, begin, end);
                add_tile(f, (uint32_t)block, &tile);
                at += units;
            }
        }
    }
}

/* Returns the smallest number of units with which blocks can have whole items, 0 if there is none
 * that is near the mean. */
static uint64_t whole_capacity(const struct attn_plan_shape *shape,
                               const struct attn_plan_batch *batch, uint64_t n_units) {
    uint64_t mean = div_up(n_units, shape->n_blocks);
    if (mean < MIN_TILE_UNITS) mean = MIN_TILE_UNITS;
    for (uint64_t capacity = mean; capacity <= mean + MERGE_COST_UNITS; capacity++)
        if (pack_whole(NULL, shape, batch, capacity) <= shape->n_blocks) return capacity;
    return 0;
}

/* Returns the slot at which block i of a cluster begins an item: at pairs of units, as blocks with
 * 8-bit pages read them outside clusters. */
static uint32_t cluster_slot(const struct attn_plan_batch *batch, uint32_t seq, uint32_t i,
                             uint32_t n_cluster) {
    const uint32_t pairs = (units_of(batch, seq) + 1) / 2;
    const uint64_t slot =
        first_slot(batch, seq) + (uint64_t)pairs * i / n_cluster * 2 * ATTN_UNIT_SLOTS;
    return (uint32_t)min_u64(slot, batch->n_slots[seq]);
}

/* Cuts every item among the blocks of its cluster.  A part without slots names its item, too. */
static void cut_in_clusters(struct attn_plan *plan, const struct attn_plan_shape *shape,
                            const struct attn_plan_batch *batch) {
    struct attn_tile *tile = plan->tiles;
    for (uint32_t seq = 0; seq < batch->n_seqs; seq++)
        for (uint32_t head = 0; head < shape->n_kv_heads; head++)
            for (uint32_t i = 0; i < shape->n_cluster; i++)
                *tile++ = (struct attn_tile){
                    .seq = (int32_t)seq,
                    .kv_head = (int32_t)head,
                    .begin = (int32_t)cluster_slot(batch, seq, i, shape->n_cluster),
                    .end = (int32_t)cluster_slot(batch, seq, i + 1, shape->n_cluster),
                    .pages = batch->table_at[seq],
                    .partial = -1,
                    .next = -1};
}

/* Returns the largest cluster of which there may be n_items at once; 1 if there is none. */
static uint32_t largest_cluster(const struct attn_plan_shape *shape, uint32_t n_items) {
    for (uint32_t n = ATTN_MAX_CLUSTER; n > 1; n--)
        if (n_items <= shape->max_clusters[n] && n_items * n <= shape->n_blocks) return n;
    return 1;
}

uint32_t attn_plan_cluster(const struct attn_plan_shape *shape,
                           const struct attn_plan_batch *batch) {
    const uint64_t n_units = units_of_batch(shape, batch);
    if (shape->split_slots > 0) return 1;
    if (n_units == 0) return 0;
    const uint32_t n_cluster = largest_cluster(shape, batch->n_seqs * shape->n_kv_heads);
    if (n_cluster == 1) return 1; /* before many items are packed here and again for the plan */
    if (whole_capacity(shape, batch, n_units) > 0) return 0;
    uint32_t longest = 0;
    for (uint32_t i = 0; i < batch->n_seqs; i++) longest = max_u32(longest, units_of(batch, i));
    const uint64_t most = n_units / shape->n_blocks + CLUSTER_SAVES_UNITS;
    return longest / n_cluster <= most ? n_cluster : 1;
}

uint32_t attn_plan_grid(const struct attn_plan_shape *shape, uint32_t n_seqs) {
    if (shape->n_cluster < 2) return shape->n_blocks;
    return min_u32(n_seqs * shape->n_kv_heads, shape->n_blocks / shape->n_cluster) *
           shape->n_cluster;
}

static void cut_as_asked(struct filler *f, const struct attn_plan_shape *shape,
                         const struct attn_plan_batch *batch) {
    struct course c = {units_of_batch(shape, batch), shape->n_blocks};
    if (c.n_units == 0) return;
    if (shape->split_slots > 0) {
        cut_fixed(f, shape, batch, &c);
        return;
    }
    if (shape->n_cluster > 1) {
        cut_in_clusters(f->plan, shape, batch);
        return;
    }
    const uint64_t capacity = whole_capacity(shape, batch, c.n_units);
    if (capacity > 0) {
        pack_whole(f, shape, batch, capacity);
        return;
    }
    uint64_t most = div_up(c.n_units, MIN_TILE_UNITS);
    if (most < c.n_blocks) c.n_blocks = (uint32_t)most;
    cut_evenly(f, shape, batch, &c);
}

void attn_plan_build(struct attn_plan *plan, const struct attn_plan_shape *shape,
                     const struct attn_plan_batch *batch) {
    struct filler f = {.plan = plan, .n_blocks = shape->n_blocks};
    plan->n_tiles = shape->n_blocks;
    plan->n_merges = plan->n_partials = 0;
    for (uint32_t i = 0; i < shape->n_blocks; i++) {
        plan->tiles[i] = (struct attn_tile){.partial = -1, .next = -1};
    }
    cut_as_asked(&f, shape, batch);
    plan->tiles[0].n_merges = (int32_t)plan->n_merges;
}
