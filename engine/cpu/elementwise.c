/* elementwise.c - the operations that touch each row on its own: embedding, norms, RoPE +
 * append, gate, activation, gather, soft cap. */
#include "engine/cpu/backend.h"

#include <math.h>
#include <string.h>

#include "engine/base/sizes.h"
#include "engine/cpu/buffer.h"
#include "engine/cpu/group.h"
#include "engine/cpu/tile.h"
#include "engine/cpu/vec.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "engine/device/step.h"

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
    pool_run(job->cpu->pool, rows_task, job, div_up(job->n_rows, TASK_ROWS));
    return 0;
}

static uint32_t token_of(const struct cpu_backend *cpu, uint32_t row) {
    uint32_t token = cpu->step->tokens[row];
    return token & STEP_SAMPLED ? cpu->sampled[token & ~STEP_SAMPLED] : token;
}

static void embed_row(const struct row_job *job, uint32_t row, uint32_t worker) {
    (void)worker;
    const struct embed_args *args = job->args;
    size_t dim = args->table->cols, token = token_of(job->cpu, row);
    float *to = (float *)args->out + row * dim;
    weight_row(job->cpu, args->table, (uint32_t)token, to);
    for (size_t i = 0; i < dim && args->scale != 1; i++) to[i] *= args->scale;
}

int cpu_embed(struct backend *be, const struct embed_args *args, struct error *err) {
    (void)err;
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    return run_rows(&(struct row_job){cpu, args, cpu->step->n_rows, embed_row});
}

static void add_positions_row(const struct row_job *job, uint32_t row, uint32_t worker) {
    const struct add_positions_args *args = job->args;
    const size_t dim = args->table->cols;
    float *to = (float *)args->x + row * dim, *learned = scratch_of(job->cpu, worker);
    weight_row(job->cpu, args->table, args->first + job->cpu->step->positions[row], learned);
    for (size_t i = 0; i < dim; i++) to[i] += learned[i];
}

int cpu_add_positions(struct backend *be, const struct add_positions_args *args,
                      struct error *err) {
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    int rc = scratch_reserve(cpu, args->table->cols * sizeof(float), err);
    if (rc < 0) return rc;
    return run_rows(&(struct row_job){cpu, args, cpu->step->n_rows, add_positions_row});
}

static void rmsnorm_row(const struct row_job *job, uint32_t row, uint32_t worker) {
    const struct rmsnorm_args *args = job->args;
    const float *x = (const float *)args->x + row * args->x_stride,
                *weight = scratch_of(job->cpu, 0);
    float *out = (float *)args->out + row * args->out_stride;
    (void)worker;
    for (uint32_t h = 0; h < args->n_heads; h++, x += args->dim, out += args->dim) {
        job->cpu->kernels->rmsnorm(out, x, weight, args->dim, args->eps, args->accumulate);
        for (uint32_t i = 0; args->sum_scale != 0 && i < args->dim; i++) out[i] *= args->sum_scale;
    }
}

/* Makes the weight's f32 copy in the caller's scratch, which no row task writes. */
static int prepare_norm(struct cpu_backend *cpu, const struct rmsnorm_args *args,
                        struct error *err) {
    int rc = scratch_reserve(cpu, args->dim * sizeof(float), err);
    if (rc < 0) return rc;
    float *weight = scratch_of(cpu, 0);
    if (args->weight) weight_row(cpu, args->weight, 0, weight);
    for (uint32_t i = 0; !args->weight && i < args->dim; i++) weight[i] = 1;
    return 0;
}

int cpu_rmsnorm(struct backend *be, const struct rmsnorm_args *args, struct error *err) {
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    const int rc = prepare_norm(cpu, args, err);
    return rc ? rc : run_rows(&(struct row_job){cpu, args, args->n_rows, rmsnorm_row});
}

/* Computes a row's sum of squares, one of f32 [n_rows] in `partials`: that of the rank. */
static void square_sum_row(const struct row_job *job, uint32_t row, uint32_t worker) {
    const struct rmsnorm_args *args = job->args;
    float *sums = job->cpu->partials.data;
    (void)worker;
    sums[row] =
        job->cpu->kernels->square_sum((const float *)args->x + row * args->x_stride, args->dim);
}

/* Norms a row by the sum of all ranks, which has taken the place of the rank's own. */
static void norm_part_row(const struct row_job *job, uint32_t row, uint32_t worker) {
    const struct rmsnorm_args *args = job->args;
    const float *x = (const float *)args->x + row * args->x_stride, *sums = job->cpu->partials.data,
                *weight = scratch_of(job->cpu, 0);
    const float n = (float)args->dim * (float)job->cpu->base.n_ranks,
                scale = 1.0f / sqrtf(sums[row] / n + args->eps);
    float *out = (float *)args->out + row * args->out_stride;
    (void)worker;
    for (uint32_t i = 0; i < args->dim; i++) out[i] = x[i] * scale * weight[i];
}

int cpu_rmsnorm_parts(struct backend *be, const struct rmsnorm_args *args, struct error *err) {
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    int rc = prepare_norm(cpu, args, err);
    if (!rc) rc = cpu_buffer_reserve(&cpu->partials, args->n_rows * sizeof(float), err);
    if (!rc) rc = run_rows(&(struct row_job){cpu, args, args->n_rows, square_sum_row});
    if (!rc) rc = cpu_group_sum(cpu, cpu->partials.data, args->n_rows, err);
    return rc ? rc : run_rows(&(struct row_job){cpu, args, args->n_rows, norm_part_row});
}

static void layernorm_row(const struct row_job *job, uint32_t row, uint32_t worker) {
    const struct layernorm_args *args = job->args;
    const float *weight = scratch_of(job->cpu, 0), *bias = args->bias ? weight + args->dim : NULL;
    const size_t at = (size_t)row * args->dim;
    (void)worker;
    job->cpu->kernels->layernorm((float *)args->out + at, (const float *)args->x + at, weight, bias,
                                 args->dim, args->eps);
}

int cpu_layernorm(struct backend *be, const struct layernorm_args *args, struct error *err) {
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    int rc = scratch_reserve(cpu, 2 * (size_t)args->dim * sizeof(float), err);
    if (rc < 0) return rc;
    /* As in cpu_rmsnorm(), no row task writes the f32 copies. */
    float *wide = scratch_of(cpu, 0);
    weight_row(cpu, args->weight, 0, wide);
    if (args->bias) weight_row(cpu, args->bias, 0, wide + args->dim);
    return run_rows(&(struct row_job){cpu, args, args->n_rows, layernorm_row});
}

static void activate_row(const struct row_job *job, uint32_t row, uint32_t worker) {
    (void)worker;
    const struct activate_args *args = job->args;
    job->cpu->kernels->activate((float *)args->x + (size_t)row * args->dim, args->dim, args->kind);
}

int cpu_activate(struct backend *be, const struct activate_args *args, struct error *err) {
    (void)err;
    return run_rows(&(struct row_job){(struct cpu_backend *)be, args, args->n_rows, activate_row});
}

static void gate_mul_row(const struct row_job *job, uint32_t row, uint32_t worker) {
    (void)worker;
    const struct gated_args *args = job->args;
    const uint32_t n = args->gate->rows;
    const float *gate = (const float *)args->gate_up + (size_t)row * 2 * n;
    job->cpu->kernels->gate_mul((float *)args->out + (size_t)row * n, gate, gate + n, n,
                                args->kind);
}

int gate_mul_rows(struct cpu_backend *cpu, const struct gated_args *args) {
    return run_rows(&(struct row_job){cpu, args, args->n_rows, gate_mul_row});
}

static void gate_mul_own_row(const struct row_job *job, uint32_t row, uint32_t worker) {
    (void)worker;
    const struct gated_args *args = job->args;
    const uint32_t n = args->gate->rows;
    const float *up = (const float *)args->up_bias->data + (size_t)row * args->up_bias->cols;
    job->cpu->kernels->gate_mul((float *)args->out + (size_t)row * n,
                                (const float *)args->gate_up + (size_t)row * n, up, n, args->kind);
}

int gate_mul_own_rows(struct cpu_backend *cpu, const struct gated_args *args) {
    return run_rows(&(struct row_job){cpu, args, args->n_rows, gate_mul_own_row});
}

static void gate_row(const struct row_job *job, uint32_t row, uint32_t worker) {
    (void)worker;
    const struct gate_args *args = job->args;
    const size_t at = (size_t)row * args->dim;
    job->cpu->kernels->sigmoid_mul((float *)args->x + at, (const float *)args->gate + at,
                                   args->dim);
}

int cpu_gate(struct backend *be, const struct gate_args *args, struct error *err) {
    (void)err;
    return run_rows(&(struct row_job){(struct cpu_backend *)be, args, args->n_rows, gate_row});
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

static void soft_cap_row(const struct row_job *job, uint32_t row, uint32_t worker) {
    (void)worker;
    const struct soft_cap_args *args = job->args;
    job->cpu->kernels->soft_cap((float *)args->x + (size_t)row * args->dim, args->dim, args->cap);
}

int cpu_soft_cap(struct backend *be, const struct soft_cap_args *args, struct error *err) {
    (void)err;
    return run_rows(&(struct row_job){(struct cpu_backend *)be, args, args->n_rows, soft_cap_row});
}

static void rotate_head(float *x, const float *c, const float *s, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        float a = x[i], b = x[i + n];
        x[i] = a * c[i] - b * s[i];
        x[i + n] = b * c[i] + a * s[i];
    }
}

/* Bisects: sequences are in the order of their rows. */
const struct step_seq *seq_of_row(const struct step *step, uint32_t row) {
    uint32_t low = 0, high = step->n_seqs;
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (step->seqs[mid].first_row <= row) low = mid;
        else high = mid;
    }
    return &step->seqs[low];
}

/* Records a new token of a sequence with a budget in the state of one of its KV heads. */
static void track_token(const struct kv_pool *kv, const struct step_seq *seq,
                        const struct kv_view *view, uint32_t head, uint32_t row, uint32_t slot) {
    struct kv_page_state *first = page_state(kv, view->pages[0], head),
                         *state = page_state(kv, view->pages[slot / PAGE_TOKENS], head);
    const uint32_t at = slot % PAGE_TOKENS;
    state->position[at] = seq->n_before + row;
    state->rank[at] = view->n_slots - seq->n_rows + row;
    state->score[at] = 0;
    if (state->position[at] > 0) return;
    first->free_slot = seq->budget->capacity;
    first->n_evictions = first->lost_at = 0;
    memset(first->lost, 0, sizeof(first->lost));
}

static uint32_t slot_of_row(const struct kv_pool *kv, const struct kv_view *view, uint32_t head,
                            uint32_t row) {
    if (view->append_slot != KV_FREE_SLOT) return view->append_slot + row;
    return page_state(kv, view->pages[0], head)->free_slot;
}

static void append_row(const struct kv_pool *kv, const struct step_seq *seq, uint32_t layer,
                       uint32_t row, const float *k, const float *v) {
    const struct kv_view *view = &seq->layers[layer];
    const uint32_t dim = kv->head_dim, n_kv = kv->n_kv_heads;
    for (uint32_t h = 0; h < n_kv; h++) {
        const uint32_t slot = slot_of_row(kv, view, h, row), at = slot % PAGE_TOKENS,
                       page = view->pages[slot / PAGE_TOKENS];
        page_write_row(kv, page, h, at, k + (size_t)h * dim);
        page_write_row(kv, page, n_kv + h, at, v + (size_t)h * dim);
        if (step_budget(seq, layer)) track_token(kv, seq, view, h, row, slot);
    }
}

static void rope_append_row(const struct row_job *job, uint32_t row, uint32_t worker) {
    (void)worker;
    const struct rope_append_args *args = job->args;
    const struct step_seq *seq = seq_of_row(job->cpu->step, row);
    const uint32_t dim = args->kv->head_dim, n_kv = args->kv->n_kv_heads;
    const bool rotates_k = !step_ranked(seq, args->layer), rotates = args->n_freqs > 0;
    const float *c = rotates ? row_angles(job->cpu, args, seq, row) : NULL,
                *s = rotates ? c + args->n_freqs : NULL;
    float *q = (float *)args->qkv + row * rope_row_stride(args);
    float *k = q + (size_t)args->n_heads * dim, *v = k + (size_t)n_kv * dim;
    for (uint32_t h = 0; rotates && h < args->n_heads + (rotates_k ? n_kv : 0); h++)
        rotate_head(q + (size_t)h * dim, c, s, args->n_freqs);
    const float scale = row_query_scale(job->cpu, args, seq, row);
    for (uint32_t i = 0; scale != 1 && i < args->n_heads * dim; i++) q[i] *= scale;
    append_row(args->kv, seq, args->layer, row - seq->first_row, k, v);
}

int cpu_rope_append(struct backend *be, const struct rope_append_args *args, struct error *err) {
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    int rc = args->norms ? norm_heads(be, args, cpu->step->n_rows, err) : 0;
    if (!rc) rc = row_angles_prepare(cpu, args, err);
    if (rc < 0) return rc;
    return run_rows(&(struct row_job){cpu, args, cpu->step->n_rows, rope_append_row});
}
