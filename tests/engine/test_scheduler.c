/* test_scheduler.c - the scheduler with a fake model.
 *
 * The fake writes every row's token into its slot of every layer's page, and "predicts" a hash of
 * all the tokens that a row can see, read back through the step's views.  So a page that is handed
 * out twice, shared wrongly or filled with gaps changes what is generated, and every output is
 * compared with what the request gives alone.
 *
 * Draws depend on the row's number and on what the penalties count, so that a row described too
 * early or for the wrong token is noticed.
 *
 * All tests run twice: a step at a time, and with the next step planned before the results of one
 * are there.  Until a step is landed its results are garbage, and its pages must not be let go.
 *
 * In a batch-invariant space the fake's two kernels also leave different marks: a prompt's token
 * that was computed by the kernel for generated ones, or the other way round, changes the output,
 * too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/error.h"
#include "engine/kv/pool.h"
#include "engine/kv/prefix_cache.h"
#include "engine/rng.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "tests/engine/fake_tokenizer.h"

enum { N_LAYERS = 2, MAX_PAGES = 400, POISON = 999, DECODED = 1 << 20 };

static const uint32_t eos[] = {FAKE_EOS};

static bool run_ahead; /* which of the two runs this is */

/* A step on its way: what it will hand out, and the pages it was given. */
struct flight {
    struct batch *batch;
    struct sample_result *results; /* [batch->n_samples] */
    uint32_t *pages;               /* [n_pages] */
    uint32_t n_pages;
};

struct fixture {
    struct kv_space space;
    struct sequence_shared shared;
    struct scheduler *scheduler;
    struct event_list events;
    uint32_t (*memory)[PAGE_TOKENS]; /* [page][slot] */
    uint32_t n_pages, max_rows, max_seqs;
    uint64_t rows_run, drawn_rows_run;
    struct flight flights[MAX_FLIGHTS]; /* [n_flights], the oldest first */
    uint32_t n_flights;
    uint32_t *drawn; /* by the newest step, by sample row */
};

static void flight_fini(struct flight *flight) {
    free(flight->results);
    free(flight->pages);
}

static void setup(struct fixture *f, uint32_t n_pages, uint32_t max_rows, uint32_t max_seqs) {
    *f = (struct fixture){.n_pages = n_pages, .max_rows = max_rows, .max_seqs = max_seqs};
    f->space.n_layers = N_LAYERS;
    f->memory = calloc(n_pages, sizeof(*f->memory));
    assert_int_equal(page_pool_create(&f->space.pool, n_pages, NULL), 0);
    assert_int_equal(prefix_cache_create(&f->space.cache, f->space.pool, N_LAYERS, NULL), 0);
    f->shared = (struct sequence_shared){
        .space = &f->space, .tokenizer = fake_tokenizer, .eos = eos, .n_eos = 1};
    assert_int_equal(scheduler_create(&f->scheduler, &f->space, max_rows, max_seqs, NULL), 0);
}

static void teardown(struct fixture *f) {
    assert_int_equal(scheduler_n_live(f->scheduler), 0);
    scheduler_destroy(f->scheduler);
    prefix_cache_evict(f->space.cache, f->n_pages);
    assert_int_equal(page_pool_n_free(f->space.pool), f->n_pages); /* nothing leaked */
    prefix_cache_destroy(f->space.cache);
    page_pool_destroy(f->space.pool);
    for (uint32_t i = 0; i < f->n_flights; i++) flight_fini(&f->flights[i]);
    free(f->memory);
    free(f->drawn);
}

static uint32_t mix(uint32_t hash, uint32_t token) {
    return (hash ^ token) * 16777619u + 12345;
}

static uint32_t predict(uint32_t hash) {
    hash ^= hash >> 15;
    return hash % 200 == 0 ? FAKE_EOS : 'a' + hash % 26;
}

/* What the kernel for generated tokens leaves in the cache beside the token. */
static uint32_t decode_mark(const struct kv_space *space) {
    return space->batch_invariant ? DECODED : 0;
}

/* What the device reads: it knows what it drew last. */
static uint32_t token_of(struct fixture *f, const struct step *step, uint32_t row) {
    uint32_t token = step->tokens[row];
    if (!(token & STEP_DRAWN)) return token;
    f->drawn_rows_run++;
    return f->drawn[token & ~STEP_DRAWN];
}

/* As predicted, drawn as number n_generated of a request with that seed, which counts or not. */
static uint32_t draw(uint32_t hash, double uniform, uint32_t n_counted) {
    return predict(mix(mix(hash, (uint32_t)(uniform * 65536)), n_counted));
}

static uint32_t count_outputs(const struct sample_row *row) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < row->n_counts; i++) n += row->counts[i].n_output;
    return n;
}

/* The fake model: runs a step over f->memory. */
static void run_step(struct fixture *f, struct batch *batch) {
    const struct step *step = &batch->step;
    uint32_t *hashes = calloc(step->n_rows, sizeof(*hashes));
    uint32_t *tokens = calloc(step->n_rows, sizeof(*tokens));
    assert_true(step->n_rows <= f->max_rows && step->n_seqs <= f->max_seqs);
    for (uint32_t i = 0; i < step->n_rows; i++) tokens[i] = token_of(f, step, i);
    f->rows_run += step->n_rows;
    for (uint32_t s = 0, row = 0; s < step->n_seqs; s++) {
        const struct step_seq *seq = &step->seqs[s];
        assert_int_equal(seq->first_row, row);
        const bool decoding = s < step->n_decode;
        const uint32_t mark = decoding ? decode_mark(&f->space) : 0;
        if (decoding) assert_int_equal(seq->n_rows, 1);
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            const struct kv_view *view = &seq->layers[l];
            uint32_t hash = 7;
            assert_int_equal(view->append_slot + seq->n_rows, view->n_slots);
            for (uint32_t slot = 0; slot < view->n_slots; slot++) {
                uint32_t *cell = &f->memory[view->pages[slot / PAGE_TOKENS]][slot % PAGE_TOKENS];
                if (slot >= view->append_slot)
                    *cell = tokens[row + slot - view->append_slot] + l * 1000 + mark;
                hash = mix(hash, *cell - l * 1000);
                if (slot < view->append_slot) continue;
                assert_int_equal(step->positions[row + slot - view->append_slot], slot);
                uint32_t *seen = &hashes[row + slot - view->append_slot];
                if (l > 0) assert_int_equal(*seen, hash);
                *seen = hash;
            }
        }
        row += seq->n_rows;
    }
    for (uint32_t i = 0; i < batch->n_samples; i++) {
        const struct sample_row *row = &batch->samples[i];
        struct sample_result *r = &batch->results[i];
        *r = (struct sample_result){.rank = 1};
        r->token = draw(hashes[row->logit_row], row->uniform, count_outputs(row));
        for (uint32_t j = 0; j < row->n_banned; j++)
            if (r->token == row->banned[j]) r->token = 'z';
        if (row->kind == SAMPLE_SCORE) r->token = row->target;
        r->logprob = -(float)(hashes[row->logit_row] % 1000);
        r->invalid = tokens[row->logit_row] == POISON;
    }
    free(tokens);
    free(hashes);
}

/* Runs the step, but keeps the results back. */
static void submit_step(struct fixture *f, struct batch *batch) {
    const size_t bytes = batch->n_samples * sizeof(*batch->results);
    struct flight *flight = &f->flights[f->n_flights++];
    *flight = (struct flight){.batch = batch, .results = malloc(bytes + 1)};
    flight->pages = malloc(f->n_pages * sizeof(*flight->pages));
    for (uint32_t s = 0; s < batch->step.n_seqs; s++) {
        const struct kv_view *view = batch->step.seqs[s].layers;
        for (uint32_t slot = 0; slot < view->n_slots; slot += PAGE_TOKENS)
            if (flight->n_pages < f->n_pages)
                flight->pages[flight->n_pages++] = view->pages[slot / PAGE_TOKENS];
    }
    run_step(f, batch);
    f->drawn = realloc(f->drawn, (batch->n_samples + 1) * sizeof(*f->drawn));
    for (uint32_t i = 0; i < batch->n_samples; i++) f->drawn[i] = batch->results[i].token;
    memcpy(flight->results, batch->results, bytes);
    memset(batch->results, 0xee, bytes);
}

static void land_step(struct fixture *f) {
    struct flight flight = f->flights[0];
    f->flights[0] = f->flights[1];
    f->n_flights--;
    for (uint32_t i = 0; i < flight.n_pages; i++)
        assert_true(page_pool_n_holders(f->space.pool, flight.pages[i]) > 0);
    memcpy(flight.batch->results, flight.results,
           flight.batch->n_samples * sizeof(*flight.results));
    flight_fini(&flight);
    scheduler_finish_step(f->scheduler, &f->events);
}

/* What one request should give, worked out from the definition. */
struct expectation {
    char text[512];
    uint32_t n_generated;
    enum finish_reason reason;
};

static struct expectation expect(const struct kv_space *space, const struct engine_request *r) {
    const struct sampling_params *p = &r->params;
    const bool counting = p->presence_penalty != 0;
    struct expectation e = {.reason = FINISH_LENGTH};
    uint32_t hash = 7;
    for (uint32_t i = 0; i < r->n_prompt; i++) hash = mix(hash, r->prompt[i]);
    while (e.n_generated < p->max_tokens) {
        uint32_t n = e.n_generated;
        uint32_t token = draw(hash, rng_uniform(p->seed, n), counting ? n : 0);
        if (token == FAKE_EOS && n < p->min_tokens && !p->ignore_eos) token = 'z';
        hash = mix(hash, token + decode_mark(space));
        e.n_generated++;
        if (token == FAKE_EOS && !p->ignore_eos) {
            e.reason = FINISH_STOP;
            break;
        }
        e.text[strlen(e.text)] = (char)token;
    }
    return e;
}

/* A request as the test sees it; events find it through `user`. */
struct client {
    struct expectation expected;
    char text[512];
    bool submitted, cancelled, finished;
    struct engine_event last; /* the final event's numbers */
    uint32_t n_prompt_infos, step_of_last_event;
    float first_score;
};

static void drain(struct fixture *f, uint32_t step_number) {
    struct engine_event *e = f->events.first, *next;
    for (; e; e = next) {
        struct client *c = e->user;
        next = e->next;
        assert_false(c->finished); /* nothing follows the final event */
        if (e->kind == EVENT_PROMPT) {
            c->n_prompt_infos = e->n_tokens;
            if (e->n_tokens > 1) c->first_score = e->tokens[1].logprob;
        } else {
            /* One event a step. */
            assert_true(step_number == 0 || c->step_of_last_event != step_number);
            c->step_of_last_event = step_number;
        }
        strcat(c->text, e->text);
        if (e->kind == EVENT_FINISH) {
            c->finished = true;
            c->last = *e;
        }
        engine_event_free(e);
    }
    f->events = (struct event_list){0};
}

static struct engine_request make_request(struct client *c, uint32_t n_prompt,
                                          uint32_t max_tokens) {
    struct engine_request r = {.n_prompt = n_prompt, .params = sampling_defaults(), .user = c};
    r.prompt = calloc(n_prompt, sizeof(*r.prompt));
    r.params.max_tokens = max_tokens;
    r.params.has_seed = true;
    return r;
}

static void submit(struct fixture *f, struct engine_request *r, uint64_t id) {
    struct client *c = r->user;
    struct sequence *seq;
    c->expected = expect(&f->space, r);
    c->submitted = true;
    assert_int_equal(sequence_create(&seq, &f->shared, r, id), 0);
    scheduler_add(f->scheduler, seq, &f->events);
}

static bool step(struct fixture *f, uint32_t number) {
    struct batch *batch = scheduler_plan(f->scheduler, &f->events);
    if (batch) submit_step(f, batch);
    assert_int_equal(scheduler_n_flights(f->scheduler), f->n_flights);
    bool some = f->n_flights > 0;
    if (f->n_flights > (batch && run_ahead)) land_step(f);
    drain(f, number);
    return some;
}

static void run_until_idle(struct fixture *f) {
    for (uint32_t n = 1; step(f, n); n++) assert_true(n < 100000);
}

static void check_client(const struct client *c) {
    assert_true(c->finished);
    if (c->last.reason == FINISH_CANCELLED) {
        assert_true(c->cancelled);
        assert_memory_equal(c->text, c->expected.text, strlen(c->text)); /* a prefix */
        return;
    }
    assert_int_equal(c->last.reason, c->expected.reason);
    assert_string_equal(c->text, c->expected.text);
    assert_int_equal(c->last.n_generated, c->expected.n_generated);
}

/* Prompts share prefixes of several blocks now and then. */
static void fill_prompt(struct engine_request *r) {
    uint32_t family = (uint32_t)rand() % 3, shared = (uint32_t)rand() % (r->n_prompt + 1);
    for (uint32_t i = 0; i < r->n_prompt; i++)
        r->prompt[i] = i < shared ? 'a' + (family + i) % 26 : 'a' + (uint32_t)rand() % 26;
}

static void random_load(bool batch_invariant, uint32_t n_pages, uint32_t max_rows,
                        uint32_t max_seqs, unsigned seed) {
    enum { N = 300 };
    struct fixture f;
    struct client *clients = calloc(N, sizeof(*clients));
    struct engine_stats stats;
    print_message("pages %u rows %u seqs %u seed %u\n", n_pages, max_rows, max_seqs, seed);
    setup(&f, n_pages, max_rows, max_seqs);
    f.space.batch_invariant = batch_invariant;
    srand(seed);
    for (uint32_t i = 0, n = 1; i < N || scheduler_n_live(f.scheduler) + f.n_flights > 0; n++) {
        for (int k = rand() % 3; k > 0 && i < N; k--, i++) {
            struct engine_request r =
                make_request(&clients[i], 1 + (uint32_t)rand() % 250, (uint32_t)rand() % 134);
            fill_prompt(&r);
            r.priority = rand() % 4 - 2;
            r.cache_salt = (uint64_t)(rand() % 2);
            r.params.n_prompt_logprobs = rand() % 10 == 0 ? 0 : -1;
            r.params.presence_penalty = rand() % 20 == 0;
            r.params.min_tokens = rand() % 4 == 0 ? (uint32_t)rand() % 50 : 0;
            r.params.seed = (uint64_t)rand();
            submit(&f, &r, i + 1);
        }
        uint32_t victim = (uint32_t)rand() % N;
        if (rand() % 6 == 0 && clients[victim].submitted && !clients[victim].finished) {
            clients[victim].cancelled = true;
            scheduler_cancel(f.scheduler, victim + 1, &f.events);
            drain(&f, 0);
            assert_true(clients[victim].finished);
        }
        step(&f, n);
        assert_true(n < 200000);
    }
    for (int i = 0; i < N; i++) check_client(&clients[i]);
    scheduler_stats(f.scheduler, &stats);
    assert_int_equal(stats.n_finished + stats.n_cancelled, N);
    if (batch_invariant) assert_int_equal(stats.n_preempted, 0);
    else if (n_pages < 20 && max_seqs > 1) assert_true(stats.n_preempted > 0);
    assert_true(stats.cached_tokens > 0);
    assert_true((f.drawn_rows_run > 0) == run_ahead);
    teardown(&f);
    free(clients);
}

static void random_requests_give_what_they_give_alone(void **state) {
    (void)state;
    random_load(false, MAX_PAGES, 512, 16, 1);
    random_load(false, 40, 64, 8, 2);
    /* One request of full length fits: preemption all the time. */
    random_load(false, 12, 33, 8, 3);
    random_load(false, 16, 8, 8, 4);
    random_load(false, 14, 1, 1, 5);
}

static void each_token_is_computed_by_the_kernel_of_its_kind(void **state) {
    (void)state;
    random_load(true, MAX_PAGES, 512, 16, 1);
    random_load(true, 40, 64, 8, 2);
    random_load(true, 12, 33, 8, 3);
    random_load(true, 40, 65, 4, 4); /* a prompt's last piece is often one row */
    random_load(true, 14, 1, 1, 5);
}

static void a_request_longer_than_the_pool_is_refused(void **state) {
    (void)state;
    struct fixture f;
    struct client c = {0};
    setup(&f, 2 * N_LAYERS, 64, 4);
    struct engine_request r = make_request(&c, 100, 29);
    submit(&f, &r, 1);
    drain(&f, 0);
    assert_int_equal(c.last.reason, FINISH_ERROR);
    assert_int_equal(c.last.error_code, ERR_TOO_LONG);
    teardown(&f);
}

static void a_row_that_is_not_a_number_fails_its_request_alone(void **state) {
    (void)state;
    struct fixture f;
    struct client good = {0}, bad = {0}, again = {0};
    setup(&f, 40, 512, 4);
    struct engine_request r = make_request(&bad, 130, 20);
    r.prompt[129] = POISON;
    submit(&f, &r, 1);
    r = make_request(&good, 70, 20);
    fill_prompt(&r);
    submit(&f, &r, 2);
    run_until_idle(&f);
    assert_int_equal(bad.last.reason, FINISH_ERROR);
    check_client(&good);
    r = make_request(&again, 130, 20);
    submit(&f, &r, 3);
    run_until_idle(&f);
    /* The poisoned request's pages were never published. */
    assert_int_equal(again.last.n_cached, 0);
    check_client(&again);
    teardown(&f);
}

static void equal_prompts_are_computed_once(void **state) {
    (void)state;
    struct fixture f;
    struct client clients[8] = {0};
    setup(&f, MAX_PAGES, 100, 8);
    for (uint32_t i = 0; i < 8; i++) {
        struct engine_request r = make_request(&clients[i], 321, 1);
        r.prompt[320] = i;
        submit(&f, &r, i + 1);
    }
    run_until_idle(&f);
    assert_int_equal(clients[0].last.n_cached, 0);
    for (int i = 1; i < 8; i++) assert_int_equal(clients[i].last.n_cached, 320);
    assert_int_equal(f.rows_run, 321 + 7);
    for (int i = 0; i < 8; i++) check_client(&clients[i]);
    teardown(&f);
}

static void a_wholly_cached_prompt_still_computes_its_last_token(void **state) {
    (void)state;
    struct fixture f;
    struct client a = {0}, b = {0};
    setup(&f, 40, 512, 4);
    struct engine_request r = make_request(&a, 128, 5);
    submit(&f, &r, 1);
    run_until_idle(&f);
    r = make_request(&b, 128, 5);
    submit(&f, &r, 2);
    run_until_idle(&f);
    assert_int_equal(b.last.n_cached, 64);
    check_client(&b);
    teardown(&f);
}

/* A block is named by its tokens, so it is shared only when the last of them is known. */
static void a_conversation_goes_on_from_cached_answers(void **state) {
    (void)state;
    struct fixture f;
    struct client a = {0}, b = {0};
    setup(&f, 40, 512, 4);
    struct engine_request r = make_request(&a, 40, 100);
    r.params.ignore_eos = true;
    submit(&f, &r, 1);
    run_until_idle(&f);
    check_client(&a);
    r = make_request(&b, 140, 5);
    assert_int_equal(strlen(a.text), 100);
    for (uint32_t i = 0; i < 100; i++) r.prompt[40 + i] = (unsigned char)a.text[i];
    submit(&f, &r, 2);
    run_until_idle(&f);
    assert_int_equal(b.last.n_cached, 128);
    check_client(&b);
    teardown(&f);
}

static void prompt_scores_cover_the_prompt_whatever_is_cached(void **state) {
    (void)state;
    struct fixture f;
    struct client clients[3] = {0};
    setup(&f, 40, 50, 4);
    for (uint32_t i = 0; i < 3; i++) {
        struct engine_request r = make_request(&clients[i], 200, i == 2 ? 0 : 3);
        r.params.n_prompt_logprobs = 0;
        submit(&f, &r, i + 1);
        run_until_idle(&f);
        check_client(&clients[i]);
        assert_int_equal(clients[i].n_prompt_infos, 200);
        assert_int_equal(clients[i].last.n_cached, 0);
        assert_true(clients[i].first_score == -(float)(mix(7, 0) % 1000));
    }
    teardown(&f);
}

static void lower_priority_numbers_run_first(void **state) {
    (void)state;
    struct fixture f;
    struct client clients[3] = {0};
    setup(&f, 40, 64, 1);
    for (uint32_t i = 0; i < 3; i++) {
        struct engine_request r = make_request(&clients[i], 10 + i, 4);
        r.priority = i == 2 ? -1 : 0;
        submit(&f, &r, i + 1);
    }
    while (!clients[2].finished) assert_true(step(&f, 0));
    assert_false(clients[0].finished);
    while (!clients[0].finished) assert_true(step(&f, 0));
    assert_false(clients[1].finished);
    run_until_idle(&f);
    teardown(&f);
}

/* Ten blocks.  The long request finds eight, needs seven, and two others run: not enough to leave
 * each of them one.  Once the second has ended there are eight again, as the first has grown, and
 * that is enough. */
static void fewer_neighbours_are_reason_enough_to_try_again(void **state) {
    (void)state;
    struct fixture f;
    struct client first = {0}, second = {0}, waiting = {0};
    setup(&f, 10 * N_LAYERS, 512, 4);
    struct engine_request r = make_request(&first, 10, 160);
    r.params.ignore_eos = true;
    submit(&f, &r, 1);
    r = make_request(&second, 10, 60);
    r.prompt[0] = 1;
    r.params.ignore_eos = true;
    submit(&f, &r, 2);
    step(&f, 0);
    r = make_request(&waiting, 430, 1);
    submit(&f, &r, 3);
    while (!second.finished) assert_true(step(&f, 0));
    assert_false(waiting.finished);
    step(&f, 0);
    if (run_ahead) step(&f, 0);
    assert_true(waiting.finished);
    assert_false(first.finished);
    run_until_idle(&f);
    teardown(&f);
}

static void cancelling_frees_pages_in_every_phase(void **state) {
    (void)state;
    struct fixture f;
    struct client queued = {0}, prefilling = {0}, generating = {0};
    struct client *clients[] = {&generating, &prefilling, &queued};
    setup(&f, 40, 32, 2);
    for (uint32_t i = 0; i < 3; i++) {
        struct engine_request r = make_request(clients[i], i == 1 ? 500 : 20, 100);
        r.prompt[0] = i;
        r.params.ignore_eos = true;
        submit(&f, &r, i + 1);
    }
    for (uint32_t n = 1; n < 5; n++) step(&f, n);
    assert_true(strlen(generating.text) > 0);
    assert_int_equal(scheduler_n_live(f.scheduler), 3);
    for (uint64_t id = 3; id >= 1; id--) {
        scheduler_cancel(f.scheduler, id, &f.events);
        scheduler_cancel(f.scheduler, id, &f.events); /* unknown by now */
        drain(&f, 0);
        assert_int_equal(clients[id - 1]->last.reason, FINISH_CANCELLED);
    }
    assert_int_equal(scheduler_n_live(f.scheduler), 0);
    /* What a step in flight uses is free only once that has landed. */
    assert_true((page_pool_n_free(f.space.pool) < 40) == run_ahead);
    assert_true(step(&f, 0) == run_ahead);
    assert_int_equal(page_pool_n_free(f.space.pool), 40);
    assert_null(scheduler_plan(f.scheduler, &f.events));
    teardown(&f);
}

static void ending_all_gives_each_its_final_event(void **state) {
    (void)state;
    struct fixture f;
    struct client clients[6] = {0};
    setup(&f, 40, 32, 2);
    for (uint32_t i = 0; i < 6; i++) {
        struct engine_request r = make_request(&clients[i], 100, 100);
        submit(&f, &r, i + 1);
    }
    step(&f, 1);
    assert_non_null(scheduler_plan(f.scheduler, &f.events)); /* the step that fails */
    scheduler_end_all(f.scheduler, FINISH_ERROR, ERR_DEVICE, "the device is gone", &f.events);
    drain(&f, 0);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(clients[i].last.reason, FINISH_ERROR);
        assert_int_equal(clients[i].last.error_code, ERR_DEVICE);
    }
    teardown(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_longer_than_the_pool_is_refused),
        cmocka_unit_test(a_row_that_is_not_a_number_fails_its_request_alone),
        cmocka_unit_test(equal_prompts_are_computed_once),
        cmocka_unit_test(a_wholly_cached_prompt_still_computes_its_last_token),
        cmocka_unit_test(a_conversation_goes_on_from_cached_answers),
        cmocka_unit_test(prompt_scores_cover_the_prompt_whatever_is_cached),
        cmocka_unit_test(lower_priority_numbers_run_first),
        cmocka_unit_test(fewer_neighbours_are_reason_enough_to_try_again),
        cmocka_unit_test(cancelling_frees_pages_in_every_phase),
        cmocka_unit_test(ending_all_gives_each_its_final_event),
        cmocka_unit_test(random_requests_give_what_they_give_alone),
        cmocka_unit_test(each_token_is_computed_by_the_kernel_of_its_kind),
    };
    int n_failed = cmocka_run_group_tests_name("step by step", tests, NULL, NULL);
    run_ahead = true;
    return n_failed + cmocka_run_group_tests_name("a step ahead", tests, NULL, NULL);
}
