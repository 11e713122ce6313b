/* router_oracle.h - which experts a row uses and their shares, by definition, in double.
 *
 * It sorts all experts of a row by what is compared, and knows nothing of how backends choose.
 *
 * Thread: the test's.  Memory: none. */
#ifndef TESTS_CPU_ROUTER_ORACLE_H
#define TESTS_CPU_ROUTER_ORACLE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device/experts.h"

enum { ORACLE_EXPERTS = 1024 };

struct router_case {
    struct routing routing;
    uint32_t n_experts, n_used;
    bool has_bias, has_choice_bias, has_gate;
};

static const struct router_case router_cases[] = {
    {{ROUTE_SOFTMAX, false, 1, 1, 1, 1}, 8, 3, false, false, false},
    {{ROUTE_SOFTMAX, true, 1, 1, 1, 1}, 8, 3, false, false, false},
    {{ROUTE_SOFTMAX, false, 1, 1, 1, 1}, 6, 2, false, false, true},
    {{ROUTE_SOFTMAX_CHOSEN, false, 1, 1, 1, 1}, 5, 4, true, false, false},
    {{ROUTE_SOFTMAX_CHOSEN, false, 0.5f, 0.5f, 1, 1}, 5, 5, false, false, false},
    {{ROUTE_SIGMOID, true, 2.5f, 1, 1, 1}, 16, 4, false, true, false},
    {{ROUTE_SIGMOID, false, 1, 1, 1, 1}, 7, 1, false, false, false},
    {{ROUTE_SIGMOID, true, 1.7f, 1, 4, 2}, 24, 6, false, true, false},
    {{ROUTE_SOFTMAX, false, 1, 1, 3, 1}, 12, 4, false, false, false},
};

static inline double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static const double *compared; /* of by_value() */

/* Orders numbers by what is compared, the largest first. */
static inline int by_value(const void *a, const void *b) {
    const double x = compared[*(const uint32_t *)a], y = compared[*(const uint32_t *)b];
    return x < y ? 1 : x > y ? -1 : 0;
}

static inline void sort_by(const double *values, uint32_t *numbers, uint32_t n) {
    compared = values;
    for (uint32_t i = 0; i < n; i++) numbers[i] = i;
    qsort(numbers, n, sizeof(*numbers), by_value);
}

/* Lowers what is compared of experts in groups that are not used. */
static inline void lower_groups(const struct router_case *c, double *values) {
    const uint32_t n_groups = c->routing.n_groups, size = c->n_experts / n_groups;
    double sums[ORACLE_EXPERTS];
    uint32_t best[ORACLE_EXPERTS], order[ORACLE_EXPERTS];
    for (uint32_t g = 0; g < n_groups; g++) {
        sort_by(values + g * size, best, size);
        sums[g] = values[g * size + best[0]] + values[g * size + best[1]];
    }
    sort_by(sums, order, n_groups);
    for (uint32_t i = c->routing.n_used_groups; i < n_groups; i++)
        for (uint32_t e = 0; e < size; e++) values[order[i] * size + e] -= 1000;
}

/* Computes a row's experts and shares from its logits.  Returns the least distance between one
 * that is chosen and the next. */
static inline double oracle_route(const struct router_case *c, double *shares,
                                  const float *choice_bias, uint32_t *experts) {
    double values[ORACLE_EXPERTS], sum = 0, most = -1e30, closest = 1e30;
    uint32_t order[ORACLE_EXPERTS];
    const bool first = c->routing.kind == ROUTE_SOFTMAX,
               later = c->routing.kind == ROUTE_SOFTMAX_CHOSEN;
    for (uint32_t e = 0; e < c->n_experts; e++) most = fmax(most, shares[e]);
    for (uint32_t e = 0; e < c->n_experts; e++) sum += exp(shares[e] - most);
    for (uint32_t e = 0; e < c->n_experts; e++) {
        shares[e] = first ? exp(shares[e] - most) / sum : later ? shares[e] : sigmoid(shares[e]);
        values[e] = shares[e] + (choice_bias ? choice_bias[e] : 0);
    }
    if (c->routing.n_groups > 1) lower_groups(c, values);
    sort_by(values, order, c->n_experts);
    for (uint32_t r = 0; r < c->n_used && r + 1 < c->n_experts; r++)
        closest = fmin(closest, values[order[r]] - values[order[r + 1]]);
    memcpy(experts, order, c->n_used * sizeof(*experts));
    return closest;
}

/* Finishes the shares of the chosen ones: out [n_used]. */
static inline void oracle_shares(const struct router_case *c, const double *all,
                                 const uint32_t *experts, double *out) {
    double sum = 0;
    for (uint32_t r = 0; r < c->n_used; r++) {
        out[r] = all[experts[r]];
        if (c->routing.kind == ROUTE_SOFTMAX_CHOSEN) out[r] = exp(out[r] - all[experts[0]]);
        sum += out[r];
    }
    const bool divides = c->routing.normalises || c->routing.kind == ROUTE_SOFTMAX_CHOSEN;
    for (uint32_t r = 0; r < c->n_used; r++)
        out[r] = out[r] / (divides ? sum : 1) * (double)c->routing.factor;
}

static inline double dot(const float *a, const float *b, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

#endif
