/* step_time.h - how much of a prompt may be computed without letting those who generate wait too
 * long.
 *
 *   seconds of a step = base + work of its prompts' rows * seconds per work
 *   seconds of a slice of a long prompt = work * seconds per work, another number
 *                                         + those of the index, if it is the layer's last one
 *
 * Work is counted as the model's shape says: so much for a row (its products with weights), so much
 * for a row and a slot that it sees (attention).  How many slots rows of a sparse prompt see is
 * learned, too: a row near its end sees hardly more of them than others.  Slices of the first layer
 * only enter it: their work is that of its queries, keys and values.  base is what a step takes in
 * which everybody generates.  What it all takes in seconds is learned from the steps as they land;
 * until anything is known, nothing but the floor fits.
 *
 * Thread: engine.  Memory: none. */
#ifndef ENGINE_SCHEDULE_STEP_TIME_H
#define ENGINE_SCHEDULE_STEP_TIME_H

#include <stdbool.h>
#include <stdint.h>

enum step_time_kind { STEP_TIME_STEP, STEP_TIME_SLICE, STEP_TIME_N_KINDS };

struct step_time {
    double row_work, pair_work;
    double enter_work; /* of row_work, what entering a layer is */
    double max_s;  /* planned between two tokens of a sequence; 0: no limit */
    double base_s; /* 0: not known */
    double s_per_work[STEP_TIME_N_KINDS]; /* 0: not known */
    double index_s_per_slot;         /* likewise */
    double seen; /* slots that a row of the sparse prompt sees, of many before it; 0: not known */
};

/* limit_s: between two tokens; 0: none.  Less is planned, as forecasts err. */
struct step_time step_time_make(double row_work, double enter_work, double pair_work, double limit_s);

/* Of n_rows rows behind n_before slots. */
double step_time_work(const struct step_time *step_time, uint32_t n_rows, uint32_t n_before);
/* Work that fits the seconds, base not counted. */
double step_time_budget(const struct step_time *step_time, enum step_time_kind kind, double seconds);
/* Rows behind n_before slots that are at most so much work. */
uint32_t step_time_rows(const struct step_time *step_time, double work, uint32_t n_before);
/* Of rows that enter the first layer, and as many of them. */
double step_time_entering_work(const struct step_time *step_time, uint32_t n_rows);
uint32_t step_time_entering_rows(const struct step_time *step_time, double work);
double step_time_seconds(const struct step_time *step_time, enum step_time_kind kind, double work);

/* Of n_before slots, those that rows of the sparse prompt see; all, until that is known. */
uint32_t step_time_seen(const struct step_time *step_time, uint32_t n_before);
bool step_time_knows_seen(const struct step_time *step_time);

/* Of choosing keys among n_slots slots in one layer, for all heads; 0 until that is known. */
double step_time_index_seconds(const struct step_time *step_time, uint32_t n_slots);
bool step_time_knows_index(const struct step_time *step_time);

/* A step or slice has taken so long, its index not counted.  work: of its prompts' rows; decodes:
 * somebody generated, too. */
void step_time_measure(struct step_time *step_time, enum step_time_kind kind, double work, bool decodes,
                  double seconds);
void step_time_measure_index(struct step_time *step_time, uint32_t n_slots, double seconds);
/* Rows of a sparse prompt have seen n_slots slots each, on average. */
void step_time_measure_seen(struct step_time *step_time, double n_slots);
/* Another prompt begins: of what the last one's index and rows cost by its length nothing holds. */
void step_time_begin_prompt(struct step_time *step_time);

#endif
