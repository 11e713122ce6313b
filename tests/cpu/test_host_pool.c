/* test_host_pool.c - pages that go to the host pool and come back to other pages: all of their
 * elements, and the scales of those that have some, are as they were, and nothing else is
 * written. */
#include "tests/cpu/cpu_test.h"

#include "engine/device/backend.h"
#include "engine/device/host_pool.h"
#include "engine/device/pages.h"

enum {
    N_PAGES = 6,
    N_MOVED = 3,
    N_BLOCKS = 4,
    N_HOST_LAYERS = 2,
    HOST_LAYER = 1,
    UNTOUCHED = 0xa5
};

static const uint32_t from[N_MOVED] = {2, 0, 5}, blocks[N_MOVED] = {1, 3, 0},
                      to[N_MOVED] = {4, 1, 3};

/* What follows a page's elements and scales belongs to sequences that keep a budget. */
static size_t bytes_of_tokens(const struct kv_pool *kv) {
    return kv_state_offset(kv, 0);
}

static void expect_untouched(const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) assert_int_equal((uint8_t)bytes[i], UNTOUCHED);
}

static void check(struct backend *be, enum page_format format, uint32_t n_kv, uint32_t dim) {
    struct kv_pool kv = {
        .format = format, .n_pages = N_PAGES, .n_kv_heads = n_kv, .head_dim = dim, .tracked = true};
    struct host_pool store = {.format = format,
                              .n_blocks = N_BLOCKS,
                              .n_host_layers = N_HOST_LAYERS,
                              .n_kv_heads = n_kv,
                              .head_dim = dim,
                              .fp8 = format == PAGE_FP8};
    assert_true(host_pool_is_exact(&store));
    kv.page_bytes = kv_page_bytes(&kv);
    const size_t n_bytes = N_PAGES * kv.page_bytes, n_tokens = bytes_of_tokens(&kv);
    kv.base = malloc(n_bytes);
    store.base = calloc(N_BLOCKS, host_pool_block_bytes(&store));
    memset(kv.base, UNTOUCHED, n_bytes);
    char *base = kv.base;
    for (uint32_t i = 0; i < N_MOVED; i++)
        for (size_t at = 0; at < n_tokens; at++)
            base[from[i] * kv.page_bytes + at] = (char)random_u32();
    const struct offload_args out = {&kv, &store, HOST_LAYER, N_MOVED, from, blocks},
                              back = {&kv, &store, HOST_LAYER, N_MOVED, to, blocks};
    assert_int_equal(be->ops->host_pool->offload(be, &out, NULL), 0);
    assert_int_equal(be->ops->host_pool->reload(be, &back, NULL), 0);
    assert_int_equal(be->ops->sync(be, NULL), 0);
    for (uint32_t i = 0; i < N_MOVED; i++) {
        const char *page = base + to[i] * kv.page_bytes;
        assert_memory_equal(page, base + from[i] * kv.page_bytes, n_tokens);
        expect_untouched(page + n_tokens, kv.page_bytes - n_tokens);
    }
    free(kv.base);
    free(store.base);
}

static void every_type(struct backend *be) {
    static const enum page_format formats[] = {PAGE_F32, PAGE_F16, PAGE_BF16, PAGE_FP8};
    for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++) {
        check(be, formats[i], 2, 64);
        check(be, formats[i], 1, 16);
        check(be, formats[i], 3, 80);
    }
}

TEST(what_went_comes_back) {
    for_each_backend(every_type);
}

TEST(an_fp8_host_pool_of_larger_elements_is_not_exact) {
    assert_false(host_pool_is_exact(&(struct host_pool){.format = PAGE_BF16, .fp8 = true}));
    assert_true(host_pool_is_exact(&(struct host_pool){.format = PAGE_FP8, .fp8 = true}));
    assert_true(host_pool_is_exact(&(struct host_pool){.format = PAGE_BF16}));
}
