/* router_ties.h - what a model may answer where a router's choice is a near tie.
 *
 * Rounding moves what a router reads.  Where two experts fit nearly alike, it then chooses another
 * one, and logits are off by far more than by rounding.  So the CPU, which is the oracle of the
 * rest, computes the same with inputs of routers that are moved as far.
 *
 * Thread: the test's.  Memory: a runner, from init to fini. */
#ifndef TESTS_CUDA_ROUTER_TIES_H
#define TESTS_CUDA_ROUTER_TIES_H

#include "engine/device/experts.h"
#include "tests/cpu/cpu_test.h"
#include "tests/model/runner.h"

/* How far inputs of routers are moved, by their root mean square.  The oracle of tests/e2e was made
 * to round every result to bf16.  Of the tiny models its inputs of routers are then off by 0.2 to
 * 1.6 % at the median row of a layer. */
static const float ROUTER_ROUNDING = 0.015f;

/* Several near ties of a text are decided in all ways by so many tries, mostly. */
enum { N_ROUTER_TRIES = 128 };

struct router_ties {
    struct runner oracle;
    struct backend_ops ops;
    struct expert_ops experts;
    const struct expert_ops *exact;
};

static struct router_ties *ties_in_use; /* of which a backend does not know */

/* Writes a row that is moved. */
static inline void move_row(const float *x, uint32_t n, float *moved) {
    double squares = 0;
    for (uint32_t i = 0; i < n; i++) squares += (double)x[i] * x[i];
    /* What is uniform in [-1, 1) has a root mean square of 1 / sqrt(3). */
    const float size = ROUTER_ROUNDING * (float)sqrt(3 * squares / n);
    for (uint32_t i = 0; i < n; i++) moved[i] = x[i] + size * random_float();
}

static inline int route_moved(struct backend *be, const struct route_args *args,
                              struct error *err) {
    const uint32_t n = args->router->cols;
    struct route_args moved = *args;
    float *x = malloc((size_t)args->n_rows * n * sizeof(*x));
    assert_non_null(x);
    for (size_t row = 0; row < args->n_rows; row++)
        move_row((const float *)args->x + row * n, n, x + row * n);
    moved.x = x;
    const int rc = ties_in_use->exact->route(be, &moved, err);
    free(x);
    return rc;
}

static inline void router_ties_init(struct router_ties *t, const char *dir, uint32_t context,
                                    uint32_t n_pages, const struct decoder_limits *limits) {
    runner_open(&t->oracle, dir, context, &(struct cpu_config){0}, n_pages, PAGE_F32, limits);
    t->ops = *t->oracle.be->ops;
    t->exact = t->ops.experts;
    t->experts = *t->exact;
    t->experts.route = route_moved;
    t->ops.experts = &t->experts;
    t->oracle.be->ops = &t->ops;
    ties_in_use = t;
}

static inline void router_ties_fini(struct router_ties *t) {
    runner_close(&t->oracle);
}

/* Computes the logits after n tokens, [n_vocab], once more: near ties of routers are decided by
 * chance. */
static inline void router_ties_try(struct router_ties *t, const uint32_t *tokens, uint32_t n,
                                   uint32_t chunk, float *logits) {
    struct runner_seq seq;
    runner_seq_init(&t->oracle, &seq, n);
    runner_feed(&t->oracle, &seq, tokens, n, chunk, logits);
    runner_seq_fini(&t->oracle, &seq);
}

#endif
