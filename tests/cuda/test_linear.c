/* test_linear.c - products of the CUDA backend against the CPU's: every path (few rows, up to 256,
 * cuBLASLt, any shape), with bias, onto a residual, in f32, in parts that share a row, and fused;
 * all that once more as devices other than 9.0 compute it, and on a batch-invariant backend, where
 * a row's bits must not depend on the rows beside it.
 *
 * Tables say in their last column whether --small has the line, too: it has one for each kernel,
 * and for each way out of a tile. */
#include "cuda/host/internal.h"
#include "cuda/linear/gated_cut.h"
#include "engine/device/backend.h"
#include "engine/device/weight.h"
#include "tests/cuda/cuda_test.h"

struct product_case {
    uint32_t n_rows, n_in, n_parts, n_out[LINEAR_MAX_PARTS];
    enum element dtype, bias_dtype;
    bool bias, accumulate, y_f32, joined; /* joined: the parts' weights lie side by side */
};

struct part {
    float *w, *bias;
    void *host_w, *host_bias, *gpu_w, *gpu_bias;
    struct weight cpu_weight, cpu_bias, gpu_weight, gpu_bias_weight;
};

static struct part make_part(const struct product_case *p, uint32_t n_out, void *gpu_w) {
    const size_t n = (size_t)n_out * p->n_in;
    struct part part = {.w = random_bf16(n, 1), .bias = random_bf16(n_out, 4)};
    struct error err = {0};
    part.host_w = converted(part.w, n, p->dtype);
    part.host_bias = converted(part.bias, n_out, p->bias_dtype);
    part.gpu_w = gpu_w ? gpu_w : gpu_alloc(n * element_bits(p->dtype) / 8);
    must(gpu->ops->upload(gpu, part.gpu_w, part.host_w, n * element_bits(p->dtype) / 8, &err),
         &err);
    part.gpu_bias = gpu_array(part.bias, n_out, p->bias_dtype);
    part.cpu_weight = weight_plain(part.host_w, p->dtype, n_out, p->n_in);
    part.gpu_weight = weight_plain(part.gpu_w, p->dtype, n_out, p->n_in);
    part.cpu_bias = weight_plain(part.host_bias, p->bias_dtype, 1, n_out);
    part.gpu_bias_weight = weight_plain(part.gpu_bias, p->bias_dtype, 1, n_out);
    return part;
}

static void free_part(struct part *part, bool own_weight) {
    if (own_weight) gpu_free(part->gpu_w);
    gpu_free(part->gpu_bias);
    free(part->w), free(part->bias), free(part->host_w), free(part->host_bias);
}

static void check_product(const struct product_case *p) {
    struct error err = {0};
    uint32_t width = 0;
    for (uint32_t i = 0; i < p->n_parts; i++) width += p->n_out[i];
    const size_t n_x = (size_t)p->n_rows * p->n_in, n_y = (size_t)p->n_rows * width;
    const enum element y_dtype = p->y_f32 ? ELEMENT_F32 : ELEMENT_BF16;
    float *x = random_bf16(n_x, 1), *expected = random_bf16(n_y, 8), *got = random_floats(n_y);
    void *gpu_x = gpu_array(x, n_x, ELEMENT_BF16);
    void *gpu_y = p->accumulate ? gpu_array(expected, n_y, y_dtype) : gpu_poison(n_y, y_dtype);
    char *all = p->joined ? gpu_alloc((size_t)width * p->n_in * element_bits(p->dtype) / 8) : NULL;
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
                             all ? all + (size_t)at * p->n_in * element_bits(p->dtype) / 8 : NULL);
        args.parts[i] = (struct linear_part){
            &parts[i].cpu_weight, p->bias ? &parts[i].cpu_bias : NULL, expected + at, width};
        gpu_args.parts[i] =
            (struct linear_part){&parts[i].gpu_weight, p->bias ? &parts[i].gpu_bias_weight : NULL,
                                 (char *)gpu_y + at * element_bits(y_dtype) / 8, width};
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

struct row_count {
    uint32_t n;
    bool in_small, for_large;
};

/* Few rows fill one operand of mma, or two.  The wide kernel then has one to three warpgroups, or
 * halves of the rows.  cuBLASLt has the most rows; on other devices it begins at 17. */
static const struct row_count row_counts[] = {
    {1, true, true},    {2, false, false},  {7, false, false},   {8, false, true},
    {9, true, true},    {15, false, false}, {16, false, true},   {17, true, true},
    {33, false, false}, {64, false, false}, {100, false, false}, {129, false, false},
    {130, true, true},  {250, true, true},  {256, false, false}, {257, false, false},
    {517, false, true}};
enum { N_ROW_COUNTS = sizeof(row_counts) / sizeof(row_counts[0]) };

struct matrix {
    uint32_t n_in, n_out;
    bool in_small;
};

/* Says whether random weights take most of a case's time.  Such matrices are for kernels of bf16,
 * and have few numbers of rows: one for each kernel, and for each way through it. */
static bool is_large(const struct matrix *m) {
    return (size_t)m->n_in * m->n_out > 1 << 20;
}

static bool has_case(const struct matrix *m, const struct row_count *rows) {
    return (!small || (m->in_small && rows->in_small)) && (!is_large(m) || rows->for_large);
}

typedef void (*matrix_check)(const struct matrix *m, uint32_t n_rows, size_t turn);

/* Each matrix with each number of rows.  `turn` is for what takes turns. */
static void for_each_size(const struct matrix *matrices, size_t n, matrix_check check) {
    for (size_t m = 0; m < n; m++)
        for (size_t r = 0; r < N_ROW_COUNTS; r++)
            if (has_case(&matrices[m], &row_counts[r])) check(&matrices[m], row_counts[r].n, m + r);
}

static void check_one_part(const struct matrix *m, uint32_t n_rows, size_t turn) {
    for (enum element dtype = is_large(m) ? ELEMENT_BF16 : ELEMENT_F32; dtype <= ELEMENT_BF16;
         dtype++)
        for (size_t mode = 0; mode < 3; mode++)
            check_product(&(struct product_case){.n_rows = n_rows,
                                                 .n_in = m->n_in,
                                                 .n_parts = 1,
                                                 .n_out = {m->n_out},
                                                 .dtype = dtype,
                                                 .bias_dtype = turn % 2 ? ELEMENT_BF16 : dtype,
                                                 .bias = (turn + mode) % 2,
                                                 .accumulate = mode == 1,
                                                 .y_f32 = mode == 2});
}

static void products_of_one_part_equal_the_cpu(void **state) {
    /* 4096 -> 96: so few outputs that cuBLASLt and the wide kernel split the sums.  2056 -> 1040:
     * for the wide kernel from 9 rows on where memory is fast, as those behind it are.  1032 ->
     * 5000: more tiles than a device has blocks of the stream kernel, in stages of which the last
     * is not full.  7176 -> 2200: such stages of an x that registers do not hold as a whole, for
     * two tiles of a block.  32 -> 20000: more tiles than the wide kernel has blocks. */
    static const struct matrix matrices[] = {
        {1, 1, false},       {8, 8, false},       {15, 7, true},      {16, 24, false},
        {24, 17, false},     {64, 6, false},      {384, 640, false},  {1024, 384, false},
        {100, 49, false},    {4096, 96, true},    {2056, 1040, true}, {32, 8192, false},
        {1032, 5000, false}, {7176, 2200, false}, {32, 20000, false}};
    for_each_size(matrices, sizeof(matrices) / sizeof(matrices[0]), check_one_part);
}

/* 256 tiles: blocks on multiprocessors that attention has left idle take two or three, others one
 * or two. */
static void products_behind_attention_equal_the_cpu(void **state) {
    struct cuda_backend *cuda = CUDA_BACKEND(gpu);
    const uint32_t n = cuda->n_multiprocessors, idle[] = {1, n / 4, n / 2 - 6, n / 2 + 2, n - 1};
    for (uint32_t i = 0; i < 5; i++) {
        const uint32_t n_rows = 1 + i % 3 * 3;
        cuda->n_idle = idle[i];
        check_product(&(struct product_case){.n_rows = n_rows,
                                             .n_in = 1032,
                                             .n_parts = 1,
                                             .n_out = {4096},
                                             .dtype = ELEMENT_BF16,
                                             .bias_dtype = ELEMENT_BF16,
                                             .bias = n_rows % 2,
                                             .accumulate = true});
        assert_int_equal(cuda->n_idle, 0);
    }
}

static void parts_share_a_launch_and_a_row(void **state) {
    static const struct {
        uint32_t n_in, n_out[3]; /* 0: none */
        bool in_small;
    } shapes[] = {{384, {384, 128, 128}, true},
                  {384, {1024, 1024, 0}, false},
                  {512, {40, 8, 24}, false},
                  {256, {17, 3, 30}, true}};
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
        for (size_t r = 0; r < N_ROW_COUNTS; r++)
            for (int joined = 0; joined < 2; joined++) {
                const uint32_t *n_out = shapes[s].n_out;
                if (small && !(shapes[s].in_small && row_counts[r].in_small)) continue;
                check_product(&(struct product_case){.n_rows = row_counts[r].n,
                                                     .n_in = shapes[s].n_in,
                                                     .n_parts = n_out[2] ? 3 : 2,
                                                     .n_out = {n_out[0], n_out[1], n_out[2]},
                                                     .dtype = ELEMENT_BF16,
                                                     .bias_dtype = ELEMENT_BF16,
                                                     .bias = r % 3 == 2,
                                                     .joined = joined});
            }
}

/* What is fused with a product.  The width of the room between gate and up is the backend's. */
struct fused {
    uint32_t n_rows, n_in, n_out;
    enum element dtype, norm_dtype;
    bool norm, bias, gated;
    enum gate_kind kind;
    uint32_t n_clusters; /* 0: the backend chooses a kernel; else the gated kernel with so many */
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

static void gate_alone(const struct fused *f, const struct gated_args *args) {
    struct cuda_backend *cuda = CUDA_BACKEND(gpu);
    struct error err = {0};
    const struct product_part gate = {.w = args->gate->data,
                                      .bias = f->bias ? args->gate_bias->data : NULL,
                                      .bias_dtype = f->dtype,
                                      .y = args->out,
                                      .y_stride = f->n_out,
                                      .n_out = f->n_out},
                              up = {.w = args->up->data,
                                    .bias = f->bias ? args->up_bias->data : NULL,
                                    .bias_dtype = f->dtype,
                                    .n_out = f->n_out};
    const struct product params = {.x = args->x,
                                   .n_rows = f->n_rows,
                                   .n_in = f->n_in,
                                   .n_parts = 2,
                                   .parts = {gate, up},
                                   .w_format = {.element = f->dtype},
                                   .gated = true,
                                   .kind = f->kind};
    const uint32_t n_clusters = cuda->products.n_gated_clusters;
    cuda->products.n_gated_clusters = f->n_clusters;
    must(product_find("gated")->launch(cuda, &params, &err), &err);
    cuda->products.n_gated_clusters = n_clusters;
}

static void check_fused(const struct fused *f) {
    struct error err = {0};
    const struct product_case shape = {
        .n_rows = f->n_rows, .n_in = f->n_in, .dtype = f->dtype, .bias_dtype = f->dtype};
    const size_t n_x = (size_t)f->n_rows * f->n_in, n_y = (size_t)f->n_rows * f->n_out;
    float *x = random_bf16(n_x, 3), *g = random_bf16(f->n_in, 2), *expected = random_floats(n_y),
          *got = random_floats(n_y), *room = random_floats(n_x), *gate_up = random_floats(2 * n_y);
    void *host_g = converted(g, f->n_in, f->norm_dtype),
         *gpu_g = gpu_array(g, f->n_in, f->norm_dtype), *gpu_x = gpu_array(x, n_x, ELEMENT_BF16),
         *gpu_room = gpu_poison(n_x, ELEMENT_BF16),
         *gpu_gate_up = gpu_poison(2 * n_y, ELEMENT_BF16), *gpu_y = gpu_poison(n_y, ELEMENT_BF16);
    struct part gate = make_part(&shape, f->n_out, NULL), up = make_part(&shape, f->n_out, NULL);
    const struct weight cpu_g = weight_plain(host_g, f->norm_dtype, 1, f->n_in),
                        gpu_g_weight = weight_plain(gpu_g, f->norm_dtype, 1, f->n_in);
    const struct rmsnorm_input cpu_norm = {&cpu_g, 1e-5f, room},
                               gpu_norm = {&gpu_g_weight, 1e-5f, gpu_room};
    const struct rmsnorm_input *norms[2] = {f->norm ? &cpu_norm : NULL, f->norm ? &gpu_norm : NULL};
    if (f->gated) {
        struct gated_args args = {.x = x,
                                  .norm = norms[0],
                                  .n_rows = f->n_rows,
                                  .n_in = f->n_in,
                                  .gate = &gate.cpu_weight,
                                  .up = &up.cpu_weight,
                                  .gate_bias = f->bias ? &gate.cpu_bias : NULL,
                                  .up_bias = f->bias ? &up.cpu_bias : NULL,
                                  .gate_up = gate_up,
                                  .out = expected,
                                  .kind = f->kind};
        must(cpu->ops->gated(cpu, &args, &err), &err);
        args = (struct gated_args){.x = gpu_x,
                                   .norm = norms[1],
                                   .n_rows = f->n_rows,
                                   .n_in = f->n_in,
                                   .gate = &gate.gpu_weight,
                                   .up = &up.gpu_weight,
                                   .gate_bias = f->bias ? &gate.gpu_bias_weight : NULL,
                                   .up_bias = f->bias ? &up.gpu_bias_weight : NULL,
                                   .gate_up = gpu_gate_up,
                                   .out = gpu_y,
                                   .kind = f->kind};
        if (f->n_clusters) gate_alone(f, &args);
        else must(gpu->ops->gated(gpu, &args, &err), &err);
    } else {
        struct linear_args args = {
            .x = x,
            .norm = norms[0],
            .n_rows = f->n_rows,
            .n_in = f->n_in,
            .n_parts = 1,
            .parts = {{&gate.cpu_weight, f->bias ? &gate.cpu_bias : NULL, expected, f->n_out}}};
        must(cpu->ops->linear(cpu, &args, &err), &err);
        args.x = gpu_x, args.norm = norms[1];
        args.parts[0] = (struct linear_part){
            &gate.gpu_weight, f->bias ? &gate.gpu_bias_weight : NULL, gpu_y, f->n_out};
        must(gpu->ops->linear(gpu, &args, &err), &err);
    }
    gpu_read(got, gpu_y, n_y, ELEMENT_BF16);
    char what[160];
    snprintf(what, sizeof(what),
             "%u x %u x %u, dtype %d, norm %d (dtype %d), bias %d, gated %d (kind %d)", f->n_rows,
             f->n_in, f->n_out, f->dtype, f->norm, f->norm_dtype, f->bias, f->gated, f->kind);
    assert_near_of(got, expected, n_y, typical_size(f), fused_tolerance(f), what);
    free_part(&gate, true), free_part(&up, true);
    gpu_free(gpu_g), gpu_free(gpu_x), gpu_free(gpu_room), gpu_free(gpu_gate_up), gpu_free(gpu_y);
    free(x), free(g), free(expected), free(got), free(room), free(gate_up), free(host_g);
}

/* Kinds 1 and 4 are 0 and 3 with the other bias; 5 is for kernels of any dtype. */
static void check_all_fused(const struct matrix *m, uint32_t n_rows, size_t turn) {
    for (size_t kind = 0; kind < 6; kind++) {
        if (is_large(m) && (kind == 1 || kind > 3)) continue;
        check_fused(&(struct fused){.n_rows = n_rows,
                                    .n_in = m->n_in,
                                    .n_out = m->n_out,
                                    .dtype = kind == 5 ? ELEMENT_F16 : ELEMENT_BF16,
                                    .norm_dtype = (enum element)(turn % 3),
                                    .norm = kind != 2,
                                    .bias = (turn + kind) % 2,
                                    .gated = kind >= 2,
                                    .kind = turn / 2 % 2 ? GATE_GELU : GATE_SILU});
    }
}

static void fused_products_equal_the_cpu(void **state) {
    /* 6152: registers hold a part of x.  8200: the stream kernel has no room for the norm's
     * weights. */
    static const struct matrix matrices[] = {
        {1, 1, false},       {8, 8, false},   {15, 7, false},      {24, 17, false},
        {64, 6, false},      {384, 40, true}, {384, 1024, false},  {4096, 96, false},
        {2056, 1000, false}, {264, 33, true}, {1032, 2500, false}, {6152, 2200, false},
        {6152, 24, true},    {8200, 24, true}};
    for_each_size(matrices, sizeof(matrices) / sizeof(matrices[0]), check_all_fused);
}

/* 9 to 16 rows are for the stream kernel or for the wide kernel: the device's memory decides. */
static void rows_that_two_kernels_take_equal_the_cpu(void **state) {
    static const struct matrix matrices[] = {
        {384, 640, true}, {4096, 96, false}, {1032, 5000, false}, {512, 1032, true}};
    struct cuda_backend *cuda = CUDA_BACKEND(gpu);
    uint32_t *from = &cuda->products.wide_from;
    const uint32_t chosen = *from;
    for (*from = 9; *from <= 17; *from += 8)
        for (size_t m = 0; m < sizeof(matrices) / sizeof(matrices[0]); m++)
            for (uint32_t n_rows = 9; n_rows <= 16; n_rows++) {
                if (small && !(matrices[m].in_small && n_rows == 9)) continue;
                if (is_large(&matrices[m]) && n_rows % 4 > 1) continue;
                check_one_part(&matrices[m], n_rows, m + n_rows);
                check_all_fused(&matrices[m], n_rows, m + n_rows);
            }
    *from = chosen;
}

/* Blocks of the wide kernel that split a sum wait for words that are not all ones.  Here x and W
 * are nothing but such bits: the sums that they send each other are NaN, and what they leave behind
 * has no part in the next product. */
static void nans_of_all_ones_pass_between_blocks(void **state) {
    const struct product_case shape = {
        .n_in = 4096, .n_parts = 1, .n_out = {96}, .dtype = ELEMENT_BF16};
    static const uint32_t n_rows[] = {17, 130, 250};
    for (size_t r = 0; r < sizeof(n_rows) / sizeof(n_rows[0]); r++) {
        struct error err = {0};
        const size_t n_y = (size_t)n_rows[r] * shape.n_out[0];
        void *x = gpu_poison((size_t)n_rows[r] * shape.n_in, ELEMENT_BF16),
             *w = gpu_poison((size_t)shape.n_out[0] * shape.n_in, ELEMENT_BF16);
        float *got = random_floats(n_y);
        void *y = gpu_array(got, n_y, ELEMENT_F32);
        const struct weight weight = weight_plain(w, ELEMENT_BF16, shape.n_out[0], shape.n_in);
        const struct linear_args args = {.x = x,
                                         .n_rows = n_rows[r],
                                         .n_in = shape.n_in,
                                         .n_parts = 1,
                                         .parts = {{&weight, NULL, y, shape.n_out[0]}},
                                         .y_f32 = true};
        must(gpu->ops->linear(gpu, &args, &err), &err);
        gpu_read(got, y, n_y, ELEMENT_F32);
        for (size_t i = 0; i < n_y; i++) assert_true(isnan(got[i]));
        gpu_free(x), gpu_free(w), gpu_free(y), free(got);
        struct product_case next = shape;
        next.n_rows = n_rows[r];
        check_product(&next);
    }
}

/* Small products, which cuda_gated() leaves to cuBLASLt: few clusters have as many waves. */
static void gated_products_of_many_rows_equal_the_cpu(void **state) {
    /* There are tiles of both sizes.  Pairs of row tiles are alone and with a single one, and more
     * than GATED_PAIRS_AT_ONCE.  Last tiles are not full.  Last waves are halved, the only wave
     * among them.  Items begin in the middle of rings. */
    static const struct {
        uint32_t n_rows, n_in, n_out, n_clusters;
        bool in_small;
    } shapes[] = {{257, 512, 136, 1, false}, {257, 576, 8, 60, true},    {257, 512, 296, 2, true},
                  {257, 576, 344, 2, true},  {300, 1024, 776, 3, true},  {513, 512, 1000, 5, false},
                  {200, 512, 320, 3, true},  {1000, 512, 640, 7, false}, {2177, 512, 264, 4, true},
                  {2177, 512, 256, 4, true}};
    if (CUDA_BACKEND(gpu)->products.n_gated_clusters == 0) skip();
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int turn = 0; turn < 4; turn++)
            if (!small || shapes[i].in_small)
                check_fused(&(struct fused){.n_rows = shapes[i].n_rows,
                                            .n_in = shapes[i].n_in,
                                            .n_out = shapes[i].n_out,
                                            .dtype = ELEMENT_BF16,
                                            .norm_dtype = ELEMENT_BF16,
                                            .bias = turn / 2,
                                            .gated = true,
                                            .kind = turn % 2 ? GATE_GELU : GATE_SILU,
                                            .n_clusters = shapes[i].n_clusters});
}

/* The device is full, so cuda_gated() takes the gated kernel where there is one: from 193 rows on
 * if all clusters have two turns. */
static void cuda_gated_takes_the_kernel_for_many_rows(void **state) {
    const uint32_t n_in = 512, n_clusters = CUDA_BACKEND(gpu)->products.n_gated_clusters,
                   two_turns = 2 * (n_clusters ? n_clusters : 66) * GATED_SMALL_TILE;
    const uint32_t shapes[][2] = {{1000, 4224}, {193, two_turns}, {256, two_turns}};
    if (n_clusters > 0) {
        assert_true(gated_beats_wide(n_in, two_turns, n_clusters));
        assert_true(gated_fills(WIDE_MAX_ROWS, two_turns, n_clusters));
    }
    for (int i = 0; i < 3 && !small; i++)
        check_fused(&(struct fused){.n_rows = shapes[i][0],
                                    .n_in = n_in,
                                    .n_out = shapes[i][1],
                                    .dtype = ELEMENT_BF16,
                                    .norm_dtype = ELEMENT_BF16,
                                    .norm = true,
                                    .gated = true});
}

/* A product whose rows are computed again, some at a time. */
struct company {
    uint32_t n_in, n_out;
    enum element dtype;
    bool bias, accumulate, y_f32;
};

/* With --small, 6,144 outputs give just enough tiles of each shape: all 320 rows take the largest,
 * and 129, 17 and 9 of them the others. */
static uint32_t count_all_rows(void) {
    return small ? 320 : 2048;
}

/* y of rows [first, first + n) of x; y begins as ones. */
static void multiply_rows(const struct company *c, const struct part *part, const void *gpu_x,
                          uint32_t first, uint32_t n, const float *ones, float *out) {
    struct error err = {0};
    const enum element y_dtype = c->y_f32 ? ELEMENT_F32 : ELEMENT_BF16;
    const size_t n_y = (size_t)n * c->n_out;
    void *gpu_y = gpu_array(ones, n_y, y_dtype);
    const struct linear_args args = {
        .x = (const uint16_t *)gpu_x + (size_t)first * c->n_in,
        .n_rows = n,
        .n_in = c->n_in,
        .n_parts = 1,
        .accumulate = c->accumulate,
        .y_f32 = c->y_f32,
        .parts = {{&part->gpu_weight, c->bias ? &part->gpu_bias_weight : NULL, gpu_y, c->n_out}}};
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
    static const struct row_count counts[] = {
        {1, false, false},   {7, false, false},  {8, false, false},   {9, true, false},
        {16, false, false},  {17, true, false},  {64, false, false},  {65, false, false},
        {128, false, false}, {129, true, false}, {300, false, false}, {517, false, false}};
    const uint32_t n_all = count_all_rows();
    const size_t n_y = (size_t)n_all * c->n_out;
    const struct product_case shape = {.n_in = c->n_in, .dtype = c->dtype, .bias_dtype = c->dtype};
    float *x = random_bf16((size_t)n_all * c->n_in, 1), *all = random_floats(n_y),
          *some = random_floats(n_y), *ones = random_floats(n_y);
    void *gpu_x = gpu_array(x, (size_t)n_all * c->n_in, ELEMENT_BF16);
    struct part part = make_part(&shape, c->n_out, NULL);
    for (size_t i = 0; i < n_y; i++) ones[i] = 1;
    multiply_rows(c, &part, gpu_x, 0, n_all, ones, all);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        const uint32_t n = counts[i].n;
        if (small && !counts[i].in_small) continue;
        const uint32_t first = random_below(n_all / 8 - n / 8) * 8;
        multiply_rows(c, &part, gpu_x, first, n, ones, some);
        check_same(c, first, n, some, all);
    }
    free_part(&part, true);
    gpu_free(gpu_x);
    free(x), free(all), free(some), free(ones);
}

static void a_row_has_the_same_bits_in_any_company(void **state) {
    /* Each tile shape has its turn: they are chosen by rows and outputs. */
    static const struct matrix matrices[] = {
        {384, 1024, false}, {4096, 640, false}, {1000, 4096, false}, {64, 8192, false},
        {352, 2049, false}, {4104, 48, false},  {200, 6144, true}};
    for (size_t m = 0; m < sizeof(matrices) / sizeof(matrices[0]); m++)
        for (int mode = 0; mode < 3; mode++) {
            if (small && !matrices[m].in_small) continue;
            check_company(&(struct company){.n_in = matrices[m].n_in,
                                            .n_out = matrices[m].n_out,
                                            .dtype = ELEMENT_BF16,
                                            .bias = mode != 2,
                                            .accumulate = mode == 1,
                                            .y_f32 = mode == 2});
        }
    check_company(&(struct company){.n_in = 100, .n_out = 65, .dtype = ELEMENT_BF16});
    check_company(&(struct company){.n_in = 384, .n_out = 65, .dtype = ELEMENT_F16, .bias = true});
    check_company(&(struct company){.n_in = 384, .n_out = 65, .dtype = ELEMENT_F32});
}

/* Longer rows than registers hold, many times: a stage of weights that is overwritten while a warp
 * still reads it shows in one run of a hundred. */
static void few_rows_have_the_same_bits_in_every_run(void **state) {
    enum { N_RUNS = 300, N_ROWS = 16 };
    const struct company c = {.n_in = 14336, .n_out = small ? 512 : 4096, .dtype = ELEMENT_BF16};
    const struct product_case shape = {.n_in = c.n_in, .dtype = c.dtype, .bias_dtype = c.dtype};
    const size_t n_y = (size_t)N_ROWS * c.n_out;
    float *x = random_bf16((size_t)N_ROWS * c.n_in, 1), *first = random_floats(n_y),
          *again = random_floats(n_y), *ones = random_floats(n_y);
    void *gpu_x = gpu_array(x, (size_t)N_ROWS * c.n_in, ELEMENT_BF16);
    struct part part = make_part(&shape, c.n_out, NULL);
    for (uint32_t n = 8; n <= N_ROWS; n += 4) {
        multiply_rows(&c, &part, gpu_x, 0, n, ones, first);
        for (int run = 0; run < (small ? 2 : N_RUNS); run++) {
            multiply_rows(&c, &part, gpu_x, 0, n, ones, again);
            check_same(&c, 0, n, again, first);
        }
    }
    free_part(&part, true);
    gpu_free(gpu_x);
    free(x), free(first), free(again), free(ones);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_one_part_equal_the_cpu),
        cmocka_unit_test(products_behind_attention_equal_the_cpu),
        cmocka_unit_test(parts_share_a_launch_and_a_row),
        cmocka_unit_test(fused_products_equal_the_cpu),
        cmocka_unit_test(rows_that_two_kernels_take_equal_the_cpu),
        cmocka_unit_test(nans_of_all_ones_pass_between_blocks),
        cmocka_unit_test(gated_products_of_many_rows_equal_the_cpu),
        cmocka_unit_test(cuda_gated_takes_the_kernel_for_many_rows),
        cmocka_unit_test(few_rows_have_the_same_bits_in_every_run),
    };
    const struct CMUnitTest invariant_tests[] = {
        cmocka_unit_test(products_of_one_part_equal_the_cpu),
        cmocka_unit_test(parts_share_a_launch_and_a_row),
        cmocka_unit_test(fused_products_equal_the_cpu),
        cmocka_unit_test(a_row_has_the_same_bits_in_any_company),
    };
    const int status = begin(argc, argv, 0);
    if (status) return status;
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    CUDA_BACKEND(gpu)->products.streams = false;
    CUDA_BACKEND(gpu)->products.wide.n_clusters = 0;
    CUDA_BACKEND(gpu)->products.n_gated_clusters = 0;
    n_failed += cmocka_run_group_tests(tests, NULL, NULL);
    reopen_batch_invariant();
    n_failed += cmocka_run_group_tests(invariant_tests, NULL, NULL);
    close_backends();
    return n_failed;
}
