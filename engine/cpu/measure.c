/* measure.c - the machine's memory and arithmetic ceilings, measured with the backend's own
 * threads.  The arithmetic is that of the products on registers, with the instruction set
 * chosen. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/cpu/backend.h"
#include "engine/device/backend.h"

enum { N_TRIES = 5, N_SUMS = 32, COPY_BYTES = 256 << 20, BURST_ROUNDS = 4000000 };

struct cpu_measurement {
    struct cpu_backend *cpu;
    const struct product_kernels *products;
    char *from, *to;
    size_t share; /* bytes a thread copies or reads */
    float *sums;  /* keeps the compiler from removing the work */
};

static void copy_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    struct cpu_measurement *m = ctx;
    memcpy(m->to + task * m->share, m->from + task * m->share, m->share);
}

/* Reads a thread's share into many independent sums, so that the reads take the time. */
static void read_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    struct cpu_measurement *m = ctx;
    const uint64_t *from = (const uint64_t *)(m->from + task * m->share);
    uint64_t sums[N_SUMS] = {0};
    for (size_t i = 0; i + N_SUMS <= m->share / sizeof(*from); i += N_SUMS)
        for (int k = 0; k < N_SUMS; k++) sums[k] += from[i + k];
    for (int k = 1; k < N_SUMS; k++) sums[0] += sums[k];
    m->sums[task] = (float)sums[0];
}

static void burst_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    struct cpu_measurement *m = ctx;
    m->sums[task] = m->products->burst(BURST_ROUNDS);
}

/* Returns the best of a few tries: interference only ever slows one down. */
static double best_seconds(struct cpu_measurement *m, pool_fn fn) {
    double best = 1e30;
    for (int i = 0; i < N_TRIES; i++) {
        double start = clock_seconds();
        pool_run(m->cpu->pool, fn, m, pool_size(m->cpu->pool));
        double took = clock_seconds() - start;
        best = took < best ? took : best;
    }
    return best;
}

int cpu_measure(struct backend *be, struct ceilings *out, struct error *err) {
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    uint32_t n = pool_size(cpu->pool);
    struct cpu_measurement m = {.cpu = cpu, .share = COPY_BYTES / n / 64 * 64};
    m.products = cpu->bf16_products ? cpu->bf16_products : cpu->kernels->products;
    m.from = malloc(COPY_BYTES);
    m.to = malloc(COPY_BYTES);
    m.sums = calloc(n, sizeof(float));
    int rc = 0;
    if (m.from && m.to && m.sums) {
        memset(m.from, 1, COPY_BYTES); /* untouched pages would all be one page of zeros */
        memset(m.to, 2, COPY_BYTES);
        out->copy_bytes_per_s = 2.0 * (double)m.share * n / best_seconds(&m, copy_task);
        out->read_bytes_per_s = (double)m.share * n / best_seconds(&m, read_task);
        out->flops_per_s =
            2.0 * BURST_ROUNDS * m.products->burst_size * n / best_seconds(&m, burst_task);
    } else {
        rc = error_set(err, ERR_NOMEM, "cpu: no memory for two copies of %d bytes", COPY_BYTES);
    }
    free(m.from);
    free(m.to);
    free(m.sums);
    return rc;
}
