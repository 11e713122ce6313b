/* test_memory.c - allocation, copies, pages and weights of the CUDA backend. */
#include "cuda/host/internal.h"
#include "engine/device/backend.h"
#include "engine/device/host_pool.h"
#include "engine/device/pages.h"
#include "tests/cuda/cuda_test.h"

#include <time.h>

static unsigned char *random_bytes(size_t n) {
    unsigned char *bytes = malloc(n + 8);
    assert_non_null(bytes);
    for (size_t i = 0; i < n; i += 4) {
        const uint32_t x = random_u32();
        memcpy(bytes + i, &x, 4);
    }
    return bytes;
}

static void memory_begins_as_zero(void **state) {
    struct error err = {0};
    unsigned char bytes[1000];
    for (int i = 0; i < 3; i++) {
        void *memory = gpu_alloc(sizeof(bytes));
        must(gpu->ops->download(gpu, bytes, memory, sizeof(bytes), &err), &err);
        must(gpu->ops->sync(gpu, &err), &err);
        for (size_t k = 0; k < sizeof(bytes); k++) assert_int_equal(bytes[k], 0);
        assert_int_equal((uintptr_t)memory % 64, 0);
        memset(bytes, 0xff, sizeof(bytes));
        must(gpu->ops->upload(gpu, memory, bytes, sizeof(bytes), &err), &err);
        gpu_free(memory);
    }
}

static void arguments_arrive_and_results_return(void **state) {
    const size_t sizes[] = {1, 16, 20, 4096, 4100, 300001, (size_t)3 << 20};
    struct cuda_backend *cuda = CUDA_BACKEND(gpu);
    struct error err = {0};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        const size_t n = sizes[i];
        unsigned char *bytes = random_bytes(n), *got = malloc(n);
        struct args room;
        must(args_take(cuda, n, &room, &err), &err);
        memcpy(room.host, bytes, n);
        must(args_send(cuda, &room, room.device, n, &err), &err);
        must(gpu->ops->sync(gpu, &err), &err);
        must(args_take(cuda, n, &room, &err), &err); /* a sync has returned it */
        memset(room.host, 0, n);
        must(results_fetch(cuda, &room, got, n, &err), &err);
        must(gpu->ops->sync(gpu, &err), &err);
        assert_memory_equal(got, bytes, n);
        free(bytes), free(got);
    }
}

static void pages_are_copied(void **state) {
    /* More than one launch takes, and pages that are no multiple of what a block moves. */
    enum { N = 2 * 550 };
    struct error err = {0};
    struct kv_pool kv = {
        .format = PAGE_BF16, .n_pages = N, .n_kv_heads = 2, .head_dim = 16, .tracked = true};
    const size_t bytes = kv.page_bytes = kv_page_bytes(&kv);
    unsigned char *expected = random_bytes(N * bytes), *got = malloc(N * bytes);
    kv.base = gpu_alloc(N * bytes);
    must(gpu->ops->upload(gpu, kv.base, expected, N * bytes, &err), &err);
    uint32_t from[N / 2], to[N / 2];
    for (uint32_t i = 0; i < N / 2; i++) {
        from[i] = 2 * (i * 3 % (N / 2)), to[i] = 2 * i + 1;
        memcpy(expected + to[i] * bytes, expected + from[i] * bytes, bytes);
    }
    must(gpu->ops->copy_pages(gpu, &kv, from, to, N / 2, &err), &err);
    must(gpu->ops->download(gpu, got, kv.base, N * bytes, &err), &err);
    must(gpu->ops->sync(gpu, &err), &err);
    assert_memory_equal(got, expected, N * bytes);
    gpu_free(kv.base);
    free(expected), free(got);
}

/* Pages lie in the store wherever there is room, at its ends, too. */
static void the_store_is_copied_anywhere(void **state) {
    enum { BYTES = 1 << 16, STORE_BYTES = (1 << 30) + 3 * BYTES / 2 };
    static const size_t places[] = {0, (1 << 30) - BYTES / 2, STORE_BYTES - BYTES};
    struct error err = {0};
    unsigned char *expected = random_bytes(BYTES), *got = calloc(1, BYTES);
    void *memory = gpu_alloc(BYTES), *store;
    must(gpu->ops->host_pool->alloc(gpu, STORE_BYTES, &store, &err), &err);
    for (int i = 0; i < 3; i++) {
        char *place = (char *)store + places[i];
        memset(got, 0, BYTES);
        must(gpu->ops->upload(gpu, memory, expected, BYTES, &err), &err);
        must(gpu->ops->download(gpu, place, memory, BYTES, &err), &err);
        must(gpu->ops->upload(gpu, memory, got, BYTES, &err), &err); /* something else */
        must(gpu->ops->upload(gpu, memory, place, BYTES, &err), &err);
        must(gpu->ops->download(gpu, got, memory, BYTES, &err), &err);
        must(gpu->ops->sync(gpu, &err), &err);
        assert_memory_equal(got, expected, BYTES);
    }
    gpu->ops->host_pool->free(gpu, store);
    gpu_free(memory);
    free(expected), free(got);
}

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Odd sizes, larger than a staging buffer and than a chunk, released in another order. */
static void weights_arrive_whole(void **state) {
    static const size_t sizes[] = {2,  768,     1002, 3 << 20, (40 << 20) + 6, 100, (200 << 20) + 2,
                                   16, 64 << 20};
    enum { N = sizeof(sizes) / sizeof(sizes[0]) };
    struct error err = {0};
    unsigned char *from[N], *got = malloc(sizes[6]);
    struct weight weights[N];
    double seconds = 0, bytes = 0;
    for (int i = 0; i < N; i++) {
        from[i] = random_bytes(sizes[i]);
        const double start = seconds_now();
        const struct weight host =
            weight_plain(from[i], ELEMENT_BF16, 1, (uint32_t)(sizes[i] / sizeof(uint16_t)));
        must(gpu->ops->weight_load(gpu, &host, &weights[i], &err), &err);
        must(gpu->ops->sync(gpu, &err), &err);
        if (sizes[i] > 50 << 20) seconds += seconds_now() - start, bytes += (double)sizes[i];
    }
    for (int i = 0; i < N; i++) {
        must(gpu->ops->download(gpu, got, weights[i].data, sizes[i], &err), &err);
        must(gpu->ops->sync(gpu, &err), &err);
        assert_memory_equal(got, from[i], sizes[i]);
    }
    for (int i = 0; i < N; i++) {
        gpu->ops->weight_release(gpu, &weights[i * 4 % N]);
        free(from[i]);
    }
    free(got);
    printf("large weights: %.1f GB/s\n", bytes / seconds * 1e-9);
}

/* The engine plans with what is free; what is taken shows. */
static void the_free_memory_is_told(void **state) {
    const size_t bytes = (size_t)1 << 30;
    const struct device_memory before = gpu->ops->memory(gpu);
    void *memory = gpu_alloc(bytes);
    assert_true(before.free > bytes && before.total >= before.free);
    assert_true(gpu->ops->memory(gpu).free + bytes <=
                before.free + (64 << 20)); /* others may come and go */
    gpu_free(memory);
}

static void too_much_memory_is_refused_in_numbers(void **state) {
    struct error err = {0};
    void *memory = NULL;
    assert_int_equal(gpu->ops->alloc(gpu, (size_t)1 << 45, &memory, &err), ERR_NOMEM);
    assert_null(memory);
    assert_non_null(strstr(err.text, "33554432.0 MiB"));
    assert_non_null(strstr(err.text, "--kv-cache-memory"));
    memory = gpu_alloc(1000); /* the device works on */
    must(gpu->ops->sync(gpu, &err), &err);
    gpu_free(memory);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_begins_as_zero),
        cmocka_unit_test(arguments_arrive_and_results_return),
        cmocka_unit_test(pages_are_copied),
        cmocka_unit_test(the_store_is_copied_anywhere),
        cmocka_unit_test(weights_arrive_whole),
        cmocka_unit_test(the_free_memory_is_told),
        cmocka_unit_test(too_much_memory_is_refused_in_numbers),
    };
    return run_on_backends(argc, argv, 0, tests, COUNT(tests));
}
