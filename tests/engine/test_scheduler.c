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
 * A request with a bounded cache keeps the first tokens and the newest, as the fake's device sees
 * to; its pages say which token is where, and nothing else does.
 *
 * In a batch-invariant space the fake's two kernels also leave different marks: a prompt's token
 * that was computed by the kernel for generated ones, or the other way round, changes the output,
 * too. */
#include <math.h>
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

enum { N_LAYERS = 2, MAX_PAGES = 400, POISON = 999, DECODED = 1 << 20, TRAINED_CONTEXT = 200 };

static const uint32_t eos[] = {FAKE_EOS};

static bool run_ahead; /* which of the two runs this is */

struct page {
    uint32_t cells[PAGE_TOKENS];
    uint32_t positions[PAGE_TOKENS]; /* of bounded caches, as is: */
    uint32_t free_slot;              /* in the first page */
};

/* A step on its way: what it will hand out, and the pages it was given. */
struct flight {
    struct batch *batch;
    struct sample_result *results; /* [batch->n_samples] */
    struct keep_total *totals;     /* [batch->step.n_seqs] */
    uint32_t *pages;               /* [n_pages] */
    uint32_t n_pages;
};

struct fixture {
    struct kv_space space;
    struct sequence_shared shared;
    struct scheduler *scheduler;
    struct event_list events;
    struct page *memory; /* [n_pages] */
    struct kv_pool pool; /* the same, as policies see it */
    uint32_t n_pages, max_rows, max_seqs;
    uint64_t rows_run, drawn_rows_run;
    struct flight flights[MAX_FLIGHTS]; /* [n_flights], the oldest first */
    uint32_t n_flights;
    uint32_t *drawn; /* by the newest step, by sample row */
};

static void flight_fini(struct flight *flight) {
    free(flight->results);
    free(flight->totals);
    free(flight->pages);
}

/* The operations that a suspended sequence needs. */
static struct {
    uint32_t n_downloads, n_uploads;
    bool fails;
} device;

static int fake_download(struct backend *be, void *host, const void *from, size_t bytes,
                         struct error *err) {
    (void)be;
    if (device.fails) return error_set(err, ERR_DEVICE, "the cable is loose");
    memcpy(host, from, bytes);
    device.n_downloads++;
    return 0;
}

static int fake_upload(struct backend *be, void *to, const void *host, size_t bytes,
                       struct error *err) {
    (void)be, (void)err;
    memcpy(to, host, bytes);
    device.n_uploads++;
    return 0;
}

static int fake_sync(struct backend *be, struct error *err) {
    (void)be, (void)err;
    return 0;
}

static const struct backend_ops fake_ops = {
    .download = fake_download, .upload = fake_upload, .sync = fake_sync};
static struct backend fake_backend = {.ops = &fake_ops};

static void setup(struct fixture *f, uint32_t n_pages, uint32_t max_rows, uint32_t max_seqs) {
    *f = (struct fixture){.n_pages = n_pages, .max_rows = max_rows, .max_seqs = max_seqs};
    memset(&device, 0, sizeof(device));
    f->memory = calloc(n_pages, sizeof(*f->memory));
    f->pool = (struct kv_pool){.base = f->memory, .page_bytes = sizeof(*f->memory)};
    f->space.n_layers = N_LAYERS;
    f->space.be = &fake_backend;
    f->space.memory = &f->pool;
    assert_int_equal(page_pool_create(&f->space.pool, n_pages, NULL), 0);
    assert_int_equal(prefix_cache_create(&f->space.cache, f->space.pool, N_LAYERS, NULL), 0);
    f->shared = (struct sequence_shared){
        .space = &f->space, .trained_context = TRAINED_CONTEXT, .tokenizer = fake_tokenizer,
        .eos = eos, .n_eos = 1};
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

/* A row of the step on its way through a layer. */
struct row_set {
    const uint32_t *tokens, *positions; /* of the sequence's rows */
    uint32_t *hashes;                   /* of all that each of them sees */
    uint32_t layer, mark;
    bool decoding;
};

static uint32_t *cell_of(struct fixture *f, const struct kv_view *view, uint32_t slot) {
    return &f->memory[view->pages[slot / PAGE_TOKENS]].cells[slot % PAGE_TOKENS];
}

static void set_hash(const struct row_set *rows, uint32_t i, uint32_t hash) {
    if (rows->layer > 0) assert_int_equal(rows->hashes[i], hash);
    rows->hashes[i] = hash;
}

static void run_full(struct fixture *f, const struct step_seq *seq, const struct row_set *rows) {
    const struct kv_view *view = &seq->layers[rows->layer];
    const uint32_t first = view->append_slot, base = rows->layer * 1000;
    uint32_t hash = 7;
    assert_int_equal(first + seq->n_rows, view->n_slots);
    for (uint32_t slot = 0; slot < view->n_slots; slot++) {
        uint32_t *cell = cell_of(f, view, slot);
        if (slot >= first) *cell = rows->tokens[slot - first] + base + rows->mark;
        hash = mix(hash, *cell - base);
        if (slot < first) continue;
        assert_int_equal(rows->positions[slot - first], slot);
        set_hash(rows, slot - first, hash);
    }
}

struct kept {
    uint32_t position, cell, slot;
};

static int by_position(const void *a, const void *b) {
    const struct kept *left = a, *right = b;
    return (left->position > right->position) - (left->position < right->position);
}

/* Which of n tokens, in order of the text, goes first. */
static uint32_t victim(const struct kept *kept, const struct kv_budget *budget) {
    uint32_t at = 0;
    while (kept[at].position < budget->n_sink) at++;
    return at;
}

static void put(struct fixture *f, const struct kv_view *view, struct kept token) {
    *cell_of(f, view, token.slot) = token.cell;
    f->memory[view->pages[token.slot / PAGE_TOKENS]].positions[token.slot % PAGE_TOKENS] =
        token.position;
}

static uint32_t append(struct fixture *f, const struct step_seq *seq, const struct row_set *rows,
                       struct kept *kept) {
    const struct kv_view *view = &seq->layers[rows->layer];
    const bool full = view->append_slot == KV_FREE_SLOT;
    const uint32_t free_slot = f->memory[view->pages[0]].free_slot;
    if (full) assert_int_equal(view->n_slots, seq->budget->capacity + 1);
    else assert_int_equal(view->append_slot + seq->n_rows, view->n_slots);
    for (uint32_t i = 0; i < seq->n_rows; i++)
        put(f, view, (struct kept){seq->n_before + i, rows->tokens[i] + rows->mark,
                                   full ? free_slot : view->append_slot + i});
    for (uint32_t slot = 0; slot < view->n_slots; slot++) {
        const struct page *page = &f->memory[view->pages[slot / PAGE_TOKENS]];
        kept[slot] = (struct kept){page->positions[slot % PAGE_TOKENS],
                                   page->cells[slot % PAGE_TOKENS], slot};
    }
    qsort(kept, view->n_slots, sizeof(*kept), by_position);
    return view->n_slots;
}

static void run_bounded(struct fixture *f, const struct step_seq *seq, const struct row_set *rows) {
    static struct kept kept[1024];
    const struct kv_view *view = &seq->layers[rows->layer];
    const struct kv_budget *budget = seq->budget;
    struct page *state = &f->memory[view->pages[0]];
    uint32_t n = append(f, seq, rows, kept), hash = 7;
    if (seq->n_before == 0) state->free_slot = budget->capacity;
    for (uint32_t i = 0; i < n; i++) {
        hash = mix(hash, kept[i].cell);
        if (i + seq->n_rows < n) continue;
        const uint32_t row = i + seq->n_rows - n;
        assert_int_equal(rows->positions[row],
                         budget->cache_positions ? i : seq->n_before + row);
        set_hash(rows, row, hash);
    }
    if (rows->decoding && n > budget->capacity) state->free_slot = kept[victim(kept, budget)].slot;
    if (!seq->compress) return;
    for (; n > budget->capacity; n--) {
        const uint32_t at = victim(kept, budget);
        memmove(kept + at, kept + at + 1, (n - 1 - at) * sizeof(*kept));
    }
    for (uint32_t i = 0; i < n; i++) put(f, view, (struct kept){kept[i].position, kept[i].cell, i});
    state->free_slot = budget->capacity;
}

/* Steps number their totals, so that it shows which came last. */
static void run_totals(const struct batch *batch) {
    for (uint32_t s = 0; s < batch->step.n_seqs; s++)
        if (batch->step.seqs[s].budget)
            batch->totals[s].kept_mass = (float)batch->entries[s].n_stored;
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
        if (decoding) assert_int_equal(seq->n_rows, 1);
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            const struct row_set rows = {tokens + row, step->positions + row, hashes + row, l,
                                         decoding ? decode_mark(&f->space) : 0, decoding};
            if (seq->budget) run_bounded(f, seq, &rows);
            else run_full(f, seq, &rows);
        }
        row += seq->n_rows;
    }
    run_totals(batch);
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
    flight->totals = malloc(batch->step.n_seqs * sizeof(*flight->totals));
    memcpy(flight->totals, batch->totals, batch->step.n_seqs * sizeof(*flight->totals));
    memset(batch->totals, 0xee, batch->step.n_seqs * sizeof(*batch->totals));
}

static void land_step(struct fixture *f) {
    struct flight flight = f->flights[0];
    f->flights[0] = f->flights[1];
    f->n_flights--;
    for (uint32_t i = 0; i < flight.n_pages; i++)
        assert_true(page_pool_n_holders(f->space.pool, flight.pages[i]) > 0);
    memcpy(flight.batch->results, flight.results,
           flight.batch->n_samples * sizeof(*flight.results));
    memcpy(flight.batch->totals, flight.totals,
           flight.batch->step.n_seqs * sizeof(*flight.totals));
    flight_fini(&flight);
    scheduler_finish_step(f->scheduler, &f->events);
}

/* The tokens that a request keeps, by the definition, and the hash of them. */
struct memory {
    const struct kv_choice *kv;
    uint32_t n, n_text, capacity;
    struct kept *kept;
};

static void remember(struct memory *m, uint32_t cell) {
    m->kept = realloc(m->kept, (m->n + 1) * sizeof(*m->kept));
    m->kept[m->n++] = (struct kept){m->n_text++, cell, 0};
}

static void forget(struct memory *m) {
    const struct kv_budget budget = {.n_sink = m->kv->n_sink};
    for (; m->kv->type != KV_FULL && m->n > m->capacity; m->n--) {
        const uint32_t at = victim(m->kept, &budget);
        memmove(m->kept + at, m->kept + at + 1, (m->n - 1 - at) * sizeof(*m->kept));
    }
}

static uint32_t hash_of(const struct memory *m) {
    uint32_t hash = 7;
    for (uint32_t i = 0; i < m->n; i++) hash = mix(hash, m->kept[i].cell);
    return hash;
}

/* The hash that the prompt's last row sees; then it is over. */
static uint32_t remember_prompt(struct memory *m, const struct engine_request *r) {
    for (uint32_t i = 0; i < r->n_prompt; i++) {
        if (i > 0 && i % (m->kv->chunk ? m->kv->chunk : KV_DEFAULT_CHUNK) == 0) forget(m);
        remember(m, r->prompt[i]);
    }
    const uint32_t hash = hash_of(m);
    forget(m);
    return hash;
}

/* What one request should give, worked out from the definition. */
struct expectation {
    char text[512];
    uint32_t n_generated, n_resident, n_evicted, n_stored;
    enum finish_reason reason;
};

static struct expectation expect(const struct kv_space *space, const struct engine_request *r) {
    const struct sampling_params *p = &r->params;
    const bool counting = p->presence_penalty != 0;
    struct expectation e = {.reason = FINISH_LENGTH};
    struct memory m = {.kv = &r->kv, .capacity = (uint32_t)kv_choice_capacity(&r->kv)};
    uint32_t hash = remember_prompt(&m, r);
    while (e.n_generated < p->max_tokens) {
        uint32_t n = e.n_generated;
        uint32_t token = draw(hash, rng_uniform(p->seed, n), counting ? n : 0);
        if (token == FAKE_EOS && n < p->min_tokens && !p->ignore_eos) token = 'z';
        e.n_generated++;
        if (token == FAKE_EOS && !p->ignore_eos) {
            e.reason = FINISH_STOP;
            break;
        }
        if (token != FAKE_EOS) e.text[strlen(e.text)] = (char)token; /* that has no text */
        if (e.n_generated == p->max_tokens) break; /* the last token is not stored */
        remember(&m, token + decode_mark(space));
        hash = hash_of(&m);
        forget(&m);
    }
    e.n_resident = m.n;
    e.n_stored = m.n_text;
    e.n_evicted = m.n_text - m.n;
    free(m.kept);
    return e;
}

/* A request as the test sees it; events find it through `user`. */
struct client {
    struct expectation expected;
    char text[512];
    bool bounded, submitted, cancelled, finished;
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
    c->bounded = r->kv.type != KV_FULL;
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
    assert_int_equal(c->last.kv.n_resident, c->expected.n_resident);
    assert_int_equal(c->last.kv.n_evicted, c->expected.n_evicted);
    if (c->bounded) assert_true(c->last.kv.kept_mass == (float)c->expected.n_stored);
    else assert_true(isnan(c->last.kv.kept_mass));
}

/* Prompts share prefixes of several blocks now and then. */
static void fill_prompt(struct engine_request *r) {
    uint32_t family = (uint32_t)rand() % 3, shared = (uint32_t)rand() % (r->n_prompt + 1);
    for (uint32_t i = 0; i < r->n_prompt; i++)
        r->prompt[i] = i < shared ? 'a' + (family + i) % 26 : 'a' + (uint32_t)rand() % 26;
}

/* Half of the requests have a bounded cache, with budgets around pages and prompts. */
static struct kv_choice random_choice(void) {
    if (rand() % 2) return (struct kv_choice){.type = KV_FULL};
    return (struct kv_choice){.type = KV_STREAMING,
                              .n_sink = (uint32_t)rand() % 5,
                              .n_recent = 1 + (uint32_t)rand() % (rand() % 3 ? 20 : 150),
                              .chunk = rand() % 4 ? 1 + (uint32_t)rand() % 100 : 0};
}

enum mix { ALL_FULL, HALF_BOUNDED };

static struct engine_stats random_load(enum mix mixed, bool batch_invariant, uint32_t n_pages,
                                       uint32_t max_rows, uint32_t max_seqs, unsigned seed) {
    enum { N = 300 };
    /* Those who will generate much are let in easily, and lose their places later. */
    const uint32_t longest = mixed == ALL_FULL ? 250 : 60, most = mixed == ALL_FULL ? 134 : 300;
    const int patience = mixed == ALL_FULL ? 6 : 60; /* steps */
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
                make_request(&clients[i], 1 + (uint32_t)rand() % longest,
                             (uint32_t)rand() % most);
            fill_prompt(&r);
            r.priority = rand() % 4 - 2;
            r.cache_salt = (uint64_t)(rand() % 2);
            if (mixed == HALF_BOUNDED) r.kv = random_choice();
            r.priority += r.kv.type;
            r.params.n_prompt_logprobs = rand() % 10 == 0 ? 0 : -1;
            r.params.presence_penalty = rand() % 20 == 0;
            r.params.min_tokens = rand() % 4 == 0 ? (uint32_t)rand() % 50 : 0;
            r.params.seed = (uint64_t)rand();
            submit(&f, &r, i + 1);
        }
        uint32_t victim = (uint32_t)rand() % N;
        if (rand() % patience == 0 && clients[victim].submitted && !clients[victim].finished) {
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
    assert_true((stats.kv_evicted[KV_STREAMING] > 0) == (mixed == HALF_BOUNDED));
    assert_int_equal(stats.kv_evicted[KV_FULL], 0);
    assert_int_equal(stats.kv_resident[KV_FULL] + stats.kv_resident[KV_STREAMING], 0);
    assert_true((f.drawn_rows_run > 0) == run_ahead);
    teardown(&f);
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

static void random_requests_give_what_they_give_alone(void **state) {
    (void)state;
    full_load(false, (struct load){MAX_PAGES, 512, 16, 1});
    full_load(false, (struct load){40, 64, 8, 2});
    /* One request of full length fits: preemption all the time. */
    full_load(false, (struct load){12, 33, 8, 3});
    full_load(false, (struct load){16, 8, 8, 4});
    full_load(false, (struct load){14, 1, 1, 5});
}

static void bounded_requests_give_what_they_give_alone(void **state) {
    (void)state;
    random_load(HALF_BOUNDED, false, MAX_PAGES, 512, 16, 1);
    random_load(HALF_BOUNDED, false, 40, 64, 8, 2);
    random_load(HALF_BOUNDED, false, 12, 33, 8, 3);
    assert_true(device.n_uploads > 0); /* some have been suspended, and have gone on */
    random_load(HALF_BOUNDED, false, 20, 8, 8, 4);
    random_load(HALF_BOUNDED, false, 24, 100, 12, 5);
    random_load(HALF_BOUNDED, true, 24, 33, 8, 6);
}

static void each_token_is_computed_by_the_kernel_of_its_kind(void **state) {
    (void)state;
    full_load(true, (struct load){MAX_PAGES, 512, 16, 1});
    full_load(true, (struct load){40, 64, 8, 2});
    full_load(true, (struct load){12, 33, 8, 3});
    full_load(true, (struct load){40, 65, 4, 4}); /* a prompt's last piece is often one row */
    full_load(true, (struct load){14, 1, 1, 5});
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

/* Its cache is as large as the budget and a chunk, so two of them fit where a full one would need
 * the hundredfold. */
static void an_endless_text_takes_the_pages_of_its_budget(void **state) {
    (void)state;
    struct fixture f;
    struct client clients[2] = {0};
    setup(&f, 2 * N_LAYERS * 2, 200, 4);
    for (uint32_t i = 0; i < 2; i++) {
        struct engine_request r = make_request(&clients[i], 1000000 - 37 * i, 300);
        for (uint32_t t = 0; t < r.n_prompt; t++) r.prompt[t] = t * 7919 % 1000;
        r.kv = (struct kv_choice){.type = KV_STREAMING, .n_sink = 4, .n_recent = 60, .chunk = 64};
        r.params.ignore_eos = true;
        submit(&f, &r, i + 1);
    }
    step(&f, 0);
    step(&f, 0);
    assert_int_equal(page_pool_n_free(f.space.pool), 0);
    while (!clients[0].text[0] || !clients[1].text[0]) assert_true(step(&f, 0));
    assert_int_equal(page_pool_n_free(f.space.pool), 0); /* 65 slots */
    run_until_idle(&f);
    for (int i = 0; i < 2; i++) check_client(&clients[i]);
    assert_int_equal(clients[0].last.kv.n_evicted, 1000000 + 299 - 64);
    teardown(&f);
}

/* What only the prompt needed goes to others as soon as the prompt is done. */
static void a_compressed_prompt_gives_pages_back(void **state) {
    (void)state;
    struct fixture f;
    struct client c = {0};
    setup(&f, 20, 512, 4);
    struct engine_request r = make_request(&c, 500, 100);
    r.kv = (struct kv_choice){.type = KV_STREAMING, .n_sink = 4, .n_recent = 50, .chunk = 512};
    r.params.ignore_eos = true;
    submit(&f, &r, 1);
    assert_true(step(&f, 0));
    if (run_ahead) {
        assert_int_equal(page_pool_n_free(f.space.pool), 20 - 8 * N_LAYERS);
        step(&f, 0);
    }
    assert_int_equal(page_pool_n_free(f.space.pool), 20 - N_LAYERS);
    run_until_idle(&f);
    check_client(&c);
    teardown(&f);
}

/* Runs a full request of rank 0 beside a bounded one until the pool is too small for both. */
static void squeeze(struct fixture *f, struct client *full, struct client *bounded) {
    setup(f, 4 * N_LAYERS, 512, 4);
    struct engine_request r = make_request(full, 10, 220);
    r.params.ignore_eos = true;
    submit(f, &r, 1);
    r = make_request(bounded, 100, 200);
    r.kv = (struct kv_choice){.type = KV_STREAMING, .n_sink = 4, .n_recent = 90};
    r.params.ignore_eos = true;
    submit(f, &r, 2);
}

static void a_suspended_sequence_goes_on_where_it_was(void **state) {
    (void)state;
    struct fixture f;
    struct client full = {0}, bounded = {0};
    squeeze(&f, &full, &bounded);
    run_until_idle(&f);
    check_client(&full);
    check_client(&bounded);
    assert_int_equal(device.n_downloads, 2 * N_LAYERS);
    assert_int_equal(device.n_uploads, 2 * N_LAYERS);
    assert_int_equal(f.rows_run, 10 + 219 + 100 + 199); /* nothing was computed twice */
    teardown(&f);
}

static void a_suspended_sequence_can_be_cancelled(void **state) {
    (void)state;
    struct fixture f;
    struct client full = {0}, bounded = {0};
    squeeze(&f, &full, &bounded);
    while (device.n_downloads == 0) assert_true(step(&f, 0));
    bounded.cancelled = true;
    scheduler_cancel(f.scheduler, 2, &f.events);
    run_until_idle(&f);
    check_client(&full);
    check_client(&bounded);
    assert_int_equal(device.n_uploads, 0);
    teardown(&f);
}

static void a_sequence_that_cannot_be_suspended_ends(void **state) {
    (void)state;
    struct fixture f;
    struct client full = {0}, bounded = {0};
    squeeze(&f, &full, &bounded);
    device.fails = true;
    run_until_idle(&f);
    check_client(&full);
    assert_int_equal(bounded.last.reason, FINISH_ERROR);
    assert_int_equal(bounded.last.error_code, ERR_DEVICE);
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
        cmocka_unit_test(a_compressed_prompt_gives_pages_back),
        cmocka_unit_test(a_suspended_sequence_goes_on_where_it_was),
        cmocka_unit_test(a_suspended_sequence_can_be_cancelled),
        cmocka_unit_test(a_sequence_that_cannot_be_suspended_ends),
        cmocka_unit_test(an_endless_text_takes_the_pages_of_its_budget),
        cmocka_unit_test(random_requests_give_what_they_give_alone),
        cmocka_unit_test(bounded_requests_give_what_they_give_alone),
        cmocka_unit_test(each_token_is_computed_by_the_kernel_of_its_kind),
    };
    int n_failed = cmocka_run_group_tests_name("step by step", tests, NULL, NULL);
    run_ahead = true;
    return n_failed + cmocka_run_group_tests_name("a step ahead", tests, NULL, NULL);
}
