/* offload.c - the policy that keeps everything, what sparse layers have not selected in the store.
 *
 * The prompt is computed with all of its pages; whole ones are copied to the store as soon as the
 * step, or slice of a layer, that fills them has been submitted.  With the first step that selects,
 * sparse layers leave: pages whose tokens are in the store already become those of the chosen ones,
 * the tail's pages move up behind them, one more is kept for the tail to grow into, and the others
 * go once no step in flight reads them.
 *
 *   before   [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ][ 5 ]    pages of the text; the tail is 4 and 5
 *   after    [ c ][ c ][ 4 ][ 5 ][ . ]          so many from now on
 *   later    [ c ][ c ][ 5 ][ 6 ][ . ]          when the tail moves on, its first page is its next
 *
 * A sequence that is suspended has the tokens in its blocks already; its pages, as they are, go
 * beside them (swap.h).  Without room for those, or if somebody who runs takes either, it is
 * computed again, its generated tokens like a prompt, and needs pages for all of its text while
 * that goes on.
 *
 * A prompt that does not fit so (kv_plan_by_layers) goes layer by layer, dense or not: its sparse
 * layers have left from the start, and take turns with two lists of pages for the prompt.  A slice
 * leaves one layer and enters the next, so two are needed at a time.  What a slice writes is copied
 * to the store as soon as it has been submitted, and when the last one has entered a layer, the
 * tail to the layer's own pages.
 *
 *   scratch   [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ][ 5 ]    of planes 0, 2, 4, …
 *             [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ][ 5 ]    of planes 1, 3, 5, …
 *   a layer   [   ][   ][ 4 ][ 5 ][ . ]         its own, as above
 *
 * The prompt's last token, and generated ones of a sequence that is computed again, then come one
 * by one and select: the others are not there any more.  One that is suspended before its last
 * slice has nothing that could go on (sequence.h), and begins anew.
 *
 * Blocks are let go with the sequence, with its pages.  A copy between them may still be under way
 * then, and another owner write to the page: what the block gets is of no use to anybody.  Copies
 * keep the order of their submission, so the block's next owner writes and reads later.
 *
 * Thread: engine.  Memory: see policy.h. */
#include <assert.h>

#include "engine/error.h"
#include "engine/kv/full.h"
#include "engine/kv/lists.h"
#include "engine/kv/pool.h"
#include "engine/kv/selection.h"
#include "engine/kv/swap.h"
#include "engine/model/long_slice.h"
#include "engine/sizes.h"

enum { N_TURNS = 2 };

static uint32_t window_pages(const struct kv_plan *plan) {
    return selection_chosen_pages(plan) + selection_tail_pages(plan);
}

/* Of one turn: all rows of the prompt that go layer by layer. */
static uint32_t turn_pages(const struct kv_plan *plan) {
    return (uint32_t)kv_n_pages(kv_plan_together(plan));
}

static uint32_t own_pages(const struct kv_space *space, const struct kv_plan *plan) {
    return kv_n_sparse(space) * window_pages(plan);
}

/* Where sparse layers leave before they have come: their own pages, and those that they share. */
static uint32_t by_layers_pages(const struct kv_space *space, const struct kv_plan *plan) {
    return plan->by_layers ? own_pages(space, plan) + N_TURNS * turn_pages(plan) : 0;
}

static struct kv_amount offload_most(const struct kv_space *space, const struct kv_plan *plan) {
    const uint32_t n_growing = space->n_layers - (plan->by_layers ? kv_n_sparse(space) : 0);
    return (struct kv_amount){.pages = kv_n_pages(plan->n_most) * n_growing +
                                       by_layers_pages(space, plan) +
                                       selection_state_pages(space, plan),
                              .blocks = plan->n_most / PAGE_TOKENS};
}

static bool has_window(const struct kv_sequence *kv) {
    return kv->layers[kv_layer_of(kv->space, 0)].n > 0;
}

/* Pages of a turn that are missing: of one that goes layer by layer, until that is done. */
static uint32_t missing_turn(const struct kv_sequence *kv) {
    const bool takes_turns =
        kv->plan.by_layers && kv->n_tokens < kv_plan_together(&kv->plan) && !has_window(kv);
    return takes_turns ? turn_pages(&kv->plan) : 0;
}

/* Of sparse layers' lists that are not those of the text. */
static uint32_t missing_own(const struct kv_sequence *kv) {
    return kv->selection.has_left && !has_window(kv) ? own_pages(kv->space, &kv->plan) : 0;
}

static uint64_t missing_blocks(const struct kv_sequence *kv, uint64_t n_tokens) {
    const uint64_t n_blocks = n_tokens / PAGE_TOKENS, have = kv->selection.blocks.n;
    return n_blocks > have ? n_blocks - have : 0;
}

static struct kv_amount offload_missing(const struct kv_sequence *kv, uint64_t n_tokens) {
    const uint64_t n_blocks = missing_blocks(kv, n_tokens);
    return (struct kv_amount){
        .pages = kv_lists_missing(kv, kv_lengths_all(kv_n_pages(n_tokens))) +
                 selection_missing(kv) + missing_own(kv) + N_TURNS * missing_turn(kv),
        .blocks = n_blocks - min_u64(n_blocks, kv_swap_n_lendable(&kv->swap))};
}

/* Nothing is stored yet.  Layer by layer sparse layers have left from the start. */
static void begin(struct kv_sequence *kv) {
    const struct kv_plan *plan = &kv->plan;
    kv->selection.n_written = 0;
    kv->selection.has_left = plan->by_layers;
    kv->selection.tail_from =
        plan->by_layers ? kv_plan_candidates(plan, kv_plan_together(plan)) : 0;
}

static int grow_by_layers(struct kv_sequence *kv) {
    int code = kv_list_grow(&kv->selection.scratch, N_TURNS * turn_pages(&kv->plan));
    for (uint32_t i = 0; i < kv_n_sparse(kv->space) && !code; i++)
        code = kv_list_grow(&kv->layers[kv_layer_of(kv->space, i)], window_pages(&kv->plan));
    return code;
}

static int offload_prepare(struct kv_sequence *kv, const uint32_t *prompt) {
    (void)prompt;
    begin(kv);
    int code = selection_prepare(kv, selection_state_pages(kv->space, &kv->plan));
    if (!code && kv->plan.by_layers) code = grow_by_layers(kv);
    return code ? code : kv_lists_grow(kv, (uint32_t)kv_n_pages(kv->plan.n_prompt));
}

static bool offload_worth_waiting(const struct kv_sequence *kv, const struct kv_sequence *other) {
    (void)kv, (void)other;
    return false;
}

static uint32_t offload_adopt(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_max) {
    (void)tokens, (void)n_max;
    if (kv_swap_adopt(kv, 0, 0)) kv->n_tokens = kv->n_found = kv->swap.n_tokens;
    else begin(kv);
    return kv->n_tokens;
}

/* So many are free. */
static void take(const struct kv_space *space, struct page_list *list, uint32_t n_pages) {
    const int code = page_pool_take(space->pool, list->pages, n_pages);
    assert(code == 0 && list->n == 0);
    (void)code;
    list->n = n_pages;
}

static void take_own(struct kv_sequence *kv) {
    const struct kv_space *space = kv->space;
    const uint32_t n_turns = N_TURNS * missing_turn(kv);
    if (missing_own(kv) == 0) return;
    for (uint32_t i = 0; i < kv_n_sparse(space); i++)
        take(space, &kv->layers[kv_layer_of(space, i)], window_pages(&kv->plan));
    take(space, &kv->selection.scratch, n_turns);
}

/* So many are free, or can be lent. */
static void take_blocks(struct kv_sequence *kv, uint32_t n_lent, uint32_t n_free) {
    struct page_list *blocks = &kv->selection.blocks;
    kv_swap_lend(&kv->swap, blocks, n_lent);
    const int code = page_pool_take(kv->space->blocks, blocks->pages + blocks->n, n_free);
    assert(code == 0);
    (void)code;
    blocks->n += n_free;
}

static int offload_reserve(struct kv_sequence *kv, uint32_t n_tokens) {
    struct page_list *blocks = &kv->selection.blocks;
    const struct kv_amount missing = offload_missing(kv, n_tokens);
    const uint32_t n_blocks = (uint32_t)missing_blocks(kv, n_tokens),
                   n_free = (uint32_t)missing.blocks;
    if (missing.blocks > kv_spare_blocks(kv->space)) return ERR_FULL;
    int code = kv_list_grow(blocks, blocks->n + n_blocks);
    if (!code) code = kv_make_room(kv->space, missing.pages);
    if (!code) code = kv_lists_take(kv, kv_lengths_all(kv_n_pages(n_tokens)));
    if (!code) code = kv_make_blocks(kv->space, n_free);
    if (code) return code;
    take_own(kv);
    selection_hold(kv);
    take_blocks(kv, n_blocks - n_free, n_free);
    return 0;
}

static uint32_t offload_max_rows(const struct kv_sequence *kv) {
    return kv->selection.has_left ? 1 : UINT32_MAX;
}

/* The pages that a sparse layer has in its turn. */
static uint32_t *turn_of(const struct kv_sequence *kv, uint32_t plane) {
    return kv->selection.scratch.pages + (size_t)(plane % N_TURNS) * turn_pages(&kv->plan);
}

/* Where there is no last page of the tail yet, a page whose tokens have left takes its place. */
static void leave(struct page_list *list, uint32_t n_chosen, uint32_t n_tail, uint32_t first) {
    for (uint32_t i = 0; i < n_tail && first + i < list->n; i++) {
        const uint32_t page = list->pages[first + i];
        list->pages[first + i] = list->pages[n_chosen + i];
        list->pages[n_chosen + i] = page;
    }
}

static void move_on(struct page_list *list, uint32_t n_chosen, uint32_t n_tail) {
    const uint32_t page = list->pages[n_chosen];
    for (uint32_t i = n_chosen; i + 1 < n_chosen + n_tail; i++) list->pages[i] = list->pages[i + 1];
    list->pages[n_chosen + n_tail - 1] = page;
}

static void view_sparse(struct kv_sequence *kv, uint32_t layer, uint32_t n_moved) {
    struct page_list *list = &kv->layers[layer];
    const uint32_t n_chosen = selection_chosen_pages(&kv->plan),
                   n_tail = selection_tail_pages(&kv->plan);
    if (!kv->selection.has_left) leave(list, n_chosen, n_tail, n_moved);
    else if (n_moved > 0) move_on(list, n_chosen, n_tail);
    selection_view(kv, layer, list->pages);
}

static void view_selecting(struct kv_sequence *kv, struct step_seq *seq) {
    const struct kv_space *space = kv->space;
    struct kv_selection *s = &kv->selection;
    selection_describe(kv, seq);
    s->select.blocks = s->blocks.pages;
    /* Pages by which the tail has moved since the last step; when sparse layers leave, since the
     * text began. */
    const uint32_t n_moved = (s->select.n_candidates - s->tail_from) / PAGE_TOKENS;
    assert(!s->has_left || n_moved <= 1);
    for (uint32_t i = 0; i < kv_n_sparse(space); i++)
        view_sparse(kv, kv_layer_of(space, i), n_moved);
    s->has_left = true;
    s->tail_from = s->select.n_candidates;
    kv->n_offloaded = s->select.n_candidates - s->select.n_selected;
}

static void offload_view(struct kv_sequence *kv, uint32_t n_rows, struct step_seq *seq) {
    const struct kv_space *space = kv->space;
    kv_full_view(kv, n_rows, seq);
    if (selection_is_due(kv, n_rows)) view_selecting(kv, seq);
    else if (kv->plan.by_layers)
        for (uint32_t i = 0; i < kv_n_sparse(space); i++)
            kv->views[kv_layer_of(space, i)].pages = turn_of(kv, i);
}

/* The n pages of the text from `first` on, of one layer, whose list begins with them. */
static int store_plane(const struct kv_sequence *kv, uint32_t plane, const uint32_t *list,
                       uint32_t first, uint32_t n, struct error *err) {
    const struct kv_space *space = kv->space;
    const struct store_args args = {.kv = space->memory,
                                    .store = space->store,
                                    .plane = plane,
                                    .n = n,
                                    .pages = list,
                                    .blocks = kv->selection.blocks.pages + first};
    return n == 0 ? 0 : space->be->ops->store_pages(space->be, &args, err);
}

/* All of the prompt's rows have entered the layer. */
static int copy_tail(const struct kv_sequence *kv, uint32_t plane, struct error *err) {
    const struct kv_space *space = kv->space;
    const uint32_t first = kv->selection.tail_from / PAGE_TOKENS,
                   *own = kv->layers[kv_layer_of(space, plane)].pages;
    return space->be->ops->copy_pages(space->be, space->memory, turn_of(kv, plane) + first,
                                      own + selection_chosen_pages(&kv->plan),
                                      turn_pages(&kv->plan) - first, err);
}

/* Pages of its layer that the slice has made whole.  Slices begin with a page; behind the last one
 * of all the prompt is there. */
static int store_slice(struct kv_sequence *kv, const struct long_slice *slice, struct error *err) {
    const struct kv_space *space = kv->space;
    const bool by_layers = kv->plan.by_layers;
    const uint32_t plane = kv_plane_of(space, slice->layer), end = slice->first_row + slice->n_rows,
                   first = slice->first_row / PAGE_TOKENS, n = end / PAGE_TOKENS - first;
    const uint32_t *list = by_layers ? turn_of(kv, plane) : kv->layers[slice->layer].pages;
    const bool is_last = end == slice->n_prompt_rows;
    if (slice->layer + 1 == space->n_layers) kv->selection.n_written = first + n;
    if (plane == kv_n_sparse(space)) return 0;
    const int code = store_plane(kv, plane, list + first, first, n, err);
    return code || !by_layers || !is_last ? code : copy_tail(kv, plane, err);
}

/* Pages that are whole from now on, of every plane. */
static int offload_submitted(struct kv_sequence *kv, const struct long_slice *slice,
                             struct error *err) {
    struct kv_selection *s = &kv->selection;
    if (slice) return store_slice(kv, slice, err);
    const uint32_t first = s->n_written, n = kv->n_tokens / PAGE_TOKENS - first;
    /* In a list that begins with what is chosen the tail's pages are elsewhere. */
    const uint32_t at = s->has_left ? first + selection_chosen_pages(&kv->plan) -
                                          s->tail_from / PAGE_TOKENS
                                    : first;
    int code = 0;
    for (uint32_t i = 0; i < kv_n_sparse(kv->space) && !code; i++)
        code = store_plane(kv, i, kv->layers[kv_layer_of(kv->space, i)].pages + at, first, n, err);
    s->n_written += n;
    return code;
}

/* What nobody reads any more once no step is in flight that was planned before sparse layers
 * left. */
static void trim(struct kv_sequence *kv) {
    const struct kv_space *space = kv->space;
    if (!kv->selection.has_left) return;
    for (uint32_t i = 0; i < kv_n_sparse(space); i++)
        kv_list_trim(&kv->layers[kv_layer_of(space, i)], space, window_pages(&kv->plan));
    kv_list_trim(&kv->selection.scratch, space, 0);
}

/* When sparse layers left at most one step was in flight; that, or a later one, has landed now; and
 * with it all slices. */
static void offload_publish(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_tokens) {
    (void)tokens, (void)n_tokens;
    trim(kv);
}

/* Blocks stay with what has been swapped. */
static void let_go(struct kv_sequence *kv) {
    struct page_list *blocks = &kv->selection.blocks;
    kv_lists_trim(kv, 0);
    selection_drop(kv);
    kv_list_trim(&kv->selection.scratch, kv->space, 0);
    kv->n_tokens = kv->n_found = kv->n_offloaded = 0;
    if (kv->swap.n_tokens > 0) return;
    if (blocks->n > 0) page_pool_release(kv->space->blocks, blocks->pages, blocks->n);
    blocks->n = 0;
    begin(kv);
}

static void offload_release(struct kv_sequence *kv) {
    kv_swap_drop(kv->space, &kv->swap);
    let_go(kv);
}

/* Nothing is in flight. */
static int offload_suspend(struct kv_sequence *kv, struct error *err) {
    trim(kv);
    const int code = kv_swap_out(kv, err);
    let_go(kv);
    return code;
}

const struct kv_policy kv_policy_offload = {
    .name = "offload",
    .grows = true,
    .moves = true,
    .most = offload_most,
    .missing = offload_missing,
    .prepare = offload_prepare,
    .worth_waiting = offload_worth_waiting,
    .adopt = offload_adopt,
    .reserve = offload_reserve,
    .max_rows = offload_max_rows,
    .view = offload_view,
    .commit = kv_full_commit,
    .submitted = offload_submitted,
    .publish = offload_publish,
    .landed = kv_full_landed,
    .n_resident = kv_full_n_resident,
    .suspend = offload_suspend,
    .resume = kv_swap_in,
    .release = offload_release,
};
