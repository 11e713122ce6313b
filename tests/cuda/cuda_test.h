/* cuda_test.h - what the tests of the CUDA backend share: both backends, device arrays, comparison.
 *
 * An operation runs on the CPU in f32 and on the device in bf16, from the same values, which bf16
 * holds exactly.  The results may differ by the rounding of the result (2^-8 of each value at most)
 * and by the order of f32 sums.
 *
 * Thread: the test's.  Memory: the backends live for the whole run. */
#ifndef TESTS_CUDA_CUDA_TEST_H
#define TESTS_CUDA_CUDA_TEST_H

#include "tests/cpu/cpu_test.h"

#include "cuda/cuda.h"
#include "engine/cpu/vec.h"
#include "engine/device/backend.h"
#include "engine/device/weight.h"

/* bf16 keeps 8 bits: half a step is up to 2^-8 of a value, 3.9e-3. */
#define BF16_TOLERANCE 4.5e-3

static struct backend *cpu, *gpu;
static bool small; /* whether --small was asked for */

static inline void must(int rc, const struct error *err) {
    if (rc) fail_msg("%s", err->text);
}

/* Exit status 77 tells Meson that the test was skipped. */
static inline int open_backends(void) {
    struct error err = {0};
    int rc = cuda_backend_create(&gpu, &(struct cuda_config){0}, &err);
    if (rc == ERR_UNSUPPORTED) {
        printf("SKIPPED, NOTHING WAS TESTED: %s\n", err.text);
        return 77;
    }
    if (!rc) rc = cpu_backend_create(&cpu, &(struct cpu_config){0}, &err);
    if (rc) printf("%s\n", err.text);
    else printf("%s\n", gpu->description);
    return rc ? 1 : 0;
}

/* Makes the GPU backend one that is batch-invariant. */
static inline void reopen_batch_invariant(void) {
    struct error err = {0};
    gpu->ops->destroy(gpu);
    const struct cuda_config config = {.batch_invariant = true};
    if (!cuda_backend_create(&gpu, &config, &err)) return;
    fprintf(stderr, "%s\n", err.text);
    exit(1);
}

static inline void close_backends(void) {
    gpu->ops->destroy(gpu);
    cpu->ops->destroy(cpu);
}

/* Reads the arguments, the paths that the program wants and perhaps --small, and opens both
 * backends; returns the exit status where that is the end.  --small asks for fewer and smaller
 * cases of every kind.  It is for compute-sanitizer, under which a kernel takes ten to a thousand
 * times as long; a program without large cases does the same either way. */
static inline int begin(int argc, char **argv, int n_paths) {
    small = argc == n_paths + 2 && strcmp(argv[argc - 1], "--small") == 0;
    if (argc == n_paths + 1 || small) return open_backends();
    fprintf(stderr, "usage: %s%s [--small]\n", argv[0], n_paths ? " DIRECTORY" : "");
    return 1;
}

/* Runs the tests on both backends; returns the exit status. */
static inline int run_on_backends(int argc, char **argv, int n_paths,
                                  const struct CMUnitTest *tests, size_t n) {
    const int status = begin(argc, argv, n_paths);
    if (status) return status;
    const int n_failed = _cmocka_run_group_tests("tests", tests, n, NULL, NULL);
    close_backends();
    return n_failed;
}

/* Values that bf16 holds. */
static inline float *random_bf16(size_t n, float scale) {
    float *x = random_floats(n);
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        store_f32_as(&h, 0, x[i] * scale, ELEMENT_BF16);
        x[i] = load_as_f32(&h, 0, ELEMENT_BF16);
    }
    return x;
}

static inline void *converted(const float *x, size_t n, enum element element) {
    void *out = malloc(element_bytes(element, n) + 1);
    assert_non_null(out);
    for (size_t i = 0; i < n; i++) store_f32_as(out, i, x[i], element);
    return out;
}

static inline void *gpu_alloc(size_t bytes) {
    struct error err = {0};
    void *memory;
    must(gpu->ops->alloc(gpu, bytes, &memory, &err), &err);
    return memory;
}

/* n values as elements on the device. */
static inline void *gpu_array(const float *x, size_t n, enum element element) {
    struct error err = {0};
    void *host = converted(x, n, element), *memory = gpu_alloc(element_bytes(element, n));
    must(gpu->ops->upload(gpu, memory, host, element_bytes(element, n), &err), &err);
    free(host);
    return memory;
}

static inline void gpu_read(float *out, const void *memory, size_t n, enum element element) {
    struct error err = {0};
    void *host = malloc(element_bytes(element, n) + 1);
    must(gpu->ops->download(gpu, host, memory, element_bytes(element, n), &err), &err);
    must(gpu->ops->sync(gpu, &err), &err);
    for (size_t i = 0; i < n; i++) out[i] = load_as_f32(host, i, element);
    free(host);
}

/* NaN wherever nothing was written. */
static inline void *gpu_poison(size_t n, enum element element) {
    struct error err = {0};
    void *memory = gpu_alloc(element_bytes(element, n)),
         *host = malloc(element_bytes(element, n) + 1);
    memset(host, 0xff, element_bytes(element, n));
    must(gpu->ops->upload(gpu, memory, host, element_bytes(element, n), &err), &err);
    free(host);
    return memory;
}

static inline void gpu_free(void *memory) {
    gpu->ops->free(gpu, memory);
}

/* Largest difference relative to the largest expected value, or to `least` if that is more; NaN
 * anywhere fails. */
static inline void assert_near_of(const float *got, const float *expected, size_t n, double least,
                                  double tolerance, const char *what) {
    double scale = least, worst = 0;
    for (size_t i = 0; i < n; i++) scale = fmax(scale, fabs((double)expected[i]));
    for (size_t i = 0; i < n; i++) {
        if (isnan(got[i]))
            fail_msg("%s: element %zu of %zu was not written, or is NaN", what, i, n);
        worst = fmax(worst, fabs((double)got[i] - expected[i]));
    }
    if (worst > tolerance * scale)
        fail_msg("%s: off by %g of %g, allowed %g", what, worst, scale, tolerance);
}

static inline void assert_near(const float *got, const float *expected, size_t n, double tolerance,
                               const char *what) {
    assert_near_of(got, expected, n, 1e-30, tolerance, what);
}

#endif
