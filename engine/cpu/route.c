/* route.c - which experts a row uses, and their shares (experts.h). */
#include <math.h>

#include "engine/base/sizes.h"
#include "engine/cpu/backend.h"
#include "engine/device/experts.h"

enum { TASK_ROWS = 16 };
#define LEAST_SUM 1e-20f /* shares of 0 stay 0 when they are divided by their sum */

struct route_job {
    struct cpu_backend *cpu;
    const struct route_args *args;
    uint32_t n_experts;
    float *logits;                       /* [n_rows, n_experts], which become shares */
    float *gates;                        /* [n_rows]: products of the shared expert's gate */
    float *bias, *choice_bias, *factors; /* [n_experts], or NULL */
};

static float sigmoid(float x) {
    return 1 / (1 + expf(-x));
}

static void softmax(float *x, uint32_t n) {
    float most = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++) most = x[i] > most ? x[i] : most;
    for (uint32_t i = 0; i < n; i++) sum += x[i] = expf(x[i] - most);
    for (uint32_t i = 0; i < n; i++) x[i] /= sum;
}

/* Takes the largest of n values that are not taken, the first of equal ones; the last resort is
 * NaN. */
static uint32_t take_largest(const float *values, bool *is_taken, uint32_t n) {
    uint32_t best = n;
    for (uint32_t i = 0; i < n; i++)
        if (!is_taken[i] && (best == n || values[i] > values[best])) best = i;
    is_taken[best] = true;
    return best;
}

/* Marks the experts of groups that are not used as taken. */
static void leave_groups_out(const struct routing *routing, const float *values, bool *is_taken,
                             uint32_t n_experts) {
    float sums[EXPERTS_MAX];
    bool is_used[EXPERTS_MAX] = {false};
    const uint32_t size = n_experts / routing->n_groups;
    for (uint32_t g = 0; g < routing->n_groups; g++) {
        const float *group = values + g * size;
        bool both[EXPERTS_MAX] = {false};
        sums[g] = group[take_largest(group, both, size)];
        sums[g] += group[take_largest(group, both, size)];
    }
    for (uint32_t i = 0; i < routing->n_used_groups; i++)
        take_largest(sums, is_used, routing->n_groups);
    for (uint32_t e = 0; e < n_experts; e++) is_taken[e] = !is_used[e / size];
}

static void choose(const struct route_job *job, const float *shares, uint32_t *experts) {
    float values[EXPERTS_MAX];
    bool is_taken[EXPERTS_MAX] = {false};
    const uint32_t n = job->n_experts;
    for (uint32_t e = 0; e < n; e++)
        values[e] = shares[e] + (job->choice_bias ? job->choice_bias[e] : 0);
    if (job->args->routing->n_groups > 1) leave_groups_out(job->args->routing, values, is_taken, n);
    for (uint32_t r = 0; r < job->args->n_used; r++) experts[r] = take_largest(values, is_taken, n);
}

/* Makes a row's logits shares, but for those that depend on the choice. */
static void apply_kind(const struct route_job *job, float *logits) {
    for (uint32_t e = 0; e < job->n_experts && job->bias; e++) logits[e] += job->bias[e];
    if (job->args->routing->kind == ROUTE_SOFTMAX) softmax(logits, job->n_experts);
    for (uint32_t e = 0; e < job->n_experts && job->args->routing->kind == ROUTE_SIGMOID; e++)
        logits[e] = sigmoid(logits[e]);
}

static void route_row(const struct route_job *job, uint32_t row) {
    const struct route_args *args = job->args;
    const struct routing *routing = args->routing;
    const uint32_t n = args->n_used;
    float *all = job->logits + (size_t)row * job->n_experts,
          *shares = args->shares + (size_t)row * (n + 1), sum = LEAST_SUM;
    uint32_t *experts = args->experts + (size_t)row * n;
    apply_kind(job, all);
    choose(job, all, experts);
    for (uint32_t r = 0; r < n; r++) shares[r] = all[experts[r]];
    if (routing->kind == ROUTE_SOFTMAX_CHOSEN) softmax(shares, n);
    for (uint32_t r = 0; r < n; r++) sum += shares[r];
    for (uint32_t r = 0; r < n; r++)
        shares[r] = (routing->normalises ? shares[r] / sum : shares[r]) * routing->factor;
    for (uint32_t r = 0; r < n && job->factors; r++) shares[r] *= job->factors[experts[r]];
    shares[n] = routing->shared * (args->shared_gate ? sigmoid(job->gates[row]) : 1);
}

static void route_task(void *ctx, uint32_t task, uint32_t worker) {
    const struct route_job *job = ctx;
    const uint32_t end = min_u32((task + 1) * TASK_ROWS, job->args->n_rows);
    (void)worker;
    for (uint32_t row = task * TASK_ROWS; row < end; row++) route_row(job, row);
}

static float *values_of(const struct cpu_backend *cpu, const struct weight *vector, float *out) {
    if (vector) weight_row(cpu, vector, 0, out);
    return vector ? out : NULL;
}

size_t route_workspace(const struct experts_shape *shape) {
    return ((size_t)shape->n_rows * (shape->n_experts + 1) + 3 * (size_t)shape->n_experts) *
           sizeof(float);
}

int cpu_route(struct backend *be, const struct route_args *args, struct error *err) {
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    struct route_args plain = *args;
    int rc = route_norm(be, &plain, err);
    if (rc) return rc;
    const uint32_t n_experts = args->router->rows;
    float *logits = args->workspace, *gates = logits + (size_t)args->n_rows * n_experts,
          *biases = gates + args->n_rows;
    const struct linear_args products = route_products(&plain, logits, gates);
    struct route_job job = {.cpu = cpu,
                            .args = args,
                            .n_experts = n_experts,
                            .logits = logits,
                            .gates = gates,
                            .bias = values_of(cpu, args->bias, biases),
                            .choice_bias = values_of(cpu, args->choice_bias, biases + n_experts),
                            .factors = values_of(cpu, args->factors, biases + 2 * n_experts)};
    rc = cpu_linear(be, &products, err);
    if (rc) return rc;
    pool_run(cpu->pool, route_task, &job, (uint32_t)div_up(args->n_rows, TASK_ROWS));
    return 0;
}
