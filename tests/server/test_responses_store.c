/* test_responses_store.c - stored responses: which client finds them, and which are dropped.
 *
 * No client may push out another's, and the memory must be what is counted. */
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

/* What is added beside the texts that name a response. */
struct extra {
    const char *before;
    size_t n_output, n_object; /* bytes at least */
    bool failed;
};

static void fill(struct buffer *text, size_t n) {
    while (text->length < n) buffer_puts(text, n > 4096 ? filler : ".");
}

/* Adds a response with texts that name it: "ID<", "i ID", "o ID", ">ID". */
static void add_with(struct responses_store *store, uint64_t client, const char *id,
                     struct extra extra, uint64_t now_s) {
    char head[64];
    memset(filler, '.', sizeof(filler) - 1);
    struct buffer input = {0}, output = {0}, tail = {0};
    struct stored_turn *turn = NULL;
    snprintf(head, sizeof(head), "%s<", id);
    buffer_printf(&tail, ">%s", id);
    fill(&tail, extra.n_object);
    buffer_printf(&input, "i %s", id);
    buffer_printf(&output, "o %s", id);
    fill(&output, extra.n_output);
    if (extra.before)
        assert_int_equal(responses_store_find(store, client, extra.before, now_s, &turn), 0);
    const struct new_response response = {.client = client,
                                          .id = id,
                                          .head = {head, strlen(head)},
                                          .tail = {tail.data, tail.length},
                                          .input = &input,
                                          .output = &output,
                                          .before = &turn,
                                          .failed = extra.failed};
    responses_store_add(store, &response, now_s);
    assert_null(turn);
    assert_null(input.data);
    assert_null(output.data);
    buffer_fini(&tail);
}

static void add(struct responses_store *store, uint64_t client, const char *id, const char *before,
                size_t n, uint64_t now_s) {
    add_with(store, client, id, (struct extra){.before = before, .n_output = n}, now_s);
}

static uint64_t n_dropped(struct responses_store *store, enum response_fate fate) {
    return responses_store_stats(store).n_dropped[fate];
}

static enum response_fate fate_of(struct responses_store *store, uint64_t client, const char *id) {
    bool is_first;
    return responses_store_fate(store, client, id, &is_first);
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
    assert_int_equal(n_dropped(store, RESPONSE_EVICTED), 1);
    responses_store_destroy(store);
}

TEST(what_does_not_fit_drops_nothing) {
    struct responses_store *store = make(16 << 10, 0);
    add(store, 1, "a", NULL, 4000, 0);
    add(store, 1, "b", NULL, 20000, 0);
    add(store, 1, "c", "a", 12000, 0); /* fits alone, but not with what it goes on from */
    assert_true(has(store, "a") && !has(store, "b") && !has(store, "c"));
    assert_int_equal(n_dropped(store, RESPONSE_TOO_LONG), 2);
    assert_int_equal(n_dropped(store, RESPONSE_EVICTED), 0);
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
    assert_int_equal(n_dropped(store, RESPONSE_EXPIRED), 2);
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

/* Tells whether a response is there with its object. */
static bool shows(struct responses_store *store, uint64_t client, const char *id) {
    struct buffer out = {0};
    const bool shown = responses_store_write(store, client, id, 0, &out);
    buffer_fini(&out);
    return shown;
}

TEST(objects_of_earlier_responses_are_evicted_first) {
    struct responses_store *store = make(16 << 10, 0);
    add_with(store, 1, "other", (struct extra){.n_object = 2000}, 0);
    add_with(store, 1, "a", (struct extra){.n_object = 4000}, 0);
    add_with(store, 1, "b", (struct extra){.before = "a", .n_object = 4000}, 0);
    add_with(store, 1, "c", (struct extra){.before = "b", .n_object = 4000}, 0);
    add(store, 1, "d", "c", 0, 0);
    assert_true(has(store, "other") && has(store, "a") && has(store, "b") && has(store, "c"));
    assert_false(shows(store, 1, "a"));
    assert_int_equal(fate_of(store, 1, "a"), RESPONSE_SHORTENED);
    assert_true(shows(store, 1, "c") && shows(store, 1, "d") && shows(store, 1, "other"));
    add(store, 1, "branch", "a", 0, 0); /* requests go on from it all the same */
    assert_int_equal(n_dropped(store, RESPONSE_SHORTENED), 1);
    assert_int_equal(n_dropped(store, RESPONSE_EVICTED), 0);
    responses_store_destroy(store);
}

TEST(a_conversation_that_goes_on_stays_whole) {
    enum { N = 500 };
    struct responses_store *store = make(128 << 10, 0);
    char id[2][16] = {"r0", ""}, other[16];
    int n = 0;
    add(store, 1, id[0], NULL, 50, 0);
    for (int i = 1; i < N; i++) {
        struct stored_turn *turn = NULL;
        snprintf(other, sizeof(other), "o%d", i);
        add(store, 1, other, NULL, 8000, 0);
        if (i % 5) continue;
        n++;
        snprintf(id[n % 2], sizeof(id[0]), "r%d", i);
        add(store, 1, id[n % 2], id[(n + 1) % 2], 50, 0);
        assert_int_equal(responses_store_find(store, 1, id[n % 2], 0, &turn), 0);
        int n_turns = 0;
        for (const struct stored_turn *at = turn; at; at = stored_turn_before(at)) n_turns++;
        assert_int_equal(n_turns, n + 1);
        stored_turn_release(store, turn);
    }
    assert_true(n_dropped(store, RESPONSE_EVICTED) > N / 2);
    responses_store_destroy(store);
}

TEST(a_conversation_is_evicted_whole) {
    struct responses_store *store = make(20 << 10, 0);
    const uint64_t empty = bytes_of(store);
    add(store, 1, "a", NULL, 4000, 0);
    add(store, 1, "b", "a", 4000, 0);
    add(store, 1, "c", "b", 4000, 0);
    add(store, 1, "side", "a", 100, 0); /* another one that begins with a */
    add(store, 1, "x", NULL, 6000, 0);
    assert_false(has(store, "c") || has(store, "b"));
    assert_int_equal(fate_of(store, 1, "b"), RESPONSE_EVICTED);
    assert_true(has(store, "a") && has(store, "side") && has(store, "x"));
    add(store, 1, "y", NULL, 14000, 0);
    assert_false(has(store, "a") || has(store, "side") || has(store, "x"));
    assert_true(responses_store_remove(store, 1, "y"));
    assert_int_equal(bytes_of(store), empty);
    responses_store_destroy(store);
}

TEST(a_conversation_goes_on_before_a_response_that_is_deleted) {
    struct responses_store *store = make(16 << 10, 0);
    add(store, 1, "a", NULL, 4000, 0);
    add(store, 1, "b", "a", 4000, 0);
    add(store, 1, "c", NULL, 4000, 0); /* the object of a is evicted */
    add(store, 1, "d", NULL, 200, 0);
    assert_true(responses_store_remove(store, 1, "b"));
    assert_int_equal(fate_of(store, 1, "b"), RESPONSE_DELETED);
    add(store, 1, "e", "a", 4000, 0);
    assert_true(has(store, "a") && has(store, "e"));
    add(store, 1, "f", NULL, 12000, 0); /* and it is evicted as any other */
    assert_true(has(store, "f") && !has(store, "a") && !has(store, "e"));
    responses_store_destroy(store);
}

TEST(a_failed_response_is_evicted_before_others) {
    struct responses_store *store = make(16 << 10, 0);
    add(store, 1, "a", NULL, 4000, 0);
    add_with(store, 1, "failed", (struct extra){.before = "a", .n_output = 4000, .failed = true},
             0);
    add(store, 1, "b", NULL, 4000, 0);
    add(store, 1, "c", NULL, 4000, 0);
    assert_true(shows(store, 1, "a") && has(store, "b") && has(store, "c"));
    assert_false(has(store, "failed"));
    responses_store_destroy(store);
}

TEST(no_client_pushes_out_what_another_has) {
    enum { N = 2000 };
    struct responses_store *store = make(256 << 10, 0);
    char id[16];
    add(store, 2, "a", NULL, 20000, 0);
    add(store, 2, "b", "a", 20000, 0);
    add(store, 3, "c", NULL, 100, 0);
    for (int i = 0; i < N; i++) {
        snprintf(id, sizeof(id), "r%d", i);
        add(store, 1, id, NULL, (size_t)rand() % 30000, 0);
        assert_true(has(store, id));
    }
    assert_true(shows(store, 2, "a") && shows(store, 2, "b") && shows(store, 3, "c"));
    /* A client that has less than the first takes space from it. */
    add(store, 2, "d", NULL, 50000, 0);
    assert_true(shows(store, 2, "a") && shows(store, 2, "d"));
    responses_store_destroy(store);
}

TEST(what_does_not_fit_beside_other_clients_drops_nothing) {
    struct responses_store *store = make(64 << 10, 0);
    add(store, 2, "a", NULL, 20000, 0);
    add(store, 1, "b", NULL, 10000, 0);
    add(store, 1, "c", NULL, 60000, 0);
    assert_true(responses_store_has(store, 2, "a") && has(store, "b") && !has(store, "c"));
    assert_int_equal(fate_of(store, 1, "c"), RESPONSE_TOO_LONG);
    responses_store_destroy(store);
}

TEST(the_fate_of_a_response_is_remembered) {
    struct responses_store *store = make(16 << 10, 10);
    struct stored_turn *turn = NULL;
    bool is_first = false;
    assert_int_equal(fate_of(store, 1, "a"), RESPONSE_UNKNOWN);
    add(store, 1, "a", NULL, 12000, 0);
    add(store, 1, "b", NULL, 12000, 0);
    assert_int_equal(fate_of(store, 2, "a"), RESPONSE_UNKNOWN); /* it is another client's */
    assert_int_equal(responses_store_fate(store, 1, "a", &is_first), RESPONSE_EVICTED);
    assert_true(is_first);
    assert_int_equal(responses_store_fate(store, 1, "a", &is_first), RESPONSE_EVICTED);
    assert_false(is_first);
    responses_store_expire(store, 20);
    assert_int_equal(fate_of(store, 1, "b"), RESPONSE_EXPIRED);
    assert_true(responses_store_find(store, 1, "a", 20, &turn) < 0);
    assert_false(responses_store_write(store, 1, "b", 20, NULL));
    const struct responses_store_stats stats = responses_store_stats(store);
    assert_int_equal(stats.n_misses[RESPONSE_EVICTED], 1);
    assert_int_equal(stats.n_misses[RESPONSE_EXPIRED], 1);
    responses_store_destroy(store);
}

/* Several clients take many random steps.  After each of them every bound holds.  The ends of a
 * client's conversations that are there have been used later than those that were evicted.  A
 * client that takes less than its share loses nothing, and what is counted is what is allocated. */
enum { N_CLIENTS = 4, N_IDS = 32, N_STEPS = 6000, MOST = 4 << 20 };

static size_t allocated_bytes(void) {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd; /* hblkhd: of long blocks, which are mapped one by one */
}

struct known {
    uint64_t last_use; /* 0: it was removed, or never added */
    bool is_last;      /* no later response goes on from it */
};

static void check_order(struct responses_store *store, uint64_t client, const struct known *known) {
    uint64_t oldest = UINT64_MAX, newest_gone = 0;
    for (int at = 0; at < N_IDS; at++) {
        char id[16];
        snprintf(id, sizeof(id), "r%d", at);
        if (!known[at].last_use) assert_false(responses_store_has(store, client, id));
        else if (!known[at].is_last) continue;
        else if (!responses_store_has(store, client, id))
            newest_gone = known[at].last_use > newest_gone ? known[at].last_use : newest_gone;
        else oldest = known[at].last_use < oldest ? known[at].last_use : oldest;
    }
    assert_true(newest_gone < oldest);
}

TEST(the_bounds_hold_in_random_steps) {
    struct responses_store *store = make(MOST, 0);
    const size_t before = allocated_bytes();
    const uint64_t empty = bytes_of(store);
    static struct known all[N_CLIENTS][N_IDS];
    srand(7);
    for (uint64_t step = 0; step < N_STEPS; step++) {
        char id[16], other[16];
        const uint64_t client = (uint64_t)rand() % N_CLIENTS;
        struct known *known = all[client];
        const int i = rand() % N_IDS, k = rand() % N_IDS;
        snprintf(id, sizeof(id), "r%d", i);
        snprintf(other, sizeof(other), "r%d", k);
        if (rand() % 8 == 0) {
            assert_int_equal(responses_store_remove(store, client, id),
                             responses_store_has(store, client, id));
            known[i] = (struct known){0};
        } else {
            const bool goes_on = rand() % 2 && responses_store_has(store, client, other);
            const struct extra extra = {.before = goes_on ? other : NULL,
                                        .n_output = (size_t)rand() % (client ? 300000 : 10000),
                                        .n_object = (size_t)rand() % 10000};
            add_with(store, client, id, extra, 0);
            if (goes_on) known[k] = (struct known){2 * step + 1, false};
            known[i] = (struct known){
                fate_of(store, client, id) == RESPONSE_TOO_LONG ? 0 : 2 * step + 2, true};
        }
        assert_true(bytes_of(store) <= MOST);
        check_order(store, client, known);
        /* The first client takes far less than a fourth. */
        for (int at = 0; at < N_IDS; at++) {
            snprintf(id, sizeof(id), "r%d", at);
            if (all[0][at].last_use) assert_true(responses_store_has(store, 0, id));
        }
    }
    const size_t allocated = allocated_bytes() - before, counted = bytes_of(store) - empty;
    /* The C library counts small blocks that it holds for the next use, too.  A sanitizer's counts
     * nothing. */
    if (allocated_bytes() > 0)
        assert_in_range(allocated, counted - counted / 8, counted + counted / 8 + (512 << 10));
    assert_true(n_dropped(store, RESPONSE_EVICTED) > 100);
    assert_true(n_dropped(store, RESPONSE_SHORTENED) > 100);
    responses_store_destroy(store);
}

/* Many clients come and go: each is found again, and nothing of them stays. */
TEST(clients_come_and_go) {
    enum { N = 3000 };
    struct responses_store *store = make(8 << 20, 0);
    char id[16];
    for (uint64_t i = 0; i < 4 * N; i++) {
        const uint64_t client = (uint64_t)rand() % N * 0x9E3779B97F4A7C15u;
        snprintf(id, sizeof(id), "r%d", rand() % 4);
        if (rand() % 3) add(store, client, id, NULL, (size_t)rand() % 4000, 0);
        else responses_store_remove(store, client, id);
        assert_true(bytes_of(store) <= 8 << 20);
    }
    assert_true(n_dropped(store, RESPONSE_EVICTED) > 100);
    for (uint64_t i = 0; i < N; i++)
        for (int k = 0; k < 4; k++) {
            snprintf(id, sizeof(id), "r%d", k);
            responses_store_remove(store, i * 0x9E3779B97F4A7C15u, id);
        }
    assert_int_equal(responses_store_stats(store).n_responses, 0);
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
