/* selection.c - see selection.h. */
#include "engine/kv/selection.h"

#include <assert.h>

#include "engine/base/sizes.h"
#include "engine/device/pages.h"
#include "engine/device/select.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/lists.h"
#include "engine/kv/page_pool.h"

uint32_t selection_chosen_pages(const struct kv_plan *plan) {
    return plan->n_selected / PAGE_TOKENS;
}

uint32_t selection_tail_pages(const struct kv_plan *plan) {
    return plan->n_tail / PAGE_TOKENS + 1;
}

uint32_t selection_seen_pages(const struct kv_plan *plan) {
    return selection_chosen_pages(plan) + selection_tail_pages(plan);
}

uint32_t selection_state_pages(const struct kv_space *space, const struct kv_plan *plan) {
    const uint32_t n_slots = kv_state_slots(space->memory);
    return space->n_groups * ((plan->n_selected + n_slots - 1) / n_slots);
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

void selection_view(struct kv_sequence *kv, uint32_t layer, const uint32_t *pages) {
    const struct kv_select *select = &kv->selection.select;
    const uint32_t at = select->n_selected + kv->n_tokens - select->n_candidates;
    kv->views[layer] = (struct kv_view){pages, at + 1, at};
}

void selection_drop(struct kv_sequence *kv) {
    kv_list_trim(&kv->selection.held, kv->space, 0);
    kv->selection.select = (struct kv_select){0};
}
