/* test_select.c - the policies whose sparse layers see what is selected, over random lives, and the
 * choices that they are given.
 *
 * Every page and block carries a tag that says which page of which layer's text it holds.  Steps
 * write tags as a device would, and what a step would read is checked.  Results are taken late now
 * and then, and sequences are suspended and computed again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/error.h"
#include "engine/kv/policy.h"
#include "engine/kv/pool.h"

enum { N_LAYERS = 7, N_SPARSE = 3, N_GROUPS = 2, N_PAGES = 400, N_BLOCKS = 40, STATE_SLOTS = 64 };

/* Layers 0, 1, 3 and 4 are dense: 0 and 3 are filters. */
static const struct layer_group groups[N_GROUPS] = {{0, 2, 3}, {3, 5, 7}};
static const uint32_t plane_layers[N_SPARSE] = {2, 5, 6};

static uint32_t page_tags[N_PAGES], block_tags[N_BLOCKS][N_SPARSE];

static uint32_t tag(uint32_t layer, uint32_t page_of_text) {
    return 1 + layer + page_of_text * N_LAYERS;
}

static int store_pages(struct backend *be, const struct store_args *args, struct error *err) {
    (void)be, (void)err;
    for (uint32_t i = 0; i < args->n; i++)
        block_tags[args->blocks[i]][args->plane] = page_tags[args->pages[i]];
    return 0;
}

static const struct backend_ops ops = {.store_pages = store_pages};
static struct backend backend = {.ops = &ops};
static const struct kv_pool memory = {.page_bytes = STATE_SLOTS * sizeof(uint32_t)};
static const struct kv_store store = {.n_blocks = N_BLOCKS, .n_planes = N_SPARSE};

struct life {
    struct kv_space space;
    struct kv_sequence kv;
    struct kv_choice choice;
    uint32_t n_selected, n_tail; /* whole pages, in tokens */
    uint32_t n_prompt, n_most;
    uint32_t n_known;     /* tokens of the text so far */
    uint32_t n_published; /* of them */
    uint32_t n_reserved;
    uint32_t n_left_at;   /* tokens that were stored when sparse layers left; 0: they have not */
};

static uint32_t pages(uint32_t n_tokens) {
    return (n_tokens + PAGE_TOKENS - 1) / PAGE_TOKENS;
}

static void begin(struct life *life, struct kv_choice choice, uint32_t n_prompt,
                  uint32_t max_tokens) {
    *life = (struct life){.space = {.n_layers = N_LAYERS, .be = &backend, .memory = &memory,
                                    .store = &store, .groups = groups, .n_groups = N_GROUPS},
                          .choice = choice,
                          .n_selected = pages(choice.n_selected) * PAGE_TOKENS,
                          .n_tail = pages(choice.n_tail) * PAGE_TOKENS,
                          .n_prompt = n_prompt,
                          .n_known = n_prompt,
                          .n_most = n_prompt + max_tokens};
    assert_int_equal(page_pool_create(&life->space.pool, N_PAGES, NULL), 0);
    assert_int_equal(page_pool_create(&life->space.blocks, N_BLOCKS, NULL), 0);
    const struct kv_plan plan = kv_plan_make(&choice, n_prompt, max_tokens, 1);
    assert_int_equal(kv_sequence_init(&life->kv, &life->space, &plan, 0), 0);
    assert_int_equal(life->kv.policy->prepare(&life->kv, NULL), 0);
}

static uint32_t n_held(const struct life *life) {
    return N_PAGES - page_pool_n_free(life->space.pool);
}

static uint32_t n_blocks_held(const struct life *life) {
    return N_BLOCKS - page_pool_n_free(life->space.blocks);
}

static void end(struct life *life) {
    const struct kv_amount most = life->kv.policy->most(&life->space, &life->kv.plan);
    assert_true(most.pages <= N_PAGES && most.blocks <= N_BLOCKS);
    kv_sequence_fini(&life->kv);
    assert_int_equal(n_held(life), 0);
    assert_int_equal(n_blocks_held(life), 0);
    page_pool_destroy(life->space.pool);
    page_pool_destroy(life->space.blocks);
}

/* By the definition. */
static uint32_t n_candidates(const struct life *life, uint32_t n_tokens) {
    const int64_t n = (int64_t)n_tokens + 1 - life->n_tail;
    return n < 0 ? 0 : (uint32_t)n / PAGE_TOKENS * PAGE_TOKENS;
}

static bool ever_selects(const struct life *life) {
    return n_candidates(life, life->n_most - 1) > life->n_selected;
}

static void check_amounts(const struct life *life) {
    const uint32_t n_text = pages(life->n_reserved), n_chosen = life->n_selected / PAGE_TOKENS,
                   n_state = N_GROUPS * n_chosen;
    uint32_t expected = N_LAYERS * n_text, n_blocks = 0;
    if (ever_selects(life)) {
        expected += n_state;
        if (life->choice.on_device) expected += N_SPARSE * n_chosen;
        else n_blocks = life->n_reserved / PAGE_TOKENS;
    }
    if (life->n_left_at > 0 && life->n_published >= life->n_left_at)
        expected -= N_SPARSE * (n_text - (n_chosen + life->n_tail / PAGE_TOKENS + 1));
    if (life->n_left_at == 0 || life->n_published >= life->n_left_at)
        assert_int_equal(n_held(life), expected);
    assert_int_equal(n_blocks_held(life), n_blocks);
    const struct kv_amount most = life->kv.policy->most(&life->space, &life->kv.plan);
    assert_true(n_held(life) <= most.pages && n_blocks_held(life) <= most.blocks);
}

static void reserve(struct life *life, uint32_t n_tokens) {
    const struct kv_amount missing = life->kv.policy->missing(&life->kv, n_tokens);
    const uint32_t n_before = n_held(life), n_blocks_before = n_blocks_held(life);
    assert_int_equal(life->kv.policy->reserve(&life->kv, n_tokens), 0);
    assert_int_equal(n_held(life) - n_before, missing.pages);
    assert_int_equal(n_blocks_held(life) - n_blocks_before, missing.blocks);
    if (n_tokens > life->n_reserved) life->n_reserved = n_tokens;
    const struct kv_amount none = life->kv.policy->missing(&life->kv, n_tokens);
    assert_int_equal(none.pages + none.blocks, 0);
    check_amounts(life);
}

/* Writes the step's rows of one layer, then checks that what it reads is page `first` of the text
 * and those behind it, from list[at] on. */
static void run_layer(const struct life *life, uint32_t layer, const uint32_t *list, uint32_t at,
                      uint32_t first, uint32_t n_rows) {
    const uint32_t n_before = life->kv.n_tokens, n_pages = pages(n_before + n_rows);
    for (uint32_t p = n_before / PAGE_TOKENS; p < n_pages; p++)
        page_tags[list[at + p - first]] = tag(layer, p);
    for (uint32_t p = first; p < n_pages; p++)
        assert_int_equal(page_tags[list[at + p - first]], tag(layer, p));
}

static void check_store(const struct life *life, const struct kv_select *select) {
    for (uint32_t p = 0; p < select->n_candidates / PAGE_TOKENS; p++)
        for (uint32_t i = 0; i < N_SPARSE; i++) {
            const uint32_t layer = plane_layers[i], expected = tag(layer, p);
            if (life->choice.on_device)
                assert_int_equal(page_tags[select->store_pages[layer][p]], expected);
            else assert_int_equal(block_tags[select->blocks[p]][i], expected);
        }
    assert_true((select->blocks == NULL) == life->choice.on_device);
}

/* Pages that a device writes to when it selects: it must not meet anything else in them. */
static void overwrite(const struct step_seq *seq) {
    const struct kv_select *select = seq->select;
    const uint32_t n_chosen = select->n_selected / PAGE_TOKENS;
    for (uint32_t i = 0; i < N_GROUPS * n_chosen; i++) page_tags[select->state_pages[i]] = 0;
    for (uint32_t i = 0; i < N_SPARSE; i++)
        for (uint32_t p = 0; p < n_chosen; p++)
            page_tags[seq->layers[plane_layers[i]].pages[p]] = 0;
}

static void run_selecting(struct life *life, const struct step_seq *seq, bool fresh) {
    const struct kv_select *select = seq->select;
    const uint32_t n_tokens = life->kv.n_tokens, first = n_candidates(life, n_tokens);
    assert_non_null(select);
    assert_int_equal(select->n_selected, life->n_selected);
    assert_int_equal(select->n_candidates, first);
    assert_int_equal(select->n_sink, life->choice.n_sink);
    assert_int_equal(select->fresh, fresh);
    check_store(life, select);
    overwrite(seq);
    for (uint32_t i = 0; i < N_SPARSE; i++) {
        const struct kv_view *view = &seq->layers[plane_layers[i]];
        assert_int_equal(view->append_slot, life->n_selected + n_tokens - first);
        assert_int_equal(view->n_slots, view->append_slot + 1);
        run_layer(life, plane_layers[i], view->pages, life->n_selected / PAGE_TOKENS,
                  first / PAGE_TOKENS, 1);
    }
    check_store(life, select); /* its own pages did not become others' */
}

static bool is_plane(uint32_t layer) {
    return layer == 2 || layer == 5 || layer == 6;
}

static void step(struct life *life, uint32_t n_rows) {
    const struct kv_policy *policy = life->kv.policy;
    const uint32_t n_tokens = life->kv.n_tokens;
    const bool selects = n_rows == 1 && n_tokens >= life->n_prompt &&
                         n_candidates(life, n_tokens) > life->n_selected;
    const bool fresh = life->kv.selection.select.n_candidates == 0;
    struct step_seq seq;
    policy->view(&life->kv, n_rows, &seq);
    assert_int_equal(seq.select != NULL, selects);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        if (selects && is_plane(l)) continue;
        assert_int_equal(seq.layers[l].append_slot, n_tokens);
        assert_int_equal(seq.layers[l].n_slots, n_tokens + n_rows);
        run_layer(life, l, seq.layers[l].pages, 0, 0, n_rows);
    }
    if (selects) run_selecting(life, &seq, fresh);
    if (selects && !life->choice.on_device) {
        if (life->n_left_at == 0) life->n_left_at = n_tokens;
        assert_int_equal(life->kv.n_offloaded, seq.select->n_candidates - life->n_selected);
    }
    policy->commit(&life->kv, n_rows);
    assert_int_equal(policy->submitted(&life->kv, NULL), 0);
    assert_int_equal(policy->n_resident(&life->kv, life->kv.n_tokens), life->kv.n_tokens);
}

static void publish(struct life *life, uint32_t n_tokens) {
    life->kv.policy->publish(&life->kv, NULL, n_tokens);
    life->n_published = n_tokens;
    check_amounts(life);
}

static void suspend(struct life *life) {
    assert_int_equal(life->kv.policy->suspend(&life->kv, NULL), 0);
    assert_int_equal(n_held(life) + n_blocks_held(life), 0);
    assert_int_equal(life->kv.n_tokens + life->kv.n_offloaded, 0);
    life->n_published = life->n_reserved = life->n_left_at = 0;
    assert_int_equal(life->kv.policy->adopt(&life->kv, NULL, life->n_known), 0);
    reserve(life, life->n_known);
}

/* max_rows: of a step.  late: results come a step late, so a token is drawn before the one before
 * it is known. */
static void live(struct kv_choice choice, uint32_t n_prompt, uint32_t max_tokens, uint32_t max_rows,
                 bool late) {
    struct life life;
    begin(&life, choice, n_prompt, max_tokens);
    reserve(&life, n_prompt);
    while (life.kv.n_tokens < life.n_most) {
        const uint32_t n_before = life.kv.n_tokens, left = life.n_known - n_before,
                       most = life.kv.policy->max_rows(&life.kv);
        uint32_t n_rows = 1 + (uint32_t)rand() % max_rows;
        if (n_rows > left) n_rows = left;
        if (n_rows > most) n_rows = most;
        reserve(&life, n_before + n_rows);
        step(&life, n_rows);
        if (!late) publish(&life, life.kv.n_tokens);
        else if (n_before > 0) publish(&life, n_before);
        life.n_known += life.kv.n_tokens == life.n_known;
        if (rand() % 200 == 0) suspend(&life);
    }
    end(&life);
}

static void lives_are_as_defined(void **state) {
    (void)state;
    srand(5);
    for (int i = 0; i < 400; i++) {
        struct kv_choice choice = {.type = KV_OFFLOAD,
                                   .n_selected = 1 + (uint32_t)rand() % 300,
                                   .n_tail = 1 + (uint32_t)rand() % 200,
                                   .on_device = rand() % 2};
        choice.n_sink = (uint32_t)rand() % (choice.n_selected + 1);
        live(choice, 1 + (uint32_t)rand() % 1000, 1 + (uint32_t)rand() % 500,
             1 + (uint32_t)rand() % 300, rand() % 2);
    }
}

/* All that it may come to need, as where nobody is preempted. */
static void everything_may_be_reserved_at_once(void **state) {
    (void)state;
    struct life life;
    const struct kv_choice choice = {.type = KV_OFFLOAD, .n_selected = 100, .n_tail = 70};
    begin(&life, choice, 300, 200);
    reserve(&life, 500);
    step(&life, 300);
    publish(&life, 300);
    while (life.kv.n_tokens < 500) {
        step(&life, 1);
        publish(&life, life.kv.n_tokens);
    }
    end(&life);
}

static void nothing_is_taken_when_something_is_short(void **state) {
    (void)state;
    struct life life;
    uint32_t taken[N_PAGES];
    struct kv_choice choice = {.type = KV_OFFLOAD, .n_selected = 128, .n_tail = 64};
    for (int i = 0; i < 2; i++) {
        choice.on_device = i;
        begin(&life, choice, 640, 10);
        const struct kv_amount missing = life.kv.policy->missing(&life.kv, 640);
        const uint32_t n = N_PAGES - (uint32_t)missing.pages + 1;
        assert_int_equal(page_pool_take(life.space.pool, taken, n), 0);
        assert_int_equal(life.kv.policy->reserve(&life.kv, 640), ERR_FULL);
        assert_int_equal(n_held(&life), n);
        page_pool_release(life.space.pool, taken, n);
        if (!choice.on_device) {
            assert_int_equal(page_pool_take(life.space.blocks, taken, N_BLOCKS - 9), 0);
            assert_int_equal(life.kv.policy->reserve(&life.kv, 640), ERR_FULL);
            assert_int_equal(n_held(&life), 0);
            page_pool_release(life.space.blocks, taken, N_BLOCKS - 9);
        }
        assert_int_equal(life.kv.policy->reserve(&life.kv, 640), 0);
        end(&life);
    }
}

static int check(struct kv_choice choice, struct kv_limits limits) {
    struct error err = {0};
    const int code = kv_choice_check(&choice, 400, 100, &limits, &err);
    assert_int_equal(code, err.code);
    assert_true((code != 0) == (err.text[0] != '\0'));
    return code;
}

static void impossible_choices_are_refused(void **state) {
    (void)state;
    const struct kv_limits limits = {
        .max_model_len = 500, .selections = true, .max_selected = 256, .has_store = true};
    const struct kv_choice good = {.type = KV_OFFLOAD, .n_sink = 4, .n_selected = 256, .n_tail = 1};
    struct kv_choice bad = good;
    struct kv_limits less = limits;
    assert_int_equal(check(good, limits), 0);
    bad.n_selected = 257;
    assert_int_equal(check(bad, limits), ERR_INVALID);
    bad.n_selected = bad.n_sink = 0;
    assert_int_equal(check(bad, limits), ERR_INVALID);
    bad = good;
    bad.n_sink = 257;
    assert_int_equal(check(bad, limits), ERR_INVALID);
    bad = good;
    bad.n_tail = 0;
    assert_int_equal(check(bad, limits), ERR_INVALID);
    bad.n_tail = UINT32_MAX;
    assert_int_equal(check(bad, limits), ERR_INVALID);
    less.selections = false;
    assert_int_equal(check(good, less), ERR_INVALID);
    less = limits;
    less.has_store = false;
    assert_int_equal(check(good, less), ERR_INVALID);
    bad = good;
    bad.on_device = true;
    assert_int_equal(check(bad, less), 0);
    less = limits;
    less.max_model_len = 499;
    assert_int_equal(check(good, less), ERR_TOO_LONG);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lives_are_as_defined),
        cmocka_unit_test(everything_may_be_reserved_at_once),
        cmocka_unit_test(nothing_is_taken_when_something_is_short),
        cmocka_unit_test(impossible_choices_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
