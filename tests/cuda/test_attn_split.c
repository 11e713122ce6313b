/* test_attn_split.c - plans of split prompts: every pair of every row once, in their room, sooner
 * done than whole prompts, and none where that is not so. */
#include <stdlib.h>
#include <string.h>

#include "cuda/attention/prefill/split.h"
#include "engine/base/sizes.h"
#include "tests/test.h"

enum { MAX_PROMPTS = 16, MAX_BLOCKS = 4096 };

static struct attn_split_shape shape_of(uint32_t n_heads, uint32_t n_kv_heads, uint32_t block_rows,
                                        uint32_t n_blocks) {
    return (struct attn_split_shape){n_heads, n_kv_heads, block_rows, n_blocks,
                                     n_blocks * ATTN_SPLIT_MAX};
}

/* Guards behind both arrays. */
static struct attn_split_plan make_plan(const struct attn_split_shape *shape,
                                        const struct attn_split_rows *prompts, uint32_t n) {
    const uint32_t room = attn_split_max_items(shape);
    const size_t item_bytes = (room + 1) * sizeof(struct attn_split_item),
                 tile_bytes = (room + 1) * sizeof(struct attn_split_tile);
    struct attn_split_plan plan = {.items = memset(malloc(item_bytes), 0x55, item_bytes),
                                   .tiles = memset(malloc(tile_bytes), 0x55, tile_bytes)};
    attn_split_begin(&plan);
    for (uint32_t i = 0; i < n; i++) attn_split_add(&plan, shape, &prompts[i]);
    attn_split_cut(&plan, shape);
    assert_true(plan.n_items <= room && plan.n_partials <= room && plan.n_merges <= plan.n_items);
    assert_int_equal(plan.items[room].seq, 0x55555555);
    assert_int_equal(plan.tiles[room].seq, 0x55555555);
    return plan;
}

static void drop_plan(struct attn_split_plan *plan) {
    free(plan->items);
    free(plan->tiles);
}

/* As the kernels count (split_tile.cuh), by slots instead of blocks. */
static uint32_t first_pair(const struct attn_split_rows *p, uint32_t row, uint32_t window) {
    const uint32_t visible = p->n_slots - p->n_rows + row + 1;
    return window > 0 && visible > window ? (visible - window) / 128 : 0;
}

static uint32_t end_pair(const struct attn_split_rows *p, uint32_t row) {
    return (uint32_t)div_up(p->n_slots - p->n_rows + row + 1, 128);
}

/* Of a layer with this window, the pieces of each row are its tile's pairs, one after the other. */
static void expect_all_pairs(const struct attn_split_plan *plan,
                             const struct attn_split_rows *prompt, uint32_t window) {
    for (uint32_t row = prompt->first_row; row < prompt->n_rows; row++) {
        uint32_t next = UINT32_MAX, tile_end = 0, n_seen = 0;
        for (int32_t split = 0; split == 0 || next < tile_end; split++) {
            for (uint32_t i = 0; i < plan->n_items; i++) {
                const struct attn_split_item *item = &plan->items[i];
                const uint32_t first = (uint32_t)item->row, n = (uint32_t)item->n_rows;
                if ((uint32_t)item->seq != prompt->seq || item->split != split || row < first ||
                    row >= first + n)
                    continue;
                const uint32_t from = first_pair(prompt, first, window);
                const int32_t n_pairs = (int32_t)(end_pair(prompt, first + n - 1) - from);
                const uint32_t begin = from + (uint32_t)attn_split_begin_of(n_pairs, item->n_splits,
                                                                            split),
                               end = from + (uint32_t)attn_split_begin_of(n_pairs, item->n_splits,
                                                                          split + 1);
                assert_true(split == 0 ? begin == from : begin == next);
                assert_true(end > begin);
                tile_end = from + (uint32_t)n_pairs;
                next = end;
                n_seen++;
            }
            assert_int_equal(n_seen, split + 1);
        }
        assert_int_equal(next, tile_end);
        assert_true(first_pair(prompt, row, window) < end_pair(prompt, row));
    }
}

/* Whole tiles write themselves; the partials of a cut one are in the order of its pieces, those of
 * all tiles apart, and those to be merged come first. */
static void expect_partials(const struct attn_split_plan *plan) {
    uint8_t *taken = calloc(plan->n_partials + 1, 1);
    for (uint32_t i = 0; i < plan->n_items; i++) {
        const struct attn_split_item *item = &plan->items[i];
        assert_true(item->split >= 0 && item->split < item->n_splits);
        assert_int_equal(i < plan->n_merges, item->split == 0 && item->n_splits > 1);
        if (item->n_splits == 1) {
            assert_int_equal(item->partial, -1);
            continue;
        }
        assert_true(item->partial >= item->split && item->partial < (int32_t)plan->n_partials);
        assert_false(taken[item->partial]++);
        for (uint32_t j = 0; j < plan->n_merges; j++)
            if (plan->items[j].seq == item->seq && plan->items[j].row == item->row)
                assert_int_equal(item->partial, plan->items[j].partial + item->split);
    }
    for (uint32_t i = 0; i < plan->n_partials; i++) assert_true(taken[i]);
    free(taken);
}

/* Pairs that a device takes with blocks in this order, each on whatever is free first; a block
 * costs 3 pairs beside its own. */
static uint64_t simulate(const uint32_t *pairs, uint32_t n, uint32_t n_at_once) {
    uint64_t busy[MAX_BLOCKS] = {0}, end = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t first = 0;
        for (uint32_t b = 1; b < n_at_once; b++)
            if (busy[b] < busy[first]) first = b;
        busy[first] += pairs[i] + 3;
        if (busy[first] > end) end = busy[first];
    }
    return end;
}

static int longer_first(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x < y) - (x > y);
}

static uint64_t time_of_plan(const struct attn_split_plan *plan,
                             const struct attn_split_shape *shape,
                             const struct attn_split_rows *prompts) {
    static uint32_t pairs[MAX_BLOCKS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->n_items; i++) {
        const struct attn_split_item *item = &plan->items[i];
        const struct attn_split_rows *p = &prompts[item->seq];
        const int32_t n_pairs = (int32_t)(end_pair(p, (uint32_t)(item->row + item->n_rows - 1)) -
                                          first_pair(p, (uint32_t)item->row, p->window));
        for (uint32_t h = 0; h < shape->n_kv_heads; h++) {
            assert_true(n < MAX_BLOCKS);
            pairs[n++] = (uint32_t)(attn_split_begin_of(n_pairs, item->n_splits, item->split + 1) -
                                    attn_split_begin_of(n_pairs, item->n_splits, item->split));
        }
    }
    return simulate(pairs, n, shape->n_blocks) + (plan->n_merges > 0 ? 5 : 0);
}

static uint64_t time_of_whole(const struct attn_split_shape *shape,
                              const struct attn_split_rows *prompts, uint32_t n_prompts) {
    static uint32_t pairs[MAX_BLOCKS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_prompts; i++) {
        const struct attn_split_rows *p = &prompts[i];
        for (uint32_t row = p->first_row; row < p->n_rows; row += shape->block_rows)
            for (uint32_t h = 0; h < shape->n_heads; h++) {
                assert_true(n < MAX_BLOCKS);
                const uint32_t last = min_u32(row + shape->block_rows, p->n_rows) - 1;
                pairs[n++] = end_pair(p, last) - first_pair(p, row, p->window);
            }
    }
    qsort(pairs, n, sizeof(*pairs), longer_first);
    return simulate(pairs, n, shape->n_blocks);
}

static struct attn_split_rows rows_of(uint32_t seq, uint32_t n_rows, uint32_t n_before) {
    return (struct attn_split_rows){.seq = seq, .n_rows = n_rows, .n_slots = n_before + n_rows};
}

TEST(one_row_behind_many_keys_takes_the_device) {
    const struct attn_split_shape shape = shape_of(32, 8, 128, 132);
    const struct attn_split_rows prompt = rows_of(0, 1, 262144);
    struct attn_split_plan plan = make_plan(&shape, &prompt, 1);
    assert_int_equal(plan.n_items, 132 / 8);
    assert_int_equal(plan.n_merges, 1);
    expect_partials(&plan);
    expect_all_pairs(&plan, &prompt, 0);
    assert_true(14 * time_of_plan(&plan, &shape, &prompt) < time_of_whole(&shape, &prompt, 1));
    drop_plan(&plan);
}

/* 640 rows are 160 blocks for 132 places: whole prompts would take two rounds.  400 are 128
 * blocks, of which a quarter has 16 rows of 128. */
TEST(rounds_that_are_half_empty_are_filled) {
    const struct attn_split_shape shape = shape_of(32, 8, 128, 132);
    static const uint32_t rows[] = {640, 400}, percent[] = {70, 85};
    for (int i = 0; i < 2; i++) {
        const struct attn_split_rows prompt = rows_of(0, rows[i], 131072);
        struct attn_split_plan plan = make_plan(&shape, &prompt, 1);
        expect_partials(&plan);
        expect_all_pairs(&plan, &prompt, 0);
        assert_true(100 * time_of_plan(&plan, &shape, &prompt) <
                    percent[i] * time_of_whole(&shape, &prompt, 1));
        drop_plan(&plan);
    }
}

TEST(long_prompts_and_short_ones_stay_whole) {
    const struct attn_split_shape shape = shape_of(32, 8, 128, 132);
    static const uint32_t whole[][2] = {
        {8192, 0}, {8192, 100000}, {16384, 262144}, {1024, 262144}, {512, 8192},
        {64, 0},   {64, 200},      {1, 400},        {300, 2048},    {640, 500}};
    for (size_t i = 0; i < sizeof(whole) / sizeof(whole[0]); i++) {
        const struct attn_split_rows prompt = rows_of(0, whole[i][0], whole[i][1]);
        struct attn_split_plan plan = make_plan(&shape, &prompt, 1);
        assert_int_equal(plan.n_items, 0);
        drop_plan(&plan);
    }
}

/* Rows of many sequences that would be a block each. */
TEST(heads_of_a_group_share_a_block) {
    const struct attn_split_shape shape = shape_of(32, 8, 128, 132);
    struct attn_split_rows prompts[MAX_PROMPTS];
    for (uint32_t i = 0; i < MAX_PROMPTS; i++) prompts[i] = rows_of(i, 32, 50000);
    struct attn_split_plan plan = make_plan(&shape, prompts, MAX_PROMPTS);
    assert_true(plan.n_items >= MAX_PROMPTS);
    assert_true(3 * time_of_plan(&plan, &shape, prompts) <
                time_of_whole(&shape, prompts, MAX_PROMPTS));
    drop_plan(&plan);
}

/* Where all layers have one: 33 pairs, of which a piece has 4 at least. */
TEST(pieces_are_of_what_windows_show) {
    const struct attn_split_shape shape = shape_of(32, 8, 128, 132);
    struct attn_split_rows prompt = rows_of(0, 20, 262144);
    prompt.window = 4096;
    struct attn_split_plan plan = make_plan(&shape, &prompt, 1);
    assert_int_equal(plan.n_items, 8);
    assert_int_equal(plan.items[0].n_splits, 8);
    expect_all_pairs(&plan, &prompt, prompt.window);
    drop_plan(&plan);
}

/* A layer with a window uses the plan of those without. */
TEST(narrower_layers_see_each_pair_once) {
    const struct attn_split_shape shape = shape_of(8, 4, 64, 264);
    static const uint32_t windows[] = {1, 17, 128, 1024, 1500, 4096, 100000};
    for (uint32_t n_rows = 1; n_rows < 200; n_rows = n_rows * 3 + 2) {
        const struct attn_split_rows prompt = rows_of(0, n_rows, 70001);
        struct attn_split_plan plan = make_plan(&shape, &prompt, 1);
        assert_true(plan.n_merges > 0);
        for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++)
            expect_all_pairs(&plan, &prompt, windows[i]);
        drop_plan(&plan);
    }
}

TEST(random_prompts_are_covered_and_sooner_done) {
    static const uint32_t heads[][3] = {{32, 8, 128}, {28, 4, 128}, {6, 2, 128},
                                        {8, 4, 64},   {16, 16, 64}, {71, 1, 128}};
    uint32_t n_cut = 0;
    srand(7);
    for (int round = 0; round < 400; round++) {
        const uint32_t *h = heads[rand() % 6];
        const struct attn_split_shape shape =
            shape_of(h[0], h[1], h[2], 1 + (uint32_t)rand() % 264);
        struct attn_split_rows prompts[MAX_PROMPTS];
        const uint32_t n = 1 + (uint32_t)rand() % 4;
        for (uint32_t i = 0; i < n; i++) {
            prompts[i] = rows_of(i, 1 + (uint32_t)rand() % (rand() % 2 ? 300 : 20),
                                 (uint32_t)rand() % (rand() % 2 ? 60000 : 2000));
            prompts[i].first_row = rand() % 4 ? 0 : (uint32_t)rand() % (prompts[i].n_rows + 1);
            prompts[i].window = round % 3 ? 0 : 1 + (uint32_t)rand() % 20000;
        }
        struct attn_split_plan plan = make_plan(&shape, prompts, n);
        n_cut += plan.n_merges > 0;
        if (plan.n_items > 0) {
            expect_partials(&plan);
            for (uint32_t i = 0; i < n; i++)
                expect_all_pairs(&plan, &prompts[i], prompts[i].window);
            /* Forecasts do not know in which order blocks of many lengths come. */
            assert_true(time_of_plan(&plan, &shape, prompts) <=
                        1.2 * (double)time_of_whole(&shape, prompts, n) + 8);
        }
        drop_plan(&plan);
    }
    assert_true(n_cut > 100);
}
