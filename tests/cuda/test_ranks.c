/* test_ranks.c - sums and gathered columns of several CUDA ranks on one device, by definition.
 * Parts are added in f32 in the order of the ranks, and rounded once. */
#include <pthread.h>

#include "cuda/ranks/ranks.h"
#include "engine/device/collective.h"
#include "tests/cuda/cuda_test.h"

enum { N_RANKS = 3, N_SUMS = 20 };

static struct backend *ranks; /* that of rank 0 */

/* What a rank computes: sums of its part, again and again, each from the last one's result. */
struct worker {
    struct backend *be;
    float *part, *x; /* [n], of bf16 values */
    size_t n;
    float *got;     /* [n] */
    float *columns; /* f32 [n_rows, width] on the host: its own columns are set */
    struct gather_columns_args gather;
    bool accumulate;
    struct error err;
    int rc;
};

static void *work(void *arg) {
    struct worker *w = arg;
    const struct backend_ops *ops = w->be->ops;
    const size_t bytes = w->n * 2, f32_bytes = (size_t)w->gather.n_rows * w->gather.width * 4;
    void *host_part = converted(w->part, w->n, ELEMENT_BF16),
         *host_x = converted(w->x, w->n, ELEMENT_BF16), *part = NULL, *x = NULL, *columns = NULL;
    w->rc = ops->alloc(w->be, bytes, &part, &w->err);
    if (!w->rc) w->rc = ops->alloc(w->be, bytes, &x, &w->err);
    if (!w->rc) w->rc = ops->alloc(w->be, f32_bytes, &columns, &w->err);
    if (!w->rc) w->rc = ops->upload(w->be, x, host_x, bytes, &w->err);
    if (!w->rc) w->rc = ops->upload(w->be, columns, w->columns, f32_bytes, &w->err);
    for (int i = 0; i < N_SUMS && !w->rc; i++) {
        const struct sum_args args = {part, x, w->n, w->accumulate};
        /* The part is written anew each time: a sum that reads it too late would show. */
        w->rc = ops->upload(w->be, part, host_part, bytes, &w->err);
        if (!w->rc) w->rc = ops->collective->sum(w->be, &args, &w->err);
    }
    w->gather.x = columns;
    if (!w->rc) w->rc = ops->collective->gather_columns(w->be, &w->gather, &w->err);
    void *out = malloc(bytes);
    if (!w->rc) w->rc = ops->download(w->be, out, x, bytes, &w->err);
    if (!w->rc) w->rc = ops->download(w->be, w->columns, columns, f32_bytes, &w->err);
    if (!w->rc) w->rc = ops->sync(w->be, &w->err);
    for (size_t i = 0; i < w->n; i++) w->got[i] = load_as_f32(out, i, ELEMENT_BF16);
    ops->free(w->be, part), ops->free(w->be, x), ops->free(w->be, columns);
    free(host_part), free(host_x), free(out);
    return NULL;
}

static float rounded(float x) {
    uint16_t h;
    store_f32_as(&h, 0, x, ELEMENT_BF16);
    return load_as_f32(&h, 0, ELEMENT_BF16);
}

static void check(size_t n, bool accumulate, uint32_t n_rows, uint32_t width) {
    struct worker workers[N_RANKS];
    pthread_t threads[N_RANKS];
    float *x = random_bf16(n, 1);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        const uint32_t first = r * width / N_RANKS, end = (r + 1) * width / N_RANKS;
        workers[r] = (struct worker){
            .be = ranks->ranks[r],
            .part = random_bf16(n, 1),
            .x = x,
            .n = n,
            .got = random_floats(n),
            .columns = random_floats((size_t)n_rows * width),
            .gather = {.n_rows = n_rows, .width = width, .first = first, .n_cols = end - first},
            .accumulate = accumulate};
    }
    float *own[N_RANKS];
    for (uint32_t r = 0; r < N_RANKS; r++) {
        own[r] = malloc((size_t)n_rows * width * sizeof(float));
        memcpy(own[r], workers[r].columns, (size_t)n_rows * width * sizeof(float));
    }
    for (int r = 0; r < N_RANKS; r++) pthread_create(&threads[r], NULL, work, &workers[r]);
    for (int r = 0; r < N_RANKS; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < N_RANKS; r++) must(workers[r].rc, &workers[r].err);
    for (size_t i = 0; i < n; i++) {
        float expected = x[i];
        for (int k = 0; k < N_SUMS; k++) {
            float sum = 0;
            for (int r = 0; r < N_RANKS; r++) sum += workers[r].part[i];
            expected = rounded(sum + (accumulate ? expected : 0));
        }
        for (int r = 0; r < N_RANKS; r++) assert_true(workers[r].got[i] == expected);
    }
    for (uint32_t row = 0; row < n_rows; row++)
        for (uint32_t c = 0; c < width; c++) {
            uint32_t r = 0;
            while (c >= (r + 1) * width / N_RANKS) r++;
            assert_true(workers[0].columns[row * width + c] == own[r][row * width + c]);
        }
    for (int r = 0; r < N_RANKS; r++) {
        free(own[r]), free(workers[r].part), free(workers[r].got), free(workers[r].columns);
    }
    free(x);
}

static void sums_are_those_of_the_definition(void **state) {
    static const size_t sizes[] = {1, 7, 8, 4096, 5003, 1 << 18};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (int accumulate = 0; accumulate < 2; accumulate++)
            check(sizes[i], accumulate, 1 + (uint32_t)i, 128 + (uint32_t)i * 37);
}

int main(int argc, char **argv) {
    static const uint32_t devices[N_RANKS];
    const struct cuda_config config = {0};
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_are_those_of_the_definition)};
    struct error err = {0};
    const int status = begin(argc, argv, 0);
    if (status) return status;
    if (cuda_ranks_create(&ranks, &config, devices, N_RANKS, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    const int n_failed = _cmocka_run_group_tests("ranks", tests, 1, NULL, NULL);
    ranks->ops->destroy(ranks);
    close_backends();
    return n_failed;
}
