/* bounded.c - the kind that keeps a budget of C tokens; the device decides which, for each KV head.
 *
 *   slots in use   prompt, chunks of Q                    generated tokens
 *   C + Q               ╱│    ╱│  ╱│
 *                      ╱ │   ╱ │ ╱ │ pages for C + Q      pages for C + 1
 *   C         ╱│      ╱  │  ╱  │╱  └──────────────────────────────────────
 *            ╱ └─ …  ╱   └─╱
 *
 * A chunk of the prompt, or all of it (Q = the prompt), is computed behind what is kept of the text
 * before it.  At its end it is reduced to C tokens.  After the prompt, slots are appended until
 * there are C + 1.  From then on one of them is free between steps, a different one for each KV
 * head.  So the pages that the sequence ever needs are known when it starts.  It takes them then,
 * gives back what only the prompt needed, and never waits for more.
 *
 * A prompt that is layer-major is one chunk, and each layer is reduced as soon as all rows have
 * left it.  Until then the layer has its own pages and, behind them, one of two buffers: a slice
 * leaves one layer and enters the next, so two are needed at a time.  Nothing is copied between
 * them, because what a layer keeps ends in its first pages.
 *
 *   layers 0, 2, 4, …   [ own ][ 0 ][ 1 ][ 2 ][ 3 ]      own: pages for C + 1
 *   layers 1, 3, 5, …   [ own ][ 4 ][ 5 ][ 6 ][ 7 ]
 *
 * A layer with a window has own pages for the prompt's end, and the buffer before them, in the
 * place of pages that have expired.
 *
 *   a window              [ 0 ][ 1 ][ 2 ][ own ]
 *
 * A sequence that is suspended before its last slice has nothing to continue from, and begins anew.
 *
 * Evictions cannot be repeated without computing everything again.  So a suspended sequence's pages
 * are saved (saved.h).  No pages are shared, because what is kept of a prefix depends on what
 * follows it.  But a sequence may go on from the state of another (state_cache.h).  After generated
 * tokens that begins a turn: the next chunk begins there.  It finds the tokens in the order of the
 * text, because the device has closed the free slots when the other sequence ended.
 *
 * Thread: see kind.h.  Memory: none. */
#include <assert.h>
#include <string.h>

#include "engine/base/sizes.h"
#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "engine/kv/kind.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/lists.h"
#include "engine/kv/page_pool.h"
#include "engine/request/kept.h"

/* Tells whether the layer keeps the budget: all layers do, or those of plan.budgeted. */
static bool is_own(const struct kv_sequence *kv, uint32_t layer) {
    const struct kv_plan *plan = &kv->plan;
    return plan->kinds->of[kv_role_of(kv->space, plan, layer)] == &kv_kind_bounded;
}

/* Returns the slots that generated tokens need.  Sums stay below 2^31: kv_choice_check(). */
static uint32_t generating_slots(const struct kv_plan *plan) {
    return min_u32(plan->n_most, plan->budget.capacity + 1);
}

/* Returns how many of the text's first `turn` tokens are kept. */
static uint32_t kept_before(const struct kv_plan *plan, uint32_t turn) {
    return min_u32(turn, plan->budget.capacity);
}

/* Returns the slots in a layer's own pages that the rest of the prompt needs behind `turn`
 * tokens. */
static uint32_t prompt_slots(const struct kv_plan *plan, uint32_t turn) {
    if (plan->layer_major) return 0;
    return min_u32(kept_before(plan, turn) + plan->n_prompt - turn,
                   plan->budget.capacity + plan->chunk);
}

static uint32_t most_slots(const struct kv_plan *plan, uint32_t turn) {
    return max_u32(prompt_slots(plan, turn), generating_slots(plan));
}

static uint64_t bounded_most(const struct kv_space *space, const struct kv_plan *plan,
                             enum kv_phase phase, uint32_t n_tokens, uint32_t n_layers) {
    (void)space, (void)phase, (void)n_tokens;
    return n_layers * kv_n_pages(most_slots(plan, 0));
}

/* Returns the pages per layer that the sequence needs from now on. */
static uint32_t own_length(const struct kv_sequence *kv) {
    const struct kv_plan *plan = &kv->plan;
    return (uint32_t)kv_n_pages(kv->prompt_done ? generating_slots(plan)
                                                : most_slots(plan, kv->turn));
}

/* Returns how many tokens of its chunk come before token number `at` of the prompt; 0 behind it. */
static uint32_t in_chunk(const struct kv_plan *plan, uint32_t turn, uint32_t at) {
    return at < plan->n_prompt ? (at - turn) % plan->chunk : 0;
}

static uint32_t missing_buffers(const struct kv_sequence *kv) {
    const bool has_any = kv->prompt_done || kv->buffers.n > 0;
    return has_any ? 0 : KV_N_BUFFERS * kv->plan.n_buffer_pages;
}

static int bounded_prepare(struct kv_sequence *kv) {
    return kv_list_grow(&kv->buffers, KV_N_BUFFERS * kv->plan.n_buffer_pages);
}

/* Returns which pages of a layer's block table are its buffer's, until the prompt has been
 * computed. */
static struct kv_range buffered(const struct kv_sequence *kv, uint32_t layer, uint32_t n_own) {
    const uint32_t n_pages = (uint32_t)kv_n_pages(kv->plan.n_prompt);
    if (is_own(kv, layer)) return (struct kv_range){n_own, n_pages - min_u32(n_own, n_pages)};
    return (struct kv_range){0, kv_list_is_windowed(kv, layer) ? kv->n_expired : 0};
}

/* Takes the buffers, and puts them into the layers' block tables where these have no pages of their
 * own.  They do not count as the lists'. */
static void bounded_take(struct kv_sequence *kv, uint64_t n_tokens) {
    (void)n_tokens;
    const uint32_t n_missing = missing_buffers(kv), n = kv->plan.n_buffer_pages,
                   n_own = own_length(kv);
    if (n_missing == 0) return;
    page_pool_take_sure(kv->space->pool, kv->buffers.pages, n_missing);
    kv->buffers.n = n_missing;
    for (uint32_t l = 0; l < kv->space->n_layers; l++) {
        const struct kv_range range = buffered(kv, l, n_own);
        assert(range.n <= n && range.first + range.n <= kv->layers[l].capacity);
        memcpy(kv->layers[l].pages + range.first,
               kv->buffers.pages + (size_t)(l % KV_N_BUFFERS) * n, range.n * sizeof(uint32_t));
    }
}

static void release_buffers(struct kv_sequence *kv) {
    kv_list_trim(&kv->buffers, kv->space->pool, 0);
}

/* Returns where the prompt's chunk that has token number `at` ends. */
static uint32_t chunk_end(const struct kv_plan *plan, uint32_t turn, uint32_t at) {
    return min_u32(plan->n_prompt, at - in_chunk(plan, turn, at) + plan->chunk);
}

/* Returns how many rows the next step may have: no step crosses the end of a chunk. */
static uint32_t max_rows(const struct kv_sequence *kv) {
    const struct kv_plan *plan = &kv->plan;
    if (kv->n_tokens >= plan->n_prompt) return 1;
    return chunk_end(plan, kv->turn, kv->n_tokens) - kv->n_tokens;
}

static struct kv_need bounded_ask(const struct kv_sequence *kv, uint64_t n_tokens) {
    (void)n_tokens;
    return (struct kv_need){.n_rows = max_rows(kv),
                            .n_listed = own_length(kv),
                            .beside = {.pages = missing_buffers(kv)}};
}

static uint32_t bounded_n_resident(const struct kv_sequence *kv, uint32_t n_tokens) {
    const struct kv_plan *plan = &kv->plan;
    const uint32_t n_new = in_chunk(plan, kv->turn, n_tokens);
    return min_u32(n_tokens - n_new, plan->budget.capacity) + n_new;
}

/* Returns the first of the step's rows that count for scores. */
static uint32_t score_row(const struct kv_sequence *kv, uint32_t n_rows, uint32_t end) {
    const uint32_t window = kv->plan.budget.window;
    if (window == 0 || end - kv->n_tokens <= window) return 0;
    return min_u32(end - window - kv->n_tokens, n_rows);
}

static void bounded_describe(struct kv_sequence *kv, uint32_t n_rows, struct step_seq *seq) {
    const struct kv_plan *plan = &kv->plan;
    const bool in_prompt = kv->n_tokens < plan->n_prompt;
    const uint32_t before = bounded_n_resident(kv, kv->n_tokens), end = kv->n_tokens + n_rows;
    const bool full = !in_prompt && before == plan->budget.capacity;
    assert(n_rows <= max_rows(kv));
    seq->budget = &plan->budget;
    if (!layer_set_is_empty(&plan->budgeted)) seq->budgeted = &plan->budgeted;
    if (in_prompt) {
        const uint32_t chunk = chunk_end(plan, kv->turn, kv->n_tokens);
        seq->begins_chunk = in_chunk(plan, kv->turn, kv->n_tokens) == 0;
        seq->score_row = score_row(kv, n_rows, chunk);
        seq->compress = end == chunk;
    }
    for (uint32_t l = 0; l < kv->space->n_layers; l++) {
        if (!is_own(kv, l)) continue;
        kv->views[l] =
            (struct kv_view){kv->layers[l].pages, before + n_rows, full ? KV_FREE_SLOT : before};
    }
}

static void bounded_done(struct kv_sequence *kv, uint32_t n_tokens) {
    if (kv->prompt_done || n_tokens < kv->plan.n_prompt) return;
    kv->prompt_done = true;
    const bool had_buffers = kv->buffers.n > 0;
    release_buffers(kv);
    if (had_buffers) kv_lists_cover(kv);
    for (uint32_t l = 0; l < kv->space->n_layers; l++)
        if (is_own(kv, l)) kv_list_trim(&kv->layers[l], kv->space->pool, own_length(kv));
}

/* Tells whether one slot of each KV head is free: from then on tokens are evicted in place. */
static bool is_full(const struct kv_sequence *kv, uint32_t n_tokens) {
    return n_tokens >= kv->plan.n_prompt && n_tokens > kv->plan.budget.capacity;
}

/* Returns how many slots are in use between two steps, the free one among them. */
static uint32_t n_slots_in_use(const struct kv_sequence *kv, uint32_t n_tokens) {
    return is_full(kv, n_tokens) ? kv->plan.budget.capacity + 1 : bounded_n_resident(kv, n_tokens);
}

static struct kv_range bounded_state_pages(const struct kv_sequence *kv, uint32_t n_tokens) {
    return (struct kv_range){0, (uint32_t)kv_n_pages(n_slots_in_use(kv, n_tokens))};
}

/* Tells whether a row only adds a slot until the step's end: it does without scores. */
static bool bounded_cuts_states(const struct kv_sequence *kv) {
    return !kv_has_scores(&kv->plan.budget);
}

/* Closes the free slots.  Nothing has been evicted in place if no token was generated. */
static int bounded_finish(struct kv_sequence *kv, struct error *err) {
    const struct kv_space *space = kv->space;
    const uint32_t capacity = kv->plan.budget.capacity;
    uint32_t n = 0;
    if (!is_full(kv, kv->n_tokens) || kv->n_tokens == kv->plan.n_prompt) return 0;
    for (uint32_t l = 0; l < space->n_layers; l++)
        if (is_own(kv, l))
            kv->views[n++] = (struct kv_view){kv->layers[l].pages, capacity + 1, capacity};
    return page_io_order(&space->io, kv->views, n, err);
}

/* Notes the positions of a page's slots, of which the first is number `first`. */
static void add_slots(const struct kv_page_state *state, uint32_t first, uint32_t n_slots,
                      uint32_t free_slot, struct kv_kept *kept) {
    for (uint32_t i = 0; i < PAGE_TOKENS && first + i < n_slots; i++)
        if (first + i != free_slot)
            kv_kept_add(kept, state->position[i], state->position[i] + 1, 1);
}

static int add_head(const struct kv_sequence *kv, uint32_t layer, uint32_t kv_head,
                    struct kv_kept *kept, struct error *err) {
    const struct kv_space *space = kv->space;
    const uint32_t n_slots = n_slots_in_use(kv, kv->n_tokens);
    uint32_t free_slot = KV_FREE_SLOT; /* none */
    int code = 0;
    for (uint32_t p = 0; p < kv_n_pages(n_slots) && !code; p++) {
        struct kv_page_state state;
        code = page_io_read_state(&space->io, kv->layers[layer].pages[p], kv_head, &state, err);
        if (code) break;
        if (p == 0 && is_full(kv, kv->n_tokens)) free_slot = state.free_slot;
        add_slots(&state, p * PAGE_TOKENS, n_slots, free_slot, kept);
    }
    return code;
}

static int bounded_add_kept(const struct kv_sequence *kv, uint32_t layer, uint32_t n_tokens,
                            struct kv_kept *kept, struct error *err) {
    assert(n_tokens == kv->n_tokens);
    (void)n_tokens;
    int code = 0;
    for (uint32_t h = 0; h < page_io_n_kv_heads(&kv->space->io) && !code; h++)
        code = add_head(kv, layer, h, kept, err);
    return code;
}

/* Returns where the chunk ends, or 0 at the beginning of one.  Where only a chunk's last rows count
 * for scores, those that have counted so far depend on its end. */
static uint32_t bounded_state_phase(const struct kv_sequence *kv, uint32_t turn,
                                    uint32_t n_tokens) {
    const struct kv_plan *plan = &kv->plan;
    if (plan->budget.window == 0 || in_chunk(plan, turn, n_tokens) == 0) return 0;
    return chunk_end(plan, turn, n_tokens);
}

static const struct kv_state_ops bounded_states = {
    .pages = bounded_state_pages,
    .cuts = bounded_cuts_states,
    .finish = bounded_finish,
    .phase = bounded_state_phase,
};

const struct kv_kind kv_kind_bounded = {
    .sharing = KV_SHARES_STATES,
    .states = &bounded_states,
    .is_unique = true,
    .most = bounded_most,
    .ask = bounded_ask,
    .prepare = bounded_prepare,
    .take = bounded_take,
    .describe = bounded_describe,
    .done = bounded_done,
    .n_resident = bounded_n_resident,
    .add_kept = bounded_add_kept,
    .release = release_buffers,
};

const struct kv_kinds kv_kinds_bounded = {
    .of = {&kv_kind_bounded, &kv_kind_bounded, &kv_kind_bounded, &kv_kind_bounded},
    .all = {&kv_kind_bounded},
    .divided = &kv_kinds_divided};
