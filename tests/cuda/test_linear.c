/* test_linear.c - products of the CUDA backend against the CPU's: every path (few rows, cuBLASLt,
 * any shape), with bias, onto a residual, in f32, in parts that share a row, and fused; all that
 * once more on a batch-invariant backend, where a row's bits must not depend on the rows beside it.
 */
#include "tests/cuda/cuda_test.h"

struct product {
    uint32_t n_rows, n_in, n_parts, n_out[LINEAR_MAX_PARTS];
    enum dtype dtype, bias_dtype;
    bool bias, accumulate, y_f32, joined; /* joined: the parts' weights lie side by side */
};

struct part {
    float *w, *bias;
    void *host_w, *host_bias, *gpu_w, *gpu_bias;
    struct weight cpu_weight, cpu_bias, gpu_weight, gpu_bias_weight;
};

static struct part make_part(const struct product *p, uint32_t n_out, void *gpu_w) {
    const size_t n = (size_t)n_out * p->n_in;
    struct part part = {.w = random_bf16(n, 1), .bias = random_bf16(n_out, 4)};
    struct error err = {0};
    part.host_w = converted(part.w, n, p->dtype);
    part.host_bias = converted(part.bias, n_out, p->bias_dtype);
    part.gpu_w = gpu_w ? gpu_w : gpu_alloc(n * dtype_size(p->dtype));
    must(gpu->ops->upload(gpu, part.gpu_w, part.host_w, n * dtype_size(p->dtype), &err), &err);
    part.gpu_bias = gpu_array(part.bias, n_out, p->bias_dtype);
    part.cpu_weight = (struct weight){part.host_w, p->dtype, n_out, p->n_in};
    part.gpu_weight = (struct weight){part.gpu_w, p->dtype, n_out, p->n_in};
    part.cpu_bias = (struct weight){part.host_bias, p->bias_dtype, 1, n_out};
    part.gpu_bias_weight = (struct weight){part.gpu_bias, p->bias_dtype, 1, n_out};
    return part;
}

static void free_part(struct part *part, bool own_weight) {
    if (own_weight) gpu_free(part->gpu_w);
    gpu_free(part->gpu_bias);
    free(part->w), free(part->bias), free(part->host_w), free(part->host_bias);
}

static void check_product(const struct product *p) {
    struct error err = {0};
    uint32_t width = 0;
    for (uint32_t i = 0; i < p->n_parts; i++) width += p->n_out[i];
    const size_t n_x = (size_t)p->n_rows * p->n_in, n_y = (size_t)p->n_rows * width;
    const enum dtype y_dtype = p->y_f32 ? DTYPE_F32 : DTYPE_BF16;
    float *x = random_bf16(n_x, 1), *expected = random_bf16(n_y, 8), *got = random_floats(n_y);
    void *gpu_x = gpu_array(x, n_x, DTYPE_BF16);
    void *gpu_y = p->accumulate ? gpu_array(expected, n_y, y_dtype) : gpu_poison(n_y, y_dtype);
    char *all = p->joined ? gpu_alloc((size_t)width * p->n_in * dtype_size(p->dtype)) : NULL;
    struct part parts[LINEAR_MAX_PARTS];
    struct linear_args args = {.x = x,
                               .n_rows = p->n_rows,
                               .n_in = p->n_in,
                               .n_parts = p->n_parts,
                               .accumulate = p->accumulate,
                               .y_f32 = p->y_f32};
    struct linear_args gpu_args = args;
    gpu_args.x = gpu_x;
    for (uint32_t i = 0, at = 0; i < p->n_parts; at += p->n_out[i++]) {
        parts[i] = make_part(p, p->n_out[i],
                             all ? all + (size_t)at * p->n_in * dtype_size(p->dtype) : NULL);
        args.parts[i] = (struct linear_part){
            &parts[i].cpu_weight, p->bias ? &parts[i].cpu_bias : NULL, expected + at, width};
        gpu_args.parts[i] =
            (struct linear_part){&parts[i].gpu_weight, p->bias ? &parts[i].gpu_bias_weight : NULL,
                                 (char *)gpu_y + at * dtype_size(y_dtype), width};
    }
    must(cpu->ops->linear(cpu, &args, &err), &err);
    must(gpu->ops->linear(gpu, &gpu_args, &err), &err);
    gpu_read(got, gpu_y, n_y, y_dtype);
    char what[160];
    snprintf(what, sizeof(what),
             "%u x %u, %u parts (%u, ..), dtype %d, bias %d, accumulate %d, f32 %d, joined %d",
             p->n_rows, p->n_in, p->n_parts, p->n_out[0], p->dtype, p->bias, p->accumulate,
             p->y_f32, p->joined);
    /* f32: the order of sums, and how tensor cores round them.  Where cuBLASLt does not split the
     * sum it rounds the product to bf16, adds y and rounds again: with integers, whose sums are
     * exact, all its results are those of two roundings, and all of a split sum's those of one. */
    const double roundings = p->accumulate && p->n_rows > 16 ? 2 : 1;
    assert_near(got, expected, n_y, p->y_f32 ? 2e-5 : roundings * BF16_TOLERANCE, what);
    for (uint32_t i = 0; i < p->n_parts; i++) free_part(&parts[i], !all);
    gpu_free(all), gpu_free(gpu_x), gpu_free(gpu_y);
    free(x), free(expected), free(got);
}

static const uint32_t n_rows[] = {1, 2, 7, 8, 9, 15, 16, 17, 33, 64, 130, 517};
enum { N_ROWS = sizeof(n_rows) / sizeof(n_rows[0]) };

static void products_of_one_part_equal_the_cpu(void **state) {
    (void)state;
    static const uint32_t shapes[][2] = {/* n_in, n_out */
                                         {1, 1},    {8, 8},     {15, 7},      {16, 24},
                                         {24, 17},  {64, 6},    {384, 640},   {1024, 384},
                                         {100, 49}, {4096, 96}, {2056, 1000}, {32, 8192}};
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
        for (size_t r = 0; r < N_ROWS; r++)
            for (enum dtype dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++)
                for (int mode = 0; mode < 3; mode++)
                    check_product(&(struct product){.n_rows = n_rows[r],
                                                    .n_in = shapes[s][0],
                                                    .n_parts = 1,
                                                    .n_out = {shapes[s][1]},
                                                    .dtype = dtype,
                                                    .bias_dtype = (r + s) % 2 ? DTYPE_BF16 : dtype,
                                                    .bias = (r + s + (size_t)mode) % 2,
                                                    .accumulate = mode == 1,
                                                    .y_f32 = mode == 2});
}

static void parts_share_a_launch_and_a_row(void **state) {
    (void)state;
    static const uint32_t outs[][4] = {/* n_in and three parts; 0: none */
                                       {384, 384, 128, 128},
                                       {384, 1024, 1024, 0},
                                       {512, 40, 8, 24},
                                       {256, 17, 3, 30}};
    for (size_t s = 0; s < sizeof(outs) / sizeof(outs[0]); s++)
        for (size_t r = 0; r < N_ROWS; r++)
            for (int joined = 0; joined < 2; joined++)
                check_product(&(struct product){.n_rows = n_rows[r],
                                                .n_in = outs[s][0],
                                                .n_parts = outs[s][3] ? 3 : 2,
                                                .n_out = {outs[s][1], outs[s][2], outs[s][3]},
                                                .dtype = DTYPE_BF16,
                                                .bias_dtype = DTYPE_BF16,
                                                .bias = r % 3 == 2,
                                                .joined = joined});
}

/* What is fused with a product.  The width of the room between gate and up is the backend's. */
struct fused {
    uint32_t n_rows, n_in, n_out;
    enum dtype dtype, norm_dtype;
    bool norm, bias, gated;
};

/* The CPU normalises in f32, the device multiplies what bf16 holds of it: each of n_in terms is off
 * by 2^-8 at most, in random directions, so a sum is off by less than one rounding of its typical
 * size.  Of few results the largest may be far under that; then it is what counts.  Where gate
 * and up are products of their own, they are rounded once more before they meet. */
static double fused_tolerance(const struct fused *f) {
    return (f->gated ? 3 : 2) * BF16_TOLERANCE;
}

static double typical_size(const struct fused *f) {
    /* Weights are uniform in [-1, 1), x is about 1, biases reach 4. */
    const double sum = fmax(1, sqrt(f->n_in / 3.0)) + (f->bias ? 4 : 0);
    return f->gated ? sum * sum : sum;
}

static void check_fused(const struct fused *f) {
    struct error err = {0};
    const struct product shape = {
        .n_rows = f->n_rows, .n_in = f->n_in, .dtype = f->dtype, .bias_dtype = f->dtype};
    const size_t n_x = (size_t)f->n_rows * f->n_in, n_y = (size_t)f->n_rows * f->n_out;
    float *x = random_bf16(n_x, 3), *g = random_bf16(f->n_in, 2), *expected = random_floats(n_y),
          *got = random_floats(n_y), *room = random_floats(n_x), *wide = random_floats(2 * n_y);
    void *host_g = converted(g, f->n_in, f->norm_dtype),
         *gpu_g = gpu_array(g, f->n_in, f->norm_dtype), *gpu_x = gpu_array(x, n_x, DTYPE_BF16),
         *gpu_room = gpu_poison(n_x, DTYPE_BF16), *gpu_wide = gpu_poison(2 * n_y, DTYPE_BF16),
         *gpu_y = gpu_poison(n_y, DTYPE_BF16);
    struct part gate = make_part(&shape, f->n_out, NULL), up = make_part(&shape, f->n_out, NULL);
    const struct weight cpu_g = {host_g, f->norm_dtype, 1, f->n_in},
                        gpu_g_weight = {gpu_g, f->norm_dtype, 1, f->n_in};
    const struct rmsnorm_input cpu_norm = {&cpu_g, 1e-5f, room},
                               gpu_norm = {&gpu_g_weight, 1e-5f, gpu_room};
    const struct rmsnorm_input *norms[2] = {f->norm ? &cpu_norm : NULL, f->norm ? &gpu_norm : NULL};
    if (f->gated) {
        struct gated_args args = {.x = x, .norm = norms[0], .n_rows = f->n_rows, .n_in = f->n_in,
                                  .gate = &gate.cpu_weight, .up = &up.cpu_weight,
                                  .gate_bias = f->bias ? &gate.cpu_bias : NULL,
                                  .up_bias = f->bias ? &up.cpu_bias : NULL, .gate_up = wide,
                                  .out = expected};
        must(cpu->ops->gated(cpu, &args, &err), &err);
        args = (struct gated_args){.x = gpu_x, .norm = norms[1], .n_rows = f->n_rows,
                                   .n_in = f->n_in, .gate = &gate.gpu_weight, .up = &up.gpu_weight,
                                   .gate_bias = f->bias ? &gate.gpu_bias_weight : NULL,
                                   .up_bias = f->bias ? &up.gpu_bias_weight : NULL,
                                   .gate_up = gpu_wide, .out = gpu_y};
        must(gpu->ops->gated(gpu, &args, &err), &err);
    } else {
        struct linear_args args = {
            .x = x, .norm = norms[0], .n_rows = f->n_rows, .n_in = f->n_in, .n_parts = 1,
            .parts = {{&gate.cpu_weight, f->bias ? &gate.cpu_bias : NULL, expected, f->n_out}}};
        must(cpu->ops->linear(cpu, &args, &err), &err);
        args.x = gpu_x, args.norm = norms[1];
        args.parts[0] = (struct linear_part){
            &gate.gpu_weight, f->bias ? &gate.gpu_bias_weight : NULL, gpu_y, f->n_out};
        must(gpu->ops->linear(gpu, &args, &err), &err);
    }
    gpu_read(got, gpu_y, n_y, DTYPE_BF16);
    char what[160];
    snprintf(what, sizeof(what), "%u x %u x %u, dtype %d, norm %d (dtype %d), bias %d, gated %d",
             f->n_rows, f->n_in, f->n_out, f->dtype, f->norm, f->norm_dtype, f->bias, f->gated);
    assert_near_of(got, expected, n_y, typical_size(f), fused_tolerance(f), what);
    free_part(&gate, true), free_part(&up, true);
    gpu_free(gpu_g), gpu_free(gpu_x), gpu_free(gpu_room), gpu_free(gpu_wide), gpu_free(gpu_y);
    free(x), free(g), free(expected), free(got), free(room), free(wide), free(host_g);
}

static void fused_products_equal_the_cpu(void **state) {
    (void)state;
    static const uint32_t shapes[][2] = {/* n_in, n_out */
                                         {1, 1},       {8, 8},    {15, 7},     {24, 17},
                                         {64, 6},      {384, 40}, {384, 1024}, {4096, 96},
                                         {2056, 1000}, {264, 33}};
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
        for (size_t r = 0; r < N_ROWS; r++)
            for (int kind = 0; kind < 6; kind++)
                check_fused(&(struct fused){.n_rows = n_rows[r],
                                            .n_in = shapes[s][0],
                                            .n_out = shapes[s][1],
                                            .dtype = kind == 5 ? DTYPE_F16 : DTYPE_BF16,
                                            .norm_dtype = (enum dtype)((s + r) % 3),
                                            .norm = kind != 2,
                                            .bias = (s + r + (size_t)kind) % 2,
                                            .gated = kind >= 2});
}

/* A product whose rows are computed again, some at a time. */
struct company {
    uint32_t n_in, n_out;
    enum dtype dtype;
    bool bias, accumulate, y_f32;
};

enum { ALL_ROWS = 2048 };

/* y of rows [first, first + n) of x; y begins as ones. */
static void multiply_rows(const struct company *c, const struct part *part, const void *gpu_x,
                          uint32_t first, uint32_t n, const float *ones, float *out) {
    struct error err = {0};
    const enum dtype y_dtype = c->y_f32 ? DTYPE_F32 : DTYPE_BF16;
    const size_t n_y = (size_t)n * c->n_out;
    void *gpu_y = gpu_array(ones, n_y, y_dtype);
    const struct linear_args args = {
        .x = (const uint16_t *)gpu_x + (size_t)first * c->n_in, .n_rows = n, .n_in = c->n_in,
        .n_parts = 1, .accumulate = c->accumulate, .y_f32 = c->y_f32,
        .parts = {
            {&part->gpu_weight, c->bias ? &part->gpu_bias_weight : NULL, gpu_y, c->n_out}}};
    must(gpu->ops->linear(gpu, &args, &err), &err);
    gpu_read(out, gpu_y, n_y, y_dtype);
    gpu_free(gpu_y);
}

static void check_same(const struct company *c, uint32_t first, uint32_t n, const float *some,
                       const float *all) {
    for (size_t k = 0; k < (size_t)n * c->n_out; k++) {
        const float *expected = &all[(size_t)first * c->n_out + k];
        if (memcmp(&some[k], expected, sizeof(float)) == 0) continue;
        fail_msg("%u -> %u, dtype %d, %u rows from %u on: element %zu is %.9g, was %.9g", c->n_in,
                 c->n_out, c->dtype, n, first, k, some[k], *expected);
    }
}

static void check_company(const struct company *c) {
    static const uint32_t counts[] = {1, 7, 8, 9, 16, 17, 64, 65, 128, 129, 300, 517};
    const size_t n_y = (size_t)ALL_ROWS * c->n_out;
    const struct product shape = {.n_in = c->n_in, .dtype = c->dtype, .bias_dtype = c->dtype};
    float *x = random_bf16((size_t)ALL_ROWS * c->n_in, 1), *all = random_floats(n_y),
          *some = random_floats(n_y), *ones = random_floats(n_y);
    void *gpu_x = gpu_array(x, (size_t)ALL_ROWS * c->n_in, DTYPE_BF16);
    struct part part = make_part(&shape, c->n_out, NULL);
    for (size_t i = 0; i < n_y; i++) ones[i] = 1;
    multiply_rows(c, &part, gpu_x, 0, ALL_ROWS, ones, all);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        const uint32_t n = counts[i], first = (uint32_t)rand() % (ALL_ROWS / 8 - n / 8) * 8;
        multiply_rows(c, &part, gpu_x, first, n, ones, some);
        check_same(c, first, n, some, all);
    }
    free_part(&part, true);
    gpu_free(gpu_x);
    free(x), free(all), free(some), free(ones);
}

static void a_row_has_the_same_bits_in_any_company(void **state) {
    (void)state;
    /* Each tile shape has its turn: they are chosen by rows and outputs. */
    static const uint32_t shapes[][2] = {/* n_in, n_out */
                                         {384, 1024}, {4096, 640}, {1000, 4096},
                                         {64, 8192},  {352, 2049}, {4104, 48}};
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
        for (int mode = 0; mode < 3; mode++)
            check_company(&(struct company){.n_in = shapes[s][0],
                                            .n_out = shapes[s][1],
                                            .dtype = DTYPE_BF16,
                                            .bias = mode != 2,
                                            .accumulate = mode == 1,
                                            .y_f32 = mode == 2});
    check_company(&(struct company){.n_in = 100, .n_out = 65, .dtype = DTYPE_BF16});
    check_company(&(struct company){.n_in = 384, .n_out = 65, .dtype = DTYPE_F16, .bias = true});
    check_company(&(struct company){.n_in = 384, .n_out = 65, .dtype = DTYPE_F32});
}

static void reopen_batch_invariant(void) {
    struct error err = {0};
    gpu->ops->destroy(gpu);
    const struct cuda_config config = {.batch_invariant = true};
    if (!cuda_backend_create(&gpu, &config, &err)) return;
    fprintf(stderr, "%s\n", err.text);
    exit(1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_one_part_equal_the_cpu),
        cmocka_unit_test(parts_share_a_launch_and_a_row),
        cmocka_unit_test(fused_products_equal_the_cpu),
    };
    const struct CMUnitTest invariant_tests[] = {
        cmocka_unit_test(products_of_one_part_equal_the_cpu),
        cmocka_unit_test(parts_share_a_launch_and_a_row),
        cmocka_unit_test(fused_products_equal_the_cpu),
        cmocka_unit_test(a_row_has_the_same_bits_in_any_company),
    };
    const int status = open_backends();
    if (status) return status;
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    reopen_batch_invariant();
    n_failed += cmocka_run_group_tests(invariant_tests, NULL, NULL);
    close_backends();
    return n_failed;
}
