/* prefill_queue.h - how many rows of its prompts the scheduler puts into the next step or slice.
 *
 *   step    one row for each generating sequence, then prefill chunks within the budget that is
 *           left: dense ones, or one that chooses its keys
 *   slice   rows of the one layer-major prompt, between the steps
 *
 * One prompt at a time may be sparse or layer-major: the owner, from prefill_queue_begin to
 * prefill_queue_end.  While a sequence generates and max_itl_s is set, chunks and slices are cut to
 * the time that step_time.h says is left.
 *
 * Thread: engine.  Memory: none; sequences are borrowed. */
#ifndef ENGINE_SCHEDULE_PREFILL_QUEUE_H
#define ENGINE_SCHEDULE_PREFILL_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/schedule/batch.h"
#include "engine/schedule/step_time.h"

struct kv_space;
struct prefill_budget;
struct sequence;

struct prefill_queue {
    const struct kv_space *space;
    uint32_t max_rows, max_long_rows; /* see struct scheduler_config */
    uint64_t max_slots;               /* its max_prompt_slots */
    struct step_time step_time;
    struct sequence *owner; /* the running sequence that owns the prefill, or NULL */
    uint32_t n_owners;      /* so far; the newest is `owner` */
    bool slice_is_due;
    bool slice_is_limited; /* the newest slice was cut to keep max_itl_s */
    double until_step_s;   /* while a sequence generates: the seconds that slices may still take
                            before the next step */
    double done_s;         /* when the last step or slice completed */
};

/* ---- the owner of the prefill ---- */

/* Tells whether another prompt owns the prefill, and this sequence's prompt would need it. */
bool prefill_queue_is_owned(const struct prefill_queue *p, struct sequence *seq);
/* Decides how the rest of a prompt is computed, when its sequence begins to run, makes it the owner
 * if need be, and gives it its first rows.  Returns true if rows of it become sparse for the first
 * time. */
bool prefill_queue_begin(struct prefill_queue *p, struct sequence *seq,
                         struct prefill_budget *budget);
/* Ends the sequence's ownership, if it is the owner. */
void prefill_queue_end(struct prefill_queue *p, struct sequence *seq);
/* Tells whether the owner's prompt is layer-major. */
bool prefill_queue_is_layer_major(const struct prefill_queue *p);

/* ---- prefill chunks in steps ---- */

/* What is left of a step for prefill chunks. */
struct prefill_budget {
    uint32_t n_rows;
    uint64_t n_slots; /* that the chunks may see together; the first chunk may exceed it */
    double work;      /* step_time.h; INFINITY: no limit */
    bool is_whole; /* there is no chunk yet: the first may have PREFILL_MIN_STEP_ROWS in any case */
};

/* Returns the next step's budget, after one row for each running sequence that needs just one. */
struct prefill_budget prefill_queue_budget(const struct prefill_queue *p,
                                           struct sequence *const *running, uint32_t n_running);
/* Tells whether one more prefill chunk may have rows in the step. */
bool prefill_queue_has_budget(const struct prefill_budget *budget);
/* Returns how many rows the sequence has in the next step; notes in it whether they choose keys. */
uint32_t prefill_queue_next_rows(const struct prefill_queue *p, const struct prefill_budget *budget,
                                 struct sequence *seq);
/* Gives a running sequence n_rows rows of the step, and subtracts a prefill chunk from the
 * budget. */
void prefill_queue_place(const struct prefill_queue *p, struct prefill_budget *budget,
                         struct sequence *seq, uint32_t n_rows);
/* Gives a generating sequence rows for n guesses besides its own, and subtracts them from the
 * budget. */
void prefill_queue_add_drafts(const struct prefill_queue *p, struct prefill_budget *budget,
                              struct sequence *seq, uint32_t n);
/* Counts the rows of a planned step as stored, and the tokens that it samples as the sequences'
 * next ones.  Begins the time in which slices may run before the next step. */
void prefill_queue_commit_step(struct prefill_queue *p, struct batch *step);

/* ---- slices ---- */

/* Describes the owner's next slice. */
void prefill_queue_build_slice(struct prefill_queue *p, struct batch *slice,
                               struct sequence *const *running, uint32_t n_running);
/* Advances the owner past the slice, which is in flight.  The prompt's rows count as stored once
 * its last slice is. */
void prefill_queue_commit_slice(struct prefill_queue *p, struct batch *slice);

/* ---- the cost of steps and slices ---- */

/* Measures a step or slice that completed at now_s, for later forecasts.  Returns the seconds that
 * it took. */
double prefill_queue_measure(struct prefill_queue *p, const struct batch *batch, double now_s);

#endif
