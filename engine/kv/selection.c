/* selection.c - see selection.h. */
#include "engine/kv/selection.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/base/sizes.h"
#include "engine/device/pages.h"
#include "engine/device/select.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/page_pool.h"
#include "engine/request/kept.h"

void selection_fini(struct kv_sequence *kv) {
    struct kv_selection *s = &kv->selection;
    free(s->held.pages);
    free(s->tables);
    free(s->all_pages);
    free(s->blocks.pages);
    free(s->scratch.pages);
}

bool selection_left_text(const struct kv_sequence *kv) {
    return kv->selection.left_text;
}

uint64_t selection_n_listed(const struct kv_sequence *kv, uint64_t n_tokens) {
    if (kv->selection.left_text || !kv->selection.recomputes_by_row) return n_tokens;
    return min_u64(n_tokens, max_u32(kv_plan_n_read(&kv->plan), kv->n_tokens + 1));
}

uint32_t selection_n_pages(const struct kv_sequence *kv) {
    return kv->selection.held.n + kv->selection.scratch.n;
}

uint32_t selection_n_offloaded(const struct kv_sequence *kv) {
    return kv->selection.n_offloaded;
}

const struct page_list *selection_held(const struct kv_sequence *kv) {
    return &kv->selection.held;
}

struct page_list *selection_token_blocks(struct kv_sequence *kv) {
    return &kv->selection.blocks;
}

uint32_t selection_token_block(const struct kv_sequence *kv, uint32_t i) {
    assert(i < kv->selection.n_written);
    return kv->selection.blocks.pages[i];
}

void selection_suspend(struct kv_sequence *kv) {
    kv->selection.suspended = kv->selection.select;
}

/* Counts the pages if something was chosen, or if queries have left scores there. */
uint32_t selection_n_filled(const struct kv_sequence *kv) {
    const struct kv_selection *s = &kv->selection;
    const bool filled = s->suspended.n_candidates > 0 || kv->plan.selector != KV_SELECTOR_LAST;
    return filled ? s->held.n : 0;
}

void selection_resume(struct kv_sequence *kv) {
    kv->selection.select = kv->selection.suspended;
}

void selection_give_back(struct kv_sequence *kv) {
    kv_list_trim(&kv->selection.held, kv->space->pool, 0);
}

uint32_t selection_chosen_pages(const struct kv_plan *plan) {
    return plan->n_selected / PAGE_TOKENS;
}

uint32_t selection_tail_pages(const struct kv_plan *plan) {
    return plan->n_tail / PAGE_TOKENS + 1;
}

uint32_t selection_seen_pages(const struct kv_plan *plan) {
    return selection_chosen_pages(plan) + selection_tail_pages(plan);
}

/* Returns the pages of one group's tokens in slots. */
static uint32_t slot_pages(const struct kv_space *space, const struct kv_plan *plan) {
    return (uint32_t)div_up(plan->n_selected, kv_state_slots(space->io.memory));
}

/* Returns the pages of one group's token scores, for as many candidates as there will ever be. */
static uint32_t score_pages(const struct kv_space *space, const struct kv_plan *plan) {
    if (plan->selector == KV_SELECTOR_LAST) return 0;
    const uint64_t n_pages = kv_plan_candidates(plan, plan->n_most - 1) / PAGE_TOKENS;
    return (uint32_t)div_up(n_pages * kv_observed_runs(plan->selector),
                            kv_score_runs(space->io.memory));
}

uint32_t selection_state_pages(const struct kv_space *space, const struct kv_plan *plan) {
    return space->n_groups * (slot_pages(space, plan) + score_pages(space, plan));
}

int selection_prepare(struct kv_sequence *kv, uint32_t n_held) {
    return kv_list_grow(&kv->selection.held, n_held);
}

uint32_t selection_missing(const struct kv_sequence *kv) {
    return kv->selection.held.capacity - kv->selection.held.n;
}

void selection_hold(struct kv_sequence *kv) {
    struct page_list *held = &kv->selection.held;
    if (held->n == held->capacity) return;
    assert(held->n == 0);
    page_pool_take_sure(kv->space->pool, held->pages, held->capacity);
    held->n = held->capacity;
}

bool selection_is_due(const struct kv_sequence *kv, uint32_t n_rows) {
    return n_rows == 1 && kv->n_tokens >= kv_plan_together(&kv->plan) &&
           kv_plan_candidates(&kv->plan, kv->n_tokens) > kv->plan.n_selected;
}

void selection_describe(struct kv_sequence *kv, struct step_seq *seq) {
    struct kv_select *select = &kv->selection.select;
    select->fresh = select->n_candidates == 0;
    select->n_selected = kv->plan.n_selected;
    select->n_candidates = kv_plan_candidates(&kv->plan, kv->n_tokens);
    select->n_sink = kv->plan.n_sink;
    select->state_pages = kv->selection.held.pages;
    seq->select = select;
}

/* Returns how many tokens get scores in a step whose last row is before token `end`. */
static uint32_t n_scored(const struct kv_plan *plan, uint32_t end) {
    const uint32_t n_ever = kv_plan_candidates(plan, plan->n_most - 1);
    if (plan->selector == KV_SELECTOR_ACCUMULATED)
        return min_u32(end / PAGE_TOKENS * PAGE_TOKENS, n_ever);
    return min_u32(kv_plan_candidates(plan, end + KV_OBSERVED - 2), n_ever);
}

/* Describes each step's own last rows, because any later step may be the one that selects: text
 * that is computed again ends with generated tokens.  Leaves out rows long before the prompt's
 * end.  All rows count where scores are accumulated. */
void selection_observe(struct kv_sequence *kv, uint32_t n_rows, struct step_seq *seq) {
    const struct kv_plan *plan = &kv->plan;
    const uint32_t end = kv->n_tokens + n_rows, last = max_u32(end, plan->n_prompt);
    struct kv_observation *observed = &kv->selection.observed;
    if (plan->selector == KV_SELECTOR_LAST) return;
    observed->selector = plan->selector;
    observed->first = last - min_u32(last, kv_plan_n_observed(plan));
    observed->n_scored = n_scored(plan, end);
    observed->pages = kv->selection.held.pages + kv->space->n_groups * slot_pages(kv->space, plan);
    observed->n_pages = score_pages(kv->space, plan);
    seq->observed = observed;
}

void selection_view(struct kv_sequence *kv, uint32_t layer, const uint32_t *pages) {
    const struct kv_select *select = &kv->selection.select;
    const uint32_t at = select->n_selected + kv->n_tokens - select->n_candidates;
    kv->views[layer] = (struct kv_view){pages, at + 1, at};
}

/* Notes the tokens that a page of the state names: those of n slots. */
static int add_chosen(const struct kv_space *space, uint32_t page, uint32_t n, struct kv_kept *kept,
                      struct error *err) {
    const uint32_t n_heads = page_io_n_kv_heads(&space->io);
    uint32_t tokens[PAGE_TOKENS];
    int code = 0;
    for (uint32_t at = 0; at < n && !code; at += PAGE_TOKENS) { /* n is a multiple of it */
        code = page_io_read_words(&space->io, page, at, PAGE_TOKENS, tokens, err);
        for (uint32_t i = 0; i < PAGE_TOKENS && !code; i++)
            kv_kept_add(kept, tokens[i], tokens[i] + 1, n_heads);
    }
    return code;
}

/* Returns the group that has the sparse layer. */
static uint32_t group_of(const struct kv_space *space, uint32_t layer) {
    uint32_t g = 0;
    while (!group_has(&space->groups[g], space->windows, layer)) g++;
    return g;
}

int selection_add_kept(const struct kv_sequence *kv, uint32_t layer, uint32_t n_tokens,
                       struct kv_kept *kept, struct error *err) {
    const struct kv_space *space = kv->space;
    const struct kv_select *select = &kv->selection.select;
    const uint32_t n_pages = slot_pages(space, &kv->plan), each = kv_state_slots(space->io.memory);
    int code = 0;
    kv_kept_add(kept, select->n_candidates, n_tokens, page_io_n_kv_heads(&space->io));
    if (select->n_candidates == 0) return 0;
    const uint32_t *pages = select->state_pages + (size_t)group_of(space, layer) * n_pages;
    for (uint32_t p = 0; p < n_pages && !code; p++)
        code = add_chosen(space, pages[p], min_u32(each, select->n_selected - p * each), kept, err);
    return code;
}

void selection_drop(struct kv_sequence *kv) {
    selection_give_back(kv);
    kv->selection.select = (struct kv_select){0};
}
