/* test_fp8.c - what the CUDA backend makes of pages in a store of 8 bits, byte by byte against the
 * CPU's codes: elements of every magnitude, and those that are none. */
#include "tests/cuda/cuda_test.h"

#include "engine/cpu/fp8.h"
#include "engine/device/backend.h"
#include "engine/device/host_pool.h"
#include "engine/device/pages.h"

enum { N_PAGES = 5, N_HOST_LAYERS = 2, HOST_LAYER = 1, MAX_DIM = 128 };
static const uint32_t pages[N_PAGES] = {3, 1, 0, 4, 2}, blocks[N_PAGES] = {2, 0, 4, 1, 3};

/* [page][K, V][head][slot][dim], as the backend has them; rows are of one magnitude each. */
static void *hostile_pages(const struct kv_pool *kv) {
    static const float special[] = {0, -0.0f, NAN, INFINITY, -INFINITY, 65504, 1e-45f};
    const size_t n = kv->n_pages * kv->page_bytes / page_row_bytes(kv->format, 1);
    const uint32_t reach = kv->format == PAGE_F16 ? 20 : 125;
    float *x = random_floats(n);
    for (size_t i = 0, exponent = 0; i < n; i++) {
        if (i % kv->head_dim == 0) exponent = random_below(2 * reach);
        x[i] = ldexpf(x[i], (int)exponent - (int)reach - (int)random_below(16));
        if (random_below(100) == 0) x[i] = special[random_below(7)];
        /* Half way between two codes, under a scale of 1. */
        if (i % kv->head_dim < 8 && i / kv->head_dim % 4 == 0)
            x[i] = (float)(17 + 2 * (i % kv->head_dim)) / 16;
    }
    void *out = converted(x, n, page_element(kv->format));
    free(x);
    return out;
}

static void expect_token(const struct kv_pool *kv, const char *page, uint32_t at,
                         const uint8_t *token) {
    const uint32_t n_rows = 2 * kv->n_kv_heads, dim = kv->head_dim;
    uint8_t codes[MAX_DIM];
    for (uint32_t row = 0; row < n_rows; row++) {
        const char *from =
            page + ((size_t)row * PAGE_TOKENS + at) * dim * page_row_bytes(kv->format, 1);
        const uint8_t scale = fp8_pack(codes, 1, from, 1, dim, page_element(kv->format));
        assert_memory_equal(token + (size_t)row * dim, codes, dim);
        assert_int_equal(token[(size_t)n_rows * dim + row], scale);
    }
}

static void check_shape(uint32_t n_kv, uint32_t dim, enum page_format format) {
    struct error err = {0};
    struct kv_pool kv = {.format = format, .n_pages = N_PAGES, .n_kv_heads = n_kv, .head_dim = dim};
    struct host_pool store = {NULL, format, N_PAGES, N_HOST_LAYERS, n_kv, dim, true};
    kv.page_bytes = kv_page_bytes(&kv);
    kv.base = gpu_alloc(N_PAGES * kv.page_bytes);
    char *host = hostile_pages(&kv);
    must(
        gpu->ops->host_pool->alloc(gpu, N_PAGES * host_pool_block_bytes(&store), &store.base, &err),
        &err);
    must(gpu->ops->upload(gpu, kv.base, host, N_PAGES * kv.page_bytes, &err), &err);
    const struct offload_args args = {&kv, &store, HOST_LAYER, N_PAGES, pages, blocks};
    must(gpu->ops->host_pool->offload(gpu, &args, &err), &err);
    must(gpu->ops->sync(gpu, &err), &err);
    for (uint32_t i = 0; i < N_PAGES; i++)
        for (uint32_t at = 0; at < PAGE_TOKENS; at++)
            expect_token(&kv, host + pages[i] * kv.page_bytes, at,
                         (const uint8_t *)store.base + blocks[i] * host_pool_block_bytes(&store) +
                             (HOST_LAYER * PAGE_TOKENS + at) * host_pool_token_bytes(&store));
    gpu->ops->host_pool->free(gpu, store.base);
    gpu_free(kv.base);
    free(host);
}

/* Rows of no multiple of a vector, and more of them than a warp has lanes. */
static void bytes_equal_the_cpus(void **state) {
    static const uint32_t shapes[][2] = {{8, 128}, {2, 64}, {1, 80}, {1, 20}, {3, 7}, {40, 32}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i += small ? 3 : 1)
        for (enum page_format format = PAGE_F32; format <= PAGE_BF16; format++)
            check_shape(shapes[i][0], shapes[i][1], format);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes_equal_the_cpus)};
    return run_on_backends(argc, argv, 0, tests, COUNT(tests));
}
