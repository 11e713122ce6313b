/* sequence_recurrent.c - see sequence_recurrent.h. */
#include "engine/kv/sequence_recurrent.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/count.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/pages.h"
#include "engine/device/recurrent.h"
#include "engine/device/sparse.h"
#include "engine/device/step.h"
#include "engine/kv/checkpoints.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/reclaim.h"
#include "engine/kv/sequence_prefix.h"

void sequence_recurrent_init(struct kv_sequence *kv) {
    const struct sequence_recurrent *r = &kv->recurrent;
    kv->recurrent = (struct sequence_recurrent){.pending = r->pending,
                                                .max_pending = r->max_pending,
                                                .slot = CHECKPOINT_NONE,
                                                .next = CHECKPOINT_NONE,
                                                .stored = CHECKPOINT_NONE,
                                                .before = CHECKPOINT_NONE,
                                                .passing = CHECKPOINT_NONE};
}

int sequence_recurrent_prepare(struct kv_sequence *kv) {
    struct sequence_recurrent *r = &kv->recurrent;
    if (!kv->space->state_slots) return 0;
    const uint32_t n_slots = page_pool_n_pages(kv->space->state_slots),
                   n_left = kv->plan.n_most / kv->space->checkpoint_tokens + RECURRENT_MAX_PENDING;
    r->max_pending = min_u32(n_left, max_u32(n_slots / 2, 1));
    r->pending = calloc(r->max_pending, sizeof(*r->pending));
    return r->pending ? 0 : ERR_NOMEM;
}

void sequence_recurrent_fini(struct kv_sequence *kv) {
    free(kv->recurrent.pending);
}

static void release(struct page_pool *slots, uint32_t *slot) {
    if (*slot != CHECKPOINT_NONE) page_pool_release(slots, slot, 1);
    *slot = CHECKPOINT_NONE;
}

/* Tells whether the sequence has a slot that its next step may write. */
static bool can_write(const struct kv_sequence *kv) {
    const struct sequence_recurrent *r = &kv->recurrent;
    if (r->next != CHECKPOINT_NONE) return true;
    return r->slot != CHECKPOINT_NONE && page_pool_n_holders(kv->space->state_slots, r->slot) == 1;
}

/* Tells whether the sequence runs: a step has written its state. */
static bool has_begun(const struct kv_sequence *kv) {
    return kv->n_tokens > kv->n_found;
}

uint32_t sequence_recurrent_missing(const struct kv_sequence *kv) {
    return kv->space->state_slots && !has_begun(kv) && !can_write(kv);
}

void sequence_recurrent_match(struct kv_sequence *kv, uint32_t n_cached) {
    struct sequence_recurrent *r = &kv->recurrent;
    const struct kv_space *space = kv->space;
    const uint32_t n_blocks = kv->n_tokens / PAGE_TOKENS;
    if (!space->state_slots) return;
    r->branch = n_cached;
    if (n_blocks == 0) return;
    const uint32_t found =
        prefix_cache_checkpoint(space->cache, sequence_prefix_block(kv, n_blocks - 1));
    checkpoints_touch(space->checkpoints, found);
    if (checkpoints_is_stored(space->checkpoints, found)) {
        r->stored = found;
        return;
    }
    r->slot = found;
    page_pool_share(space->state_slots, &r->slot, 1);
}

int sequence_recurrent_resume(struct kv_sequence *kv, struct error *err) {
    struct sequence_recurrent *r = &kv->recurrent;
    if (r->slot != CHECKPOINT_NONE || r->stored != CHECKPOINT_NONE)
        checkpoints_count_use(kv->space->checkpoints);
    if (r->stored == CHECKPOINT_NONE) return 0;
    r->slot = r->next;
    r->next = CHECKPOINT_NONE;
    const uint32_t stored = r->stored;
    r->stored = CHECKPOINT_NONE;
    return checkpoints_read(kv->space->checkpoints, stored, r->slot, err);
}

/* Makes the state in `slot` the sequence's own, because there is no other slot. */
static void give_up_checkpoint(struct kv_sequence *kv) {
    struct sequence_recurrent *r = &kv->recurrent;
    const struct kv_space *space = kv->space;
    while (r->n_pending > 0) release(space->state_slots, &r->pending[--r->n_pending].slot);
    if (page_pool_n_holders(space->state_slots, r->slot) > 1)
        prefix_cache_drop_checkpoint(space->cache, checkpoints_block(space->checkpoints, r->slot));
}

void sequence_recurrent_take(struct kv_sequence *kv) {
    const struct kv_space *space = kv->space;
    if (!space->state_slots || can_write(kv)) return;
    if (kv_make_states_free(space, 1) == 0)
        page_pool_take_sure(space->state_slots, &kv->recurrent.next, 1);
    else give_up_checkpoint(kv);
}

uint32_t sequence_recurrent_max_guesses(const struct kv_sequence *kv, uint32_t n_tokens) {
    if (!kv->space->state_slots) return UINT32_MAX;
    return n_tokens % PAGE_TOKENS ? PAGE_TOKENS - n_tokens % PAGE_TOKENS : 0;
}

int sequence_recurrent_guess(struct kv_sequence *kv) {
    struct sequence_recurrent *r = &kv->recurrent;
    const struct kv_space *space = kv->space;
    if (!space->state_slots) return 0;
    if (r->next == CHECKPOINT_NONE) {
        if (kv_make_states_free(space, 1)) return ERR_FULL;
        page_pool_take_sure(space->state_slots, &r->next, 1);
    }
    r->guesses = true;
    return 0;
}

void sequence_recurrent_forget_guesses(struct kv_sequence *kv) {
    kv->recurrent.guesses = false;
}

uint32_t sequence_recurrent_take_back(struct kv_sequence *kv, uint32_t n_tokens) {
    struct sequence_recurrent *r = &kv->recurrent;
    struct page_pool *slots = kv->space->state_slots;
    if (r->before == CHECKPOINT_NONE) return n_tokens;
    if (n_tokens == kv->n_tokens) {
        release(slots, &r->before);
        return n_tokens;
    }
    while (r->n_pending > 0 && r->pending[r->n_pending - 1].n_tokens > r->n_before)
        release(slots, &r->pending[--r->n_pending].slot);
    release(slots, &r->slot);
    r->slot = r->before;
    r->before = CHECKPOINT_NONE;
    return r->n_before;
}

/* Tells whether blocks behind the prompt are shared. */
static bool shares_answer(const struct kv_sequence *kv) {
    return sequence_prefix_is_shared(kv) && !kv->space->batch_invariant;
}

/* Returns the end of the prompt's last block from which another choice may begin. */
static uint32_t last_end(const struct kv_sequence *kv) {
    return (kv->plan.n_prompt - 1) / PAGE_TOKENS * PAGE_TOKENS;
}

/* Returns the end of the last block before the prompt's last message; 0: it gets no checkpoint. */
static uint32_t end_before_last(const struct kv_sequence *kv) {
    const uint32_t n = kv->plan.n_before_last / PAGE_TOKENS * PAGE_TOKENS;
    return n >= kv->n_found + RECURRENT_MIN_LAST ? n : 0;
}

/* Returns the next end of a block in the prompt that gets a checkpoint, UINT32_MAX: there is
 * none. */
static uint32_t next_end(const struct kv_sequence *kv, uint32_t n_tokens) {
    const uint32_t every = kv->space->checkpoint_tokens, last = last_end(kv),
                   ends[] = {(n_tokens / every + 1) * every, kv->recurrent.branch,
                             end_before_last(kv), last};
    uint32_t next = UINT32_MAX;
    for (size_t i = 0; i < COUNT(ends) && sequence_prefix_is_shared(kv); i++)
        if (ends[i] > n_tokens && ends[i] <= last) next = min_u32(next, ends[i]);
    return next;
}

uint32_t sequence_recurrent_max_rows(const struct kv_sequence *kv) {
    if (!kv->space->state_slots) return UINT32_MAX;
    const uint32_t next = next_end(kv, kv->n_tokens);
    return next == UINT32_MAX ? next : next - kv->n_tokens;
}

/* Notes that a layer-major prompt is to leave a checkpoint behind n_tokens tokens, in place of the
 * first one if there are too many. */
static void plan_left(struct kv_sequence *kv, uint32_t n_tokens) {
    struct sequence_recurrent *r = &kv->recurrent;
    const uint32_t before = r->n_pending > 0 ? r->pending[r->n_pending - 1].n_tokens : kv->n_tokens;
    if (n_tokens == before) return;
    if (r->n_pending == r->max_pending)
        memmove(r->pending, r->pending + 1, --r->n_pending * sizeof(*r->pending));
    r->pending[r->n_pending++] =
        (struct pending_checkpoint){.n_tokens = n_tokens, .slot = CHECKPOINT_NONE};
}

/* Takes slots for the planned checkpoints, the last one first.  Those without are not left. */
static void take_left(struct kv_sequence *kv) {
    struct sequence_recurrent *r = &kv->recurrent;
    uint32_t n_lacking = r->n_pending;
    while (n_lacking > 0 && kv_make_states_free(kv->space, 1) == 0)
        page_pool_take_sure(kv->space->state_slots, &r->pending[--n_lacking].slot, 1);
    r->n_pending -= n_lacking;
    memmove(r->pending, r->pending + n_lacking, r->n_pending * sizeof(*r->pending));
}

/* Slices begin at whole tiles.  So a checkpoint of a layer-major prompt may be up to a tile before
 * the place where a prompt in chunks would have it. */
void sequence_recurrent_begin_slices(struct kv_sequence *kv, uint32_t n_rows) {
    const uint32_t first = kv->n_tokens;
    if (!kv->space->state_slots || first % PAGE_TOKENS != 0) return;
    assert(kv->recurrent.n_pending == 0);
    for (uint32_t end = next_end(kv, first); end < first + n_rows; end = next_end(kv, end))
        plan_left(kv, end - (end - first) % SPARSE_TILE);
    take_left(kv);
}

/* Returns the checkpoint at or behind row number `row` of a layer-major prompt, NULL: there is
 * none. */
static const struct pending_checkpoint *next_left(const struct kv_sequence *kv, uint32_t row) {
    const struct sequence_recurrent *r = &kv->recurrent;
    for (uint32_t i = 0; i < r->n_pending; i++)
        if (r->pending[i].n_tokens > kv->n_tokens && r->pending[i].n_tokens >= kv->n_tokens + row)
            return &r->pending[i];
    return NULL;
}

uint32_t sequence_recurrent_slice_rows(const struct kv_sequence *kv, uint32_t first_row) {
    const struct pending_checkpoint *left = next_left(kv, first_row + 1);
    return left ? left->n_tokens - kv->n_tokens - first_row : UINT32_MAX;
}

/* Returns where the state behind n_rows rows goes.  In a layer-major prompt that is the slot of the
 * next checkpoint, which each slice before it writes again. */
static uint32_t slot_behind(const struct kv_sequence *kv, uint32_t n_rows) {
    const struct sequence_recurrent *r = &kv->recurrent;
    const struct pending_checkpoint *left = next_left(kv, n_rows);
    if (left) return left->slot;
    return r->next == CHECKPOINT_NONE ? r->slot : r->next;
}

void sequence_recurrent_describe(const struct kv_sequence *kv, uint32_t first_row, uint32_t n_rows,
                                 struct step_seq *seq) {
    const struct sequence_recurrent *r = &kv->recurrent;
    if (!kv->space->state_slots) return;
    const uint32_t first = r->slot == CHECKPOINT_NONE ? STATE_ZERO : r->slot;
    seq->state.from = first_row > 0 ? slot_behind(kv, first_row) : first;
    seq->state.to = slot_behind(kv, first_row + n_rows);
}

/* Drops the first of the checkpoints that wait. */
static void drop_first(struct kv_sequence *kv) {
    struct sequence_recurrent *r = &kv->recurrent;
    release(kv->space->state_slots, &r->pending[0].slot);
    memmove(r->pending, r->pending + 1, --r->n_pending * sizeof(*r->pending));
}

/* Keeps the state behind the stored tokens for a checkpoint. */
static void keep(struct kv_sequence *kv, bool is_passing) {
    struct sequence_recurrent *r = &kv->recurrent;
    if (r->n_pending == r->max_pending) drop_first(kv);
    r->pending[r->n_pending++] = (struct pending_checkpoint){kv->n_tokens, r->slot, is_passing};
    page_pool_share(kv->space->state_slots, &r->slot, 1);
}

void sequence_recurrent_commit(struct kv_sequence *kv, uint32_t n_rows) {
    struct sequence_recurrent *r = &kv->recurrent;
    const struct kv_space *space = kv->space;
    if (!space->state_slots) return;
    r->n_before = kv->n_tokens - n_rows;
    if (r->guesses) r->before = r->slot;
    else if (r->next != CHECKPOINT_NONE) release(space->state_slots, &r->slot);
    if (r->next != CHECKPOINT_NONE) r->slot = r->next;
    r->next = CHECKPOINT_NONE;
    r->guesses = false;
    if (!space->cache || kv->n_tokens % PAGE_TOKENS != 0) return;
    if (next_end(kv, kv->n_tokens - 1) == kv->n_tokens) keep(kv, false);
    else if (kv->n_tokens >= kv->plan.n_prompt && shares_answer(kv))
        keep(kv, kv->n_tokens % space->checkpoint_tokens != 0);
}

/* Gives a checkpoint to its block, which the sequence uses, unless the block has one. */
static void insert(struct kv_sequence *kv, const struct pending_checkpoint *checkpoint) {
    struct sequence_recurrent *r = &kv->recurrent;
    const struct kv_space *space = kv->space;
    const uint32_t index = checkpoint->n_tokens / PAGE_TOKENS - 1;
    uint32_t slot = checkpoint->slot;
    if (index >= sequence_prefix_n_blocks(kv)) {
        release(space->state_slots, &slot);
        return;
    }
    const uint32_t block = sequence_prefix_block(kv, index);
    if (checkpoint->is_passing && r->passing != CHECKPOINT_NONE)
        prefix_cache_drop_checkpoint(space->cache, sequence_prefix_block(kv, r->passing));
    if (prefix_cache_checkpoint(space->cache, block) != CHECKPOINT_NONE)
        release(space->state_slots, &slot);
    else {
        prefix_cache_set_checkpoint(space->cache, block, slot);
        if (checkpoint->is_passing) r->passing = index;
    }
}

void sequence_recurrent_insert(struct kv_sequence *kv, uint32_t n_tokens) {
    struct sequence_recurrent *r = &kv->recurrent;
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < r->n_pending; i++) {
        if (r->pending[i].n_tokens <= n_tokens) insert(kv, &r->pending[i]);
        else r->pending[n_kept++] = r->pending[i];
    }
    r->n_pending = n_kept;
}

void sequence_recurrent_release(struct kv_sequence *kv) {
    struct sequence_recurrent *r = &kv->recurrent;
    struct page_pool *slots = kv->space->state_slots;
    if (!slots) return;
    while (r->n_pending > 0) release(slots, &r->pending[--r->n_pending].slot);
    release(slots, &r->next);
    release(slots, &r->before);
    release(slots, &r->slot);
    sequence_recurrent_init(kv);
}
