/* test_scheduler.c - the scheduler with a fake model (scheduler_fixture.h): what a request gives
 * must not depend on what else is running.
 *
 * All tests run twice: a step at a time, and with the next step planned before the results of one
 * are there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/step.h"
#include "engine/kv/page_pool.h"
#include "tests/engine/scheduler_fixture.h"
#include "tests/kv_types.h"
#include "tests/test.h"

enum mix { ALL_FULL, HALF_BOUNDED, HALF_SELECT };

static struct kv_choice random_selection(void) {
    return (struct kv_choice){.mechanism = KV_SELECTING,
                              .type = TYPE_OFFLOAD,
                              .n_selected = 1 + (uint32_t)rand() % 128,
                              .n_tail = 1 + (uint32_t)rand() % 100,
                              .on_device = rand() % 2};
}

/* Half of the requests have a bounded cache, with budgets around pages and prompts; or it is these
 * and those that select. */
static struct kv_choice random_choice(enum mix mixed) {
    if (mixed == ALL_FULL || rand() % 2) return (struct kv_choice){.mechanism = KV_WHOLE};
    if (mixed == HALF_SELECT && rand() % 4) return random_selection();
    return (struct kv_choice){.mechanism = KV_BOUNDED,
                              .type = TYPE_STREAMING,
                              .n_sink = (uint32_t)rand() % 5,
                              .n_recent = 1 + (uint32_t)rand() % (rand() % 3 ? 20 : 150),
                              .chunk = rand() % 4 ? 1 + (uint32_t)rand() % 100 : 0,
                              .cache_positions = rand() % 2};
}

static void check_selected(const struct engine_stats *stats, const struct client *clients,
                           uint32_t n, bool some) {
    uint64_t n_chosen = 0, n_fetched = 0, n_copies = 0;
    for (uint32_t i = 0; i < n; i++) {
        n_chosen += clients[i].last.kv.values[KV_SELECTED_TOKENS];
        n_fetched += clients[i].last.kv.values[KV_FETCHED_TOKENS];
        n_copies += clients[i].last.kv.values[KV_FETCHED_COPIES];
    }
    assert_int_equal(engine_stats_kv(stats, KV_SELECTED_TOKENS), n_chosen);
    assert_int_equal(engine_stats_kv(stats, KV_FETCHED_TOKENS), n_fetched);
    assert_int_equal(engine_stats_kv(stats, KV_FETCHED_COPIES), n_copies);
    assert_int_equal(stats->host_pool_used_bytes, 0);
    assert_true((n_fetched > 0) == some && (n_chosen > n_fetched) == some);
    assert_true((device.n_stored > 0) == some);
}

static uint32_t prompt_unit; /* of the batch-invariant loads to come */

static struct engine_stats random_load(enum mix mixed, bool batch_invariant, uint32_t n_pages,
                                       uint32_t max_rows, uint32_t max_seqs, unsigned seed) {
    enum { N = 300 };
    /* Requests that will generate much are admitted easily, and are preempted later. */
    const uint32_t longest = mixed == HALF_BOUNDED ? 60 : 250, most = mixed == ALL_FULL ? 134 : 300;
    const int patience = mixed == ALL_FULL ? 6 : 60; /* steps */
    struct fixture f;
    struct client *clients = calloc(N, sizeof(*clients));
    struct engine_stats stats;
    print_message("pages %u rows %u seqs %u seed %u\n", n_pages, max_rows, max_seqs, seed);
    fixture_init(&f, n_pages, max_rows, max_seqs);
    f.space.batch_invariant = batch_invariant;
    f.space.prompt_unit = prompt_unit;
    if (mixed == HALF_SELECT) fixture_add_store(&f, n_pages / 2);
    srand(seed);
    for (uint32_t i = 0, n = 1; i < N || scheduler_n_live(f.scheduler) + f.n_inflight > 0; n++) {
        for (int k = rand() % 3; k > 0 && i < N; k--, i++) {
            struct engine_request r = client_request(&clients[i], 1 + (uint32_t)rand() % longest,
                                                     (uint32_t)rand() % most);
            client_fill_prompt(&r);
            r.priority = rand() % 4 - 2;
            r.tenant = i % 3;
            r.weight = i % 4;
            r.cache_salt = (uint64_t)(rand() % 2);
            r.kv = random_choice(mixed);
            r.priority += r.kv.type;
            r.params.n_prompt_logprobs = rand() % 10 == 0 ? 0 : -1;
            r.params.sampler.presence_penalty = rand() % 20 == 0;
            r.params.min_tokens = rand() % 4 == 0 ? (uint32_t)rand() % 50 : 0;
            r.params.seed = (uint64_t)rand();
            fixture_submit(&f, &r, i + 1);
        }
        fixture_cancel_one(&f, clients, N, patience);
        fixture_step(&f, n);
        assert_true(n < 200000);
    }
    for (int i = 0; i < N; i++) client_check(&clients[i]);
    scheduler_stats(f.scheduler, &stats);
    assert_int_equal(stats.n_finished + stats.n_cancelled, N);
    if (batch_invariant) assert_int_equal(stats.n_preempted, 0);
    assert_true((stats.kv[KV_EVICTED_TOKENS][TYPE_STREAMING] > 0) == (mixed != ALL_FULL));
    assert_int_equal(
        stats.kv[KV_EVICTED_TOKENS][TYPE_FULL] + stats.kv[KV_EVICTED_TOKENS][TYPE_OFFLOAD], 0);
    check_selected(&stats, clients, N, mixed == HALF_SELECT);
    assert_int_equal(
        stats.kv[KV_RESIDENT_TOKENS][TYPE_FULL] + stats.kv[KV_RESIDENT_TOKENS][TYPE_STREAMING], 0);
    assert_true((f.sampled_rows_run > 0) == run_ahead);
    fixture_fini(&f);
    free(clients);
    return stats;
}

/* n_pages, max_rows, max_seqs, seed. */
struct load {
    uint32_t n_pages, max_rows, max_seqs, seed;
};

static void full_load(bool batch_invariant, struct load load) {
    const struct engine_stats stats = random_load(ALL_FULL, batch_invariant, load.n_pages,
                                                  load.max_rows, load.max_seqs, load.seed);
    assert_true(stats.cached_tokens > 0);
    if (batch_invariant) assert_int_equal(stats.n_preempted, 0);
    else if (load.n_pages < 20 && load.max_seqs > 1) assert_true(stats.n_preempted > 0);
}

TEST(random_requests_give_what_they_give_alone) {
    full_load(false, (struct load){MAX_PAGES, 512, 16, 1});
    full_load(false, (struct load){40, 64, 8, 2});
    /* One request of full length fits: preemption all the time. */
    full_load(false, (struct load){12, 33, 8, 3});
    full_load(false, (struct load){16, 8, 8, 4});
    full_load(false, (struct load){14, 1, 1, 5});
}

TEST(bounded_requests_give_what_they_give_alone) {
    random_load(HALF_BOUNDED, false, MAX_PAGES, 512, 16, 1);
    random_load(HALF_BOUNDED, false, 40, 64, 8, 2);
    random_load(HALF_BOUNDED, false, 12, 33, 8, 3);
    assert_true(device.n_uploads > 0); /* some have been suspended, and have gone on */
    random_load(HALF_BOUNDED, false, 20, 8, 8, 4);
    random_load(HALF_BOUNDED, false, 24, 100, 12, 5);
    random_load(HALF_BOUNDED, true, 24, 33, 8, 6);
}

TEST(requests_that_select_give_what_they_give_alone) {
    random_load(HALF_SELECT, false, MAX_PAGES, 512, 16, 1);
    random_load(HALF_SELECT, false, 60, 64, 8, 2);
    /* One request of full length fits: preemption all the time. */
    assert_true(random_load(HALF_SELECT, false, 26, 33, 8, 3).n_preempted > 0);
    random_load(HALF_SELECT, false, 30, 8, 8, 4);
    random_load(HALF_SELECT, true, 60, 33, 8, 5);
}

TEST(each_token_is_computed_by_the_kernel_of_its_kind) {
    full_load(true, (struct load){MAX_PAGES, 512, 16, 1});
    full_load(true, (struct load){40, 64, 8, 2});
    full_load(true, (struct load){12, 33, 8, 3});
    full_load(true, (struct load){40, 65, 4, 4}); /* a prompt's last piece is often one row */
    full_load(true, (struct load){14, 1, 1, 5});
}

/* The fixture looks where chunks end. */
TEST(prompts_are_cut_behind_whole_units) {
    prompt_unit = 64;
    full_load(true, (struct load){MAX_PAGES, 512, 16, 1});
    full_load(true, (struct load){40, 71, 8, 2});
    full_load(true, (struct load){40, 100, 4, 3});
    prompt_unit = 16;
    full_load(true, (struct load){12, 33, 8, 4});
    prompt_unit = 0;
}

TEST(a_request_longer_than_the_pool_is_refused) {
    struct fixture f;
    struct client c = {0};
    fixture_init(&f, 2 * N_LAYERS, 64, 4);
    struct engine_request r = client_request(&c, 100, 29);
    fixture_refuse(&f, &r);
    fixture_fini(&f);
}

TEST(a_row_that_is_not_a_number_fails_its_request_alone) {
    struct fixture f;
    struct client good = {0}, bad = {0}, again = {0};
    fixture_init(&f, 40, 512, 4);
    struct engine_request r = client_request(&bad, 130, 20);
    r.prompt[129] = POISON;
    fixture_submit(&f, &r, 1);
    r = client_request(&good, 70, 20);
    client_fill_prompt(&r);
    fixture_submit(&f, &r, 2);
    fixture_run(&f);
    assert_int_equal(bad.last.reason, FINISH_ERROR);
    client_check(&good);
    r = client_request(&again, 130, 20);
    fixture_submit(&f, &r, 3);
    fixture_run(&f);
    /* The poisoned request's pages were never published. */
    assert_int_equal(again.last.n_cached, 0);
    client_check(&again);
    fixture_fini(&f);
}

TEST(equal_prompts_are_computed_once) {
    struct fixture f;
    struct client clients[8] = {0};
    fixture_init(&f, MAX_PAGES, 100, 8);
    for (uint32_t i = 0; i < 8; i++) {
        struct engine_request r = client_request(&clients[i], 321, 1);
        r.prompt[320] = i;
        fixture_submit(&f, &r, i + 1);
    }
    fixture_run(&f);
    assert_int_equal(clients[0].last.n_cached, 0);
    for (int i = 1; i < 8; i++) assert_int_equal(clients[i].last.n_cached, 320);
    assert_int_equal(f.rows_run, 321 + 7);
    for (int i = 0; i < 8; i++) client_check(&clients[i]);
    fixture_fini(&f);
}

TEST(a_wholly_cached_prompt_still_computes_its_last_token) {
    struct fixture f;
    struct client a = {0}, b = {0};
    fixture_init(&f, 40, 512, 4);
    struct engine_request r = client_request(&a, 128, 5);
    fixture_submit(&f, &r, 1);
    fixture_run(&f);
    r = client_request(&b, 128, 5);
    fixture_submit(&f, &r, 2);
    fixture_run(&f);
    assert_int_equal(b.last.n_cached, 64);
    client_check(&b);
    fixture_fini(&f);
}

/* A block is named by its tokens, so it is shared only when the last of them is known. */
TEST(a_conversation_goes_on_from_cached_answers) {
    struct fixture f;
    struct client a = {0}, b = {0};
    fixture_init(&f, 40, 512, 4);
    struct engine_request r = client_request(&a, 40, 100);
    r.params.ignore_eos = true;
    fixture_submit(&f, &r, 1);
    fixture_run(&f);
    client_check(&a);
    r = client_request(&b, 140, 5);
    assert_int_equal(strlen(a.text), 100);
    for (uint32_t i = 0; i < 100; i++) r.prompt[40 + i] = (unsigned char)a.text[i];
    fixture_submit(&f, &r, 2);
    fixture_run(&f);
    assert_int_equal(b.last.n_cached, 128);
    client_check(&b);
    fixture_fini(&f);
}

TEST(prompt_scores_cover_the_prompt_whatever_is_cached) {
    struct fixture f;
    struct client clients[3] = {0};
    fixture_init(&f, 40, 50, 4);
    for (uint32_t i = 0; i < 3; i++) {
        struct engine_request r = client_request(&clients[i], 200, i == 2 ? 0 : 3);
        r.params.n_prompt_logprobs = 0;
        fixture_submit(&f, &r, i + 1);
        fixture_run(&f);
        client_check(&clients[i]);
        assert_int_equal(clients[i].n_prompt_infos, 200);
        assert_int_equal(clients[i].last.n_cached, 0);
        assert_true(clients[i].first_score == -(float)(fixture_mix(7, 0) % 1000));
    }
    fixture_fini(&f);
}

TEST(lower_priority_numbers_run_first) {
    struct fixture f;
    struct client clients[3] = {0};
    fixture_init(&f, 40, 64, 1);
    for (uint32_t i = 0; i < 3; i++) {
        struct engine_request r = client_request(&clients[i], 10 + i, 4);
        r.priority = i == 2 ? -1 : 0;
        fixture_submit(&f, &r, i + 1);
    }
    while (!clients[2].finished) assert_true(fixture_step(&f, 0));
    assert_false(clients[0].finished);
    while (!clients[0].finished) assert_true(fixture_step(&f, 0));
    assert_false(clients[1].finished);
    fixture_run(&f);
    fixture_fini(&f);
}

/* Runs one request at a time until n have finished; returns how many of them are clients
 * [first, end). */
static uint32_t run_until(struct fixture *f, const struct client *clients, uint32_t n_clients,
                          uint32_t n, uint32_t first, uint32_t end) {
    for (uint32_t n_finished = 0, n_among;;) {
        n_finished = n_among = 0;
        for (uint32_t i = 0; i < n_clients; i++) {
            n_finished += clients[i].finished;
            n_among += clients[i].finished && i >= first && i < end;
        }
        if (n_finished >= n) return n_among;
        assert_true(fixture_step(f, 0));
    }
}

/* Twelve requests of one tenant come first, and six of another.  All cost the same. */
static void check_shares(uint32_t weight, uint32_t n_first, uint32_t n_of_other) {
    enum { N_FLOOD = 12, N_OTHER = 6, N = N_FLOOD + N_OTHER };
    struct fixture f;
    struct client clients[N] = {0};
    fixture_init(&f, 40, 64, 1);
    for (uint32_t i = 0; i < N; i++) {
        struct engine_request r = client_request(&clients[i], 10, 4);
        r.params.ignore_eos = true;
        r.tenant = i >= N_FLOOD;
        r.weight = r.tenant ? weight : 1;
        fixture_submit(&f, &r, i + 1);
    }
    assert_int_equal(run_until(&f, clients, N, n_first, N_FLOOD, N), n_of_other);
    fixture_run(&f);
    fixture_fini(&f);
}

TEST(tenants_share_by_weight_not_by_number) {
    check_shares(0, 8, 4); /* 0 counts as 1 */
    check_shares(1, 8, 4);
    check_shares(3, 8, 6);
}

/* What a tenant did not use while it was idle is not saved up. */
TEST(an_idle_tenant_saves_nothing_up) {
    struct fixture f;
    struct client clients[16] = {0};
    fixture_init(&f, 40, 64, 1);
    for (uint32_t i = 0; i < 16; i++) {
        struct engine_request r = client_request(&clients[i], 10, 4);
        r.params.ignore_eos = true;
        r.tenant = i >= 12;
        if (i == 12) run_until(&f, clients, 16, 6, 0, 16);
        fixture_submit(&f, &r, i + 1);
    }
    const uint32_t n_other = run_until(&f, clients, 16, 10, 12, 16);
    assert_in_range(n_other, 1, 2);
    fixture_run(&f);
    fixture_fini(&f);
}

/* Ten blocks.  The long request finds eight, needs seven, and two others run: not enough to leave
 * each of them one.  Once the second has ended there are eight again, as the first has grown, and
 * that is enough. */
TEST(fewer_neighbours_are_reason_enough_to_try_again) {
    struct fixture f;
    struct client first = {0}, second = {0}, waiting = {0};
    fixture_init(&f, 10 * N_LAYERS, 512, 4);
    struct engine_request r = client_request(&first, 10, 160);
    r.params.ignore_eos = true;
    fixture_submit(&f, &r, 1);
    r = client_request(&second, 10, 60);
    r.prompt[0] = 1;
    r.params.ignore_eos = true;
    fixture_submit(&f, &r, 2);
    fixture_step(&f, 0);
    r = client_request(&waiting, 430, 1);
    fixture_submit(&f, &r, 3);
    while (!second.finished) assert_true(fixture_step(&f, 0));
    assert_false(waiting.finished);
    fixture_step(&f, 0);
    if (run_ahead) fixture_step(&f, 0);
    assert_true(waiting.finished);
    assert_false(first.finished);
    fixture_run(&f);
    fixture_fini(&f);
}

/* Of prompts in a step the first has its piece in any case, and others while all of them together
 * stay within the limit; none of them starves.  They are shorter than a block, or they would wait
 * for each other's. */
TEST(prompts_of_a_step_share_their_slots) {
    enum { N = 6, MOST = 70 };
    struct fixture f;
    struct client clients[N] = {0};
    fixture_init_with(
        &f, MAX_PAGES,
        (struct scheduler_config){.max_rows = 100, .max_seqs = 8, .max_prompt_slots = MOST});
    for (uint32_t i = 0; i < N; i++) {
        struct engine_request r = client_request(&clients[i], 40, 3);
        fixture_submit(&f, &r, i + 1);
    }
    bool shared = false;
    for (struct batch *batch; scheduler_n_live(f.scheduler) > 0;) {
        uint64_t n_slots = 0;
        batch = scheduler_plan(f.scheduler);
        assert_non_null(batch);
        const struct step *step = &batch->step;
        for (uint32_t i = step->n_decode; i < step->n_seqs; i++)
            n_slots += step->seqs[i].layers[0].n_slots;
        assert_true(n_slots <= MOST || step->n_seqs - step->n_decode == 1);
        shared |= step->n_seqs - step->n_decode > 1;
        fixture_submit_step(&f, batch);
        fixture_complete_step(&f);
        fixture_drain(&f, 0);
    }
    assert_true(shared);
    for (uint32_t i = 0; i < N; i++) client_check(&clients[i]);
    fixture_fini(&f);
}

/* Returns the most rows of a prompt in a step, of a request that is run to its end. */
static uint32_t most_rows(uint32_t most_with_last, uint32_t n_prompt, bool wants_scores) {
    struct fixture f;
    struct client client = {0};
    uint32_t most = 0;
    fixture_init_with(&f, MAX_PAGES,
                      (struct scheduler_config){
                          .max_rows = 512, .max_seqs = 4, .most_with_last = most_with_last});
    struct engine_request r = client_request(&client, n_prompt, 3);
    if (wants_scores) r.params.n_prompt_logprobs = 0;
    fixture_submit(&f, &r, 1);
    for (struct batch *batch; scheduler_n_live(f.scheduler) > 0;) {
        batch = scheduler_plan(f.scheduler);
        assert_non_null(batch);
        for (uint32_t i = 0; i < batch->step.n_seqs; i++)
            if (batch->step.seqs[i].n_rows > most) most = batch->step.seqs[i].n_rows;
        fixture_submit_step(&f, batch);
        fixture_complete_step(&f);
        fixture_drain(&f, 0);
    }
    client_check(&client);
    fixture_fini(&f);
    return most;
}

TEST(the_last_row_of_a_long_prompt_has_a_step_of_its_own) {
    assert_int_equal(most_rows(0, 200, false), 200);
    assert_int_equal(most_rows(100, 200, false), 199);
    assert_int_equal(most_rows(100, 101, false), 100);
    assert_int_equal(most_rows(100, 100, false), 100);
    assert_int_equal(most_rows(100, 200, true), 200); /* all rows leave logits */
}

TEST(cancelling_frees_pages_in_every_phase) {
    struct fixture f;
    struct client queued = {0}, prefilling = {0}, generating = {0};
    struct client *clients[] = {&generating, &prefilling, &queued};
    fixture_init(&f, 40, 32, 2);
    for (uint32_t i = 0; i < 3; i++) {
        struct engine_request r = client_request(clients[i], i == 1 ? 500 : 20, 100);
        r.prompt[0] = i;
        r.params.ignore_eos = true;
        fixture_submit(&f, &r, i + 1);
    }
    for (uint32_t n = 1; n < 5; n++) fixture_step(&f, n);
    assert_true(strlen(generating.text) > 0);
    assert_int_equal(scheduler_n_live(f.scheduler), 3);
    for (uint64_t id = 3; id >= 1; id--) {
        scheduler_cancel(f.scheduler, id, &f.events);
        scheduler_cancel(f.scheduler, id, &f.events); /* unknown by now */
        fixture_drain(&f, 0);
        assert_int_equal(clients[id - 1]->last.reason, FINISH_CANCELLED);
    }
    assert_int_equal(scheduler_n_live(f.scheduler), 0);
    /* What a step in flight uses is free only once that has landed. */
    assert_true((page_pool_n_free(f.space.pool) < 40) == run_ahead);
    assert_true(fixture_step(&f, 0) == run_ahead);
    assert_int_equal(page_pool_n_free(f.space.pool), 40);
    assert_null(scheduler_plan(f.scheduler));
    fixture_fini(&f);
}

/* Its cache is as large as the budget and a chunk, so two of them fit where a full one would need
 * the hundredfold. */
TEST(an_endless_text_takes_the_pages_of_its_budget) {
    struct fixture f;
    struct client clients[2] = {0};
    fixture_init(&f, 2 * N_LAYERS * 2, 200, 4);
    for (uint32_t i = 0; i < 2; i++) {
        struct engine_request r = client_request(&clients[i], 1000000 - 37 * i, 300);
        for (uint32_t t = 0; t < r.n_prompt; t++) r.prompt[t] = t * 7919 % 1000;
        r.kv =
            (struct kv_choice){.mechanism = KV_BOUNDED, .n_sink = 4, .n_recent = 60, .chunk = 64};
        r.params.ignore_eos = true;
        fixture_submit(&f, &r, i + 1);
    }
    fixture_step(&f, 0);
    fixture_step(&f, 0);
    assert_int_equal(page_pool_n_free(f.space.pool), 0);
    while (!clients[0].text[0] || !clients[1].text[0]) assert_true(fixture_step(&f, 0));
    assert_int_equal(page_pool_n_free(f.space.pool), 0); /* 65 slots */
    fixture_run(&f);
    for (int i = 0; i < 2; i++) client_check(&clients[i]);
    assert_int_equal(clients[0].last.kv.values[KV_EVICTED_TOKENS], 1000000 + 299 - 64);
    fixture_fini(&f);
}

/* What only the prompt needed goes to others as soon as the prompt is done. */
TEST(a_compressed_prompt_gives_pages_back) {
    struct fixture f;
    struct client c = {0};
    fixture_init(&f, 20, 512, 4);
    struct engine_request r = client_request(&c, 500, 100);
    r.kv = (struct kv_choice){.mechanism = KV_BOUNDED, .n_sink = 4, .n_recent = 50, .chunk = 512};
    r.params.ignore_eos = true;
    fixture_submit(&f, &r, 1);
    if (run_ahead) {
        assert_true(fixture_step(&f, 0));
        assert_int_equal(page_pool_n_free(f.space.pool), 20 - 8 * N_LAYERS);
    }
    fixture_step(&f, 0);
    assert_int_equal(page_pool_n_free(f.space.pool), 20 - N_LAYERS);
    fixture_run(&f);
    client_check(&c);
    fixture_fini(&f);
}

/* Runs a full request of rank 0 beside a bounded one until the pool is too small for both. */
static void squeeze(struct fixture *f, struct client *full, struct client *bounded) {
    fixture_init(f, 4 * N_LAYERS, 512, 4);
    struct engine_request r = client_request(full, 10, 220);
    r.params.ignore_eos = true;
    fixture_submit(f, &r, 1);
    r = client_request(bounded, 100, 200);
    r.kv = (struct kv_choice){.mechanism = KV_BOUNDED, .n_sink = 4, .n_recent = 90};
    r.params.ignore_eos = true;
    fixture_submit(f, &r, 2);
}

TEST(a_suspended_sequence_goes_on_where_it_was) {
    struct fixture f;
    struct client full = {0}, bounded = {0};
    squeeze(&f, &full, &bounded);
    fixture_run(&f);
    client_check(&full);
    client_check(&bounded);
    assert_int_equal(device.n_downloads, 2 * N_LAYERS);
    assert_int_equal(device.n_uploads, 2 * N_LAYERS);
    assert_int_equal(f.rows_run, 10 + 219 + 100 + 199); /* nothing was computed twice */
    fixture_fini(&f);
}

TEST(a_suspended_sequence_can_be_cancelled) {
    struct fixture f;
    struct client full = {0}, bounded = {0};
    squeeze(&f, &full, &bounded);
    while (device.n_downloads == 0) assert_true(fixture_step(&f, 0));
    bounded.cancelled = true;
    scheduler_cancel(f.scheduler, 2, &f.events);
    fixture_run(&f);
    client_check(&full);
    client_check(&bounded);
    assert_int_equal(device.n_uploads, 0);
    fixture_fini(&f);
}

TEST(a_sequence_that_cannot_be_suspended_ends) {
    struct fixture f;
    struct client full = {0}, bounded = {0};
    squeeze(&f, &full, &bounded);
    device.fails = true;
    fixture_run(&f);
    client_check(&full);
    assert_int_equal(bounded.last.reason, FINISH_ERROR);
    assert_int_equal(bounded.last.error_code, ERR_DEVICE);
    fixture_fini(&f);
}

TEST(ending_all_gives_each_its_final_event) {
    struct fixture f;
    struct client clients[6] = {0};
    fixture_init(&f, 40, 32, 2);
    for (uint32_t i = 0; i < 6; i++) {
        struct engine_request r = client_request(&clients[i], 100, 100);
        fixture_submit(&f, &r, i + 1);
    }
    fixture_step(&f, 1);
    assert_non_null(scheduler_plan(f.scheduler)); /* the step that fails */
    scheduler_end_all(f.scheduler, FINISH_ERROR, ERR_DEVICE, "the device is gone", &f.events);
    fixture_drain(&f, 0);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(clients[i].last.reason, FINISH_ERROR);
        assert_int_equal(clients[i].last.error_code, ERR_DEVICE);
    }
    fixture_fini(&f);
}

int main(void) {
    return fixture_main();
}
