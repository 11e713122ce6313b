/* test_attn_plan.c - plans of the decode attention: every slot once, balanced, in their room. */
#include <stdlib.h>
#include <string.h>

#include "cuda/attention/attn_plan.h"
#include "tests/test.h"

enum { MAX_SEQS = 300, MAX_BLOCKS = 264 };

struct planned {
    struct attn_plan_shape shape;
    struct attn_plan_budget room;
    struct attn_plan plan;
    struct attn_plan_end end;
    uint32_t n_seqs, window;
    const uint32_t *n_slots;
    int32_t table_at[MAX_SEQS];
    size_t max_units;         /* of an item */
    double loads[MAX_BLOCKS]; /* units of the blocks: check_plan() */
};

static struct attn_plan_shape shape_of(uint32_t n_blocks, uint32_t n_kv_heads,
                                       uint32_t split_slots) {
    return (struct attn_plan_shape){.n_blocks = n_blocks,
                                    .n_kv_heads = n_kv_heads,
                                    .split_slots = split_slots,
                                    .part_units = 1};
}

static struct planned make_plan(struct attn_plan_shape shape, const uint32_t *n_slots,
                                uint32_t n_seqs, uint32_t window) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n_seqs; i++) sum += n_slots[i];
    struct planned p = {.shape = shape,
                        .room = attn_plan_budget(&shape, n_seqs, sum),
                        .n_seqs = n_seqs,
                        .window = window,
                        .n_slots = n_slots};
    /* Nothing of an earlier plan may shine through. */
    size_t tiles = p.room.n_tiles * sizeof(*p.plan.tiles);
    size_t merges = (p.room.n_merges + 1) * sizeof(*p.plan.merges);
    p.plan.tiles = memset(malloc(tiles), 0x55, tiles);
    p.plan.merges = memset(malloc(merges), 0x55, merges);
    for (uint32_t i = 0; i < n_seqs; i++)
        if (n_slots[i] / ATTN_UNIT_SLOTS >= p.max_units)
            p.max_units = n_slots[i] / ATTN_UNIT_SLOTS + 1;
    p.plan.loads = malloc(p.room.n_loads * sizeof(*p.plan.loads));
    p.plan.end = &p.end;
    for (uint32_t i = 0; i < n_seqs; i++) p.table_at[i] = (int32_t)(3 * i + 1000);
    const struct attn_plan_batch batch = {n_slots, p.table_at, n_seqs, window};
    attn_plan_build(&p.plan, &shape, &batch);
    assert_true(p.plan.n_tiles <= p.room.n_tiles);
    assert_true(p.plan.n_merges <= p.room.n_merges);
    assert_true(p.plan.n_partials <= p.room.n_partials);
    for (uint32_t i = 0; i < p.plan.n_tiles; i++)
        assert_int_equal(p.plan.tiles[i].n_merges, p.plan.n_merges);
    p.plan.end = NULL; /* p moves */
    return p;
}

static void drop_plan(struct planned *p) {
    free(p->plan.tiles);
    free(p->plan.merges);
    free(p->plan.loads);
}

/* The merge that gathers a partial. */
static const struct attn_merge *merge_of(const struct planned *p, int32_t partial) {
    for (uint32_t i = 0; i < p->plan.n_merges; i++) {
        const struct attn_merge *m = &p->plan.merges[i];
        if (partial >= m->first_partial && partial < m->first_partial + m->n_partials) return m;
    }
    fail_msg("no merge gathers partial %d", (int)partial);
    return NULL;
}

/* Slots of a sequence that are read: from the unit with the first one that is seen. */
static uint32_t first_slot(const struct planned *p, uint32_t seq) {
    const uint32_t n = p->n_slots[seq];
    const uint32_t hidden = p->window > 0 && n > p->window ? n - p->window : 0;
    return hidden - hidden % ATTN_UNIT_SLOTS;
}

static void check_tile(const struct planned *p, const struct attn_tile *t, uint8_t *partial_seen) {
    uint32_t n = p->n_slots[t->seq], first = first_slot(p, (uint32_t)t->seq);
    assert_true(t->begin >= (int32_t)first && t->begin < t->end && (uint32_t)t->end <= n);
    assert_int_equal(t->pages, p->table_at[t->seq]);
    assert_int_equal(t->begin % ATTN_UNIT_SLOTS, 0);
    assert_true((uint32_t)t->end == n || t->end % ATTN_UNIT_SLOTS == 0);
    if (t->partial < 0) {
        assert_true((uint32_t)t->begin == first && (uint32_t)t->end == n);
        return;
    }
    const struct attn_merge *m = merge_of(p, t->partial);
    assert_int_equal(m->seq, t->seq);
    assert_int_equal(m->kv_head, t->kv_head);
    assert_int_equal(partial_seen[t->partial]++, 0);
}

/* Marks the tile's units, which no other tile may have. */
static void mark_units(const struct planned *p, const struct attn_tile *t, uint8_t *seen) {
    const size_t item = (size_t)t->seq * p->shape.n_kv_heads + (size_t)t->kv_head;
    uint8_t *units = seen + item * p->max_units;
    for (int32_t slot = t->begin; slot < t->end; slot += ATTN_UNIT_SLOTS)
        assert_int_equal(units[slot / ATTN_UNIT_SLOTS]++, 0);
}

/* Checks that the blocks that have tiles are the first ones, and that partials have readers, but no
 * more than there can be. */
static void check_end(const struct planned *p) {
    const int32_t n_readers = p->end.n_readers;
    int32_t most = 0;
    for (uint32_t b = 0; b < p->shape.n_blocks; b++) {
        const struct attn_tile *t = &p->plan.tiles[b];
        assert_int_equal(t->end > t->begin, (int32_t)b < p->end.n_blocks);
    }
    for (uint32_t i = 0; i < p->plan.n_merges; i++) {
        assert_true(p->plan.merges[i].n_partials > 0);
        if (p->plan.merges[i].n_partials > most) most = p->plan.merges[i].n_partials;
    }
    assert_true(n_readers > 0 && n_readers <= 32 && (n_readers & (n_readers - 1)) == 0);
    if (p->shape.split_slots) assert_int_equal(n_readers, 8); /* whatever the batch */
    else assert_true(n_readers == 1 || n_readers < most);
}

/* Follows all blocks; returns the largest number of units of one.  p->loads: the units of each. */
static uint64_t check_plan(struct planned *p) {
    uint64_t largest = 0, covered = 0, expected = 0;
    uint32_t n_partials = 0;
    uint8_t *partial_seen = calloc(p->plan.n_partials + 1, 1);
    uint8_t *units_seen = calloc(p->n_seqs * p->shape.n_kv_heads + 1, p->max_units + 1);
    check_end(p);
    for (uint32_t b = 0; b < p->shape.n_blocks; b++) {
        uint64_t units = 0;
        p->loads[b] = 0;
        if (p->plan.tiles[b].begin == p->plan.tiles[b].end) {
            assert_int_equal(p->plan.tiles[b].next, -1);
            continue;
        }
        for (int32_t i = (int32_t)b; i >= 0; i = p->plan.tiles[i].next) {
            const struct attn_tile *t = &p->plan.tiles[i];
            assert_true((uint32_t)i < p->plan.n_tiles);
            check_tile(p, t, partial_seen);
            mark_units(p, t, units_seen);
            covered += (uint64_t)(t->end - t->begin);
            units += (uint64_t)(t->end - t->begin + ATTN_UNIT_SLOTS - 1) / ATTN_UNIT_SLOTS;
            n_partials += t->partial >= 0;
        }
        if (units > largest) largest = units;
        p->loads[b] = (double)units;
    }
    for (uint32_t i = 0; i < p->n_seqs; i++)
        expected += (uint64_t)(p->n_slots[i] - first_slot(p, i)) * p->shape.n_kv_heads;
    assert_int_equal(covered, expected); /* with distinct units: every slot once */
    assert_int_equal(n_partials, p->plan.n_partials);
    free(partial_seen);
    free(units_seen);
    return largest;
}

static uint64_t units_of_batch(const struct planned *p) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < p->n_seqs; i++)
        sum += (uint64_t)(p->n_slots[i] - first_slot(p, i) + ATTN_UNIT_SLOTS - 1) / ATTN_UNIT_SLOTS;
    return sum * p->shape.n_kv_heads;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns how long the blocks read, in units of a block while all do, if they share the memory's
 * rate equally, but none reads more than a third faster. */
static double time_of(struct planned *p) {
    const uint32_t n = p->shape.n_blocks;
    double time = 0, done = 0;
    qsort(p->loads, n, sizeof(*p->loads), by_size);
    for (uint32_t i = 0; i < n; i++) {
        const double share = n / (double)(n - i), rate = share < 4.0 / 3 ? share : 4.0 / 3;
        time += (p->loads[i] - done) / rate;
        done = p->loads[i];
    }
    return time;
}

/* Says whether no block has two tiles. */
static bool has_single_tiles(const struct planned *p) {
    for (int32_t b = 0; b < p->end.n_blocks; b++)
        if (p->plan.tiles[b].next >= 0) return false;
    return true;
}

TEST(random_batches_are_covered_and_balanced) {
    uint32_t n_slots[MAX_SEQS];
    int n_whole = 0;
    srand(7);
    for (int round = 0; round < 3000; round++) {
        uint32_t n_seqs = 1 + (uint32_t)rand() % (round % 10 ? 12 : MAX_SEQS);
        uint32_t longest = 1u << (1 + rand() % 15);
        for (uint32_t i = 0; i < n_seqs; i++) n_slots[i] = (uint32_t)rand() % longest;
        struct attn_plan_shape shape =
            shape_of(1 + (uint32_t)rand() % 264, 1 + (uint32_t)rand() % 8,
                     round % 3 ? 0 : ATTN_FIXED_SPLIT_SLOTS);
        shape.part_units = 1 + (uint32_t)round / 2 % 2;
        uint32_t window = round % 2 ? 1 + (uint32_t)rand() % longest : 0;
        struct planned p = make_plan(shape, n_slots, n_seqs, window);
        const uint64_t largest = check_plan(&p);
        const double time = time_of(&p);
        uint64_t mean = (units_of_batch(&p) + shape.n_blocks - 1) / shape.n_blocks;
        if (mean < 8) mean = 8;
        if (shape.split_slots)
            assert_true(largest <= mean + ATTN_FIXED_SPLIT_SLOTS / ATTN_UNIT_SLOTS);
        else if (p.plan.n_merges > 0) /* parts save a tile's end */
            assert_true(largest <= mean + (has_single_tiles(&p) ? 4 + shape.part_units - 1 : 0));
        else assert_true(time <= (double)mean + 4 + 8 + 1); /* and a merge; roundings */
        n_whole += !shape.split_slots && p.plan.n_merges == 0;
        drop_plan(&p);
    }
    assert_in_range(n_whole, 200, 1800);
}

/* Sequences as a server has them, of 500 to 3,500 tokens: no block waits for a merge, and the
 * longest ends hardly later than the mean. */
TEST(many_items_are_not_cut) {
    uint32_t n_slots[256];
    srand(8);
    for (int i = 0; i < 256; i++) n_slots[i] = 500 + (uint32_t)rand() % 3000;
    for (uint32_t n_seqs = 64; n_seqs <= 256; n_seqs += 32) {
        struct planned p = make_plan(shape_of(132, 8, 0), n_slots, n_seqs, 0);
        check_plan(&p);
        assert_int_equal(p.plan.n_merges, 0);
        assert_true(time_of(&p) <= 1.02 * (double)units_of_batch(&p) / 132);
        drop_plan(&p);
    }
}

/* A plan of 132 blocks for equal sequences: the largest number of units of a block, and how many
 * have any. */
struct equal_plan {
    uint64_t largest;
    uint32_t n_busy, n_merges, n_partials;
};

static struct equal_plan plan_equal_in(struct attn_plan_shape shape, uint32_t n_seqs,
                                       uint32_t length) {
    uint32_t n_slots[MAX_SEQS];
    for (uint32_t i = 0; i < n_seqs; i++) n_slots[i] = length;
    struct planned p = make_plan(shape, n_slots, n_seqs, 0);
    p.shape.n_blocks = attn_plan_grid(&shape);
    struct equal_plan equal = {check_plan(&p), 0, p.plan.n_merges, p.plan.n_partials};
    for (uint32_t i = 0; i < p.shape.n_blocks; i++) equal.n_busy += p.loads[i] > 0;
    drop_plan(&p);
    return equal;
}

static struct equal_plan plan_equal(uint32_t n_kv_heads, uint32_t n_seqs, uint32_t length) {
    return plan_equal_in(shape_of(132, n_kv_heads, 0), n_seqs, length);
}

/* All blocks have as many items as each other if nearly all have any; else they have unequal
 * numbers, because fewer blocks do not keep memory busy. */
TEST(equal_items_are_dealt_in_equal_numbers) {
    const struct equal_plan dealt = plan_equal(8, 256, 1500), cut = plan_equal(8, 100, 1500),
                            unequal = plan_equal(8, 100, 160); /* too short to be cut */
    assert_int_equal(dealt.largest, 16 * 94);
    assert_int_equal(dealt.n_busy, 128);
    assert_int_equal(dealt.n_merges, 0);
    assert_int_equal(cut.largest, 570); /* 800 * 94 / 132; 115 blocks could have 7 each */
    assert_true(cut.n_merges > 0);
    assert_int_equal(unequal.largest, 7 * 10);
    assert_int_equal(unequal.n_busy, 132);
    assert_int_equal(unequal.n_merges, 0);
}

/* 120 blocks of 132 are too few to read as fast as all, though they could have one item each. */
TEST(items_that_leave_blocks_idle_are_cut) {
    const struct equal_plan cut = plan_equal(8, 15, 3200);
    assert_int_equal(cut.largest, 182); /* 120 * 200 / 132 */
    assert_int_equal(cut.n_merges, 120);
}

/* No tile is shorter than 8 units for a cut. */
TEST(short_items_are_cut_into_few_tiles) {
    const struct equal_plan cut = plan_equal(1, 1, 1600);
    assert_int_equal(cut.largest, 8); /* 100 units */
    assert_int_equal(cut.n_partials, 13);
    assert_int_equal(plan_equal(1, 1, 256).n_merges,
                     0); /* 16 units take as long as 8 and a merge */
    assert_int_equal(plan_equal(1, 1, 400).n_partials, 4);
}

/* One block would still read when all others have ended. */
TEST(a_long_item_among_short_ones_is_cut) {
    uint32_t n_slots[65];
    for (int i = 0; i < 65; i++) n_slots[i] = i == 30 ? 32768 : 1024;
    struct planned p = make_plan(shape_of(132, 8, 0), n_slots, 65, 0);
    assert_true(p.plan.n_merges > 0);
    assert_int_equal(check_plan(&p), 373); /* (64 * 64 + 2048) * 8 / 132 */
    drop_plan(&p);
}

TEST(equal_items_that_fit_are_not_cut) {
    const struct equal_plan whole = plan_equal(2, 256, 256);
    assert_int_equal(whole.n_merges, 0);
    assert_int_equal(whole.largest, 64);
}

TEST(one_long_sequence_goes_to_all_blocks) {
    const struct equal_plan cut = plan_equal(2, 1, 67584);
    assert_int_equal(cut.n_merges, 2);
    assert_int_equal(cut.n_busy, 132);
    assert_int_equal(cut.largest, 64); /* 8448 units / 132 */
}

/* Warps take units in turns of 8: a block with 62 units has as many turns as one with 64. */
TEST(parts_fill_the_turns_of_warps) {
    const struct equal_plan one = plan_equal(2, 1, 65536), two = plan_equal(2, 2, 32768),
                            most = plan_equal(2, 1, 61440); /* 59 units of 132, 60 of 128 */
    assert_int_equal(one.largest, 64);                      /* 8192 units / 132 are 62.1 */
    assert_int_equal(one.n_busy, 128);
    assert_int_equal(two.largest, 64);
    assert_int_equal(two.n_busy, 128);
    assert_int_equal(most.largest, 59); /* with 64 there are 120 blocks, too few */
    assert_int_equal(most.n_busy, 132);
}

TEST(an_empty_batch_has_no_work) {
    uint32_t n_slots[] = {0, 0};
    for (uint32_t n_seqs = 0; n_seqs <= 2; n_seqs++) {
        struct planned p = make_plan(shape_of(132, 2, 0), n_slots, n_seqs, 0);
        assert_int_equal(check_plan(&p), 0);
        drop_plan(&p);
    }
}

/* Checks that blocks have one tile each, and that an item's tiles are as long as each other, but
 * for `grain` units, of which each tile begins at a multiple. */
static void check_parts(const struct planned *p, uint32_t grain) {
    uint32_t block = 0;
    for (uint32_t item = 0; item < p->n_seqs * p->shape.n_kv_heads; item++) {
        const uint32_t seq = item / p->shape.n_kv_heads, first = first_slot(p, seq),
                       size = grain * ATTN_UNIT_SLOTS;
        uint32_t at = first, least = UINT32_MAX, most = 0;
        while (at < p->n_slots[seq]) {
            const struct attn_tile *t = &p->plan.tiles[block++];
            assert_int_equal(t->seq, seq);
            assert_int_equal(t->kv_head, item % p->shape.n_kv_heads);
            assert_int_equal(t->begin, at);
            assert_int_equal((at - first) % size, 0);
            assert_int_equal(t->next, -1);
            at = (uint32_t)t->end;
            const uint32_t n = (at - (uint32_t)t->begin + size - 1) / size;
            if (n < least) least = n;
            if (n > most) most = n;
        }
        assert_true(p->n_slots[seq] == 0 || most <= least + 1);
    }
    assert_int_equal(block, p->end.n_blocks);
}

/* Few sequences, of equal lengths or not, are cut so that no block has two tiles. */
TEST(few_items_are_cut_into_parts) {
    const uint32_t lengths[][4] = {{4096, 4096, 4096, 4096}, {9000, 0, 3000, 0}};
    for (int i = 0; i < 2; i++)
        for (uint32_t grain = 1; grain <= 2; grain++)
            for (uint32_t window = 0; window <= 2000; window += 2000) {
                struct attn_plan_shape shape = shape_of(132, 8, 0);
                shape.part_units = grain;
                struct planned p = make_plan(shape, lengths[i], 4, window);
                const uint64_t most = (units_of_batch(&p) + 131) / 132 + 4 + grain - 1;
                assert_true(check_plan(&p) <= most);
                check_parts(&p, grain);
                drop_plan(&p);
            }
    assert_int_equal(plan_equal(8, 4, 4096).n_busy, 128);
    assert_int_equal(plan_equal(8, 4, 4096).largest, 64);
}

/* Six sequences have room for two parts each, which would leave a quarter of the blocks idle. */
TEST(parts_that_leave_blocks_idle_are_not_made) {
    const struct equal_plan cut = plan_equal(8, 6, 4096);
    assert_int_equal(cut.n_busy, 132);
    assert_int_equal(cut.largest, 94); /* 48 * 256 / 132 */
}

/* Says whether few blocks are chosen where there are 132, or 96 if few. */
static bool suits_few(uint32_t n_kv_heads, const uint32_t *n_slots, uint32_t n_seqs,
                      uint32_t split) {
    const struct attn_plan_shape shape = {
        .n_blocks = 132, .n_few = 96, .n_kv_heads = n_kv_heads, .split_slots = split};
    const int32_t table_at[MAX_SEQS] = {0};
    const struct attn_plan_batch batch = {n_slots, table_at, n_seqs, 0};
    return attn_plan_suits_few(&shape, &batch);
}

TEST(few_blocks_are_for_few_short_items) {
    assert_true(suits_few(8, (uint32_t[]){1000}, 1, 0));
    assert_true(suits_few(8, (uint32_t[]){100}, 1, 0));
    assert_true(suits_few(8, (uint32_t[]){0}, 1, 0));
    assert_true(suits_few(8, (uint32_t[]){8192}, 1, 0));
    assert_false(suits_few(8, (uint32_t[]){16384}, 1, 0));
    assert_true(suits_few(8, (uint32_t[]){2048, 2048, 2048, 2048}, 4, 0));
    assert_false(suits_few(8, (uint32_t[]){4096, 4096, 4096, 4096}, 4, 0));
    assert_true(suits_few(8, (uint32_t[]){1024, 1024, 1024, 1024, 1024, 1024}, 6, 0));
    assert_false(suits_few(8, (uint32_t[]){4096, 4096, 4096, 4096, 4096, 4096}, 6, 0)); /* even */
    assert_false(suits_few(8, (uint32_t[]){9000, 5, 5, 5}, 4, 0));
    assert_false(suits_few(8, (uint32_t[]){9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9}, 13, 0));
    assert_false(suits_few(8, (uint32_t[]){1000}, 1, ATTN_FIXED_SPLIT_SLOTS));
}

/* Returns how many partials n_seqs equal sequences have. */
static uint32_t count_partials(bool few, uint32_t part_units, uint32_t n_kv_heads, uint32_t n_seqs,
                               uint32_t n_units) {
    struct attn_plan_shape shape = shape_of(132, n_kv_heads, 0);
    shape.n_few = 96;
    shape.few = few;
    shape.part_units = part_units;
    return plan_equal_in(shape, n_seqs, n_units * ATTN_UNIT_SLOTS).n_partials;
}

/* A merge takes few blocks as long as 16 units of 16 bits or 32 of 8, others as 8. */
TEST(few_blocks_cut_only_long_items) {
    assert_int_equal(count_partials(true, 1, 8, 1, 24), 0); /* 8 and a merge take as long */
    assert_int_equal(count_partials(true, 1, 8, 1, 25), 8 * 4);
    assert_int_equal(count_partials(true, 2, 8, 1, 40), 0);
    assert_int_equal(count_partials(true, 2, 8, 1, 41), 8 * 11);
    assert_int_equal(count_partials(true, 2, 8, 1, 48), 8 * 12);
    assert_int_equal(count_partials(true, 2, 8, 1, 49), 8 * 7); /* 13 of 4 units are too many */
    assert_int_equal(count_partials(true, 2, 2, 1, 48), 2 * 12);
    assert_int_equal(count_partials(true, 2, 2, 1, 49), 2 * 7);
    assert_int_equal(count_partials(true, 2, 8, 6, 40), 0);
    assert_int_equal(count_partials(true, 2, 8, 6, 64), 6 * 8 * 2);
    for (uint32_t part_units = 1; part_units <= 2; part_units++) {
        assert_int_equal(count_partials(false, part_units, 8, 1, 16), 0);
        assert_int_equal(count_partials(false, part_units, 8, 1, 17), 8 * 3);
    }
}

/* A plan for few blocks uses no more. */
TEST(few_blocks_are_all_that_is_used) {
    const uint32_t n_slots[] = {1000, 2000};
    struct attn_plan_shape shape = shape_of(132, 4, 0);
    shape.n_few = 96;
    shape.few = true;
    assert_int_equal(attn_plan_grid(&shape), 96);
    struct planned p = make_plan(shape, n_slots, 2, 0);
    p.shape.n_blocks = 96;
    check_plan(&p);
    check_parts(&p, 1);
    drop_plan(&p);
}

/* Cut where they are cut without one: what is behind the first tile moves by whole splits. */
TEST(fixed_splits_stay_where_they_are_in_a_window) {
    uint32_t n_slots[] = {3001};
    const struct attn_plan_shape shape = shape_of(132, 1, ATTN_FIXED_SPLIT_SLOTS);
    struct planned p = make_plan(shape, n_slots, 1, 1000);
    uint32_t n_first = 0;
    check_plan(&p);
    for (uint32_t i = 0; i < p.plan.n_tiles; i++) {
        const struct attn_tile *t = &p.plan.tiles[i];
        if (t->begin == t->end) continue;
        n_first += t->begin == 2000; /* of the unit that slot 2001 is in */
        assert_true(t->begin == 2000 || t->begin % ATTN_FIXED_SPLIT_SLOTS == 0);
        assert_true(t->end == 3001 || t->end % ATTN_FIXED_SPLIT_SLOTS == 0);
    }
    assert_int_equal(n_first, 1);
    assert_int_equal(p.plan.n_partials, 3);
    drop_plan(&p);
}

/* The tiles of the last sequence: their limits may depend on nothing but its length. */
TEST(fixed_splits_do_not_depend_on_the_batch) {
    uint32_t alone[] = {3001}, batch[] = {5, 70000, 1, 512, 3001};
    for (uint32_t blocks = 1; blocks < 200; blocks += 33) {
        const struct attn_plan_shape shape = shape_of(blocks, 2, ATTN_FIXED_SPLIT_SLOTS);
        struct planned a = make_plan(shape, alone, 1, 0), b = make_plan(shape, batch, 5, 0);
        check_plan(&a);
        check_plan(&b);
        uint32_t limits = 0;
        for (uint32_t i = 0; i < b.plan.n_tiles; i++) {
            const struct attn_tile *t = &b.plan.tiles[i];
            if (t->begin == t->end || t->seq != 4) continue;
            assert_int_equal(t->begin % ATTN_FIXED_SPLIT_SLOTS, 0);
            assert_true(t->end == 3001 || t->end == t->begin + ATTN_FIXED_SPLIT_SLOTS);
            limits++;
        }
        assert_int_equal(limits, 2 * 6);
        assert_int_equal(a.plan.n_partials, 2 * 6);
        drop_plan(&a);
        drop_plan(&b);
    }
}
