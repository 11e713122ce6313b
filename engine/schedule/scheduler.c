/* scheduler.c - applies the rules of scheduler.h, in order; prefill_queue.c works out how many rows
 * of a prompt a step or slice takes.
 *
 * Running sequences are visited in order of rank and preempted from the end.  So a sequence that
 * already has its rows in the step being planned is never preempted for a later one.
 *
 * Planning a step costs a few operations for each running sequence and each waiting sequence that
 * is considered.  Nothing depends on the length of a sequence, except its new tokens. */
#include "engine/schedule/scheduler.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/host_pool.h"
#include "engine/device/select.h"
#include "engine/device/sparse.h"
#include "engine/kv/checkpoints.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/reclaim.h"
#include "engine/kv/swap.h"
#include "engine/schedule/fair_share.h"
#include "engine/schedule/prefill_queue.h"
#include "engine/schedule/sequence.h"

struct scheduler {
    const struct kv_space *space;
    uint32_t max_rows, max_seqs;
    double (*now_s)(void);
    struct shared_credit *guess_credit;
    struct prefill_queue prefill_queue;
    struct fair_share fair_share;
    struct sequence *first_waiting, *last_waiting;
    struct sequence *first_failed; /* scheduler_end_failed() ends them */
    struct sequence **running;     /* [n_running], by rank */
    uint32_t n_waiting, n_running;
    struct batch batches[MAX_INFLIGHT]; /* a ring; n_inflight of them, from `oldest` on */
    uint32_t oldest, n_inflight;
    struct engine_stats stats;
};

int scheduler_create(struct scheduler **out, const struct scheduler_config *config,
                     struct error *err) {
    const uint32_t max_rows = config->max_rows, max_seqs = config->max_seqs;
    assert(max_seqs >= 1 && max_rows >= max_seqs);
    assert(config->max_long_rows == 0 || max_rows >= SPARSE_TILE);
    assert(max_rows + 1 >= max_seqs + config->space->prompt_unit);
    struct scheduler *s = calloc(1, sizeof(*s));
    if (!s) return error_set(err, ERR_NOMEM, "no memory for the scheduler");
    s->space = config->space;
    s->max_rows = max_rows;
    s->max_seqs = max_seqs;
    s->now_s = config->now_s;
    s->guess_credit = config->guess_credit;
    s->prefill_queue = (struct prefill_queue){
        .space = config->space,
        .max_rows = max_rows,
        .max_long_rows = config->max_long_rows,
        .max_slots = config->max_prompt_slots,
        .most_with_last = config->most_with_last,
        .step_time = step_time_make(config->row_work, config->enter_work, config->pair_work,
                                    config->max_itl_s),
    };
    int code = 0;
    for (int i = 0; i < MAX_INFLIGHT && !code; i++)
        code = batch_init(&s->batches[i], max_rows, max_seqs, err);
    if (code) goto fail;
    s->running = calloc(max_seqs, sizeof(*s->running));
    if (!s->running) {
        code = error_set(err, ERR_NOMEM, "no memory for %u sequences", max_seqs);
        goto fail;
    }
    *out = s;
    return 0;

fail:
    scheduler_destroy(s);
    return code;
}

void scheduler_destroy(struct scheduler *s) {
    if (!s) return;
    assert(s->n_running == 0 && s->n_waiting == 0 && !s->first_failed && s->n_inflight == 0);
    for (int i = 0; i < MAX_INFLIGHT; i++) batch_fini(&s->batches[i]);
    free(s->running);
    free(s);
}

static bool ranks_before(const struct sequence *a, const struct sequence *b) {
    if (a->priority != b->priority) return a->priority < b->priority;
    return a->share_tag != b->share_tag ? a->share_tag < b->share_tag : a->id < b->id;
}

/* Inserts by rank.  Walks from the closer side: new sequences belong near the end, preempted ones
 * near the beginning. */
static void waiting_insert(struct scheduler *s, struct sequence *seq) {
    struct sequence *next = NULL;
    if (seq->admitted) {
        for (next = s->first_waiting; next && ranks_before(next, seq);) next = next->next;
    } else {
        struct sequence *prev = s->last_waiting;
        while (prev && ranks_before(seq, prev)) prev = prev->prev;
        next = prev ? prev->next : s->first_waiting;
    }
    seq->next = next;
    seq->prev = next ? next->prev : s->last_waiting;
    if (seq->prev) seq->prev->next = seq;
    else s->first_waiting = seq;
    if (next) next->prev = seq;
    else s->last_waiting = seq;
    s->n_waiting++;
    s->stats.n_suspended += seq->admitted;
}

static void waiting_remove(struct scheduler *s, struct sequence *seq) {
    if (seq->prev) seq->prev->next = seq->next;
    else s->first_waiting = seq->next;
    if (seq->next) seq->next->prev = seq->prev;
    else s->last_waiting = seq->prev;
    seq->prev = seq->next = NULL;
    s->n_waiting--;
    s->stats.n_suspended -= seq->admitted;
}

static void running_insert(struct scheduler *s, struct sequence *seq) {
    uint32_t at = s->n_running++;
    for (; at > 0 && ranks_before(seq, s->running[at - 1]); at--)
        s->running[at] = s->running[at - 1];
    s->running[at] = seq;
}

static void running_remove(struct scheduler *s, uint32_t at) {
    s->n_running--;
    memmove(s->running + at, s->running + at + 1, (s->n_running - at) * sizeof(*s->running));
}

/* Retires a sequence that has had its final event: destroys it unless an in-flight step uses its
 * pages. */
static void retire(struct scheduler *s, struct sequence *seq) {
    prefill_queue_end(&s->prefill_queue, seq);
    seq->over = true;
    if (seq->n_inflight > 0) return;
    fair_share_end(&s->fair_share, seq->tenant, sequence_n_generated(seq));
    sequence_leave_state(seq);
    sequence_destroy(seq);
}

static void count_failure(struct scheduler *s, int code) {
    s->stats.n_failed++;
    s->stats.n_not_numbers += code == ERR_NUMERIC;
}

/* Puts a sequence aside that has been removed from both lists and has no pages.  It cannot go on;
 * seq->failure says why. */
static void fail(struct scheduler *s, struct sequence *seq) {
    seq->next = s->first_failed;
    s->first_failed = seq;
}

/* Ends a sequence that has been removed from all lists. */
static void end(struct scheduler *s, struct sequence *seq, enum finish_reason reason, int code,
                const char *text, struct event_list *events) {
    sequence_end(seq, reason, code, text, events);
    if (reason == FINISH_CANCELLED) s->stats.n_cancelled++;
    else count_failure(s, code);
    retire(s, seq);
}

void scheduler_add(struct scheduler *s, struct sequence *seq, struct event_list *events) {
    timing_queue(&seq->timing, s->now_s());
    seq->share_tag = fair_share_enter(&s->fair_share, seq->tenant, seq->weight, seq->n_prompt,
                                      seq->params.max_tokens);
    if (kv_prepare(&seq->kv, seq->tokens))
        end(s, seq, FINISH_ERROR, ERR_NOMEM, "no memory for the request's page lists", events);
    else waiting_insert(s, seq);
}

void scheduler_cancel(struct scheduler *s, uint64_t id, struct event_list *events) {
    for (uint32_t i = 0; i < s->n_running; i++) {
        struct sequence *seq = s->running[i];
        if (seq->id != id) continue;
        running_remove(s, i);
        end(s, seq, FINISH_CANCELLED, 0, NULL, events);
        return;
    }
    struct sequence *seq = s->first_waiting;
    while (seq && seq->id != id) seq = seq->next;
    if (!seq) return;
    waiting_remove(s, seq);
    end(s, seq, FINISH_CANCELLED, 0, NULL, events);
}

/* Removes the oldest in-flight step from the ring and returns it. */
static struct batch *complete(struct scheduler *s) {
    struct batch *batch = &s->batches[s->oldest];
    s->oldest = (s->oldest + 1) % MAX_INFLIGHT;
    s->n_inflight--;
    for (uint32_t i = 0; i < batch->step.n_seqs; i++) {
        struct sequence *seq = batch->entries[i].seq;
        seq->n_inflight--;
        if (batch->entries[i].draws) seq->n_sampled--;
    }
    return batch;
}

static void retire_over(struct scheduler *s, const struct batch *batch) {
    for (uint32_t i = 0; i < batch->step.n_seqs; i++)
        if (batch->entries[i].seq->over) retire(s, batch->entries[i].seq);
}

void scheduler_end_failed(struct scheduler *s, struct event_list *events) {
    while (s->first_failed) {
        struct sequence *seq = s->first_failed;
        s->first_failed = seq->next;
        end(s, seq, FINISH_ERROR, seq->failure.code, seq->failure.text, events);
    }
}

void scheduler_end_all(struct scheduler *s, enum finish_reason reason, int code, const char *text,
                       struct event_list *events) {
    while (s->n_inflight > 0) retire_over(s, complete(s));
    while (s->n_running > 0) end(s, s->running[--s->n_running], reason, code, text, events);
    while (s->first_waiting) {
        struct sequence *seq = s->first_waiting;
        waiting_remove(s, seq);
        end(s, seq, reason, code, text, events);
    }
}

static uint32_t running_at(const struct scheduler *s, const struct sequence *seq) {
    uint32_t at = 0;
    while (s->running[at] != seq) at++;
    return at;
}

void scheduler_fail_step(struct scheduler *s, int code, const char *text,
                         struct event_list *events) {
    assert(s->n_inflight == 1);
    const struct batch *batch = complete(s);
    for (uint32_t i = 0; i < batch->step.n_seqs; i++) {
        struct sequence *seq = batch->entries[i].seq;
        if (seq->over) {
            retire(s, seq);
            continue;
        }
        running_remove(s, running_at(s, seq));
        end(s, seq, FINISH_ERROR, code, text, events);
    }
}

/* Takes its rows and pages from running[at], and removes it.  Returns what kv_suspend() does. */
static int stop(struct scheduler *s, uint32_t at) {
    struct sequence *seq = s->running[at];
    running_remove(s, at);
    prefill_queue_end(&s->prefill_queue, seq);
    const int code = kv_suspend(&seq->kv, &seq->failure);
    seq->n_rows = 0;
    seq->n_done = seq->kv.n_tokens;
    return code;
}

static void preempt(struct scheduler *s, uint32_t at) {
    struct sequence *seq = s->running[at];
    s->stats.n_preempted++;
    if (stop(s, at)) fail(s, seq);
    else waiting_insert(s, seq);
}

/* Returns the index of the sequence to preempt, because pages or host blocks are short for n_tokens
 * tokens of running[at] in all.  It is the last one that has any of them, at worst `at` itself. */
static uint32_t victim(const struct scheduler *s, uint32_t at, uint32_t n_tokens) {
    const struct kv_wish wish = {.n_tokens = n_tokens}, nothing = {0};
    uint32_t last = s->n_running - 1;
    if (kv_ask(&s->running[at]->kv, &wish).unavailable.blocks == 0) return last;
    while (last > at && kv_ask(&s->running[last]->kv, &nothing).n_token_blocks == 0) last--;
    return last;
}

/* Whether a running sequence has got pages.  LATER: the in-flight step must be finished first.
 * LOST: it runs no longer, because it was preempted or has ended. */
enum room { ROOM_TAKEN, ROOM_LATER, ROOM_LOST };

/* Reserves pages for n_rows more tokens of running[at].  Preempts later sequences if necessary, but
 * none while a step is in flight. */
static enum room make_room(struct scheduler *s, uint32_t at, uint32_t n_rows) {
    struct sequence *seq = s->running[at];
    const uint32_t n_tokens = seq->kv.n_tokens + n_rows;
    int code;
    if (n_rows == 0) return ROOM_TAKEN;
    while ((code = kv_reserve(&seq->kv, n_tokens)) == ERR_FULL && s->n_inflight == 0) {
        const uint32_t last = victim(s, at, n_tokens);
        preempt(s, last);
        if (last == at) return ROOM_LOST;
    }
    if (code == 0) return ROOM_TAKEN;
    if (s->n_inflight > 0) return ROOM_LATER;
    stop(s, at);
    error_set(&seq->failure, code, "no memory for the request's page lists");
    fail(s, seq);
    return ROOM_LOST;
}

/* Lets the sequence guess behind its only row, if it does.  For guesses no page is taken that
 * another running sequence may need next. */
static void add_drafts(const struct scheduler *s, struct sequence *seq,
                       const struct prefill_budget *budget, struct planned_rows *rows) {
    const uint32_t n = seq->kv.n_tokens + 1;
    uint32_t most = rows->n == 1 ? min_u32(DRAFT_MAX, budget->n_rows) : 0;
    const struct kv_wish wish = {.n_tokens = (uint64_t)n + most,
                                 .left.pages = (uint64_t)s->n_running * s->space->n_layers};
    const struct kv_grant grant = kv_ask(&seq->kv, &wish);
    if (grant.missing.pages > 0 && grant.unavailable.pages > 0)
        most = min_u32(most, (uint32_t)round_up(n, PAGE_TOKENS) - n);
    rows->n_drafts = sequence_draft(seq, most, s->n_running);
    if (!rows->is_chunk) rows->n_seen = grant.n_resident;
}

/* Drops the guesses of the first n running sequences, because the planned step was abandoned.
 * Sequences in flight have no rows in it. */
static void forget_drafts(struct scheduler *s, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (s->running[i]->n_rows == 0) continue;
        s->running[i]->n_drafts = 0;
        kv_forget_guesses(&s->running[i]->kv);
    }
}

/* Gives rows to the running sequences, and subtracts them from the budget.  Returns false if the
 * in-flight step must be finished first. */
static bool plan_running(struct scheduler *s, struct prefill_budget *budget) {
    for (uint32_t i = 0; i < s->n_running;) {
        struct sequence *seq = s->running[i];
        const uint32_t n_left = sequence_n_left(seq, s->n_running);
        struct planned_rows rows =
            prefill_queue_next_rows(&s->prefill_queue, budget, seq, n_left, false);
        const enum room room = make_room(s, i, rows.n);
        if (room == ROOM_LATER) {
            forget_drafts(s, i);
            return false;
        }
        if (room == ROOM_LOST) continue;
        if (seq->speculates) add_drafts(s, seq, budget, &rows);
        prefill_queue_place(&s->prefill_queue, budget, seq, &rows);
        i++;
    }
    return true;
}

/* Tells whether a running sequence is computing a prompt whose next block this one needs, too, so
 * that waiting for it saves work. */
static bool is_held_back(const struct scheduler *s, struct sequence *seq,
                         const struct kv_wish *wish) {
    for (uint32_t i = 0; i < s->n_running && wish->n_max > 0; i++)
        if (kv_should_wait(&seq->kv, wish->tokens, &s->running[i]->kv, s->running[i]->tokens))
            return true;
    return false;
}

/* Returns what a new sequence must leave for the running ones, or it might be preempted at once. */
static struct kv_amount left_for_running(const struct scheduler *s) {
    struct kv_amount left = {0};
    for (uint32_t i = 0; i < s->n_running; i++) {
        const struct kv_amount one = kv_growth(&s->running[i]->kv, s->running[i]->n_tokens);
        left.pages += one.pages;
        left.blocks += one.blocks;
    }
    return left;
}

/* Gives the sequence its pages, and restores what they held before a preemption.  ERR_FULL means
 * that it must wait.  *reads: it waits for the disk, and the next sequence in the queue may start
 * first. */
static int start_kv(struct scheduler *s, struct sequence *seq, struct kv_wish *wish, bool *reads) {
    wish->left = left_for_running(s);
    *reads = kv_ask(&seq->kv, wish).waits_for_disk;
    return *reads ? ERR_FULL : kv_start(&seq->kv, wish, &seq->failure);
}

/* Counts a sequence that runs for the first time. */
static void count_admission(struct scheduler *s, struct sequence *seq, bool may_reuse) {
    struct engine_policy_stats *policy = &s->stats.policies[seq->kv.plan.type];
    const bool has_cache = s->space->cache || s->space->states;
    fair_share_admit(&s->fair_share, seq->share_tag);
    seq->timing.started_s = s->now_s();
    seq->n_cached = seq->kv.n_tokens;
    if (has_cache && may_reuse) s->stats.queried_tokens += seq->n_prompt;
    s->stats.prompt_tokens += seq->n_prompt;
    s->stats.cached_tokens += seq->n_cached;
    policy->prompt_tokens += seq->n_prompt;
    policy->cached_tokens += seq->n_cached;
}

/* Moves the sequence from waiting to running, with its first rows. */
static void start_running(struct scheduler *s, struct sequence *seq, bool may_reuse,
                          struct prefill_budget *budget) {
    struct prefill_queue *prefills = &s->prefill_queue;
    waiting_remove(s, seq);
    if (!seq->admitted) count_admission(s, seq, may_reuse);
    seq->admitted = true;
    seq->n_done = seq->kv.n_tokens;
    s->stats.n_sparse += prefill_queue_begin(prefills, seq);
    const struct planned_rows rows =
        prefill_queue_next_rows(prefills, budget, seq, seq->n_tokens - seq->kv.n_tokens, true);
    prefill_queue_place(prefills, budget, seq, &rows);
    running_insert(s, seq);
}

static void admit(struct scheduler *s, struct prefill_budget *budget) {
    struct sequence *next;
    s->stats.n_deferred = 0;
    for (struct sequence *seq = s->first_waiting;
         seq && !budget->is_spent && s->n_running < s->max_seqs; seq = next) {
        next = seq->next;
        struct kv_wish wish = sequence_wish(seq);
        bool waits =
            is_held_back(s, seq, &wish) || prefill_queue_is_owned(&s->prefill_queue, seq, &wish);
        const int code = waits ? ERR_FULL : start_kv(s, seq, &wish, &waits);
        if (waits) {
            s->stats.n_deferred++;
            continue;
        }
        /* No sequence of lower rank overtakes one that waits for pages, so long requests do not
         * starve. */
        if (code == ERR_FULL && (s->n_running > 0 || s->n_inflight > 0)) return;
        if (code == 0) {
            start_running(s, seq, wish.n_max > 0, budget);
            continue;
        }
        waiting_remove(s, seq);
        fail(s, seq);
    }
}

/* ---- in-flight steps ---- */

/* Counts the planned step as in flight, and the tokens that it samples as its sequences' next ones.
 * Only the device knows these, until complete() takes them back. */
static struct batch *launch(struct scheduler *s, struct batch *batch) {
    batch->is_ahead = s->n_inflight > 0;
    batch->untimed = false;
    batch->planned_s = s->now_s();
    s->n_inflight++;
    for (uint32_t i = 0; i < batch->step.n_seqs; i++) {
        const struct batch_entry *entry = &batch->entries[i];
        entry->seq->n_inflight++;
        if (!entry->draws) continue;
        entry->seq->n_sampled++;
        entry->seq->draw_row = entry->first_sample + entry->n_samples - 1;
    }
    return batch;
}

void scheduler_note_new_graph(struct scheduler *s) {
    for (uint32_t i = 0; i < s->n_inflight; i++)
        s->batches[(s->oldest + i) % MAX_INFLIGHT].untimed = true;
}

struct batch *scheduler_plan(struct scheduler *s) {
    assert(s->n_inflight < MAX_INFLIGHT);
    struct batch *batch = &s->batches[(s->oldest + s->n_inflight) % MAX_INFLIGHT];
    struct prefill_queue *prefills = &s->prefill_queue;
    if (!prefills->slice_is_due) {
        struct prefill_budget budget = prefill_queue_budget(prefills, s->running, s->n_running);
        if (!plan_running(s, &budget)) return NULL;
        admit(s, &budget);
        batch_build(batch, s->running, s->n_running);
        if (batch->step.n_rows > 0) {
            prefill_queue_commit_step(prefills, batch);
            return launch(s, batch);
        }
    }
    if (prefill_queue_next_slice(prefills, batch, s->running, s->n_running))
        return launch(s, batch);
    assert(s->n_running == 0 || s->n_inflight > 0); /* or the scheduler would stall */
    return NULL;
}

/* Adds what the sequence's counts have grown by since `before`. */
static void add_counts(struct scheduler *s, const struct sequence *seq,
                       const struct kv_usage *before) {
    const struct kv_usage now = kv_report(&seq->kv, seq->n_done);
    for (unsigned i = 0; i < KV_N_NUMBERS; i++)
        if (kv_numbers[i].adding == KV_ADD_COUNT)
            s->stats.kv[i][seq->kv.plan.type] +=
                (uint64_t)(int64_t)(now.values[i] - before->values[i]);
}

/* Returns how many tokens of the prompt the sequence's rows of the batch leave computed.  A
 * layer-major prompt is counted by its slices, and counts as stored with its last one. */
static uint32_t n_processed(const struct batch *batch, const struct batch_entry *entry) {
    const struct layer_slice *slice = &batch->slice;
    const uint32_t n_entered = batch->step.n_layers + slice->leaves_last, n = slice->n_prompt_rows;
    const uint64_t done = (uint64_t)slice->layer * n + slice->first_row + slice->n_rows;
    if (batch->kind != STEP_TIME_SLICE || done == (uint64_t)n_entered * n) return entry->n_stored;
    return entry->n_stored + (uint32_t)(done / n_entered);
}

static void count_tokens(struct scheduler *s, struct sequence *seq, uint32_t n_new) {
    if (n_new == 0) return;
    s->stats.generated_tokens += n_new;
    s->stats.policies[seq->kv.plan.type].generated_tokens += n_new;
    timing_token(&seq->timing, &s->stats, s->now_s());
}

/* Counts a sequence that has ended with a step's results. */
static void count_ending(struct scheduler *s, const struct sequence *seq,
                         const struct engine_event *final) {
    if (final->reason == FINISH_ERROR) {
        count_failure(s, final->error_code);
        return;
    }
    s->stats.n_finished++;
    s->stats.n_finished_by_length += final->reason == FINISH_LENGTH;
    s->stats.policies[seq->kv.plan.type].n_finished++;
    timing_finish(&seq->timing, &s->stats, seq->n_prompt, sequence_n_generated(seq), s->now_s());
}

/* Takes the results of the batch's sequence `at`; returns true if it has had its final event. */
static bool finish_entry(struct scheduler *s, const struct batch *batch, uint32_t at,
                         struct event_list *events) {
    const struct batch_entry *entry = &batch->entries[at];
    struct sequence *seq = entry->seq;
    const uint32_t n_generated = sequence_n_generated(seq);
    const struct kv_usage before = kv_report(&seq->kv, seq->n_done);
    const struct speculation_usage guessed = seq->speculation;
    kv_count(&seq->kv, batch_evicted(batch, at),
             batch->step.seqs[at].select ? &batch->selected[at] : NULL);
    if (entry->n_stored <= seq->n_prompt && n_generated == 0)
        sequence_report(seq, n_processed(batch, entry), events);
    bool over = sequence_accept(seq, entry->n_stored, batch->samples + entry->first_sample,
                                batch->results + entry->first_sample, entry->n_samples, events);
    count_tokens(s, seq, sequence_n_generated(seq) - n_generated);
    speculation_usage_add(&s->stats.speculation, &seq->speculation);
    speculation_usage_subtract(&s->stats.speculation, &guessed);
    add_counts(s, seq, &before);
    if (over) count_ending(s, seq, events->last);
    return over;
}

/* Charges the delay by guesses to the sequences without guesses.  Returns true if one had too
 * little credit. */
static bool charge_delayed(const struct batch *batch) {
    bool any_lost = false;
    for (uint32_t i = 0; i < batch->step.n_seqs; i++) {
        struct sequence *seq = batch->entries[i].seq;
        if (seq->over || seq->n_drafts > 0) continue;
        if (!sequence_pays_delay(seq)) any_lost = true;
    }
    return any_lost;
}

/* Learns what guesses cost from a step that took `seconds`, and notes whether others were
 * delayed. */
static void measure_guesses(struct scheduler *s, const struct batch *batch, double seconds) {
    const uint32_t n_seqs = batch->step.n_seqs;
    if (!s->guess_credit || !batch_only_generates(batch)) return;
    if (!batch->untimed && (batch->n_drafting > 0 || batch->is_ahead))
        guess_price_measure(&s->guess_credit->price, n_seqs, batch->n_drafting, seconds);
    if (batch->n_drafting == 0) shared_credit_note_plain(s->guess_credit);
    else shared_credit_note_guesses(s->guess_credit, n_seqs, charge_delayed(batch));
}

/* Returns how many rows the batch has completed: those of a layer-major prompt with its last
 * slice. */
static uint32_t n_completed(const struct batch *batch) {
    if (batch->kind != STEP_TIME_SLICE) return batch->step.n_rows;
    const struct batch_entry *entry = &batch->entries[0];
    return entry->n_stored - min_u32(entry->n_stored, entry->seq->n_done);
}

void scheduler_finish_step(struct scheduler *s, struct event_list *events) {
    const struct batch *batch = complete(s);
    uint32_t n_kept = 0;
    s->stats.n_steps++;
    const double seconds = prefill_queue_measure(&s->prefill_queue, batch, s->now_s());
    measure_guesses(s, batch, seconds);
    if (batch->sparse) {
        sparse_totals_add(&batch->sparse->visited, &batch->visited);
        sparse_totals_add(&s->stats.sparse, &batch->visited);
    }
    const uint32_t n_tokens = n_completed(batch);
    if (n_tokens > 0) engine_stats_observe(&s->stats, ENGINE_STEP_TOKENS, n_tokens);
    for (uint32_t i = 0; i < batch->step.n_seqs; i++) {
        const struct batch_entry *entry = &batch->entries[i];
        if (entry->seq->over)
            sequence_accept_late(entry->seq, entry->n_stored, batch->results + entry->first_sample,
                                 entry->n_samples);
        else entry->seq->over = finish_entry(s, batch, i, events);
    }
    for (uint32_t i = 0; i < s->n_running; i++)
        if (!s->running[i]->over) s->running[n_kept++] = s->running[i];
    s->n_running = n_kept;
    retire_over(s, batch);
}

uint32_t scheduler_n_inflight(const struct scheduler *s) {
    return s->n_inflight;
}

uint32_t scheduler_n_live(const struct scheduler *s) {
    return s->n_running + s->n_waiting;
}

static void count_host_pool(const struct scheduler *s, struct engine_stats *out) {
    const struct kv_space *space = s->space;
    if (!space->io.host) return;
    const uint64_t n_cached =
        kv_n_offloaded_blocks(space) + page_pool_n_offered(space->blocks, PAGE_CACHED);
    const uint64_t n_used =
        page_pool_n_pages(space->blocks) - page_pool_n_free(space->blocks) - n_cached;
    out->host_pool_used_bytes = n_used * host_pool_block_bytes(space->io.host);
    out->n_swapped_out = space->swaps->n_out;
    out->n_swapped_in = space->swaps->n_in;
    out->pages_offloaded = kv_n_offloaded(space);
}

static void count_states(const struct scheduler *s, struct engine_stats *out) {
    const struct kv_space *space = s->space;
    if (!space->state_slots) return;
    out->n_states_used =
        page_pool_n_pages(space->state_slots) - page_pool_n_free(space->state_slots);
    out->checkpoints = checkpoints_stats(space->checkpoints);
}

static void add_levels(const struct sequence *seq, struct engine_stats *out) {
    const struct kv_usage usage = kv_report(&seq->kv, seq->n_done);
    out->policies[seq->kv.plan.type].n_running++;
    for (unsigned i = 0; i < KV_N_NUMBERS; i++)
        if (kv_numbers[i].adding == KV_ADD_LEVEL)
            out->kv[i][seq->kv.plan.type] += (uint64_t)usage.values[i];
}

/* Counts the pages of a running sequence by its policy, and describes it if there is space. */
static void add_running(const struct sequence *seq, struct engine_stats *out) {
    const uint32_t n_pages = kv_n_used(&seq->kv);
    out->policies[seq->kv.plan.type].n_pages += n_pages;
    if (out->n_shown == STATS_MAX_SHOWN) return;
    out->shown[out->n_shown++] =
        (struct running_sequence){.type = seq->kv.plan.type,
                                  .n_prompt = seq->n_prompt,
                                  .n_processed = min_u32(seq->n_done, seq->n_prompt),
                                  .n_generated = sequence_n_generated(seq),
                                  .n_pages = n_pages,
                                  .was_sparse = seq->was_sparse};
}

void scheduler_stats(const struct scheduler *s, struct engine_stats *out) {
    *out = s->stats;
    out->n_running = s->n_running;
    out->n_waiting = s->n_waiting;
    out->n_deferred = min_u32(s->stats.n_deferred, s->n_waiting);
    out->pages_free = page_pool_n_free(s->space->pool);
    out->pages_total = page_pool_n_pages(s->space->pool);
    count_host_pool(s, out);
    count_states(s, out);
    for (uint32_t i = 0; i < s->n_running; i++) {
        add_levels(s->running[i], out);
        add_running(s->running[i], out);
    }
    out->pages_cached = kv_n_idle(s->space);
}
