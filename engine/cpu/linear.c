/* linear.c - y = x W^T: blocks of output features are dealt to the workers, weights stay as stored.
 *
 *   weight rows ──► tasks of BLOCK_COLS      a worker widens its block once, then sweeps the rows of x
 *
 * Every output is one dot product over all of n_in in a fixed order, so a row's result never depends on
 * the other rows of the call. */
#include "engine/cpu/backend.h"

#include "engine/cpu/vec.h"
#include "engine/error.h"

/* 24 divides into the register tiles of every kernel; a block of 24 x 4096 floats fits a second-level cache. */
enum { BLOCK_COLS = 24, ROUND_ROWS = 64 };

struct linear_job {
    struct cpu_backend *cpu;
    const struct linear_args *args;
    uint32_t first_task[LINEAR_MAX_PARTS + 1];
};

static void linear_task(void *ctx, uint32_t task, uint32_t worker) {
    struct linear_job *job = ctx;
    const struct linear_args *args = job->args;
    struct cpu_backend *cpu = job->cpu;
    uint32_t p = 0;
    while (task >= job->first_task[p + 1]) p++;
    const struct linear_part *part = &args->parts[p];
    const struct weight *w = part->w;
    uint32_t col = (task - job->first_task[p]) * BLOCK_COLS;
    uint32_t n_cols = w->rows - col < BLOCK_COLS ? w->rows - col : BLOCK_COLS;
    const char *block = (const char *)w->data + (size_t)col * args->n_in * dtype_size(w->dtype);
    float *y = (float *)part->y + col;
    float bias[BLOCK_COLS];
    bool has_bias = part->bias && part->bias->data;
    if (has_bias) {
        for (uint32_t c = 0; c < n_cols; c++) bias[c] = load_as_f32(part->bias->data, col + c, part->bias->dtype);
    }
    if (cpu->bf16_products && w->dtype == DTYPE_BF16) {
        cpu->kernels->linear_block_bf16(cpu->inputs.data, args->n_rows, args->n_in, (const uint16_t *)block, n_cols,
                                        has_bias ? bias : NULL, y, part->y_stride, args->accumulate);
    } else {
        cpu->kernels->linear_block(args->x, args->n_rows, args->n_in, block, w->dtype, n_cols, has_bias ? bias : NULL,
                                   y, part->y_stride, args->accumulate, scratch_of(cpu, worker));
    }
}

static void round_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    struct linear_job *job = ctx;
    uint32_t n_in = job->args->n_in, first = task * ROUND_ROWS;
    uint32_t n = job->args->n_rows - first < ROUND_ROWS ? job->args->n_rows - first : ROUND_ROWS;
    size_t at = (size_t)first * n_in;
    job->cpu->kernels->to_bf16((uint16_t *)job->cpu->inputs.data + at, (const float *)job->args->x + at,
                               (size_t)n * n_in);
}

int cpu_linear(struct backend *be, const struct linear_args *args, struct error *err) {
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    struct linear_job job = {.cpu = cpu, .args = args};
    if (args->n_rows == 0) return 0;
    int rc = scratch_reserve(cpu, (size_t)BLOCK_COLS * args->n_in * sizeof(float), err);
    if (rc < 0) return rc;
    for (uint32_t p = 0; p < args->n_parts; p++) {
        job.first_task[p + 1] = job.first_task[p] + (args->parts[p].w->rows + BLOCK_COLS - 1) / BLOCK_COLS;
    }
    for (uint32_t p = args->n_parts; p < LINEAR_MAX_PARTS; p++) job.first_task[p + 1] = UINT32_MAX;
    if (cpu->bf16_products) {
        rc = buffer_reserve(&cpu->inputs, (size_t)args->n_rows * args->n_in * sizeof(uint16_t), err);
        if (rc < 0) return rc;
        pool_run(cpu->pool, round_task, &job, (args->n_rows + ROUND_ROWS - 1) / ROUND_ROWS);
    }
    pool_run(cpu->pool, linear_task, &job, job.first_task[args->n_parts]);
    return 0;
}
