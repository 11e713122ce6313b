/* cpu_test.h - what the tests of the CPU backend share: a seeded generator, backends to try,
 * comparison. */
#ifndef TESTS_CPU_CPU_TEST_H
#define TESTS_CPU_CPU_TEST_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/fp8.h"
#include "engine/device/backend.h"
#include "tests/test.h"

static uint64_t rng_state = 0x9e3779b97f4a7c15u;

static inline uint32_t random_u32(void) {
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33);
}

static inline uint32_t random_below(uint32_t n) {
    return random_u32() % n;
}

/* Uniform in [-1, 1). */
static inline float random_float(void) {
    return (float)random_u32() / 1073741824.0f - 1.0f;
}

static inline float *random_floats(size_t n) {
    float *x = malloc((n ? n : 1) * sizeof(float));
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = random_float();
    return x;
}

/* Of n rows, each a magnitude of its own, so that in 8 bits their scales differ. */
static inline void vary_rows(float *rows, size_t n, uint32_t dim) {
    for (size_t i = 0; i < n; i++) {
        const float factor = ldexpf(1, -(int)random_below(4));
        for (uint32_t d = 0; d < dim; d++) rows[i * dim + d] *= factor;
    }
}

/* Rounds a row of at most 256 to what comes back of 8 bits; of any magnitude. */
static inline void make_exact_in_fp8(float *row, uint32_t n) {
    uint8_t codes[256];
    vary_rows(row, 1, n);
    const uint8_t scale = fp8_pack(codes, 1, (const char *)row, 1, n, ELEMENT_F32);
    fp8_unpack((char *)row, 1, codes, scale, n, ELEMENT_F32);
}

/* Calls test for every instruction set of this machine, with one thread and with three in turn:
 * kernels do not know how many there are. */
static inline void for_each_backend(void (*test)(struct backend *be)) {
    static uint32_t n_threads = 1;
    for (enum cpu_isa isa = CPU_ISA_PLAIN; isa < CPU_ISAS; isa++) {
        struct backend *be = NULL;
        struct error err = {0};
        const int rc =
            cpu_backend_create(&be, &(struct cpu_config){.n_threads = n_threads, .isa = isa}, &err);
        if (rc == ERR_UNSUPPORTED) continue;
        assert_int_equal(rc, 0);
        test(be);
        be->ops->destroy(be);
        n_threads = 4 - n_threads;
    }
}

/* Largest difference relative to the largest expected value; NaN anywhere fails. */
static inline void assert_close(const float *got, const double *expected, size_t n,
                                double tolerance) {
    double scale = 1e-30, worst = 0;
    for (size_t i = 0; i < n; i++) scale = fmax(scale, fabs(expected[i]));
    for (size_t i = 0; i < n; i++) {
        assert_false(isnan(got[i]) != isnan(expected[i]));
        worst = fmax(worst, fabs(got[i] - expected[i]));
    }
    if (worst > tolerance * scale) fail_msg("off by %g of %g, allowed %g", worst, scale, tolerance);
}

#endif
