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
 * at once (the KV policy knows); when they run out, the sequence of last rank is preempted.  The
 * first of the running sequences can always go on, so the engine as a whole never stands still.
 *
 * In a batch-invariant space (kv/policy.h) pages for all tokens that a request may generate are
 * taken when it is admitted, and nobody is preempted.
 *
 * A waiting sequence is passed over while a running one is computing a prefix that it could share.
 *
 * The scheduler knows no model: a step is planned, somebody runs it, the results are taken.  Up to
 * MAX_FLIGHTS steps may be in flight, planned and without their results:
 *
 *   plan n ─► plan n+1 ─► finish n ─► plan n+2 ─► finish n+1 ─► …
 *
 * Step n+1 is planned as if no sequence ended at n.  One that did has a row in n+1 whose result is
 * dropped, and goes when n+1 is finished.  Where n+1 depends on more than that, it is planned only
 * after n is finished: when a penalty counts tokens, and when pages are short, for nobody is
 * preempted while a step is in flight.
 *
 * Thread: engine.  Memory: sized at create; sequences are owned from add until their final
 * event. */
#ifndef ENGINE_SCHEDULER_H
#define ENGINE_SCHEDULER_H

#include "engine/batch.h"
#include "engine/engine.h"
#include "engine/event.h"

struct kv_space;
struct scheduler; /* opaque: the fields live in scheduler.c */
struct sequence;

enum { MAX_FLIGHTS = 2 };

/* space is borrowed.  max_rows >= max_seqs >= 1. */
int scheduler_create(struct scheduler **out, const struct kv_space *space, uint32_t max_rows,
                     uint32_t max_seqs, struct error *err);
void scheduler_destroy(struct scheduler *scheduler); /* NULL is allowed; no sequence may be left */

/* Takes the sequence.  One that could never run ends at once. */
void scheduler_add(struct scheduler *scheduler, struct sequence *seq, struct event_list *events);
/* An unknown id is ignored. */
void scheduler_cancel(struct scheduler *scheduler, uint64_t id, struct event_list *events);
/* Ends everything with one reason, and forgets the steps in flight: the device has none left, or
 * has failed. */
void scheduler_end_all(struct scheduler *scheduler, enum finish_reason reason, int code,
                       const char *text, struct event_list *events);

/* Plans the next step, or returns NULL when there is nothing to do before the steps in flight are
 * finished.  Fewer than MAX_FLIGHTS may be in flight.  Run it, fill results, then call
 * scheduler_finish_step, which takes the oldest step in flight; or, if it failed,
 * scheduler_end_all. */
struct batch *scheduler_plan(struct scheduler *scheduler, struct event_list *events);
void scheduler_finish_step(struct scheduler *scheduler, struct event_list *events);
uint32_t scheduler_n_flights(const struct scheduler *scheduler);

/* Sequences that have not had their final event. */
uint32_t scheduler_n_live(const struct scheduler *scheduler);
/* Fills in all but n_submitted. */
void scheduler_stats(const struct scheduler *scheduler, struct engine_stats *out);

#endif
