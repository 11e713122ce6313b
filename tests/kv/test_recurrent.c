/* test_recurrent.c - where sequences read and leave their recurrent states.
 *
 * The device is a table: a slot has, for each layer, a hash of the text behind which its state is.
 * A step must find there the hash of the tokens before its first row. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/siphash.h"
#include "engine/device/pages.h"
#include "engine/device/recurrent.h"
#include "engine/device/sparse.h"
#include "engine/device/step.h"
#include "engine/kv/checkpoints.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/reclaim.h"
#include "tests/test.h"

enum { N_LAYERS = 2, N_PAGES = 400, MOST_SLOTS = 24, EVERY = 4 * PAGE_TOKENS };
enum { MOST_TOKENS = 40 * PAGE_TOKENS };

struct fixture {
    struct kv_space space;
    uint64_t states[MOST_SLOTS][N_LAYERS];
};

static void setup(struct fixture *f, uint32_t n_slots) {
    const struct checkpoint_store none = {0};
    memset(f, 0, sizeof(*f));
    f->space.n_layers = N_LAYERS;
    f->space.checkpoint_tokens = EVERY;
    assert_int_equal(page_pool_create(&f->space.pool, N_PAGES, NULL), 0);
    assert_int_equal(page_pool_create(&f->space.state_slots, n_slots, NULL), 0);
    assert_int_equal(checkpoints_create(&f->space.checkpoints, f->space.state_slots, &none, NULL),
                     0);
    assert_int_equal(prefix_cache_create(&f->space.cache, &f->space, NULL), 0);
}

/* Every slot is free, or a checkpoint that no sequence holds; none is left once they are
 * evicted. */
static void teardown(struct fixture *f) {
    const uint32_t n_slots = page_pool_n_pages(f->space.state_slots);
    assert_int_equal(kv_n_available_states(&f->space), n_slots);
    assert_int_equal(kv_make_states_free(&f->space, n_slots), 0);
    assert_int_equal(checkpoints_stats(f->space.checkpoints).n, 0);
    prefix_cache_destroy(f->space.cache);
    checkpoints_destroy(f->space.checkpoints);
    page_pool_destroy(f->space.state_slots);
    page_pool_destroy(f->space.pool);
}

struct user {
    struct kv_sequence kv;
    uint32_t tokens[MOST_TOKENS], n_prompt;
};

static uint64_t hash_of(const struct user *u, uint32_t n_tokens) {
    static const uint64_t key[2] = {1, 2};
    struct siphash hash;
    siphash_init(&hash, key);
    for (uint32_t i = 0; i < n_tokens; i++) siphash_absorb(&hash, u->tokens[i]);
    return siphash_end(&hash);
}

/* Makes a text of n tokens whose first n_shared are those of every text. */
static void make_text(struct user *u, uint32_t n, uint32_t n_shared) {
    *u = (struct user){.n_prompt = n};
    for (uint32_t i = 0; i < n; i++) u->tokens[i] = i < n_shared ? i : 1000 + (uint32_t)rand();
}

/* Starts the sequence if it can have its pages and a state. */
static bool start(struct fixture *f, struct user *u) {
    const struct kv_plan plan = {
        .kinds = &kv_kinds_full, .n_prompt = u->n_prompt, .n_most = u->n_prompt + 1};
    const struct kv_wish wish = {
        .n_tokens = u->n_prompt, .tokens = u->tokens, .n_max = u->n_prompt - 1};
    assert_int_equal(kv_sequence_init(&u->kv, &f->space, &plan, 0), 0);
    assert_int_equal(kv_prepare(&u->kv, u->tokens), 0);
    const int code = kv_start(&u->kv, &wish, NULL);
    if (code) kv_sequence_fini(&u->kv);
    return code == 0;
}

/* Computes rows of one layer: they must begin with the right state. */
static void run(struct fixture *f, const struct user *u, uint32_t layer,
                const struct step_seq *seq) {
    const struct state_slots *state = &seq->state;
    assert_true(state->to < MOST_SLOTS);
    if (state->from == STATE_ZERO) assert_int_equal(seq->n_before, 0);
    else assert_true(f->states[state->from][layer] == hash_of(u, seq->n_before));
    f->states[state->to][layer] = hash_of(u, seq->n_before + seq->n_rows);
}

static void take_chunk(struct fixture *f, struct user *u, uint32_t most) {
    struct step_seq seq;
    const uint32_t left = u->n_prompt - u->kv.n_tokens,
                   can = kv_ask(&u->kv, &(struct kv_wish){0}).n_rows;
    uint32_t n = left < most ? left : most;
    n = n < can ? n : can;
    assert_int_equal(kv_reserve(&u->kv, u->kv.n_tokens + n), 0);
    kv_view(&u->kv, 0, n, &seq);
    for (uint32_t l = 0; l < N_LAYERS; l++) run(f, u, l, &seq);
    kv_commit(&u->kv, n);
}

/* Takes the rest of the prompt through each layer in turn. */
static void take_slices(struct fixture *f, struct user *u, uint32_t most) {
    const uint32_t n = u->n_prompt - u->kv.n_tokens;
    struct step_seq seq;
    sequence_recurrent_begin_slices(&u->kv, n);
    for (uint32_t l = 0; l < N_LAYERS; l++)
        for (uint32_t first = 0, rows; first < n; first += rows) {
            const uint32_t can = sequence_recurrent_slice_rows(&u->kv, first);
            rows = n - first < most ? n - first : most;
            rows = rows < can ? rows : can;
            assert_true(rows == n - first || rows % SPARSE_TILE == 0);
            kv_view(&u->kv, first, rows, &seq);
            run(f, u, l, &seq);
        }
    kv_commit(&u->kv, n);
}

static void finish(struct user *u) {
    kv_insert(&u->kv, u->tokens, u->kv.n_tokens);
    kv_sequence_fini(&u->kv);
}

/* Returns how many tokens a text finds. */
static uint32_t n_found(struct fixture *f, struct user *u) {
    assert_true(start(f, u));
    const uint32_t n = u->kv.n_found;
    take_chunk(f, u, UINT32_MAX);
    kv_sequence_fini(&u->kv);
    return n;
}

/* Texts share beginnings, and come in chunks and in slices of any size, with few slots and with
 * many.  No row begins with another text's state, and no slot is lost. */
TEST(every_row_follows_the_state_of_its_text) {
    static struct fixture f;
    static struct user users[3];
    uint32_t n_began_later = 0;
    srand(20261130);
    for (uint32_t n_slots = 3; n_slots <= MOST_SLOTS; n_slots += 7) {
        setup(&f, n_slots);
        for (int round = 0; round < 200; round++) {
            const size_t n_users = 1 + (size_t)rand() % 3;
            bool runs[3] = {0};
            for (size_t i = 0; i < n_users; i++) {
                make_text(&users[i], 1 + (uint32_t)rand() % (12 * PAGE_TOKENS),
                          (uint32_t)rand() % (12 * PAGE_TOKENS));
                runs[i] = start(&f, &users[i]);
                n_began_later += runs[i] && users[i].kv.n_tokens > 0;
            }
            for (size_t i = 0; i < n_users; i++) {
                struct user *u = &users[i];
                if (!runs[i]) continue;
                if (rand() % 2) take_slices(&f, u, SPARSE_TILE * (1 + (uint32_t)rand() % 3));
                while (u->kv.n_tokens < u->n_prompt) take_chunk(&f, u, 1 + (uint32_t)rand() % 300);
            }
            for (size_t i = 0; i < n_users; i++)
                if (runs[i]) finish(&users[i]);
        }
        teardown(&f);
    }
    assert_true(n_began_later > 100);
}

/* The second text leaves a state where it leaves the first one, in whichever order its rows
 * come. */
TEST(a_prompt_leaves_a_state_where_it_branches_off) {
    enum { N_SHARED = 9 * PAGE_TOKENS + 7, BRANCH = 9 * PAGE_TOKENS };
    for (int in_slices = 0; in_slices <= 1; in_slices++) {
        static struct fixture f;
        static struct user u;
        srand(7);
        setup(&f, MOST_SLOTS);
        for (int i = 0; i < 2; i++) {
            make_text(&u, 15 * PAGE_TOKENS, N_SHARED);
            assert_true(start(&f, &u));
            if (in_slices) take_slices(&f, &u, SPARSE_TILE);
            while (u.kv.n_tokens < u.n_prompt) take_chunk(&f, &u, UINT32_MAX);
            finish(&u);
        }
        make_text(&u, 15 * PAGE_TOKENS, N_SHARED);
        /* The second text began at 8 pages: a slice of one page more is no whole tile. */
        assert_int_equal(n_found(&f, &u), in_slices ? BRANCH - PAGE_TOKENS : BRANCH);
        teardown(&f);
    }
}

/* A long prompt's checkpoints wait for its end.  Meanwhile another sequence must be able to start,
 * and what is left in the end are the newest ones. */
TEST(a_prompt_holds_no_more_than_half_of_the_slots) {
    enum { N_SLOTS = 8, N_LONG = 39 * PAGE_TOKENS };
    static struct fixture f;
    static struct user long_one, other;
    setup(&f, N_SLOTS);
    make_text(&long_one, N_LONG, N_LONG);
    assert_true(start(&f, &long_one));
    while (long_one.kv.n_tokens < N_LONG) {
        take_chunk(&f, &long_one, UINT32_MAX);
        assert_true(kv_n_available_states(&f.space) >= N_SLOTS / 2 - 1);
        make_text(&other, 100, 0);
        assert_true(start(&f, &other));
        kv_sequence_fini(&other.kv);
    }
    finish(&long_one);
    make_text(&other, N_LONG, N_LONG);
    assert_int_equal(n_found(&f, &other), N_LONG - PAGE_TOKENS);
    make_text(&other, N_LONG, N_LONG - 2 * PAGE_TOKENS);
    assert_int_equal(n_found(&f, &other), 9 * EVERY);
    make_text(&other, N_LONG, 5 * EVERY);
    assert_int_equal(n_found(&f, &other), 0);
    teardown(&f);
}

/* In slices they have their slots from the beginning.  As many are left, the newest ones, too. */
TEST(slices_hold_no_more_than_half_of_the_slots) {
    enum { N_SLOTS = 8, N_LONG = 39 * PAGE_TOKENS };
    static struct fixture f;
    static struct user u;
    setup(&f, N_SLOTS);
    make_text(&u, N_LONG, N_LONG);
    assert_true(start(&f, &u));
    take_slices(&f, &u, SPARSE_TILE);
    assert_true(kv_n_available_states(&f.space) >= N_SLOTS / 2 - 1);
    finish(&u);
    make_text(&u, N_LONG, N_LONG);
    assert_int_equal(n_found(&f, &u), N_LONG - PAGE_TOKENS);
    make_text(&u, N_LONG, N_LONG - 2 * PAGE_TOKENS);
    assert_int_equal(n_found(&f, &u), 9 * EVERY);
    make_text(&u, N_LONG, 5 * EVERY);
    assert_int_equal(n_found(&f, &u), 0);
    teardown(&f);
}
