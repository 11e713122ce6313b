/* test_linear.c - products against sums in double, a row's bits against those it has alone, and
 * what is fused with a product against the same done apart. */
#include "tests/cpu/cpu_test.h"

#include <sys/mman.h>
#include <unistd.h>

#include "engine/cpu/amx.h"
#include "engine/cpu/backend.h"
#include "engine/cpu/present.h"
#include "engine/cpu/vec.h"
#include "engine/device/backend.h"

#if defined(__x86_64__)
/* amx.c with the tiles of software_tiles.h. */
extern const struct product_kernels software_products;

static bool has_bf16(void) {
    return __builtin_cpu_supports("avx512bf16");
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

static bool has_bf16(void) {
    return getauxval(AT_HWCAP2) & HWCAP2_BF16;
}
#endif

/* Memory that ends where a page begins that must not be touched: the kernels are not instrumented
 * by sanitizers (see engine/cpu/meson.build), so this is what notices a read too far, in every
 * build. */
static void *guarded_alloc(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), usable = (bytes + page - 1) / page * page;
    char *base =
        mmap(NULL, usable + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(base, MAP_FAILED);
    assert_int_equal(mprotect(base + usable, page, PROT_NONE), 0);
    return base + usable - bytes;
}

static void guarded_free(void *memory, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), usable = (bytes + page - 1) / page * page;
    munmap((char *)memory + bytes - usable, usable + page);
}

static float *guarded_floats(size_t n) {
    float *x = guarded_alloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++) x[i] = random_float();
    return x;
}

struct product {
    uint32_t n_rows, n_in, n_out;
    enum element element;
    float *x;
    void *w;
    float *bias;
    double *expected; /* x W^T + b */
};

static struct product random_product(uint32_t n_rows, uint32_t n_in, uint32_t n_out,
                                     enum element element) {
    struct product p = {n_rows,
                        n_in,
                        n_out,
                        element,
                        guarded_floats((size_t)n_rows * n_in),
                        NULL,
                        random_floats(n_out),
                        NULL};
    size_t n = (size_t)n_out * n_in;
    p.w = guarded_alloc(n * element_bits(element) / 8);
    p.expected = calloc((size_t)n_rows * n_out, sizeof(double));
    for (size_t i = 0; i < n; i++) store_f32_as(p.w, i, random_float(), element);
    for (uint32_t r = 0; r < n_rows; r++) {
        for (uint32_t c = 0; c < n_out; c++) {
            double sum = p.bias[c];
            for (uint32_t k = 0; k < n_in; k++) {
                sum += (double)p.x[(size_t)r * n_in + k] *
                       load_as_f32(p.w, (size_t)c * n_in + k, element);
            }
            p.expected[(size_t)r * n_out + c] = sum;
        }
    }
    return p;
}

static void product_free(struct product *p) {
    guarded_free(p->x, (size_t)p->n_rows * p->n_in * sizeof(float));
    guarded_free(p->w, (size_t)p->n_out * p->n_in * element_bits(p->element) / 8);
    free(p->bias);
    free(p->expected);
}

/* Runs rows [first, first + n) with bias into y. */
static void run_product(struct backend *be, const struct product *p, uint32_t first, uint32_t n,
                        float *y, bool accumulate) {
    struct weight w = weight_plain(p->w, p->element, p->n_out, p->n_in),
                  bias = weight_plain(p->bias, ELEMENT_F32, 1, p->n_out);
    struct linear_args args = {.x = p->x + (size_t)first * p->n_in,
                               .n_rows = n,
                               .n_in = p->n_in,
                               .n_parts = 1,
                               .parts = {{&w, &bias, y, p->n_out}},
                               .accumulate = accumulate,
                               .y_f32 = true};
    assert_int_equal(be->ops->linear(be, &args, NULL), 0);
}

static const uint32_t shapes[][3] = {/* n_rows, n_in, n_out */
                                     {1, 1, 1},    {1, 16, 24},  {1, 384, 640}, {2, 15, 7},
                                     {3, 17, 25},  {4, 64, 6},   {5, 100, 49},  {13, 384, 97},
                                     {70, 33, 50}, {16, 64, 80}, {23, 70, 41},  {33, 96, 130},
                                     {48, 40, 224}};

static void products_equal_sums_in_double_on(struct backend *be) {
    for (enum element element = ELEMENT_F32; element <= ELEMENT_BF16; element++) {
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            struct product p = random_product(shapes[i][0], shapes[i][1], shapes[i][2], element);
            size_t n = (size_t)p.n_rows * p.n_out;
            float *y = guarded_floats(n);
            run_product(be, &p, 0, p.n_rows, y, false);
            assert_close(y, p.expected, n, 2e-6);
            run_product(be, &p, 0, p.n_rows, y, true); /* the residual: once more on top */
            for (size_t j = 0; j < n; j++) p.expected[j] *= 2;
            assert_close(y, p.expected, n, 2e-6);
            guarded_free(y, n * sizeof(float));
            product_free(&p);
        }
    }
}

static void products_equal_sums_in_double(void **state) {
    for_each_backend(products_equal_sums_in_double_on);
}

static void a_row_has_the_same_bits_alone_and_in_a_batch_on(struct backend *be) {
    for (enum element element = ELEMENT_F32; element <= ELEMENT_BF16; element++) {
        struct product p = random_product(37, 200, 61, element);
        float *batch = random_floats(37 * 61), *alone = random_floats(61);
        run_product(be, &p, 0, 37, batch, false);
        for (uint32_t r = 0; r < 37; r++) {
            run_product(be, &p, r, 1, alone, false);
            assert_memory_equal(alone, batch + r * 61, 61 * sizeof(float));
        }
        run_product(be, &p, 9, 7, batch, false);
        run_product(be, &p, 9, 1, alone, false);
        assert_memory_equal(alone, batch, 61 * sizeof(float));
        free(batch);
        free(alone);
        product_free(&p);
    }
}

static void a_row_has_the_same_bits_alone_and_in_a_batch(void **state) {
    for_each_backend(a_row_has_the_same_bits_alone_and_in_a_batch_on);
}

static void parts_write_their_own_columns_on(struct backend *be) {
    struct product q = random_product(5, 48, 30, ELEMENT_BF16),
                   k = random_product(5, 48, 10, ELEMENT_F32);
    struct weight wq = weight_plain(q.w, ELEMENT_BF16, 30, 48),
                  wk = weight_plain(k.w, ELEMENT_F32, 10, 48);
    float y[5 * 40], separate[5 * 40];
    struct linear_args args = {.x = q.x,
                               .n_rows = 5,
                               .n_in = 48,
                               .n_parts = 2,
                               .parts = {{&wq, NULL, y, 40}, {&wk, NULL, y + 30, 40}}};
    assert_int_equal(be->ops->linear(be, &args, NULL), 0);
    for (int i = 0; i < 2; i++) {
        struct linear_args one = {.x = q.x, .n_rows = 5, .n_in = 48, .n_parts = 1};
        one.parts[0] = args.parts[i];
        one.parts[0].y = separate + (i ? 30 : 0);
        assert_int_equal(be->ops->linear(be, &one, NULL), 0);
    }
    assert_memory_equal(y, separate, sizeof(y));
    product_free(&q);
    product_free(&k);
}

static void parts_write_their_own_columns(void **state) {
    for_each_backend(parts_write_their_own_columns_on);
}

/* Products of weights with scales have the bits of the same values in f32, whether a kernel reads
 * the format or not. */
static void weights_with_scales_multiply_as_their_values_on(struct backend *be) {
    enum { N_IN = 176, N_OUT = 100, MAX_ROWS = 50, MAX_SCALES = N_OUT * 11 };
    static const uint32_t row_counts[] = {1, 2, 8, 9, MAX_ROWS};
    static const struct {
        struct weight_format format;
        bool is_read;
    } cases[] = {{{ELEMENT_I8, SCALE_F32, 1, 32, false}, false},
                 {{ELEMENT_E2M1, SCALE_E8M0, 1, 16, false}, false},
                 {{ELEMENT_I4, SCALE_F32, 0, 0, true}, false},
                 {{ELEMENT_E4M3, SCALE_F32, 48, 48, false}, false},
                 {{ELEMENT_E4M3, SCALE_F32, 64, 64, true}, false},
                 {{ELEMENT_E4M3, SCALE_F32, 0, 0, false}, true},
                 {{ELEMENT_E4M3, SCALE_BF16, 1, 0, false}, true},
                 {{ELEMENT_E4M3, SCALE_F32, 64, 128, false}, true},
                 {{ELEMENT_E4M3, SCALE_F16, 1, 64, false}, true},
                 {{ELEMENT_E4M3, SCALE_E8M0, 1, 32, false}, true}};
    const bool rounds = ((const struct cpu_backend *)be)->bf16_products != NULL;
    uint8_t *data = guarded_alloc(N_IN * N_OUT), powers[MAX_SCALES];
    float scales[MAX_SCALES], mins[MAX_SCALES], *values = random_floats(N_OUT * N_IN),
                                                *x = random_floats(MAX_ROWS * N_IN);
    float *y[2] = {random_floats(MAX_ROWS * N_OUT), random_floats(MAX_ROWS * N_OUT)};
    uint16_t short_scales[MAX_SCALES];
    for (size_t i = 0; i < N_IN * N_OUT; i++)
        data[i] = (uint8_t)(random_below(0x7f) | random_below(2) << 7);
    for (size_t i = 0; i < MAX_SCALES; i++) {
        scales[i] = random_float(), mins[i] = random_float();
        powers[i] = (uint8_t)(117 + random_below(12));
    }
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct weight_format *f = &cases[i].format;
        const bool is_read = cases[i].is_read && !rounds;
        struct weight w[2] = {weight_plain(data, f->element, N_OUT, N_IN),
                              weight_plain(values, ELEMENT_F32, N_OUT, N_IN)};
        w[0].format = *f;
        w[0].scales = f->scale == SCALE_F32    ? (void *)scales
                      : f->scale == SCALE_E8M0 ? (void *)powers
                                               : (void *)short_scales;
        w[0].mins = mins;
        weight_from_float(scales, MAX_SCALES, f->scale == SCALE_F16 ? ELEMENT_F16 : ELEMENT_BF16,
                          short_scales);
        assert_int_equal(be->ops->takes(be, f, WEIGHT_PRODUCT | WEIGHT_TABLE), is_read);
        assert_true(be->ops->takes(be, f, WEIGHT_TABLE));
        assert_false(be->ops->takes(be, f, WEIGHT_VECTOR));
        for (uint32_t row = 0; row < N_OUT; row++)
            weight_to_float(&w[0], row, values + (size_t)row * N_IN);
        for (size_t r = 0; r < sizeof(row_counts) / sizeof(row_counts[0]); r++) {
            for (int j = 0; j < 2; j++) {
                const struct linear_args args = {.x = x,
                                                 .n_rows = row_counts[r],
                                                 .n_in = N_IN,
                                                 .n_parts = 1,
                                                 .parts = {{&w[j], NULL, y[j], N_OUT}}};
                assert_int_equal(be->ops->linear(be, &args, NULL), 0);
            }
            assert_memory_equal(y[0], y[1], row_counts[r] * N_OUT * sizeof(float));
        }
    }
    guarded_free(data, N_IN * N_OUT);
    free(values), free(y[0]), free(y[1]), free(x);
}

static void weights_with_scales_multiply_as_their_values(void **state) {
    for_each_backend(weights_with_scales_multiply_as_their_values_on);
}

/* Kernels do not look for NaN, so loading does. */
static void e4m3_that_is_no_number_is_refused(void **state) {
    struct backend *be = NULL;
    struct error err = {0};
    uint8_t data[100 * 64] = {0};
    float scales[2] = {1, 1};
    struct weight host = weight_plain(data, ELEMENT_E4M3, 100, 64), out;
    host.format = (struct weight_format){ELEMENT_E4M3, SCALE_F32, 64, 64, false};
    host.scales = scales;
    assert_int_equal(cpu_backend_create(&be, &(struct cpu_config){.n_threads = 2}, &err), 0);
    assert_int_equal(be->ops->weight_load(be, &host, &out, &err), 0);
    for (int i = 0; i < 3; i++) {
        data[sizeof(data) - 1] = i == 0 ? 0x7f : i == 1 ? 0xff : 0;
        scales[1] = i == 2 ? INFINITY : 1;
        assert_int_equal(be->ops->weight_load(be, &host, &out, &err), ERR_INVALID);
        assert_non_null(strstr(err.text, "NaN"));
    }
    be->ops->destroy(be);
}

static void a_fused_norm_has_the_bits_of_a_norm_before_on(struct backend *be) {
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct product p = random_product(shapes[i][0], shapes[i][1], shapes[i][2], ELEMENT_BF16);
        const size_t n_x = (size_t)p.n_rows * p.n_in, n_y = (size_t)p.n_rows * p.n_out;
        float *g = random_floats(p.n_in), *apart = random_floats(n_y), *fused = random_floats(n_y),
              *normed = guarded_floats(n_x), *room = guarded_floats(n_x);
        struct weight weight = weight_plain(g, ELEMENT_F32, 1, p.n_in),
                      w = weight_plain(p.w, p.element, p.n_out, p.n_in);
        struct rmsnorm_input norm = {&weight, 1e-5f, room};
        struct rmsnorm_args before = {p.x,    &weight, normed, p.n_rows, p.n_in, p.n_in,
                                      p.n_in, 1e-5f,   1,      false,    0};
        struct linear_args args = {.x = normed,
                                   .n_rows = p.n_rows,
                                   .n_in = p.n_in,
                                   .n_parts = 1,
                                   .parts = {{&w, NULL, apart, p.n_out}}};
        assert_int_equal(be->ops->rmsnorm(be, &before, NULL), 0);
        assert_int_equal(be->ops->linear(be, &args, NULL), 0);
        args.x = p.x;
        args.norm = &norm;
        args.parts[0].y = fused;
        assert_int_equal(be->ops->linear(be, &args, NULL), 0);
        assert_memory_equal(fused, apart, n_y * sizeof(float));
        guarded_free(normed, n_x * sizeof(float)), guarded_free(room, n_x * sizeof(float));
        free(g), free(apart), free(fused);
        product_free(&p);
    }
}

static void a_fused_norm_has_the_bits_of_a_norm_before(void **state) {
    for_each_backend(a_fused_norm_has_the_bits_of_a_norm_before_on);
}

static double through_gate(double g, enum gate_kind kind) {
    if (kind == GATE_SILU) return g / (1 + exp(-g));
    return g / 2 * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (g + 0.044715 * g * g * g)));
}

/* Biases of up to 120 saturate the gate, both ways. */
static void gated_equals_its_definition_on(struct backend *be) {
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct product gate =
                           random_product(shapes[i][0], shapes[i][1], shapes[i][2], ELEMENT_BF16),
                       up = random_product(shapes[i][0], shapes[i][1], shapes[i][2], ELEMENT_F32);
        const enum gate_kind kind = i % 2 ? GATE_GELU : GATE_SILU;
        const size_t n_out = gate.n_out, n = gate.n_rows * n_out;
        float *room = guarded_floats(2 * n), *out = guarded_floats(n), *more = random_floats(n_out);
        double *expected = malloc(n * sizeof(double));
        struct weight wg = weight_plain(gate.w, gate.element, gate.n_out, gate.n_in),
                      wu = weight_plain(up.w, up.element, up.n_out, up.n_in),
                      bg = weight_plain(more, ELEMENT_F32, 1, gate.n_out),
                      bu = weight_plain(up.bias, ELEMENT_F32, 1, up.n_out);
        for (size_t j = 0; j < n_out; j++) more[j] *= 120;
        for (size_t j = 0; j < n; j++) {
            const size_t row = j / n_out, col = j % n_out;
            double g = gate.expected[j] - gate.bias[col] + more[col], u = up.bias[col];
            for (uint32_t k = 0; k < up.n_in; k++)
                u += (double)gate.x[row * up.n_in + k] * ((float *)up.w)[col * up.n_in + k];
            expected[j] = through_gate(g, kind) * u;
        }
        struct gated_args args = {.x = gate.x,
                                  .n_rows = gate.n_rows,
                                  .n_in = gate.n_in,
                                  .gate = &wg,
                                  .up = &wu,
                                  .gate_bias = &bg,
                                  .up_bias = &bu,
                                  .gate_up = room,
                                  .out = out,
                                  .kind = kind};
        assert_int_equal(be->ops->gated(be, &args, NULL), 0);
        assert_close(out, expected, n, 4e-6);
        guarded_free(room, 2 * n * sizeof(float)), guarded_free(out, n * sizeof(float));
        free(more), free(expected);
        product_free(&gate), product_free(&up);
    }
}

static void gated_equals_its_definition(void **state) {
    for_each_backend(gated_equals_its_definition_on);
}

/* With bf16 products both inputs are rounded: 2^-9 relative each, random signs. */
static void bf16_products_are_close_and_batch_invariant_on(struct backend *be) {
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct product p = random_product(shapes[i][0], shapes[i][1], shapes[i][2], ELEMENT_BF16);
        size_t n = (size_t)p.n_rows * p.n_out;
        float *y = guarded_floats(n), *alone = random_floats(p.n_out);
        run_product(be, &p, 0, p.n_rows, y, false);
        assert_close(y, p.expected, n, 8e-3);
        for (uint32_t r = 0; r < p.n_rows; r++) {
            run_product(be, &p, r, 1, alone, false);
            assert_memory_equal(alone, y + (size_t)r * p.n_out, p.n_out * sizeof(float));
        }
        run_product(be, &p, 0, p.n_rows, y, true); /* the residual: once more on top */
        for (size_t j = 0; j < n; j++) p.expected[j] *= 2;
        assert_close(y, p.expected, n, 8e-3);
        guarded_free(y, n * sizeof(float));
        free(alone);
        product_free(&p);
    }
}

#if defined(__x86_64__) || defined(__aarch64__)
static struct backend *bf16_backend(enum cpu_isa isa, bool is_present) {
    struct backend *be = NULL;
    const int rc = cpu_backend_create(
        &be, &(struct cpu_config){.n_threads = 3, .isa = isa, .matmul_dtype = DTYPE_BF16}, NULL);
    assert_int_equal(rc, is_present ? 0 : ERR_UNSUPPORTED); /* refused by name, never emulated */
    return be;
}

static void try_bf16_products(enum cpu_isa isa, bool is_present) {
    struct backend *be = bf16_backend(isa, is_present);
    if (!be) return;
    bf16_products_are_close_and_batch_invariant_on(be);
    be->ops->destroy(be);
}

static void bf16_products_are_close_and_batch_invariant(void **state) {
#if defined(__x86_64__)
    try_bf16_products(CPU_ISA_AVX512, has_bf16());
    try_bf16_products(CPU_ISA_AMX, amx_present());
#else
    try_bf16_products(CPU_ISA_NEON, has_bf16());
#endif
}
#endif

#if defined(__x86_64__)

/* AMX's kernel where there may be no AMX: the same code on tiles that are arrays. */
static void tiles_are_close_and_batch_invariant(void **state) {
    struct backend *be = bf16_backend(CPU_ISA_AVX512, has_bf16());
    if (!be) return;
    ((struct cpu_backend *)be)->bf16_products = &software_products;
    bf16_products_are_close_and_batch_invariant_on(be);
    be->ops->destroy(be);
}

/* With ones in all tiles each round adds 32 products to each sum of four tiles. */
static void a_burst_of_tiles_multiplies_what_it_counts(void **state) {
    assert_int_equal(software_products.burst_size, 4 * 16 * 16 * 32);
    if (!has_bf16()) return;
    const float sum = software_products.burst(10);
    assert_true(sum == 10 * 32);
}
#endif

static void conversions_agree_with_the_definition(void **state) {
    for (uint32_t h = 0; h < 65536; h++) {
        float f = f16_to_f32((uint16_t)h);
        uint32_t exponent = h >> 10 & 31, fraction = h & 1023;
        double expected = exponent == 31 ? (fraction ? NAN : INFINITY)
                          : exponent     ? ldexp(1024 + fraction, (int)exponent - 25)
                                         : ldexp(fraction, -24);
        if (h & 0x8000) expected = -expected;
        assert_true(isnan(expected) ? isnan(f) : f == (float)expected);
        if (!isnan(f)) assert_int_equal(f32_to_f16(f), h);
        float b = bf16_to_f32((uint16_t)h);
        if (!isnan(b)) assert_int_equal(f32_to_bf16(b), h);
    }
    assert_int_equal(f32_to_bf16(1.00390625f), 0x3f80); /* half way: to even */
    assert_int_equal(f32_to_bf16(1.01171875f), 0x3f82);
    assert_int_equal(f32_to_f16(65520.0f), 0x7c00);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_equal_sums_in_double),
        cmocka_unit_test(a_row_has_the_same_bits_alone_and_in_a_batch),
        cmocka_unit_test(parts_write_their_own_columns),
        cmocka_unit_test(weights_with_scales_multiply_as_their_values),
        cmocka_unit_test(e4m3_that_is_no_number_is_refused),
        cmocka_unit_test(a_fused_norm_has_the_bits_of_a_norm_before),
        cmocka_unit_test(gated_equals_its_definition),
#if defined(__x86_64__) || defined(__aarch64__)
        cmocka_unit_test(bf16_products_are_close_and_batch_invariant),
#endif
#if defined(__x86_64__)
        cmocka_unit_test(tiles_are_close_and_batch_invariant),
        cmocka_unit_test(a_burst_of_tiles_multiplies_what_it_counts),
#endif
        cmocka_unit_test(conversions_agree_with_the_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
