/* step_time.c - see step_time.h. */
#include "engine/schedule/step_time.h"

#include <math.h>

/* The weight of a new measurement in an average.  A step may take longer than usual: the first of
 * its size, a busy machine.  That must not stop prompts for long, so the base follows it slowly. */
static const double weight_of_new = 0.3, weight_of_slower_base = 0.05;

/* The share of the limit that is planned for: forecasts are a few hundredths off, and a step or
 * slice that has been submitted runs to its end. */
static const double planned_share = 0.85;

struct step_time step_time_make(double row_work, double enter_work, double pair_work,
                                double limit_s) {
    return (struct step_time){.row_work = row_work,
                              .enter_work = enter_work,
                              .pair_work = pair_work,
                              .max_s = planned_share * limit_s};
}

double step_time_work(const struct step_time *step_time, uint32_t layer, uint32_t n_rows,
                      uint32_t n_before) {
    const double n = n_rows;
    if (layer == 0) return n * step_time->enter_work;
    return n * step_time->row_work + (n * n_before + n * (n + 1) / 2) * step_time->pair_work;
}

double step_time_budget(const struct step_time *step_time, enum step_time_kind kind,
                        double seconds) {
    const double s_per_work = step_time->s_per_work[kind];
    return s_per_work > 0 && seconds > 0 ? seconds / s_per_work : 0;
}

static uint32_t whole_rows(double n) {
    return n < (double)UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

/* Solves step_time_work() for n, in the form that loses no digits to cancellation. */
uint32_t step_time_rows(const struct step_time *step_time, uint32_t layer, double work,
                        uint32_t n_before) {
    if (isinf(work)) return UINT32_MAX;
    if (layer == 0) return whole_rows(work / step_time->enter_work);
    const double half = step_time->pair_work / 2,
                 linear = step_time->row_work + step_time->pair_work * (n_before + 0.5);
    return whole_rows(2 * work / (linear + sqrt(linear * linear + 4 * half * work)));
}

double step_time_seconds(const struct step_time *step_time, enum step_time_kind kind, double work) {
    return (kind == STEP_TIME_STEP ? step_time->base_s : 0) + work * step_time->s_per_work[kind];
}

double step_time_index_seconds(const struct step_time *step_time, uint32_t n_slots) {
    return n_slots * step_time->index_s_per_slot;
}

uint32_t step_time_seen(const struct step_time *step_time, uint32_t n_before) {
    const bool is_less = step_time->seen > 0 && step_time->seen < n_before;
    return is_less ? (uint32_t)step_time->seen : n_before;
}

static void average(double *value, double measured, double weight) {
    *value = *value > 0 ? *value + weight * (measured - *value) : measured;
}

void step_time_measure(struct step_time *step_time, enum step_time_kind kind, double work,
                       bool decodes, double seconds) {
    if (seconds <= 0) return; /* the device's clock said that the index alone took longer */
    if (work <= 0) {
        average(&step_time->base_s, seconds,
                seconds > step_time->base_s ? weight_of_slower_base : weight_of_new);
        return;
    }
    /* A step that was faster than its base says only that work costs little. */
    const double base = kind == STEP_TIME_STEP && decodes ? step_time->base_s : 0;
    const double rest = fmax(seconds - base, seconds / 10);
    average(&step_time->s_per_work[kind], rest / work, weight_of_new);
}

void step_time_measure_index(struct step_time *step_time, uint32_t n_slots, double seconds) {
    average(&step_time->index_s_per_slot, seconds / n_slots, weight_of_new);
}

void step_time_measure_seen(struct step_time *step_time, double n_slots) {
    average(&step_time->seen, n_slots, weight_of_new);
}

void step_time_begin_prompt(struct step_time *step_time) {
    step_time->seen = 0;
    step_time->index_s_per_slot = 0;
}
