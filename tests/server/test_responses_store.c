/* test_responses_store.c - stored responses: which client finds them, what is dropped for space and
 * age, and that the memory is what is counted. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/api/responses/store.h"
#include "server/json/buffer.h"
#include "tests/test.h"

static struct responses_store *make(uint64_t max_bytes, uint64_t max_age_s) {
    const struct responses_store_config config = {max_bytes, max_age_s, {1, 2}};
    struct responses_store *store = NULL;
    assert_int_equal(responses_store_create(&store, &config, NULL), 0);
    return store;
}

static char filler[1001];

/* Adds a response with texts that name it: "ID<", "i ID", "o ID", ">ID"; the output has n bytes at
 * least. */
static void add(struct responses_store *store, uint64_t client, const char *id, const char *before,
                size_t n, uint64_t now_s) {
    char head[64], tail[64];
    memset(filler, '.', sizeof(filler) - 1);
    struct buffer input = {0}, output = {0};
    struct stored_turn *turn = NULL;
    snprintf(head, sizeof(head), "%s<", id);
    snprintf(tail, sizeof(tail), ">%s", id);
    buffer_printf(&input, "i %s", id);
    buffer_printf(&output, "o %s", id);
    while (output.length < n) buffer_puts(&output, n > 4096 ? filler : ".");
    if (before) assert_int_equal(responses_store_find(store, client, before, now_s, &turn), 0);
    const struct new_response response = {.client = client,
                                          .id = id,
                                          .head = {head, strlen(head)},
                                          .tail = {tail, strlen(tail)},
                                          .input = &input,
                                          .output = &output,
                                          .before = &turn};
    responses_store_add(store, &response, now_s);
    assert_null(turn);
    assert_null(input.data);
    assert_null(output.data);
}

static bool has(struct responses_store *store, const char *id) {
    return responses_store_has(store, 1, id);
}

static uint64_t bytes_of(struct responses_store *store) {
    return responses_store_stats(store).n_bytes;
}

TEST(a_response_is_written_as_it_was) {
    struct responses_store *store = make(1 << 20, 0);
    struct buffer out = {0};
    add(store, 1, "a", NULL, 0, 0);
    assert_true(responses_store_write(store, 1, "a", 0, &out));
    assert_string_equal(out.data, "a<o a>a");
    assert_false(responses_store_write(store, 1, "b", 0, &out));
    buffer_fini(&out);
    responses_store_destroy(store);
}

TEST(only_its_client_finds_a_response) {
    struct responses_store *store = make(1 << 20, 0);
    struct stored_turn *turn = NULL;
    struct buffer out = {0};
    add(store, 1, "a", NULL, 0, 0);
    add(store, 2, "a", NULL, 50, 0); /* another response, though its id is the same */
    assert_int_equal(responses_store_stats(store).n_responses, 2);
    assert_false(responses_store_has(store, 3, "a"));
    assert_true(responses_store_find(store, 3, "a", 0, &turn) < 0);
    assert_false(responses_store_write(store, 3, "a", 0, &out));
    assert_false(responses_store_remove(store, 3, "a"));
    assert_true(responses_store_remove(store, 1, "a"));
    assert_false(responses_store_has(store, 1, "a"));
    assert_true(responses_store_has(store, 2, "a"));
    responses_store_destroy(store);
}

TEST(a_turn_outlives_its_response) {
    struct responses_store *store = make(1 << 20, 0);
    const uint64_t empty = bytes_of(store);
    struct stored_turn *turn = NULL;
    add(store, 1, "a", NULL, 0, 0);
    add(store, 1, "b", "a", 0, 0);
    assert_true(responses_store_remove(store, 1, "a"));
    assert_int_equal(responses_store_find(store, 1, "b", 0, &turn), 0);
    assert_true(responses_store_remove(store, 1, "b"));
    const struct stored_turn *first = stored_turn_before(turn);
    assert_memory_equal(stored_turn_output(turn).data, "o b", 3);
    assert_memory_equal(stored_turn_input(first).data, "i a", 3);
    assert_int_equal(stored_turn_chain_bytes(turn), 4 * 3 + 4);
    assert_true(bytes_of(store) > empty);
    stored_turn_release(store, turn);
    assert_int_equal(bytes_of(store), empty);
    responses_store_destroy(store);
}

TEST(the_least_recently_used_is_dropped) {
    struct responses_store *store = make(16 << 10, 0);
    struct buffer out = {0};
    add(store, 1, "a", NULL, 4000, 0);
    add(store, 1, "b", NULL, 4000, 0);
    add(store, 1, "c", NULL, 4000, 0);
    assert_true(responses_store_write(store, 1, "a", 0, &out));
    buffer_fini(&out);
    add(store, 1, "d", NULL, 4000, 0);
    assert_true(has(store, "a") && !has(store, "b") && has(store, "c") && has(store, "d"));
    assert_int_equal(responses_store_stats(store).n_evicted, 1);
    responses_store_destroy(store);
}

TEST(what_does_not_fit_drops_nothing) {
    struct responses_store *store = make(16 << 10, 0);
    add(store, 1, "a", NULL, 4000, 0);
    add(store, 1, "b", NULL, 20000, 0);
    add(store, 1, "c", "a", 12000, 0); /* fits alone, but not with what it goes on from */
    assert_true(has(store, "a") && !has(store, "b") && !has(store, "c"));
    assert_int_equal(responses_store_stats(store).n_too_long, 2);
    assert_int_equal(responses_store_stats(store).n_evicted, 0);
    responses_store_destroy(store);
}

TEST(what_is_not_used_expires) {
    struct responses_store *store = make(1 << 20, 10);
    struct stored_turn *turn = NULL;
    add(store, 1, "a", NULL, 0, 100);
    add(store, 1, "b", NULL, 0, 105);
    assert_int_equal(responses_store_find(store, 1, "a", 110, &turn), 0); /* a use */
    stored_turn_release(store, turn);
    responses_store_expire(store, 116);
    assert_true(has(store, "a") && !has(store, "b"));
    assert_true(responses_store_find(store, 1, "a", 121, &turn) < 0);
    assert_int_equal(responses_store_stats(store).n_expired, 2);
    responses_store_destroy(store);
}

TEST(a_later_response_of_the_same_id_replaces_the_first) {
    struct responses_store *store = make(1 << 20, 0);
    struct buffer out = {0};
    add(store, 1, "a", NULL, 100, 0);
    const uint64_t n_bytes = bytes_of(store);
    add(store, 1, "a", NULL, 100, 0);
    assert_int_equal(bytes_of(store), n_bytes);
    add(store, 1, "a", "a", 100, 0); /* it goes on from the one that it replaces */
    assert_int_equal(responses_store_stats(store).n_responses, 1);
    assert_true(bytes_of(store) > n_bytes);
    responses_store_destroy(store);
    buffer_fini(&out);
}

/* Every bound holds after each of many random steps, and what is counted is what is allocated.  A
 * list of the last uses says which responses may have been dropped. */
TEST(the_bounds_hold_in_random_steps) {
    enum { N_IDS = 64, N_STEPS = 5000, MOST = 4 << 20 };
    struct responses_store *store = make(MOST, 0);
    const size_t before = mallinfo2().uordblks;
    const uint64_t empty = bytes_of(store);
    uint64_t last_use[N_IDS] = {0}, step = 0; /* 0: removed or never added */
    srand(7);
    for (; step < N_STEPS; step++) {
        char id[16], other[16];
        const int i = rand() % N_IDS, k = rand() % N_IDS;
        snprintf(id, sizeof(id), "r%d", i);
        snprintf(other, sizeof(other), "r%d", k);
        if (rand() % 8 == 0) {
            assert_int_equal(responses_store_remove(store, 1, id), has(store, id));
            last_use[i] = 0;
        } else {
            const bool goes_on = rand() % 2 && has(store, other);
            const uint64_t n_dropped = responses_store_stats(store).n_too_long;
            add(store, 1, id, goes_on ? other : NULL, (size_t)rand() % 300000, 0);
            if (goes_on) last_use[k] = 2 * step + 1;
            last_use[i] = responses_store_stats(store).n_too_long == n_dropped ? 2 * step + 2 : 0;
        }
        assert_true(bytes_of(store) <= MOST);
        /* A response that is there has been used later than any that has been dropped. */
        uint64_t oldest = UINT64_MAX, newest_gone = 0;
        for (int at = 0; at < N_IDS; at++) {
            snprintf(id, sizeof(id), "r%d", at);
            if (!last_use[at]) assert_false(has(store, id));
            else if (has(store, id)) oldest = last_use[at] < oldest ? last_use[at] : oldest;
            else newest_gone = last_use[at] > newest_gone ? last_use[at] : newest_gone;
        }
        assert_true(newest_gone < oldest);
    }
    const size_t allocated = mallinfo2().uordblks - before, counted = bytes_of(store) - empty;
    /* The C library counts small blocks that it holds for the next use, too.  A sanitizer's counts
     * nothing. */
    if (mallinfo2().uordblks > 0)
        assert_in_range(allocated, counted - counted / 8, counted + counted / 8 + (512 << 10));
    assert_true(responses_store_stats(store).n_evicted > 100);
    responses_store_destroy(store);
}

/* A conversation of very many turns is freed without a deep stack. */
TEST(a_long_chain_is_freed) {
    enum { N = 200000 };
    struct responses_store *store = make(1 << 30, 0);
    const uint64_t empty = bytes_of(store);
    char id[2][16] = {"r0", ""};
    add(store, 1, id[0], NULL, 0, 0);
    for (int i = 1; i < N; i++) {
        snprintf(id[i % 2], sizeof(id[0]), "r%d", i);
        add(store, 1, id[i % 2], id[(i - 1) % 2], 0, 0);
        assert_true(responses_store_remove(store, 1, id[(i - 1) % 2]));
    }
    assert_int_equal(responses_store_stats(store).n_responses, 1);
    assert_true(responses_store_remove(store, 1, id[(N - 1) % 2]));
    assert_int_equal(bytes_of(store), empty);
    responses_store_destroy(store);
}
