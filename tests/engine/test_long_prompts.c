/* test_long_prompts.c - sparse prompts, layer by layer or in chunks, between the steps of others,
 * with a fake model (scheduler_fixture.h).
 *
 * All tests run twice: a step at a time, and with the next step planned before the results of one
 * are there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/sparse.h"
#include "engine/device/step.h"
#include "engine/kv/page_pool.h"
#include "tests/engine/scheduler_fixture.h"
#include "tests/test.h"

static struct engine_request sparse_request(struct client *c, uint32_t n_prompt,
                                            uint32_t max_tokens) {
    struct engine_request r = client_request(c, n_prompt, max_tokens);
    r.prefill.mode = PREFILL_SPARSE;
    r.params.ignore_eos = true;
    return r;
}

static struct scheduler_config long_config(uint32_t max_rows, uint32_t max_long_rows) {
    return (struct scheduler_config){
        .max_rows = max_rows, .max_seqs = 8, .max_long_rows = max_long_rows};
}

/* The rows of a prompt that scores itself leave the last layer, too, in one more round. */
TEST(a_long_prompt_that_is_scored_leaves_the_last_layer) {
    struct fixture f;
    struct client reader = {0}, bad = {0}, again = {0};
    fixture_init_with(&f, 400, long_config(128, 2048));
    struct engine_request r = sparse_request(&reader, 1500, 5);
    client_fill_prompt(&r);
    r.params.n_prompt_logprobs = 0;
    const float score = -(float)(r.prompt[0] % 1000);
    fixture_submit(&f, &r, 1);
    fixture_run(&f);
    client_check(&reader);
    assert_int_equal(f.n_slices, (N_LAYERS + 1) * 12); /* 1499 rows */
    assert_int_equal(reader.n_prompt_infos, 1500);
    assert_true(reader.first_score == score);
    assert_int_equal(reader.last.prefill.mode, PREFILL_SPARSE);
    r = sparse_request(&bad, 1500, 5);
    r.params.n_prompt_logprobs = 0;
    r.prompt[700] = POISON;
    fixture_submit(&f, &r, 2);
    fixture_run(&f);
    assert_int_equal(bad.last.error_code, ERR_NUMERIC);
    assert_int_equal(bad.n_prompt_infos, 0);
    r = sparse_request(&again, 1500, 5);
    r.prompt[700] = POISON; /* nothing of it was inserted */
    fixture_submit(&f, &r, 3);
    fixture_run(&f);
    assert_int_equal(again.last.n_cached, 0);
    fixture_fini(&f);
}

static struct prefill_choice random_prefill(void) {
    static const enum prefill_mode modes[] = {PREFILL_AUTO, PREFILL_DENSE, PREFILL_SPARSE};
    return (struct prefill_choice){.mode = modes[rand() % 3], .synthetic = (uint32_t)rand() % 2};
}

struct load {
    uint32_t n_pages, max_rows, max_long_rows, seed;
    bool batch_invariant;
    double max_itl_s;
};

static struct engine_stats random_load(struct fixture *f, struct load load) {
    enum { N = 200 };
    struct client *clients = calloc(N, sizeof(*clients));
    struct engine_stats stats;
    struct scheduler_config config = long_config(load.max_rows, load.max_long_rows);
    config.max_itl_s = load.max_itl_s;
    print_message("pages %u rows %u long %u seed %u\n", load.n_pages, load.max_rows,
                  load.max_long_rows, load.seed);
    fixture_init_with(f, load.n_pages, config);
    f->space.batch_invariant = load.batch_invariant;
    f->shared.prefill.min_sparse_tokens = 100;
    srand(load.seed);
    for (uint32_t i = 0, n = 1; i < N || scheduler_n_live(f->scheduler) + f->n_inflight > 0; n++) {
        for (int k = rand() % 3; k > 0 && i < N; k--, i++) {
            struct engine_request r =
                client_request(&clients[i], 1 + (uint32_t)rand() % (rand() % 4 ? 300 : 900),
                               (uint32_t)rand() % 100);
            client_fill_prompt(&r);
            r.prefill = random_prefill();
            r.priority = rand() % 4 - 2;
            r.params.sampler.presence_penalty = rand() % 20 == 0;
            r.params.n_prompt_logprobs = rand() % 8 ? -1 : 0;
            clients[i].n_wanted_infos = r.params.n_prompt_logprobs < 0 ? 0 : r.n_prompt;
            r.params.seed = (uint64_t)rand();
            fixture_submit(f, &r, i + 1);
        }
        fixture_cancel_one(f, clients, N, 30);
        clock_s += 1e-3 * (rand() % 5);
        fixture_step(f, n);
        assert_true(n < 200000);
    }
    for (int i = 0; i < N; i++) {
        client_check(&clients[i]);
        if (clients[i].last.reason != FINISH_CANCELLED)
            assert_int_equal(clients[i].n_prompt_infos, clients[i].n_wanted_infos);
    }
    scheduler_stats(f->scheduler, &stats);
    assert_int_equal(stats.n_finished + stats.n_cancelled, N);
    assert_true(stats.n_sparse > 0);
    fixture_fini(f);
    free(clients);
    return stats;
}

TEST(random_prompts_give_what_they_give_alone) {
    struct fixture f;
    struct engine_stats stats = random_load(&f, (struct load){400, 512, 1024, 1, false, 0});
    assert_true(f.n_slices > 0 && f.n_chunks == 0 && stats.cached_tokens > 0);
    random_load(&f, (struct load){400, 512, 256, 2, false, 0});
    assert_true(f.n_slices > 0 && f.n_chunks > 0);
    random_load(&f, (struct load){400, 128, 0, 3, false, 0});
    assert_true(f.n_slices == 0 && f.n_chunks > 0);
    random_load(&f, (struct load){400, 20, 0, 4, false, 0}); /* less than a page */
    stats = random_load(&f, (struct load){34, 128, 1024, 11, false, 0});
    assert_true(stats.n_preempted > 0);
    random_load(&f, (struct load){60, 200, 512, 6, false, 5e-3});
    assert_true(f.n_slices > 0);
}

/* How a prompt in chunks was cut depends on what else ran. */
TEST(nothing_depends_on_company_where_it_must_not) {
    struct fixture f;
    random_load(&f, (struct load){60, 128, 512, 7, true, 0});
    assert_true(f.n_slices > 0 && f.n_chunks == 0);
}

TEST(a_long_prompt_runs_between_the_steps_of_others) {
    struct fixture f;
    struct client talker = {0}, reader = {0};
    fixture_init_with(&f, 400, long_config(128, 2048));
    struct engine_request r = client_request(&talker, 10, 200);
    r.params.ignore_eos = true;
    fixture_submit(&f, &r, 1);
    fixture_step(&f, 0);
    r = sparse_request(&reader, 1500, 5);
    fixture_submit(&f, &r, 2);
    const size_t before = strlen(talker.text);
    while (!reader.text[0]) assert_true(fixture_step(&f, 0));
    assert_int_equal(f.n_slices, N_LAYERS * 12); /* 1499 rows */
    assert_true(strlen(talker.text) - before >= f.n_slices);
    assert_true(strlen(talker.text) - before <= f.n_slices + 3);
    fixture_run(&f);
    client_check(&talker);
    client_check(&reader);
    assert_int_equal(reader.last.prefill.mode, PREFILL_SPARSE);
    assert_true(reader.last.prefill.density == 0.5);
    assert_true(reader.last.prefill.attention_s == 0.5 * (double)f.n_slices);
    assert_int_equal(talker.last.prefill.mode, PREFILL_DENSE);
    assert_true(talker.last.prefill.density == 1);
    struct engine_stats stats;
    scheduler_stats(f.scheduler, &stats);
    assert_int_equal(stats.n_sparse, 1);
    assert_true(stats.sparse.visited[PATTERN_A_SHAPE] == N_LAYERS * 1499);
    fixture_fini(&f);
}

/* The second long prompt waits for the first, the short one behind it does not. */
TEST(one_long_prompt_at_a_time) {
    struct fixture f;
    struct client first = {0}, second = {0}, dense = {0};
    fixture_init_with(&f, 400, long_config(128, 2048));
    struct engine_request r = sparse_request(&first, 1500, 5);
    fixture_submit(&f, &r, 1);
    r = sparse_request(&second, 1400, 5);
    r.prompt[0] = 1;
    fixture_submit(&f, &r, 2);
    r = client_request(&dense, 300, 5);
    r.prompt[0] = 2;
    r.params.ignore_eos = true;
    fixture_submit(&f, &r, 3);
    while (!dense.finished) assert_true(fixture_step(&f, 0));
    assert_false(first.finished);
    while (!first.text[0]) assert_true(fixture_step(&f, 0));
    assert_true(f.n_slices <= N_LAYERS * 12 + 2);
    fixture_run(&f);
    client_check(&first);
    client_check(&second);
    client_check(&dense);
    fixture_fini(&f);
}

/* What is left to compute may be little enough to need no turn. */
TEST(a_cached_prompt_waits_for_no_other) {
    struct fixture f;
    struct client before = {0}, reader = {0}, follower = {0};
    fixture_init_with(&f, 400, long_config(128, 4096));
    f.shared.prefill.min_sparse_tokens = 1000;
    struct engine_request r = client_request(&before, 1300, 1);
    fixture_submit(&f, &r, 1);
    fixture_run(&f);
    assert_int_equal(before.last.prefill.mode, PREFILL_SPARSE);
    r = sparse_request(&reader, 4000, 1);
    r.prompt[0] = 1;
    fixture_submit(&f, &r, 2);
    fixture_step(&f, 0);
    r = client_request(&follower, 1500, 1);
    fixture_submit(&f, &r, 3);
    while (!follower.finished) assert_true(fixture_step(&f, 0));
    assert_false(reader.finished);
    assert_int_equal(follower.last.n_cached, 1280);
    assert_int_equal(follower.last.prefill.mode, PREFILL_DENSE);
    fixture_run(&f);
    fixture_fini(&f);
}

/* Runs a prompt of 400 twice the same tokens; how many the second finds cached. */
static uint32_t cached_by_another(struct prefill_choice first, struct prefill_choice second) {
    struct fixture f;
    struct client clients[2] = {0};
    fixture_init_with(&f, 400, long_config(128, 2048));
    for (uint32_t i = 0; i < 2; i++) {
        struct engine_request r = client_request(&clients[i], 400, 1);
        r.prefill = i ? second : first;
        fixture_submit(&f, &r, i + 1);
        fixture_run(&f);
        client_check(&clients[i]);
    }
    fixture_fini(&f);
    return clients[1].last.n_cached;
}

TEST(prefixes_are_shared_within_one_choice_only) {
    static const struct attn_pattern others[N_LAYERS] = {{PATTERN_A_SHAPE, 1, 2}};
    const struct prefill_choice dense = {.mode = PREFILL_DENSE}, plain = {.mode = PREFILL_AUTO},
                                sparse = {.mode = PREFILL_SPARSE};
    assert_int_equal(cached_by_another(dense, plain), 384); /* auto is dense so far */
    assert_int_equal(cached_by_another(sparse, sparse), 384);
    assert_int_equal(cached_by_another(sparse, dense), 0);
    assert_int_equal(cached_by_another(dense, sparse), 0);
    struct prefill_choice other = sparse;
    other.patterns = others;
    assert_int_equal(cached_by_another(sparse, other), 0);
    other = sparse, other.dense_above = 0.5f;
    assert_int_equal(cached_by_another(sparse, other), 0);
    other = sparse, other.dense_tail = 64;
    assert_int_equal(cached_by_another(sparse, other), 0);
    other = sparse, other.synthetic = 3;
    assert_int_equal(cached_by_another(sparse, other), 0);
}

static bool is_auto_sparse(uint32_t n_prompt, uint32_t min_sparse_tokens,
                           const struct engine_request *like) {
    struct fixture f;
    struct client c = {0};
    fixture_init_with(&f, 400, long_config(128, 4096));
    f.shared.prefill.min_sparse_tokens = min_sparse_tokens;
    struct engine_request r = client_request(&c, n_prompt, 1);
    r.kv = like->kv;
    r.params.n_prompt_logprobs = like->params.n_prompt_logprobs;
    fixture_submit(&f, &r, 1);
    fixture_run(&f);
    fixture_fini(&f);
    return c.last.prefill.mode == PREFILL_SPARSE;
}

TEST(auto_is_sparse_where_it_pays_and_may) {
    struct engine_request like = {.params = sampling_defaults()};
    assert_true(is_auto_sparse(1000, 1000, &like));
    assert_false(is_auto_sparse(999, 1000, &like));
    assert_true(is_auto_sparse(514, 0, &like));
    assert_false(is_auto_sparse(513, 0, &like)); /* 512 rows and the last token */
    like.params.n_prompt_logprobs = 0;
    assert_false(is_auto_sparse(2000, 1000, &like));
    like.params.n_prompt_logprobs = -1;
    like.kv = (struct kv_choice){.mechanism = KV_BOUNDED, .n_sink = 4, .n_recent = 60, .chunk = 64};
    assert_false(is_auto_sparse(2000, 1000, &like));
}

TEST(cancelling_a_long_prompt_leaves_nothing) {
    struct fixture f;
    for (uint32_t n_steps = 1; n_steps < 30; n_steps += 3) {
        struct client reader = {0}, next = {0};
        fixture_init_with(&f, 400, long_config(128, 2048));
        struct engine_request r = sparse_request(&reader, 1500, 5);
        fixture_submit(&f, &r, 1);
        r = sparse_request(&next, 700, 5);
        r.prompt[0] = 1;
        fixture_submit(&f, &r, 2);
        for (uint32_t n = 0; n < n_steps; n++) assert_true(fixture_step(&f, 0));
        reader.cancelled = true;
        scheduler_cancel(f.scheduler, 1, &f.events);
        fixture_drain(&f, 0);
        if (!reader.finished) fail_msg("no final event");
        fixture_run(&f);
        client_check(&next);
        fixture_fini(&f);
    }
}

TEST(a_failure_ends_a_long_prompt_once) {
    struct fixture f;
    struct client clients[3] = {0};
    fixture_init_with(&f, 400, long_config(128, 2048));
    for (uint32_t i = 0; i < 3; i++) {
        struct engine_request r = sparse_request(&clients[i], 1500, 5);
        r.prompt[0] = i;
        fixture_submit(&f, &r, i + 1);
    }
    for (int n = 0; n < 5; n++) fixture_step(&f, 0);
    assert_non_null(scheduler_plan(f.scheduler)); /* the slice that fails */
    scheduler_end_all(f.scheduler, FINISH_ERROR, ERR_DEVICE, "the device is gone", &f.events);
    fixture_drain(&f, 0);
    for (int i = 0; i < 3; i++) assert_int_equal(clients[i].last.error_code, ERR_DEVICE);
    fixture_fini(&f);
}

/* The first row that is drawn from has seen all pages: what came before it is not shared unless it
 * is valid. */
TEST(what_is_not_a_number_is_never_shared) {
    struct fixture f;
    struct client bad = {0}, again = {0};
    fixture_init_with(&f, 400, long_config(128, 2048));
    struct engine_request r = sparse_request(&bad, 1500, 5);
    r.prompt[1499] = POISON;
    fixture_submit(&f, &r, 1);
    fixture_run(&f);
    assert_int_equal(bad.last.error_code, ERR_NUMERIC);
    r = sparse_request(&again, 1500, 5);
    fixture_submit(&f, &r, 2);
    fixture_run(&f);
    assert_int_equal(again.last.n_cached, 0);
    client_check(&again);
    fixture_fini(&f);
}

/* The others need its pages: all that was computed is computed again. */
TEST(a_long_prompt_that_loses_its_place_begins_again) {
    struct fixture f;
    struct client talker = {0}, reader = {0};
    struct engine_stats stats;
    fixture_init_with(&f, N_LAYERS * 81, long_config(128, 8192));
    struct engine_request r = client_request(&talker, 60, 400);
    r.params.ignore_eos = true;
    fixture_submit(&f, &r, 1);
    fixture_step(&f, 0);
    r = sparse_request(&reader, 5000, 5); /* 79 blocks, one is used, and one left to grow */
    fixture_submit(&f, &r, 2);
    while (!talker.finished) assert_true(fixture_step(&f, 0));
    fixture_run(&f);
    client_check(&talker);
    client_check(&reader);
    scheduler_stats(f.scheduler, &stats);
    assert_true(stats.n_preempted > 0);
    assert_int_equal(stats.n_sparse, 1);
    fixture_fini(&f);
}

/* A machine where a row takes 15 us and 1 us more for each 100 slots that it sees, only 5 us where
 * it enters the first layer, and a step 2 ms; nothing else takes time.  What it has never done
 * takes 8 ms more the first time: choosing keys, and visiting only these. */
enum { ROW_US = 15, ENTER_US = 5, SLOTS_OF_US = 100, MOST_SEEN = 500 };
static const double cold_s = 8e-3;

struct machine {
    bool has_indexed, has_visited;
    double free_s;               /* when it has done everything */
    double done_s[MAX_INFLIGHT]; /* of the flights, the oldest first */
};

/* One slice of a layer takes 3 ms more for the index. */
static double index_s_of(const struct batch *batch) {
    const struct layer_slice *slice = &batch->slice;
    if (batch->kind != STEP_TIME_SLICE || slice->layer + 1 == N_LAYERS) return 0;
    return slice->first_row + slice->n_rows == slice->n_prompt_rows ? 3e-3 : 0;
}

/* Rows of a sparse prompt see MOST_SEEN slots at most; writes what they saw in all. */
static double rows_s_of(struct batch *batch) {
    double us = ROW_US * (double)batch->step.n_rows;
    if (batch->kind == STEP_TIME_SLICE && batch->slice.layer == 0)
        return 1e-6 * ENTER_US * batch->step.n_rows;
    for (uint32_t i = batch->step.n_decode; i < batch->step.n_seqs; i++) {
        const struct step_seq *seq = &batch->step.seqs[i];
        for (uint32_t row = 0; row < seq->n_rows; row++) {
            const uint32_t before = seq->n_before + row,
                           seen = seq->sparse && before > MOST_SEEN ? MOST_SEEN : before;
            us += seen / (double)SLOTS_OF_US;
            if (!seq->sparse) continue;
            batch->visited.visited[0] += seen;
            batch->visited.causal[0] += before;
        }
    }
    return 1e-6 * us;
}

static double cold_s_of(struct machine *m, const struct batch *batch) {
    bool *has_done = batch->visited.index_s > 0     ? &m->has_indexed
                     : batch->visited.causal[0] > 0 ? &m->has_visited
                                                    : NULL;
    if (!has_done || *has_done) return 0;
    *has_done = true;
    return cold_s;
}

static void machine_step(struct machine *m, struct fixture *f) {
    struct batch *batch = scheduler_plan(f->scheduler);
    if (batch) {
        const double step_s = batch->kind == STEP_TIME_STEP ? 2e-3 : 0;
        m->free_s = (m->free_s > clock_s ? m->free_s : clock_s) + step_s + rows_s_of(batch);
        batch->visited.index_s = index_s_of(batch);
        m->free_s += batch->visited.index_s + cold_s_of(m, batch);
        m->done_s[f->n_inflight] = m->free_s;
        fixture_submit_step(f, batch);
    }
    if (f->n_inflight <= (batch && run_ahead)) return;
    clock_s = m->done_s[0];
    m->done_s[0] = m->done_s[1];
    fixture_complete_step(f);
    fixture_drain(f, 0);
}

/* The longest time between two tokens of the talker while a long prompt runs beside it, the first
 * on that machine, and then another one and a dense one. */
static double longest_interval(double max_itl_s, uint32_t n_first, uint32_t n_long,
                               uint32_t n_dense) {
    struct fixture f;
    struct client talker = {0}, first = {0}, reader = {0}, dense = {0};
    struct scheduler_config config = long_config(4096, 8192);
    struct machine machine = {0};
    double last_s = 0, longest_s = 0;
    size_t n_text = 0;
    bool has_begun_others = false;
    config.max_itl_s = max_itl_s;
    config.row_work = ROW_US;
    config.enter_work = ENTER_US;
    config.pair_work = 1.0 / SLOTS_OF_US;
    fixture_init_with(&f, 800, config);
    struct engine_request r = client_request(&talker, 10, 490);
    r.params.ignore_eos = true;
    fixture_submit(&f, &r, 1);
    while (strlen(talker.text) < 5) machine_step(&machine, &f);
    r = sparse_request(&first, n_first, 1);
    fixture_submit(&f, &r, 2);
    for (; !reader.finished || !dense.finished; machine_step(&machine, &f)) {
        if (first.finished && !has_begun_others) {
            r = sparse_request(&reader, n_long, 1);
            r.prompt[0] = 1;
            fixture_submit(&f, &r, 3);
            r = client_request(&dense, n_dense, 1);
            r.prompt[0] = 2;
            fixture_submit(&f, &r, 4);
            has_begun_others = true;
        }
        assert_false(talker.finished);
        if (strlen(talker.text) == n_text) continue;
        n_text = strlen(talker.text);
        if (last_s > 0 && clock_s - last_s > longest_s) longest_s = clock_s - last_s;
        last_s = clock_s;
    }
    fixture_run(&f);
    fixture_fini(&f);
    return longest_s;
}

TEST(a_generating_sequence_waits_no_longer_than_agreed) {
    assert_true(longest_interval(20e-3, 2000, 8000, 1) < 20.1e-3);
    assert_true(longest_interval(20e-3, 2000, 4000, 8000) < 20.1e-3);
    assert_true(longest_interval(20e-3, 5000, 4000, 1) < 20.1e-3);
    assert_true(longest_interval(0, 2000, 8000, 1) > 60e-3);
}

int main(void) {
    return fixture_main();
}
