/* test_fp8.c - keys and values in 8 bits against their definition (engine/device/host_pool.h):
 * all codes, every place where rounding turns, every scale; and what lies where in
 * the store. */
#include "tests/cpu/cpu_test.h"

#include "engine/cpu/fp8.h"
#include "engine/cpu/tile.h"
#include "engine/cpu/vec.h"
#include "engine/device/backend.h"
#include "engine/device/host_pool.h"
#include "engine/device/pages.h"

enum { N_POSITIVE = 0x7f, MOST_DIM = 128 }; /* codes below NaN */

/* By the definition of e4m3. */
static double value_of(uint8_t code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double magnitude = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    if ((code & 0x7f) == 0x7f) return NAN;
    return code & 0x80 ? -magnitude : magnitude;
}

TEST(every_code_has_its_value_and_returns) {
    for (uint32_t code = 0; code < 256; code++) {
        const float x = fp8_to_f32((uint8_t)code);
        const double expected = value_of((uint8_t)code);
        assert_true(isnan(x) ? isnan(expected) : (double)x == expected);
        assert_int_equal(!!signbit(x), isnan(x) ? 0 : code >> 7);
        assert_int_equal(fp8_from_f32(x), isnan(x) ? 0x7f : code);
    }
    assert_int_equal(fp8_from_f32(-NAN), 0x7f);
}

static void expect_code(float x, uint32_t code) {
    assert_int_equal(fp8_from_f32(x), code);
    assert_int_equal(fp8_from_f32(-x), code | 0x80);
}

/* Half way between two codes the even one is meant; a hair off it, the nearer. */
TEST(rounding_is_to_nearest_even) {
    for (uint32_t code = 0; code + 1 < N_POSITIVE; code++) {
        const float low = fp8_to_f32((uint8_t)code), high = fp8_to_f32((uint8_t)(code + 1)),
                    middle = (low + high) / 2;
        expect_code(middle, code % 2 ? code + 1 : code);
        expect_code(nextafterf(middle, 0), code);
        expect_code(nextafterf(middle, 1000), code + 1);
    }
    expect_code(1e-45f, 0);
    for (float x = 448; x <= 0x1p127f; x *= 1.0625f) expect_code(x, 0x7e);
    expect_code(INFINITY, 0x7e);
}

static uint32_t most_scale(enum element element) {
    return element == ELEMENT_F16 ? FP8_MOST_SCALE_F16 : FP8_MOST_SCALE;
}

/* What a scale covers. */
static double covered(uint32_t scale) {
    return ldexp(448, (int)scale - 127);
}

/* Of a row of x and NaN, which counts for nothing. */
static void check_scale(float x, enum element element) {
    char row[2 * 4];
    uint8_t codes[2];
    store_f32_as(row, 0, x, element);
    store_f32_as(row, 1, NAN, element);
    const float held = load_as_f32(row, 0, element);
    const uint32_t scale = fp8_pack(codes, 1, row, 1, 2, element);
    assert_true(scale >= 1 && scale <= most_scale(element));
    assert_true(covered(scale) >= held || scale == most_scale(element));
    assert_true(scale == 1 || covered(scale - 1) < held);
    assert_int_equal(codes[1], 0x7f);
}

TEST(the_scale_is_the_least_that_covers_a_row) {
    for (enum element element = ELEMENT_F32; element <= ELEMENT_BF16; element++)
        for (int exponent = -150; exponent <= 128; exponent++)
            for (int i = 0; i < 64; i++)
                check_scale(ldexpf(1.0f + (float)i / 64, exponent), element);
}

/* Elements of a row whose magnitudes are about 2^from … 2^to, one in eight something special. */
static void fill_row(char *row, uint32_t stride, uint32_t n, enum element element, int from,
                     int to) {
    static const float special[] = {0, -0.0f, NAN, INFINITY, -INFINITY, 1, -1, 65504};
    for (uint32_t i = 0; i < n; i++) {
        float x = ldexpf(random_float(), from + (int)random_below((uint32_t)(to - from + 1)));
        if (random_below(64) == 0) x = special[random_below(8)];
        store_f32_as(row, (size_t)i * stride, x, element);
    }
}

/* As struct host_pool promises. */
static void expect_element(float got, float x, uint32_t scale) {
    const double most = covered(scale);
    if (isnan(x)) {
        assert_true(isnan(got));
    } else if (fabs(x) > most) {
        assert_true(got == (x < 0 ? -most : most));
    } else {
        const double allowed = fmax(fabs(x) / 16, ldexp(1, (int)scale - 137));
        if (!(fabs((double)got - x) <= allowed)) fail_msg("%g became %g, scale %u", x, got, scale);
        assert_int_equal(!!signbit(got), !!signbit(x));
    }
}

TEST(rows_return_as_nearly_as_promised) {
    char row[MOST_DIM * 3 * 4], back[MOST_DIM * 2 * 4], again[MOST_DIM * 4];
    uint8_t codes[MOST_DIM];
    for (uint32_t i = 0; i < 30000; i++) {
        const enum element element = (enum element)(i % 3);
        const uint32_t n = 1 + random_below(MOST_DIM), stride = 1 + random_below(3),
                       reach = element == ELEMENT_F16 ? 15 : 127;
        const int to = (int)random_below(2 * reach) - (int)reach, from = to - (int)random_below(20);
        fill_row(row, stride, n, element, from, to);
        const uint8_t scale = fp8_pack(codes, 1, row, stride, n, element);
        fp8_unpack(back, 2, codes, scale, n, element);
        for (uint32_t k = 0; k < n; k++)
            expect_element(load_as_f32(back, 2 * (size_t)k, element),
                           load_as_f32(row, (size_t)k * stride, element), scale);
        /* What has come back loses nothing any more. */
        const uint8_t same = fp8_pack(codes, 1, back, 2, n, element);
        fp8_unpack(again, 1, codes, same, n, element);
        for (uint32_t k = 0; k < n; k++) {
            const float x = load_as_f32(again, k, element),
                        y = load_as_f32(back, 2 * (size_t)k, element);
            assert_true(x == y || (isnan(x) && isnan(y)));
        }
    }
}

TEST(a_row_of_zeros_stays_one) {
    const float zeros[4] = {0, -0.0f, 0, -0.0f};
    float back[4] = {1, 1, 1, 1};
    uint8_t codes[4];
    const uint8_t scale = fp8_pack(codes, 1, (const char *)zeros, 1, 4, ELEMENT_F32);
    fp8_unpack((char *)back, 1, codes, scale, 4, ELEMENT_F32);
    assert_memory_equal(back, zeros, sizeof(zeros));
}

/* [block][host layer][token], each its codes, its scales, and what is not written. */
static void check_token(const struct kv_pool *kv, const struct host_pool *store, uint32_t page,
                        uint32_t at, const uint8_t *token) {
    const uint32_t n_rows = 2 * kv->n_kv_heads, dim = kv->head_dim;
    const size_t size = page_row_bytes(kv->format, 1);
    uint8_t expected[MOST_DIM];
    for (uint32_t row = 0; row < n_rows; row++) {
        const bool key = row < kv->n_kv_heads;
        const char *from = page_of_head(kv, page, row) + (key ? at : at * dim) * size;
        const uint8_t scale =
            fp8_pack(expected, 1, from, key ? PAGE_TOKENS : 1, dim, page_element(kv->format));
        assert_memory_equal(token + (size_t)row * dim, expected, dim);
        assert_int_equal(token[(size_t)n_rows * dim + row], scale);
    }
    for (size_t i = (size_t)n_rows * (dim + 1); i < host_pool_token_bytes(store); i++)
        assert_int_equal(token[i], 0xa5);
}

static void a_token_lies_as_drawn_on(struct backend *be) {
    enum { N_PAGES = 3, N_BLOCKS = 4, N_HOST_LAYERS = 2, HOST_LAYER = 1, N_KV = 2, DIM = 20 };
    struct kv_pool kv = {
        .format = PAGE_BF16, .n_pages = N_PAGES, .n_kv_heads = N_KV, .head_dim = DIM};
    struct host_pool store = {.format = PAGE_BF16,
                              .n_blocks = N_BLOCKS,
                              .n_host_layers = N_HOST_LAYERS,
                              .n_kv_heads = N_KV,
                              .head_dim = DIM,
                              .fp8 = true};
    const uint32_t pages[] = {2, 0}, blocks[] = {1, 3};
    const struct offload_args args = {&kv, &store, HOST_LAYER, 2, pages, blocks};
    const size_t token_bytes = host_pool_token_bytes(&store);
    assert_int_equal(token_bytes, 96); /* 4 rows of 20 and their scales: 84 */
    assert_int_equal(host_pool_block_bytes(&store), 64 * 2 * 96);
    kv.page_bytes = kv_page_bytes(&kv);
    kv.base = malloc(N_PAGES * kv.page_bytes);
    store.base = malloc(N_BLOCKS * host_pool_block_bytes(&store));
    fill_row(kv.base, 1, (uint32_t)(N_PAGES * kv.page_bytes / 2), page_element(kv.format), -9, 3);
    memset(store.base, 0xa5, N_BLOCKS * host_pool_block_bytes(&store));
    assert_int_equal(be->ops->host_pool->offload(be, &args, NULL), 0);
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t at = 0; at < PAGE_TOKENS; at++)
            check_token(&kv, &store, pages[i], at,
                        (const uint8_t *)store.base + blocks[i] * host_pool_block_bytes(&store) +
                            (HOST_LAYER * PAGE_TOKENS + at) * token_bytes);
    free(kv.base);
    free(store.base);
}

TEST(a_token_lies_as_drawn) {
    for_each_backend(a_token_lies_as_drawn_on);
}
