/* test_selections.c - requests whose sparse layers see what is selected, on the device or with a
 * store, with a fake model (scheduler_fixture.h, fake_select.h).
 *
 * All tests run twice: a step at a time, and with the next step planned before the results of one
 * are there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/reclaim.h"
#include "tests/engine/scheduler_fixture.h"
#include "tests/test.h"

enum { ON_DEVICE = true, IN_STORE = false };

static struct engine_request select_request(struct client *c, uint32_t n_prompt,
                                            uint32_t max_tokens, bool on_device) {
    struct engine_request r = client_request(c, n_prompt, max_tokens);
    for (uint32_t i = 0; i < n_prompt; i++) r.prompt[i] = 'a' + i * 7 % 26;
    r.kv = (struct kv_choice){.mechanism = KV_SELECTING,
                              .n_sink = 4,
                              .n_selected = 64,
                              .n_tail = 64,
                              .on_device = on_device};
    r.params.ignore_eos = true;
    return r;
}

static uint32_t n_used(const struct fixture *f) {
    return f->n_pages - page_pool_n_free(f->space.pool);
}

static uint32_t n_used_blocks(const struct fixture *f) {
    return f->store.n_blocks - page_pool_n_free(f->space.blocks);
}

/* 300 tokens are five pages; from there on layer 0 grows, and layer 1 has a page of chosen tokens,
 * one for the tail and one more.  Both layers' states take a page. */
TEST(what_leaves_gives_its_pages_back) {
    struct fixture f;
    struct client c = {0};
    fixture_init(&f, 40, 512, 4);
    fixture_add_store(&f, 10);
    struct engine_request r = select_request(&c, 300, 200, IN_STORE);
    fixture_submit(&f, &r, 1);
    fixture_step(&f, 0);
    assert_int_equal(n_used(&f), 2 * 5 + 1);
    assert_int_equal(device.n_stored, 4);
    for (int i = 0; i < 3; i++) fixture_step(&f, 0);
    assert_int_equal(n_used(&f), 5 + 3 + 1);
    while (strlen(c.text) < 150) assert_true(fixture_step(&f, 0));
    assert_int_equal(n_used(&f), 8 + 3 + 1);
    assert_int_equal(n_used_blocks(&f), 7);
    fixture_run(&f);
    client_check(&c);
    /* 499 tokens are stored, the last step's row is behind 498: 384 candidates. */
    assert_int_equal(c.last.kv.values[KV_OFFLOADED_TOKENS], 384 - 64);
    assert_int_equal(c.last.kv.values[KV_SELECTED_TOKENS], 199 * 64);
    assert_int_equal(device.n_stored, 7);
    /* The prompt's blocks are shared: a page of layer 0 each, and a host block. */
    assert_int_equal(n_used(&f), 4);
    assert_int_equal(n_used_blocks(&f), 4);
    assert_int_equal(page_pool_n_offered(f.space.blocks, PAGE_CACHED), 4);
    fixture_fini(&f);
}

/* The same text on the device: all pages stay, and there are some for what is chosen. */
TEST(on_the_device_everything_stays) {
    struct fixture f;
    struct client c = {0};
    fixture_init(&f, 40, 512, 4);
    struct engine_request r = select_request(&c, 300, 200, ON_DEVICE);
    fixture_submit(&f, &r, 1);
    while (strlen(c.text) < 150) assert_true(fixture_step(&f, 0));
    assert_int_equal(n_used(&f), 2 * 8 + 1 + 1);
    fixture_run(&f);
    client_check(&c);
    assert_int_equal(c.last.kv.values[KV_OFFLOADED_TOKENS], 0);
    assert_int_equal(c.last.kv.values[KV_SELECTED_TOKENS], 199 * 64);
    assert_true(c.last.kv.values[KV_FETCHED_TOKENS] >= 64 &&
                c.last.kv.values[KV_FETCHED_TOKENS] < 199 * 64);
    assert_int_equal(n_used(&f), 2 * 4); /* the prompt's blocks are shared */
    fixture_fini(&f);
}

/* A text that has no more candidates than are selected is kept like any other. */
TEST(short_texts_are_kept_whole) {
    struct fixture f;
    struct client c = {0};
    fixture_init(&f, 40, 512, 4);
    fixture_add_store(&f, 10);
    struct engine_request r = select_request(&c, 100, 91, IN_STORE);
    fixture_submit(&f, &r, 1);
    fixture_run(&f);
    client_check(&c);
    assert_int_equal(c.last.kv.values[KV_SELECTED_TOKENS] + device.n_stored, 0);
    fixture_fini(&f);
}

static uint32_t cached_after(bool on_device) {
    struct fixture f;
    struct client first = {0}, again = {0};
    fixture_init(&f, 60, 512, 4);
    fixture_add_store(&f, 10);
    struct engine_request r = select_request(&first, 300, 200, on_device);
    fixture_submit(&f, &r, 1);
    fixture_run(&f);
    r = client_request(&again, 450, 5);
    for (uint32_t i = 0; i < 300; i++) r.prompt[i] = 'a' + i * 7 % 26;
    for (uint32_t i = 0; i < 150; i++) r.prompt[300 + i] = (unsigned char)first.text[i];
    fixture_submit(&f, &r, 2);
    fixture_run(&f);
    client_check(&again);
    fixture_fini(&f);
    return again.last.n_cached;
}

/* What is generated depends on the selection. */
TEST(only_prompts_are_shared) {
    assert_int_equal(cached_after(ON_DEVICE), 256);
    assert_int_equal(cached_after(IN_STORE), 256);
}

TEST(a_text_longer_than_the_store_is_refused) {
    struct fixture f;
    struct client c = {0};
    fixture_init(&f, 60, 512, 4);
    fixture_add_store(&f, 6);
    struct engine_request r = select_request(&c, 300, 148, IN_STORE);
    fixture_refuse(&f, &r);
    fixture_fini(&f);
}

/* There are pages for both sequences, and host blocks for one. */
TEST(a_sequence_without_blocks_preempts_no_other_for_them) {
    struct fixture f;
    struct client first = {0}, second = {0}, full = {0};
    struct engine_stats stats;
    fixture_init(&f, 100, 512, 4);
    fixture_add_store(&f, 10);
    struct engine_request r = select_request(&first, 200, 300, IN_STORE);
    fixture_submit(&f, &r, 1);
    r = select_request(&second, 200, 300, IN_STORE);
    fixture_submit(&f, &r, 2);
    r = client_request(&full, 20, 300);
    r.params.ignore_eos = true;
    fixture_submit(&f, &r, 3);
    while (!full.finished) assert_true(fixture_step(&f, 0));
    scheduler_stats(f.scheduler, &stats);
    assert_int_equal(stats.n_preempted, 1);
    assert_false(second.finished);
    fixture_run(&f);
    client_check(&first);
    client_check(&second);
    client_check(&full);
    fixture_fini(&f);
}

/* Blocks that others have are waited for. */
TEST(a_sequence_that_finds_no_blocks_waits) {
    struct fixture f;
    struct client first = {0}, second = {0};
    struct engine_stats stats;
    fixture_init(&f, 100, 512, 4);
    fixture_add_store(&f, 7);
    struct engine_request r = select_request(&first, 300, 100, IN_STORE);
    fixture_submit(&f, &r, 1);
    r = select_request(&second, 300, 100, IN_STORE);
    r.prompt[0] = 'z';
    fixture_submit(&f, &r, 2);
    while (!first.finished) assert_true(fixture_step(&f, 0));
    assert_int_equal(strlen(second.text), 0);
    fixture_run(&f);
    client_check(&first);
    client_check(&second);
    scheduler_stats(f.scheduler, &stats);
    assert_int_equal(stats.n_preempted, 0);
    fixture_fini(&f);
}

/* The second would find the blocks for its prompt, but the first will want one of them soon. */
TEST(the_next_block_is_left_to_running_sequences) {
    struct fixture f;
    struct client first = {0}, second = {0};
    struct engine_stats stats;
    fixture_init(&f, 100, 512, 4);
    fixture_add_store(&f, 6);
    struct engine_request r = select_request(&first, 300, 100, IN_STORE);
    fixture_submit(&f, &r, 1);
    r = select_request(&second, 190, 100, IN_STORE);
    r.prompt[0] = 'z';
    fixture_submit(&f, &r, 2);
    fixture_run(&f);
    client_check(&first);
    client_check(&second);
    scheduler_stats(f.scheduler, &stats);
    assert_int_equal(stats.n_preempted, 0);
    fixture_fini(&f);
}

/* When the first ends there are fewer pages than when the second asked, but blocks. */
TEST(blocks_alone_are_reason_enough_to_try_again) {
    struct fixture f;
    struct client first = {0}, second = {0}, full = {0};
    fixture_init(&f, 100, 1024, 4);
    fixture_add_store(&f, 11);
    struct engine_request r = client_request(&full, 20, 480);
    r.params.ignore_eos = true;
    fixture_submit(&f, &r, 1);
    r = select_request(&first, 200, 460, IN_STORE);
    fixture_submit(&f, &r, 2);
    r = select_request(&second, 600, 50, IN_STORE);
    r.prompt[0] = 'z';
    fixture_submit(&f, &r, 3);
    while (!first.finished) assert_true(fixture_step(&f, 0));
    assert_false(full.finished || second.text[0]);
    for (int i = 0; i < 4; i++) fixture_step(&f, 0);
    assert_false(full.finished);
    assert_true(second.text[0]);
    fixture_run(&f);
    client_check(&second);
    fixture_fini(&f);
}

/* After any number of steps: while a prompt is computed, when layers leave, while the tail moves
 * on, while one waits. */
TEST(cancelling_leaves_nothing_behind) {
    for (uint32_t n_steps = 0; n_steps < 90; n_steps++) {
        struct fixture f;
        struct client clients[4] = {0};
        fixture_init(&f, 60, 100, 3);
        fixture_add_store(&f, 12);
        for (uint32_t i = 0; i < 4; i++) {
            struct engine_request r = select_request(&clients[i], 190 + 50 * i, 120, i % 2);
            r.prompt[0] = i;
            fixture_submit(&f, &r, i + 1);
        }
        for (uint32_t n = 0; n < n_steps; n++) fixture_step(&f, 0);
        for (uint64_t id = 1; id <= 4; id++) {
            clients[id - 1].cancelled = !clients[id - 1].finished;
            scheduler_cancel(f.scheduler, (id + n_steps) % 4 + 1, &f.events);
        }
        fixture_run(&f);
        assert_int_equal(n_used_blocks(&f), kv_n_offloaded_blocks(&f.space) +
                                                page_pool_n_offered(f.space.blocks, PAGE_CACHED));
        fixture_fini(&f);
    }
}

TEST(ending_all_leaves_nothing_behind) {
    for (uint32_t n_steps = 1; n_steps < 20; n_steps++) {
        struct fixture f;
        struct client clients[4] = {0};
        fixture_init(&f, 60, 100, 3);
        fixture_add_store(&f, 12);
        for (uint32_t i = 0; i < 4; i++) {
            struct engine_request r = select_request(&clients[i], 190 + 50 * i, 120, i % 2);
            fixture_submit(&f, &r, i + 1);
        }
        for (uint32_t n = 0; n < n_steps; n++) fixture_step(&f, 0);
        scheduler_end_all(f.scheduler, FINISH_ERROR, ERR_DEVICE, "the device is gone", &f.events);
        fixture_drain(&f, 0);
        for (int i = 0; i < 4; i++) assert_int_equal(clients[i].last.error_code, ERR_DEVICE);
        fixture_fini(&f);
    }
}

/* A copy that cannot be submitted is the device's failure. */
TEST(a_failing_copy_is_told) {
    struct fixture f;
    struct client c = {0};
    struct error err = {0};
    fixture_init(&f, 60, 512, 3);
    fixture_add_store(&f, 12);
    struct engine_request r = select_request(&c, 300, 50, IN_STORE);
    fixture_submit(&f, &r, 1);
    struct batch *batch = scheduler_plan(f.scheduler);
    device.fails = true;
    assert_int_equal(batch_submitted(batch, &err), ERR_DEVICE);
    scheduler_end_all(f.scheduler, FINISH_ERROR, ERR_DEVICE, err.text, &f.events);
    fixture_drain(&f, 0);
    assert_int_equal(c.last.error_code, ERR_DEVICE);
    fixture_fini(&f);
}

static struct scheduler_config long_config(uint32_t max_rows) {
    return (struct scheduler_config){.max_rows = max_rows, .max_seqs = 4, .max_long_rows = 640};
}

/* 600 tokens and 900 generated ones are 24 pages in layer 0, 10 of them the prompt's.  Five more
 * have a page of chosen tokens, one for the tail and one more each, and two lists of 10 while the
 * prompt is computed.  The state is a page.  The prompt's pages of all six are one more than there
 * is. */
TEST(a_prompt_that_does_not_fit_goes_layer_by_layer) {
    for (int sparse = 0; sparse < 2; sparse++) {
        struct fixture f;
        struct client c = {0};
        enum { DURING = 10 + 2 * 10 + 5 * 3 + 1, AFTER = DURING - 2 * 10, N_SLICES = 6 * 3 };
        fixture_init_with(&f, 6 * 10, long_config(256));
        fixture_set_layers(&f, 6);
        fixture_add_store(&f, 24);
        struct engine_request r = select_request(&c, 600, 900, IN_STORE);
        r.prefill.mode = sparse ? PREFILL_SPARSE : PREFILL_DENSE;
        fixture_submit(&f, &r, 1);
        for (int i = 1; i < N_SLICES; i++) { /* all but the last */
            fixture_step(&f, 0);
            assert_int_equal(n_used(&f), DURING);
        }
        for (int i = 0; i < 4; i++) fixture_step(&f, 0);
        assert_int_equal(n_used(&f), AFTER);
        assert_int_equal(f.n_slices, N_SLICES);
        assert_int_equal(device.n_stored, 5 * 9);
        fixture_run(&f);
        client_check(&c);
        assert_int_equal(c.last.kv.values[KV_SELECTED_TOKENS],
                         900 * 64); /* for the first token, too */
        assert_int_equal(c.last.prefill.mode, sparse ? PREFILL_SPARSE : PREFILL_DENSE);
        assert_int_equal(n_used(&f), 9); /* the prompt's blocks are shared, but for the last one */
        fixture_fini(&f);
    }
}

/* In one more round of slices its rows leave the last layer. */
TEST(a_prompt_that_does_not_fit_can_be_scored) {
    for (int sparse = 0; sparse < 2; sparse++) {
        struct fixture f;
        struct client c = {0};
        fixture_init_with(&f, 6 * 10, long_config(256));
        fixture_set_layers(&f, 6);
        fixture_add_store(&f, 24);
        struct engine_request r = select_request(&c, 600, 100, IN_STORE);
        r.prefill.mode = sparse ? PREFILL_SPARSE : PREFILL_DENSE;
        r.params.n_prompt_logprobs = 0;
        fixture_submit(&f, &r, 1);
        fixture_run(&f);
        client_check(&c);
        assert_int_equal(f.n_slices, (6 + 1) * 3);
        assert_int_equal(c.n_prompt_infos, 600);
        assert_int_equal(device.n_stored, 5 * 10);
        assert_int_equal(n_used(&f), 9);
        fixture_fini(&f);
    }
}

/* In six layers, with 56 pages: every other prompt has 10 and does not fit. */
static struct engine_stats random_long_prompts(uint32_t n_blocks) {
    enum { N = 60 };
    struct fixture f;
    struct client *clients = calloc(N, sizeof(*clients));
    struct scheduler_config config = long_config(200);
    struct engine_stats stats;
    fixture_init_with(&f, 56, config);
    fixture_set_layers(&f, 6);
    fixture_add_store(&f, n_blocks);
    srand(11);
    for (uint32_t i = 0, n = 1; i < N || scheduler_n_live(f.scheduler) + f.n_inflight > 0; n++) {
        for (int k = rand() % 3; k > 0 && i < N; k--, i++) {
            const uint32_t n_prompt = (i % 2 ? 577 : 100) + (uint32_t)rand() % 64;
            struct engine_request r =
                select_request(&clients[i], n_prompt, (uint32_t)rand() % 600, IN_STORE);
            client_fill_prompt(&r);
            r.prefill.mode = rand() % 2 ? PREFILL_SPARSE : PREFILL_DENSE;
            r.priority = rand() % 3;
            fixture_submit(&f, &r, i + 1);
        }
        fixture_cancel_one(&f, clients, N, 300);
        fixture_step(&f, n);
        assert_true(n < 200000);
    }
    for (int i = 0; i < N; i++) client_check(&clients[i]);
    scheduler_stats(f.scheduler, &stats);
    assert_true(f.n_slices > 0 && stats.n_preempted > 0 && stats.n_cancelled > 0);
    assert_int_equal(stats.host_pool_used_bytes, 0);
    fixture_fini(&f);
    free(clients);
    return stats;
}

TEST(random_prompts_that_do_not_fit) {
    random_long_prompts(40);
    assert_true(random_long_prompts(200).n_swapped_in > 0);
}

/* At any slice of it, with its copies under way. */
TEST(a_long_prompt_that_is_cancelled_leaves_nothing) {
    for (uint32_t n_steps = 0; n_steps < 40; n_steps += 3) {
        struct fixture f;
        struct client clients[2] = {0};
        clients[0].cancelled = true;
        fixture_init_with(&f, 60, long_config(128));
        fixture_set_layers(&f, 6);
        fixture_add_store(&f, 24);
        struct engine_request r = select_request(&clients[0], 600, 900, IN_STORE);
        fixture_submit(&f, &r, 1);
        for (uint32_t n = 0; n < n_steps; n++) fixture_step(&f, 0);
        scheduler_cancel(f.scheduler, 1, &f.events);
        r = select_request(&clients[1], 600, 900, IN_STORE); /* its pages are the first one's */
        fixture_submit(&f, &r, 2);
        fixture_run(&f);
        client_check(&clients[0]);
        client_check(&clients[1]);
        fixture_fini(&f);
    }
}

/* The prompt goes layer by layer or in chunks, and what is generated selects. */
TEST(sparse_prompts_may_be_followed_by_selections) {
    for (uint32_t i = 0; i < 4; i++) {
        struct fixture f;
        struct client c = {0};
        const struct scheduler_config config = {
            .max_rows = 256, .max_seqs = 4, .max_long_rows = i / 2 ? 1024 : 0};
        fixture_init_with(&f, 60, config);
        fixture_add_store(&f, 12);
        struct engine_request r = select_request(&c, 600, 100, i % 2);
        r.prefill.mode = PREFILL_SPARSE;
        fixture_submit(&f, &r, 1);
        fixture_run(&f);
        client_check(&c);
        assert_true((f.n_slices > 0) == (i / 2) && (f.n_chunks > 0) == !(i / 2));
        assert_int_equal(c.last.kv.values[KV_SELECTED_TOKENS], 99 * 64);
        assert_true((device.n_stored > 0) == (i % 2 == 0));
        fixture_fini(&f);
    }
}

int main(void) {
    return fixture_main();
}
