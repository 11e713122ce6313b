/* step_time.c - see step_time.h.
 *
 * Thread: engine.  Memory: none. */
#include "engine/schedule/step_time.h"

#include <math.h>

/* Of what is new in an average.  A step that took longer than usual (the first of its size, a busy
 * machine) must not stop prompts for long, so the base follows it slowly. */
static const double weight_of_new = 0.3, weight_of_slower_base = 0.05;

/* Of the limit, what is planned for: forecasts are a few hundredths off, and a flight that was
 * submitted already runs to its end. */
static const double planned_share = 0.85;

struct pace pace_make(double row_work, double enter_work, double pair_work, double limit_s) {
    return (struct pace){.row_work = row_work,
                         .enter_work = enter_work,
                         .pair_work = pair_work,
                         .max_s = planned_share * limit_s};
}

double pace_work(const struct pace *pace, uint32_t n_rows, uint32_t n_before) {
    const double n = n_rows;
    return n * pace->row_work + (n * n_before + n * (n + 1) / 2) * pace->pair_work;
}

double pace_room(const struct pace *pace, enum pace_kind kind, double seconds) {
    const double s_per_work = pace->s_per_work[kind];
    return s_per_work > 0 && seconds > 0 ? seconds / s_per_work : 0;
}

static uint32_t whole_rows(double n) {
    return n < (double)UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

/* Solves pace_work() for n, in the form that does not cancel. */
uint32_t pace_rows(const struct pace *pace, double work, uint32_t n_before) {
    if (isinf(work)) return UINT32_MAX;
    const double half = pace->pair_work / 2,
                 linear = pace->row_work + pace->pair_work * (n_before + 0.5);
    return whole_rows(2 * work / (linear + sqrt(linear * linear + 4 * half * work)));
}

double pace_entering_work(const struct pace *pace, uint32_t n_rows) {
    return n_rows * pace->enter_work;
}

uint32_t pace_entering_rows(const struct pace *pace, double work) {
    return whole_rows(work / pace->enter_work);
}

double pace_seconds(const struct pace *pace, enum pace_kind kind, double work) {
    return (kind == PACE_STEP ? pace->base_s : 0) + work * pace->s_per_work[kind];
}

double pace_index_seconds(const struct pace *pace, uint32_t n_slots) {
    return n_slots * pace->index_s_per_slot;
}

bool pace_knows_index(const struct pace *pace) {
    return pace->index_s_per_slot > 0;
}

uint32_t pace_seen(const struct pace *pace, uint32_t n_before) {
    return pace_knows_seen(pace) && pace->seen < n_before ? (uint32_t)pace->seen : n_before;
}

bool pace_knows_seen(const struct pace *pace) {
    return pace->seen > 0;
}

static void average(double *value, double measured, double weight) {
    *value = *value > 0 ? *value + weight * (measured - *value) : measured;
}

void pace_measure(struct pace *pace, enum pace_kind kind, double work, bool decodes,
                  double seconds) {
    if (seconds <= 0) return; /* the device's clock said that the index alone took longer */
    if (work <= 0) {
        average(&pace->base_s, seconds,
                seconds > pace->base_s ? weight_of_slower_base : weight_of_new);
        return;
    }
    /* A step that was faster than its base says only that work costs little. */
    const double base = kind == PACE_STEP && decodes ? pace->base_s : 0;
    const double rest = fmax(seconds - base, seconds / 10);
    average(&pace->s_per_work[kind], rest / work, weight_of_new);
}

void pace_measure_index(struct pace *pace, uint32_t n_slots, double seconds) {
    average(&pace->index_s_per_slot, seconds / n_slots, weight_of_new);
}

void pace_measure_seen(struct pace *pace, double n_slots) {
    average(&pace->seen, n_slots, weight_of_new);
}

void pace_begin_prompt(struct pace *pace) {
    pace->seen = 0;
    pace->index_s_per_slot = 0;
}
