/* test_router.c - which replica gets a text, and what is remembered of what each was given. */
#include "server/replicas/router.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "server/replicas/known_blocks.h"
#include "tests/test.h"

enum { N = 3, N_BLOCKS = 40 };

static const uint64_t key[2] = {1, 2};
static const bool all[N] = {true, true, true};

static struct router *make_router(uint32_t n_blocks) {
    struct router *router = NULL;
    struct error err;
    assert_int_equal(router_create(&router, N, n_blocks, key, &err), 0);
    return router;
}

/* Tokens of a text that begins with those of another, for as many as n_alike, and has its own
 * behind them. */
static struct routed_text make_text(uint32_t *tokens, uint32_t n, uint32_t n_alike, uint32_t own) {
    for (uint32_t i = 0; i < n; i++) tokens[i] = i < n_alike ? i : 1000 * own + i;
    return (struct routed_text){.tokens = tokens, .n_tokens = n};
}

static uint32_t give(struct router *router, const struct routed_text *text) {
    const int replica = router_choose(router, text, all);
    assert_true(replica >= 0);
    const uint32_t n = router_given(router, (uint32_t)replica, text);
    router_computed(router, (uint32_t)replica, n);
    router_ended(router, (uint32_t)replica);
    return (uint32_t)replica;
}

TEST(equal_replicas_take_turns) {
    struct router *router = make_router(N_BLOCKS);
    uint32_t tokens[300], n_given[N] = {0};
    for (uint32_t i = 0; i < 4 * N; i++) {
        const struct routed_text text = make_text(tokens, ROUTER_BLOCK - 1, 0, i + 1);
        n_given[give(router, &text)]++;
    }
    for (int i = 0; i < N; i++) assert_int_equal(n_given[i], 4);
    router_destroy(router);
}

/* As after a restart, where a folder has it. */
TEST(a_new_text_goes_where_another_router_would_send_it) {
    uint32_t tokens[300], n_given[N] = {0};
    for (uint32_t i = 0; i < 20 * N; i++) {
        struct router *router = make_router(N_BLOCKS), *other = make_router(N_BLOCKS);
        const struct routed_text text = make_text(tokens, 300, 0, i + 1);
        const uint32_t replica = give(router, &text);
        assert_int_equal(give(other, &text), replica);
        n_given[replica]++;
        router_destroy(router);
        router_destroy(other);
    }
    for (int i = 0; i < N; i++) assert_true(n_given[i] > 5);
}

/* Names that came with the text are those that it gets. */
TEST(a_text_may_come_with_its_names) {
    struct router *router = make_router(N_BLOCKS);
    uint32_t tokens[500];
    uint64_t names[500 / ROUTER_BLOCK];
    const struct routed_text text = make_text(tokens, 500, 0, 3);
    struct routed_text named = text;
    named.names = names;
    named.n_names = router_name(router, &text, names);
    assert_int_equal(named.n_names, 500 / ROUTER_BLOCK);
    assert_int_equal(router_given(router, 1, &text), 500);
    assert_int_equal(router_given(router, 1, &named), 500 % ROUTER_BLOCK);
    assert_int_equal(router_choose(router, &named, all), router_choose(router, &text, all));
    router_destroy(router);
}

TEST(a_text_goes_where_its_beginning_is) {
    struct router *router = make_router(N_BLOCKS);
    uint32_t tokens[400];
    struct routed_text text = make_text(tokens, 200, 200, 0);
    const uint32_t first = give(router, &text);
    for (uint32_t i = 0; i < 5; i++) {
        text = make_text(tokens, 400, 150 + 10 * i, i + 1);
        assert_int_equal(give(router, &text), first);
    }
    text = make_text(tokens, 400, 63, 9); /* no whole block is the same */
    assert_int_equal(router_given(router, first, &text), 400);
    router_destroy(router);
}

TEST(texts_of_another_salt_are_not_found) {
    struct router *router = make_router(N_BLOCKS);
    uint32_t tokens[256];
    struct routed_text text = make_text(tokens, 256, 256, 0);
    const uint32_t first = give(router, &text);
    text.salt = 7;
    assert_int_equal(router_given(router, first, &text), 256);
    router_destroy(router);
}

/* 192 tokens are cached there: that is worth a wait for as many, and no more. */
TEST(a_long_wait_is_worse_than_computing_the_beginning) {
    enum { N_ALIKE = 192 };
    static const struct {
        uint32_t n_waiting; /* tokens, in one sequence */
        bool stays;
    } rows[] = {{0, true},
                {N_ALIKE - ROUTER_SEQUENCE_TOKENS - 1, true},
                {N_ALIKE - ROUTER_SEQUENCE_TOKENS + 1, false},
                {5000, false}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct router *router = make_router(N_BLOCKS);
        uint32_t tokens[5000];
        struct routed_text text = make_text(tokens, N_ALIKE, N_ALIKE, 0);
        const uint32_t first = give(router, &text);
        text = make_text(tokens, rows[i].n_waiting, 0, 8);
        if (rows[i].n_waiting > 0) router_given(router, first, &text);
        text = make_text(tokens, 300, N_ALIKE, 2);
        assert_int_equal(router_choose(router, &text, all) == (int)first, rows[i].stays);
        router_destroy(router);
    }
}

TEST(sequences_that_generate_count) {
    struct router *router = make_router(0);
    uint32_t tokens[10], n_given[N] = {0};
    const struct routed_text text = make_text(tokens, 10, 0, 1);
    for (int i = 0; i < 3 * N; i++) { /* none of them ends */
        const int replica = router_choose(router, &text, all);
        router_computed(router, (uint32_t)replica, router_given(router, (uint32_t)replica, &text));
        n_given[replica]++;
    }
    for (int i = 0; i < N; i++) assert_int_equal(n_given[i], 3);
    router_destroy(router);
}

TEST(only_usable_replicas_are_chosen) {
    struct router *router = make_router(N_BLOCKS);
    uint32_t tokens[100];
    const struct routed_text text = make_text(tokens, 100, 0, 1);
    for (int i = 0; i < N; i++) {
        bool usable[N] = {false};
        usable[i] = true;
        for (int again = 0; again < 3; again++)
            assert_int_equal(router_choose(router, &text, usable), i);
    }
    assert_int_equal(router_choose(router, &text, (bool[N]){false}), ROUTER_NONE);
    router_destroy(router);
}

/* A text longer than what a replica holds is found as far as that, and others are forgotten. */
TEST(what_does_not_fit_is_forgotten) {
    enum { N_LONG = ROUTER_BLOCK * (N_BLOCKS + 5) };
    struct router *router = make_router(N_BLOCKS);
    uint32_t *tokens = malloc(N_LONG * sizeof(*tokens)), few[128];
    const bool one[N] = {true};
    const struct routed_text text = make_text(few, 128, 128, 0);
    assert_int_equal(router_given(router, 0, &text), 128);
    assert_int_equal(router_given(router, 0, &text), 0);
    const struct routed_text large = make_text(tokens, N_LONG, 0, 3);
    assert_int_equal(router_choose(router, &large, one), 0);
    assert_int_equal(router_given(router, 0, &large), N_LONG);
    assert_int_equal(router_given(router, 0, &large), N_LONG - ROUTER_BLOCK * N_BLOCKS);
    assert_int_equal(router_given(router, 0, &text), 128);
    free(tokens);
    router_destroy(router);
}

/* Against a list that is moved at each use. */
TEST(known_blocks_are_the_most_recently_used) {
    enum { N_MOST = 17, N_NAMES = 40 };
    struct known_blocks *known = NULL;
    struct error err;
    uint64_t newest_first[N_MOST];
    int n = 0;
    assert_int_equal(known_blocks_create(&known, N_MOST, &err), 0);
    srand(3);
    for (int i = 0; i < 20000; i++) {
        const uint64_t name = (uint64_t)(rand() % N_NAMES) * 32; /* few buckets */
        int at = 0;
        while (at < n && newest_first[at] != name) at++;
        assert_int_equal(known_blocks_has(known, name), at < n);
        if (rand() % 2) continue;
        known_blocks_use(known, name);
        if (at == n) {
            if (n < N_MOST) n++;
            at = n - 1;
        }
        memmove(newest_first + 1, newest_first, (size_t)at * sizeof(*newest_first));
        newest_first[0] = name;
    }
    known_blocks_destroy(known);
}
