/* split.c - see split.h.  Thread: engine.  Memory: the caller's. */
#include "cuda/attention/prefill/split.h"

#include "engine/base/sizes.h"

/* Times in pairs: a block's beginning and end, and the merge after all blocks. */
static const double block_cost = 3, merge_cost = 5;

/* A plan must beat this share of the time of whole prompts.  A plan with more rounds must beat this
 * share of the time of one with fewer.  Estimates are rough, and fewer splits are less to merge. */
static const double worthwhile = 0.95;

/* Blocks differ little in length if the longest is less than this many times the mean. */
static const double about_one = 1.1;

/* A number of blocks, the pairs of all, the pairs of the longest, and whether any tile is cut. */
struct load {
    uint64_t n_blocks, n_pairs;
    uint32_t longest;
    bool cut;
};

static double sum_of(const struct load *load) {
    return (double)load->n_pairs + block_cost * (double)load->n_blocks;
}

static double rounds_of(const struct attn_split_shape *shape, const struct load *load) {
    return (double)div_up(load->n_blocks, shape->n_blocks);
}

/* Returns an upper bound on a plan's time, the lesser of two.  One is rounds as long as the longest
 * block; the other, however blocks follow each other, is that block after a fair share of all. */
static double time_of_plan(const struct attn_split_shape *shape, const struct load *load) {
    const double longest = load->longest + block_cost, rounds = rounds_of(shape, load) * longest,
                 share = sum_of(load) / shape->n_blocks + longest,
                 time = rounds < share ? rounds : share;
    return load->cut ? time + merge_cost : time;
}

/* Returns a lower bound on the time of whole prompts.  Blocks of about one length run round after
 * round. */
static double time_of_whole(const struct attn_split_shape *shape, const struct load *load) {
    const double longest = load->longest + block_cost, sum = sum_of(load),
                 mean = sum / (double)load->n_blocks, share = sum / shape->n_blocks;
    if (longest < about_one * mean) return rounds_of(shape, load) * mean;
    return longest > share ? longest : share;
}

/* Counts the pairs with a slot that one of the rows [row, row + n) sees. */
static uint32_t pairs_of(const struct attn_split_rows *rows, uint32_t row, uint32_t n) {
    const uint32_t first_visible = rows->n_slots - rows->n_rows + row + 1,
                   visible = first_visible + n - 1;
    uint32_t first = 0;
    if (rows->window > 0 && first_visible > rows->window)
        first = (first_visible - rows->window) / ATTN_SPLIT_PAIR;
    return (uint32_t)div_up(visible, ATTN_SPLIT_PAIR) - first;
}

void attn_split_begin(struct attn_split_plan *plan) {
    plan->n_items = plan->n_merges = plan->n_partials = 0;
    plan->n_tiles = plan->whole_blocks = plan->whole_pairs = 0;
    plan->longest_whole = 0;
}

static void count_whole(struct attn_split_plan *plan, const struct attn_split_shape *shape,
                        const struct attn_split_rows *rows) {
    for (uint32_t row = rows->first_row; row < rows->n_rows; row += shape->block_rows) {
        const uint32_t n = pairs_of(rows, row, min_u32(shape->block_rows, rows->n_rows - row));
        plan->whole_blocks += shape->n_heads;
        plan->whole_pairs += (uint64_t)n * shape->n_heads;
        plan->longest_whole = max_u32(plan->longest_whole, n);
    }
}

void attn_split_add(struct attn_split_plan *plan, const struct attn_split_shape *shape,
                    const struct attn_split_rows *rows) {
    const uint32_t step = attn_split_tile_rows(shape), room = attn_split_max_items(shape);
    if (rows->first_row >= rows->n_rows) return;
    const uint64_t n = div_up(rows->n_rows - rows->first_row, step);
    if (plan->n_tiles + n > room) {
        plan->n_tiles = (uint64_t)room + 1; /* too many, whatever is added later */
        return;
    }
    for (uint32_t row = rows->first_row; row < rows->n_rows; row += step) {
        const uint32_t n_rows = min_u32(step, rows->n_rows - row);
        plan->tiles[plan->n_tiles++] =
            (struct attn_split_tile){.seq = (int32_t)rows->seq,
                                     .row = (int32_t)row,
                                     .n_rows = (int32_t)n_rows,
                                     .n_pairs = pairs_of(rows, row, n_rows)};
    }
    count_whole(plan, shape, rows);
}

/* Returns how many splits of at most `capacity` pairs a tile gets; fewer if those are too short. */
static uint32_t splits_of(const struct attn_split_tile *tile, uint32_t capacity) {
    return (uint32_t)attn_split_count((int32_t)tile->n_pairs,
                                      (int32_t)div_up(tile->n_pairs, capacity));
}

static struct load load_of(const struct attn_split_plan *plan, const struct attn_split_shape *shape,
                           uint32_t capacity) {
    struct load load = {0};
    for (uint64_t i = 0; i < plan->n_tiles; i++) {
        const struct attn_split_tile *tile = &plan->tiles[i];
        const uint32_t n = splits_of(tile, capacity);
        load.n_blocks += (uint64_t)n * shape->n_kv_heads;
        load.n_pairs += (uint64_t)tile->n_pairs * shape->n_kv_heads;
        load.longest = max_u32(load.longest, (uint32_t)div_up(tile->n_pairs, n));
        load.cut |= n > 1;
    }
    return load;
}

/* Returns the least capacity that needs at most n_blocks blocks; 0 if there is none. */
static uint32_t least_capacity(const struct attn_split_plan *plan,
                               const struct attn_split_shape *shape, uint32_t longest,
                               uint64_t n_blocks) {
    uint32_t low = 1, high = longest;
    if (load_of(plan, shape, high).n_blocks > n_blocks) return 0;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (load_of(plan, shape, middle).n_blocks > n_blocks) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Returns the capacity of the best cut, tried for one round of blocks, for two, and so on; 0 if
 * whole prompts are as good. */
static uint32_t choose_capacity(const struct attn_split_plan *plan,
                                const struct attn_split_shape *shape) {
    const struct load whole = {.n_blocks = plan->whole_blocks,
                               .n_pairs = plan->whole_pairs,
                               .longest = plan->longest_whole};
    double best = worthwhile * time_of_whole(shape, &whole);
    uint32_t longest = 0, chosen = 0;
    for (uint64_t i = 0; i < plan->n_tiles; i++) longest = max_u32(longest, plan->tiles[i].n_pairs);
    for (uint64_t n = shape->n_blocks; n < (uint64_t)shape->max_blocks + shape->n_blocks;
         n += shape->n_blocks) {
        const uint32_t capacity =
            least_capacity(plan, shape, longest, min_u64(n, shape->max_blocks));
        if (capacity == 0) continue;
        const struct load load = load_of(plan, shape, capacity);
        const double time = time_of_plan(shape, &load);
        if (time >= best) continue;
        best = worthwhile * time;
        chosen = capacity;
    }
    return chosen;
}

static void add_item(struct attn_split_plan *plan, const struct attn_split_tile *tile,
                     uint32_t split) {
    plan->items[plan->n_items++] = (struct attn_split_item){
        .seq = tile->seq,
        .row = tile->row,
        .n_rows = tile->n_rows,
        .split = (int32_t)split,
        .n_splits = (int32_t)tile->n_splits,
        .partial = tile->n_splits > 1 ? tile->partial + (int32_t)split : -1};
}

/* Cuts the tiles from the last one on, because it sees most of a sequence's tiles. */
void attn_split_cut(struct attn_split_plan *plan, const struct attn_split_shape *shape) {
    if (plan->n_tiles == 0 || plan->n_tiles > attn_split_max_items(shape)) return;
    const uint32_t capacity = choose_capacity(plan, shape);
    if (capacity == 0) return;
    uint32_t most = 1;
    for (uint64_t i = plan->n_tiles; i-- > 0;) {
        struct attn_split_tile *tile = &plan->tiles[i];
        tile->n_splits = splits_of(tile, capacity);
        tile->partial = (int32_t)plan->n_partials;
        most = max_u32(most, tile->n_splits);
        if (tile->n_splits == 1) continue;
        plan->n_partials += tile->n_splits;
        plan->n_merges++;
    }
    for (uint32_t split = 0; most > 1 && split < most; split++)
        for (uint64_t i = plan->n_tiles; i-- > 0;)
            if (plan->tiles[i].n_splits > 1 && split < plan->tiles[i].n_splits)
                add_item(plan, &plan->tiles[i], split);
    for (uint64_t i = plan->n_tiles; i-- > 0;)
        if (plan->tiles[i].n_splits == 1) add_item(plan, &plan->tiles[i], 0);
}
