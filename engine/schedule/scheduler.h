/* scheduler.h - which sequences run in the next step, with how many rows.
 *
 *            add             admit                      finish
 *   request ────► waiting ─────────────► running ──────────────► final event
 *                    ▲                     │
 *                    └──── preempt ────────┘   suspended: pages given back, tokens kept
 *
 * Both lists are in order of rank: lower priority number first, then arrival.  A step has one row
 * for every running sequence that generates, and fills up with pieces of prompts in order of rank.
 * Pages for a prompt are taken when it is admitted, pages for generated tokens as they come, or all
 * at once (the KV policy knows); when they run out, the sequence of last rank is preempted, or when
 * blocks of the store do, the last that has any.  The first of the running sequences can always go
 * on, so the engine as a whole never stands still.
 *
 * In a batch-invariant space (kv/policy.h) pages for all tokens that a request may generate are
 * taken when it is admitted, and nobody is preempted.
 *
 * A waiting sequence is passed over while a running one is computing a prefix that it could share.
 *
 * The scheduler knows no model: a step is planned, somebody runs it, the results are taken.  Up to
 * MAX_INFLIGHT steps may be in flight, planned and without their results:
 *
 *   plan n ─► plan n+1 ─► finish n ─► plan n+2 ─► finish n+1 ─► …
 *
 * Step n+1 is planned as if no sequence ended at n.  One that did has a row in n+1 whose result is
 * dropped, and goes when n+1 is finished.  Where n+1 depends on more than that, it is planned only
 * after n is finished: when a penalty counts tokens, and when pages are short, for nobody is
 * preempted while a step is in flight.
 *
 * Sparse prompts (prefill_plan.h) take turns: one at a time is computed, from its first sparse row
 * to its last; others wait for its end, and whoever ranks behind them does not.  One that goes
 * layer by layer runs in slices, each a flight of its own, between the steps of everybody else:
 *
 *   step ─► slice ─► step ─► slice ─► …      more slices in a row where max_itl_s leaves the time
 *
 * While some sequence generates, pieces of prompts and slices are cut so that the time between two
 * of its tokens stays below max_itl_s, as far as earlier flights tell (step_time.h).
 *
 * Thread: engine.  Memory: sized at create; sequences are owned from add until their final
 * event. */
#ifndef ENGINE_SCHEDULE_SCHEDULER_H
#define ENGINE_SCHEDULE_SCHEDULER_H

#include "engine/request/event.h"
#include "engine/request/request.h"
#include "engine/schedule/batch.h"
#include "engine/schedule/stats.h"

struct kv_space;
struct scheduler; /* opaque: the fields live in scheduler.c */
struct sequence;

enum { MAX_INFLIGHT = 2 };

struct scheduler_config {
    const struct kv_space *space;  /* borrowed */
    uint32_t max_rows, max_seqs;   /* of a step; max_rows >= max_seqs >= 1 */
    uint32_t max_long_rows;        /* of the prompts that go layer by layer; 0: none does */
    uint64_t max_prompt_slots; /* that prompts with pieces in a step have together; 0: any number.
                                  One piece there may be always */
    double max_itl_s;              /* 0: no limit */
    double row_work, enter_work, pair_work; /* as in struct pace */
    double (*now_s)(void);         /* a clock that never goes back */
};

int scheduler_create(struct scheduler **out, const struct scheduler_config *config,
                     struct error *err);
void scheduler_destroy(struct scheduler *scheduler); /* NULL is allowed; no sequence may be left */

/* Takes the sequence.  One that could never run ends at once. */
void scheduler_add(struct scheduler *scheduler, struct sequence *seq, struct event_list *events);
/* An unknown id is ignored. */
void scheduler_cancel(struct scheduler *scheduler, uint64_t id, struct event_list *events);
/* Ends everything with one reason, and forgets the steps in flight: the device has none left, or
 * has failed. */
void scheduler_end_all(struct scheduler *scheduler, enum finish_reason reason, int code,
                       const char *text, struct event_list *events);
/* Ends the sequences of the one step in flight, which did not run to its end. */
void scheduler_fail_step(struct scheduler *scheduler, int code, const char *text,
                         struct event_list *events);

/* Plans the next step or slice, or returns NULL when there is nothing to do before those in flight
 * are finished.  Fewer than MAX_INFLIGHT may be in flight.  Run it, call batch_submitted, fill
 * results, then call scheduler_finish_step, which takes the oldest one in flight; or, if it failed,
 * scheduler_fail_step or scheduler_end_all. */
struct batch *scheduler_plan(struct scheduler *scheduler, struct event_list *events);
void scheduler_finish_step(struct scheduler *scheduler, struct event_list *events);
uint32_t scheduler_n_inflight(const struct scheduler *scheduler);

/* Sequences that have not had their final event. */
uint32_t scheduler_n_live(const struct scheduler *scheduler);
/* Fills in all but n_submitted. */
void scheduler_stats(const struct scheduler *scheduler, struct engine_stats *out);

#endif
