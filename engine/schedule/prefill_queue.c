/* prefill_queue.c - see prefill_queue.h. */
#include "engine/schedule/prefill_queue.h"

#include <math.h>

#include "engine/base/sizes.h"
#include "engine/device/sparse.h"
#include "engine/device/step.h"
#include "engine/kv/kv_sequence.h"
#include "engine/schedule/sequence.h"

/* Returns how many of n_before slots a prompt's row sees; chooses: it chooses keys. */
static uint32_t n_seen(const struct prefill_queue *p, uint32_t n_before, bool chooses) {
    return chooses ? step_time_seen(&p->step_time, n_before) : n_before;
}

/* Returns the work of the prompts' rows in a step or slice (step_time.h). */
static double work_of(const struct prefill_queue *p, const struct batch *batch) {
    const uint32_t layer = batch->kind == STEP_TIME_SLICE ? batch->slice.layer : STEP_TIME_ALL;
    double work = 0;
    for (uint32_t i = batch->step.n_decode; i < batch->step.n_seqs; i++) {
        const struct step_seq *seq = &batch->step.seqs[i];
        const uint32_t n_slots = seq->layers[step_first_budgeted(seq)].n_slots,
                       n_before = n_seen(p, n_slots - seq->n_rows, seq->sparse != NULL);
        work += step_time_work(&p->step_time, layer, seq->n_rows, n_before);
    }
    return work;
}

/* ---- the owner of the prefill ---- */

/* Returns how to compute the rest of the prompt behind n_stored tokens.  *is_sparse tells whether
 * its plan would choose keys.  The size of a sparse chunk depends on the other rows of its step.
 * So a prompt that must not depend on those is dense instead. */
static enum prefill_order order_of(const struct prefill_queue *p, const struct sequence *seq,
                                   uint32_t n_stored, bool *is_sparse) {
    const enum prefill_order order = prefill_order(&seq->prefill, n_stored, p->max_long_rows);
    const bool is_alone = p->space->batch_invariant || seq->prefill.no_reuse;
    *is_sparse = order != PREFILL_CHUNKED;
    if (seq->kv.plan.layer_major) /* what is computed together is stored, or a prefix of it */
        return n_stored < seq->prefill.n_together ? PREFILL_LAYER_MAJOR : PREFILL_CHUNKED;
    return order == PREFILL_SPARSE_CHUNKED && is_alone ? PREFILL_CHUNKED : order;
}

/* Computes the answer once per owner, since a long prompt has many blocks to look up. */
bool prefill_queue_is_owned(const struct prefill_queue *p, struct sequence *seq,
                            const struct kv_wish *wish) {
    if (!p->owner || !(seq->prefill.is_sparse || seq->kv.plan.layer_major)) return false;
    if (seq->refused_owner == p->n_owners) return true;
    const struct kv_wish text = {.tokens = wish->tokens, .n_max = wish->n_max};
    bool is_sparse;
    const uint32_t n_found = kv_ask(&seq->kv, &text).n_found;
    const bool waits = order_of(p, seq, n_found, &is_sparse) != PREFILL_CHUNKED;
    if (waits) seq->refused_owner = p->n_owners;
    return waits;
}

void prefill_queue_end(struct prefill_queue *p, struct sequence *seq) {
    seq->prefill_order = PREFILL_CHUNKED;
    if (p->owner != seq) return;
    p->owner = NULL;
    p->slice_is_due = false;
}

/* Tells whether the owner's prompt is layer-major. */
static bool is_layer_major(const struct prefill_queue *p) {
    return p->owner && p->owner->prefill_order == PREFILL_LAYER_MAJOR;
}

/* ---- prefill chunks in steps ---- */

/* Tells whether chunks and slices are cut to keep max_itl_s: it is set, and a sequence
 * generates. */
static bool is_limited(const struct prefill_queue *p, struct sequence *const *running,
                       uint32_t n_running) {
    if (p->step_time.max_s <= 0) return false;
    for (uint32_t i = 0; i < n_running; i++)
        if (running[i]->kv.n_tokens >= running[i]->n_prompt) return true; /* it generates */
    return false;
}

/* Leaves half of the time to the slices of a layer-major prompt. */
struct prefill_budget prefill_queue_budget(const struct prefill_queue *p,
                                           struct sequence *const *running, uint32_t n_running) {
    struct prefill_budget budget = {.n_rows = p->max_rows,
                                    .n_slots = p->max_slots ? p->max_slots : UINT64_MAX,
                                    .work = INFINITY,
                                    .is_whole = true};
    const double free_s = p->step_time.max_s - p->step_time.base_s,
                 seconds = is_layer_major(p) ? free_s / 2 : free_s;
    const bool limited = is_limited(p, running, n_running);
    for (uint32_t i = 0; i < n_running; i++)
        budget.n_rows -= sequence_n_left(running[i], n_running) == 1;
    if (limited) budget.work = step_time_budget(&p->step_time, STEP_TIME_STEP, seconds);
    budget.is_spent = budget.n_rows == 0;
    return budget;
}

/* Returns how many rows of this chunk fit the budget. */
static uint32_t fitting_rows(const struct prefill_queue *p, const struct prefill_budget *budget,
                             const struct planned_rows *chunk) {
    uint64_t most = step_time_rows(&p->step_time, STEP_TIME_ALL, budget->work, chunk->n_seen);
    if (budget->is_whole) most = max_u64(most, PREFILL_MIN_STEP_ROWS);
    else most = min_u64(most, budget->n_slots - min_u64(budget->n_slots, chunk->n_shown));
    return (uint32_t)min_u64(most, budget->n_rows);
}

/* Returns the rows of the next chunk under PREFILL_SPARSE_CHUNKED: at most `most` of the n_left
 * rows that follow n_stored tokens.  Sets *is_sparse if they choose keys: they begin at a whole
 * page, and are whole pages or the prompt's last rows. */
static uint32_t sparse_chunk_rows(uint32_t n_stored, uint32_t n_left, uint32_t most,
                                  bool *is_sparse) {
    const uint32_t ragged = n_stored % PAGE_TOKENS;
    uint32_t n_rows = min_u32(n_left, most);
    *is_sparse = ragged == 0 && (n_rows == n_left || n_rows >= PAGE_TOKENS);
    if (ragged > 0 && n_rows > PAGE_TOKENS - ragged) return PAGE_TOKENS - ragged;
    if (*is_sparse && n_rows < n_left) n_rows -= n_rows % PAGE_TOKENS;
    return n_rows;
}

/* Returns how many rows behind n_stored tokens the next chunk has: `whole`, or at most `most` where
 * it may be cut. */
static uint32_t chunk_rows(const struct prefill_queue *p, uint32_t n_stored, uint32_t whole,
                           uint32_t most) {
    if (whole <= most || p->space->prompt_unit == 0) return min_u32(whole, most);
    return most - min_u32(most, (n_stored + most) % p->space->prompt_unit);
}

/* Returns a chunk's rows without the prompt's last one, if that should have a step of its own.  It
 * should not where rows leave logits anyway, nor where budgets are: their scores are those of all
 * layers. */
static uint32_t without_last(const struct prefill_queue *p, const struct sequence *seq,
                             uint32_t n_rows, uint32_t n_left) {
    const bool leaves_last = p->most_with_last > 0 && n_rows == n_left &&
                             n_rows > p->most_with_last && !seq->prompt_event &&
                             layer_set_is_empty(&seq->kv.plan.budgeted);
    return leaves_last ? n_rows - 1 : n_rows;
}

struct planned_rows prefill_queue_next_rows(const struct prefill_queue *p,
                                            const struct prefill_budget *budget,
                                            struct sequence *seq, uint32_t n_left, bool starts) {
    const uint32_t n_tokens = seq->kv.n_tokens;
    struct planned_rows rows = {.n = n_left};
    seq->is_sparse_chunk = false;
    if (seq->prefill_order == PREFILL_LAYER_MAJOR) return (struct planned_rows){0};
    if (n_left <= 1 && !starts) return rows;
    const struct kv_grant grant = kv_ask(&seq->kv, &(struct kv_wish){0});
    rows.is_chunk = true;
    rows.n_shown = grant.n_shown;
    rows.n_seen = n_seen(p, grant.n_resident, seq->prefill_order == PREFILL_SPARSE_CHUNKED);
    if (n_left <= 1) return rows;
    const uint32_t most =
        min_u32(fitting_rows(p, budget, &rows), sequence_recurrent_max_rows(&seq->kv));
    if (seq->prefill_order == PREFILL_CHUNKED)
        rows.n = without_last(p, seq, chunk_rows(p, n_tokens, min_u32(n_left, grant.n_rows), most),
                              n_left);
    else
        rows.n = sparse_chunk_rows(n_tokens, seq->n_prompt - n_tokens,
                                   min_u32(most, seq->prefill.chunk), &seq->is_sparse_chunk);
    return rows;
}

/* Does not subtract the only row that a running sequence has left, which prefill_queue_budget()
 * counted.  After rows of guesses the step's first prefill chunk is still to come. */
void prefill_queue_place(const struct prefill_queue *p, struct prefill_budget *budget,
                         struct sequence *seq, const struct planned_rows *rows) {
    const uint32_t n = rows->is_chunk ? rows->n : rows->n_drafts;
    seq->n_rows = rows->n + rows->n_drafts;
    budget->is_spent |= rows->is_chunk && n == 0; /* what is left is too little for any chunk */
    if (n == 0) return;
    budget->n_rows -= n;
    const double work = step_time_work(&p->step_time, STEP_TIME_ALL, n, rows->n_seen);
    budget->work = fmax(0, budget->work - work);
    if (rows->is_chunk) {
        budget->n_slots -= min_u64(budget->n_slots, (uint64_t)rows->n_shown + n);
        budget->is_whole = false;
    }
    budget->is_spent = budget->n_rows == 0 || (!budget->is_whole && budget->work == 0);
}

bool prefill_queue_begin(struct prefill_queue *p, struct sequence *seq) {
    const bool was_sparse = seq->was_sparse;
    bool is_sparse;
    seq->prefill_order = order_of(p, seq, seq->kv.n_tokens, &is_sparse);
    if (seq->prefill_order == PREFILL_CHUNKED) return false;
    p->owner = seq;
    p->n_owners++;
    step_time_begin_prompt(&p->step_time);
    seq->was_sparse = is_sparse;
    seq->n_together = is_sparse ? seq->prefill.n_together : kv_plan_together(&seq->kv.plan);
    seq->slice = (struct layer_slice){.n_prompt_rows = seq->prefill.n_together - seq->kv.n_tokens,
                                      .leaves_last = seq->prompt_event ||
                                                     seq->prefill.n_together == seq->n_prompt ||
                                                     p->space->ends_recurrent};
    if (seq->prefill_order == PREFILL_LAYER_MAJOR)
        sequence_recurrent_begin_slices(&seq->kv, seq->slice.n_prompt_rows);
    return is_sparse && !was_sparse;
}

/* Begins an interval: the slices after the step may take what it leaves of the time between two
 * tokens. */
void prefill_queue_commit_step(struct prefill_queue *p, struct batch *step) {
    const struct step_time *step_time = &p->step_time;
    for (uint32_t i = 0; i < step->step.n_seqs; i++) {
        struct sequence *seq = step->entries[i].seq;
        kv_commit(&seq->kv, seq->n_rows);
        seq->n_rows = 0;
        if (seq->prefill_order == PREFILL_SPARSE_CHUNKED && seq->kv.n_tokens >= seq->n_prompt)
            prefill_queue_end(p, seq);
    }
    p->slice_is_due = is_layer_major(p);
    p->until_step_s = 0;
    step->prompt_work = work_of(p, step);
    if (step_time->max_s > 0 && step->decodes)
        p->until_step_s =
            step_time->max_s - step_time_seconds(step_time, STEP_TIME_STEP, step->prompt_work);
}

/* ---- slices ---- */

/* Returns the next slice's rows, at most `most`; every slice but a layer's last is whole tiles, and
 * ends where a recurrent state is kept. */
static uint32_t slice_rows(const struct sequence *seq, uint32_t most) {
    const uint32_t left = seq->slice.n_prompt_rows - seq->slice.first_row,
                   fitting = left <= most ? left : most - most % SPARSE_TILE;
    return min_u32(fitting, sequence_recurrent_slice_rows(&seq->kv, seq->slice.first_row));
}

/* Returns how many rows of the owner's layer behind n_before slots take at most `seconds`. */
static uint32_t rows_within(const struct prefill_queue *p, double seconds, uint32_t n_before) {
    const double work = step_time_budget(&p->step_time, STEP_TIME_SLICE, seconds);
    return step_time_rows(&p->step_time, p->owner->slice.layer, work, n_before);
}

/* Returns how many rows the rest of the interval allows.  A layer's last slice must leave time for
 * the index.  The cost of a prompt's first index is not known, nor that of its first rows with
 * chosen keys.  On a device that has never run them it is high.  So both come in a slice of at most
 * a tile. */
static uint32_t timely_rows(const struct prefill_queue *p, const struct sequence *seq) {
    const struct step_time *step_time = &p->step_time;
    const struct layer_slice *next = &seq->slice;
    const uint32_t left = next->n_prompt_rows - next->first_row, stored = seq->kv.n_tokens,
                   n_before = n_seen(p, stored + next->first_row, seq->was_sparse),
                   most = rows_within(p, p->until_step_s, n_before);
    if (seq->was_sparse && next->layer > 0 && step_time->seen == 0) return 0;
    if (left > most || !seq->was_sparse) return most;
    const double index_s = step_time_index_seconds(step_time, stored + next->n_prompt_rows);
    if (index_s == 0) return left - 1;
    return rows_within(p, p->until_step_s - index_s, n_before);
}

/* Advances the owner past the slice.  The prompt's rows count as stored once its last slice is
 * planned. */
static void advance(struct prefill_queue *p, struct batch *slice) {
    struct sequence *seq = p->owner;
    struct layer_slice *next = &seq->slice;
    next->first_row += slice->slice.n_rows;
    if (next->first_row < next->n_prompt_rows) return;
    next->first_row = 0;
    if (++next->layer < p->space->n_layers + next->leaves_last) return;
    kv_commit(&seq->kv, next->n_prompt_rows);
    slice->entries[0].n_stored = seq->kv.n_tokens;
    prefill_queue_end(p, seq);
}

/* Gives a slice at least a tile of rows, unless the layer has less left, so that the prompt always
 * advances.  Another slice is due before the next step if the interval has time for a full-sized
 * one. */
bool prefill_queue_next_slice(struct prefill_queue *p, struct batch *slice,
                              struct sequence *const *running, uint32_t n_running) {
    struct sequence *seq = p->owner;
    if (!is_layer_major(p)) return false;
    const bool limited = is_limited(p, running, n_running);
    const uint32_t timely = limited ? max_u32(timely_rows(p, seq), SPARSE_TILE) : UINT32_MAX;
    batch_build_slice(slice, seq, slice_rows(seq, min_u32(timely, p->max_rows)));
    slice->prompt_work = work_of(p, slice);
    p->until_step_s -= step_time_seconds(&p->step_time, STEP_TIME_SLICE, slice->prompt_work);
    advance(p, slice);
    p->slice_is_due = limited && p->owner && timely_rows(p, seq) >= slice_rows(seq, p->max_rows);
    return true;
}

/* ---- the cost of steps and slices ---- */

/* Measures how many slots the sparse rows saw.  Slices of the first layer compute no attention, so
 * their density is 0. */
static void measure_seen(struct prefill_queue *p, const struct batch *batch) {
    const double density = sparse_density(&batch->visited);
    for (uint32_t i = 0; i < batch->step.n_seqs && density > 0; i++) {
        const struct step_seq *seq = &batch->step.seqs[i];
        if (seq->sparse)
            step_time_measure_seen(&p->step_time, density * (seq->n_before + seq->n_rows / 2.0));
    }
}

/* Measures from when the batch was planned, or from the end of the batch before it if that
 * was later.  The few rows of guesses say little of a prompt's cost. */
double prefill_queue_measure(struct prefill_queue *p, const struct batch *batch, double now_s) {
    const double begin_s = p->done_s > batch->planned_s ? p->done_s : batch->planned_s,
                 index_s = batch->kind == STEP_TIME_SLICE ? batch->visited.index_s : 0;
    if (batch->n_drafting == 0 || !batch_only_generates(batch))
        step_time_measure(&p->step_time, batch->kind, batch->prompt_work, batch->decodes,
                          now_s - begin_s - index_s);
    measure_seen(p, batch);
    if (index_s > 0)
        step_time_measure_index(&p->step_time, batch->choice.first_slot + batch->choice.n_rows,
                                index_s);
    p->done_s = now_s;
    return now_s - begin_s;
}
