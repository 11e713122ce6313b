/* test_bounded.c - a bounded cache's steps over a life, and the choices that it is given.
 *
 * What it keeps is the device's business; here it is counted: where chunks begin and end, which
 * slots a step sees, which rows count, how many pages the sequence holds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/backend.h"
#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "engine/device/step.h"
#include "engine/kv/demand.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/state_cache.h"
#include "tests/test.h"

enum { N_LAYERS = 3, N_PAGES = 100 * N_LAYERS, CONTEXT = 2000 };

static uint32_t pages(uint32_t n_slots) {
    return (n_slots + PAGE_TOKENS - 1) / PAGE_TOKENS * N_LAYERS;
}

/* A text and what should be there after each of its steps. */
struct life {
    struct kv_space space;
    struct kv_sequence kv;
    struct kv_choice choice;
    uint32_t n_prompt, max_tokens, capacity;
    uint32_t n_slots, chunk_begin; /* expected, before the next step */
};

static void begin(struct life *life, struct kv_choice choice, uint32_t n_prompt,
                  uint32_t max_tokens) {
    const struct kv_limits limits = {
        .max_model_len = CONTEXT, .trained_context = CONTEXT, .bounded_caches = true};
    *life = (struct life){.space.n_layers = N_LAYERS,
                          .choice = choice,
                          .n_prompt = n_prompt,
                          .max_tokens = max_tokens,
                          .capacity = (uint32_t)kv_choice_capacity(&choice)};
    assert_int_equal(page_pool_create(&life->space.pool, N_PAGES, NULL), 0);
    assert_int_equal(kv_choice_check(&choice, n_prompt, max_tokens, &limits, NULL), 0);
    const struct kv_plan plan = kv_plan_make(&choice, n_prompt, max_tokens);
    assert_int_equal(kv_sequence_init(&life->kv, &life->space, &plan, 0), 0);
    assert_int_equal(kv_prepare(&life->kv, NULL), 0);
    assert_int_equal(kv_match(&life->kv, NULL, n_prompt), 0);
}

static void end(struct life *life) {
    kv_sequence_fini(&life->kv);
    assert_int_equal(page_pool_n_free(life->space.pool), N_PAGES);
    page_pool_destroy(life->space.pool);
}

static uint32_t n_held(const struct life *life) {
    return N_PAGES - page_pool_n_free(life->space.pool);
}

static void check_views(const struct life *life, const struct step_seq *seq, uint32_t append_slot,
                        uint32_t n_slots) {
    assert_ptr_equal(seq->budget, &life->kv.plan.budget);
    assert_int_equal(seq->n_before, life->kv.n_tokens);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        assert_int_equal(seq->layers[l].append_slot, append_slot);
        assert_int_equal(seq->layers[l].n_slots, n_slots);
        assert_ptr_equal(seq->layers[l].pages, life->kv.layers[l].pages);
        assert_true(pages(n_slots) <= life->kv.layers[l].n * N_LAYERS);
    }
}

/* One piece of the prompt, of at most max_rows rows. */
static void run_piece(struct life *life, uint32_t max_rows) {
    const uint32_t chunk = kv_choice_chunk(&life->choice, life->n_prompt);
    const uint32_t window = life->choice.window ? life->choice.window : KV_DEFAULT_WINDOW;
    const uint32_t chunk_end = min_u32(life->chunk_begin + chunk, life->n_prompt);
    const uint32_t left = chunk_end - life->kv.n_tokens, n = min_u32(left, max_rows);
    struct step_seq seq;
    assert_int_equal(kv_ask(&life->kv, &(struct kv_wish){0}).n_rows, left);
    kv_view(&life->kv, 0, n, &seq);
    check_views(life, &seq, life->n_slots, life->n_slots + n);
    assert_int_equal(seq.begins_chunk, life->kv.n_tokens == life->chunk_begin);
    assert_int_equal(seq.compress, n == left);
    for (uint32_t i = 0; i < n; i++) /* from the end of the chunk row i is number left - i */
        assert_int_equal(i >= seq.score_row,
                         life->choice.score != KV_SCORE_WINDOW || left - i <= window);
    kv_commit(&life->kv, n);
    life->n_slots += n;
    if (n == left) {
        life->n_slots = min_u32(life->n_slots, life->capacity);
        life->chunk_begin = chunk_end;
    }
    assert_int_equal(kv_ask(&life->kv, &(struct kv_wish){0}).n_resident, life->n_slots);
    kv_done(&life->kv, life->kv.n_tokens);
}

static void run_generated(struct life *life) {
    struct step_seq seq;
    const bool full = life->n_slots == life->capacity;
    assert_int_equal(kv_ask(&life->kv, &(struct kv_wish){0}).n_rows, 1);
    kv_view(&life->kv, 0, 1, &seq);
    check_views(life, &seq, full ? KV_FREE_SLOT : life->n_slots, life->n_slots + 1);
    assert_false(seq.begins_chunk || seq.compress);
    assert_int_equal(seq.score_row, 0);
    kv_commit(&life->kv, 1);
    life->n_slots += !full;
    assert_int_equal(kv_ask(&life->kv, &(struct kv_wish){0}).n_resident, life->n_slots);
}

static void live(struct kv_choice choice, uint32_t n_prompt, uint32_t max_tokens,
                 uint32_t max_rows) {
    struct life life;
    const uint32_t chunk = kv_choice_chunk(&choice, n_prompt);
    begin(&life, choice, n_prompt, max_tokens);
    const uint32_t later = pages(min_u32(n_prompt + max_tokens, life.capacity + 1));
    const uint32_t first = pages(min_u32(n_prompt, life.capacity + chunk));
    assert_int_equal(kv_missing(&life.kv, 1).pages, first > later ? first : later);
    while (life.kv.n_tokens < n_prompt) {
        assert_int_equal(kv_reserve(&life.kv, life.kv.n_tokens + 1), 0);
        assert_int_equal(n_held(&life), first > later ? first : later);
        run_piece(&life, 1 + (uint32_t)rand() % max_rows);
    }
    for (uint32_t i = 0; i + 1 < max_tokens; i++) {
        assert_int_equal(n_held(&life), later);
        assert_int_equal(kv_missing(&life.kv, life.kv.n_tokens + 1).pages, 0);
        run_generated(&life);
    }
    end(&life);
}

TEST(steps_and_pages_over_a_life) {
    const uint32_t budgets[] = {1, 63, 64, 65, 200}, chunks[] = {0, 1, 63, 64, 65, 100},
                   prompts[] = {1, 63, 64, 65, 128, 511, 512, 513, 1500};
    srand(3);
    for (uint32_t b = 0; b < 5; b++)
        for (uint32_t c = 0; c < 6; c++)
            for (uint32_t p = 0; p < 9; p++) {
                struct kv_choice choice = {.mechanism = KV_BOUNDED,
                                           .n_recent = budgets[b],
                                           .chunk = chunks[c],
                                           .cache_positions = true};
                live(choice, prompts[p], 1 + (uint32_t)rand() % 700, 1000);
                choice.n_heavy = 1 + (uint32_t)rand() % 100;
                choice.score = KV_SCORE_WINDOW;
                choice.window = (uint32_t)rand() % 100; /* 0: the default */
                choice.whole = rand() % 2;
                live(choice, prompts[p], 1 + (uint32_t)rand() % 700, 90);
            }
}

/* ---- what the sequence leaves ---- */

static struct {
    uint32_t n_orders;
    bool fails;
} device;

static int fake_order(struct backend *be, const struct kv_pool *kv, const struct kv_view *layers,
                      uint32_t n_layers, struct error *err) {
    (void)be, (void)kv;
    assert_int_equal(n_layers, N_LAYERS);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        assert_int_equal(layers[l].n_slots, 101);
        assert_non_null(layers[l].pages);
    }
    device.n_orders++;
    return device.fails ? error_set(err, ERR_DEVICE, "the cable is loose") : 0;
}

enum { N_MANY_PAGES = 3000 };

static uint32_t content_of[N_MANY_PAGES]; /* by page */
static uint32_t n_copied;

static int fake_copy_pages(struct backend *be, const struct kv_pool *kv, const uint32_t *from,
                           const uint32_t *to, uint32_t n, struct error *err) {
    (void)be, (void)kv, (void)err;
    for (uint32_t i = 0; i < n; i++) content_of[to[i]] = content_of[from[i]];
    n_copied += n;
    return 0;
}

static const struct evict_ops fake_evict = {.order = fake_order};
static const struct backend_ops fake_ops = {.evict = &fake_evict, .copy_pages = fake_copy_pages};
static struct backend fake_backend = {.ops = &fake_ops};

/* Runs a text with a budget of 100 tokens, lets go of it, and says whether its state was kept. */
static bool leave(uint32_t n_prompt, uint32_t n_generated) {
    static uint32_t prompt[CONTEXT];
    const struct kv_choice choice = {.mechanism = KV_BOUNDED, .n_recent = 100, .chunk = 64};
    const uint32_t n_tokens = n_prompt + n_generated;
    const struct kv_plan plan = kv_plan_make(&choice, n_prompt, n_generated + 1);
    struct life life = {.space = {.io.be = &fake_backend, .n_layers = N_LAYERS},
                        .choice = choice,
                        .n_prompt = n_prompt,
                        .capacity = 100};
    uint32_t *tokens = calloc(n_tokens, sizeof(*tokens));
    assert_non_null(tokens);
    assert_int_equal(page_pool_create(&life.space.pool, N_PAGES, NULL), 0);
    assert_int_equal(prefix_cache_create(&life.space.cache, &life.space, NULL), 0);
    assert_int_equal(state_cache_create(&life.space.states, &life.space, NULL), 0);
    assert_int_equal(kv_sequence_init(&life.kv, &life.space, &plan, 0), 0);
    assert_int_equal(kv_prepare(&life.kv, prompt), 0);
    assert_int_equal(kv_match(&life.kv, prompt, n_prompt), 0);
    assert_int_equal(kv_reserve(&life.kv, n_prompt), 0);
    while (life.kv.n_tokens < n_prompt) run_piece(&life, n_prompt);
    for (uint32_t i = 0; i < n_generated; i++) run_generated(&life);
    kv_mark_valid(&life.kv, n_tokens);
    device.n_orders = 0;
    const bool is_kept = kv_leave_state(&life.kv, tokens, n_tokens);
    if (!is_kept) free(tokens);
    kv_sequence_fini(&life.kv);
    assert_int_equal(state_cache_n_idle_pages(life.space.states), is_kept ? pages(101) : 0);
    state_cache_destroy(life.space.states);
    prefix_cache_destroy(life.space.cache);
    assert_int_equal(page_pool_n_free(life.space.pool), N_PAGES);
    page_pool_destroy(life.space.pool);
    return is_kept;
}

/* Only what tokens were evicted from in place is out of order. */
TEST(a_full_cache_is_put_in_order_when_its_sequence_ends) {
    const struct {
        uint32_t n_prompt, n_generated, n_orders;
    } lives[] = {{90, 10, 0}, {90, 11, 1}, {90, 300, 1}, {101, 0, 0},
                 {101, 1, 1}, {120, 0, 0}, {120, 1, 1},  {120, 200, 1}};
    for (size_t i = 0; i < sizeof(lives) / sizeof(*lives); i++) {
        assert_true(leave(lives[i].n_prompt, lives[i].n_generated));
        assert_int_equal(device.n_orders, lives[i].n_orders);
    }
}

TEST(what_could_not_be_put_in_order_is_not_kept) {
    device.fails = true;
    assert_false(leave(120, 20));
    assert_int_equal(device.n_orders, 1);
    assert_true(leave(120, 0));
    device.fails = false;
}

enum { N_KEPT = 200 * PAGE_TOKENS, N_PROMPT = N_KEPT + 600, N_NEXT = N_PROMPT + 10 };

/* A space with the state that a prompt of N_PROMPT tokens has left: more pages than one operation
 * copies. */
struct states_rig {
    struct kv_space space;
    uint32_t left[N_LAYERS][200]; /* what the state's pages hold */
};

static uint32_t same_text[N_NEXT];
static const struct kv_choice keeps_much = {
    .mechanism = KV_BOUNDED, .n_recent = N_KEPT, .chunk = 512};

static void start(struct states_rig *rig, struct kv_sequence *kv, uint32_t n_prompt) {
    const struct kv_plan plan = kv_plan_make(&keeps_much, n_prompt, 1);
    const struct kv_wish wish = {.n_tokens = n_prompt, .tokens = same_text, .n_max = n_prompt};
    struct error err = {0};
    assert_int_equal(kv_sequence_init(kv, &rig->space, &plan, 0), 0);
    assert_int_equal(kv_prepare(kv, same_text), 0);
    assert_int_equal(kv_start(kv, &wish, &err), 0);
}

static void step(struct kv_sequence *kv) {
    const uint32_t n = kv_ask(kv, &(struct kv_wish){0}).n_rows;
    struct step_seq seq;
    struct error err = {0};
    kv_view(kv, 0, n, &seq);
    kv_commit(kv, n);
    assert_int_equal(kv_submitted(kv, same_text, NULL, &err), 0);
}

static void check_content(const struct states_rig *rig, const struct page_list *layers) {
    for (uint32_t l = 0; l < N_LAYERS; l++)
        for (uint32_t i = 0; i < 200; i++)
            assert_int_equal(content_of[layers[l].pages[i]], rig->left[l][i]);
}

/* Reads the prompt, and checks the state before its last token. */
static void begin_states(struct states_rig *rig) {
    uint32_t *tokens = calloc(N_PROMPT, sizeof(*tokens));
    struct kv_sequence kv;
    assert_non_null(tokens);
    *rig = (struct states_rig){.space = {.io.be = &fake_backend, .n_layers = N_LAYERS}};
    assert_int_equal(page_pool_create(&rig->space.pool, N_MANY_PAGES, NULL), 0);
    assert_int_equal(prefix_cache_create(&rig->space.cache, &rig->space, NULL), 0);
    assert_int_equal(state_cache_create(&rig->space.states, &rig->space, NULL), 0);
    for (uint32_t i = 0; i < N_MANY_PAGES; i++) content_of[i] = i;
    start(rig, &kv, N_PROMPT);
    for (uint32_t l = 0; l < N_LAYERS; l++)
        for (uint32_t i = 0; i < 200; i++) rig->left[l][i] = content_of[kv.layers[l].pages[i]];
    while (kv.n_tokens < N_PROMPT) step(&kv);
    assert_true(kv.state.coming && kv.state.coming->n_pages > 3 * 200);
    check_content(rig, kv.state.coming->layers);
    kv_mark_valid(&kv, N_PROMPT);
    assert_true(kv_leave_state(&kv, tokens, N_PROMPT));
    kv_sequence_fini(&kv);
    n_copied = 0;
}

static void end_states(struct states_rig *rig) {
    state_cache_destroy(rig->space.states);
    prefix_cache_destroy(rig->space.cache);
    assert_int_equal(page_pool_n_free(rig->space.pool), N_MANY_PAGES);
    page_pool_destroy(rig->space.pool);
}

TEST(states_are_copied_behind_the_next_step) {
    struct states_rig rig;
    struct kv_sequence kv;
    begin_states(&rig);
    start(&rig, &kv, N_NEXT);
    const struct kv_state *borrowed = kv.state.borrowed;
    assert_non_null(borrowed);
    assert_int_equal(kv.n_found, N_PROMPT);
    assert_int_equal(n_copied, 0);
    check_content(&rig, kv.layers);
    step(&kv);
    assert_null(kv.state.borrowed);
    assert_int_equal(n_copied, borrowed->n_pages);
    check_content(&rig, borrowed->layers);
    step(&kv);
    assert_int_equal(n_copied, borrowed->n_pages);
    kv_sequence_fini(&kv);
    end_states(&rig);
}

/* The second sequence finds it, and borrows it in its turn. */
TEST(a_borrowed_state_is_copied_for_others) {
    struct states_rig rig;
    struct kv_sequence one, other;
    begin_states(&rig);
    start(&rig, &one, N_NEXT);
    start(&rig, &other, N_NEXT);
    assert_int_equal(other.n_found, N_PROMPT);
    assert_null(one.state.borrowed);
    assert_non_null(other.state.borrowed);
    check_content(&rig, one.layers);
    check_content(&rig, other.layers);
    kv_sequence_fini(&one);
    kv_sequence_fini(&other);
    end_states(&rig);
}

TEST(a_sequence_that_leaves_early_returns_its_state) {
    struct states_rig rig;
    struct kv_sequence one, other;
    begin_states(&rig);
    start(&rig, &one, N_NEXT);
    kv_sequence_fini(&one);
    start(&rig, &other, N_NEXT);
    assert_int_equal(other.n_found, N_PROMPT);
    check_content(&rig, other.layers);
    kv_sequence_fini(&other);
    end_states(&rig);
}

/* Its pages are wanted before anything was copied to them. */
TEST(a_borrowed_state_may_be_evicted) {
    struct states_rig rig;
    struct kv_sequence kv;
    begin_states(&rig);
    start(&rig, &kv, N_NEXT);
    while (state_cache_n_idle_pages(rig.space.states) > 0)
        state_cache_evict_oldest(rig.space.states, state_cache_demotion(rig.space.states));
    assert_null(kv.state.borrowed);
    assert_int_equal(n_copied, 0);
    check_content(&rig, kv.layers);
    step(&kv);
    kv_sequence_fini(&kv);
    end_states(&rig);
}

/* ---- choices ---- */

static int check_in(bool all_windowed, struct kv_choice choice, uint32_t n_prompt,
                    uint32_t max_tokens) {
    const struct kv_limits limits = {.max_model_len = 500,
                                     .trained_context = CONTEXT,
                                     .all_windowed = all_windowed,
                                     .bounded_caches = true};
    struct error err = {0};
    int code = kv_choice_check(&choice, n_prompt, max_tokens, &limits, &err);
    assert_int_equal(code, err.code);
    assert_true((code != 0) == (err.text[0] != '\0'));
    return code;
}

static int check(struct kv_choice choice, uint32_t n_prompt, uint32_t max_tokens) {
    return check_in(false, choice, n_prompt, max_tokens);
}

/* No layer has the budget, whose size then does not matter; positions in the text still do. */
TEST(windows_in_all_layers_bound_no_budget) {
    struct kv_choice choice = {
        .mechanism = KV_BOUNDED, .n_recent = 2 * CONTEXT, .cache_positions = true};
    assert_int_equal(check_in(false, choice, 10, 5), ERR_INVALID);
    assert_int_equal(check_in(true, choice, 10, 5), 0);
    assert_int_equal(check_in(true, choice, 100 * CONTEXT, UINT32_MAX), 0);
    choice.whole = true;
    assert_int_equal(check_in(true, choice, 100 * CONTEXT, 5), 0);
    choice.cache_positions = false;
    assert_int_equal(check_in(true, choice, CONTEXT - 5, 5), 0);
    assert_int_equal(check_in(true, choice, CONTEXT - 5, 6), ERR_TOO_LONG);
}

TEST(impossible_choices_are_refused) {
    const struct kv_choice good = {.mechanism = KV_BOUNDED,
                                   .n_sink = 4,
                                   .n_recent = 100,
                                   .n_heavy = 100,
                                   .score = KV_SCORE_DECAY,
                                   .decay = 0.99f};
    struct kv_choice bad = good;
    assert_int_equal(check(good, 1000, 5), 0);
    bad.n_recent = 0;
    assert_int_equal(check(bad, 1000, 5), ERR_INVALID);
    bad = good;
    bad.n_heavy = 0;
    assert_int_equal(check(bad, 1000, 5), ERR_INVALID);
    bad = good;
    bad.score = KV_SCORE_NONE;
    assert_int_equal(check(bad, 1000, 5), ERR_INVALID);
    bad.n_heavy = 0; /* as if streaming */
    assert_int_equal(check(bad, 1000, 5), 0);
    bad = good;
    bad.decay = 1;
    assert_int_equal(check(bad, 1000, 5), ERR_INVALID);
    bad = good;
    bad.n_recent = bad.n_heavy = UINT32_MAX;
    assert_int_equal(check(bad, 1000, 5), ERR_INVALID);
}

TEST(positions_in_the_cache_bound_the_budget) {
    struct kv_choice choice = {.mechanism = KV_BOUNDED,
                               .n_recent = CONTEXT - KV_DEFAULT_CHUNK - 1,
                               .cache_positions = true};
    const uint32_t lengths[][2] = {{1000000, 1}, {1, UINT32_MAX}, {CONTEXT - 10, 10}, {1, 1}};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        choice.n_recent = CONTEXT - KV_DEFAULT_CHUNK - 1;
        assert_int_equal(check(choice, lengths[i][0], lengths[i][1]), 0);
        choice.n_recent++; /* however short the text is */
        assert_int_equal(check(choice, lengths[i][0], lengths[i][1]), ERR_INVALID);
    }
}

TEST(positions_in_the_text_bound_the_text) {
    const struct kv_choice full = {.mechanism = KV_WHOLE};
    const struct kv_choice choice = {.mechanism = KV_BOUNDED, .n_recent = 10 * CONTEXT};
    assert_int_equal(check(full, 400, 100), 0);
    assert_int_equal(check(full, 400, 101), ERR_TOO_LONG);
    assert_int_equal(check(choice, CONTEXT - 10, 10), 0);
    assert_int_equal(check(choice, CONTEXT - 10, 11), ERR_TOO_LONG);
    assert_int_equal(check(choice, 1, UINT32_MAX), ERR_TOO_LONG);
}

TEST(max_tokens_does_not_change_positions) {
    const struct kv_choice choice = {.mechanism = KV_BOUNDED, .n_recent = 100};
    struct kv_choice in_cache = choice;
    in_cache.cache_positions = true;
    assert_false(kv_plan_make(&choice, 10, CONTEXT - 10).budget.cache_positions);
    assert_true(kv_plan_make(&in_cache, 10, 1).budget.cache_positions);
    assert_true(kv_plan_make(&in_cache, 10, 10 * CONTEXT).budget.cache_positions);
}

/* Read whole, a prompt has all its slots at once, and a page for each of them. */
TEST(prompts_that_are_read_whole_fit_what_chunks_fit) {
    struct kv_choice choice = {.mechanism = KV_BOUNDED,
                               .n_recent = 100,
                               .whole = true,
                               .chunk = 7,
                               .cache_positions = true};
    assert_int_equal(check(choice, CONTEXT, 1), 0);
    assert_int_equal(check(choice, CONTEXT, UINT32_MAX), 0);
    assert_int_equal(check(choice, CONTEXT + 1, 1), ERR_INVALID);
    choice.n_recent = CONTEXT;
    assert_int_equal(check(choice, 10, UINT32_MAX), ERR_INVALID);
    choice.n_recent--;
    assert_int_equal(check(choice, 10, UINT32_MAX), 0);
    const struct kv_plan plan = kv_plan_make(&choice, 1000, 5);
    assert_int_equal(kv_most(&(struct kv_space){.n_layers = N_LAYERS}, &plan).pages, pages(1000));
}

TEST(pooling_is_of_windows_that_are_kept) {
    const struct kv_choice good = {.mechanism = KV_BOUNDED,
                                   .n_recent = 64,
                                   .n_heavy = 100,
                                   .score = KV_SCORE_WINDOW,
                                   .pooling = KV_POOLING_MAX,
                                   .kernel = 7,
                                   .whole = true};
    struct kv_choice bad = good;
    assert_int_equal(check(good, 1000, 5), 0);
    bad.n_recent = 63;
    assert_int_equal(check(bad, 1000, 5), ERR_INVALID);
    bad.window = 63;
    assert_int_equal(check(bad, 1000, 5), 0);
    bad = good;
    bad.whole = false;
    assert_int_equal(check(bad, 1000, 5), ERR_INVALID);
    bad = good;
    bad.kernel = 6;
    assert_int_equal(check(bad, 1000, 5), ERR_INVALID);
    bad = good;
    bad.score = KV_SCORE_SUM;
    assert_int_equal(check(bad, 1000, 5), ERR_INVALID);
    bad.pooling = KV_POOLING_NONE;
    assert_int_equal(check(bad, 1000, 5), 0);
    bad.window = 1;
    assert_int_equal(check(bad, 1000, 5), ERR_INVALID);
}
