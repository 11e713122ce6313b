/* test_rounded.c - products whose input is rounded to E4M3, in every kernel that takes them.
 *
 * The rounded input is read from the device, and held to half a step of E4M3 around the input.  The
 * results are held to sums in double of the rounded input's values and the weights'. */
#include "cuda/host/internal.h"
#include "engine/base/sizes.h"
#include "engine/device/backend.h"
#include "engine/device/weight.h"
#include "tests/cuda/cuda_test.h"

enum { BLOCK = 128, N_LOOKED_AT = 300, SCALES_ALIGN = 256 };
static const float most = 448; /* of E4M3 */

/* A weight of random elements. */
struct rounding_weight {
    struct weight host, device;
    void *memory;
    float *values;
};

static struct rounding_weight make_weight(const struct weight_format *format, uint32_t rows,
                                          uint32_t cols, float bound) {
    struct rounding_weight w = {.host = weight_plain(NULL, format->element, rows, cols)};
    struct error err = {0};
    w.host.format = *format;
    w.host.rounds_input = true;
    w.host.input_most = bound;
    w.memory = malloc(weight_copy_bytes(&w.host));
    w.host = weight_copy_at(&w.host, w.memory);
    uint8_t *codes = w.memory;
    for (size_t i = 0; i < (size_t)rows * cols; i++) {
        codes[i] = (uint8_t)(rand() >> 4);
        if ((codes[i] & 0x7f) > 0x68) codes[i] &= 0xbf; /* no NaN, and none that outweighs all */
    }
    for (size_t i = 0; i < weight_n_scales(&w.host); i++)
        store_f32_as((void *)w.host.scales, i, 0.01f * (1 + 0.5f * (float)(rand() % 100) / 100),
                     format->scale == SCALE_F32 ? ELEMENT_F32 : ELEMENT_BF16);
    w.values = malloc((size_t)rows * cols * sizeof(float));
    for (uint32_t i = 0; i < rows; i++) weight_to_float(&w.host, i, w.values + (size_t)i * cols);
    assert_true(gpu->ops->rounds(gpu, &w.host));
    must(gpu->ops->weight_load(gpu, &w.host, &w.device, &err), &err);
    return w;
}

static void free_weight(struct rounding_weight *w) {
    gpu->ops->weight_release(gpu, &w->device);
    free(w->memory), free(w->values);
}

static void download(void *to, const void *from, size_t bytes) {
    struct error err = {0};
    must(gpu->ops->download(gpu, to, from, bytes, &err), &err);
    must(gpu->ops->sync(gpu, &err), &err);
}

/* Returns the values of the input that was rounded last: [n_rows, n_in]. */
static float *read_rounded(uint32_t n_rows, uint32_t n_in, bool blocks) {
    const size_t n = (size_t)n_rows * n_in, n_blocks = blocks ? n_in / BLOCK : 1,
                 stride = blocks ? round_up(n_rows, FP8_SCALE_ROWS) : n_rows;
    const char *memory = CUDA_BACKEND(gpu)->rounded.codes;
    uint8_t *codes = malloc(n);
    float *scales = malloc(n_blocks * stride * sizeof(float)),
          *by_row = malloc(n_rows * n_blocks * sizeof(float)), *values = malloc(n * sizeof(float));
    download(codes, memory, n);
    download(scales, memory + round_up(n, SCALES_ALIGN), n_blocks * stride * sizeof(float));
    for (uint32_t row = 0; row < n_rows; row++)
        for (size_t b = 0; b < n_blocks; b++) by_row[row * n_blocks + b] = scales[b * stride + row];
    struct weight view = weight_plain(codes, ELEMENT_E4M3, n_rows, n_in);
    view.format = (struct weight_format){ELEMENT_E4M3, SCALE_F32, 1, blocks ? BLOCK : 0, false};
    view.scales = by_row;
    for (uint32_t row = 0; row < n_rows; row++)
        weight_to_float(&view, row, values + (size_t)row * n_in);
    free(codes), free(scales), free(by_row);
    return values;
}

/* Checks a run of elements that have one scale. */
static void check_run(const float *x, const float *rounded, uint32_t n, float bound) {
    float largest = 0;
    for (uint32_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(x[i]));
    if (bound > 0) largest = fminf(largest, bound);
    const double scale = largest / most;
    for (uint32_t i = 0; i < n; i++) {
        const double clipped = fmin(fmax((double)x[i], -largest), largest),
                     allowed = 1.01 * fmax(fabs(clipped) / 16, scale * 0x1p-10) + 1e-6 * largest;
        if (fabs(rounded[i] - clipped) > allowed)
            fail_msg("element %u, %g, became %g: the largest is %g", i, x[i], rounded[i], largest);
    }
}

static double dot(const float *x, const float *w, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)x[i] * w[i];
    return sum;
}

static float *normalised(const float *x, const float *weight, uint32_t n_rows, uint32_t n,
                         float eps) {
    float *out = malloc((size_t)n_rows * n * sizeof(float));
    for (uint32_t row = 0; row < n_rows; row++) {
        const float *from = x + (size_t)row * n;
        const double scale = 1 / sqrt(dot(from, from, n) / n + eps);
        for (uint32_t i = 0; i < n; i++)
            out[(size_t)row * n + i] = (float)(from[i] * scale * weight[i]);
    }
    return out;
}

struct rounding_case {
    const struct weight_format *format;
    uint32_t n_rows, n_in, n_out[LINEAR_MAX_PARTS]; /* 0: none; of gated ones n_out[0] counts */
    bool bias, accumulate, norm, gated;
    float bound;
};

/* The device's arrays of a case, and what they were made from. */
struct arrays {
    float *x, *norm_weight, *bias, *y, *got;
    void *gpu_x, *gpu_norm, *gpu_normed, *gpu_bias, *gpu_y, *gpu_gate_up;
    struct weight norm, biases[LINEAR_MAX_PARTS];
    struct rmsnorm_input input;
    uint32_t width;
};

static struct arrays make_arrays(const struct rounding_case *c) {
    struct arrays a = {0};
    const size_t n_x = (size_t)c->n_rows * c->n_in;
    for (uint32_t i = 0; i < (c->gated ? 1 : LINEAR_MAX_PARTS); i++) a.width += c->n_out[i];
    const size_t n_y = (size_t)c->n_rows * a.width, n_bias = (size_t)(c->gated ? 2 : 1) * a.width;
    a.x = random_bf16(n_x, 1), a.norm_weight = random_bf16(c->n_in, 1);
    a.bias = random_bf16(n_bias, c->bias ? 1 : 0), a.y = random_bf16(n_y, c->accumulate ? 1 : 0);
    a.got = malloc(n_y * sizeof(float));
    a.gpu_x = gpu_array(a.x, n_x, ELEMENT_BF16);
    a.gpu_norm = gpu_array(a.norm_weight, c->n_in, ELEMENT_BF16);
    a.gpu_normed = gpu_poison(n_x, ELEMENT_BF16);
    a.gpu_bias = gpu_array(a.bias, n_bias, ELEMENT_BF16);
    a.gpu_y = c->accumulate ? gpu_array(a.y, n_y, ELEMENT_BF16) : gpu_poison(n_y, ELEMENT_BF16);
    a.gpu_gate_up = gpu_poison(2 * n_y, ELEMENT_BF16);
    a.norm = weight_plain(a.gpu_norm, ELEMENT_BF16, 1, c->n_in);
    return a;
}

static void free_arrays(struct arrays *a) {
    gpu_free(a->gpu_x), gpu_free(a->gpu_norm), gpu_free(a->gpu_normed), gpu_free(a->gpu_bias);
    gpu_free(a->gpu_y), gpu_free(a->gpu_gate_up);
    free(a->x), free(a->norm_weight), free(a->bias), free(a->y), free(a->got);
}

static const struct weight *bias_at(const struct rounding_case *c, struct arrays *a, uint32_t part,
                                    uint32_t at, uint32_t n) {
    a->biases[part] = weight_plain((uint16_t *)a->gpu_bias + at, ELEMENT_BF16, 1, n);
    return c->bias ? &a->biases[part] : NULL;
}

static void run_gated(const struct rounding_case *c, struct arrays *a,
                      const struct rounding_weight *parts) {
    struct error err = {0};
    const struct gated_args args = {.x = a->gpu_x,
                                    .norm = c->norm ? &a->input : NULL,
                                    .n_rows = c->n_rows,
                                    .n_in = c->n_in,
                                    .gate = &parts[0].device,
                                    .up = &parts[1].device,
                                    .gate_bias = bias_at(c, a, 0, 0, a->width),
                                    .up_bias = bias_at(c, a, 1, a->width, a->width),
                                    .gate_up = a->gpu_gate_up,
                                    .out = a->gpu_y,
                                    .kind = GATE_SILU};
    must(gpu->ops->gated(gpu, &args, &err), &err);
}

static void run_linear(const struct rounding_case *c, struct arrays *a,
                       const struct rounding_weight *parts) {
    struct error err = {0};
    struct linear_args args = {.x = a->gpu_x,
                               .norm = c->norm ? &a->input : NULL,
                               .n_rows = c->n_rows,
                               .n_in = c->n_in,
                               .accumulate = c->accumulate};
    for (uint32_t i = 0, at = 0; i < LINEAR_MAX_PARTS && c->n_out[i]; at += c->n_out[i++])
        args.parts[args.n_parts++] =
            (struct linear_part){&parts[i].device, bias_at(c, a, i, at, c->n_out[i]),
                                 (uint16_t *)a->gpu_y + at, a->width};
    must(gpu->ops->linear(gpu, &args, &err), &err);
}

/* Returns the result of a row from its input x. */
static double expected_at(const struct rounding_case *c, const struct arrays *a,
                          const struct rounding_weight *parts, const float *x, uint32_t row,
                          uint32_t out) {
    uint32_t part = 0, first = 0;
    if (c->gated) {
        const double gate = dot(x, parts[0].values + (size_t)out * c->n_in, c->n_in) + a->bias[out],
                     up = dot(x, parts[1].values + (size_t)out * c->n_in, c->n_in) +
                          a->bias[a->width + out];
        return gate / (1 + exp(-gate)) * up;
    }
    while (out - first >= c->n_out[part]) first += c->n_out[part++];
    return dot(x, parts[part].values + (size_t)(out - first) * c->n_in, c->n_in) + a->bias[out] +
           a->y[(size_t)row * a->width + out];
}

/* rounded: [n_rows, n_in] */
static void check_results(const struct rounding_case *c, struct arrays *a,
                          const struct rounding_weight *parts, const float *rounded) {
    float got[N_LOOKED_AT], expected[N_LOOKED_AT];
    char text[WEIGHT_FORMAT_TEXT], what[240];
    gpu_read(a->got, a->gpu_y, (size_t)c->n_rows * a->width, ELEMENT_BF16);
    for (uint32_t i = 0; i < N_LOOKED_AT; i++) {
        /* Some at the end, others anywhere. */
        const uint32_t row = i < 30 ? c->n_rows - 1 : (uint32_t)rand() % c->n_rows,
                       out = i % 7 ? (uint32_t)rand() % a->width : a->width - 1 - i % 8;
        got[i] = a->got[(size_t)row * a->width + out];
        expected[i] = (float)expected_at(c, a, parts, rounded + (size_t)row * c->n_in, row, out);
    }
    weight_format_text(c->format, text);
    snprintf(what, sizeof(what),
             "%s: %u x %u -> %u, %u, %u, bias %d, accumulate %d, norm %d, gated %d", text,
             c->n_rows, c->n_in, c->n_out[0], c->n_out[1], c->n_out[2], c->bias, c->accumulate,
             c->norm, c->gated);
    /* wgmma adds E4M3 in fewer bits than f32 has. */
    assert_near(got, expected, N_LOOKED_AT, 3 * BF16_TOLERANCE, what);
}

static void run_case(const struct rounding_case *c) {
    const bool blocks = c->format->block_cols > 0;
    const uint32_t run = blocks ? BLOCK : c->n_in;
    struct rounding_weight parts[LINEAR_MAX_PARTS] = {0};
    struct arrays a = make_arrays(c);
    a.input = (struct rmsnorm_input){&a.norm, 1e-5f, a.gpu_normed};
    for (uint32_t i = 0; i < LINEAR_MAX_PARTS && c->n_out[i]; i++)
        parts[i] = make_weight(c->format, c->n_out[i], c->n_in, c->bound);
    if (c->gated) run_gated(c, &a, parts);
    else run_linear(c, &a, parts);
    float *input = c->norm ? normalised(a.x, a.norm_weight, c->n_rows, c->n_in, 1e-5f) : a.x,
          *rounded = read_rounded(c->n_rows, c->n_in, blocks);
    const size_t n = (size_t)c->n_rows * c->n_in;
    for (size_t i = 0; i < n && c->bound > 0; i++)
        input[i] = fminf(fmaxf(input[i], -c->bound), c->bound);
    for (size_t i = 0; i < n; i += run) check_run(input + i, rounded + i, run, c->bound);
    check_results(c, &a, parts, rounded);
    for (uint32_t i = 0; i < LINEAR_MAX_PARTS && c->n_out[i]; i++) free_weight(&parts[i]);
    if (c->norm) free(input);
    free(rounded);
    free_arrays(&a);
}

static const struct weight_format formats[] = {{ELEMENT_E4M3, SCALE_F32, 0, 0, false},
                                               {ELEMENT_E4M3, SCALE_BF16, 1, 0, false},
                                               {ELEMENT_E4M3, SCALE_F32, 1, 0, false},
                                               {ELEMENT_E4M3, SCALE_F32, 128, 128, false},
                                               {ELEMENT_E4M3, SCALE_BF16, 128, 128, false}};
enum { N_FORMATS = sizeof(formats) / sizeof(formats[0]) };
static const uint32_t row_counts[] = {1, 17, 64, 100, 130, 200, 257, 600};
enum { N_ROW_COUNTS = sizeof(row_counts) / sizeof(row_counts[0]) };

static void products_of_rounded_inputs_equal_sums_in_double(void **state) {
    static const struct rounding_case shapes[] = {{.n_in = 1024, .n_out = {384, 128, 128}},
                                                  {.n_in = 4096, .n_out = {256}},
                                                  {.n_in = 1536, .n_out = {2048}}};
    for (uint32_t f = 0; f < N_FORMATS; f += small ? 3 : 1)
        for (uint32_t r = 0; r < N_ROW_COUNTS; r += small ? 3 : 1)
            for (uint32_t s = 0; s < 3; s++) {
                struct rounding_case c = shapes[s];
                c.format = &formats[f];
                c.n_rows = row_counts[r];
                c.bias = (r + s) % 3 == 1;
                c.accumulate = (r + s) % 3 == 2;
                c.norm = (r + f) % 2;
                c.bound = s == 1 ? 0.5f : 0;
                run_case(&c);
            }
}

static void gate_and_up_of_rounded_inputs_equal_sums_in_double(void **state) {
    /* Long sums of few tiles are cut in halves of columns. */
    static const uint32_t shapes[][2] = {{1024, 640}, {4096, 256}};
    for (uint32_t f = 0; f < N_FORMATS; f += small ? 3 : 1)
        for (uint32_t r = 0; r < N_ROW_COUNTS; r += small ? 3 : 1)
            for (uint32_t s = 0; s < 2; s++) {
                const struct rounding_case c = {.format = &formats[f],
                                                .n_rows = row_counts[r],
                                                .n_in = shapes[s][0],
                                                .n_out = {shapes[s][1], shapes[s][1]},
                                                .bias = r % 3 == 1,
                                                .norm = (r + f) % 2,
                                                .gated = true};
                run_case(&c);
            }
}

/* The product behind gate and up reads what the gate's kernel may have rounded. */
static void check_feed_forward(const struct weight_format *format, uint32_t n_rows, uint32_t dim) {
    enum { FFN = 1536 };
    struct error err = {0};
    const struct rounding_case c = {
        .format = format, .n_rows = n_rows, .n_in = dim, .n_out = {FFN, FFN}, .gated = true};
    struct rounding_weight parts[2] = {make_weight(format, FFN, dim, 0),
                                       make_weight(format, FFN, dim, 0)},
                           down = make_weight(format, dim, FFN, 0);
    struct arrays a = make_arrays(&c);
    const size_t n_y = (size_t)n_rows * dim;
    void *gpu_y = gpu_poison(n_y, ELEMENT_BF16);
    const struct gated_args gated = {.x = a.gpu_x,
                                     .n_rows = n_rows,
                                     .n_in = dim,
                                     .gate = &parts[0].device,
                                     .up = &parts[1].device,
                                     .gate_up = a.gpu_gate_up,
                                     .out = a.gpu_y,
                                     .kind = GATE_SILU,
                                     .next = &down.device};
    const struct linear_args linear = {.x = a.gpu_y,
                                       .n_rows = n_rows,
                                       .n_in = FFN,
                                       .n_parts = 1,
                                       .parts = {{&down.device, NULL, gpu_y, dim}}};
    must(gpu->ops->gated(gpu, &gated, &err), &err);
    must(gpu->ops->linear(gpu, &linear, &err), &err);
    float *rounded = read_rounded(n_rows, FFN, format->block_cols > 0), got[N_LOOKED_AT],
          expected[N_LOOKED_AT], *hidden = malloc(FFN * sizeof(float)),
          *y = malloc(n_y * sizeof(float));
    gpu_read(y, gpu_y, n_y, ELEMENT_BF16);
    for (uint32_t i = 0; i < N_LOOKED_AT; i++) {
        const uint32_t row = (uint32_t)rand() % n_rows, out = (uint32_t)rand() % dim;
        got[i] = y[(size_t)row * dim + out];
        expected[i] = (float)dot(rounded + (size_t)row * FFN, down.values + (size_t)out * FFN, FFN);
    }
    assert_near(got, expected, N_LOOKED_AT, 3 * BF16_TOLERANCE, "down behind gate and up");
    for (uint32_t i = 0; i < FFN; i++) { /* of the last row, from its input as it is */
        const float *row = a.x + (size_t)(n_rows - 1) * dim;
        const double gate = dot(row, parts[0].values + (size_t)i * dim, dim),
                     up = dot(row, parts[1].values + (size_t)i * dim, dim);
        hidden[i] = (float)(gate / (1 + exp(-gate)) * up);
    }
    /* Two roundings to E4M3: half a step is 2^-4 of an element. */
    assert_near(rounded + (size_t)(n_rows - 1) * FFN, hidden, FFN, 0.13, "what was rounded");
    free_weight(&parts[0]), free_weight(&parts[1]), free_weight(&down);
    free(rounded), free(hidden), free(y);
    gpu_free(gpu_y);
    free_arrays(&a);
}

static void the_gate_rounds_for_the_next_product(void **state) {
    static const uint32_t counts[] = {5, 200, 300, 600};
    for (uint32_t f = 0; f < N_FORMATS; f += small ? 3 : 1)
        for (uint32_t r = 0; r < 4; r++) {
            check_feed_forward(&formats[f], counts[r], 1024);
            if (r == 1 || r == 2) check_feed_forward(&formats[f], counts[r], 4096);
        }
}

/* So many results that the kernels of many rows have more than one wave of tiles. */
static void large_products_of_rounded_inputs_equal_sums_in_double(void **state) {
    for (uint32_t f = 1; f < N_FORMATS && !small; f += 2) {
        run_case(&(struct rounding_case){
            .format = &formats[f], .n_rows = 1100, .n_in = 2048, .n_out = {6144}, .norm = true});
        run_case(&(struct rounding_case){.format = &formats[f],
                                         .n_rows = 1100,
                                         .n_in = 2048,
                                         .n_out = {5120, 5120},
                                         .norm = true,
                                         .gated = true});
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_rounded_inputs_equal_sums_in_double),
        cmocka_unit_test(gate_and_up_of_rounded_inputs_equal_sums_in_double),
        cmocka_unit_test(the_gate_rounds_for_the_next_product),
        cmocka_unit_test(large_products_of_rounded_inputs_equal_sums_in_double),
    };
    const int status = begin(argc, argv, 0);
    if (status) return status;
    const bool can = gpu->rounds_inputs_from > 0;
    if (!can) printf("SKIPPED, NOTHING WAS TESTED: the device rounds no inputs\n");
    const int n_failed = can ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
    close_backends();
    return n_failed;
}
