/* bounded.c - the kind that keeps a budget of C tokens; the device decides which, for each KV
 * head.
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
 * Evictions cannot be repeated without computing everything again.  So a suspended sequence's pages
 * are saved (saved.h).  Nothing is shared, because what is kept of a prefix depends on what follows
 * it.
 *
 * Thread: see kind.h.  Memory: none. */
#include <assert.h>

#include "engine/base/sizes.h"
#include "engine/kv/kind.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/lists.h"

/* Returns the slots that generated tokens need.  Sums stay below 2^31: kv_choice_check(). */
static uint32_t generating_slots(const struct kv_plan *plan) {
    return min_u32(plan->n_most, plan->budget.capacity + 1);
}

static uint32_t prompt_slots(const struct kv_plan *plan) {
    return min_u32(plan->n_prompt, plan->budget.capacity + plan->chunk);
}

static uint32_t most_slots(const struct kv_plan *plan) {
    return max_u32(prompt_slots(plan), generating_slots(plan));
}

static uint64_t bounded_most(const struct kv_space *space, const struct kv_plan *plan,
                             enum kv_phase phase, uint32_t n_tokens) {
    (void)space, (void)phase, (void)n_tokens;
    return kv_n_pages(most_slots(plan));
}

/* Returns the pages per layer that the sequence needs from now on. */
static uint32_t bounded_length(const struct kv_sequence *kv, uint64_t n_tokens) {
    (void)n_tokens;
    const struct kv_plan *plan = &kv->plan;
    return (uint32_t)kv_n_pages(kv->prompt_done ? generating_slots(plan) : most_slots(plan));
}

/* Returns where the prompt's chunk that has token number `at` ends. */
static uint32_t chunk_end(const struct kv_plan *plan, uint32_t at) {
    return min_u32(plan->n_prompt, at - at % plan->chunk + plan->chunk);
}

static uint32_t bounded_max_rows(const struct kv_sequence *kv) {
    const struct kv_plan *plan = &kv->plan;
    return kv->n_tokens < plan->n_prompt ? chunk_end(plan, kv->n_tokens) - kv->n_tokens : 1;
}

static uint32_t bounded_n_resident(const struct kv_sequence *kv, uint32_t n_tokens) {
    const struct kv_plan *plan = &kv->plan;
    const uint32_t in_chunk = n_tokens < plan->n_prompt ? n_tokens % plan->chunk : 0;
    return min_u32(n_tokens - in_chunk, plan->budget.capacity) + in_chunk;
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
    assert(n_rows <= bounded_max_rows(kv));
    seq->budget = &plan->budget;
    if (in_prompt) {
        const uint32_t chunk = chunk_end(plan, kv->n_tokens);
        seq->begins_chunk = kv->n_tokens % plan->chunk == 0;
        seq->score_row = score_row(kv, n_rows, chunk);
        seq->compress = end == chunk;
    }
    for (uint32_t l = 0; l < kv->space->n_layers; l++)
        kv->views[l] =
            (struct kv_view){kv->layers[l].pages, before + n_rows, full ? KV_FREE_SLOT : before};
}

static void bounded_done(struct kv_sequence *kv, uint32_t n_tokens) {
    if (kv->prompt_done || n_tokens < kv->plan.n_prompt) return;
    kv->prompt_done = true;
    kv_lists_trim(kv, bounded_length(kv, n_tokens));
}

const struct kv_kind kv_kind_bounded = {
    .sharing = KV_SHARES_NOTHING,
    .is_unique = true,
    .most = bounded_most,
    .length = bounded_length,
    .max_rows = bounded_max_rows,
    .describe = bounded_describe,
    .done = bounded_done,
    .n_resident = bounded_n_resident,
};

const struct kv_kinds kv_kinds_bounded = {
    .of = {&kv_kind_bounded, &kv_kind_bounded, &kv_kind_bounded}, .all = {&kv_kind_bounded}};
