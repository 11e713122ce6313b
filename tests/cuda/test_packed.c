/* test_packed.c - products of weights that are not plain: every format in every kernel that takes
 * it.  The oracle are sums in double of what weight_to_float() says.
 *
 * The kernel "unpacked" is also held to the bit: its slab has what weight_from_float() makes of the
 * same values. */
#include "cuda/host/internal.h"
#include "cuda/linear/packed_cut.h"
#include "cuda/linear/slab.h"
#include "cuda/linear/strips.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/backend.h"
#include "engine/device/half.h"
#include "engine/device/weight.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/packed_weights.h"

static const struct weight_format formats[] = {
    {ELEMENT_E4M3, SCALE_F32, 0, 0, false},     {ELEMENT_E4M3, SCALE_BF16, 1, 0, false},
    {ELEMENT_E4M3, SCALE_F32, 128, 128, false}, {ELEMENT_E4M3, SCALE_E8M0, 128, 128, false},
    {ELEMENT_I8, SCALE_F32, 1, 0, false},       {ELEMENT_I8, SCALE_BF16, 1, 128, false},
    {ELEMENT_I8, SCALE_F16, 1, 32, false},      {ELEMENT_I8, SCALE_F16, 1, 32, true},
    {ELEMENT_I8, SCALE_F16, 1, 16, false},      {ELEMENT_I4, SCALE_F16, 1, 16, true},
    {ELEMENT_I4, SCALE_F16, 1, 32, false},      {ELEMENT_I4, SCALE_F16, 1, 32, true},
    {ELEMENT_I4, SCALE_BF16, 1, 64, false},     {ELEMENT_I4, SCALE_F16, 1, 128, false},
    {ELEMENT_I4, SCALE_F32, 1, 128, true},      {ELEMENT_I4, SCALE_F32, 1, 0, false},
    {ELEMENT_E2M1, SCALE_E8M0, 1, 32, false},   {ELEMENT_E2M1, SCALE_E4M3, 1, 16, false},
    {ELEMENT_BF16, SCALE_F32, 1, 128, false},   {ELEMENT_F16, SCALE_F32, 0, 0, false},
    {ELEMENT_F32, SCALE_F16, 1, 36, false},     {ELEMENT_E4M3, SCALE_BF16, 128, 128, false},
    {ELEMENT_E4M3, SCALE_F32, 64, 256, false},  {ELEMENT_I8, SCALE_F16, 1, 128, false},
    {ELEMENT_I4, SCALE_BF16, 1, 128, false},    {ELEMENT_I4, SCALE_BF16, 1, 32, false},
    {ELEMENT_I4, SCALE_F16, 1, 64, false},      {ELEMENT_I4, SCALE_F16, 1, 16, false},
    {ELEMENT_I4, SCALE_F32, 1, 128, false},     {ELEMENT_I4, SCALE_F32, 1, 64, true},
    {ELEMENT_I4, SCALE_F32, 1, 32, true}};
enum { N_FORMATS = sizeof(formats) / sizeof(formats[0]) };

/* ---- products ---- */

struct shape {
    uint32_t n_in, n_out[LINEAR_MAX_PARTS]; /* 0: none */
};

struct product_case {
    const struct shape *shape;
    const struct weight_format *format;
    uint32_t n_rows;
    bool bias, accumulate, y_f32;
};

static uint32_t width_of(const struct shape *s) {
    uint32_t width = 0;
    for (uint32_t i = 0; i < LINEAR_MAX_PARTS; i++) width += s->n_out[i];
    return width;
}

static double dot(const float *x, const float *w, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)x[i] * w[i];
    return sum;
}

/* Adds the products of a part to expected [n_rows, width], from column `at` on. */
static void add_part(const struct product_case *c, const float *x, const float *w, uint32_t n_out,
                     float *expected, uint32_t at) {
    const uint32_t n_in = c->shape->n_in, width = width_of(c->shape);
    for (uint32_t row = 0; row < c->n_rows; row++)
        for (uint32_t i = 0; i < n_out; i++)
            expected[(size_t)row * width + at + i] +=
                (float)dot(x + (size_t)row * n_in, w + (size_t)i * n_in, n_in);
}

/* Computes a case by a kernel, or by that which is chosen (NULL). */
static void run_case(const struct product_case *c, const char *kernel, struct packed *parts) {
    struct error err = {0};
    const uint32_t n_in = c->shape->n_in, width = width_of(c->shape);
    const size_t n_x = (size_t)c->n_rows * n_in, n_y = (size_t)c->n_rows * width;
    const enum element y_dtype = c->y_f32 ? ELEMENT_F32 : ELEMENT_BF16;
    float *x = random_bf16(n_x, 1), *expected = random_bf16(n_y, c->accumulate ? 1 : 0),
          *got = random_floats(n_y), *bias = random_bf16(width, c->bias ? 1 : 0);
    void *gpu_x = gpu_array(x, n_x, ELEMENT_BF16), *gpu_bias[LINEAR_MAX_PARTS] = {0},
         *gpu_y = c->accumulate ? gpu_array(expected, n_y, y_dtype) : gpu_poison(n_y, y_dtype);
    struct weight biases[LINEAR_MAX_PARTS];
    struct linear_args args = {.x = gpu_x,
                               .n_rows = c->n_rows,
                               .n_in = n_in,
                               .accumulate = c->accumulate,
                               .y_f32 = c->y_f32};
    for (uint32_t i = 0, at = 0; i < LINEAR_MAX_PARTS && c->shape->n_out[i]; i++) {
        const uint32_t n_out = c->shape->n_out[i];
        gpu_bias[i] = gpu_array(bias + at, n_out, ELEMENT_BF16);
        biases[i] = weight_plain(gpu_bias[i], ELEMENT_BF16, 1, n_out);
        args.parts[args.n_parts++] =
            (struct linear_part){&parts[i].device, c->bias ? &biases[i] : NULL,
                                 (char *)gpu_y + at * element_bits(y_dtype) / 8, width};
        add_part(c, x, kernel ? parts[i].rounded : parts[i].values, n_out, expected, at);
        at += n_out;
    }
    for (size_t i = 0; i < n_y; i++) expected[i] += bias[i % width];
    if (kernel) must(linear_by(CUDA_BACKEND(gpu), kernel, &args, &err), &err);
    else must(gpu->ops->linear(gpu, &args, &err), &err);
    gpu_read(got, gpu_y, n_y, y_dtype);
    char text[WEIGHT_FORMAT_TEXT], what[240];
    weight_format_text(c->format, text);
    snprintf(what, sizeof(what), "%s by %s: %u x %u -> %u, %u, %u, bias %d, accumulate %d, f32 %d",
             text, kernel ? kernel : "the chosen kernel", c->n_rows, n_in, c->shape->n_out[0],
             c->shape->n_out[1], c->shape->n_out[2], c->bias, c->accumulate, c->y_f32);
    /* The chosen kernel may round each weight to bf16; the oracle of "unpacked" does so, too.
     * Tensor cores cut off what does not fit an f32, once in 16 products: a long sum drifts. */
    const double of_weights = kernel ? 0 : BF16_TOLERANCE, of_sum = 2e-5 + 0x1p-24 * n_in / 16,
                 of_result = c->y_f32 ? of_sum : 2 * BF16_TOLERANCE;
    assert_near(got, expected, n_y, of_weights + of_result, what);
    for (uint32_t i = 0; i < args.n_parts; i++) gpu_free(gpu_bias[i]);
    gpu_free(gpu_x), gpu_free(gpu_y);
    free(x), free(expected), free(got), free(bias);
}

/* Compares the slab with the weights of all parts, if they fit it. */
static void check_slab(const struct product_case *c, const struct packed *parts) {
    struct error err = {0};
    const size_t n = (size_t)width_of(c->shape) * c->shape->n_in;
    if (n * sizeof(uint16_t) > SLAB_BYTES) return;
    uint16_t *got = malloc(n * sizeof(*got)), *expected = malloc(n * sizeof(*got));
    size_t at = 0;
    for (uint32_t i = 0; i < LINEAR_MAX_PARTS && c->shape->n_out[i]; i++) {
        const size_t n_part = (size_t)c->shape->n_out[i] * c->shape->n_in;
        weight_from_float(parts[i].values, n_part, ELEMENT_BF16, expected + at);
        at += n_part;
    }
    must(gpu->ops->download(gpu, got, CUDA_BACKEND(gpu)->products.slab, n * sizeof(*got), &err),
         &err);
    must(gpu->ops->sync(gpu, &err), &err);
    assert_memory_equal(got, expected, n * sizeof(*got));
    free(got), free(expected);
}

static void check_format(const struct weight_format *format, const struct shape *shape) {
    static const uint32_t row_counts[] = {1, 16, 3, 17, 130};
    struct packed parts[LINEAR_MAX_PARTS] = {0};
    const bool is_large = (size_t)shape->n_in * width_of(shape) > 1 << 22;
    for (uint32_t i = 0; i < LINEAR_MAX_PARTS && shape->n_out[i]; i++)
        parts[i] = make_packed(format, shape->n_out[i], shape->n_in);
    for (uint32_t r = 0; r < sizeof(row_counts) / sizeof(row_counts[0]); r++) {
        const struct product_case c = {.shape = shape,
                                       .format = format,
                                       .n_rows = row_counts[r],
                                       .bias = r % 3 == 1,
                                       .accumulate = r % 3 == 2,
                                       .y_f32 = r == 3};
        if ((small || is_large) && r % 3 != 0) continue; /* 1 row, and 17 */
        run_case(&c, "unpacked", parts);
        check_slab(&c, parts);
        run_case(&c, NULL, parts);
    }
    for (uint32_t i = 0; i < LINEAR_MAX_PARTS && shape->n_out[i]; i++) free_packed(&parts[i]);
}

static void products_of_every_format_equal_sums_in_double(void **state) {
    static const struct shape shapes[] = {{256, {128, 0, 0}},     {33, {7, 0, 0}},
                                          {512, {40, 8, 24}},     {1032, {260, 0, 0}},
                                          {384, {384, 128, 128}}, {4096, {96, 0, 0}}};
    for (uint32_t i = 0; i < N_FORMATS; i++)
        for (uint32_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]) - (small ? 3 : 0); s++)
            check_format(&formats[i], &shapes[s]);
}

/* More rows than the slab has. */
static void weights_of_several_slabs_equal_sums_in_double(void **state) {
    static const struct shape shapes[] = {{32768, {2200, 0, 0}}, {16384, {3000, 1000, 1000}}};
    for (uint32_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]) && !small; s++)
        check_format(&formats[s ? 13 : 2], &shapes[s]);
}

/* ---- gate and up ---- */

static float gate_of(float gate, float up) {
    return gate / (1 + expf(-gate)) * up;
}

static void check_gated(const struct weight_format *gate_format,
                        const struct weight_format *up_format, uint32_t n_rows, uint32_t n_in,
                        uint32_t n_out) {
    struct error err = {0};
    const size_t n_x = (size_t)n_rows * n_in, n_y = (size_t)n_rows * n_out;
    struct packed gate = make_packed(gate_format, n_out, n_in),
                  up = make_packed(up_format, n_out, n_in);
    float *x = random_bf16(n_x, 1), *expected = random_floats(n_y), *got = random_floats(n_y);
    void *gpu_x = gpu_array(x, n_x, ELEMENT_BF16), *gpu_y = gpu_poison(n_y, ELEMENT_BF16),
         *gate_up = gpu_poison(2 * n_y, ELEMENT_BF16);
    const struct gated_args args = {.x = gpu_x,
                                    .n_rows = n_rows,
                                    .n_in = n_in,
                                    .gate = &gate.device,
                                    .up = &up.device,
                                    .gate_up = gate_up,
                                    .out = gpu_y,
                                    .kind = GATE_SILU};
    const uint32_t step = n_rows > 64 ? 37 : 1; /* of many rows some are looked at */
    must(gpu->ops->gated(gpu, &args, &err), &err);
    gpu_read(got, gpu_y, n_y, ELEMENT_BF16);
    for (uint32_t row = 0; row < n_rows; row++)
        for (uint32_t i = 0; i < n_out; i++) {
            const float *a = x + (size_t)row * n_in;
            float *y = &expected[(size_t)row * n_out + i];
            if (row % step) *y = got[(size_t)row * n_out + i];
            else
                *y = gate_of((float)dot(a, gate.values + (size_t)i * n_in, n_in),
                             (float)dot(a, up.values + (size_t)i * n_in, n_in));
        }
    char text[WEIGHT_FORMAT_TEXT], what[160];
    weight_format_text(gate_format, text);
    snprintf(what, sizeof(what), "gated, %s: %u x %u -> %u", text, n_rows, n_in, n_out);
    assert_near(got, expected, n_y, 3 * BF16_TOLERANCE, what);
    gpu_free(gpu_x), gpu_free(gpu_y), gpu_free(gate_up);
    free(x), free(expected), free(got);
    free_packed(&gate), free_packed(&up);
}

static void gate_and_up_of_every_format_equal_sums_in_double(void **state) {
    static const uint32_t row_counts[] = {1, 16, 33, 200, 600};
    for (uint32_t i = 0; i < N_FORMATS; i += small ? 5 : 1)
        for (uint32_t r = 0; r < (small ? 2 : 5); r++)
            check_gated(&formats[i], &formats[i], row_counts[r], 256, 384);
    check_gated(&formats[0], &formats[10], 8, 256, 384); /* of two formats */
    check_gated(&formats[2], &formats[2], 5, 33, 17);
    /* Two slabs, and so many rows that the gated kernel computes them. */
    if (!small) check_gated(&formats[13], &formats[13], 300, 4096, 14336);
}

/* ---- few rows ---- */

enum { ONE_ORDER_OUT = 264 };

/* Computes the first n_rows rows of x with an RMSNorm, in f32. */
static void few_rows(const struct packed *w, const void *x, const struct rmsnorm_input *norm,
                     uint32_t n_rows, float *out) {
    struct error err = {0};
    const size_t n_y = (size_t)n_rows * ONE_ORDER_OUT;
    void *y = gpu_poison(n_y, ELEMENT_F32);
    const struct linear_args args = {.x = x,
                                     .norm = norm,
                                     .n_rows = n_rows,
                                     .n_in = w->host.cols,
                                     .n_parts = 1,
                                     .parts = {{&w->device, NULL, y, ONE_ORDER_OUT}},
                                     .y_f32 = true};
    must(linear_by(CUDA_BACKEND(gpu), "packed stream", &args, &err), &err);
    gpu_read(out, y, n_y, ELEMENT_F32);
    gpu_free(y);
}

/* Compares every row, computed among n_rows, with what it is by the number of rows before, and with
 * sums in double. */
static void check_rows(const struct weight_format *format, uint32_t n_in) {
    struct packed w = make_packed(format, ONE_ORDER_OUT, n_in);
    float *x = random_bf16((size_t)PACKED_MAX_ROWS * n_in, 1), *weights = random_bf16(n_in, 1),
          *first = random_floats(PACKED_MAX_ROWS * ONE_ORDER_OUT),
          *got = random_floats(PACKED_MAX_ROWS * ONE_ORDER_OUT), *normed = random_floats(n_in),
          *expected = random_floats(ONE_ORDER_OUT);
    void *gpu_x = gpu_array(x, (size_t)PACKED_MAX_ROWS * n_in, ELEMENT_BF16),
         *gpu_weights = gpu_array(weights, n_in, ELEMENT_BF16);
    const struct weight norm_weight = weight_plain(gpu_weights, ELEMENT_BF16, 1, n_in);
    const struct rmsnorm_input norm = {.weight = &norm_weight, .eps = 1e-5f};
    few_rows(&w, gpu_x, &norm, PACKED_MAX_ROWS, first);
    for (uint32_t n_rows = 1; n_rows < PACKED_MAX_ROWS; n_rows++) {
        few_rows(&w, gpu_x, &norm, n_rows, got);
        assert_memory_equal(got, first, n_rows * ONE_ORDER_OUT * sizeof(*got));
    }
    for (uint32_t row = 0; row < PACKED_MAX_ROWS; row++) {
        double squares = 0;
        for (uint32_t i = 0; i < n_in; i++) {
            const float v = x[(size_t)row * n_in + i];
            uint16_t bits;
            squares += (double)v * v;
            normed[i] = v * weights[i];
            weight_from_float(&normed[i], 1, ELEMENT_BF16, &bits);
            normed[i] = load_as_f32(&bits, 0, ELEMENT_BF16);
        }
        for (uint32_t i = 0; i < ONE_ORDER_OUT; i++)
            expected[i] = (float)(dot(normed, w.values + (size_t)i * n_in, n_in) /
                                  sqrt(squares / n_in + 1e-5));
        assert_near(first + (size_t)row * ONE_ORDER_OUT, expected, ONE_ORDER_OUT, 2e-5,
                    "a row with a norm");
    }
    gpu_free(gpu_x), gpu_free(gpu_weights);
    free(x), free(weights), free(first), free(got), free(normed), free(expected);
    free_packed(&w);
}

/* 14336 and 20480: x of many rows is split among the blocks of a cluster. */
static void few_rows_have_one_order_of_sums(void **state) {
    static const uint32_t of_formats[] = {2, 4, 6, 11, 13, 16},
                          widths[] = {448, 4096, 14336, 20480};
    if (!CUDA_BACKEND(gpu)->products.packed_streams) return;
    for (uint32_t i = 0; i < sizeof(of_formats) / sizeof(of_formats[0]); i++)
        for (uint32_t k = 0; k < (small ? 1 : 4); k++)
            if (of_formats[i] != 2 || widths[k] % 128 == 0)
                check_rows(&formats[of_formats[i]], widths[k]);
}

/* ---- memory ---- */

/* Returns an element's code. */
static uint32_t code_at(const struct weight *w, uint32_t row, uint32_t col) {
    const uint8_t *codes = weight_row_at(w, row);
    if (element_bits(w->format.element) == 8) return codes[col];
    return codes[col / 2] >> col % 2 * 4 & 15;
}

/* Finds the code of row r and column c among 16 x 16 elements.  Writes in which of the lane's words
 * it is, and at which bit. */
static void find_code(uint32_t bits, uint32_t r, uint32_t c, uint32_t *word, uint32_t *bit) {
    const uint32_t reg = r / 8 + c / 8 * 2, upper = c % 2;
    *word = bits == 4 ? 0 : reg / 2;
    *bit = bits == 4 ? 4 * (reg + 4 * upper) : 8 * (2 * upper + (reg % 2 ? 0 : 1));
}

/* Returns the data of a weight in strips, as strips.h says. */
static uint32_t *strips_of(const struct weight *w) {
    const uint32_t bits = element_bits(w->format.element), slab = 256 / bits, n = w->cols / slab,
                   n_strips = (w->rows + STRIP_ROWS - 1) / STRIP_ROWS;
    uint32_t *strips = calloc((size_t)n_strips * n * 128, sizeof(*strips));
    for (uint32_t row = 0; row < w->rows; row++)
        for (uint32_t col = 0; col < w->cols; col++) {
            const uint32_t r = row % STRIP_ROWS, c = col % 16, lane = r % 8 * 4 + c % 8 / 2;
            uint32_t word, bit;
            find_code(bits, r, c, &word, &bit);
            word += col % slab / 16 * (bits / 4);
            strips[(((size_t)(row / STRIP_ROWS) * n + col / slab) * 32 + lane) * 4 + word] |=
                code_at(w, row, col) << bit;
        }
    return strips;
}

/* Returns scales or mins in strips. */
static uint8_t *scales_in_strips(const struct weight *w, const void *scales) {
    const size_t row_bytes = weight_scale_bytes(w) / w->rows;
    const uint32_t n_blocks = (w->cols + w->format.block_cols - 1) / w->format.block_cols,
                   n_strips = (w->rows + STRIP_ROWS - 1) / STRIP_ROWS;
    const size_t each = row_bytes / n_blocks;
    uint8_t *out = calloc((size_t)n_strips * STRIP_ROWS, row_bytes);
    for (uint32_t row = 0; row < w->rows; row++)
        for (uint32_t b = 0; b < n_blocks; b++) {
            const uint32_t r = row % STRIP_ROWS;
            memcpy(out + (((size_t)(row / STRIP_ROWS) * n_blocks + b) * STRIP_ROWS + r % 8 * 2 +
                          r / 8) *
                             each,
                   (const uint8_t *)scales + row * row_bytes + b * each, each);
        }
    return out;
}

static void check_array(const void *from, const void *expected, size_t bytes) {
    struct error err = {0};
    void *got = malloc(bytes);
    must(gpu->ops->download(gpu, got, from, bytes, &err), &err);
    must(gpu->ops->sync(gpu, &err), &err);
    assert_memory_equal(got, expected, bytes);
    free(got);
}

static void check_arrays(const struct weight *host, const struct weight *device) {
    const size_t n_scales = weight_scale_bytes(host), n_data = host->rows * weight_row_bytes(host),
                 n_rows = round_up(host->rows, STRIP_ROWS);
    const bool in_strips = device->in_strips, of_blocks = in_strips && host->format.block_rows > 1;
    uint32_t *data = in_strips ? strips_of(host) : NULL;
    assert_true(in_strips == strips_take(host));
    if (in_strips) check_array(device->data, data, n_rows * weight_row_bytes(host));
    else check_array(device->data, host->data, n_data);
    free(data);
    if (of_blocks) {
        const size_t n = weight_n_scales(host);
        float *scales = malloc(n * sizeof(*scales));
        for (size_t i = 0; i < n; i++) scales[i] = weight_scale_at(host, i);
        check_array(device->scales, scales, n * sizeof(*scales));
        free(scales);
        return;
    }
    for (int k = 0; k < (host->format.has_min ? 2 : 1); k++) {
        const void *from = k ? device->mins : device->scales, *to = k ? host->mins : host->scales;
        uint8_t *scales = NULL;
        if (in_strips && strips_hold_scales(&host->format)) scales = scales_in_strips(host, to);
        if (scales) check_array(from, scales, n_scales / host->rows * n_rows);
        else check_array(from, to, n_scales);
        free(scales);
    }
}

static void data_scales_and_mins_arrive_whole(void **state) {
    static const uint32_t widths[] = {608, 640};
    struct packed all[N_FORMATS];
    for (int k = 0; k < 2; k++) {
        for (uint32_t i = 0; i < N_FORMATS; i++) all[i] = make_packed(&formats[i], 300, widths[k]);
        for (uint32_t i = 0; i < N_FORMATS; i++) check_arrays(&all[i].host, &all[i].device);
        for (uint32_t i = 0; i < N_FORMATS; i++) free_packed(&all[i * 5 % N_FORMATS]);
    }
}

/* NaN or infinity among the elements, or among the scales. */
static void what_is_no_number_is_refused(void **state) {
    struct error err = {0};
    struct weight device;
    for (int i = 0; i < 3; i++) {
        struct packed p = make_packed(&formats[i == 1 ? 6 : 1], 300, 608);
        if (i == 0) ((uint8_t *)p.host.data)[299 * 608 + 607] = 0x7f;
        if (i == 1) ((uint16_t *)p.host.scales)[299 * 19 + 18] = 0x7c00;
        if (i == 2) ((uint16_t *)p.host.scales)[0] = 0x7fc0;
        assert_int_equal(gpu->ops->weight_load(gpu, &p.host, &device, &err), ERR_INVALID);
        assert_non_null(strstr(err.text, "NaN"));
        free_packed(&p);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_scales_and_mins_arrive_whole),
        cmocka_unit_test(what_is_no_number_is_refused),
        cmocka_unit_test(products_of_every_format_equal_sums_in_double),
        cmocka_unit_test(weights_of_several_slabs_equal_sums_in_double),
        cmocka_unit_test(gate_and_up_of_every_format_equal_sums_in_double),
        cmocka_unit_test(few_rows_have_one_order_of_sums),
    };
    const int status = begin(argc, argv, 0);
    if (status) return status;
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    CUDA_BACKEND(gpu)->products.streams = false;
    CUDA_BACKEND(gpu)->products.packed_streams = false;
    CUDA_BACKEND(gpu)->products.wide.n_clusters = 0;
    CUDA_BACKEND(gpu)->products.n_gated_clusters = 0;
    CUDA_BACKEND(gpu)->products.packed_wide = (struct packed_wide_device){0};
    n_failed += cmocka_run_group_tests(tests, NULL, NULL);
    reopen_batch_invariant();
    n_failed += cmocka_run_group_tests(tests, NULL, NULL);
    close_backends();
    return n_failed;
}
