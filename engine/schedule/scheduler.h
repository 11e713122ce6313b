/* scheduler.h - decides which sequences run in the next step, and with how many rows.
 *
 *            add             admit                      finish
 *   request ────► waiting ─────────────► running ──────────────► final event
 *                    ▲                     │
 *                    └──── preempt ────────┘   suspended: frees its pages, keeps its tokens
 *
 * Both lists are in order of rank: lower priority number first, then fair share between tenants
 * (fair_share.h), then arrival.  A step has one row for every running sequence that generates, and
 * fills up with prefill chunks in order of rank.  A prompt's pages are taken when its sequence is
 * admitted.  Pages for generated tokens are taken as they are needed, or all at admission, as the
 * KV policy says.  When pages run out, the sequence of last rank is preempted; when host blocks run
 * out, the last one that has any.  The first running sequence can always continue, so the engine as
 * a whole never stalls.
 *
 * In a batch-invariant space (kv_space.h) pages for all tokens that a request may generate are
 * taken when it is admitted, and no sequence is preempted.
 *
 * A waiting sequence is passed over while a running one is computing a prefix that it could share.
 *
 * The scheduler knows no model: it plans a step, its caller runs the step, and it takes the
 * results.  Up to MAX_INFLIGHT steps may be in flight, planned and without their results:
 *
 *   plan n ─► plan n+1 ─► finish n ─► plan n+2 ─► finish n+1 ─► …
 *
 * Step n+1 is planned as if no sequence ended at n.  A sequence that did has a row in n+1 whose
 * result is dropped, and is destroyed when n+1 is finished.  Where n+1 depends on more than that,
 * it is planned only after n is finished.  That is so when a penalty counts tokens, and when pages
 * are short, since no sequence is preempted while a step is in flight.
 *
 * Sparse prompts (prefill_plan.h) are computed one at a time: the owner of the prefill, from its
 * first sparse row to its last.  Other sparse prompts wait for its end; sequences of lower rank
 * that do not need the prefill overtake them.  A layer-major prompt runs in slices, each in flight
 * by itself, between the steps of all other sequences:
 *
 *   step ─► slice ─► step ─► slice ─► …      several slices in a row if max_itl_s leaves time
 *
 * While some sequence generates, prefill chunks and slices are cut to keep the time between two of
 * its tokens below max_itl_s.  The times are forecasts from earlier steps (step_time.h).
 *
 * Thread: engine.  Memory: sized at create; sequences are owned from add until their final
 * event. */
#ifndef ENGINE_SCHEDULE_SCHEDULER_H
#define ENGINE_SCHEDULE_SCHEDULER_H

#include "engine/request/event.h"
#include "engine/request/request.h"
#include "engine/schedule/batch.h"
#include "engine/schedule/stats.h"

struct shared_credit;
struct kv_space;
struct scheduler; /* opaque: the fields live in scheduler.c */
struct sequence;

/* The most steps and slices in flight. */
enum { MAX_INFLIGHT = 2 };

/* What scheduler_create() needs; copied. */
struct scheduler_config {
    const struct kv_space *space; /* borrowed */
    uint32_t max_rows, max_seqs;  /* of a step; max_rows >= max_seqs >= 1, and there are
                                     prompt_unit rows beside those of all other sequences */
    uint32_t max_long_rows;       /* of a layer-major prompt; 0: no prompt is layer-major */
    uint64_t max_prompt_slots; /* that all prefill chunks of a step may see together; 0: no limit.
                                  A step may have one chunk in any case */
    /* Most rows of a prompt's last chunk that includes its last row.  In a longer one that row gets
     * a step of its own, because steps without logits skip layers.  0: no layer is skipped. */
    uint32_t most_with_last;
    double max_itl_s;                       /* between two tokens of a sequence; 0: no limit */
    double row_work, enter_work, pair_work; /* as in struct step_time */
    double (*now_s)(void);                  /* a clock that is never set back */
    struct shared_credit *guess_credit;     /* borrowed; NULL: the backend does not run ahead */
};

/* Creates a scheduler without sequences, with arrays for the largest step.  ERR_NOMEM. */
int scheduler_create(struct scheduler **out, const struct scheduler_config *config,
                     struct error *err);
void scheduler_destroy(struct scheduler *scheduler); /* NULL is allowed; no sequence may be left */

/* Takes ownership of the sequence, which waits until scheduler_plan() admits it.  If there is no
 * memory for its lists, it ends instead: its final event is appended at once, and it is freed. */
void scheduler_add(struct scheduler *scheduler, struct sequence *seq, struct event_list *events);
/* Ends the waiting or running sequence of this id as cancelled; ignores an unknown id.  It is freed
 * when no step in flight has rows of it. */
void scheduler_cancel(struct scheduler *scheduler, uint64_t id, struct event_list *events);
/* Ends every sequence with this reason, and forgets the in-flight steps, whose results are dropped.
 * Called only when the device has completed these steps, or has failed. */
void scheduler_end_all(struct scheduler *scheduler, enum finish_reason reason, int code,
                       const char *text, struct event_list *events);
/* Ends the sequences of the one in-flight step, which failed, with FINISH_ERROR; others go on. */
void scheduler_fail_step(struct scheduler *scheduler, int code, const char *text,
                         struct event_list *events);

/* Returns the next step or slice, which counts as in flight from now on; the batch is the
 * scheduler's.  NULL: there is nothing to do before the in-flight ones are finished.  If none is
 * in flight and sequences are left (scheduler_n_live()), they wait, such as for the disk: call it
 * again later.  Fewer than MAX_INFLIGHT may be in flight.  The caller runs it, calls
 * batch_submitted, fills results, and calls scheduler_finish_step, which takes the oldest in-flight
 * one.  After a failure it calls scheduler_fail_step or scheduler_end_all instead. */
struct batch *scheduler_plan(struct scheduler *scheduler);
/* Ends the sequences that could not go on when a step was planned, with FINISH_ERROR: there was no
 * memory, or the device failed.  Called after each scheduler_plan(). */
void scheduler_end_failed(struct scheduler *scheduler, struct event_list *events);
/* Takes the results of the oldest in-flight step or slice: appends the events of its sequences,
 * frees those that ended, and learns from its time. */
void scheduler_finish_step(struct scheduler *scheduler, struct event_list *events);
/* Returns how many planned steps and slices have not been finished yet: 0 to MAX_INFLIGHT. */
uint32_t scheduler_n_inflight(const struct scheduler *scheduler);
/* Notes that the backend made a CUDA graph for the step planned last, which takes far longer than
 * others.  No time is learned of that one, nor of one before it that is still in flight. */
void scheduler_note_new_graph(struct scheduler *scheduler);

/* Returns how many sequences run or wait.  Those that scheduler_end_failed() is to end are not
 * counted. */
uint32_t scheduler_n_live(const struct scheduler *scheduler);
/* Overwrites *out.  n_submitted, `disk` and the feed's counts become 0: only the engine knows
 * them. */
void scheduler_stats(const struct scheduler *scheduler, struct engine_stats *out);

#endif
