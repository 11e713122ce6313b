/* select.c - the policy that keeps everything on the device and lets sparse layers see a part of it
 * while tokens are generated.
 *
 *   layers[l].pages    [ 7 ][ 4 ][ 9 ][ 3 ][ 8 ][ 6 ]    the whole text, as under `full`
 *   held               [ state ][ 2 ][ 5 ]  …            copies of chosen tokens, per host layer
 *   its window         [ 2 ][ 5 ][ 8 ][ 6 ]              what the layer sees: these, and the tail
 *
 * The tail's pages are the text's own, so that nothing is written twice.  Layers with a window have
 * lists as under `full`, too.  Generated tokens are not inserted into the prefix cache, so these
 * layers keep no page for that.
 *
 * A suspended sequence that is not in the host pool is computed again, its generated tokens like a
 * prompt.  The result is close to what was there, not the same.  That is why only the prompt's
 * blocks are shared, which every sequence computes alike.
 *
 * Thread: engine.  Memory: see policy.h. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/kv/full.h"
#include "engine/kv/lists.h"
#include "engine/kv/selection.h"
#include "engine/kv/swap.h"

static uint32_t window_pages(const struct kv_plan *plan) {
    return selection_chosen_pages(plan) + selection_tail_pages(plan);
}

static uint32_t n_held(const struct kv_space *space, const struct kv_plan *plan) {
    return selection_state_pages(space, plan) + kv_n_sparse(space) * selection_chosen_pages(plan);
}

static struct kv_amount select_most(const struct kv_space *space, const struct kv_plan *plan) {
    return (struct kv_amount){.pages = kv_full_most(space, plan).pages + n_held(space, plan)};
}

static struct kv_amount select_missing(const struct kv_sequence *kv, uint64_t n_tokens) {
    return (struct kv_amount){.pages = kv_full_missing(kv, n_tokens).pages + selection_missing(kv)};
}

static int select_prepare(struct kv_sequence *kv, const uint32_t *prompt) {
    struct kv_selection *s = &kv->selection;
    const size_t n_pages = (size_t)kv_n_sparse(kv->space) * window_pages(&kv->plan);
    s->windows = calloc(n_pages, sizeof(*s->windows));
    s->all_pages = calloc(kv->space->n_layers, sizeof(*s->all_pages));
    if (!s->windows || !s->all_pages) return ERR_NOMEM;
    const int code = selection_prepare(kv, n_held(kv->space, &kv->plan));
    return code ? code : kv_full_prepare(kv, prompt);
}

static int select_reserve(struct kv_sequence *kv, uint32_t n_tokens) {
    const int code = kv_make_free(kv->space, select_missing(kv, n_tokens).pages);
    if (code) return code;
    selection_hold(kv);
    return kv_full_reserve(kv, n_tokens);
}

static void view_plane(struct kv_sequence *kv, uint32_t plane, uint32_t layer) {
    const struct kv_selection *s = &kv->selection;
    const uint32_t n_chosen = selection_chosen_pages(&kv->plan),
                   n_state = selection_state_pages(kv->space, &kv->plan),
                   first = s->select.n_candidates / PAGE_TOKENS,
                   n_tail = (uint32_t)kv_n_pages(kv->n_tokens + 1) - first;
    uint32_t *window = s->windows + (size_t)plane * window_pages(&kv->plan);
    memcpy(window, s->held.pages + n_state + (size_t)plane * n_chosen, n_chosen * sizeof(*window));
    memcpy(window + n_chosen, kv->layers[layer].pages + first, n_tail * sizeof(*window));
    selection_view(kv, layer, window);
}

static void select_view(struct kv_sequence *kv, uint32_t n_rows, struct step_seq *seq) {
    const struct kv_space *space = kv->space;
    struct kv_selection *s = &kv->selection;
    uint32_t plane = 0, l = 0;
    kv_full_view(kv, n_rows, seq);
    if (!selection_is_due(kv, n_rows)) return;
    selection_describe(kv, seq);
    for (uint32_t i = 0; i < space->n_layers; i++) s->all_pages[i] = kv->layers[i].pages;
    s->select.pool_pages = s->all_pages;
    for (; (l = kv_next_sparse(space, l)) < space->n_layers; l++) view_plane(kv, plane++, l);
}

static void select_insert(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_tokens) {
    const uint32_t n_prompt = kv->plan.n_prompt;
    kv_full_insert(kv, tokens, n_tokens < n_prompt ? n_tokens : n_prompt);
}

static void select_on_done(struct kv_sequence *kv, uint32_t n_tokens) {
    kv_full_give_back(kv, n_tokens, kv->plan.n_prompt);
}

static void select_release(struct kv_sequence *kv) {
    selection_drop(kv);
    kv_full_release(kv);
}

static int select_suspend(struct kv_sequence *kv, struct error *err) {
    const int code = kv_swap_out(kv, err);
    selection_drop(kv);
    kv_full_let_go(kv);
    return code;
}

const struct kv_policy_ops kv_policy_select = {
    .name = "select",
    .grows = true,
    .most = select_most,
    .missing = select_missing,
    .prepare = select_prepare,
    .worth_waiting = kv_full_worth_waiting,
    .match = kv_full_match,
    .reserve = select_reserve,
    .max_rows = kv_full_max_rows,
    .view = select_view,
    .commit = kv_full_commit,
    .submitted = kv_full_submitted,
    .insert = select_insert,
    .on_done = select_on_done,
    .n_resident = kv_full_n_resident,
    .suspend = select_suspend,
    .resume = kv_full_resume,
    .release = select_release,
};
