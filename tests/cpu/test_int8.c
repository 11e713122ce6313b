/* test_int8.c - products of repacked weights against sums in double over the same rounded inputs.
 * Their bits are the same on every instruction set, alone and in a batch. */
#include "tests/cpu/cpu_test.h"

#include "engine/base/sizes.h"
#include "engine/cpu/backend.h"
#include "engine/cpu/int8_kernels.h"
#include "engine/cpu/int8_weight.h"
#include "engine/device/packed.h"

enum { BLOCK = 32 };

#if defined(__x86_64__)
static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avxvnni(void) {
    return has_avx2() && __builtin_cpu_supports("avxvnni");
}

static bool has_avx512vnni(void) {
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw");
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

static bool has_dotprod(void) {
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
}

static bool has_i8mm(void) {
    return has_dotprod() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM);
}
#endif

static bool always(void) {
    return true;
}

/* The tables of kernels, and where they can run; plain C is the first. */
static const struct {
    const struct product_kernels *kernels;
    bool (*is_present)(void);
} tables[] = {
    {int8_products_plain, always},
#if defined(__x86_64__)
    {int8_products_avx2, has_avx2},
    {int8_products_avxvnni, has_avxvnni},
    {int8_products_avx512vnni, has_avx512vnni},
#elif defined(__aarch64__)
    {int8_products_neon, always},
    {int8_products_dotprod, has_dotprod},
    {int8_products_i8mm, has_i8mm},
#endif
};
enum { N_TABLES = sizeof(tables) / sizeof(tables[0]) };

static struct backend *create(uint32_t n_threads) {
    struct backend *be = NULL;
    const struct cpu_config config = {.n_threads = n_threads, .int8_products = true};
    assert_int_equal(cpu_backend_create(&be, &config, NULL), 0);
    return be;
}

/* Creates a backend with the kernels of a table.  NULL: they cannot run here. */
static struct backend *create_with(uint32_t table, uint32_t n_threads) {
    if (!tables[table].is_present()) return NULL;
    struct backend *be = create(n_threads);
    ((struct cpu_backend *)be)->int8_products = tables[table].kernels;
    return be;
}

/* Creates a backend with the kernels of a table, and makes *w the weight as it reads it.  NULL:
 * they cannot run here. */
static struct backend *load_with(uint32_t table, uint32_t n_threads, const struct weight *host,
                                 struct weight *w) {
    struct backend *be = create_with(table, n_threads);
    if (be) assert_int_equal(be->ops->weight_load(be, host, w, NULL), 0);
    return be;
}

static void unload(struct backend *be, const struct weight *w) {
    be->ops->weight_release(be, w);
    be->ops->destroy(be);
}

/* All packed elements, and numbers with scales beside them. */
static const struct weight_format formats[] = {
    {ELEMENT_Q4_0, SCALE_NONE, 0, 0, false},   {ELEMENT_Q4_1, SCALE_NONE, 0, 0, false},
    {ELEMENT_Q5_0, SCALE_NONE, 0, 0, false},   {ELEMENT_Q5_1, SCALE_NONE, 0, 0, false},
    {ELEMENT_Q8_0, SCALE_NONE, 0, 0, false},   {ELEMENT_IQ4_NL, SCALE_NONE, 0, 0, false},
    {ELEMENT_MXFP4, SCALE_NONE, 0, 0, false},  {ELEMENT_Q2_K, SCALE_NONE, 0, 0, false},
    {ELEMENT_Q3_K, SCALE_NONE, 0, 0, false},   {ELEMENT_Q4_K, SCALE_NONE, 0, 0, false},
    {ELEMENT_Q5_K, SCALE_NONE, 0, 0, false},   {ELEMENT_Q6_K, SCALE_NONE, 0, 0, false},
    {ELEMENT_IQ4_XS, SCALE_NONE, 0, 0, false}, {ELEMENT_I4, SCALE_BF16, 1, 128, false},
    {ELEMENT_I4, SCALE_F16, 1, 32, true},      {ELEMENT_I4, SCALE_F32, 1, 64, true},
    {ELEMENT_I8, SCALE_F32, 1, 0, false},      {ELEMENT_I8, SCALE_F16, 1, 32, false},
    {ELEMENT_I8, SCALE_BF16, 0, 0, true},      {ELEMENT_I8, SCALE_F32, 48, 96, false},
    {ELEMENT_E2M1, SCALE_E8M0, 1, 32, false}};
enum { N_FORMATS = sizeof(formats) / sizeof(formats[0]) };

/* Memory of a weight that the caller frees: data, and numbers that serve as scales and mins. */
struct random_weight {
    struct weight w;
    uint8_t *data, *scales, *mins;
};

/* Sets the f16 scales of blocks of packed elements to numbers near 0.01. */
static void tame_blocks(struct random_weight *r) {
    static const struct {
        enum element element;
        int8_t at[2];
    } places[] = {{ELEMENT_Q4_0, {0, -1}},  {ELEMENT_Q4_1, {0, 2}},    {ELEMENT_Q5_0, {0, -1}},
                  {ELEMENT_Q5_1, {0, 2}},   {ELEMENT_Q8_0, {0, -1}},   {ELEMENT_IQ4_NL, {0, -1}},
                  {ELEMENT_Q2_K, {80, 82}}, {ELEMENT_Q3_K, {108, -1}}, {ELEMENT_Q4_K, {0, 2}},
                  {ELEMENT_Q5_K, {0, 2}},   {ELEMENT_IQ4_XS, {0, -1}}};
    const struct packed_type *type = packed_type(r->w.format.element);
    const size_t n_blocks = (size_t)r->w.rows * r->w.cols / type->n;
    for (size_t b = 0; b < n_blocks; b++) {
        uint8_t *block = r->data + b * type->bytes;
        if (r->w.format.element == ELEMENT_MXFP4) block[0] = (uint8_t)(118 + random_below(4));
        if (r->w.format.element == ELEMENT_Q6_K) block[209] = 0x20, block[208] = (uint8_t)b;
        for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
            for (int k = 0; k < 2; k++) {
                if (places[i].element != r->w.format.element || places[i].at[k] < 0) continue;
                block[places[i].at[k] + 1] = (uint8_t)(0x20 | random_below(4));
            }
        }
    }
}

static void random_scales(uint8_t *out, size_t n, enum scale_type type) {
    for (size_t i = 0; i < n; i++) {
        const uint32_t fraction = random_u32();
        const float f32 = 0.01f + (float)(fraction & 1023) * 1e-5f;
        uint32_t bits;
        memcpy(&bits, &f32, sizeof(bits));
        if (type == SCALE_E8M0) out[i] = (uint8_t)(118 + (fraction & 3));
        if (type == SCALE_F32) memcpy(out + 4 * i, &bits, 4);
        if (type == SCALE_BF16) memcpy(out + 2 * i, (uint8_t *)&bits + 2, 2);
        if (type == SCALE_F16)
            memcpy(out + 2 * i, &(uint16_t){(uint16_t)(0x2000 | (fraction & 1023))}, 2);
    }
}

static struct random_weight random_weight(struct weight_format format, uint32_t rows,
                                          uint32_t cols) {
    struct random_weight r = {.w = {.format = format, .n_stacked = 1, .rows = rows, .cols = cols}};
    const size_t n = (size_t)rows * weight_row_bytes(&r.w), n_scales = weight_scale_bytes(&r.w);
    r.data = malloc(n);
    r.scales = malloc(n_scales + 4);
    r.mins = malloc(n_scales + 4);
    for (size_t i = 0; i < n; i++) r.data[i] = (uint8_t)random_u32();
    if (element_is_packed(format.element)) tame_blocks(&r);
    const size_t size = format.scale == SCALE_F32 ? 4 : format.scale == SCALE_E8M0 ? 1 : 2;
    random_scales(r.scales, n_scales / size, format.scale);
    random_scales(r.mins, n_scales / size, format.scale);
    r.w.data = r.data;
    r.w.scales = r.scales;
    r.w.mins = r.mins;
    return r;
}

static void random_weight_free(struct random_weight *r) {
    free(r->data), free(r->scales), free(r->mins);
}

/* Rounds x to 8 bits in blocks of 32, as int8_kernels.h defines it. */
static void rounded(double *out, const float *x, uint32_t n) {
    for (uint32_t first = 0; first < n; first += BLOCK) {
        const uint32_t end = min_u32(n, first + BLOCK);
        float most = 0;
        for (uint32_t i = first; i < end; i++) most = fmaxf(most, fabsf(x[i]));
        for (uint32_t i = first; i < end; i++) {
            const float factor = most > 0 ? 127.0f / most : 0, scaled = x[i] * factor;
            out[i] = (double)(most / 127.0f) * nearbyint(scaled);
        }
    }
}

/* y of n_rows rows of x, with a bias. */
static void run(struct backend *be, const struct weight *w, const float *x, uint32_t n_rows,
                const float *bias, float *y, bool accumulate) {
    const struct weight b = weight_plain(bias, ELEMENT_F32, 1, w->rows);
    const struct linear_args args = {.x = x,
                                     .n_rows = n_rows,
                                     .n_in = w->cols,
                                     .n_parts = 1,
                                     .parts = {{w, bias ? &b : NULL, y, w->rows}},
                                     .accumulate = accumulate};
    assert_int_equal(be->ops->linear(be, &args, NULL), 0);
}

static void expect(double *out, const struct weight *w, const float *x, uint32_t n_rows) {
    double *codes = malloc(w->cols * sizeof(*codes));
    float *values = malloc(w->cols * sizeof(*values));
    for (uint32_t r = 0; r < n_rows; r++) {
        rounded(codes, x + (size_t)r * w->cols, w->cols);
        for (uint32_t c = 0; c < w->rows; c++) {
            double sum = 0;
            weight_to_float(w, c, values);
            for (uint32_t k = 0; k < w->cols; k++) sum += codes[k] * (double)values[k];
            out[(size_t)r * w->rows + c] = sum;
        }
    }
    free(codes), free(values);
}

static bool is_taken(struct backend *be, const struct weight_format *format) {
    return be->ops->takes(be, format, WEIGHT_PRODUCT) &&
           be->ops->takes(be, format, WEIGHT_PRODUCT | WEIGHT_TABLE);
}

static const uint32_t shapes[][3] = {/* n_rows, n_in, n_out; n_in: blocks of 256 of some */
                                     {1, 256, 16},
                                     {2, 512, 40},
                                     {3, 256, 7},
                                     {4, 768, 33},
                                     {5, 256, 100},
                                     {6, 512, 64},
                                     {13, 768, 31},
                                     {300, 256, 50},
                                     /* several sections, of which the last may be shorter */
                                     {1, 1280, 33},
                                     {8, 1536, 17},
                                     {9, 1280, 40}};

/* What each instruction set computed is compared with the first, which is plain C. */
TEST(all_instruction_sets_have_the_bits_of_plain_c_and_equal_sums_in_double) {
    for (uint32_t f = 0; f < N_FORMATS; f++) {
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            const uint32_t n_rows = shapes[i][0], n_in = shapes[i][1], n_out = shapes[i][2];
            struct random_weight r = random_weight(formats[f], n_out, n_in);
            const size_t n = (size_t)n_rows * n_out;
            float *x = random_floats((size_t)n_rows * n_in), *y = random_floats(n), *first = NULL;
            double *expected = malloc(n * sizeof(*expected));
            vary_rows(x, (size_t)n_rows * n_in / BLOCK, BLOCK);
            expect(expected, &r.w, x, n_rows);
            for (uint32_t table = 0; table < N_TABLES; table++) {
                struct weight w;
                struct backend *be = load_with(table, table ? 3 : 1, &r.w, &w);
                if (!be) continue;
                assert_true(is_taken(be, &formats[f]));
                run(be, &w, x, n_rows, NULL, y, false);
                assert_close(y, expected, n, 2e-6);
                if (first) assert_memory_equal(y, first, n * sizeof(float));
                else first = memcpy(malloc(n * sizeof(float)), y, n * sizeof(float));
                unload(be, &w);
            }
            free(x), free(y), free(first), free(expected);
            random_weight_free(&r);
        }
    }
}

TEST(a_row_has_the_same_bits_alone_and_in_a_batch) {
    enum { N_ROWS = 37, N_IN = 512, N_OUT = 61 };
    for (uint32_t f = 0; f < N_FORMATS; f++) {
        struct random_weight r = random_weight(formats[f], N_OUT, N_IN);
        float *x = random_floats(N_ROWS * N_IN), *batch = random_floats(N_ROWS * N_OUT),
              alone[N_OUT];
        for (uint32_t table = 1; table < N_TABLES; table++) {
            struct weight w;
            struct backend *be = load_with(table, 3, &r.w, &w);
            if (!be) continue;
            run(be, &w, x, N_ROWS, NULL, batch, false);
            for (uint32_t row = 0; row < N_ROWS; row++) {
                run(be, &w, x + row * N_IN, 1, NULL, alone, false);
                assert_memory_equal(alone, batch + row * N_OUT, sizeof(alone));
            }
            run(be, &w, x + 9 * N_IN, 7, NULL, batch, false);
            run(be, &w, x + 9 * N_IN, 1, NULL, alone, false);
            assert_memory_equal(alone, batch, sizeof(alone));
            unload(be, &w);
        }
        free(x), free(batch);
        random_weight_free(&r);
    }
}

TEST(biases_and_residuals_are_added) {
    enum { N_ROWS = 9, N_IN = 96, N_OUT = 50 };
    struct backend *be = create(2);
    struct random_weight r = random_weight(formats[0], N_OUT, N_IN);
    float *x = random_floats(N_ROWS * N_IN), *bias = random_floats(N_OUT),
          *y = random_floats(N_ROWS * N_OUT), *base = random_floats(N_ROWS * N_OUT);
    struct weight w;
    assert_int_equal(be->ops->weight_load(be, &r.w, &w, NULL), 0);
    run(be, &w, x, N_ROWS, NULL, y, false);
    float *sums =
        memcpy(malloc(sizeof(float) * N_ROWS * N_OUT), base, sizeof(float) * N_ROWS * N_OUT);
    run(be, &w, x, N_ROWS, bias, sums, true);
    for (uint32_t i = 0; i < N_ROWS * N_OUT; i++)
        assert_true(sums[i] == base[i] + (y[i] + bias[i % N_OUT]));
    unload(be, &w);
    free(x), free(bias), free(y), free(base), free(sums);
    random_weight_free(&r);
}

/* Columns that are no whole blocks, of formats whose elements are not in blocks. */
TEST(columns_may_end_inside_a_block) {
    enum { N_ROWS = 7, N_OUT = 19 };
    for (uint32_t f = 0; f < N_FORMATS; f++) {
        if (element_is_packed(formats[f].element)) continue;
        for (uint32_t n_in = 2; n_in < 150; n_in += 37) {
            struct random_weight r = random_weight(formats[f], N_OUT, n_in);
            float *x = random_floats(N_ROWS * n_in), y[N_ROWS * N_OUT];
            double expected[N_ROWS * N_OUT];
            expect(expected, &r.w, x, N_ROWS);
            for (uint32_t table = 0; table < N_TABLES; table++) {
                struct weight w;
                struct backend *be = load_with(table, 1, &r.w, &w);
                if (!be) continue;
                run(be, &w, x, N_ROWS, NULL, y, false);
                assert_close(y, expected, N_ROWS * N_OUT, 2e-6);
                unload(be, &w);
            }
            free(x);
            random_weight_free(&r);
        }
    }
}

TEST(rows_have_the_values_that_they_had) {
    enum { N_OUT = 35, N_IN = 1280 };
    float before[N_IN], after[N_IN];
    struct backend *be = create(2);
    for (uint32_t f = 0; f < N_FORMATS; f++) {
        struct random_weight r = random_weight(formats[f], N_OUT, N_IN);
        struct weight w;
        assert_int_equal(be->ops->weight_load(be, &r.w, &w, NULL), 0);
        for (uint32_t row = 0; row < N_OUT; row++) {
            weight_to_float(&r.w, row, before);
            int8_weight_row(&w, row, after);
            for (uint32_t i = 0; i < N_IN; i++) assert_true(before[i] == after[i]);
        }
        be->ops->weight_release(be, &w);
        random_weight_free(&r);
    }
    be->ops->destroy(be);
}

/* A NaN of x is in all outputs of its row, and in none of another row. */
TEST(nan_stays_in_its_row) {
    enum { N_ROWS = 8, N_IN = 256, N_OUT = 20 };
    struct random_weight r = random_weight(formats[0], N_OUT, N_IN);
    float *x = random_floats(N_ROWS * N_IN), y[N_ROWS * N_OUT];
    x[3 * N_IN + 77] = NAN;
    x[5 * N_IN + 1] = INFINITY;
    memset(x + 6 * N_IN, 0, N_IN * sizeof(float));
    for (uint32_t table = 0; table < N_TABLES; table++) {
        struct weight w;
        struct backend *be = load_with(table, 1, &r.w, &w);
        if (!be) continue;
        run(be, &w, x, N_ROWS, NULL, y, false);
        for (uint32_t i = 0; i < N_ROWS * N_OUT; i++) {
            const uint32_t row = i / N_OUT;
            assert_true(isnan(y[i]) == (row == 3 || row == 5));
            if (row == 6) assert_true(y[i] == 0);
        }
        unload(be, &w);
    }
    free(x);
    random_weight_free(&r);
}

TEST(scales_that_are_no_numbers_are_refused) {
    struct backend *be = create(2);
    struct error err;
    struct weight w;
    for (uint32_t f = 0; f < N_FORMATS; f++) {
        struct random_weight r = random_weight(formats[f], 20, 256);
        if (formats[f].element == ELEMENT_MXFP4) { /* every code is a number */
            random_weight_free(&r);
            continue;
        }
        if (element_is_packed(formats[f].element)) /* one of these bytes is part of an f16 */
            memset(r.data, 0x7e, packed_type(formats[f].element)->bytes);
        else memset(r.scales, 0xff, 4);
        assert_int_equal(be->ops->weight_load(be, &r.w, &w, &err), ERR_INVALID);
        random_weight_free(&r);
    }
    be->ops->destroy(be);
}

/* Scales of columns that are no whole blocks are not among them, nor are vectors. */
TEST(other_formats_are_not_taken) {
    static const struct weight_format others[] = {{ELEMENT_I8, SCALE_F32, 1, 48, false},
                                                  {ELEMENT_I8, SCALE_NONE, 0, 0, false}};
    struct backend *be = create(1);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        assert_false(be->ops->takes(be, &others[i], WEIGHT_PRODUCT));
        assert_true(be->ops->takes(be, &others[i], WEIGHT_TABLE));
    }
    assert_false(be->ops->takes(be, &formats[0], WEIGHT_VECTOR));
    be->ops->destroy(be);
}
