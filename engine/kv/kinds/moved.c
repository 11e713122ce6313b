/* moved.c - the kind that keeps what sparse layers have selected, and the rest in the host pool.
 *
 * The prompt is computed with all of its pages.  Whole pages are copied to the host pool as soon as
 * the step, or layer slice, that fills them has been submitted.  With the first step that selects,
 * sparse layers leave the text (left_text).  Pages whose tokens are in the host pool already become
 * those of the chosen tokens, and the tail's pages move up behind them.  One more page is kept for
 * the tail to grow into.  The others are released once no in-flight step reads them.
 *
 *   before   [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ][ 5 ]    pages of the text; the tail is 4 and 5
 *   after    [ c ][ c ][ 4 ][ 5 ][ . ]          the length stays so
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
 * have expired.  Layers of both sorts alternate between two buffers of pages for the prompt.  A
 * slice leaves one layer and enters the next, so two are needed at a time.  What a slice writes in
 * a sparse layer is copied to the host pool as soon as it has been submitted.  When the last slice
 * has entered a layer, the tail, or what the window keeps, is copied to the layer's own pages.
 *
 *   scratch   [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ][ 5 ]    of layers 0, 2, 4, …
 *             [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ][ 5 ]    of layers 1, 3, 5, …
 *   sparse    [   ][   ][ 4 ][ 5 ][ . ]         its own, as above
 *   a window  [ . ][ . ][ . ][ 3 ][ 4 ][ 5 ]    as always; n_expired is 3
 *
 * The prompt's last token then selects.  So do generated tokens that are computed again, one by
 * one: the unselected tokens are no longer on the device.  A sequence that is suspended before its
 * last slice has nothing to continue from (sequence.h), and begins anew.
 *
 * A sequence's host blocks are released together with its pages, and a copy between them may still
 * be running then.  Copies keep the order of their submission, among themselves and with steps.  So
 * the page's next owner writes to it later, and what a token block gets is right.
 *
 * The prompt's tokens are those that any sequence would have, and its host blocks are token blocks
 * of the prefix cache's blocks (prefix_cache.h).  A sequence that finds some takes pages for its
 * sparse layers, and copies the token blocks there.  It writes to these pages when the layers leave
 * the text.  Its host blocks begin with the found ones.  Where a block has sparse pages, they
 * are copied to a host block of the sequence, which becomes the token block.  Pages that no other
 * sequence needs are then the sequence's own.  A layer-major prompt takes blocks with token blocks
 * only.  It copies these to the buffer of each layer that its rows enter.
 *
 * Thread: see kind.h.  Memory: see kv_sequence.h. */
#include <assert.h>

#include "engine/base/sizes.h"
#include "engine/device/layer_slice.h"
#include "engine/device/pages.h"
#include "engine/device/step.h"
#include "engine/kv/demand.h"
#include "engine/kv/kind.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/lists.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/selection.h"
#include "engine/kv/swap.h"

/* Counts the text, or after sparse layers have left it, the selection and the tail. */
static uint64_t moved_most(const struct kv_space *space, const struct kv_plan *plan,
                           enum kv_phase phase, uint32_t n_tokens, uint32_t n_layers) {
    const uint64_t n = phase == KV_PHASE_TEXT ? kv_n_pages(n_tokens) : selection_seen_pages(plan);
    return n_layers * n + selection_state_pages(space, plan);
}

static bool has_own(const struct kv_sequence *kv) {
    return kv->layers[kv_next_sparse(kv->space, 0)].n > 0;
}

/* Returns the pages of `scratch`: both buffers of a layer-major prompt.  Where all pages are taken
 * at the start, those that the sequence has no lists for before sparse layers leave. */
static uint32_t scratch_pages(const struct kv_space *space, const struct kv_plan *plan) {
    if (plan->layer_major) return KV_N_BUFFERS * plan->n_buffer_pages;
    if (!space->batch_invariant) return 0;
    return (uint32_t)(kv_most(space, plan).pages -
                      kv_phase_pages(space, plan, KV_PHASE_TEXT, kv_plan_n_read(plan)));
}

/* Returns how many scratch pages are lacking.  They are needed until the prompt has been computed,
 * or sparse layers have left. */
static uint32_t missing_scratch(const struct kv_sequence *kv) {
    const bool is_done = kv->plan.layer_major
                             ? kv->n_tokens >= kv_plan_together(&kv->plan) || has_own(kv)
                             : kv->selection.left_text || kv->selection.scratch.n > 0;
    return is_done ? 0 : scratch_pages(kv->space, &kv->plan);
}

/* Returns how many host blocks are lacking behind the sequence's. */
static uint64_t missing_behind(const struct kv_sequence *kv, uint64_t n_tokens) {
    const uint64_t n_blocks = n_tokens / PAGE_TOKENS, have = kv->selection.blocks.n;
    return n_blocks > have ? n_blocks - have : 0;
}

static uint64_t missing_blocks(const struct kv_sequence *kv, uint64_t n_tokens) {
    return kv->selection.n_block_holes + missing_behind(kv, n_tokens);
}

/* Returns how many rows the next step may have. */
static uint32_t max_rows(const struct kv_sequence *kv) {
    if (kv->selection.left_text) return 1;
    if (!kv->selection.recomputes_by_row) return UINT32_MAX;
    const uint32_t n_prompt = kv->plan.n_prompt;
    return kv->n_tokens < n_prompt ? n_prompt - kv->n_tokens : 1;
}

static struct kv_need moved_ask(const struct kv_sequence *kv, uint64_t n_tokens) {
    const uint64_t n_blocks = missing_blocks(kv, n_tokens);
    return (struct kv_need){
        .n_rows = max_rows(kv),
        .n_listed = kv->selection.left_text ? selection_seen_pages(&kv->plan)
                                            : kv_kind_full.ask(kv, n_tokens).n_listed,
        .beside = {.pages = selection_missing(kv) + missing_scratch(kv),
                   .blocks = n_blocks - min_u64(n_blocks, kv_swap_n_reusable(kv))}};
}

/* Begins with nothing stored.  In a layer-major prompt sparse layers have left from the start. */
static void begin(struct kv_sequence *kv) {
    const struct kv_plan *plan = &kv->plan;
    kv->selection.n_written = 0;
    kv->selection.left_text = plan->layer_major;
    kv->selection.tail_start =
        plan->layer_major ? kv_plan_candidates(plan, kv_plan_together(plan)) : 0;
}

/* Makes the lists' capacity for moved_done() to take the rest, where all pages are taken at the
 * start. */
static int moved_prepare(struct kv_sequence *kv) {
    const struct kv_plan *plan = &kv->plan;
    const bool all = kv->space->batch_invariant;
    begin(kv);
    kv->selection.recomputes_by_row = all;
    int code = selection_prepare(kv, selection_state_pages(kv->space, plan));
    if (!code) code = kv_list_grow(&kv->selection.scratch, scratch_pages(kv->space, plan));
    if (!code) code = kv_list_grow(&kv->selection.blocks, plan->n_most / PAGE_TOKENS);
    return code || !all ? code : kv_lists_grow(kv, (uint32_t)kv_n_pages(plan->n_most));
}

static void take_scratch(struct kv_sequence *kv) {
    struct page_list *scratch = &kv->selection.scratch;
    const uint32_t n_pages = missing_scratch(kv);
    if (n_pages == 0) return;
    assert(scratch->n == 0);
    page_pool_take_sure(kv->space->pool, scratch->pages, n_pages);
    scratch->n = n_pages;
}

/* Adds host blocks to the sequence's: those of its swapped data, then free ones. */
static void take_blocks(struct kv_sequence *kv, uint32_t n_blocks) {
    struct page_list *blocks = &kv->selection.blocks;
    const uint32_t n_reused = min_u32(n_blocks, kv_swap_n_reusable(kv)),
                   n_free = n_blocks - n_reused;
    kv_swap_reuse(kv, blocks, n_reused);
    page_pool_take_sure(kv->space->blocks, blocks->pages + blocks->n, n_free);
    blocks->n += n_free;
}

static void fill_block_holes(struct kv_sequence *kv) {
    const struct page_list *blocks = &kv->selection.blocks;
    for (uint32_t i = 0; i < blocks->n && kv->selection.n_block_holes > 0; i++) {
        if (blocks->pages[i] != KV_NO_PAGE) continue;
        page_pool_take_sure(kv->space->blocks, &blocks->pages[i], 1);
        kv->selection.n_block_holes--;
    }
}

static void moved_take(struct kv_sequence *kv, uint64_t n_tokens) {
    take_scratch(kv);
    selection_hold(kv);
    fill_block_holes(kv);
    take_blocks(kv, (uint32_t)missing_behind(kv, n_tokens));
}

/* Takes the found block's token block as the sequence's next host block, if it has one. */
static void take_token_block(struct kv_sequence *kv, uint32_t block) {
    struct page_list *blocks = &kv->selection.blocks;
    const uint32_t token_block = prefix_cache_token_block(kv->space->cache, block);
    if (token_block == KV_NO_PAGE) kv->selection.n_block_holes++;
    else page_pool_share(kv->space->blocks, &token_block, 1);
    blocks->pages[blocks->n++] = token_block;
}

/* Takes the blocks' token blocks.  A sequence that was swapped still has its own: it gives them to
 * the blocks. */
static void moved_matched(struct kv_sequence *kv) {
    struct kv_selection *s = &kv->selection;
    if (kv_swap_is_claimed(kv)) {
        for (uint32_t i = 0; i < sequence_prefix_n_blocks(kv); i++)
            prefix_cache_set_token_block(kv->space->cache, sequence_prefix_block(kv, i),
                                         s->blocks.pages[i]);
        return;
    }
    assert(s->blocks.n == 0 && sequence_prefix_n_blocks(kv) <= s->blocks.capacity);
    for (uint32_t i = 0; i < sequence_prefix_n_blocks(kv); i++)
        take_token_block(kv, sequence_prefix_block(kv, i));
    s->n_written = sequence_prefix_n_blocks(kv); /* moved_resumed() sees to it */
}

static bool is_buffered(const struct kv_space *space, uint32_t layer) {
    return kv_is_sparse(space, layer) || kv_has_window(space, layer);
}

/* Returns the pages that a layer of a layer-major prompt writes and reads. */
static uint32_t *buffer_of(const struct kv_sequence *kv, uint32_t layer) {
    return kv->selection.scratch.pages + (size_t)(layer % KV_N_BUFFERS) * kv->plan.n_buffer_pages;
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
    if (!kv->selection.left_text) leave(list, n_chosen, n_tail, n_moved);
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
    const uint32_t n_moved = (s->select.n_candidates - s->tail_start) / PAGE_TOKENS;
    assert(!s->left_text || n_moved <= 1);
    for (uint32_t l = 0; (l = kv_next_sparse(space, l)) < space->n_layers; l++)
        view_sparse(kv, l, n_moved);
    s->left_text = true;
    s->tail_start = s->select.n_candidates;
    kv->selection.n_offloaded = s->select.n_candidates - s->select.n_selected;
}

static void moved_describe(struct kv_sequence *kv, uint32_t n_rows, struct step_seq *seq) {
    const struct kv_space *space = kv->space;
    selection_observe(kv, n_rows, seq);
    if (selection_is_due(kv, n_rows)) view_selecting(kv, seq);
    else if (kv->plan.layer_major)
        for (uint32_t l = 0; l < space->n_layers; l++)
            if (is_buffered(space, l)) kv->views[l].pages = buffer_of(kv, l);
}

/* Transfers n pages of one layer to the host pool, the text's from `first` on; `list` begins with
 * them. */
static int store_layer(const struct kv_sequence *kv, uint32_t host_layer, const uint32_t *list,
                       uint32_t first, uint32_t n, struct error *err) {
    const uint32_t *blocks = kv->selection.blocks.pages + first;
    return page_io_offload(&kv->space->io, host_layer, list, blocks, n, err);
}

/* Transfers them back. */
static int fetch_layer(const struct kv_sequence *kv, uint32_t host_layer, const uint32_t *list,
                       uint32_t first, uint32_t n, struct error *err) {
    const uint32_t *blocks = kv->selection.blocks.pages + first;
    return page_io_reload(&kv->space->io, host_layer, list, blocks, n, err);
}

/* Transfers what the layer will read to its own pages, once all of the prompt's rows have entered
 * it. */
static int copy_own(const struct kv_sequence *kv, uint32_t layer, struct error *err) {
    const struct kv_space *space = kv->space;
    const bool is_sparse = kv_is_sparse(space, layer);
    const uint32_t first = is_sparse ? kv->selection.tail_start / PAGE_TOKENS : kv->n_expired,
                   to = is_sparse ? selection_chosen_pages(&kv->plan) : first;
    return page_io_copy(&space->io, buffer_of(kv, layer) + first, kv->layers[layer].pages + to,
                        kv->plan.n_buffer_pages - first, err);
}

/* Copies what was found of the prompt to a layer's buffer, before the first slice enters the layer.
 * The rows that the buffer had before have left their layer then. */
static int fetch_prefix(const struct kv_sequence *kv, uint32_t layer, struct error *err) {
    const struct kv_space *space = kv->space;
    if (layer == space->n_layers || !kv_is_sparse(space, layer)) return 0;
    return fetch_layer(kv, kv_host_layer_of(space, layer), buffer_of(kv, layer), 0,
                       kv->n_found / PAGE_TOKENS, err);
}

/* Completes a layer after its last slice: fills its own pages. */
static int complete_layer(const struct kv_sequence *kv, uint32_t layer, struct error *err) {
    const int code = is_buffered(kv->space, layer) ? copy_own(kv, layer, err) : 0;
    return code ? code : fetch_prefix(kv, layer + 1, err);
}

/* Saves the pages that the slice has filled in its layer.  Slices begin with a page, behind what
 * was found of the prompt.  After the last slice of all, the whole prompt is there. */
static int store_slice(struct kv_sequence *kv, const struct layer_slice *slice, struct error *err) {
    const struct kv_space *space = kv->space;
    const uint32_t layer = slice->layer, end = slice->first_row + slice->n_rows,
                   n_found = kv->n_found / PAGE_TOKENS,
                   first = n_found + slice->first_row / PAGE_TOKENS,
                   n = n_found + end / PAGE_TOKENS - first;
    const bool in_buffer = kv->plan.layer_major && is_buffered(space, layer);
    const uint32_t *list = in_buffer ? buffer_of(kv, layer) : kv->layers[layer].pages;
    int code = 0;
    if (layer + 1 == space->n_layers) kv->selection.n_written = first + n;
    if (kv_is_sparse(space, layer))
        code = store_layer(kv, kv_host_layer_of(space, layer), list + first, first, n, err);
    const bool is_last = kv->plan.layer_major && end == slice->n_prompt_rows;
    return code || !is_last ? code : complete_layer(kv, layer, err);
}

/* Saves the pages that the step has filled, of every host layer, in the host pool. */
static int moved_submitted(struct kv_sequence *kv, const struct layer_slice *slice,
                           struct error *err) {
    struct kv_selection *s = &kv->selection;
    if (slice && slice->layer == kv->space->n_layers) return 0; /* it has written nothing */
    if (slice) return store_slice(kv, slice, err);
    const struct kv_space *space = kv->space;
    const uint32_t first = s->n_written, n = kv->n_tokens / PAGE_TOKENS - first;
    uint32_t host_layer = 0;
    /* In a list that begins with chosen tokens the tail's pages are elsewhere. */
    const uint32_t at =
        s->left_text ? first + selection_chosen_pages(&kv->plan) - s->tail_start / PAGE_TOKENS
                     : first;
    int code = 0;
    for (uint32_t l = 0; (l = kv_next_sparse(space, l)) < space->n_layers && !code; l++)
        code = store_layer(kv, host_layer++, kv->layers[l].pages + at, first, n, err);
    s->n_written += n;
    return code;
}

/* Copies the sparse pages of the found block number i to the sequence's host block, which becomes
 * its token block. */
static int make_token_block(struct kv_sequence *kv, uint32_t i, struct error *err) {
    const struct kv_space *space = kv->space;
    const uint32_t *pages = prefix_cache_pages(space->cache, sequence_prefix_block(kv, i));
    uint32_t host_layer = 0;
    int code = 0;
    for (uint32_t l = 0; (l = kv_next_sparse(space, l)) < space->n_layers && !code; l++)
        code = store_layer(kv, host_layer++, &pages[l], i, 1, err);
    prefix_cache_set_token_block(space->cache, sequence_prefix_block(kv, i),
                                 kv->selection.blocks.pages[i]);
    return code;
}

/* Copies n host blocks, the text's from `first` on, to the pages of all sparse layers, number `at`
 * of their lists and those behind it. */
static int fetch(const struct kv_sequence *kv, uint32_t first, uint32_t n, uint32_t at,
                 struct error *err) {
    const struct kv_space *space = kv->space;
    uint32_t host_layer = 0;
    int code = 0;
    for (uint32_t l = 0; (l = kv_next_sparse(space, l)) < space->n_layers && !code; l++)
        code = fetch_layer(kv, host_layer++, kv->layers[l].pages + at, first, n, err);
    return code;
}

/* Fills the tail of a layer-major prompt all of which was found, but for its last token. */
static int fetch_tail(const struct kv_sequence *kv, struct error *err) {
    const uint32_t first = kv->selection.tail_start / PAGE_TOKENS;
    if (kv_swap_is_claimed(kv) || kv->n_tokens < kv_plan_together(&kv->plan)) return 0;
    return fetch(kv, first, sequence_prefix_n_blocks(kv) - first, selection_chosen_pages(&kv->plan),
                 err);
}

/* Tells whether the sequence's pages of the found block number i are the block's own. */
static bool is_in_place(const struct kv_sequence *kv, uint32_t i) {
    const struct prefix_cache *cache = kv->space->cache;
    const uint32_t layer = kv_next_sparse(kv->space, 0), *pages = kv->layers[layer].pages;
    return !prefix_cache_sparse_dropped(cache, sequence_prefix_block(kv, i)) &&
           prefix_cache_pages(cache, sequence_prefix_block(kv, i))[layer] == pages[i];
}

/* Makes missing token blocks, and copies to the sequence's pages what is not there. */
static int moved_resumed(struct kv_sequence *kv, struct error *err) {
    uint32_t first = 0; /* of those that are not there */
    int code = 0;
    if (kv->selection.left_text) return fetch_tail(kv, err);
    for (uint32_t i = 0; i < sequence_prefix_n_blocks(kv) && !code; i++) {
        const bool is_there = is_in_place(kv, i);
        if (prefix_cache_token_block(kv->space->cache, sequence_prefix_block(kv, i)) == KV_NO_PAGE)
            code = make_token_block(kv, i, err);
        if (!is_there) continue;
        if (!code) code = fetch(kv, first, i - first, first, err);
        first = i + 1;
    }
    return code ? code : fetch(kv, first, sequence_prefix_n_blocks(kv) - first, first, err);
}

/* Gives back what is no longer read once every step from before sparse layers left has
 * completed. */
static void trim(struct kv_sequence *kv) {
    const struct kv_space *space = kv->space;
    if (!kv->selection.left_text) return;
    for (uint32_t l = 0; (l = kv_next_sparse(space, l)) < space->n_layers; l++)
        kv_list_trim(&kv->layers[l], space->pool, selection_seen_pages(&kv->plan));
    kv_list_trim(&kv->selection.scratch, space->pool, 0);
}

/* Takes the pages that the other layers still lack, where all pages are taken at the start.  They
 * were among those that have just been given back. */
static void take_rest(struct kv_sequence *kv) {
    if (!kv->selection.left_text || !kv->space->batch_invariant) return;
    const int code = kv_lists_take(kv, kv_needs(kv, kv->plan.n_most).lengths);
    assert(code == 0);
    (void)code;
}

/* Gives back pages.  At most one step was in flight when sparse layers left; that one, or a later
 * one, has completed now.  No token of a layer-major prompt counts as stored before the last
 * slice. */
static void moved_done(struct kv_sequence *kv, uint32_t n_tokens) {
    if (n_tokens < kv_plan_together(&kv->plan)) return;
    trim(kv);
    take_rest(kv);
}

/* Chooses how generated tokens are computed again, should they be lost.  The text may have a token
 * that is not stored yet, and the next one needs a slot, too. */
static void choose_way_back(struct kv_sequence *kv) {
    const struct kv_space *space = kv->space;
    if (kv_phase_pages(space, &kv->plan, KV_PHASE_TEXT, kv->n_tokens + 2) >
        page_pool_n_pages(space->pool))
        kv->selection.recomputes_by_row = true;
}

/* Keeps the host blocks if data are swapped. */
static void moved_release(struct kv_sequence *kv) {
    struct page_list *blocks = &kv->selection.blocks;
    choose_way_back(kv);
    selection_drop(kv);
    kv_list_trim(&kv->selection.scratch, kv->space->pool, 0);
    kv->selection.n_offloaded = 0;
    if (kv_swap_n_tokens(kv) > 0) return;
    for (uint32_t i = 0; i < blocks->n; i++)
        if (blocks->pages[i] != KV_NO_PAGE)
            page_pool_release(kv->space->blocks, &blocks->pages[i], 1);
    blocks->n = kv->selection.n_block_holes = 0;
    begin(kv);
}

static const struct kv_kind moved = {
    .sharing = KV_SHARES_PROMPT,
    .grows = true,
    .moves = true,
    .most = moved_most,
    .ask = moved_ask,
    .prepare = moved_prepare,
    .matched = moved_matched,
    .resumed = moved_resumed,
    .take = moved_take,
    .describe = moved_describe,
    .submitted = moved_submitted,
    .done = moved_done,
    .add_kept = selection_add_kept,
    .release = moved_release,
};

const struct kv_kinds kv_kinds_moved = {.of = {[KV_PLAIN] = &kv_kind_full,
                                               [KV_WINDOWED] = &kv_kind_window,
                                               [KV_SPARSE] = &moved,
                                               [KV_BUDGETED] = &kv_kind_full},
                                        .all = {&kv_kind_full, &kv_kind_window, &moved}};
