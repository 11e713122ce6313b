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

enum step_time_kind { STEP_TIME_STEP, STEP_TIME_SLICE, STEP_TIME_N_KINDS };

struct step_time {
    double row_work, pair_work;
    double enter_work; /* the part of row_work that enters a layer */
    double max_s;      /* planned between two tokens of a sequence; 0: no limit */
    double base_s;     /* 0: not known */
    double s_per_work[STEP_TIME_N_KINDS]; /* 0: not known */
    double index_s_per_slot;              /* 0: not known */
    double seen; /* mean slots that a row of the sparse prompt sees; 0: not known */
};

/* Makes an empty model.  limit_s is the most seconds between two tokens, 0 for no limit; plans stay
 * below it, because forecasts err. */
struct step_time step_time_make(double row_work, double enter_work, double pair_work,
                                double limit_s);

/* Returns the work of n_rows rows that come after n_before slots. */
double step_time_work(const struct step_time *step_time, uint32_t n_rows, uint32_t n_before);
/* Returns the work that fits the seconds, which do not include base. */
double step_time_budget(const struct step_time *step_time, enum step_time_kind kind,
                        double seconds);
/* Returns how many rows after n_before slots take at most `work`. */
uint32_t step_time_rows(const struct step_time *step_time, double work, uint32_t n_before);
/* Does step_time_work() for rows in a slice of this layer: those of layer 0 only enter it. */
double step_time_slice_work(const struct step_time *step_time, uint32_t layer, uint32_t n_rows,
                            uint32_t n_before);
/* Returns how many rows of a slice of this layer, after n_before slots, take at most `seconds`. */
uint32_t step_time_slice_rows(const struct step_time *step_time, uint32_t layer, double seconds,
                              uint32_t n_before);
/* Returns the seconds that a step, with its base, or a slice of this work takes; what is not known
 * counts as 0. */
double step_time_seconds(const struct step_time *step_time, enum step_time_kind kind, double work);

/* Returns how many of n_before slots a row of the sparse prompt sees: all, until that is known. */
uint32_t step_time_seen(const struct step_time *step_time, uint32_t n_before);
/* Returns the seconds to choose keys from n_slots slots in one layer, for all heads: 0 until that
 * is known. */
double step_time_index_seconds(const struct step_time *step_time, uint32_t n_slots);

/* Measures a step or slice that took `seconds`, not counting its index.  work: of its prompts'
 * rows; decodes: the step generated tokens, too. */
void step_time_measure(struct step_time *step_time, enum step_time_kind kind, double work,
                       bool decodes, double seconds);
/* Measures an index over n_slots slots of one layer that took `seconds`. */
void step_time_measure_index(struct step_time *step_time, uint32_t n_slots, double seconds);
/* Measures how many slots each row of a sparse prompt saw, on average. */
void step_time_measure_seen(struct step_time *step_time, double n_slots);
/* Forgets the index's and the rows' cost of the previous sparse prompt, which depend on its
 * length. */
void step_time_begin_prompt(struct step_time *step_time);

#endif
