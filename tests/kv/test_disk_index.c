/* test_disk_index.c - the index of the tier on disk, against an array that is searched in full. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/kv/disk/format.h"
#include "engine/kv/disk/index.h"
#include "tests/test.h"

enum { N_NAMES = 700, N_MOVES = 60000, MAX_LENGTH = 40 };

/* The oracle: each item's age, and the bytes; age 0: it is not there. */
struct model {
    uint64_t age[N_NAMES], bytes[N_NAMES], clock;
};

/* Few first words, so that buckets are shared. */
static struct disk_id id_of(unsigned i) {
    return (struct disk_id){.name = {{i % 50, i}},
                            .kind = i % 3 ? DISK_BLOCK : DISK_STATE,
                            .n_tokens = 1 + i % MAX_LENGTH};
}

static unsigned number_of(const struct disk_entry *entry) {
    return (unsigned)entry->id.name.words[1];
}

static int oldest_of(const struct model *model) {
    int oldest = -1;
    for (int i = 0; i < N_NAMES; i++)
        if (model->age[i] && model->bytes[i] && (oldest < 0 || model->age[i] < model->age[oldest]))
            oldest = i;
    return oldest;
}

static void check(const struct model *model, const struct disk_index *index) {
    uint64_t bytes = 0;
    uint32_t n = 0, lengths[MAX_LENGTH + 2], n_lengths = 0;
    bool has[MAX_LENGTH + 2] = {false};
    for (unsigned i = 0; i < N_NAMES; i++) {
        const struct disk_id id = id_of(i);
        const struct disk_entry *entry = disk_index_find(index, &id);
        assert_int_equal(entry != NULL, model->age[i] > 0);
        if (!entry) continue;
        assert_int_equal(entry->bytes, model->bytes[i]);
        bytes += entry->bytes;
        n++;
        if (id.kind == DISK_STATE) has[id.n_tokens] = true;
    }
    assert_int_equal(disk_index_bytes(index), bytes);
    assert_int_equal(disk_index_n_items(index), n);
    const struct disk_entry *oldest = disk_index_oldest(index);
    assert_int_equal(oldest ? (int)number_of(oldest) : -1, oldest_of(model));
    const uint32_t n_min = (uint32_t)rand() % MAX_LENGTH, n_max = (uint32_t)rand() % MAX_LENGTH;
    n_lengths = disk_index_lengths(index, n_min, n_max, lengths, MAX_LENGTH);
    uint32_t at = 0;
    for (uint32_t i = n_min + 1; i <= n_max; i++)
        if (has[i]) assert_int_equal(lengths[at++], i);
    assert_int_equal(at, n_lengths);
}

static void move(struct model *model, struct disk_index *index) {
    const unsigned i = (unsigned)rand() % N_NAMES, how = (unsigned)rand() % 6;
    const struct disk_id id = id_of(i);
    if (how < 3) {
        const struct disk_entry entry = {.id = id, .bytes = (uint64_t)rand() % 3 * 100};
        const bool is_new = model->age[i] == 0;
        assert_int_equal(disk_index_add(index, &entry), is_new ? 0 : ERR_FULL);
        if (!is_new) return;
        model->bytes[i] = entry.bytes;
        model->age[i] = ++model->clock;
    } else if (how == 3) {
        disk_index_remove(index, &id);
        model->age[i] = 0;
    } else {
        if (how == 4) disk_index_touch(index, &id);
        else disk_index_set_bytes(index, &id, 77);
        if (model->age[i] == 0) return;
        model->age[i] = ++model->clock;
        if (how == 5) model->bytes[i] = 77;
    }
}

TEST(it_is_what_a_plain_array_is) {
    struct disk_index *index;
    static struct model model;
    srand(1);
    assert_int_equal(disk_index_create(&index), 0);
    for (int i = 0; i < N_MOVES; i++) {
        move(&model, index);
        if (i % 97 == 0) check(&model, index);
    }
    check(&model, index);
    disk_index_destroy(index);
}

/* By when they were used; within a second, what needs another comes before it. */
TEST(a_start_puts_them_in_order) {
    static const struct {
        uint64_t used_s;
        uint32_t n_tokens;
    } items[] = {{50, 64}, {10, 64}, {50, 128}, {10, 192}, {90, 64}};
    static const unsigned order[] = {3, 1, 2, 0, 4};
    struct disk_index *index;
    assert_int_equal(disk_index_create(&index), 0);
    for (unsigned i = 0; i < 5; i++) {
        const struct disk_entry entry = {
            .id = {.name = {{i, i}}, .kind = DISK_BLOCK, .n_tokens = items[i].n_tokens},
            .bytes = 1,
            .used_s = items[i].used_s};
        assert_int_equal(disk_index_add(index, &entry), 0);
    }
    disk_index_sort(index);
    for (unsigned i = 0; i < 5; i++) {
        const struct disk_entry *oldest = disk_index_oldest(index);
        assert_int_equal(number_of(oldest), order[i]);
        disk_index_remove(index, &oldest->id);
    }
    assert_null(disk_index_oldest(index));
    disk_index_destroy(index);
}

/* Of more lengths than the caller takes it gets the longest. */
TEST(the_longest_states_are_looked_for) {
    struct disk_index *index;
    uint32_t lengths[4];
    assert_int_equal(disk_index_create(&index), 0);
    assert_int_equal(disk_index_lengths(index, 0, UINT32_MAX, lengths, 4), 0);
    for (uint32_t i = 1; i <= 100; i++) {
        const struct disk_entry entry = {
            .id = {.name = {{i, i}}, .kind = DISK_STATE, .n_tokens = 1000 * i}, .bytes = 1};
        assert_int_equal(disk_index_add(index, &entry), 0);
    }
    assert_int_equal(disk_index_lengths(index, 0, 50000, lengths, 4), 4);
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(lengths[i], 47000 + 1000 * i);
    assert_int_equal(disk_index_lengths(index, 98000, UINT32_MAX, lengths, 4), 2);
    assert_int_equal(lengths[0], 99000);
    disk_index_destroy(index);
}
