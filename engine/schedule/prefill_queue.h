/* prefill_queue.h - how much of its prompts the scheduler puts into the next step or slice.
 *
 *   step    everybody's rows, and in the room that is left pieces of prompts: dense, or a chunk
 *           that chooses its keys
 *   slice   rows of the one prompt that goes layer by layer, between the steps
 *
 * One prompt at a time has the turn to be sparse or to go layer by layer, from prefill_queue_begin
 * to prefill_queue_end.  Where somebody generates and max_itl_s is set, both are cut to the time
 * that step_time.h says is left.
 *
 * Thread: engine.  Memory: none; sequences are borrowed. */
#ifndef ENGINE_SCHEDULE_PREFILL_QUEUE_H
#define ENGINE_SCHEDULE_PREFILL_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/schedule/batch.h"
#include "engine/schedule/step_time.h"

struct kv_space;
struct sequence;

struct prefill_queue {
    const struct kv_space *space;
    uint32_t max_rows, max_long_rows; /* see struct scheduler_config */
    uint64_t max_slots;               /* its max_prompt_slots */
    struct step_time step_time;
    struct sequence *owner; /* the running sequence whose turn it is, or NULL */
    uint32_t turn;            /* how many there have been */
    bool slice_is_due;
    double until_step_s; /* while somebody generates: what slices may still take of the interval */
    double done_s;     /* when the last flight did */
};

/* ---- turns ---- */

/* True while another prompt has the turn that this one would need. */
bool prefill_queue_is_owned(const struct prefill_queue *p, struct sequence *seq);
/* The sequence begins to run: decides how the rest of its prompt is computed, with the turn or
 * without.  True when some of it is sparse for the first time. */
bool prefill_queue_begin(struct prefill_queue *p, struct sequence *seq);
void prefill_queue_end(struct prefill_queue *p, struct sequence *seq); /* whoever's turn it is */
/* The turn is a prompt's that goes layer by layer. */
bool prefill_queue_go_by_layers(const struct prefill_queue *p);

/* ---- pieces in steps ---- */

/* What is left of a step for pieces of prompts. */
struct prefill_budget {
    uint32_t n_rows;
    uint64_t n_slots; /* that they may see; the first piece may, in any case */
    double work;   /* step_time.h; INFINITY: no limit */
    bool is_whole; /* nobody has had a piece: somebody gets PREFILL_MIN_STEP_ROWS in any case */
};

/* In a step of the running sequences' rows that are no pieces of prompts. */
struct prefill_budget prefill_queue_budget(const struct prefill_queue *p, struct sequence *const *running,
                                uint32_t n_running);
bool prefill_queue_has_budget(const struct prefill_budget *room);
/* Rows that the sequence has in the next step; notes whether they choose keys. */
uint32_t prefill_queue_next_rows(const struct prefill_queue *p, const struct prefill_budget *room,
                           struct sequence *seq);
/* Its n_rows rows, a piece of its prompt, are in the step. */
void prefill_queue_use_budget(const struct prefill_queue *p, struct prefill_budget *room,
                      const struct sequence *seq);
/* The step takes off: slices have what it leaves of the time until the next one. */
void prefill_queue_begin_interval(struct prefill_queue *p, const struct batch *step);

/* ---- slices ---- */

/* True when prompts are cut so that those who generate need not wait too long. */
bool prefill_queue_are_limited(const struct prefill_queue *p, struct sequence *const *running,
                         uint32_t n_running);
/* Rows of the next slice. */
uint32_t prefill_queue_slice_rows(const struct prefill_queue *p, bool is_limited);
/* The slice has taken off.  Its prompt's rows count as stored once the last one has. */
void prefill_queue_commit_slice(struct prefill_queue *p, struct batch *slice, bool is_limited);

/* ---- what they cost ---- */

/* Work of the prompts' rows in a step or slice (step_time.h). */
double prefill_queue_work(const struct prefill_queue *p, const struct batch *batch);
/* Learns from a flight that has landed. */
void prefill_queue_measure(struct prefill_queue *p, const struct batch *batch, double now_s);

#endif
