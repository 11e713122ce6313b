/* bounded.c - the policy that keeps a budget of C tokens; the device decides which, for each KV
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
 * are kept, byte by byte, in the system's memory.
 *
 * Thread: engine.  Memory: lists as policy.h says; suspend() allocates, resume() and release()
 * free. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/kv/lists.h"
#include "engine/kv/policy.h"

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

static struct kv_amount bounded_most(const struct kv_space *space, const struct kv_plan *plan) {
    return (struct kv_amount){.pages = kv_n_pages(most_slots(plan)) * space->n_layers};
}

/* Returns the pages per layer that the sequence needs from now on. */
static uint32_t pages_due(const struct kv_sequence *kv) {
    const struct kv_plan *plan = &kv->plan;
    return (uint32_t)kv_n_pages(kv->prompt_done ? generating_slots(plan) : most_slots(plan));
}

static struct kv_amount bounded_missing(const struct kv_sequence *kv, uint64_t n_tokens) {
    (void)n_tokens;
    const uint64_t n_pages = pages_due(kv) - kv->layers[0].n;
    return (struct kv_amount){.pages = n_pages * kv->space->n_layers};
}

static int bounded_prepare(struct kv_sequence *kv, const uint32_t *prompt) {
    (void)prompt;
    return kv_lists_grow(kv, pages_due(kv));
}

static bool bounded_worth_waiting(const struct kv_sequence *kv, const struct kv_sequence *other) {
    (void)kv, (void)other;
    return false;
}

static uint32_t bounded_match(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_max) {
    (void)tokens, (void)n_max;
    return kv->n_tokens; /* what a suspended sequence has stored */
}

static int bounded_reserve(struct kv_sequence *kv, uint32_t n_tokens) {
    (void)n_tokens;
    return kv_lists_take(kv, kv_lengths_all(pages_due(kv)));
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

static void bounded_view(struct kv_sequence *kv, uint32_t n_rows, struct step_seq *seq) {
    const struct kv_plan *plan = &kv->plan;
    const bool in_prompt = kv->n_tokens < plan->n_prompt;
    const uint32_t before = bounded_n_resident(kv, kv->n_tokens), end = kv->n_tokens + n_rows;
    const bool full = !in_prompt && before == plan->budget.capacity;
    assert(n_rows <= bounded_max_rows(kv));
    assert(kv_n_pages(before + n_rows) <= kv->layers[0].n);
    *seq = (struct step_seq){
        .n_rows = n_rows, .layers = kv->views, .budget = &plan->budget, .n_before = kv->n_tokens};
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

static void bounded_commit(struct kv_sequence *kv, uint32_t n_rows) {
    kv->n_tokens += n_rows;
}

static int bounded_submitted(struct kv_sequence *kv, const struct layer_slice *slice,
                             struct error *err) {
    (void)kv, (void)slice, (void)err;
    return 0;
}

static void bounded_on_done(struct kv_sequence *kv, uint32_t n_tokens) {
    (void)kv, (void)n_tokens;
}

static void bounded_insert(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_tokens) {
    (void)tokens;
    if (kv->prompt_done || n_tokens < kv->plan.n_prompt) return;
    kv->prompt_done = true;
    kv_lists_trim(kv, pages_due(kv));
}

static void forget_suspended(struct kv_sequence *kv) {
    free(kv->suspended);
    kv->suspended = NULL;
}

/* Moves the sequence's pages to or from kv->suspended. */
static int copy_pages(struct kv_sequence *kv, bool back, struct error *err) {
    struct backend *be = kv->space->be;
    const size_t page_bytes = kv->space->memory->page_bytes;
    char *host = kv->suspended, *base = kv->space->memory->base;
    int code = 0;
    for (uint32_t l = 0; l < kv->space->n_layers && !code; l++)
        for (uint32_t i = 0; i < kv->layers[l].n && !code; i++, host += page_bytes) {
            char *page = base + kv->layers[l].pages[i] * page_bytes;
            code = back ? be->ops->upload(be, page, host, page_bytes, err)
                        : be->ops->download(be, host, page, page_bytes, err);
        }
    return code || back ? code : be->ops->sync(be, err);
}

/* Saves the pages in the system's memory, unless the sequence waits already or has computed
 * nothing. */
static int bounded_suspend(struct kv_sequence *kv, struct error *err) {
    const size_t n_pages = (size_t)kv->layers[0].n * kv->space->n_layers;
    int code = 0;
    if (n_pages > 0 && kv->n_tokens > 0 && !kv->suspended) {
        const size_t bytes = n_pages * kv->space->memory->page_bytes;
        kv->suspended = malloc(bytes);
        if (!kv->suspended)
            return error_set(err, ERR_NOMEM,
                             "no memory to keep the request's KV cache (%zu bytes) while it waits",
                             bytes);
        code = copy_pages(kv, false, err);
    }
    kv_lists_trim(kv, 0);
    return code;
}

static int bounded_resume(struct kv_sequence *kv, struct error *err) {
    if (!kv->suspended) return 0;
    int code = copy_pages(kv, true, err);
    forget_suspended(kv);
    return code;
}

static void bounded_release(struct kv_sequence *kv) {
    kv_lists_trim(kv, 0);
    forget_suspended(kv);
    kv->n_tokens = 0;
    kv->prompt_done = false;
}

const struct kv_policy_ops kv_policy_bounded = {
    .name = "bounded",
    .grows = false,
    .most = bounded_most,
    .missing = bounded_missing,
    .prepare = bounded_prepare,
    .worth_waiting = bounded_worth_waiting,
    .match = bounded_match,
    .reserve = bounded_reserve,
    .max_rows = bounded_max_rows,
    .view = bounded_view,
    .commit = bounded_commit,
    .submitted = bounded_submitted,
    .insert = bounded_insert,
    .on_done = bounded_on_done,
    .n_resident = bounded_n_resident,
    .suspend = bounded_suspend,
    .resume = bounded_resume,
    .release = bounded_release,
};
