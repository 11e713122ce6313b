/* offload.c - the policy that keeps everything, what sparse layers have not selected in the store.
 *
 * The prompt is computed with all of its pages; whole ones are copied to the store as soon as the
 * step that fills them has been submitted.  With the first step that selects, sparse layers leave:
 * pages whose tokens are in the store already become those of the chosen ones, the tail's pages
 * move up behind them, one more is kept for the tail to grow into, and the others go once no step
 * in flight reads them.
 *
 *   before   [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ][ 5 ]    pages of the text; the tail is 4 and 5
 *   after    [ c ][ c ][ 4 ][ 5 ][ . ]          so many from now on
 *   later    [ c ][ c ][ 5 ][ 6 ][ . ]          when the tail moves on, its first page is its next
 *
 * A sequence that was suspended is computed again, its generated tokens like a prompt, and needs
 * pages for all of its text while that goes on.
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

static struct kv_amount offload_most(const struct kv_space *space, const struct kv_plan *plan) {
    return (struct kv_amount){
        .pages = kv_full_most(space, plan).pages + selection_state_pages(space, plan),
        .blocks = plan->n_most / PAGE_TOKENS};
}

static struct kv_amount offload_missing(const struct kv_sequence *kv, uint64_t n_tokens) {
    const uint64_t n_blocks = n_tokens / PAGE_TOKENS, have = kv->selection.blocks.n;
    return (struct kv_amount){
        .pages = kv_lists_missing(kv, kv_n_pages(n_tokens)) + selection_missing(kv),
        .blocks = n_blocks > have ? n_blocks - have : 0};
}

static int offload_prepare(struct kv_sequence *kv, const uint32_t *prompt) {
    (void)prompt;
    const int code = selection_prepare(kv, selection_state_pages(kv->space, &kv->plan));
    return code ? code : kv_lists_grow(kv, (uint32_t)kv_n_pages(kv->plan.n_prompt));
}

static bool offload_worth_waiting(const struct kv_sequence *kv, const struct kv_sequence *other) {
    (void)kv, (void)other;
    return false;
}

static uint32_t offload_adopt(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_max) {
    (void)kv, (void)tokens, (void)n_max;
    return 0;
}

static int offload_reserve(struct kv_sequence *kv, uint32_t n_tokens) {
    struct page_list *blocks = &kv->selection.blocks;
    const struct kv_amount missing = offload_missing(kv, n_tokens);
    const uint32_t n_blocks = (uint32_t)missing.blocks;
    if (n_blocks > page_pool_n_free(kv->space->blocks)) return ERR_FULL;
    int code = kv_list_grow(blocks, blocks->n + n_blocks);
    if (!code) code = kv_make_room(kv->space, missing.pages);
    if (!code) code = kv_lists_take(kv, (uint32_t)kv_n_pages(n_tokens));
    if (code) return code;
    selection_hold(kv);
    code = page_pool_take(kv->space->blocks, blocks->pages + blocks->n, n_blocks);
    assert(code == 0); /* counted above */
    blocks->n += n_blocks;
    return code;
}

static uint32_t offload_max_rows(const struct kv_sequence *kv) {
    return kv->selection.has_left ? 1 : UINT32_MAX;
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

static void offload_view(struct kv_sequence *kv, uint32_t n_rows, struct step_seq *seq) {
    const struct kv_space *space = kv->space;
    struct kv_selection *s = &kv->selection;
    kv_full_view(kv, n_rows, seq);
    if (!selection_is_due(kv, n_rows)) return;
    const uint32_t before = s->select.n_candidates;
    selection_describe(kv, seq);
    s->select.blocks = s->blocks.pages;
    /* Pages by which the tail has moved since the last step; when sparse layers leave, since the
     * text began. */
    const uint32_t n_moved = (s->select.n_candidates - before) / PAGE_TOKENS;
    assert(!s->has_left || n_moved <= 1);
    for (uint32_t i = 0; i < space->n_groups; i++)
        for (uint32_t l = space->groups[i].first; l < space->groups[i].end; l++)
            view_sparse(kv, l, n_moved);
    s->has_left = true;
    kv->n_offloaded = s->select.n_candidates - s->select.n_selected;
}

/* Pages that are whole from now on, of every plane. */
static int offload_submitted(struct kv_sequence *kv, struct error *err) {
    const struct kv_space *space = kv->space;
    struct kv_selection *s = &kv->selection;
    const uint32_t first = s->n_written, n = kv->n_tokens / PAGE_TOKENS - first;
    /* In a list that begins with what is chosen the tail's pages are elsewhere. */
    const uint32_t at = s->has_left ? first + selection_chosen_pages(&kv->plan) -
                                          s->select.n_candidates / PAGE_TOKENS
                                    : first;
    struct store_args args = {
        .kv = space->memory, .store = space->store, .n = n, .blocks = s->blocks.pages + first};
    int code = 0;
    if (n == 0) return 0;
    for (uint32_t i = 0; i < space->n_groups; i++)
        for (uint32_t l = space->groups[i].first; l < space->groups[i].end && !code; l++) {
            args.pages = kv->layers[l].pages + at;
            code = space->be->ops->store_pages(space->be, &args, err);
            args.plane++;
        }
    s->n_written += n;
    return code;
}

/* When sparse layers left at most one step was in flight; that, or a later one, has landed now. */
static void offload_publish(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_tokens) {
    (void)tokens, (void)n_tokens;
    const struct kv_space *space = kv->space;
    if (!kv->selection.has_left) return;
    const uint32_t n_pages =
        selection_chosen_pages(&kv->plan) + selection_tail_pages(&kv->plan);
    for (uint32_t i = 0; i < space->n_groups; i++)
        for (uint32_t l = space->groups[i].first; l < space->groups[i].end; l++)
            kv_list_trim(&kv->layers[l], space, n_pages);
}

static void offload_release(struct kv_sequence *kv) {
    struct kv_selection *s = &kv->selection;
    kv_lists_trim(kv, 0);
    selection_drop(kv);
    if (s->blocks.n > 0) page_pool_release(kv->space->blocks, s->blocks.pages, s->blocks.n);
    s->blocks.n = s->n_written = 0;
    s->has_left = false;
    kv->n_tokens = kv->n_offloaded = 0;
}

static int offload_suspend(struct kv_sequence *kv, struct error *err) {
    (void)err;
    offload_release(kv);
    return 0;
}

const struct kv_policy kv_policy_offload = {
    .name = "offload",
    .grows = true,
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
    .n_resident = kv_full_n_resident,
    .suspend = offload_suspend,
    .resume = kv_full_resume,
    .release = offload_release,
};
