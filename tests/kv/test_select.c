/* test_select.c - the policies whose sparse layers see what is selected, over random lives, and the
 * choices that they are given.
 *
 * Every page and block carries a tag that says which page of which layer's text it holds.  Steps
 * write tags as a device would, and what a step would read is checked.  Results are taken late now
 * and then, and sequences are suspended and swapped, or computed again.  Long prompts go layer by
 * layer, some of them not to their end.  All of that also where some layers have a window. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/device/host_pool.h"
#include "engine/device/layer_group.h"
#include "engine/device/layer_slice.h"
#include "engine/device/pages.h"
#include "engine/device/select.h"
#include "engine/device/sparse.h"
#include "engine/device/step.h"
#include "engine/kv/demand.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/swap.h"
#include "tests/test.h"

enum {
    MAX_LAYERS = 10,
    N_SPARSE = 3,
    N_GROUPS = 2,
    N_PAGES = 500,
    N_BLOCKS = 40,
    MAX_STATE_SLOTS = 256,
    MAX_LONG_ROWS = 800,
    BLOCK_PAGES = 3,
    SCARCE = 0 /* as the size of a pool */,
    WINDOW = 150
};

struct shape {
    uint32_t n_layers, n_windowed, window;
    uint32_t windows[MAX_LAYERS];
    struct layer_group groups[N_GROUPS];
    uint32_t sparse_layers[N_SPARSE];
};

/* Layers 0, 1, 3 and 4 are dense: 0 and 3 are filters. */
static struct shape plain = {
    .n_layers = 7, .groups = {{0, 2, 3}, {3, 5, 7}}, .sparse_layers = {2, 5, 6}};
/* 1 and 4 are filters, and no other layer is dense. */
static struct shape windowed = {.n_layers = 10,
                                .n_windowed = 5,
                                .window = WINDOW,
                                .windows = {WINDOW, 0, WINDOW, 0, 0, WINDOW, WINDOW, 0, WINDOW, 0},
                                .groups = {{1, 3, 4}, {4, 7, 10}},
                                .sparse_layers = {3, 7, 9}};
/* The same where all pages are kept, as where all that it may need is taken at once. */
static struct shape kept = {.n_layers = 10,
                            .windows = {WINDOW, 0, WINDOW, 0, 0, WINDOW, WINDOW, 0, WINDOW, 0},
                            .groups = {{1, 3, 4}, {4, 7, 10}},
                            .sparse_layers = {3, 7, 9}};
static const struct shape *shape; /* of the running test */

static uint32_t page_memory[N_PAGES * MAX_STATE_SLOTS];
static uint32_t state_slots; /* numbers in a page, a multiple of PAGE_TOKENS */
/* Of each block, what it holds as tokens, and as part of pages: writing the one loses the other. */
static uint32_t block_tags[N_BLOCKS][N_SPARSE];
static char host_pool_memory[N_BLOCKS * BLOCK_PAGES * MAX_STATE_SLOTS * sizeof(uint32_t)];

static size_t page_bytes(void) {
    return state_slots * sizeof(uint32_t);
}

static uint32_t *tag_of(uint32_t page) {
    return page_memory + (size_t)page * state_slots;
}

static size_t block_bytes(void) {
    return BLOCK_PAGES * page_bytes();
}

static uint32_t tag(uint32_t layer, uint32_t page_of_text) {
    return 1 + layer + page_of_text * MAX_LAYERS;
}

static int offload_pages(struct backend *be, const struct offload_args *args, struct error *err) {
    (void)be, (void)err;
    for (uint32_t i = 0; i < args->n; i++) {
        block_tags[args->blocks[i]][args->host_layer] = *tag_of(args->pages[i]);
        memset(host_pool_memory + args->blocks[i] * block_bytes(), 0xee, block_bytes());
    }
    return 0;
}

static int copy_pages(struct backend *be, const struct kv_pool *kv, const uint32_t *from,
                      const uint32_t *to, uint32_t n, struct error *err) {
    (void)be, (void)kv, (void)err;
    for (uint32_t i = 0; i < n; i++) *tag_of(to[i]) = *tag_of(from[i]);
    return 0;
}

static int upload(struct backend *be, void *to, const void *host, size_t bytes, struct error *err) {
    (void)be, (void)err;
    memcpy(to, host, bytes);
    return 0;
}

static int download(struct backend *be, void *host, const void *from, size_t bytes,
                    struct error *err) {
    memset(block_tags[(size_t)((char *)host - host_pool_memory) / block_bytes()], 0xee,
           sizeof(*block_tags));
    return upload(be, host, from, bytes, err);
}

static const struct host_pool_ops host_pool = {.offload = offload_pages};
static const struct backend_ops ops = {
    .host_pool = &host_pool, .copy_pages = copy_pages, .upload = upload, .download = download};
static struct backend backend = {.ops = &ops};
static struct kv_pool memory = {.base = page_memory};
static struct host_pool store = {.base = host_pool_memory,
                                 .n_blocks = N_BLOCKS,
                                 .n_host_layers = N_SPARSE,
                                 .format = PAGE_F16,
                                 .n_kv_heads = 1};

struct life {
    struct kv_space space;
    struct kv_swaps swaps;
    struct kv_sequence kv;
    struct kv_choice choice;
    uint32_t n_selected, n_tail; /* whole pages, in tokens */
    uint32_t n_prompt, n_most;
    uint32_t n_known;    /* tokens of the text so far */
    uint32_t n_done;     /* of them */
    uint32_t n_reserved; /* tokens that there are blocks for, */
    uint32_t n_listed;   /* and pages */
    uint32_t n_left_at;  /* tokens that were stored when sparse layers left; 0: they have not */
    uint32_t n_pages;    /* in the pool */
    uint32_t step_rows;
    uint32_t n_expired, n_ahead; /* pages of windows' lists: not there any more; and their length */
    bool late, layer_major, are_gone; /* are_gone: pages that they left */
    bool recomputes_by_row; /* generated tokens come like that when they are computed again */
    bool is_again;          /* or all of the text comes like a prompt */
};

static uint32_t n_swaps[2], n_dropped; /* of those that move tokens, and others */
static uint32_t n_one_by_one, n_like_a_prompt;

static uint32_t pages(uint32_t n_tokens) {
    return (n_tokens + PAGE_TOKENS - 1) / PAGE_TOKENS;
}

/* By the definition. */
static uint32_t n_candidates(const struct life *life, uint32_t n_tokens) {
    const int64_t n = (int64_t)n_tokens + 1 - life->n_tail;
    return n < 0 ? 0 : (uint32_t)n / PAGE_TOKENS * PAGE_TOKENS;
}

static bool has_window(uint32_t layer) {
    return shape->window > 0 && shape->windows[layer] > 0;
}

/* Pages that no row sees behind n_tokens tokens in a layer with a window; the first that one does
 * see is whole. */
static uint32_t n_behind(uint32_t n_tokens) {
    const uint32_t n_kept = shape->window - 1;
    return shape->window > 0 && n_tokens > n_kept ? (n_tokens - n_kept) / PAGE_TOKENS : 0;
}

static uint32_t min(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

static uint32_t max(uint32_t a, uint32_t b) {
    return a < b ? b : a;
}

static bool observes(const struct life *life) {
    return life->choice.selector != KV_SELECTOR_LAST;
}

/* For a text of up to n_most tokens. */
static uint32_t state_pages(const struct life *life, uint32_t n_most) {
    const uint32_t n_runs = n_candidates(life, n_most - 1) / PAGE_TOKENS * KV_OBSERVED,
                   n_in_page = state_slots / PAGE_TOKENS,
                   n_scores = observes(life) ? (n_runs + n_in_page - 1) / n_in_page : 0;
    return N_GROUPS * ((life->n_selected + state_slots - 1) / state_slots + n_scores);
}

/* With n_sparse pages in all sparse layers. */
static uint32_t text_pages(const struct life *life, uint32_t n_tokens, uint32_t n_sparse,
                           uint32_t step_rows) {
    const uint32_t n_text = pages(n_tokens),
                   n_in_window = min(n_text, pages(WINDOW - 1 + step_rows) + 1);
    return (shape->n_layers - shape->n_windowed - N_SPARSE) * n_text + n_sparse +
           shape->n_windowed * n_in_window + state_pages(life, life->n_most);
}

static uint32_t whole_pages(const struct life *life, uint32_t n_tokens) {
    return text_pages(life, n_tokens, N_SPARSE * pages(n_tokens), life->step_rows);
}

/* When sparse layers have left. */
static uint32_t later_pages(const struct life *life) {
    const uint32_t n_window = (life->n_selected + life->n_tail) / PAGE_TOKENS + 1;
    return text_pages(life, life->n_most, N_SPARSE * n_window, 1);
}

/* Slots in the first step that selects, if the prompt does not go layer by layer. */
static uint32_t slots_at_leaving(const struct life *life) {
    uint32_t n_tokens = life->n_prompt;
    while (n_candidates(life, n_tokens) <= life->n_selected) n_tokens++;
    return n_tokens + 1;
}

/* Pages that the sequence needs at most where its prompt goes layer by layer, or does not. */
static uint32_t most_pages(const struct life *life, bool layer_major) {
    if (layer_major) return later_pages(life) + 2 * pages(life->n_prompt - 1);
    if (life->choice.on_device)
        return whole_pages(life, life->n_most) + N_SPARSE * life->n_selected / PAGE_TOKENS;
    return max(whole_pages(life, min(slots_at_leaving(life), life->n_most)), later_pages(life));
}

static bool may_go_by_layers(const struct life *life) {
    return !life->choice.on_device && life->n_prompt <= MAX_LONG_ROWS + 1 &&
           n_candidates(life, life->n_prompt - 1) > life->n_selected;
}

/* Of the prompt alone, and the token behind it. */
static bool goes_by_layers(const struct life *life, uint32_t n_pages) {
    struct life prompt = *life;
    prompt.n_most = life->n_prompt + 1;
    return may_go_by_layers(life) && whole_pages(&prompt, prompt.n_most) > n_pages;
}

static bool ever_selects(const struct life *life) {
    return n_candidates(life, life->n_most - 1) > life->n_selected;
}

/* As few as will do. */
static uint32_t scarce_pages(const struct life *life) {
    const uint32_t few = most_pages(life, true);
    if (life->choice.on_device || !ever_selects(life)) return N_PAGES;
    return goes_by_layers(life, few) ? few : most_pages(life, false);
}

/* Of what has been computed layer by layer windows have passed most when it begins. */
static void begin_windows(struct life *life) {
    life->n_expired = life->n_ahead = life->layer_major ? n_behind(life->n_prompt - 1) : 0;
}

static void begin(struct life *life, struct kv_choice choice, uint32_t n_prompt,
                  uint32_t max_tokens, uint32_t n_pages, uint32_t step_rows, bool invariant) {
    *life = (struct life){.space = {.n_layers = shape->n_layers,
                                    .windows = shape->windows,
                                    .window = shape->window,
                                    .io = {&backend, &memory, &store},
                                    .groups = shape->groups,
                                    .n_groups = N_GROUPS,
                                    .batch_invariant = invariant},
                          .recomputes_by_row = invariant,
                          .step_rows = step_rows,
                          .choice = choice,
                          .n_selected = pages(choice.n_selected) * PAGE_TOKENS,
                          .n_tail = pages(choice.n_tail) * PAGE_TOKENS,
                          .n_prompt = n_prompt,
                          .n_known = n_prompt,
                          .n_most = n_prompt + max_tokens};
    life->space.swaps = &life->swaps;
    life->n_pages = n_pages;
    if (n_pages == SCARCE) life->n_pages = scarce_pages(life);
    assert_true(life->n_pages <= N_PAGES);
    assert_int_equal(page_pool_create(&life->space.pool, life->n_pages, NULL), 0);
    assert_int_equal(page_pool_create(&life->space.blocks, N_BLOCKS, NULL), 0);
    struct kv_plan plan = kv_plan_make(&choice, n_prompt, max_tokens);
    plan.step_rows = step_rows;
    kv_plan_by_layers(&plan, &life->space, MAX_LONG_ROWS, false);
    life->layer_major = goes_by_layers(life, life->n_pages);
    assert_int_equal(plan.layer_major, life->layer_major);
    begin_windows(life);
    assert_int_equal(kv_sequence_init(&life->kv, &life->space, &plan, 0), 0);
    assert_int_equal(kv_prepare(&life->kv, NULL), 0);
}

static uint32_t n_held(const struct life *life) {
    return life->n_pages - page_pool_n_free(life->space.pool);
}

static uint32_t n_blocks_held(const struct life *life) {
    return N_BLOCKS - page_pool_n_free(life->space.blocks);
}

static void end(struct life *life) {
    const struct kv_amount most = kv_most(&life->space, &life->kv.plan);
    assert_true(most.pages <= life->n_pages && most.blocks <= N_BLOCKS);
    kv_sequence_fini(&life->kv);
    assert_int_equal(n_held(life), 0);
    assert_int_equal(n_blocks_held(life), 0);
    page_pool_destroy(life->space.pool);
    page_pool_destroy(life->space.blocks);
}

/* Pages beside the lists: turns of a prompt that goes layer by layer, or what is taken ahead. */
static uint32_t scratch_pages(const struct life *life) {
    if (life->layer_major) return life->n_done == 0 ? 2 * pages(life->n_prompt - 1) : 0;
    if (!life->space.batch_invariant || life->n_left_at > 0 || life->choice.on_device) return 0;
    return most_pages(life, false) - whole_pages(life, slots_at_leaving(life));
}

static void check_amounts(const struct life *life) {
    const uint32_t n_text = pages(life->n_listed), n_chosen = life->n_selected / PAGE_TOKENS;
    uint32_t expected = (shape->n_layers - shape->n_windowed) * n_text +
                        shape->n_windowed * (life->n_ahead - life->n_expired),
             n_blocks = 0;
    if (ever_selects(life)) {
        expected += state_pages(life, life->n_most) + scratch_pages(life);
        if (life->choice.on_device) expected += N_SPARSE * n_chosen;
        else n_blocks = life->n_reserved / PAGE_TOKENS;
    }
    if (life->are_gone || life->layer_major)
        expected -= N_SPARSE * (n_text - (n_chosen + life->n_tail / PAGE_TOKENS + 1));
    if (life->n_left_at == 0 || life->are_gone || life->layer_major)
        assert_int_equal(n_held(life), expected);
    assert_int_equal(n_blocks_held(life), n_blocks);
    const struct kv_amount most = kv_most(&life->space, &life->kv.plan);
    /* What a step in flight sees stays until it has landed. */
    const uint32_t n_seen = life->late ? shape->n_windowed * pages(life->step_rows) : 0;
    assert_true(n_held(life) <= most.pages + n_seen || life->is_again);
    assert_true(n_blocks_held(life) <= most.blocks);
}

/* Of so many, the tokens that there must be pages for. */
static uint32_t n_listed(const struct life *life, uint32_t n_tokens) {
    const bool left_text = life->layer_major || life->n_left_at > 0;
    if (left_text || !life->recomputes_by_row) return n_tokens;
    return min(n_tokens, max(slots_at_leaving(life), life->kv.n_tokens + 1));
}

static void reserve(struct life *life, uint32_t n_tokens) {
    const struct kv_amount missing = kv_missing(&life->kv, n_tokens);
    const uint32_t n_computed = max(life->kv.n_tokens, life->layer_major ? life->n_prompt - 1 : 0),
                   step_rows = life->layer_major || life->n_left_at > 0 ? 1 : life->step_rows;
    const uint32_t n_before = n_held(life), n_blocks_before = n_blocks_held(life);
    assert_int_equal(kv_reserve(&life->kv, n_tokens), 0);
    assert_int_equal(n_held(life) - n_before, missing.pages);
    assert_int_equal(n_blocks_held(life) - n_blocks_before, missing.blocks);
    const uint32_t n_pages = n_listed(life, n_tokens);
    life->n_reserved = max(life->n_reserved, n_tokens);
    life->n_listed = max(life->n_listed, n_pages);
    life->n_ahead =
        max(life->n_ahead, pages(min(n_pages, max(n_computed, shape->window) + step_rows)));
    const struct kv_amount none = kv_missing(&life->kv, n_tokens);
    assert_int_equal(none.pages + none.blocks, 0);
    check_amounts(life);
}

/* Writes the step's rows of one layer, then checks that what it reads is page `first` of the text
 * and those behind it, from list[at] on.  Where a window has passed there is its first page. */
static void run_layer(const struct life *life, uint32_t layer, const uint32_t *list, uint32_t at,
                      uint32_t first, uint32_t n_rows) {
    const uint32_t n_before = life->kv.n_tokens, n_pages = pages(n_before + n_rows);
    for (uint32_t p = n_before / PAGE_TOKENS; p < n_pages; p++)
        *tag_of(list[at + p - first]) = tag(layer, p);
    if (has_window(layer)) first = life->n_expired;
    if (has_window(layer) && first > 0) assert_int_equal(list[first - 1], list[first]);
    for (uint32_t p = first; p < n_pages; p++)
        assert_int_equal(*tag_of(list[has_window(layer) ? p : at + p - first]), tag(layer, p));
}

static void check_store(const struct life *life, const struct kv_select *select) {
    for (uint32_t p = 0; p < select->n_candidates / PAGE_TOKENS; p++)
        for (uint32_t i = 0; i < N_SPARSE; i++) {
            const uint32_t layer = shape->sparse_layers[i], expected = tag(layer, p);
            if (life->choice.on_device)
                assert_int_equal(*tag_of(select->pool_pages[layer][p]), expected);
            else assert_int_equal(block_tags[select->blocks[p]][i], expected);
        }
    assert_true((select->blocks == NULL) == life->choice.on_device);
}

/* Pages that a device writes to when it selects: it must not meet anything else in them. */
static void overwrite(const struct step_seq *seq) {
    const struct kv_select *select = seq->select;
    const uint32_t n_chosen = select->n_selected / PAGE_TOKENS;
    const uint32_t n_state = (select->n_selected + state_slots - 1) / state_slots;
    for (uint32_t i = 0; i < N_GROUPS * n_state; i++) *tag_of(select->state_pages[i]) = 0;
    for (uint32_t i = 0; i < N_SPARSE; i++)
        for (uint32_t p = 0; p < n_chosen; p++)
            *tag_of(seq->layers[shape->sparse_layers[i]].pages[p]) = 0;
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
        const struct kv_view *view = &seq->layers[shape->sparse_layers[i]];
        assert_int_equal(view->append_slot, life->n_selected + n_tokens - first);
        assert_int_equal(view->n_slots, view->append_slot + 1);
        run_layer(life, shape->sparse_layers[i], view->pages, life->n_selected / PAGE_TOKENS,
                  first / PAGE_TOKENS, 1);
    }
    check_store(life, select); /* its own pages did not become others' */
}

static bool is_sparse(uint32_t layer) {
    for (uint32_t i = 0; i < N_SPARSE; i++)
        if (layer == shape->sparse_layers[i]) return true;
    return false;
}

/* The place of what the query at `position` gave the tokens of a page. */
static uint32_t *run_of(const struct kv_observation *o, uint32_t g, uint32_t page,
                        uint32_t position) {
    const uint32_t run = page * KV_OBSERVED + position % KV_OBSERVED,
                   n_in_page = state_slots / PAGE_TOKENS;
    assert_true(run / n_in_page < o->n_pages);
    return tag_of(o->pages[g * o->n_pages + run / n_in_page]) + run % n_in_page * PAGE_TOKENS;
}

static uint32_t score_tag(uint32_t g, uint32_t page, uint32_t position) {
    return 1u << 31 | g << 30 | page << 20 | position;
}

/* Keeps the scores of rows [begin, end), as a device would. */
static void keep_scores(const struct life *life, const struct step_seq *seq, uint32_t begin,
                        uint32_t end) {
    const struct kv_observation *o = seq->observed;
    assert_int_equal(o != NULL, ever_selects(life) && observes(life));
    if (!o) return;
    assert_true(o->n_scored <= begin + 1 || o->first > begin);
    for (uint32_t at = max(begin, o->first); at < end; at++)
        for (uint32_t page = 0; page < o->n_scored / PAGE_TOKENS; page++)
            for (uint32_t g = 0; g < N_GROUPS; g++)
                *run_of(o, g, page, at) = score_tag(g, page, at);
}

/* All that the newest query's selection looks back at is there, by the definition. */
static void look_back(const struct life *life, const struct kv_observation *o) {
    for (uint32_t age = 0; o && age < KV_OBSERVED; age++)
        for (uint32_t page = 0; page < n_candidates(life, life->kv.n_tokens) / PAGE_TOKENS; page++)
            for (uint32_t g = 0; g < N_GROUPS; g++)
                assert_int_equal(*run_of(o, g, page, life->kv.n_tokens - age),
                                 score_tag(g, page, life->kv.n_tokens - age));
}

/* A slice leaves the layer before and enters its own. */
static void run_slice(struct life *life, const struct layer_slice *slice) {
    const uint32_t end = slice->first_row + slice->n_rows, layer = slice->layer;
    struct step_seq seq;
    kv_view(&life->kv, 0, end, &seq);
    assert_true(!seq.select && seq.layers[layer].n_slots == end);
    for (uint32_t p = 0; p < pages(end); p++) {
        if (layer > 0) assert_int_equal(*tag_of(seq.layers[layer - 1].pages[p]), tag(layer - 1, p));
        if (p >= slice->first_row / PAGE_TOKENS)
            *tag_of(seq.layers[layer].pages[p]) = tag(layer, p);
    }
    if (layer > 0) keep_scores(life, &seq, slice->first_row, end);
    if (layer + 1 == shape->n_layers && end == slice->n_prompt_rows) kv_commit(&life->kv, end);
    assert_int_equal(kv_submitted(&life->kv, NULL, slice, NULL), 0);
}

/* All of the prompt but its last token, or so many slices of it.  True: it is done. */
static bool run_slices(struct life *life, uint32_t n_slices) {
    struct layer_slice slice = {.n_prompt_rows = life->n_prompt - 1};
    for (uint32_t i = 0; i < n_slices && slice.layer < shape->n_layers; i++) {
        slice.n_rows = (1 + (uint32_t)rand() % 3) * SPARSE_TILE;
        if (slice.n_rows > slice.n_prompt_rows - slice.first_row)
            slice.n_rows = slice.n_prompt_rows - slice.first_row;
        const uint32_t end = slice.first_row + slice.n_rows;
        const bool is_last = end == slice.n_prompt_rows;
        run_slice(life, &slice);
        slice.first_row = is_last ? 0 : end;
        slice.layer += is_last;
    }
    return slice.layer == shape->n_layers;
}

static void step(struct life *life, uint32_t n_rows) {
    const uint32_t n_tokens = life->kv.n_tokens;
    const bool selects = n_rows == 1 && n_tokens >= life->n_prompt - life->layer_major &&
                         n_candidates(life, n_tokens) > life->n_selected;
    const bool fresh = life->kv.selection.select.n_candidates == 0;
    struct step_seq seq;
    kv_view(&life->kv, 0, n_rows, &seq);
    assert_int_equal(seq.select != NULL, selects);
    for (uint32_t l = 0; l < shape->n_layers; l++) {
        if (selects && is_sparse(l)) continue;
        assert_int_equal(seq.layers[l].append_slot, n_tokens);
        assert_int_equal(seq.layers[l].n_slots, n_tokens + n_rows);
        run_layer(life, l, seq.layers[l].pages, 0, 0, n_rows);
    }
    keep_scores(life, &seq, n_tokens, n_tokens + n_rows);
    if (selects) look_back(life, seq.observed);
    if (selects) run_selecting(life, &seq, fresh);
    if (selects && !life->choice.on_device) {
        if (life->n_left_at == 0) life->n_left_at = n_tokens;
        assert_int_equal(life->kv.selection.n_offloaded,
                         seq.select->n_candidates - life->n_selected);
    }
    kv_commit(&life->kv, n_rows);
    assert_int_equal(kv_submitted(&life->kv, NULL, NULL, NULL), 0);
    assert_int_equal(kv_ask(&life->kv, &(struct kv_wish){0}).n_resident, life->kv.n_tokens);
}

/* So many tokens are stored, and known to be valid, or not. */
static void complete(struct life *life, uint32_t n_tokens, bool is_valid) {
    if (is_valid) kv_insert(&life->kv, NULL, n_tokens);
    kv_done(&life->kv, n_tokens);
    life->n_expired = max(life->n_expired, n_behind(n_tokens));
    life->n_done = n_tokens;
    life->are_gone = life->n_left_at > 0;
    if (life->are_gone && life->space.batch_invariant) life->n_listed = life->n_most;
    check_amounts(life);
}

/* Blocks that what is there takes in the store, beside those that it has there already; 0: it does
 * not go there. */
static uint32_t swap_blocks(const struct life *life) {
    const struct kv_sequence *kv = &life->kv;
    const bool moves = !life->choice.on_device;
    const uint32_t n_text = pages(kv->n_tokens),
                   n_window = (life->n_selected + life->n_tail) / PAGE_TOKENS + 1,
                   n_sparse =
                       moves && (life->layer_major || life->n_left_at > 0) ? n_window : n_text,
                   n_state = kv->selection.select.n_candidates || kv->plan.selector
                                 ? kv->selection.held.n
                                 : 0,
                   n_pages = (shape->n_layers - shape->n_windowed - N_SPARSE) * n_text +
                             shape->n_windowed * (n_text - life->n_expired) + N_SPARSE * n_sparse +
                             n_state,
                   n_blocks = (n_pages + BLOCK_PAGES - 1) / BLOCK_PAGES;
    return kv->n_tokens == 0 || n_blocks > N_BLOCKS - n_blocks_held(life) ? 0 : n_blocks;
}

/* All that the pages need, and no more, whatever was reused. */
static void reserve_again(struct life *life) {
    const struct kv_amount missing = kv_missing(&life->kv, life->n_known);
    const uint32_t n_before = n_blocks_held(life), n_reusable = life->kv.swap.blocks.n;
    assert_int_equal(kv_reserve(&life->kv, life->n_known), 0);
    assert_int_equal(n_held(life), missing.pages);
    assert_int_equal(n_blocks_held(life) - n_before, missing.blocks);
    if (n_reusable > 1) assert_int_equal(missing.blocks, 0);
}

/* Pages get lost meanwhile, and what is in the store now and then.  What was chosen is there, too,
 * and tokens are looked for by the steps that follow. */
static void suspend(struct life *life) {
    uint32_t n_blocks = swap_blocks(life), n_tokens = n_blocks ? life->kv.n_tokens : 0,
             n_selected_of = n_blocks ? life->kv.selection.select.n_candidates : 0;
    if (n_blocks > 0) n_blocks += life->kv.selection.blocks.n;
    if (ever_selects(life) && !life->choice.on_device &&
        whole_pages(life, life->kv.n_tokens + 2) > life->n_pages)
        life->recomputes_by_row = true;
    assert_int_equal(kv_suspend(&life->kv, NULL), 0);
    assert_int_equal(n_held(life), 0);
    assert_int_equal(n_blocks_held(life), n_blocks);
    assert_int_equal(kv_n_available_blocks(&life->space), N_BLOCKS);
    assert_int_equal(life->kv.n_tokens + life->kv.selection.n_offloaded, 0);
    memset(page_memory, 0xee, sizeof(page_memory));
    if (n_blocks > 0 && rand() % 8 == 0) {
        assert_int_equal(kv_make_blocks(&life->space, N_BLOCKS - n_blocks + 1), 0);
        n_blocks = n_tokens = n_selected_of = 0;
        assert_int_equal(n_blocks_held(life), 0);
        n_dropped++;
    }
    life->n_done = life->n_reserved = life->n_listed = 0;
    if (n_blocks == 0) life->is_again = !life->recomputes_by_row && life->n_known > life->n_prompt;
    n_one_by_one += n_blocks == 0 && life->recomputes_by_row && !life->layer_major;
    n_like_a_prompt += life->is_again;
    if (n_blocks == 0) life->n_left_at = 0;
    if (n_blocks == 0) begin_windows(life);
    else life->n_ahead = life->n_expired;
    if (rand() % 2) { /* it tries to start, in vain */
        assert_int_equal(kv_match(&life->kv, NULL, life->n_known), n_tokens);
        assert_int_equal(kv_n_available_blocks(&life->space), N_BLOCKS - n_blocks);
        assert_int_equal(kv_suspend(&life->kv, NULL), 0);
        assert_int_equal(n_blocks_held(life), n_blocks);
        assert_int_equal(kv_n_available_blocks(&life->space), N_BLOCKS);
    }
    assert_int_equal(kv_match(&life->kv, NULL, life->n_known), n_tokens);
    reserve_again(life);
    assert_int_equal(kv_resume(&life->kv, NULL), 0);
    assert_int_equal(life->kv.n_tokens, n_tokens);
    assert_int_equal(life->kv.selection.select.n_candidates, n_selected_of);
    life->n_done = n_tokens;
    life->are_gone = life->n_left_at > 0;
    reserve(life, life->n_known);
    n_swaps[life->choice.on_device] += n_blocks > 0;
}

/* max_rows: of a step.  late: results come a step late, so a token is drawn before the one before
 * it is known. */
static void live(struct kv_choice choice, uint32_t n_prompt, uint32_t max_tokens, uint32_t max_rows,
                 bool late, bool scarce) {
    struct life life;
    begin(&life, choice, n_prompt, max_tokens, scarce ? SCARCE : N_PAGES, max_rows, false);
    life.late = late;
    reserve(&life, n_prompt);
    assert_int_equal(kv_resume(&life.kv, NULL), 0);
    while (life.kv.n_tokens < life.n_most) {
        if (life.layer_major && life.kv.n_tokens == 0 &&
            !run_slices(&life, rand() % 2 ? UINT32_MAX : (uint32_t)rand() % 30)) {
            suspend(&life);
            continue;
        }
        const uint32_t n_before = life.kv.n_tokens, left = life.n_known - n_before,
                       most = kv_ask(&life.kv, &(struct kv_wish){0}).n_rows;
        uint32_t n_rows = 1 + (uint32_t)rand() % max_rows;
        if (n_rows > left) n_rows = left;
        if (n_rows > most) n_rows = most;
        /* What the step in flight sees may be what is short. */
        if (kv_missing(&life.kv, n_before + n_rows).pages > page_pool_n_free(life.space.pool))
            complete(&life, n_before, true);
        reserve(&life, n_before + n_rows);
        step(&life, n_rows);
        /* Only a row that draws shows that all is valid. */
        const bool draws = life.kv.n_tokens == life.n_known || rand() % 2;
        if (!late || n_before > 0) complete(&life, late ? n_before : life.kv.n_tokens, draws);
        life.n_known += life.kv.n_tokens == life.n_known && life.n_known < life.n_most;
        if (rand() % (draws || n_rows == 1 ? 200 : 20) > 0) continue;
        complete(&life, life.kv.n_tokens, true); /* nothing is in flight then */
        suspend(&life);
    }
    end(&life);
}

/* Sets the sizes of pages and blocks. */
static void set_sizes(uint32_t n_slots) {
    state_slots = n_slots;
    memory.page_bytes = page_bytes();
    store.head_dim = (uint32_t)(block_bytes() / (N_SPARSE * PAGE_TOKENS * 2 * sizeof(uint16_t)));
}

static int set_small_sizes(void **state) {
    set_sizes(64);
    return 0;
}

static void random_lives(uint32_t n_slots, unsigned seed) {
    set_sizes(n_slots);
    srand(seed);
    for (int i = 0; i < 400; i++) {
        struct kv_choice choice = {.mechanism = KV_SELECTING,
                                   .n_selected = 1 + (uint32_t)rand() % 300,
                                   .n_tail = 1 + (uint32_t)rand() % 200,
                                   .on_device = rand() % 2};
        choice.n_sink = (uint32_t)rand() % (choice.n_selected + 1);
        live(choice, 1 + (uint32_t)rand() % 1000, 1 + (uint32_t)rand() % 500,
             1 + (uint32_t)rand() % 300, rand() % 2, rand() % 2);
    }
}

/* With pages of several sizes. */
static void lives_are_as_defined(void **state) {
    shape = *state;
    n_swaps[0] = n_swaps[1] = n_dropped = n_one_by_one = n_like_a_prompt = 0;
    for (unsigned seed = 3; seed < 6; seed++) random_lives(64 * (1 + seed % 4), seed);
    set_small_sizes(NULL);
    assert_true(n_swaps[0] > 100 && n_swaps[1] > 100 && n_dropped > 20);
    assert_true(n_one_by_one > 50 && n_like_a_prompt > 50);
}

/* What the last queries scored is there whenever a selection looks back at it: behind prompts in
 * chunks and in slices, and for sequences that come back or are computed again. */
static void the_last_queries_scores_are_kept(void **state) {
    shape = *state;
    n_swaps[0] = n_swaps[1] = n_dropped = n_one_by_one = n_like_a_prompt = 0;
    set_sizes(MAX_STATE_SLOTS);
    srand(6);
    for (int i = 0; i < 400; i++) {
        const struct kv_choice choice = {.mechanism = KV_SELECTING,
                                         .n_selected = 1 + (uint32_t)rand() % 100,
                                         .n_tail = 1 + (uint32_t)rand() % 100,
                                         .on_device = rand() % 2,
                                         .selector = KV_SELECTOR_UNIFORM + (uint32_t)rand() % 2};
        live(choice, 1 + (uint32_t)rand() % 350, 1 + (uint32_t)rand() % 150,
             1 + (uint32_t)rand() % (rand() % 2 ? 20 : 300), rand() % 2, rand() % 2);
    }
    assert_true(n_swaps[0] > 40 && n_swaps[1] > 40 && n_like_a_prompt > 20);
    set_small_sizes(NULL);
}

/* All that it may come to need, as where nothing is preempted: nothing is taken later. */
static void reserve_all(uint32_t n_prompt, uint32_t max_tokens, uint32_t n_pages) {
    struct life life;
    const struct kv_choice choice = {.mechanism = KV_SELECTING, .n_selected = 100, .n_tail = 70};
    const uint32_t n_most = n_prompt + max_tokens;
    begin(&life, choice, n_prompt, max_tokens, n_pages, n_prompt, true);
    reserve(&life, n_most);
    const uint32_t n_pages_held = n_held(&life), n_blocks = n_blocks_held(&life);
    if (life.layer_major) assert_true(run_slices(&life, UINT32_MAX));
    else step(&life, n_prompt);
    complete(&life, life.kv.n_tokens, true);
    while (life.kv.n_tokens < n_most) {
        reserve(&life, life.kv.n_tokens + 1);
        assert_true(n_held(&life) <= n_pages_held && n_blocks_held(&life) == n_blocks);
        step(&life, 1);
        complete(&life, life.kv.n_tokens, true);
    }
    end(&life);
}

/* Layer by layer; with more pages before sparse layers leave than behind that, and the other way
 * round; and where they leave long after the prompt. */
static void everything_may_be_reserved_at_once(void **state) {
    shape = *state;
    reserve_all(700, 200, SCARCE);
    reserve_all(600, 100, N_PAGES);
    reserve_all(600, 100, SCARCE);
    reserve_all(300, 900, SCARCE);
    reserve_all(30, 900, SCARCE);
}

/* Whether a prompt goes layer by layer, in pools of every size. */
static void an_answers_length_does_not_matter(void **state) {
    shape = *state;
    const struct kv_choice choice = {.mechanism = KV_SELECTING, .n_selected = 64, .n_tail = 64};
    const uint32_t lengths[] = {0, 1, 40, 400, 4000};
    uint32_t n_by_layers = 0;
    for (uint32_t n_pages = 1; n_pages <= N_PAGES; n_pages++) {
        struct life life;
        begin(&life, choice, 640, lengths[0], n_pages, 100, false);
        for (int i = 1; i < 5; i++) {
            struct kv_plan plan = kv_plan_make(&choice, 640, lengths[i]);
            plan.step_rows = 100;
            kv_plan_by_layers(&plan, &life.space, MAX_LONG_ROWS, false);
            assert_int_equal(plan.layer_major, life.layer_major);
        }
        n_by_layers += life.layer_major;
        kv_sequence_fini(&life.kv);
        page_pool_destroy(life.space.pool);
        page_pool_destroy(life.space.blocks);
    }
    assert_true(n_by_layers > 50 && n_by_layers < N_PAGES - 50);
}

static void nothing_is_taken_when_something_is_short(void **state) {
    shape = *state;
    struct life life;
    uint32_t taken[N_PAGES];
    struct kv_choice choice = {.mechanism = KV_SELECTING, .n_selected = 128, .n_tail = 64};
    for (int i = 0; i < 3; i++) {
        choice.on_device = i == 1;
        begin(&life, choice, 640, 10, i == 2 ? SCARCE : N_PAGES, 100, false);
        assert_int_equal(life.layer_major, i == 2);
        const struct kv_amount missing = kv_missing(&life.kv, 640);
        const uint32_t n = life.n_pages - (uint32_t)missing.pages + 1;
        assert_int_equal(page_pool_take(life.space.pool, taken, n), 0);
        assert_int_equal(kv_reserve(&life.kv, 640), ERR_FULL);
        assert_int_equal(n_held(&life), n);
        page_pool_release(life.space.pool, taken, n);
        if (!choice.on_device) {
            assert_int_equal(page_pool_take(life.space.blocks, taken, N_BLOCKS - 9), 0);
            assert_int_equal(kv_reserve(&life.kv, 640), ERR_FULL);
            assert_int_equal(n_held(&life), 0);
            page_pool_release(life.space.blocks, taken, N_BLOCKS - 9);
        }
        assert_int_equal(kv_reserve(&life.kv, 640), 0);
        end(&life);
    }
}

/* Two wait; the first goes on, and wants all blocks of the store: its own, and the other one's. */
static void a_resumed_sequence_takes_the_blocks_of_others(void **state) {
    shape = *state;
    struct life first, second;
    const struct kv_choice choice = {.mechanism = KV_SELECTING, .n_selected = 64, .n_tail = 64};
    const uint32_t n_all = N_BLOCKS * PAGE_TOKENS, n_waits = 300 / PAGE_TOKENS + 12;
    begin(&first, choice, 300, n_all - 300, N_PAGES, 300, false);
    second = first;
    assert_int_equal(kv_sequence_init(&second.kv, &first.space, &first.kv.plan, 0), 0);
    assert_int_equal(kv_prepare(&second.kv, NULL), 0);
    for (struct life *life = &first; life; life = life == &first ? &second : NULL) {
        assert_int_equal(kv_reserve(&life->kv, 300), 0);
        step(life, 300);
        assert_int_equal(kv_suspend(&life->kv, NULL), 0);
    }
    assert_int_equal(n_blocks_held(&first), 2 * n_waits);
    memset(page_memory, 0xee, sizeof(page_memory));
    assert_int_equal(kv_match(&first.kv, NULL, n_all - 1), 300);
    assert_int_equal(kv_missing(&first.kv, n_all).blocks, N_BLOCKS - n_waits);
    assert_int_equal(kv_reserve(&first.kv, n_all + PAGE_TOKENS), ERR_FULL);
    assert_int_equal(kv_reserve(&first.kv, n_all), 0);
    assert_int_equal(kv_resume(&first.kv, NULL), 0);
    assert_int_equal(second.kv.swap.n_tokens, 0);
    assert_int_equal(n_blocks_held(&first), N_BLOCKS);
    step(&first, 1); /* reads all pages */
    kv_sequence_fini(&second.kv);
    end(&first);
}

static int check(struct kv_choice choice, struct kv_limits limits) {
    struct error err = {0};
    const int code = kv_choice_check(&choice, 400, 100, &limits, &err);
    assert_int_equal(code, err.code);
    assert_true((code != 0) == (err.text[0] != '\0'));
    return code;
}

static void impossible_choices_are_refused(void **state) {
    const struct kv_limits limits = {
        .max_model_len = 500, .selections = true, .max_selected = 256, .has_host_pool = true};
    const struct kv_choice good = {
        .mechanism = KV_SELECTING, .n_sink = 4, .n_selected = 256, .n_tail = 1};
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
    less.has_host_pool = false;
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
        cmocka_unit_test_prestate(lives_are_as_defined, &plain),
        cmocka_unit_test_prestate(lives_are_as_defined, &windowed),
        cmocka_unit_test_prestate(the_last_queries_scores_are_kept, &plain),
        cmocka_unit_test_prestate(the_last_queries_scores_are_kept, &windowed),
        cmocka_unit_test_prestate(everything_may_be_reserved_at_once, &plain),
        cmocka_unit_test_prestate(everything_may_be_reserved_at_once, &kept),
        cmocka_unit_test_prestate(an_answers_length_does_not_matter, &plain),
        cmocka_unit_test_prestate(an_answers_length_does_not_matter, &windowed),
        cmocka_unit_test_prestate(nothing_is_taken_when_something_is_short, &plain),
        cmocka_unit_test_prestate(nothing_is_taken_when_something_is_short, &windowed),
        cmocka_unit_test_prestate(a_resumed_sequence_takes_the_blocks_of_others, &plain),
        cmocka_unit_test(impossible_choices_are_refused),
    };
    return cmocka_run_group_tests(tests, set_small_sizes, NULL);
}
