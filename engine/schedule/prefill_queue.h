/* prefill_queue.h - how much of its prompts the scheduler puts into the next step or slice.
 *
 *   step    everybody's rows, and in the room that is left pieces of prompts: dense, or a chunk
 *           that chooses its keys
 *   slice   rows of the one prompt that goes layer by layer, between the steps
 *
 * One prompt at a time has the turn to be sparse or to go layer by layer, from prompts_begin_turn
 * to prompts_end_turn.  Where somebody generates and max_itl_s is set, both are cut to the time
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

struct prompts {
    const struct kv_space *space;
    uint32_t max_rows, max_long_rows; /* see struct scheduler_config */
    uint64_t max_slots;               /* its max_prompt_slots */
    struct pace pace;
    struct sequence *on_turn; /* the running sequence whose turn it is, or NULL */
    uint32_t turn;            /* how many there have been */
    bool slice_is_due;
    double until_step_s; /* while somebody generates: what slices may still take of the interval */
    double landed_s;     /* when the last flight did */
};

/* ---- turns ---- */

/* True while another prompt has the turn that this one would need. */
bool prompts_turn_is_taken(const struct prompts *p, struct sequence *seq);
/* The sequence begins to run: decides how the rest of its prompt is computed, with the turn or
 * without.  True when some of it is sparse for the first time. */
bool prompts_begin_turn(struct prompts *p, struct sequence *seq);
void prompts_end_turn(struct prompts *p, struct sequence *seq); /* whoever's turn it is */
/* The turn is a prompt's that goes layer by layer. */
bool prompts_go_by_layers(const struct prompts *p);

/* ---- pieces in steps ---- */

/* What is left of a step for pieces of prompts. */
struct prompt_room {
    uint32_t n_rows;
    uint64_t n_slots; /* that they may see; the first piece may, in any case */
    double work;   /* step_time.h; INFINITY: no limit */
    bool is_whole; /* nobody has had a piece: somebody gets PREFILL_MIN_STEP_ROWS in any case */
};

/* In a step of the running sequences' rows that are no pieces of prompts. */
struct prompt_room prompts_room(const struct prompts *p, struct sequence *const *running,
                                uint32_t n_running);
bool prompts_have_room(const struct prompt_room *room);
/* Rows that the sequence has in the next step; notes whether they choose keys. */
uint32_t prompts_next_rows(const struct prompts *p, const struct prompt_room *room,
                           struct sequence *seq);
/* Its n_rows rows, a piece of its prompt, are in the step. */
void prompts_use_room(const struct prompts *p, struct prompt_room *room,
                      const struct sequence *seq);
/* The step takes off: slices have what it leaves of the time until the next one. */
void prompts_begin_interval(struct prompts *p, const struct batch *step);

/* ---- slices ---- */

/* True when prompts are cut so that those who generate need not wait too long. */
bool prompts_are_limited(const struct prompts *p, struct sequence *const *running,
                         uint32_t n_running);
/* Rows of the next slice. */
uint32_t prompts_slice_rows(const struct prompts *p, bool is_limited);
/* The slice has taken off.  Its prompt's rows count as stored once the last one has. */
void prompts_commit_slice(struct prompts *p, struct batch *slice, bool is_limited);

/* ---- what they cost ---- */

/* Work of the prompts' rows in a step or slice (step_time.h). */
double prompts_work(const struct prompts *p, const struct batch *batch);
/* Learns from a flight that has landed. */
void prompts_measure(struct prompts *p, const struct batch *batch, double now_s);

#endif
