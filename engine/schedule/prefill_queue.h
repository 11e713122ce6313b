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
struct kv_wish;
struct sequence;

/* Embedded in the scheduler, which sets the first members. */
struct prefill_queue {
    const struct kv_space *space;
    uint32_t max_rows, max_long_rows; /* see struct scheduler_config */
    uint64_t max_slots;               /* its max_prompt_slots */
    uint32_t most_with_last;          /* as there */
    struct step_time step_time;
    struct sequence *owner; /* the running sequence that owns the prefill, or NULL */
    uint32_t n_owners;      /* so far; the newest is `owner` */
    bool slice_is_due;      /* the owner is layer-major, and its next slice comes before a step */
    double until_step_s;    /* while a sequence generates: the seconds that slices may still take
                            before the next step */
    double done_s;          /* when the last step or slice completed */
};

/* ---- the owner of the prefill ---- */

/* Tells whether a waiting sequence must wait, because another prompt owns the prefill and its own
 * prompt would need it.  wish: sequence_wish() of the sequence. */
bool prefill_queue_is_owned(const struct prefill_queue *p, struct sequence *seq,
                            const struct kv_wish *wish);
/* Decides how the rest of a prompt is computed (seq->prefill_order), when its sequence begins to
 * run.  Makes it the owner if it is sparse or layer-major.  Returns true if rows of it become
 * sparse for the first time. */
bool prefill_queue_begin(struct prefill_queue *p, struct sequence *seq);
/* Makes what is left of the sequence's prompt dense, and ends its ownership if it is the owner. */
void prefill_queue_end(struct prefill_queue *p, struct sequence *seq);

/* ---- prefill chunks in steps ---- */

/* What is left of a step for prefill chunks. */
struct prefill_budget {
    uint32_t n_rows;
    uint64_t n_slots; /* that the chunks may see together; the first chunk may exceed it */
    double work;      /* step_time.h; INFINITY: no limit */
    bool is_whole; /* there is no chunk yet: the first may have PREFILL_MIN_STEP_ROWS in any case */
    bool is_spent; /* no further chunk may have rows */
};

/* A sequence's rows in the next step. */
struct planned_rows {
    uint32_t n;        /* without those of guesses */
    uint32_t n_drafts; /* rows of guesses; only where the row before them is no chunk */
    bool is_chunk;     /* they are a prefill chunk */
    uint32_t n_seen;   /* slots before a chunk, or before guesses, that their rows see: for work */
    uint32_t n_shown;  /* slots before a chunk, for the budget */
};

/* Returns the next step's budget for chunks.  Its rows are max_rows, less one for each running
 * sequence that has just one left.  Its work is what max_itl_s leaves time for while a sequence
 * generates; a layer-major prompt's slices get half of that time. */
struct prefill_budget prefill_queue_budget(const struct prefill_queue *p,
                                           struct sequence *const *running, uint32_t n_running);
/* Returns the rows of a sequence that has n_left to compute (sequence_n_left()), and notes in it
 * whether they choose keys.  starts: it was not among those of prefill_queue_budget().  A
 * layer-major prompt gets none, because it has slices. */
struct planned_rows prefill_queue_next_rows(const struct prefill_queue *p,
                                            const struct prefill_budget *budget,
                                            struct sequence *seq, uint32_t n_left, bool starts);
/* Gives a running sequence these rows of the step.  Subtracts a prefill chunk and guesses from the
 * budget. */
void prefill_queue_place(const struct prefill_queue *p, struct prefill_budget *budget,
                         struct sequence *seq, const struct planned_rows *rows);
/* Counts the rows of a planned step as stored (kv_commit()), and sets the step's prompt_work.
 * Begins the time in which slices may run before the next step. */
void prefill_queue_commit_step(struct prefill_queue *p, struct batch *step);

/* ---- slices ---- */

/* Describes the owner's next slice and advances past it.  False: no prompt is layer-major. */
bool prefill_queue_next_slice(struct prefill_queue *p, struct batch *slice,
                              struct sequence *const *running, uint32_t n_running);

/* ---- the cost of steps and slices ---- */

/* Learns the cost of a step or slice that completed at now_s, for later forecasts.  Returns the
 * seconds that it took. */
double prefill_queue_measure(struct prefill_queue *p, const struct batch *batch, double now_s);

#endif
