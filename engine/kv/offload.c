/* offload.c - the policy that keeps everything, and in the host pool what sparse layers have not
 * selected.
 *
 * The prompt is computed with all of its pages (layers with a window keep its own only, as under
 * `full`).  Whole pages are copied to the host pool as soon as the step, or layer slice, that fills
 * them has been submitted.  With the first step that selects, sparse layers leave the text
 * (has_left).  Pages whose tokens are in the host pool already become those of the chosen tokens,
 * and the tail's pages move up behind them.  One more page is kept for the tail to grow into.  The
 * others are released once no in-flight step reads them.
 *
 *   before   [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ][ 5 ]    pages of the text; the tail is 4 and 5
 *   after    [ c ][ c ][ 4 ][ 5 ][ . ]          so many from now on
 *   later    [ c ][ c ][ 5 ][ 6 ][ . ]          the tail's first page, once past, is its next one
 *
 * So the pool must have the pages of the text before sparse layers leave it.  Afterwards only the
 * other layers need pages for the whole text.  The answer's length does not decide how the prompt
 * is computed.  Where all pages are taken at the start (batch_invariant), `scratch` has what the
 * second phase needs beyond the first.  When sparse layers leave, its pages and theirs become those
 * of the other layers.
 *
 * A suspended sequence has tokens in its host blocks already; its pages, as they are, are copied to
 * others (swap.h).  Without space for those, or if a running sequence takes either, it is computed
 * again, its generated tokens like a prompt.  While that lasts it needs pages for all of its text.
 * If the pool has fewer, the generated tokens are computed as they were the first time, one by one.
 *
 * A prompt that does not fit (kv_plan_by_layers) is layer-major, dense or not.  Its sparse layers
 * have left the text from the start.  In those with a window all but the last pages of the prompt
 * have expired.  Both kinds alternate between two buffers of pages for the prompt.  A slice leaves
 * one layer and enters the next, so two are needed at a time.  What a slice writes in a sparse
 * layer is copied to the host pool as soon as it has been submitted.  When the last slice has
 * entered a layer, the tail, or what the window keeps, is copied to the layer's own pages.
 *
 *   scratch   [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ][ 5 ]    of layers 0, 2, 4, …
 *             [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ][ 5 ]    of layers 1, 3, 5, …
 *   sparse    [   ][   ][ 4 ][ 5 ][ . ]         its own, as above
 *   a window  [ . ][ . ][ . ][ 3 ][ 4 ][ 5 ]    as under `full`; n_expired is 3
 *
 * The prompt's last token then selects.  So do generated tokens that are computed again, one by
 * one: the unselected tokens are no longer on the device.  A sequence that is suspended before its
 * last slice has nothing to continue from (sequence.h), and begins anew.
 *
 * A sequence's host blocks are released together with its pages.  A copy between them may still be
 * running then while the page's next owner writes to it.  What the block gets is never read: copies
 * keep the order of their submission, so the block's next owner writes and reads later.
 *
 * Thread: engine.  Memory: see policy.h. */
#include <assert.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/layer_slice.h"
#include "engine/kv/full.h"
#include "engine/kv/lists.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/selection.h"
#include "engine/kv/swap.h"

enum { N_BUFFERS = 2 };

static uint32_t window_pages(const struct kv_plan *plan) {
    return selection_chosen_pages(plan) + selection_tail_pages(plan);
}

/* Returns the pages of one buffer: for all rows of a layer-major prompt. */
static uint32_t buffer_pages(const struct kv_plan *plan) {
    return (uint32_t)kv_n_pages(kv_plan_together(plan));
}

static uint32_t own_pages(const struct kv_space *space, const struct kv_plan *plan) {
    return kv_n_sparse(space) * window_pages(plan);
}

/* Returns the most slots that the text has in the step in which sparse layers leave it. */
static uint32_t slots_at_leaving(const struct kv_plan *plan) {
    return min_u32(selection_first(plan) + 1, plan->n_most);
}

/* Returns the pages that all layers need for the text's first n_tokens tokens, and those of the
 * selection's state. */
static uint64_t whole_pages(const struct kv_space *space, const struct kv_plan *plan,
                            uint32_t n_tokens) {
    struct kv_plan text = *plan;
    text.n_most = n_tokens;
    return kv_full_most(space, &text).pages + selection_state_pages(space, plan);
}

/* Returns the pages that the whole text needs after sparse layers have left it; steps have one row
 * then. */
static uint64_t pages_after_leaving(const struct kv_space *space, const struct kv_plan *plan) {
    struct kv_plan rest = *plan;
    rest.step_rows = 1;
    return whole_pages(space, &rest, plan->n_most) - kv_n_sparse(space) * kv_n_pages(plan->n_most) +
           own_pages(space, plan);
}

/* Returns the larger of the needs before and after sparse layers leave the text.  In a layer-major
 * prompt they leave before any of it is stored. */
static struct kv_amount offload_most(const struct kv_space *space, const struct kv_plan *plan) {
    const uint64_t before = whole_pages(space, plan, slots_at_leaving(plan)),
                   after = pages_after_leaving(space, plan);
    struct kv_amount most = {.pages = before > after ? before : after,
                             .blocks = plan->n_most / PAGE_TOKENS};
    if (plan->layer_major) most.pages = after + N_BUFFERS * buffer_pages(plan);
    return most;
}

static bool has_own(const struct kv_sequence *kv) {
    return kv->layers[kv_next_sparse(kv->space, 0)].n > 0;
}

/* Returns the pages of `scratch`: both buffers of a layer-major prompt.  Where all pages are taken
 * at the start, those that the sequence has no lists for before sparse layers leave. */
static uint32_t scratch_pages(const struct kv_space *space, const struct kv_plan *plan) {
    if (plan->layer_major) return N_BUFFERS * buffer_pages(plan);
    if (!space->batch_invariant) return 0;
    return (uint32_t)(offload_most(space, plan).pages -
                      whole_pages(space, plan, slots_at_leaving(plan)));
}

/* Returns how many scratch pages are lacking.  They are needed until the prompt has been computed,
 * or sparse layers have left. */
static uint32_t missing_scratch(const struct kv_sequence *kv) {
    const bool is_done = kv->plan.layer_major
                             ? kv->n_tokens >= kv_plan_together(&kv->plan) || has_own(kv)
                             : kv->selection.has_left || kv->selection.scratch.n > 0;
    return is_done ? 0 : scratch_pages(kv->space, &kv->plan);
}

/* Returns how many pages sparse layers' own lists lack, once these are not the text's. */
static uint32_t missing_own(const struct kv_sequence *kv) {
    return kv->selection.has_left && !has_own(kv) ? own_pages(kv->space, &kv->plan) : 0;
}

static uint64_t missing_blocks(const struct kv_sequence *kv, uint64_t n_tokens) {
    const uint64_t n_blocks = n_tokens / PAGE_TOKENS, have = kv->selection.blocks.n;
    return n_blocks > have ? n_blocks - have : 0;
}

/* Returns how many of n_tokens tokens need pages in lists now.  Those that are computed one by one
 * come after sparse layers have left. */
static uint64_t n_listed(const struct kv_sequence *kv, uint64_t n_tokens) {
    if (kv->selection.has_left || !kv->selection.one_by_one) return n_tokens;
    return min_u64(n_tokens, max_u32(slots_at_leaving(&kv->plan), kv->n_tokens + 1));
}

/* Returns the lengths of the lists that grow.  A layer-major prompt reaches the lists of layers
 * with windows only at its end, so these are sized for all of it at once. */
static struct kv_lengths lengths_for(const struct kv_sequence *kv, uint64_t n_tokens) {
    const uint32_t n_together = kv->plan.layer_major ? kv_plan_together(&kv->plan) : 0;
    return kv_full_lengths(kv, max_u32(kv->n_tokens, n_together), n_listed(kv, n_tokens));
}

static struct kv_amount offload_missing(const struct kv_sequence *kv, uint64_t n_tokens) {
    const uint64_t n_blocks = missing_blocks(kv, n_tokens);
    return (struct kv_amount){
        .pages = kv_lists_missing(kv, lengths_for(kv, n_tokens)) + selection_missing(kv) +
                 missing_own(kv) + missing_scratch(kv),
        .blocks = n_blocks - min_u64(n_blocks, kv_swap_n_lendable(&kv->swap))};
}

/* Begins with nothing stored.  In a layer-major prompt sparse layers have left from the start, and
 * the pages that windows do not need behind the prompt have expired. */
static void begin(struct kv_sequence *kv) {
    const struct kv_plan *plan = &kv->plan;
    const uint32_t n_together = kv_plan_together(plan);
    kv->selection.n_written = 0;
    kv->selection.has_left = plan->layer_major;
    kv->selection.tail_from = plan->layer_major ? kv_plan_candidates(plan, n_together) : 0;
    kv_lists_begin(kv, plan->layer_major ? kv_full_n_behind(kv->space, n_together) : 0);
}

static int grow_own(struct kv_sequence *kv) {
    const struct kv_space *space = kv->space;
    int code = 0;
    for (uint32_t l = 0; (l = kv_next_sparse(space, l)) < space->n_layers && !code; l++)
        code = kv_list_grow(&kv->layers[l], window_pages(&kv->plan));
    return code;
}

static int offload_prepare(struct kv_sequence *kv, const uint32_t *prompt) {
    (void)prompt;
    const struct kv_plan *plan = &kv->plan;
    const bool all = kv->space->batch_invariant;
    begin(kv);
    kv->selection.one_by_one = all;
    int code = selection_prepare(kv, selection_state_pages(kv->space, plan));
    if (!code) code = kv_list_grow(&kv->selection.scratch, scratch_pages(kv->space, plan));
    if (!code && plan->layer_major) code = grow_own(kv);
    return code ? code
                : kv_lists_grow(kv, (uint32_t)kv_n_pages(all ? plan->n_most : plan->n_prompt));
}

static bool offload_worth_waiting(const struct kv_sequence *kv, const struct kv_sequence *other) {
    (void)kv, (void)other;
    return false;
}

static uint32_t offload_match(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_max) {
    (void)tokens, (void)n_max;
    if (!kv_swap_match(kv, 0, 0)) {
        begin(kv);
        return 0;
    }
    kv_lists_begin(kv, kv->swap.n_expired);
    kv->n_tokens = kv->n_found = kv->swap.n_tokens;
    return kv->n_tokens;
}

/* Takes n_pages pages for an empty list; the caller has made sure that they are free. */
static void take(const struct kv_space *space, struct page_list *list, uint32_t n_pages) {
    const int code = page_pool_take(space->pool, list->pages, n_pages);
    assert(code == 0 && list->n == 0);
    (void)code;
    list->n = n_pages;
}

static void take_own(struct kv_sequence *kv) {
    const struct kv_space *space = kv->space;
    const uint32_t n_scratch = missing_scratch(kv);
    if (n_scratch > 0) take(space, &kv->selection.scratch, n_scratch);
    if (missing_own(kv) == 0) return;
    for (uint32_t l = 0; (l = kv_next_sparse(space, l)) < space->n_layers; l++)
        take(space, &kv->layers[l], window_pages(&kv->plan));
}

/* Adds blocks to the sequence's: n_lent of its swap and n_free of the pool, which has so many. */
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
    if (!code) code = kv_make_free(kv->space, missing.pages);
    if (!code) code = kv_lists_take(kv, lengths_for(kv, n_tokens));
    if (!code) code = kv_make_blocks(kv->space, n_free);
    if (code) return code;
    take_own(kv);
    selection_hold(kv);
    take_blocks(kv, n_blocks - n_free, n_free);
    return 0;
}

static uint32_t offload_max_rows(const struct kv_sequence *kv) {
    if (kv->selection.has_left) return 1;
    if (!kv->selection.one_by_one) return UINT32_MAX;
    const uint32_t n_prompt = kv->plan.n_prompt;
    return kv->n_tokens < n_prompt ? n_prompt - kv->n_tokens : 1;
}

static bool is_buffered(const struct kv_space *space, uint32_t layer) {
    return kv_is_sparse(space, layer) || kv_has_window(space, layer);
}

/* Returns the pages that a layer of a layer-major prompt writes and reads. */
static uint32_t *buffer_of(const struct kv_sequence *kv, uint32_t layer) {
    return kv->selection.scratch.pages + (size_t)(layer % N_BUFFERS) * buffer_pages(&kv->plan);
}

/* Moves the tail's pages behind the chosen ones.  If the tail has no last page yet, a page whose
 * tokens have left takes its place. */
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
    /* Pages that the tail has advanced since the last step; when sparse layers leave, since the
     * text began. */
    const uint32_t n_moved = (s->select.n_candidates - s->tail_from) / PAGE_TOKENS;
    assert(!s->has_left || n_moved <= 1);
    for (uint32_t l = 0; (l = kv_next_sparse(space, l)) < space->n_layers; l++)
        view_sparse(kv, l, n_moved);
    s->has_left = true;
    s->tail_from = s->select.n_candidates;
    kv->n_offloaded = s->select.n_candidates - s->select.n_selected;
}

static void offload_view(struct kv_sequence *kv, uint32_t n_rows, struct step_seq *seq) {
    const struct kv_space *space = kv->space;
    kv_full_view(kv, n_rows, seq);
    if (selection_is_due(kv, n_rows)) view_selecting(kv, seq);
    else if (kv->plan.layer_major)
        for (uint32_t l = 0; l < space->n_layers; l++)
            if (is_buffered(space, l)) kv->views[l].pages = buffer_of(kv, l);
}

/* Transfers n pages of one layer to the host pool, the text's from `first` on; `list` begins with
 * them. */
static int store_plane(const struct kv_sequence *kv, uint32_t plane, const uint32_t *list,
                       uint32_t first, uint32_t n, struct error *err) {
    const struct kv_space *space = kv->space;
    const struct offload_args args = {.kv = space->memory,
                                      .store = space->store,
                                      .plane = plane,
                                      .n = n,
                                      .pages = list,
                                      .blocks = kv->selection.blocks.pages + first};
    return n == 0 ? 0 : space->be->ops->offload_pages(space->be, &args, err);
}

/* Transfers what the layer will read to its own pages, once all of the prompt's rows have entered
 * it. */
static int copy_own(const struct kv_sequence *kv, uint32_t layer, struct error *err) {
    const struct kv_space *space = kv->space;
    const bool is_sparse = kv_is_sparse(space, layer);
    const uint32_t first = is_sparse ? kv->selection.tail_from / PAGE_TOKENS : kv->n_expired,
                   to = is_sparse ? selection_chosen_pages(&kv->plan) : first;
    return space->be->ops->copy_pages(space->be, space->memory, buffer_of(kv, layer) + first,
                                      kv->layers[layer].pages + to, buffer_pages(&kv->plan) - first,
                                      err);
}

/* Saves the pages that the slice has filled in its layer, and fills the layer's own after its last
 * slice.  Slices begin with a page.  After the last slice of all, the whole prompt is there. */
static int store_slice(struct kv_sequence *kv, const struct layer_slice *slice, struct error *err) {
    const struct kv_space *space = kv->space;
    const uint32_t layer = slice->layer, end = slice->first_row + slice->n_rows,
                   first = slice->first_row / PAGE_TOKENS, n = end / PAGE_TOKENS - first;
    const bool in_buffer = kv->plan.layer_major && is_buffered(space, layer);
    const uint32_t *list = in_buffer ? buffer_of(kv, layer) : kv->layers[layer].pages;
    int code = 0;
    if (layer + 1 == space->n_layers) kv->selection.n_written = first + n;
    if (kv_is_sparse(space, layer))
        code = store_plane(kv, kv_host_layer_of(space, layer), list + first, first, n, err);
    return code || !in_buffer || end < slice->n_prompt_rows ? code : copy_own(kv, layer, err);
}

/* Saves the pages that the step has filled, of every host layer, in the host pool. */
static int offload_submitted(struct kv_sequence *kv, const struct layer_slice *slice,
                             struct error *err) {
    struct kv_selection *s = &kv->selection;
    if (slice) return store_slice(kv, slice, err);
    const struct kv_space *space = kv->space;
    const uint32_t first = s->n_written, n = kv->n_tokens / PAGE_TOKENS - first;
    uint32_t plane = 0;
    /* In a list that begins with chosen tokens the tail's pages are elsewhere. */
    const uint32_t at = s->has_left
                            ? first + selection_chosen_pages(&kv->plan) - s->tail_from / PAGE_TOKENS
                            : first;
    int code = 0;
    for (uint32_t l = 0; (l = kv_next_sparse(space, l)) < space->n_layers && !code; l++)
        code = store_plane(kv, plane++, kv->layers[l].pages + at, first, n, err);
    s->n_written += n;
    return code;
}

/* Gives back what is no longer read once every step from before sparse layers left has
 * completed. */
static void trim(struct kv_sequence *kv) {
    const struct kv_space *space = kv->space;
    if (!kv->selection.has_left) return;
    for (uint32_t l = 0; (l = kv_next_sparse(space, l)) < space->n_layers; l++)
        kv_list_trim(&kv->layers[l], space, window_pages(&kv->plan));
    kv_list_trim(&kv->selection.scratch, space, 0);
}

/* Does nothing, because nothing is shared. */
static void offload_insert(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_tokens) {
    (void)kv, (void)tokens, (void)n_tokens;
}

/* Takes the pages that the other layers still lack, where all pages are taken at the start.  They
 * were among those that have just been given back. */
static void take_rest(struct kv_sequence *kv) {
    if (!kv->selection.has_left || !kv->space->batch_invariant) return;
    const int code = kv_lists_take(kv, kv_lengths_all(kv_n_pages(kv->plan.n_most)));
    assert(code == 0);
    (void)code;
}

/* Gives back pages.  At most one step was in flight when sparse layers left; that one, or a later
 * one, has completed now.  No token of a layer-major prompt counts as stored before the last slice.
 * Nothing is inserted into the prefix cache, so expired window pages are given back at once. */
static void offload_on_done(struct kv_sequence *kv, uint32_t n_tokens) {
    kv_full_give_back(kv, n_tokens, 0);
    if (n_tokens < kv_plan_together(&kv->plan)) return;
    trim(kv);
    take_rest(kv);
}

/* Gives every page back; host blocks stay if data are swapped. */
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

/* Suspends the sequence, which has no step in flight.  The text may have a token that is not stored
 * yet, and the next one needs a slot, too. */
static int offload_suspend(struct kv_sequence *kv, struct error *err) {
    trim(kv);
    if (whole_pages(kv->space, &kv->plan, kv->n_tokens + 2) > page_pool_n_pages(kv->space->pool))
        kv->selection.one_by_one = true;
    const int code = kv_swap_out(kv, err);
    let_go(kv);
    return code;
}

static int offload_resume(struct kv_sequence *kv, struct error *err) {
    kv_lists_cover(kv);
    return kv_swap_in(kv, err);
}

const struct kv_policy_ops kv_policy_offload = {
    .name = "offload",
    .grows = true,
    .moves = true,
    .most = offload_most,
    .missing = offload_missing,
    .prepare = offload_prepare,
    .worth_waiting = offload_worth_waiting,
    .match = offload_match,
    .reserve = offload_reserve,
    .max_rows = offload_max_rows,
    .view = offload_view,
    .commit = kv_full_commit,
    .submitted = offload_submitted,
    .insert = offload_insert,
    .on_done = offload_on_done,
    .n_resident = kv_full_n_resident,
    .suspend = offload_suspend,
    .resume = offload_resume,
    .release = offload_release,
};
