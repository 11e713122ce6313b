/* prefill_queue.c - see prefill_queue.h.
 *
 * Thread: engine.  Memory: none. */
#include "engine/schedule/prefill_queue.h"

#include <math.h>

#include "engine/base/sizes.h"
#include "engine/device/sparse.h"
#include "engine/device/step.h"
#include "engine/kv/kv_sequence.h"
#include "engine/schedule/sequence.h"

/* Returns the work of the prompts' rows in a step or slice (step_time.h). */
static double work_of(const struct prefill_queue *p, const struct batch *batch) {
    double work = 0;
    if (batch->kind == STEP_TIME_SLICE && batch->slice.layer == 0)
        return step_time_entering_work(&p->step_time, batch->step.n_rows);
    for (uint32_t i = batch->step.n_decode; i < batch->step.n_seqs; i++) {
        const struct step_seq *seq = &batch->step.seqs[i];
        const uint32_t n_before = seq->layers[step_first_budgeted(seq)].n_slots - seq->n_rows;
        work += step_time_work(&p->step_time, seq->n_rows,
                               seq->sparse ? step_time_seen(&p->step_time, n_before) : n_before);
    }
    return work;
}

/* ---- the owner of the prefill ---- */

/* Returns how to compute the rest of the prompt behind n_stored tokens.  The size of a sparse chunk
 * depends on the other rows of its step.  So a prompt that must not depend on those is dense
 * instead. */
static enum prefill_order order_of(const struct prefill_queue *p, const struct sequence *seq,
                                   uint32_t n_stored) {
    const enum prefill_order order = prefill_order(&seq->prefill, n_stored, p->max_long_rows);
    if (seq->kv.plan.layer_major) /* what is computed together is stored, or a prefix of it */
        return n_stored < seq->prefill.n_together ? PREFILL_LAYER_MAJOR : PREFILL_CHUNKED;
    const bool is_alone = p->space->batch_invariant || seq->prefill.no_reuse;
    return order == PREFILL_SPARSE_CHUNKED && is_alone ? PREFILL_CHUNKED : order;
}

/* Computes the answer once per owner, since a long prompt has many blocks to look up. */
bool prefill_queue_is_owned(const struct prefill_queue *p, struct sequence *seq) {
    if (!p->owner || !(seq->prefill.is_sparse || seq->kv.plan.layer_major)) return false;
    if (seq->refused_owner == p->n_owners) return true;
    const struct kv_wish wish = {.tokens = seq->tokens, .n_max = sequence_n_reusable(seq)};
    const bool waits = order_of(p, seq, kv_ask(&seq->kv, &wish).n_found) != PREFILL_CHUNKED;
    if (waits) seq->refused_owner = p->n_owners;
    return waits;
}

void prefill_queue_end(struct prefill_queue *p, struct sequence *seq) {
    if (p->owner == seq) p->owner = NULL;
    seq->prefill_order = PREFILL_CHUNKED;
}

bool prefill_queue_is_layer_major(const struct prefill_queue *p) {
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
    for (uint32_t i = 0; i < n_running; i++) budget.n_rows -= sequence_n_left(running[i]) == 1;
    if (!is_limited(p, running, n_running)) return budget;
    const double seconds = p->step_time.max_s - p->step_time.base_s;
    budget.work = step_time_budget(&p->step_time, STEP_TIME_STEP,
                                   prefill_queue_is_layer_major(p) ? seconds / 2 : seconds);
    return budget;
}

bool prefill_queue_has_budget(const struct prefill_budget *budget) {
    return budget->n_rows > 0 && (budget->is_whole || budget->work > 0);
}

static uint32_t n_resident(const struct sequence *seq) {
    return kv_n_resident(&seq->kv, seq->kv.n_tokens);
}

/* Returns how many slots the sequence's next rows see, not counting their own. */
static uint32_t n_slots_before(const struct prefill_queue *p, const struct sequence *seq) {
    const uint32_t n_slots = n_resident(seq);
    return seq->prefill_order == PREFILL_SPARSE_CHUNKED ? step_time_seen(&p->step_time, n_slots)
                                                        : n_slots;
}

/* Returns how many rows, at most n_rows, of the sequence's next chunk fit the budget. */
static uint32_t fitting_rows(const struct prefill_queue *p, const struct prefill_budget *budget,
                             const struct sequence *seq, uint32_t n_rows) {
    const uint32_t before = kv_n_shown(&seq->kv);
    uint32_t most = step_time_rows(&p->step_time, budget->work, n_slots_before(p, seq));
    if (budget->is_whole && most < PREFILL_MIN_STEP_ROWS) most = PREFILL_MIN_STEP_ROWS;
    if (!budget->is_whole)
        most = (uint32_t)min_u64(most, budget->n_slots > before ? budget->n_slots - before : 0);
    return min_u32(n_rows, min_u32(most, budget->n_rows));
}

uint32_t prefill_queue_next_rows(const struct prefill_queue *p, const struct prefill_budget *budget,
                                 struct sequence *seq) {
    const uint32_t left = sequence_n_left(seq);
    seq->is_sparse_chunk = false;
    if (seq->prefill_order == PREFILL_LAYER_MAJOR) return 0;
    if (left <= 1) return left;
    if (seq->prefill_order == PREFILL_CHUNKED) {
        const struct kv_grant grant = kv_ask(&seq->kv, &(struct kv_wish){0});
        return fitting_rows(p, budget, seq, min_u32(left, grant.n_rows));
    }
    return prefill_chunk_rows(seq->kv.n_tokens, seq->n_prompt - seq->kv.n_tokens,
                              fitting_rows(p, budget, seq, seq->prefill.chunk),
                              &seq->is_sparse_chunk);
}

/* Subtracts the sequence's n_rows rows from the budget. */
static void use_budget(const struct prefill_queue *p, struct prefill_budget *budget,
                       const struct sequence *seq) {
    if (seq->n_rows == 0) return;
    const uint64_t n_slots = (uint64_t)kv_n_shown(&seq->kv) + seq->n_rows;
    budget->n_rows -= seq->n_rows;
    budget->n_slots -= min_u64(budget->n_slots, n_slots);
    budget->work -= step_time_work(&p->step_time, seq->n_rows, n_slots_before(p, seq));
    if (budget->work < 0) budget->work = 0;
    budget->is_whole = false;
}

/* Returns true if rows become sparse for the first time. */
static bool begin_prompt(struct prefill_queue *p, struct sequence *seq) {
    seq->prefill_order = order_of(p, seq, seq->kv.n_tokens);
    if (seq->prefill_order == PREFILL_CHUNKED) return false;
    const bool was_sparse = seq->was_sparse;
    p->owner = seq;
    p->n_owners++;
    step_time_begin_prompt(&p->step_time);
    seq->was_sparse =
        prefill_order(&seq->prefill, seq->kv.n_tokens, p->max_long_rows) != PREFILL_CHUNKED;
    seq->slice = (struct layer_slice){
        .n_prompt_rows = seq->prefill.n_together - seq->kv.n_tokens,
        .leaves_last = seq->prompt_event || kv_plan_ends_prompt(&seq->kv.plan)};
    return seq->was_sparse && !was_sparse;
}

bool prefill_queue_begin(struct prefill_queue *p, struct sequence *seq,
                         struct prefill_budget *budget) {
    const bool becomes_sparse = begin_prompt(p, seq);
    seq->n_rows = prefill_queue_next_rows(p, budget, seq);
    use_budget(p, budget, seq);
    return becomes_sparse;
}

/* Does not subtract one-row chunks, which prefill_queue_budget() counted. */
void prefill_queue_place(const struct prefill_queue *p, struct prefill_budget *budget,
                         struct sequence *seq, uint32_t n_rows) {
    seq->n_rows = n_rows;
    if (sequence_n_left(seq) > 1) use_budget(p, budget, seq);
}

/* Does not change is_whole, because the step's first prefill chunk is still to come. */
void prefill_queue_add_drafts(const struct prefill_queue *p, struct prefill_budget *budget,
                              struct sequence *seq, uint32_t n) {
    if (n == 0) return;
    seq->n_rows += n;
    budget->n_rows -= n;
    budget->work = fmax(0, budget->work - step_time_work(&p->step_time, n, n_resident(seq)));
}

/* Begins an interval: the slices after the step may take what it leaves of the time between two
 * tokens. */
static void begin_interval(struct prefill_queue *p, const struct batch *step) {
    p->slice_is_due = true;
    p->until_step_s = 0;
    if (p->step_time.max_s > 0 && step->decodes)
        p->until_step_s = p->step_time.max_s -
                          step_time_seconds(&p->step_time, STEP_TIME_STEP, step->prompt_work);
}

/* Notes the token that the entry samples, if it does, as its sequence's next one. */
static void await_sample(const struct batch *batch, const struct batch_entry *entry) {
    if (!batch_samples(batch, entry)) return;
    entry->seq->n_sampled++;
    entry->seq->draw_row = entry->first_sample + entry->n_samples - 1;
}

void prefill_queue_commit_step(struct prefill_queue *p, struct batch *step) {
    step->prompt_work = work_of(p, step);
    begin_interval(p, step);
    for (uint32_t i = 0; i < step->step.n_seqs; i++) {
        const struct batch_entry *entry = &step->entries[i];
        struct sequence *seq = entry->seq;
        kv_commit(&seq->kv, seq->n_rows);
        seq->n_rows = 0;
        if (seq->prefill_order == PREFILL_SPARSE_CHUNKED && seq->kv.n_tokens >= seq->n_prompt)
            prefill_queue_end(p, seq);
        await_sample(step, entry);
    }
}

/* ---- slices ---- */

/* Returns how many slots the keys of a layer-major prompt are chosen from. */
static uint32_t n_indexed(const struct sequence *seq) {
    return seq->kv.n_tokens + seq->slice.n_prompt_rows;
}

/* Returns the next slice's rows, at most `most`; every slice but a layer's last is whole tiles. */
static uint32_t slice_rows(const struct sequence *seq, uint32_t most) {
    const uint32_t left = seq->slice.n_prompt_rows - seq->slice.first_row;
    return left <= most ? left : most - most % SPARSE_TILE;
}

static uint32_t rows_in(const struct prefill_queue *p, const struct sequence *seq, double seconds) {
    const uint32_t n_before = seq->kv.n_tokens + seq->slice.first_row;
    const double budget = step_time_budget(&p->step_time, STEP_TIME_SLICE, seconds);
    if (seq->slice.layer == 0) return step_time_entering_rows(&p->step_time, budget);
    return step_time_rows(&p->step_time, budget,
                          seq->was_sparse ? step_time_seen(&p->step_time, n_before) : n_before);
}

/* Returns how many rows the rest of the interval allows.  A layer's last slice must leave time for
 * the index.  The cost of a prompt's first index is not known, nor that of its first rows with
 * chosen keys.  On a device that has never run them it is high.  So both come in a slice of at most
 * a tile. */
static uint32_t timely_rows(const struct prefill_queue *p, const struct sequence *seq) {
    const uint32_t left = seq->slice.n_prompt_rows - seq->slice.first_row,
                   most = rows_in(p, seq, p->until_step_s);
    if (seq->was_sparse && seq->slice.layer > 0 && !step_time_knows_seen(&p->step_time)) return 0;
    if (left > most || !seq->was_sparse) return most;
    if (!step_time_knows_index(&p->step_time)) return left - 1;
    return rows_in(p, seq,
                   p->until_step_s - step_time_index_seconds(&p->step_time, n_indexed(seq)));
}

/* Returns at least a tile, unless the layer has less left, so that the prompt always advances. */
static uint32_t next_slice_rows(const struct prefill_queue *p) {
    if (!p->slice_is_limited) return slice_rows(p->owner, p->max_rows);
    const uint32_t most = max_u32(timely_rows(p, p->owner), SPARSE_TILE);
    return slice_rows(p->owner, min_u32(most, p->max_rows));
}

void prefill_queue_build_slice(struct prefill_queue *p, struct batch *slice,
                               struct sequence *const *running, uint32_t n_running) {
    p->slice_is_limited = is_limited(p, running, n_running);
    batch_build_slice(slice, p->owner, next_slice_rows(p));
}

static void advance(struct prefill_queue *p, struct batch *slice) {
    struct sequence *seq = p->owner;
    struct layer_slice *next = &seq->slice;
    next->first_row += slice->slice.n_rows;
    if (next->first_row < next->n_prompt_rows) return;
    next->first_row = 0;
    if (++next->layer < p->space->n_layers + next->leaves_last) return;
    kv_commit(&seq->kv, next->n_prompt_rows);
    slice->entries[0].n_stored = seq->kv.n_tokens;
    await_sample(slice, &slice->entries[0]);
    prefill_queue_end(p, seq);
}

/* Makes another slice due, before the next step, if the interval has time for a full-sized one. */
void prefill_queue_commit_slice(struct prefill_queue *p, struct batch *slice) {
    const struct sequence *seq = p->owner;
    slice->prompt_work = work_of(p, slice);
    advance(p, slice);
    p->until_step_s -= step_time_seconds(&p->step_time, STEP_TIME_SLICE, slice->prompt_work);
    p->slice_is_due = p->slice_is_limited && prefill_queue_is_layer_major(p) &&
                      timely_rows(p, seq) >= slice_rows(seq, p->max_rows);
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

/* Measures from the moment the batch was planned, or from the end of the batch before it if that
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
