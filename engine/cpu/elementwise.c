/* elementwise.c - the operations that touch each row on its own: embedding, norm, RoPE + append,
 * SiLU, gather. */
#include "engine/cpu/backend.h"

#include <math.h>
#include <string.h>

#include "engine/cpu/vec.h"

enum { TASK_ROWS = 16 }; /* rows a task: enough to pay for handing it out */

struct row_job {
    struct cpu_backend *cpu;
    const void *args;
    uint32_t n_rows;
    void (*row)(const struct row_job *job, uint32_t row, uint32_t worker);
};

static void rows_task(void *ctx, uint32_t task, uint32_t worker) {
    const struct row_job *job = ctx;
    uint32_t end = (task + 1) * TASK_ROWS < job->n_rows ? (task + 1) * TASK_ROWS : job->n_rows;
    for (uint32_t row = task * TASK_ROWS; row < end; row++) job->row(job, row, worker);
}

static int run_rows(struct row_job *job) {
    pool_run(job->cpu->pool, rows_task, job, (job->n_rows + TASK_ROWS - 1) / TASK_ROWS);
    return 0;
}

static uint32_t token_of(const struct cpu_backend *cpu, uint32_t row) {
    uint32_t token = cpu->step->tokens[row];
    return token & STEP_DRAWN ? cpu->drawn[token & ~STEP_DRAWN] : token;
}

static void embed_row(const struct row_job *job, uint32_t row, uint32_t worker) {
    (void)worker;
    const struct embed_args *args = job->args;
    size_t dim = args->table->cols, token = token_of(job->cpu, row);
    const char *from = (const char *)args->table->data +
                       token * dim * dtype_size(args->table->dtype);
    job->cpu->kernels->to_f32((float *)args->out + row * dim, from, dim, args->table->dtype);
}

int cpu_embed(struct backend *be, const struct embed_args *args, struct error *err) {
    (void)err;
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    return run_rows(&(struct row_job){cpu, args, cpu->step->n_rows, embed_row});
}

static void rmsnorm_row(const struct row_job *job, uint32_t row, uint32_t worker) {
    const struct rmsnorm_args *args = job->args;
    job->cpu->kernels->rmsnorm((float *)args->out + row * args->out_stride,
                               (const float *)args->x + row * args->x_stride,
                               (const float *)scratch_of(job->cpu, 0), args->dim, args->eps);
    (void)worker;
}

int cpu_rmsnorm(struct backend *be, const struct rmsnorm_args *args, struct error *err) {
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    int rc = scratch_reserve(cpu, args->dim * sizeof(float), err);
    if (rc < 0) return rc;
    /* The widened weight lies in the caller's scratch, which no row task writes. */
    cpu->kernels->to_f32(scratch_of(cpu, 0), args->weight->data, args->dim, args->weight->dtype);
    return run_rows(&(struct row_job){cpu, args, args->n_rows, rmsnorm_row});
}

static void silu_mul_row(const struct row_job *job, uint32_t row, uint32_t worker) {
    (void)worker;
    const struct gated_args *args = job->args;
    const uint32_t n = args->gate->rows;
    const float *gate = (const float *)args->gate_up + (size_t)row * 2 * n;
    job->cpu->kernels->silu_mul((float *)args->out + (size_t)row * n, gate, gate + n, n);
}

int silu_mul_rows(struct cpu_backend *cpu, const struct gated_args *args) {
    return run_rows(&(struct row_job){cpu, args, args->n_rows, silu_mul_row});
}

static void gather_row(const struct row_job *job, uint32_t row, uint32_t worker) {
    (void)worker;
    const struct gather_rows_args *args = job->args;
    memcpy((float *)args->out + (size_t)row * args->dim,
           (const float *)args->x + (size_t)args->rows[row] * args->dim, args->dim * sizeof(float));
}

int cpu_gather_rows(struct backend *be, const struct gather_rows_args *args, struct error *err) {
    (void)err;
    return run_rows(&(struct row_job){(struct cpu_backend *)be, args, args->n, gather_row});
}

/* cos and sin of a row's position, in double: a float angle is off by 0.06 radians at position
 * 1,000,000. */
static void angles_row(const struct row_job *job, uint32_t row, uint32_t worker) {
    (void)worker;
    const struct rope_append_args *args = job->args;
    float *c = (float *)job->cpu->angles.data + (size_t)row * 2 * args->n_freqs,
          *s = c + args->n_freqs;
    for (uint32_t i = 0; i < args->n_freqs; i++) {
        double angle = job->cpu->step->positions[row] * args->inv_freq[i];
        c[i] = (float)(cos(angle) * args->rope_scale);
        s[i] = (float)(sin(angle) * args->rope_scale);
    }
}

static void rotate_head(float *x, const float *c, const float *s, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        float a = x[i], b = x[i + n];
        x[i] = a * c[i] - b * s[i];
        x[i + n] = b * c[i] + a * s[i];
    }
}

/* A key is a column of its page, see attention.c. */
static void store_key(char *to, uint32_t slot, const float *from, uint32_t dim, enum dtype dtype) {
    for (size_t d = 0; d < dim; d++) store_f32_as(to, d * PAGE_TOKENS + slot, from[d], dtype);
}

static void store_value(char *to, uint32_t slot, const float *from, uint32_t dim,
                        enum dtype dtype) {
    to += (size_t)slot * dim * dtype_size(dtype);
    if (dtype == DTYPE_F32) memcpy(to, from, dim * sizeof(float));
    else for (uint32_t d = 0; d < dim; d++) store_f32_as(to, d, from[d], dtype);
}

/* The sequence of a row: sequences are in row order, so a bisection finds it. */
static const struct step_seq *seq_of_row(const struct step *step, uint32_t row) {
    uint32_t low = 0, high = step->n_seqs;
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (step->seqs[mid].first_row <= row) low = mid;
        else high = mid;
    }
    return &step->seqs[low];
}

static void rope_append_row(const struct row_job *job, uint32_t row, uint32_t worker) {
    (void)worker;
    const struct rope_append_args *args = job->args;
    const struct kv_pool *kv = args->kv;
    const struct step_seq *seq = seq_of_row(job->cpu->step, row);
    const struct kv_view *view = &seq->layers[args->layer];
    uint32_t dim = kv->head_dim, n_kv = kv->n_kv_heads,
             slot = view->append_slot + (row - seq->first_row);
    const float *c = (const float *)job->cpu->angles.data + (size_t)row * 2 * args->n_freqs,
                *s = c + args->n_freqs;
    float *q = (float *)args->qkv + (size_t)row * (args->n_heads + 2 * n_kv) * dim;
    float *k = q + (size_t)args->n_heads * dim, *v = k + (size_t)n_kv * dim;
    for (uint32_t h = 0; h < args->n_heads + n_kv; h++)
        rotate_head(q + (size_t)h * dim, c, s, args->n_freqs);

    size_t head_bytes = (size_t)PAGE_TOKENS * dim * dtype_size(kv->dtype);
    char *page = (char *)kv->base + view->pages[slot / PAGE_TOKENS] * kv->page_bytes;
    for (uint32_t h = 0; h < n_kv; h++) {
        store_key(page + h * head_bytes, slot % PAGE_TOKENS, k + (size_t)h * dim, dim, kv->dtype);
        store_value(page + (n_kv + h) * head_bytes, slot % PAGE_TOKENS, v + (size_t)h * dim, dim,
                    kv->dtype);
    }
}

int cpu_rope_append(struct backend *be, const struct rope_append_args *args, struct error *err) {
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    uint32_t n_rows = cpu->step->n_rows;
    if (!cpu->angles_valid) { /* every layer rotates by the same angles */
        int rc = buffer_reserve(&cpu->angles, (size_t)n_rows * 2 * args->n_freqs * sizeof(float),
                                err);
        if (rc < 0) return rc;
        run_rows(&(struct row_job){cpu, args, n_rows, angles_row});
        cpu->angles_valid = true;
    }
    return run_rows(&(struct row_job){cpu, args, n_rows, rope_append_row});
}
