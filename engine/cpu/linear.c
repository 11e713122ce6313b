/* linear.c - y = x W^T: the rows of x are packed once, weights are used as stored, and blocks of
 * the result are dealt to the workers.
 *
 *            weight rows (output features)
 *            | 48 | 48 | 48 | ...
 *   rows   --+----+----+----+--     A task is one block of columns for one block of rows, whose
 *   of x   --+----+----+----+--     share of x stays in a worker's second-level cache.
 *
 * Weights that were repacked when they were loaded have kernels of their own (int8_kernels.h).
 * Those of a format that no kernel reads are converted to f32, a block of columns at a time.
 *
 * Every output is one dot product over all of n_in in a fixed order.  So a row's result never
 * depends on the other rows of the call. */
#include "engine/cpu/backend.h"

#include "engine/base/sizes.h"
#include "engine/cpu/int8_weight.h"
#include "engine/cpu/vec.h"
#include "engine/device/backend.h"

enum { MIN_BLOCK_ROWS = 48, FEW_ROWS = 16 };

/* A block of columns of one part: n_cols from col on. */
struct cut {
    uint32_t part, col, n_cols;
};

/* Parts whose weights have the same kernels, and so take the same packed input. */
struct linear_job {
    struct cpu_backend *cpu;
    const struct linear_args *args;
    const struct linear_part *parts;
    const struct product_kernels *kernels;
    bool converts;   /* no kernel reads the format: blocks of weights become f32 */
    size_t x_stride; /* elements of a packed row */
    uint32_t block_rows;
    struct cut *cuts; /* [n_cuts]: the columns of all parts */
    uint32_t n_cuts;
};

static void *packed_row(const struct linear_job *job, uint32_t row) {
    return (char *)job->cpu->inputs.data + row * job->x_stride * job->kernels->packed_size;
}

static void pack_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    const struct linear_job *job = ctx;
    const struct linear_args *args = job->args;
    const uint32_t first = task * PACK_ROWS, n_left = args->n_rows - first;
    job->kernels->pack(packed_row(job, first), job->x_stride,
                       (const float *)args->x + (size_t)first * args->n_in,
                       n_left < PACK_ROWS ? n_left : PACK_ROWS, args->n_in);
}

static const float *widened_bias(const struct linear_job *job, const struct weight *bias,
                                 uint32_t col, uint32_t n_cols, uint32_t worker) {
    float *wide = scratch_of(job->cpu, worker);
    const enum element element = bias->format.element;
    job->cpu->kernels->to_f32(wide, (const char *)bias->data + element_bytes(element, col), n_cols,
                              element);
    return wide;
}

/* Returns the cut's weights in f32: the worker's scratch behind a bias. */
static struct weight converted(const struct linear_job *job, const struct weight *w,
                               const struct cut *cut, uint32_t worker) {
    float *values = (float *)scratch_of(job->cpu, worker) + cut->n_cols;
    for (uint32_t i = 0; i < cut->n_cols; i++)
        weight_to_float(w, cut->col + i, values + (size_t)i * w->cols);
    return weight_plain(values, ELEMENT_F32, cut->n_cols, w->cols);
}

static void linear_task(void *ctx, uint32_t task, uint32_t worker) {
    const struct linear_job *job = ctx;
    const struct linear_args *args = job->args;
    const struct cut *cut = &job->cuts[task % job->n_cuts];
    const uint32_t row = task / job->n_cuts * job->block_rows, n_left = args->n_rows - row;
    const struct linear_part *part = &job->parts[cut->part];
    const struct weight values =
        job->converts ? converted(job, part->w, cut, worker) : (struct weight){0};
    const struct product_block block = {
        .x = packed_row(job, row),
        .x_stride = job->x_stride,
        .n_rows = n_left < job->block_rows ? n_left : job->block_rows,
        .w = job->converts ? &values : part->w,
        .col = job->converts ? 0 : cut->col,
        .n_cols = cut->n_cols,
        .bias = part->bias && part->bias->data
                    ? widened_bias(job, part->bias, cut->col, cut->n_cols, worker)
                    : NULL,
        .y = (float *)part->y + row * part->y_stride + cut->col,
        .y_stride = part->y_stride,
        .accumulate = args->accumulate};
    job->kernels->dot(&block);
}

/* Returns the rows of a block: as many packed rows of x as fit a second-level cache beside a block
 * of weights, in blocks of equal size. */
static uint32_t rows_of_block(const struct linear_job *job) {
    size_t fit = job->kernels->block_bytes / (job->x_stride * job->kernels->packed_size),
           n_rows = job->args->n_rows;
    size_t n_blocks = fit < MIN_BLOCK_ROWS ? n_rows / MIN_BLOCK_ROWS : div_up(n_rows, fit);
    if (n_blocks == 0) n_blocks = 1;
    return (uint32_t)round_up(div_up(n_rows, n_blocks), job->kernels->row_unit);
}

/* Returns the columns of the next block when n_left are left.  With few rows, each worker's share
 * is one long stream of weights.  Its blocks shrink towards the end, so that no worker waits long
 * for the last one (guided self-scheduling).  With many rows, blocks are whole cache lines of the
 * result, so that no two workers write to one line. */
static uint32_t block_cols(const struct linear_job *job, uint32_t n_left) {
    const uint32_t unit = job->kernels->col_unit;
    if (job->args->n_rows > FEW_ROWS || job->converts) return job->kernels->block_cols;
    return (n_left / (2 * pool_size(job->cpu->pool)) / unit + 1) * unit;
}

static int cut_columns(struct linear_job *job, uint32_t n_parts, struct error *err) {
    uint32_t n_left = 0, widest = 0;
    for (uint32_t p = 0; p < n_parts; p++) n_left += job->parts[p].w->rows;
    int rc = cpu_buffer_reserve(
        &job->cpu->tasks, (n_left / job->kernels->col_unit + n_parts) * sizeof(struct cut), err);
    if (rc < 0) return rc;
    job->cuts = job->cpu->tasks.data;
    for (uint32_t p = 0; p < n_parts; p++) {
        uint32_t n_rest = job->parts[p].w->rows;
        for (uint32_t col = 0, n; n_rest > 0; col += n, n_rest -= n, n_left -= n) {
            n = block_cols(job, n_left);
            if (n > n_rest) n = n_rest;
            if (n > widest) widest = n;
            job->cuts[job->n_cuts++] = (struct cut){p, col, n};
        }
    }
    const size_t per_col = job->converts ? 1 + (size_t)job->args->n_in : 1; /* a bias, weights */
    return scratch_reserve(job->cpu, widest * per_col * sizeof(float), err);
}

/* Returns the kernels for a format.  NULL: there are none. */
static const struct product_kernels *kernels_for(const struct cpu_backend *cpu,
                                                 const struct weight_format *format) {
    const struct product_kernels *rounding = cpu->bf16_products, *rows = cpu->kernels->products;
    struct int8_layout layout;
    if (cpu_repacks(cpu, format, &layout)) return &cpu->int8_products[layout.kind];
    if (rounding && weight_same_format(&rounding->format, format)) return rounding;
    for (uint32_t i = 0; i < cpu->kernels->n_products; i++)
        if (weight_same_format(&rows[i].format, format)) return &rows[i];
    return NULL;
}

static int run_parts(struct cpu_backend *cpu, const struct linear_args *args, uint32_t first,
                     uint32_t n, struct error *err) {
    struct linear_job job = {.cpu = cpu, .args = args, .parts = args->parts + first};
    job.kernels = kernels_for(cpu, &job.parts[0].w->format);
    job.converts = !job.kernels;
    if (job.converts) job.kernels = cpu->kernels->products; /* those for f32 */
    for (uint32_t i = 0; i < n && cpu->base.on_product; i++)
        cpu->base.on_product(cpu->base.on_product_ctx,
                             job.converts ? "converted" : job.kernels->name, args->n_rows,
                             args->n_in, job.parts[i].w->rows);
    const uint32_t packed_size = job.kernels->packed_size;
    /* One more cache line, so that rows do not all begin in the same cache set. */
    job.x_stride = round_up(args->n_in, PACK_UNIT) +
                   div_up(args->n_in, PACK_UNIT) * job.kernels->block_extra + 64 / packed_size;
    job.block_rows = rows_of_block(&job);
    int rc = cut_columns(&job, n, err);
    if (rc < 0) return rc;
    rc = cpu_buffer_reserve(&cpu->inputs, args->n_rows * job.x_stride * packed_size, err);
    if (rc < 0) return rc;
    pool_run(cpu->pool, pack_task, &job, div_up(args->n_rows, PACK_ROWS));
    pool_run(cpu->pool, linear_task, &job, div_up(args->n_rows, job.block_rows) * job.n_cuts);
    return 0;
}

int cpu_linear(struct backend *be, const struct linear_args *args, struct error *err) {
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    struct linear_args plain = *args;
    int rc = 0;
    if (args->n_rows == 0) return 0;
    if (args->norm) {
        const struct rmsnorm_args norm = linear_norm(args);
        rc = cpu_rmsnorm(be, &norm, err);
        plain.x = args->norm->normed;
    }
    for (uint32_t first = 0, n; rc == 0 && first < args->n_parts; first += n) {
        for (n = 1; first + n < args->n_parts; n++)
            if (kernels_for(cpu, &args->parts[first + n].w->format) !=
                kernels_for(cpu, &args->parts[first].w->format))
                break;
        rc = run_parts(cpu, &plain, first, n, err);
    }
    return rc;
}

int cpu_gated(struct backend *be, const struct gated_args *args, struct error *err) {
    const uint32_t n_out = args->gate->rows;
    float *gate = args->gate_up;
    const struct linear_args both = {
        .x = args->x,
        .norm = args->norm,
        .n_rows = args->n_rows,
        .n_in = args->n_in,
        .n_parts = 2,
        .parts = {{args->gate, args->gate_bias, gate, 2 * (size_t)n_out},
                  {args->up, args->up_bias, gate + n_out, 2 * (size_t)n_out}}};
    int rc = cpu_linear(be, &both, err);
    return rc ? rc : gate_mul_rows((struct cpu_backend *)be, args);
}
