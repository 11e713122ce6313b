/* step_time.h - forecasts the time of steps and slices, to bound how long generating sequences wait
 * for prompts.
 *
 *   seconds of a step  = base + work of its prompts' rows * seconds per work
 *   seconds of a slice = work * seconds per work, another number
 *                        + those of the index, for a layer's last slice
 *
 * Work is counted in multiply-adds of one layer, by the model's shape: a number for each row (its
 * products with weights), and one for each row and slot that it sees (attention).  How many slots a
 * row of a sparse prompt sees is measured, too; a row near the prompt's end sees hardly more than
 * others.  Slices of the first layer only enter it, so their work is that of its queries, keys and
 * values.  base is the time of a step in which all sequences generate.  All times are learned from
 * steps and slices as they complete; before the first measurement only the smallest chunk fits.
 *
 * Thread: engine.  Memory: none. */
#ifndef ENGINE_SCHEDULE_STEP_TIME_H
#define ENGINE_SCHEDULE_STEP_TIME_H

#include <stdbool.h>
#include <stdint.h>

/* What a time is of: their seconds per work differ. */
enum step_time_kind { STEP_TIME_STEP, STEP_TIME_SLICE, STEP_TIME_N_KINDS };

/* Instead of the layer of a slice: the rows go through all layers, in a step. */
#define STEP_TIME_ALL UINT32_MAX

/* What has been learned. */
struct step_time {
    double row_work, pair_work; /* work of a row; of a row and a slot that it sees */
    double enter_work;          /* the part of row_work that enters a layer */
    double max_s;               /* planned between two tokens of a sequence; 0: no limit */
    double base_s;              /* 0: not known */
    double s_per_work[STEP_TIME_N_KINDS]; /* 0: not known */
    double index_s_per_slot;              /* 0: not known */
    double seen; /* mean slots that a row of the sparse prompt sees; 0: not known */
};

/* Returns a forecast that has learned nothing.  limit_s: the most seconds between two tokens of a
 * sequence, 0 for no limit; max_s is 85 % of it, because forecasts err. */
struct step_time step_time_make(double row_work, double enter_work, double pair_work,
                                double limit_s);

/* Returns the work of n_rows rows of one sequence: in a slice of this layer, or in a step
 * (STEP_TIME_ALL).  Each sees n_before slots, those of the rows before it and its own.  In layer 0,
 * which they only enter, it is n_rows * enter_work. */
double step_time_work(const struct step_time *step_time, uint32_t layer, uint32_t n_rows,
                      uint32_t n_before);
/* Returns how much work a step or slice can do in these seconds, which do not include base.  0: the
 * seconds per work are not known yet, or there are no seconds (0 or less). */
double step_time_budget(const struct step_time *step_time, enum step_time_kind kind,
                        double seconds);
/* Returns how many rows have at most this step_time_work(); UINT32_MAX if work is INFINITY. */
uint32_t step_time_rows(const struct step_time *step_time, uint32_t layer, double work,
                        uint32_t n_before);
/* Returns the seconds that a step or a slice of this work is expected to take; those of a step
 * include base.  What has not been measured yet counts as 0. */
double step_time_seconds(const struct step_time *step_time, enum step_time_kind kind, double work);

/* Returns how many of n_before slots a row of the present sparse prompt sees by the mean so far, at
 * most n_before.  All, until that is known. */
uint32_t step_time_seen(const struct step_time *step_time, uint32_t n_before);
/* Returns the seconds to choose all heads' keys from n_slots slots in a layer; 0 until known. */
double step_time_index_seconds(const struct step_time *step_time, uint32_t n_slots);

/* Learns from a step or slice that took `seconds`, not counting its index; 0 or less is ignored.
 * work: of its prompts' rows; 0: a step without prompts, whose time is base.  decodes: it generated
 * tokens, too, so base is subtracted. */
void step_time_measure(struct step_time *step_time, enum step_time_kind kind, double work,
                       bool decodes, double seconds);
/* Learns that choosing keys from n_slots slots in one layer took `seconds`. */
void step_time_measure_index(struct step_time *step_time, uint32_t n_slots, double seconds);
/* Notes that the rows of a step or slice of the present sparse prompt saw n_slots slots on average.
 * It is one value of the running mean from which step_time_seen() answers. */
void step_time_measure_seen(struct step_time *step_time, double n_slots);
/* Forgets what is known of the previous sparse prompt's index and of the slots that its rows saw,
 * both of which depend on its length. */
void step_time_begin_prompt(struct step_time *step_time);

#endif
