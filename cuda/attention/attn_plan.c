/* attn_plan.c - see attn_plan.h.  Thread: engine.  Memory: the caller's. */
#include "cuda/attention/attn_plan.h"

#include <stdlib.h>

#include "engine/base/sizes.h"

enum {
    /* A shorter tile costs more in partials and merging than it saves in reading, but for those of
     * least_part(). */
    MIN_TILE_UNITS = 8,
    /* Units that the warps of a block take at the same time, so 62 take as long as 64. */
    BLOCK_UNITS = 8,
    /* Cost of merging partials, in units of 128 columns that a block reads while all blocks
     * read. */
    MERGE_COST_UNITS = 8,
    /* The same while few blocks read, in units of 16 bits; of 8 bits twice as many.  Few blocks
     * wait for latency and not for bandwidth, so they read more meanwhile. */
    FEW_MERGE_COST_UNITS = 16,
    /* Most parts of an item for which parts of half the units save time: merging more parts takes
     * longer than it saves. */
    MOST_SHORT_PARTS = 12,
    /* Cost of finishing one more tile, in units. */
    TILE_COST_UNITS = 4,
    /* Units by which a plan with few blocks may be longer than one with all, because the other
     * multiprocessors read weights meanwhile. */
    FEW_SAVES_UNITS = 16,
    /* Partials that are enough for a thread that reads them. */
    READER_PARTIALS = 3,
    MOST_READERS = 32,
    /* Threads that share the partials of an item if cuts are fixed: a row's bits may not depend on
     * other items. */
    FIXED_READERS = 8
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
        .n_loads = shape->n_blocks + max_seqs,
    };
    return room;
}

/* Gives a block another tile.  Its first one stays the first; the others' order does not matter. */
static void add_tile(struct attn_plan *plan, uint32_t block, const struct attn_tile *tile) {
    struct attn_tile *first = &plan->tiles[block];
    if (first->end == 0) {
        *first = *tile;
        return;
    }
    plan->tiles[plan->n_tiles] = *tile;
    plan->tiles[plan->n_tiles].next = first->next;
    first->next = (int32_t)plan->n_tiles++;
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

/* ---- whole items ---- */

static int by_falling_units(const void *a, const void *b) {
    const struct attn_load *x = a, *y = b;
    if (x->units != y->units) return x->units < y->units ? 1 : -1;
    return x->owner < y->owner ? -1 : x->owner > y->owner;
}

/* Lets the first of n loads, a heap whose least is the first, sink to its place. */
static void sink(struct attn_load *heap, uint32_t n) {
    const struct attn_load x = heap[0];
    uint32_t at = 0;
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1].units < heap[child].units) child++;
        if (heap[child].units >= x.units) break;
        heap[at] = heap[child];
    }
    heap[at] = x;
}

/* Returns how many blocks it takes for all to read equally fast.  Two multiprocessors share a
 * path to memory.  With fewer blocks some have a path alone and end early, so that equal loads take
 * longer. */
static uint32_t enough_blocks(const struct attn_plan_shape *shape) {
    return (uint32_t)div_up((uint64_t)shape->n_blocks * 19, 20);
}

/* Returns to how many blocks whole items are dealt: as many as can have equal numbers, if these are
 * enough, else all. */
static uint32_t blocks_of_items(const struct attn_plan_shape *shape, uint64_t n_items) {
    const uint32_t n = (uint32_t)div_up(n_items, div_up(n_items, shape->n_blocks));
    return n < enough_blocks(shape) ? (uint32_t)min_u64(n_items, shape->n_blocks) : n;
}

/* Deals whole items, the longest first, to the block that has least.  plan->loads becomes what the
 * blocks have; returns how many they are. */
static uint32_t deal_items(struct attn_plan *plan, const struct attn_plan_shape *shape,
                           const struct attn_plan_batch *batch) {
    struct attn_load *seqs = plan->loads + shape->n_blocks, *heap = plan->loads;
    uint32_t n_seqs = 0;
    for (uint32_t i = 0; i < batch->n_seqs; i++) {
        const uint32_t units = units_of(batch, i);
        if (units > 0) seqs[n_seqs++] = (struct attn_load){units, i};
    }
    qsort(seqs, n_seqs, sizeof(*seqs), by_falling_units);
    const uint32_t n = blocks_of_items(shape, (uint64_t)n_seqs * shape->n_kv_heads);
    for (uint32_t i = 0; i < n; i++) heap[i] = (struct attn_load){0, i};
    for (uint32_t i = 0; i < n_seqs; i++) {
        const uint32_t seq = seqs[i].owner, begin = first_slot(batch, seq);
        for (uint32_t head = 0; head < shape->n_kv_heads; head++) {
            const struct attn_tile tile =
                make_tile(plan, batch, seq, head, begin, batch->n_slots[seq]);
            add_tile(plan, heap[0].owner, &tile);
            heap[0].units += seqs[i].units;
            sink(heap, n);
        }
    }
    return n;
}

/* Returns about how long n blocks take for their loads, in units of a block while all read; sorts
 * the loads.  As long as three blocks in four are left, memory is busy; then those left read a
 * third faster.  Of fewer blocks than enough it is the longest load, which is too long rather than
 * too short. */
static uint64_t time_of_loads(const struct attn_plan_shape *shape, struct attn_load *loads,
                              uint32_t n) {
    qsort(loads, n, sizeof(*loads), by_falling_units);
    if (n < enough_blocks(shape)) return loads[0].units;
    const uint64_t level = loads[shape->n_blocks * 3 / 4].units;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += min_u64(loads[i].units, level);
    return sum / shape->n_blocks + (loads[0].units - level) * 3 / 4;
}

/* Returns the units of the longest item. */
static uint32_t longest_item(const struct attn_plan_batch *batch) {
    uint32_t longest = 0;
    for (uint32_t i = 0; i < batch->n_seqs; i++) longest = max_u32(longest, units_of(batch, i));
    return longest;
}

/* Makes a plan in which no item is cut, unless its blocks take more units than `most`, by an
 * estimate.  Returns false then: the plan must be begun again. */
static bool keep_whole(struct attn_plan *plan, const struct attn_plan_shape *shape,
                       const struct attn_plan_batch *batch, uint64_t most) {
    /* No time_of_loads() is less, but for its roundings. */
    if ((uint64_t)longest_item(batch) * 3 / 4 > most + 2) return false;
    const uint32_t n = deal_items(plan, shape, batch);
    return time_of_loads(shape, plan->loads, n) <= most;
}

/* ---- cut items ---- */

/* Returns the last unit + 1 of a block if all blocks get equal shares. */
static uint64_t even_end(const struct course *c, uint32_t block) {
    return c->n_units * (block + 1) / c->n_blocks;
}

static void cut_evenly(struct attn_plan *plan, const struct attn_plan_shape *shape,
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
                    make_tile(plan, batch, seq, head, (uint32_t)begin_slot, (uint32_t)end_slot);
                add_tile(plan, block, &tile);
                at = stop;
            }
        }
    }
}

/* Cuts every item by the same rule, at multiples of split_slots.  Tiles go to the same block if
 * their middles lie in the same even share. */
static void cut_fixed(struct attn_plan *plan, const struct attn_plan_shape *shape,
                      const struct attn_plan_batch *batch, const struct course *c) {
    uint64_t at = 0, share = UINT64_MAX;
    uint32_t n_busy = 0;
    for (uint32_t seq = 0; seq < batch->n_seqs; seq++) {
        uint32_t n = batch->n_slots[seq], split = shape->split_slots;
        for (uint32_t head = 0; head < shape->n_kv_heads; head++) {
            for (uint32_t begin = first_slot(batch, seq), end; begin < n; begin = end) {
                end = min_u32((begin / split + 1) * split, n);
                const uint32_t units = units_between(begin, end);
                const uint64_t middle = (2 * at + units) * c->n_blocks / (2 * c->n_units);
                const struct attn_tile tile = make_tile(plan, batch, seq, head, begin, end);
                if (middle != share) n_busy++;
                share = middle;
                add_tile(plan, n_busy - 1, &tile);
                at += units;
            }
        }
    }
}

/* Returns how many parts there are if none has more than `most` units. */
static uint64_t count_parts(const struct attn_plan_shape *shape,
                            const struct attn_plan_batch *batch, uint32_t most) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < batch->n_seqs; i++) n += div_up(units_of(batch, i), most);
    return n * shape->n_kv_heads;
}

/* Returns how many units a part has at least, if the longest item has `longest`.  Two warps of a
 * scheduler take twice as long as one to convert units of 8 bits, so half as many are enough if all
 * items can have so short parts. */
static uint32_t least_part(const struct attn_plan_shape *shape, const struct attn_plan_batch *batch,
                           uint32_t longest, uint32_t n_blocks) {
    if (!shape->few) return MIN_TILE_UNITS;
    const uint32_t less = MIN_TILE_UNITS / shape->part_units;
    const bool suits =
        longest <= MOST_SHORT_PARTS * less && count_parts(shape, batch, less) <= n_blocks;
    return suits ? less : MIN_TILE_UNITS;
}

/* Returns the least number of units that the longest part has if there is one to a block; 0 if the
 * items are more than the blocks. */
static uint32_t longest_part(const struct attn_plan_shape *shape,
                             const struct attn_plan_batch *batch, uint32_t n_blocks) {
    const uint32_t longest = longest_item(batch);
    uint32_t low = least_part(shape, batch, longest, n_blocks), high = max_u32(longest, low);
    if (count_parts(shape, batch, high) > n_blocks) return 0;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (count_parts(shape, batch, middle) <= n_blocks) high = middle;
        else low = middle + 1;
    }
    return high;
}

/* Returns the longest part's units, rounded up so that each warp has equally many.  They are not
 * rounded if that is more than `most`, or leaves too few blocks. */
static uint32_t whole_units(const struct attn_plan_shape *shape,
                            const struct attn_plan_batch *batch, uint32_t longest, uint64_t most) {
    const uint32_t all = (uint32_t)round_up(longest, BLOCK_UNITS);
    return all <= most && count_parts(shape, batch, all) >= enough_blocks(shape) ? all : longest;
}

/* Returns the slot at which part i of an item begins. */
static uint32_t part_slot(const struct attn_plan_shape *shape, const struct attn_plan_batch *batch,
                          uint32_t seq, uint32_t i, uint32_t n_parts) {
    const uint64_t n = div_up(units_of(batch, seq), shape->part_units),
                   slots = n * i / n_parts * shape->part_units * ATTN_UNIT_SLOTS;
    return (uint32_t)min_u64(first_slot(batch, seq) + slots, batch->n_slots[seq]);
}

/* Cuts every item into equal parts of about `most` units at most, each for a block of its own. */
static void cut_into_parts(struct attn_plan *plan, const struct attn_plan_shape *shape,
                           const struct attn_plan_batch *batch, uint32_t most) {
    uint32_t block = 0;
    for (uint32_t seq = 0; seq < batch->n_seqs; seq++) {
        const uint32_t n = (uint32_t)div_up(units_of(batch, seq), most);
        for (uint32_t head = 0; head < shape->n_kv_heads; head++)
            for (uint32_t i = 0; i < n; i++) {
                const struct attn_tile tile =
                    make_tile(plan, batch, seq, head, part_slot(shape, batch, seq, i, n),
                              part_slot(shape, batch, seq, i + 1, n));
                add_tile(plan, block++, &tile);
            }
    }
}

/* Returns the units of a block if all get equal shares, with what the end of another tile takes. */
static uint64_t even_units(const struct attn_plan_shape *shape,
                           const struct attn_plan_batch *batch) {
    return max_u64(units_of_batch(shape, batch) / shape->n_blocks, MIN_TILE_UNITS) +
           TILE_COST_UNITS;
}

bool attn_plan_suits_few(const struct attn_plan_shape *shape, const struct attn_plan_batch *batch) {
    if (shape->split_slots > 0) return false;
    const uint32_t of_few = longest_part(shape, batch, shape->n_few);
    if (of_few == 0) return false;
    const uint64_t of_all = longest_part(shape, batch, shape->n_blocks);
    return of_few <= min_u64(of_all, even_units(shape, batch)) + FEW_SAVES_UNITS;
}

uint32_t attn_plan_grid(const struct attn_plan_shape *shape) {
    return shape->few ? shape->n_few : shape->n_blocks;
}

/* Begins a plan without work. */
static void begin_plan(struct attn_plan *plan, const struct attn_plan_shape *shape) {
    plan->n_tiles = shape->n_blocks;
    plan->n_merges = plan->n_partials = 0;
    for (uint32_t i = 0; i < shape->n_blocks; i++)
        plan->tiles[i] = (struct attn_tile){.partial = -1, .next = -1};
}

/* Returns how many units an item may have if it is to stay whole, where a part would have `part`.
 * Few blocks keep what several would read in one unit a warp, and a merge. */
static uint64_t most_whole(const struct attn_plan_shape *shape, uint64_t part) {
    const uint64_t most = part + MERGE_COST_UNITS,
                   few = MIN_TILE_UNITS + FEW_MERGE_COST_UNITS * shape->part_units;
    return shape->few ? max_u64(most, few) : most;
}

static void cut_as_asked(struct attn_plan *plan, const struct attn_plan_shape *shape,
                         const struct attn_plan_batch *batch) {
    struct course c = {units_of_batch(shape, batch), shape->n_blocks};
    if (c.n_units == 0) return;
    if (shape->split_slots > 0) {
        cut_fixed(plan, shape, batch, &c);
        return;
    }
    const uint64_t even = even_units(shape, batch);
    const uint32_t part = longest_part(shape, batch, c.n_blocks);
    const bool in_parts = part > 0 && part <= even;
    if (keep_whole(plan, shape, batch, most_whole(shape, in_parts ? part : even))) return;
    begin_plan(plan, shape);
    if (in_parts) {
        cut_into_parts(plan, shape, batch, whole_units(shape, batch, part, even));
        return;
    }
    c.n_blocks = (uint32_t)min_u64(c.n_blocks, div_up(c.n_units, MIN_TILE_UNITS));
    cut_evenly(plan, shape, batch, &c);
}

/* Returns how many threads share the partials of an item. */
static int32_t readers_of_merges(const struct attn_plan *plan,
                                 const struct attn_plan_shape *shape) {
    int32_t n_readers = 1, most = 1;
    if (shape->split_slots > 0) return FIXED_READERS;
    for (uint32_t i = 0; i < plan->n_merges; i++)
        if (plan->merges[i].n_partials > most) most = plan->merges[i].n_partials;
    while (n_readers < MOST_READERS && n_readers * READER_PARTIALS < most) n_readers *= 2;
    return n_readers;
}

static void end_plan(struct attn_plan *plan, const struct attn_plan_shape *shape) {
    int32_t n_busy = 0;
    while (n_busy < (int32_t)shape->n_blocks && plan->tiles[n_busy].end > 0) n_busy++;
    for (uint32_t i = 0; plan->n_merges > 0 && i < plan->n_tiles; i++)
        plan->tiles[i].n_merges = (int32_t)plan->n_merges;
    *plan->end =
        (struct attn_plan_end){.n_blocks = n_busy, .n_readers = readers_of_merges(plan, shape)};
}

void attn_plan_build(struct attn_plan *plan, const struct attn_plan_shape *shape,
                     const struct attn_plan_batch *batch) {
    struct attn_plan_shape grid = *shape;
    grid.n_blocks = attn_plan_grid(shape);
    begin_plan(plan, &grid);
    cut_as_asked(plan, &grid, batch);
    end_plan(plan, &grid);
}
