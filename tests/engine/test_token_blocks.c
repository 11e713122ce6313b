/* test_token_blocks.c - prompts whose tokens lie in the host pool, and are found there by other
 * requests, with a fake model (scheduler_fixture.h, fake_select.h).
 *
 * That what is found is right shows in the answers.  That nothing is computed twice shows in the
 * rows that have been run.  That nothing is copied twice shows in the copies.
 *
 * All tests run twice: a step at a time, and with the next step planned before the results of one
 * are there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/reclaim.h"
#include "engine/kv/swap.h"
#include "tests/engine/scheduler_fixture.h"
#include "tests/test.h"

/* An answer ends within the context's last page. */
enum {
    N_CONTEXT = 300,
    N_BLOCKS = N_CONTEXT / PAGE_TOKENS,
    N_FOUND = N_BLOCKS * PAGE_TOKENS,
    N_ANSWER = 15
};

enum place { MOVED, ON_DEVICE, FULL, N_PLACES };

static struct kv_choice choice_of(enum place place) {
    const struct kv_choice selecting = {.mechanism = KV_SELECTING,
                                        .n_sink = 4,
                                        .n_selected = 64,
                                        .n_tail = 64,
                                        .on_device = place == ON_DEVICE};
    return place == FULL ? (struct kv_choice){0} : selecting;
}

/* A question about a context: only its last token is its own. */
static struct engine_request ask(struct client *c, uint32_t n_prompt, uint32_t max_tokens,
                                 enum place place, uint32_t question) {
    struct engine_request r = client_request(c, n_prompt, max_tokens);
    for (uint32_t i = 0; i < n_prompt; i++) r.prompt[i] = 'a' + i * 7 % 26;
    r.prompt[n_prompt - 1] = 'a' + question;
    r.kv = choice_of(place);
    r.params.ignore_eos = true;
    return r;
}

static uint32_t n_used_blocks(const struct fixture *f) {
    return f->store.n_blocks - page_pool_n_free(f->space.blocks);
}

/* Host blocks that only the prefix cache has. */
static uint32_t n_token_blocks(const struct fixture *f) {
    return page_pool_n_offered(f->space.blocks, PAGE_CACHED);
}

static struct engine_stats stats_of(const struct fixture *f) {
    struct engine_stats stats;
    scheduler_stats(f->scheduler, &stats);
    return stats;
}

static void run_one(struct fixture *f, uint32_t n_prompt, uint32_t max_tokens, enum place place,
                    uint32_t question, uint32_t n_cached) {
    struct client c = {0};
    struct engine_request r = ask(&c, n_prompt, max_tokens, place, question);
    fixture_submit(f, &r, 1 + question);
    fixture_run(f);
    client_check(&c);
    assert_int_equal(c.last.n_cached, n_cached);
}

/* Every sort of sequence first, and every sort next, in all pairs.  What lies in the host pool
 * already is not copied there again. */
TEST(a_prefix_is_found_wherever_it_is) {
    for (enum place first = MOVED; first < N_PLACES; first++)
        for (enum place next = MOVED; next < N_PLACES; next++) {
            struct fixture f;
            fixture_init(&f, 60, 512, 4);
            fixture_add_store(&f, 20);
            run_one(&f, N_CONTEXT, N_ANSWER, first, 1, 0);
            assert_int_equal(n_token_blocks(&f), first == MOVED ? N_BLOCKS : 0);
            const uint32_t n_stored = device.n_stored;
            const uint64_t n_rows = f.rows_run;
            run_one(&f, N_CONTEXT, N_ANSWER, next, 2, N_FOUND);
            assert_int_equal(f.rows_run - n_rows, N_CONTEXT - N_FOUND + N_ANSWER - 1);
            const bool is_there = first == MOVED, moves = next == MOVED;
            assert_int_equal(device.n_stored - n_stored, moves && !is_there ? N_BLOCKS : 0);
            assert_int_equal(device.n_reloaded, is_there ? N_BLOCKS : 0);
            /* What only one sort of them needs is not kept for the other. */
            assert_int_equal(n_token_blocks(&f), moves ? N_BLOCKS : 0);
            assert_int_equal(n_used_blocks(&f), n_token_blocks(&f));
            assert_int_equal(f.n_pages - page_pool_n_free(f.space.pool),
                             N_BLOCKS * (moves ? 1 : N_LAYERS));
            assert_int_equal(stats_of(&f).host_pool_used_bytes, 0);
            fixture_fini(&f);
        }
}

/* The same where the first one's blocks have been evicted to the host pool meanwhile. */
TEST(an_evicted_prefix_is_found) {
    for (enum place first = MOVED; first < N_PLACES; first++)
        for (enum place next = MOVED; next < N_PLACES; next++) {
            struct fixture f;
            fixture_init(&f, 60, 512, 4);
            fixture_add_store(&f, 60);
            run_one(&f, N_CONTEXT, N_ANSWER, first, 1, 0);
            assert_int_equal(kv_make_free(&f.space, f.n_pages), 0);
            assert_int_equal(stats_of(&f).pages_offloaded,
                             N_BLOCKS * (first == MOVED ? 1 : N_LAYERS));
            run_one(&f, N_CONTEXT, N_ANSWER, next, 2, N_FOUND);
            assert_int_equal(stats_of(&f).pages_offloaded, 0);
            assert_int_equal(n_token_blocks(&f), next == MOVED ? N_BLOCKS : 0);
            fixture_fini(&f);
        }
}

/* Many ask one context at once: it is computed once, and is in the host pool once. */
TEST(requests_at_the_same_time_share_host_blocks) {
    enum { N = 6 };
    struct fixture f;
    struct client clients[N] = {0};
    fixture_init(&f, 120, 512, N);
    fixture_add_store(&f, 40);
    for (uint32_t i = 0; i < N; i++) {
        struct engine_request r = ask(&clients[i], N_CONTEXT, 150, MOVED, i);
        fixture_submit(&f, &r, i + 1);
    }
    while (strlen(clients[N - 1].text) < 100) assert_true(fixture_step(&f, 0));
    const uint32_t n_own = (N_CONTEXT + 100) / PAGE_TOKENS - N_BLOCKS;
    assert_true(n_used_blocks(&f) <= N_BLOCKS + N * (n_own + 1));
    assert_true(n_used_blocks(&f) >= N_BLOCKS + N * n_own);
    assert_int_equal(n_token_blocks(&f), 0); /* all are in use */
    fixture_run(&f);
    for (uint32_t i = 0; i < N; i++) {
        client_check(&clients[i]);
        assert_int_equal(clients[i].last.n_cached, i > 0 ? N_FOUND : 0);
    }
    assert_int_equal(f.rows_run, N_FOUND + N * (N_CONTEXT - N_FOUND + 149));
    assert_int_equal(n_token_blocks(&f), N_BLOCKS);
    fixture_fini(&f);
}

/* While one request has a context in the host pool, another one has its pages; each keeps what it
 * needs, whichever ends first. */
TEST(both_sorts_may_use_a_prefix_at_once) {
    for (uint32_t i = 0; i < 4; i++) {
        const enum place first = i % 2 ? MOVED : FULL, second = i % 2 ? FULL : MOVED;
        struct fixture f;
        struct client clients[2] = {0};
        fixture_init(&f, 100, 512, 4);
        fixture_add_store(&f, 20);
        struct engine_request r = ask(&clients[0], N_CONTEXT, i / 2 ? 200 : 60, first, 1);
        fixture_submit(&f, &r, 1);
        r = ask(&clients[1], N_CONTEXT, i / 2 ? 60 : 200, second, 2);
        fixture_submit(&f, &r, 2);
        fixture_run(&f);
        for (int k = 0; k < 2; k++) client_check(&clients[k]);
        assert_int_equal(clients[1].last.n_cached, N_FOUND);
        /* The one that ended last decides. */
        const bool moved_is_last = (i / 2 ? first : second) == MOVED;
        assert_int_equal(n_token_blocks(&f), moved_is_last ? N_BLOCKS : 0);
        fixture_fini(&f);
    }
}

/* The pool has no more pages than one request needs, and the host pool no more blocks.  The pages
 * of a prefix that it takes over are its own. */
TEST(a_lone_request_needs_no_more_than_without_a_prefix) {
    for (enum place first = MOVED; first < N_PLACES; first++) {
        struct fixture f;
        struct client c = {0};
        fixture_init(&f, 100, 512, 4);
        struct kv_plan plan;
        fixture_add_store(&f, (N_CONTEXT + 100) / PAGE_TOKENS);
        struct engine_request r = ask(&c, N_CONTEXT, 100, MOVED, 2);
        plan = request_plan_make(&f.shared, &r).kv;
        const uint32_t n_spare = f.n_pages - (uint32_t)kv_most(&f.space, &plan).pages;
        run_one(&f, N_CONTEXT, 20, first, 1, 0);
        uint32_t taken[100];
        assert_int_equal(kv_make_free(&f.space, n_spare), 0);
        assert_int_equal(page_pool_take(f.space.pool, taken, n_spare), 0);
        fixture_submit(&f, &r, 2);
        fixture_run(&f);
        client_check(&c);
        assert_int_equal(c.last.n_cached, N_FOUND);
        page_pool_release(f.space.pool, taken, n_spare);
        fixture_fini(&f);
    }
}

/* Requests that need host blocks have those of a prefix that is unused.  It is then computed
 * again. */
TEST(token_blocks_are_given_up_to_sequences_that_need_them) {
    struct fixture f;
    struct client c = {0};
    fixture_init(&f, 60, 512, 4);
    fixture_add_store(&f, 8);
    run_one(&f, N_CONTEXT, 100, MOVED, 1, 0);
    assert_int_equal(n_token_blocks(&f), N_BLOCKS);
    struct engine_request r = ask(&c, 360, 100, MOVED, 2);
    r.prompt[0] = 'z';
    fixture_submit(&f, &r, 2);
    fixture_run(&f);
    client_check(&c);
    assert_int_equal(c.last.n_cached, 0);
    assert_int_equal(n_token_blocks(&f),
                     360 / PAGE_TOKENS + 1); /* and the oldest of the first ones */
    run_one(&f, N_CONTEXT, 100, MOVED, 3, PAGE_TOKENS);
    fixture_fini(&f);
}

/* A request that waits keeps its token blocks; running sequences may take them. */
TEST(a_waiting_sequence_keeps_token_blocks) {
    for (uint32_t n_blocks = 24; n_blocks < 60; n_blocks++) {
        struct fixture f;
        struct client clients[3] = {0};
        fixture_init(&f, 21, 512, 4);
        fixture_add_store(&f, n_blocks);
        for (uint32_t i = 0; i < 2; i++) {
            struct engine_request r = ask(&clients[i], N_CONTEXT, 300, MOVED, i);
            fixture_submit(&f, &r, i + 1);
        }
        while (stats_of(&f).n_preempted == 0) assert_true(fixture_step(&f, 0));
        const uint64_t block_bytes = host_pool_block_bytes(&f.store);
        assert_true(stats_of(&f).host_pool_used_bytes <= n_used_blocks(&f) * block_bytes);
        struct engine_request r = ask(&clients[2], 500, 200, MOVED, 2);
        r.prompt[0] = 'z';
        r.priority = -1;
        fixture_submit(&f, &r, 3);
        fixture_run(&f);
        for (int i = 0; i < 3; i++) client_check(&clients[i]);
        assert_int_equal(stats_of(&f).host_pool_used_bytes, 0);
        fixture_fini(&f);
    }
}

/* ---- prompts that are computed layer by layer ---- */

enum { N_LONG = 600, LONG_BLOCKS = (N_LONG - 1) / PAGE_TOKENS };

static void init_long(struct fixture *f, uint32_t n_pages) {
    fixture_init_with(
        f, n_pages,
        (struct scheduler_config){.max_rows = 128, .max_seqs = 4, .max_long_rows = 1024});
    fixture_set_layers(f, 6);
    fixture_add_store(f, 60);
}

/* What was found is not computed: the next question takes a slice of each layer. */
TEST(a_prompt_that_does_not_fit_finds_its_prefix) {
    struct fixture f;
    init_long(&f, 56);
    run_one(&f, N_LONG, 50, MOVED, 1, 0);
    assert_int_equal(f.n_slices, 6 * 5);
    assert_int_equal(n_token_blocks(&f), LONG_BLOCKS);
    f.n_slices = 0;
    run_one(&f, N_LONG, 50, MOVED, 2, LONG_BLOCKS * PAGE_TOKENS);
    assert_int_equal(f.n_slices, 6);
    run_one(&f, N_LONG + 130, 50, MOVED, 3, LONG_BLOCKS * PAGE_TOKENS);
    assert_int_equal(f.n_slices, 6 + 6 * 2);
    fixture_fini(&f);
}

/* All but the last token: there are no slices at all. */
TEST(a_prompt_that_does_not_fit_may_be_found_whole) {
    const uint32_t n_prompt = 9 * PAGE_TOKENS + 1;
    struct fixture f;
    init_long(&f, 56);
    run_one(&f, n_prompt, 50, MOVED, 1, 0);
    f.n_slices = f.rows_run = 0;
    run_one(&f, n_prompt, 50, MOVED, 2, n_prompt - 1);
    assert_int_equal(f.n_slices, 0);
    assert_int_equal(f.rows_run, 50);
    fixture_fini(&f);
}

/* It shares what it has computed with requests that keep everything, and takes from them nothing
 * that has no token block. */
TEST(a_long_prompt_shares_with_others) {
    struct fixture f;
    init_long(&f, 56);
    run_one(&f, 300, 20, FULL, 1, 0);
    run_one(&f, N_LONG, 50, MOVED, 2, 0);
    assert_int_equal(f.n_slices, 6 * 5);
    run_one(&f, 500, 5, FULL, 3, 7 * PAGE_TOKENS);
    fixture_fini(&f);
}

/* ---- all together ---- */

/* Over all loads; n_found: tokens found by requests that move tokens. */
static struct { uint64_t n_found, n_reloaded, n_preempted, n_swapped_in, n_slices; } seen;

static void random_load(uint32_t n_layers, uint32_t n_pages, uint32_t n_blocks, unsigned seed) {
    enum { N = 120 };
    struct fixture f;
    struct client *clients = calloc(N, sizeof(*clients));
    enum place places[N];
    fixture_init_with(
        &f, n_pages,
        (struct scheduler_config){.max_rows = 128, .max_seqs = 6, .max_long_rows = 640});
    fixture_set_layers(&f, n_layers);
    fixture_add_store(&f, n_blocks);
    srand(seed);
    for (uint32_t i = 0, n = 1; i < N || scheduler_n_live(f.scheduler) + f.n_inflight > 0; n++) {
        for (int k = rand() % 3; k > 0 && i < N; k--, i++) {
            places[i] = rand() % 2 ? MOVED : (enum place)(rand() % N_PLACES);
            const uint32_t n_prompt = 100 + (uint32_t)rand() % (places[i] == MOVED ? 460 : 190);
            struct engine_request r = client_request(&clients[i], n_prompt, (uint32_t)rand() % 150);
            const uint32_t family = (uint32_t)rand() % 2, n_alike = (uint32_t)rand() % n_prompt;
            for (uint32_t t = 0; t < n_prompt; t++)
                r.prompt[t] = 'a' + (t < n_alike ? family + t * 7 : (uint32_t)rand()) % 26;
            r.kv = choice_of(places[i]);
            r.prefill.mode = rand() % 5 ? PREFILL_DENSE : PREFILL_SPARSE;
            r.priority = rand() % 3;
            fixture_submit(&f, &r, i + 1);
        }
        fixture_cancel_one(&f, clients, N, 40);
        fixture_step(&f, n);
        assert_true(kv_n_available_blocks(&f.space) <= n_blocks);
        assert_true(n < 200000);
    }
    for (uint32_t i = 0; i < N; i++) {
        client_check(&clients[i]);
        if (places[i] == MOVED) seen.n_found += clients[i].last.n_cached;
    }
    const struct engine_stats stats = stats_of(&f);
    seen.n_preempted += stats.n_preempted;
    seen.n_swapped_in += stats.n_swapped_in;
    seen.n_reloaded += device.n_reloaded;
    seen.n_slices += f.n_slices;
    assert_int_equal(stats.host_pool_used_bytes, 0);
    assert_int_equal(kv_n_available_blocks(&f.space), n_blocks);
    fixture_fini(&f);
    free(clients);
}

TEST(random_requests_give_what_they_give_alone) {
    memset(&seen, 0, sizeof(seen));
    for (unsigned seed = 1; seed < 13; seed++) {
        const uint32_t n_layers = seed % 3 ? 2 : 5;
        random_load(n_layers, seed % 3 ? 26 : 44, seed % 2 ? 30 : 120, seed);
    }
    assert_true(seen.n_preempted > 5 && seen.n_swapped_in > 100 && seen.n_slices > 100);
    assert_true(seen.n_reloaded > 500 && seen.n_found > 300 * PAGE_TOKENS);
}

int main(void) {
    return fixture_main();
}
