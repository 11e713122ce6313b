/* selected.c - the kind that keeps everything on the device and lets sparse layers see a part of it
 * while tokens are generated.
 *
 *   layers[l].pages    [ 7 ][ 4 ][ 9 ][ 3 ][ 8 ][ 6 ]    the whole text, as of `full`
 *   held               [ state ][ 2 ][ 5 ]  …            copies of chosen tokens, per host layer
 *   its block table    [ 2 ][ 5 ][ 8 ][ 6 ]              what the layer sees: these, and the tail
 *
 * The tail's pages are the text's own, so that nothing is written twice.
 *
 * A suspended sequence that is not in the host pool is computed again, its generated tokens like a
 * prompt.  The result is close to what was there, not the same.  That is why only the prompt's
 * blocks are shared, which every sequence computes alike.
 *
 * Thread: see kind.h.  Memory: see kv_sequence.h. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/kv/kind.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/selection.h"

/* Returns how many pages the sequence holds beside its lists. */
static uint32_t n_held(const struct kv_space *space, const struct kv_plan *plan) {
    return selection_state_pages(space, plan) + kv_n_sparse(space) * selection_chosen_pages(plan);
}

static uint64_t selected_most(const struct kv_space *space, const struct kv_plan *plan,
                              enum kv_phase phase, uint32_t n_tokens, uint32_t n_layers) {
    return kv_kind_full.most(space, plan, phase, n_tokens, n_layers) + n_held(space, plan);
}

static struct kv_need selected_ask(const struct kv_sequence *kv, uint64_t n_tokens) {
    struct kv_need need = kv_kind_full.ask(kv, n_tokens);
    need.beside.pages = selection_missing(kv);
    return need;
}

static int selected_prepare(struct kv_sequence *kv) {
    struct kv_selection *s = &kv->selection;
    const size_t n_pages = (size_t)kv_n_sparse(kv->space) * selection_seen_pages(&kv->plan);
    s->tables = calloc(n_pages, sizeof(*s->tables));
    s->all_pages = calloc(kv->space->n_layers, sizeof(*s->all_pages));
    if (!s->tables || !s->all_pages) return ERR_NOMEM;
    return selection_prepare(kv, n_held(kv->space, &kv->plan));
}

static void selected_take(struct kv_sequence *kv, uint64_t n_tokens) {
    (void)n_tokens;
    selection_hold(kv);
}

static void view_layer(struct kv_sequence *kv, uint32_t host_layer, uint32_t layer) {
    const struct kv_selection *s = &kv->selection;
    const uint32_t n_chosen = selection_chosen_pages(&kv->plan),
                   n_state = selection_state_pages(kv->space, &kv->plan),
                   first = s->select.n_candidates / PAGE_TOKENS,
                   n_tail = (uint32_t)kv_n_pages(kv->n_tokens + 1) - first;
    uint32_t *table = s->tables + (size_t)host_layer * selection_seen_pages(&kv->plan);
    memcpy(table, s->held.pages + n_state + (size_t)host_layer * n_chosen,
           n_chosen * sizeof(*table));
    memcpy(table + n_chosen, kv->layers[layer].pages + first, n_tail * sizeof(*table));
    selection_view(kv, layer, table);
}

static void selected_describe(struct kv_sequence *kv, uint32_t n_rows, struct step_seq *seq) {
    const struct kv_space *space = kv->space;
    struct kv_selection *s = &kv->selection;
    uint32_t host_layer = 0, l = 0;
    selection_observe(kv, n_rows, seq);
    if (!selection_is_due(kv, n_rows)) return;
    selection_describe(kv, seq);
    for (uint32_t i = 0; i < space->n_layers; i++) s->all_pages[i] = kv->layers[i].pages;
    s->select.pool_pages = s->all_pages;
    for (; (l = kv_next_sparse(space, l)) < space->n_layers; l++) view_layer(kv, host_layer++, l);
}

static const struct kv_kind selected = {
    .sharing = KV_SHARES_PROMPT,
    .grows = true,
    .most = selected_most,
    .ask = selected_ask,
    .prepare = selected_prepare,
    .take = selected_take,
    .describe = selected_describe,
    .add_kept = selection_add_kept,
    .release = selection_drop,
};

/* Layers that keep a budget are described last, sparse ones among them. */
static const struct kv_kinds divided = {
    .of = {[KV_PLAIN] = &kv_kind_full,
           [KV_WINDOWED] = &kv_kind_window,
           [KV_SPARSE] = &selected,
           [KV_BUDGETED] = &kv_kind_bounded},
    .all = {&kv_kind_full, &kv_kind_window, &selected, &kv_kind_bounded}};

const struct kv_kinds kv_kinds_selected = {.of = {[KV_PLAIN] = &kv_kind_full,
                                                  [KV_WINDOWED] = &kv_kind_window,
                                                  [KV_SPARSE] = &selected,
                                                  [KV_BUDGETED] = &kv_kind_full},
                                           .all = {&kv_kind_full, &kv_kind_window, &selected},
                                           .divided = &divided};
