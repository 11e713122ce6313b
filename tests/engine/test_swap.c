/* test_swap.c - sequences that lose their place, and blocks that the prefix cache evicts, while the
 * store has room for their pages, with a fake model (scheduler_fixture.h).
 *
 * That nothing is lost shows in the answers; that nothing is computed twice, in the rows that have
 * been run.  A block of the fake's store is 512 bytes, so a page lies in two of them or three.
 *
 * All tests run twice: a step at a time, and with the next step planned before the results of one
 * are there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/host_pool.h"
#include "engine/device/pages.h"
#include "engine/kv/page_pool.h"
#include "tests/engine/scheduler_fixture.h"
#include "tests/test.h"

enum { PLENTY = 400 /* blocks */ };

/* Texts differ from their first token on. */
static struct engine_request plain_request(struct client *c, uint32_t n_prompt, uint32_t max_tokens,
                                           uint32_t text) {
    struct engine_request r = client_request(c, n_prompt, max_tokens);
    for (uint32_t i = 0; i < n_prompt; i++) r.prompt[i] = 'a' + (text + i * 7) % 26;
    r.params.ignore_eos = true;
    return r;
}

static struct kv_choice selecting(bool on_device) {
    return (struct kv_choice){.mechanism = KV_SELECTING,
                              .n_sink = 4,
                              .n_selected = 64,
                              .n_tail = 64,
                              .on_device = on_device};
}

static struct engine_stats stats_of(const struct fixture *f) {
    struct engine_stats stats;
    scheduler_stats(f->scheduler, &stats);
    return stats;
}

static const struct kv_choice kinds[] = {
    {0},
    {.mechanism = KV_SELECTING, .n_sink = 4, .n_selected = 64, .n_tail = 64, .on_device = true},
    {.mechanism = KV_SELECTING, .n_sink = 4, .n_selected = 64, .n_tail = 64}};
enum { N_KINDS = 3 };

/* Two texts of 300 tokens and 200 generated ones, 8 pages of each layer, or 3 of what is selected,
 * where there are not quite the pages for two.  Rows that they take at least: all but each one's
 * last token. */
enum {
    N_PROMPT = 300,
    N_GENERATED = 200,
    LEAST_ROWS = 2 * (N_PROMPT + N_GENERATED - 1),
    N_BLOCKS_OF_ONE = 19
};

struct pair {
    struct fixture f;
    struct client clients[2];
    struct engine_stats stats;
};

static void begin_pair(struct pair *p, struct kv_choice kv, uint32_t n_blocks) {
    memset(p, 0, sizeof(*p));
    fixture_init(&p->f, kv.mechanism == KV_SELECTING && !kv.on_device ? 22 : 26, 700, 4);
    if (n_blocks) fixture_add_store(&p->f, n_blocks);
    for (uint32_t i = 0; i < 2; i++) {
        struct engine_request r = plain_request(&p->clients[i], N_PROMPT, N_GENERATED, i);
        r.kv = kv;
        fixture_submit(&p->f, &r, i + 1);
    }
}

static void end_pair(struct pair *p) {
    fixture_run(&p->f);
    for (int i = 0; i < 2; i++) client_check(&p->clients[i]);
    p->stats = stats_of(&p->f);
    assert_int_equal(p->stats.n_preempted, 1);
    assert_int_equal(p->stats.host_pool_used_bytes, 0);
    fixture_fini(&p->f);
}

static void until_one_waits(struct pair *p) {
    while (stats_of(&p->f).n_preempted == 0) assert_true(fixture_step(&p->f, 0));
}

static struct pair run_pair(struct kv_choice kv, uint32_t n_blocks) {
    struct pair p;
    begin_pair(&p, kv, n_blocks);
    end_pair(&p);
    return p;
}

TEST(what_was_swapped_is_not_computed_again) {
    const struct pair p = run_pair((struct kv_choice){0}, PLENTY);
    assert_int_equal(p.f.rows_run, LEAST_ROWS);
    assert_true(p.stats.n_swapped_out > 10 && p.stats.n_swapped_out % N_LAYERS == 0);
    /* What the cache still has comes from there. */
    assert_true(p.stats.n_swapped_in > 0 && p.stats.n_swapped_in <= p.stats.n_swapped_out);
}

/* What was chosen is there again, too, in the same slots: as much is fetched as without. */
TEST(a_selection_outlives_its_place) {
    for (int on_device = 0; on_device < 2; on_device++) {
        struct fixture f;
        struct client alone = {0};
        fixture_init(&f, 60, 700, 4);
        fixture_add_store(&f, PLENTY);
        struct engine_request r = plain_request(&alone, N_PROMPT, N_GENERATED, 1);
        r.kv = selecting(on_device);
        fixture_submit(&f, &r, 1);
        fixture_run(&f);
        fixture_fini(&f);
        const uint32_t n_stored = device.n_stored;
        const struct pair p = run_pair(selecting(on_device), PLENTY);
        assert_int_equal(p.f.rows_run, LEAST_ROWS);
        assert_true(p.stats.n_swapped_in > 0);
        assert_int_equal(p.clients[1].last.kv.values[KV_FETCHED_TOKENS],
                         alone.last.kv.values[KV_FETCHED_TOKENS]);
        assert_int_equal(p.clients[1].last.kv.values[KV_SELECTED_TOKENS],
                         alone.last.kv.values[KV_SELECTED_TOKENS]);
        assert_int_equal(p.clients[1].last.kv.values[KV_OFFLOADED_TOKENS],
                         alone.last.kv.values[KV_OFFLOADED_TOKENS]);
        assert_int_equal(device.n_stored, 2 * n_stored); /* both texts, each token once */
    }
}

/* Of a layer that sees what is selected that is all that waits: its tokens are in the store, each
 * in a block of its own.  The prompt's pages of the other layer are found in the cache again. */
TEST(tokens_that_were_moved_stay_where_they_are) {
    struct pair p;
    begin_pair(&p, selecting(false), PLENTY);
    until_one_waits(&p);
    const struct engine_stats stats = stats_of(&p.f);
    const uint32_t n_pages = (uint32_t)stats.n_swapped_out, n_text = n_pages - 3 - 1;
    assert_true(n_text > 5 && n_text < 8); /* pages of the filter layer; 3, and the state */
    const uint64_t block_bytes = host_pool_block_bytes(&p.f.store),
                   n_blocks = (n_pages * p.f.pool.page_bytes + block_bytes - 1) / block_bytes;
    assert_true(stats.host_pool_used_bytes >= (n_blocks + 2 * (n_text - 1)) * block_bytes);
    assert_true(stats.host_pool_used_bytes <= (n_blocks + 2 * n_text) * block_bytes);
    end_pair(&p);
    assert_int_equal(p.stats.n_swapped_in, n_pages - N_PROMPT / PAGE_TOKENS);
}

/* A store with blocks for both texts, and the pages of one: the waiting one takes the next block of
 * its tokens from those that its pages lay in. */
TEST(blocks_of_pages_that_came_back_are_enough) {
    uint32_t n_swapped = 0;
    for (uint32_t n_blocks = 14; n_blocks < 40; n_blocks++) {
        const struct pair p = run_pair(selecting(false), n_blocks);
        assert_int_equal(p.f.rows_run == LEAST_ROWS, p.stats.n_swapped_in > 0);
        assert_true(p.stats.n_swapped_in <= p.stats.n_swapped_out);
        n_swapped += p.stats.n_swapped_in > 0;
    }
    assert_true(n_swapped > 0 && n_swapped < 26);
}

/* A prompt of 600 tokens that goes layer by layer has its place long enough to generate.  What
 * preempts it ends first.  Its slices are not run again, and no token of its prompt but the last is
 * a row of a step. */
TEST(a_prompt_that_went_layer_by_layer_goes_on) {
    for (uint32_t n_blocks = 24; n_blocks <= PLENTY; n_blocks += PLENTY - 24) {
        struct fixture f;
        struct client clients[2] = {0};
        fixture_init_with(
            &f, 60,
            (struct scheduler_config){.max_rows = 256, .max_seqs = 4, .max_long_rows = 640});
        fixture_set_layers(&f, 6);
        fixture_add_store(&f, n_blocks);
        struct engine_request r = plain_request(&clients[0], 600, 900, 0);
        r.kv = selecting(false);
        fixture_submit(&f, &r, 1);
        for (int i = 0; i < 450; i++) fixture_step(&f, 0);
        const uint64_t n_slices = f.n_slices;
        assert_int_equal(n_slices, 18);
        r = plain_request(&clients[1], 150, 200, 1);
        r.priority = -1;
        fixture_submit(&f, &r, 2);
        fixture_run(&f);
        for (int i = 0; i < 2; i++) client_check(&clients[i]);
        assert_int_equal(stats_of(&f).n_preempted, 1);
        assert_int_equal(stats_of(&f).n_swapped_in > 0, n_blocks == PLENTY);
        if (n_blocks == PLENTY) {
            assert_int_equal(f.rows_run, 900 + 349);
            assert_int_equal(f.n_slices, n_slices);
        } else assert_true(f.n_slices > n_slices);
        fixture_fini(&f);
    }
}

TEST(where_the_store_is_full_it_is_computed_again) {
    for (uint32_t n_blocks = 0; n_blocks < 4; n_blocks += 3) {
        const struct pair p = run_pair((struct kv_choice){0}, n_blocks);
        assert_true(p.f.rows_run > LEAST_ROWS);
        assert_int_equal(p.stats.n_swapped_out + p.stats.n_swapped_in, 0);
    }
}

/* Of the second text's first 256 tokens the first text has the pages; until the second has lost its
 * place. */
static void begin_sharing(struct fixture *f, struct client clients[2], uint32_t n_blocks) {
    fixture_init(f, 18, 700, 4);
    fixture_add_store(f, n_blocks);
    for (uint32_t i = 0; i < 2; i++) {
        struct engine_request r = plain_request(&clients[i], N_PROMPT, N_GENERATED, 0);
        r.prompt[N_PROMPT - 1] = 'a' + i;
        fixture_submit(f, &r, i + 1);
    }
    while (stats_of(f).n_preempted == 0) assert_true(fixture_step(f, 0));
}

/* Of each layer a page of 9 is short then, so that they have three beside the four that they
 * share. */
TEST(what_others_use_stays_where_it_is) {
    struct fixture f;
    struct client clients[2] = {0};
    begin_sharing(&f, clients, PLENTY);
    const uint64_t page_bytes = f.pool.page_bytes, used = stats_of(&f).host_pool_used_bytes;
    assert_true(used >= N_LAYERS * page_bytes && used <= 3 * N_LAYERS * page_bytes);
    fixture_run(&f);
    for (int i = 0; i < 2; i++) client_check(&clients[i]);
    assert_int_equal(clients[1].last.n_cached, 256);
    assert_int_equal(f.rows_run, LEAST_ROWS - 256);
    fixture_fini(&f);
}

/* The same, but the sequence with the first pages ends, and another one needs them, before it goes
 * on.  They go to the store, too; but without room for them the others are of no use there. */
TEST(without_its_beginning_it_is_computed_again) {
    const uint32_t n_blocks[] = {PLENTY, 8}, least_rows = LEAST_ROWS - 256 + 559;
    for (int i = 0; i < 2; i++) {
        struct fixture f;
        struct client clients[3] = {0};
        begin_sharing(&f, clients, n_blocks[i]);
        assert_true(stats_of(&f).host_pool_used_bytes > 0);
        struct engine_request r = plain_request(&clients[2], 500, 60, 5);
        r.priority = -1;
        fixture_submit(&f, &r, 3);
        fixture_run(&f);
        for (int k = 0; k < 3; k++) client_check(&clients[k]);
        if (i == 0) assert_int_equal(f.rows_run, least_rows);
        else assert_true(f.rows_run > least_rows);
        assert_int_equal(stats_of(&f).host_pool_used_bytes, 0);
        fixture_fini(&f);
    }
}

/* All blocks are those of waiting sequences, until one that runs needs some. */
TEST(a_running_sequence_may_take_the_blocks_of_waiting_ones) {
    struct pair p;
    struct client moving = {0};
    begin_pair(&p, (struct kv_choice){0}, N_BLOCKS_OF_ONE);
    until_one_waits(&p);
    const uint64_t n_all = N_BLOCKS_OF_ONE * host_pool_block_bytes(&p.f.store);
    assert_int_equal(stats_of(&p.f).host_pool_used_bytes, n_all);
    struct engine_request r = plain_request(&moving, 200, 100, 7);
    r.kv = selecting(false);
    r.priority = -1;
    fixture_submit(&p.f, &r, 3);
    fixture_run(&p.f);
    for (int i = 0; i < 2; i++) client_check(&p.clients[i]);
    client_check(&moving);
    assert_int_equal(device.n_stored, 4);
    assert_true(p.f.rows_run > LEAST_ROWS + 299);
    fixture_fini(&p.f);
}

/* It finds no place for a while, and tries again and again. */
TEST(trying_in_vain_changes_nothing) {
    struct pair p;
    struct client more[3] = {0};
    begin_pair(&p, (struct kv_choice){0}, PLENTY);
    until_one_waits(&p);
    const uint64_t n_out = stats_of(&p.f).n_swapped_out;
    for (uint32_t i = 0; i < 3; i++) {
        struct engine_request r = plain_request(&more[i], 20, 10 + 10 * i, 8 + i);
        r.priority = -1;
        fixture_submit(&p.f, &r, 3 + i);
    }
    fixture_run(&p.f);
    for (int i = 0; i < 2; i++) client_check(&p.clients[i]);
    for (int i = 0; i < 3; i++) client_check(&more[i]);
    assert_true(stats_of(&p.f).n_swapped_out >= n_out);
    assert_int_equal(p.f.rows_run, LEAST_ROWS + 3 * 19 + 10 + 20 + 30);
    fixture_fini(&p.f);
}

/* It finds 256 tokens in the cache, and then no pages for the others. */
TEST(a_sequence_that_computed_nothing_keeps_nothing) {
    struct fixture f;
    struct client clients[3] = {0};
    fixture_init(&f, 26, 700, 4);
    fixture_add_store(&f, PLENTY);
    struct engine_request r = plain_request(&clients[0], N_PROMPT, 1, 0);
    fixture_submit(&f, &r, 1);
    fixture_run(&f);
    r = plain_request(&clients[1], 500, 30, 1);
    fixture_submit(&f, &r, 2);
    r = plain_request(&clients[2], 640, 30, 0);
    fixture_submit(&f, &r, 3);
    fixture_step(&f, 0);
    assert_int_equal(stats_of(&f).n_waiting, 1);
    assert_int_equal(stats_of(&f).host_pool_used_bytes, 0);
    fixture_run(&f);
    for (int i = 0; i < 3; i++) client_check(&clients[i]);
    assert_int_equal(clients[2].last.n_cached, 256);
    fixture_fini(&f);
}

/* Of a text that runs and moves its tokens, the store has those. */
static void check_blocks(const struct pair *p, bool moves) {
    const uint64_t used = stats_of(&p->f).host_pool_used_bytes,
                   block_bytes = host_pool_block_bytes(&p->f.store);
    if (!moves) assert_int_equal(used, 0);
    else
        assert_true(used >= N_PROMPT / PAGE_TOKENS * block_bytes &&
                    used <= (N_PROMPT + N_GENERATED) / PAGE_TOKENS * block_bytes);
}

TEST(a_waiting_sequence_may_be_cancelled) {
    for (uint32_t n_steps = 0; n_steps < 3 * N_KINDS; n_steps++) {
        struct pair p;
        begin_pair(&p, kinds[n_steps % N_KINDS], PLENTY);
        until_one_waits(&p);
        for (uint32_t i = 0; i < n_steps / N_KINDS; i++) fixture_step(&p.f, 0);
        assert_true(stats_of(&p.f).host_pool_used_bytes > 0);
        p.clients[1].cancelled = true;
        scheduler_cancel(p.f.scheduler, 2, &p.f.events);
        check_blocks(&p, n_steps % N_KINDS == 2);
        fixture_run(&p.f);
        check_blocks(&p, false);
        for (int i = 0; i < 2; i++) client_check(&p.clients[i]);
        fixture_fini(&p.f);
    }
}

TEST(ending_all_leaves_nothing_behind) {
    for (int i = 0; i < N_KINDS; i++) {
        struct pair p;
        begin_pair(&p, kinds[i], PLENTY);
        until_one_waits(&p);
        scheduler_end_all(p.f.scheduler, FINISH_ERROR, ERR_DEVICE, "it is gone", &p.f.events);
        fixture_drain(&p.f, 0);
        check_blocks(&p, false);
        fixture_fini(&p.f);
    }
}

/* A copy that cannot be submitted is the device's failure. */
TEST(a_failing_copy_is_told) {
    struct pair p;
    begin_pair(&p, (struct kv_choice){0}, PLENTY);
    for (int i = 0; i < 3; i++) fixture_step(&p.f, 0);
    device.fails = true;
    fixture_run(&p.f);
    client_check(&p.clients[0]);
    assert_int_equal(p.clients[1].last.reason, FINISH_ERROR);
    assert_int_equal(p.clients[1].last.error_code, ERR_DEVICE);
    fixture_fini(&p.f);
}

/* ---- blocks of the prefix cache ---- */

enum { N_ALL = 26 / N_LAYERS * PAGE_TOKENS, PLACE = 4 /* blocks that one takes in the store */ };

/* One after the other. */
static uint32_t ask(struct fixture *f, uint32_t n_prompt, uint32_t text) {
    struct client c = {0};
    struct engine_request r = plain_request(&c, n_prompt, 2, text);
    fixture_submit(f, &r, 1);
    fixture_run(f);
    client_check(&c);
    return c.last.n_cached;
}

TEST(evicted_blocks_are_found_again) {
    struct fixture f;
    fixture_init(&f, 26, 700, 4);
    fixture_add_store(&f, PLENTY);
    assert_int_equal(ask(&f, 300, 0), 0);
    assert_int_equal(ask(&f, N_ALL - 2, 1), 0);
    struct engine_stats stats = stats_of(&f);
    assert_int_equal(stats.pages_offloaded, 4 * N_LAYERS);
    assert_int_equal(stats.n_swapped_out, 4 * N_LAYERS);
    assert_int_equal(stats.host_pool_used_bytes, 0); /* any sequence that needs it may take it */
    f.rows_run = 0;
    assert_int_equal(ask(&f, 300, 0), 256);
    assert_int_equal(f.rows_run, 300 - 256 + 1);
    stats = stats_of(&f);
    assert_int_equal(stats.n_swapped_in, 4 * N_LAYERS);
    assert_int_equal(ask(&f, 300, 0), 256); /* with pages again */
    assert_int_equal(stats_of(&f).n_swapped_in, 4 * N_LAYERS);
    fixture_fini(&f);
}

/* There is room for four: the beginning of the newer text. */
TEST(the_store_drops_what_was_used_least_recently) {
    struct fixture f;
    fixture_init(&f, 26, 700, 4);
    fixture_add_store(&f, 4 * PLACE + PLACE - 1);
    ask(&f, 200, 0);
    ask(&f, 300, 1);
    ask(&f, N_ALL - 2, 2);
    assert_int_equal(stats_of(&f).n_swapped_out, 7 * N_LAYERS);
    assert_int_equal(stats_of(&f).pages_offloaded, 4 * N_LAYERS);
    assert_int_equal(ask(&f, 300, 1), 256);
    assert_int_equal(ask(&f, 200, 0), 0);
    fixture_fini(&f);
}

/* A sequence that computes a stored block again, as log-probabilities ask for, lends it its pages:
 * the block's children have pages, too. */
TEST(a_stored_block_may_be_computed_again) {
    struct fixture f;
    struct client c = {0};
    fixture_init(&f, 26, 700, 4);
    fixture_add_store(&f, PLENTY);
    ask(&f, 300, 0);
    ask(&f, N_ALL - 2, 1);
    const uint32_t n_stored = stats_of(&f).pages_offloaded;
    struct engine_request r = plain_request(&c, 400, 2, 0);
    r.params.n_prompt_logprobs = 0;
    fixture_submit(&f, &r, 1);
    fixture_run(&f);
    client_check(&c);
    assert_int_equal(n_stored, 4 * N_LAYERS);
    assert_int_equal(stats_of(&f).n_swapped_in, 0);
    assert_int_equal(ask(&f, 500, 0), 384);
    assert_int_equal(stats_of(&f).n_swapped_in, 0);
    fixture_fini(&f);
}

/* The store is full of them. */
TEST(cached_blocks_make_no_sequence_wait) {
    for (int moves = 0; moves < 2; moves++) {
        struct fixture f;
        struct client clients[2] = {0};
        fixture_init(&f, 26, 700, 4);
        fixture_add_store(&f, 24);
        for (uint32_t text = 2; text < 6; text++) ask(&f, N_ALL - 2, text);
        assert_int_equal(stats_of(&f).pages_offloaded, 24 / PLACE * N_LAYERS);
        for (uint32_t i = 0; i < 2; i++) {
            struct engine_request r = plain_request(&clients[i], N_PROMPT, N_GENERATED, i);
            if (moves) r.kv = selecting(false);
            fixture_submit(&f, &r, i + 1);
        }
        fixture_step(&f, 0);
        assert_int_equal(stats_of(&f).n_running, 2);
        fixture_run(&f);
        for (int i = 0; i < 2; i++) client_check(&clients[i]);
        assert_int_equal(stats_of(&f).n_preempted, !moves);
        if (!moves) assert_int_equal(f.rows_run, 4 * (N_ALL - 1) + LEAST_ROWS);
        fixture_fini(&f);
    }
}

/* ---- all together ---- */

static struct kv_choice random_choice(void) {
    struct kv_choice kv = {.mechanism = KV_SELECTING,
                           .n_selected = 1 + (uint32_t)rand() % 128,
                           .n_tail = 1 + (uint32_t)rand() % 100,
                           .on_device = rand() % 3 > 0};
    return rand() % 2 ? kv : (struct kv_choice){0};
}

static struct engine_stats random_load(uint32_t n_pages, uint32_t n_blocks, unsigned seed) {
    enum { N = 150 };
    struct fixture f;
    struct client *clients = calloc(N, sizeof(*clients));
    fixture_init(&f, n_pages, 64, 8);
    fixture_add_store(&f, n_blocks);
    srand(seed);
    for (uint32_t i = 0, n = 1; i < N || scheduler_n_live(f.scheduler) + f.n_inflight > 0; n++) {
        for (int k = rand() % 3; k > 0 && i < N; k--, i++) {
            struct engine_request r =
                client_request(&clients[i], 1 + (uint32_t)rand() % 300, (uint32_t)rand() % 250);
            client_fill_prompt(&r);
            r.kv = random_choice();
            r.priority = rand() % 3;
            r.params.n_prompt_logprobs = rand() % 10 == 0 ? 0 : -1;
            r.params.sampler.presence_penalty = rand() % 20 == 0;
            fixture_submit(&f, &r, i + 1);
        }
        fixture_cancel_one(&f, clients, N, 40);
        fixture_step(&f, n);
        assert_true(n < 200000);
    }
    for (int i = 0; i < N; i++) client_check(&clients[i]);
    const struct engine_stats stats = stats_of(&f);
    assert_int_equal(stats.host_pool_used_bytes, 0);
    fixture_fini(&f);
    free(clients);
    return stats;
}

TEST(random_requests_give_what_they_give_alone) {
    uint64_t n_swapped_in = 0, n_stored = 0;
    for (unsigned seed = 1; seed < 5; seed++) {
        const uint32_t n_blocks = seed % 2 ? 20 : 150;
        const struct engine_stats stats = random_load(26 + 4 * seed, n_blocks, seed);
        assert_true(stats.n_preempted > 0 && stats.n_swapped_out >= stats.n_swapped_in);
        n_swapped_in += stats.n_swapped_in;
        n_stored += stats.pages_offloaded;
    }
    assert_true(n_swapped_in > 0 && n_stored > 0);
}

int main(void) {
    return fixture_main();
}
