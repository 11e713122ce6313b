/* products.c - see products.h. */
#include "engine/cpu/products.h"

#include "engine/base/sizes.h"
#include "engine/cpu/backend.h"
#include "engine/cpu/int8_weight.h"
#include "engine/device/backend.h"

enum { MIN_BLOCK_ROWS = 48, FEW_ROWS = 16, WIDEN_ROWS = 8 };

/* A task: columns of a part, for some of its rows. */
struct cut {
    uint32_t part, row, n_rows, col, n_cols;
};

/* Parts whose weights have the same kernels, and so take the same packed input. */
struct product_job {
    struct cpu_backend *cpu;
    const struct product_input *input;
    const struct product_part *parts;
    uint32_t n_parts;
    bool accumulate;
    const struct product_kernels *kernels;
    bool converts; /* blocks of weights become f32, by widen() */
    void (*widen)(const struct weight *w, uint32_t row, float *out);
    size_t x_stride;  /* elements of a packed row */
    struct cut *cuts; /* [n_cuts] */
    uint32_t n_cuts;
};

static void *packed_row(const struct product_job *job, uint32_t row) {
    return (char *)job->cpu->inputs.data + row * job->x_stride * job->kernels->packed_size;
}

static void pack_task(void *ctx, uint32_t task, uint32_t worker) {
    const struct product_job *job = ctx;
    const uint32_t first = task * PACK_ROWS;
    uint32_t n = 0;
    const float *rows = job->input->get(job->input->ctx, first, &n, scratch_of(job->cpu, worker));
    job->kernels->pack(packed_row(job, first), job->x_stride, rows, n, job->input->n_in);
}

static const float *widened_bias(const struct product_job *job, const struct weight *bias,
                                 uint32_t col, uint32_t n_cols, uint32_t worker) {
    float *wide = scratch_of(job->cpu, worker);
    const enum element element = bias->format.element;
    job->cpu->kernels->to_f32(wide, (const char *)bias->data + element_bytes(element, col), n_cols,
                              element);
    return wide;
}

/* Returns the cut's weights in f32: the worker's scratch behind a bias. */
static struct weight converted(const struct product_job *job, const struct weight *w,
                               const struct cut *cut, uint32_t worker) {
    float *values = (float *)scratch_of(job->cpu, worker) + cut->n_cols;
    for (uint32_t i = 0; i < cut->n_cols; i++)
        job->widen(w, cut->col + i, values + (size_t)i * w->cols);
    return weight_plain(values, ELEMENT_F32, cut->n_cols, w->cols);
}

static void product_task(void *ctx, uint32_t task, uint32_t worker) {
    const struct product_job *job = ctx;
    const struct cut *cut = &job->cuts[task];
    const struct product_part *part = &job->parts[cut->part];
    const struct weight values =
        job->converts ? converted(job, &part->w, cut, worker) : (struct weight){0};
    const struct product_block block = {
        .x = packed_row(job, part->first_row + cut->row),
        .x_stride = job->x_stride,
        .n_rows = cut->n_rows,
        .w = job->converts ? &values : &part->w,
        .col = job->converts ? 0 : cut->col,
        .n_cols = cut->n_cols,
        .bias =
            part->bias.data ? widened_bias(job, &part->bias, cut->col, cut->n_cols, worker) : NULL,
        .y = part->y + cut->row * part->y_stride + cut->col,
        .y_stride = part->y_stride,
        .accumulate = job->accumulate};
    job->kernels->dot(&block);
}

/* Returns the rows of a block of n_rows, in blocks of equal size.  It has as many packed rows as
 * fit a second-level cache beside a block of weights. */
static uint32_t rows_of_block(const struct product_job *job, uint32_t n_rows) {
    const size_t fit = job->kernels->block_bytes / (job->x_stride * job->kernels->packed_size);
    size_t n_blocks = fit < MIN_BLOCK_ROWS ? n_rows / MIN_BLOCK_ROWS : div_up(n_rows, fit);
    if (n_blocks == 0) n_blocks = 1;
    return (uint32_t)round_up(div_up(n_rows, n_blocks), job->kernels->row_unit);
}

/* Returns the columns of the next block of n_rows when n_left are left of all parts.  With few
 * rows, each worker's share is one long stream of weights.  Its blocks shrink towards the end, so
 * that no worker waits long for the last one (guided self-scheduling).  With many rows, blocks are
 * whole cache lines of the result, so that no two workers write to one line. */
static uint32_t block_cols(const struct product_job *job, uint32_t n_rows, uint32_t n_left) {
    const uint32_t unit = job->kernels->col_unit;
    if (n_rows > FEW_ROWS || job->converts) return job->kernels->block_cols;
    return (n_left / (2 * pool_size(job->cpu->pool)) / unit + 1) * unit;
}

/* Returns the number of parts from `first` on that have the same rows. */
static uint32_t n_of_same_rows(const struct product_job *job, uint32_t first) {
    uint32_t n = 1;
    while (first + n < job->n_parts &&
           job->parts[first + n].first_row == job->parts[first].first_row)
        n++;
    return n;
}

/* Cuts one block of rows of a part.  *n_left: columns of this part and of those behind it. */
static void cut_part(struct product_job *job, uint32_t part, uint32_t row, uint32_t n_rows,
                     uint32_t *n_left) {
    const struct product_part *p = &job->parts[part];
    uint32_t n_rest = p->w.rows;
    for (uint32_t col = 0, n; n_rest > 0; col += n, n_rest -= n, *n_left -= n) {
        n = min_u32(block_cols(job, p->n_rows, *n_left), n_rest);
        job->cuts[job->n_cuts++] = (struct cut){part, row, n_rows, col, n};
    }
}

/* Makes the list of tasks.  Parts with the same rows share a block of these before the next. */
static void make_cuts(struct product_job *job) {
    uint32_t n_all = 0;
    for (uint32_t p = 0; p < job->n_parts; p++) n_all += job->parts[p].w.rows;
    for (uint32_t first = 0, n; first < job->n_parts; first += n) {
        const uint32_t n_rows = job->parts[first].n_rows, step = rows_of_block(job, n_rows);
        uint32_t n_left = n_all;
        n = n_of_same_rows(job, first);
        for (uint32_t row = 0; row < n_rows; row += step) {
            n_left = n_all;
            for (uint32_t p = first; p < first + n; p++)
                cut_part(job, p, row, min_u32(step, n_rows - row), &n_left);
        }
        n_all = n_left;
    }
}

/* Returns the most tasks that a part is cut into. */
static size_t most_cuts(const struct product_job *job, const struct product_part *part) {
    const uint32_t n = part->n_rows > FEW_ROWS || job->converts ? job->kernels->block_cols
                                                                : job->kernels->col_unit;
    return div_up(part->n_rows, rows_of_block(job, part->n_rows)) * (part->w.rows / n + 1);
}

/* Reserves memory for the tasks, the packed rows, and what workers make on their way. */
static int reserve(struct product_job *job, struct error *err) {
    const size_t n_in = job->input->n_in;
    size_t n_cuts = 0, widest = 0;
    for (uint32_t p = 0; p < job->n_parts; p++) {
        n_cuts += most_cuts(job, &job->parts[p]);
        widest = job->parts[p].w.rows > widest ? job->parts[p].w.rows : widest;
    }
    if (job->converts && widest > job->kernels->block_cols) widest = job->kernels->block_cols;
    const size_t wide = widest * (job->converts ? 1 + n_in : 1), /* a bias, weights */
        rows = PACK_ROWS * n_in;
    int rc = cpu_buffer_reserve(&job->cpu->tasks, n_cuts * sizeof(struct cut), err);
    if (!rc) rc = scratch_reserve(job->cpu, (wide > rows ? wide : rows) * sizeof(float), err);
    if (!rc)
        rc = cpu_buffer_reserve(
            &job->cpu->inputs, job->input->n_rows * job->x_stride * job->kernels->packed_size, err);
    job->cuts = job->cpu->tasks.data;
    return rc;
}

/* Returns the kernels for a format.  NULL: there are none. */
static const struct product_kernels *kernels_for(const struct cpu_backend *cpu,
                                                 const struct weight_format *format) {
    const struct product_kernels *rounding = cpu->bf16_products, *rows = cpu->kernels->products;
    struct int8_layout layout;
    if (cpu_repacks(cpu, format, &layout)) return &cpu->int8_products[layout.kind];
    if (rounding && weight_same_format(&rounding->format, format)) return rounding;
    for (uint32_t i = 0; i < cpu->kernels->n_products; i++)
        if (product_kernels_take(&rows[i], format)) return &rows[i];
    return NULL;
}

static void tell(const struct product_job *job) {
    const struct backend *be = &job->cpu->base;
    for (uint32_t i = 0; i < job->n_parts && be->on_product; i++)
        be->on_product(be->on_product_ctx, job->converts ? "converted" : job->kernels->name,
                       job->parts[i].n_rows, job->input->n_in, job->parts[i].w.rows);
}

/* Says whether blocks of the weights become f32 before they are multiplied.  They must if no kernel
 * reads them.  With many rows it costs less to widen a weight once for all of them. */
static bool must_convert(const struct product_job *job) {
    uint32_t n_rows = 0;
    for (uint32_t i = 0; i < job->n_parts; i++) n_rows = max_u32(n_rows, job->parts[i].n_rows);
    return !job->kernels || (job->kernels->format.element == ELEMENT_E4M3 && n_rows > WIDEN_ROWS);
}

static int run_job(struct product_job *job, struct error *err) {
    job->converts = must_convert(job);
    job->widen = job->kernels ? job->cpu->kernels->widen_e4m3 : weight_to_float;
    if (job->converts) job->kernels = job->cpu->kernels->products; /* those for f32 */
    tell(job);
    /* One more cache line, so that rows do not all begin in the same cache set. */
    job->x_stride = round_up(job->input->n_in, PACK_UNIT) +
                    div_up(job->input->n_in, PACK_UNIT) * job->kernels->block_extra +
                    64 / job->kernels->packed_size;
    const int rc = reserve(job, err);
    if (rc) return rc;
    make_cuts(job);
    pool_run(job->cpu->pool, pack_task, job, (uint32_t)div_up(job->input->n_rows, PACK_ROWS));
    pool_run(job->cpu->pool, product_task, job, job->n_cuts);
    return 0;
}

int products_run(struct cpu_backend *cpu, const struct product_input *input,
                 const struct product_part *parts, uint32_t n_parts, bool accumulate,
                 struct error *err) {
    int rc = 0;
    for (uint32_t first = 0, n; rc == 0 && first < n_parts; first += n) {
        struct product_job job = {.cpu = cpu,
                                  .input = input,
                                  .parts = parts + first,
                                  .accumulate = accumulate,
                                  .kernels = kernels_for(cpu, &parts[first].w.format)};
        n = 1;
        while (first + n < n_parts && kernels_for(cpu, &parts[first + n].w.format) == job.kernels)
            n++;
        job.n_parts = n;
        rc = run_job(&job, err);
    }
    return rc;
}
