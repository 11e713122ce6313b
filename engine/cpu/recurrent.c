/* recurrent.c - layers with a recurrent state on the CPU (recurrent.h), row after row.
 *
 *   qkv ─ convolution, silu, norms ─► y ─┐
 *   a, b ─► gates ───────────────────────┴► recurrence of each head ─ norm, times silu(z) ─► out
 *
 * Mamba-2 does the same without norms.
 *
 * A slot has a layer's S and, behind it, the last inputs of its convolution, the oldest first.
 * These are replaced last: rows of the step still read them. */
#include "engine/device/recurrent.h"

#include <math.h>
#include <string.h>

#include "engine/base/count.h"
#include "engine/base/sizes.h"
#include "engine/cpu/backend.h"
#include "engine/device/step.h"

/* The last members are parts of the workspace. */
struct recurrent_job {
    struct cpu_backend *cpu;
    const struct recurrent_args *args;
    const struct recurrent_shape *shape;
    const struct step *step;
    uint32_t n_channels, n_values; /* elements of a row: of q, k and v, and of v alone */
    float *taps, *ones;  /* [width][n_channels]: the convolution's weights; [n_channels]: 1 */
    float *y;            /* [n_rows][n_channels]: rows behind the convolution */
    float *u;            /* [n_rows][n_channels]: its inputs, where they are no product */
    const float *inputs; /* its inputs, row i at inputs + i * stride */
    size_t stride;
    float *rates, *biases, *norm; /* [n_v_heads] twice, [v_dim] */
    float *skip, *channel_biases; /* of Mamba-2: [n_v_heads], [n_channels] */
    /* Advances a head's state by a row, and leaves in out [v_dim] what it reads. */
    void (*advance)(const struct recurrent_job *job, uint32_t row, uint32_t head, uint32_t worker,
                    float *state, float *out);
};

static float *take(uintptr_t *at, size_t n) {
    float *memory = (float *)*at;
    *at += round_up(n * sizeof(float), CPU_BUFFER_ALIGN);
    return memory;
}

/* Places the parts of the workspace from `memory` on.  Returns how many bytes they take. */
static size_t place(struct recurrent_job *job, const struct recurrent_shape *s, uint32_t n_rows,
                    void *memory) {
    const size_t n_channels = recurrent_n_channels(s);
    uintptr_t at = (uintptr_t)memory;
    job->taps = take(&at, s->width * n_channels);
    job->ones = take(&at, n_channels);
    job->rates = take(&at, s->n_v_heads);
    job->biases = take(&at, s->n_v_heads);
    job->norm = take(&at, s->v_dim);
    job->y = take(&at, n_rows * n_channels);
    job->u = take(&at, s->kind == RECURRENT_CONVOLUTION ? n_rows * n_channels : 0);
    job->skip = take(&at, s->n_v_heads);
    job->channel_biases = take(&at, n_channels);
    return at - (uintptr_t)memory;
}

/* Reads the convolution's weights as f32, and turns them, so that channels follow one another. */
static void read_taps(const struct recurrent_job *job) {
    const struct recurrent_args *args = job->args;
    const uint32_t width = job->shape->width;
    for (uint32_t c = 0; c < job->n_channels; c++) {
        float row[RECURRENT_MAX_WIDTH];
        const struct weight one = weight_matrix(args->conv, c);
        weight_row(job->cpu, &one, 0, row);
        for (uint32_t j = 0; j < width; j++) job->taps[(size_t)j * job->n_channels + c] = row[j];
        job->ones[c] = 1;
    }
}

static float *state_of(const struct recurrent_job *job, uint32_t slot) {
    return (float *)state_at(job->args->states, slot, job->args->layer);
}

/* Returns the inputs of the convolution that a slot has: [width - 1][n_channels]. */
static float *inputs_of(const struct recurrent_job *job, uint32_t slot) {
    const size_t bytes = round_up(recurrent_n_elements(job->shape) * sizeof(float), STATE_ALIGN);
    return state_of(job, slot) + bytes / sizeof(float);
}

/* Returns the input of the convolution that is row `at` of the sequence in the step.  A negative
 * one lies before it, in its state; NULL: it is zeros. */
static const float *input_at(const struct recurrent_job *job, const struct step_seq *seq,
                             int64_t at) {
    if (at >= 0) return job->inputs + (seq->first_row + (size_t)at) * job->stride;
    if (seq->state.from == STATE_ZERO) return NULL;
    const size_t row = (size_t)(at + job->shape->width - 1);
    return inputs_of(job, seq->state.from) + row * job->n_channels;
}

/* Adds the convolution of a row to y. */
static void convolve(const struct recurrent_job *job, const struct step_seq *seq, uint32_t row,
                     float *y) {
    const uint32_t width = job->shape->width, n = job->n_channels;
    for (uint32_t j = 0; j < width; j++) {
        const float *x = input_at(job, seq, (int64_t)(row - seq->first_row) + j - (width - 1)),
                    *taps = job->taps + (size_t)j * n;
        for (uint32_t c = 0; x && c < n; c++) y[c] += taps[c] * x[c];
    }
}

static void normalise(float *x, uint32_t n, float factor) {
    float sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += x[i] * x[i];
    factor /= sqrtf(sum + 1e-6F);
    for (uint32_t i = 0; i < n; i++) x[i] *= factor;
}

/* Computes a row behind the convolution, with its q and k normalised. */
static void row_task(void *ctx, uint32_t row, uint32_t worker) {
    const struct recurrent_job *job = ctx;
    const struct recurrent_shape *s = job->shape;
    float *y = job->y + (size_t)row * job->n_channels;
    (void)worker;
    memset(y, 0, job->n_channels * sizeof(*y));
    convolve(job, seq_of_row(job->step, row), row, y);
    job->cpu->kernels->gate_mul(y, y, job->ones, job->n_channels, GATE_SILU);
    for (uint32_t h = 0; h < 2 * s->n_k_heads; h++)
        normalise(y + (size_t)h * s->k_dim, s->k_dim,
                  h < s->n_k_heads ? 1 / sqrtf((float)s->k_dim) : 1);
}

/* Returns a head's S in the slot that the sequence's state goes to, with what it is before the
 * step. */
static float *begin_head(const struct recurrent_job *job, const struct step_seq *seq,
                         uint32_t head) {
    const size_t n = (size_t)job->shape->k_dim * job->shape->v_dim;
    float *s = state_of(job, seq->state.to) + head * n;
    if (seq->state.from == STATE_ZERO) memset(s, 0, n * sizeof(*s));
    else if (seq->state.from != seq->state.to)
        memcpy(s, state_of(job, seq->state.from) + head * n, n * sizeof(*s));
    return s;
}

static float softplus(float x) {
    return x > 20 ? x : log1pf(expf(x));
}

/* Describes what a row changes in a head's state. */
static struct delta_row change_of(const struct recurrent_job *job, uint32_t row, uint32_t head) {
    const struct recurrent_args *args = job->args;
    const struct recurrent_shape *s = job->shape;
    const size_t at = row * args->gates_stride + head;
    const uint32_t k_head = recurrent_k_head(s, head);
    const float *q = job->y + (size_t)row * job->n_channels,
                *k = q + (size_t)s->n_k_heads * s->k_dim, *v = k + (size_t)s->n_k_heads * s->k_dim,
                a = ((const float *)args->a)[at], b = ((const float *)args->b)[at];
    return (struct delta_row){.q = q + (size_t)k_head * s->k_dim,
                              .k = k + (size_t)k_head * s->k_dim,
                              .v = v + (size_t)head * s->v_dim,
                              .decay = expf(job->rates[head] * softplus(a + job->biases[head])),
                              .beta = 1 / (1 + expf(-b)),
                              .k_dim = s->k_dim,
                              .v_dim = s->v_dim};
}

/* Advances a head by a row of Gated DeltaNet, and norms what it reads. */
static void delta_of_head(const struct recurrent_job *job, uint32_t row, uint32_t head,
                          uint32_t worker, float *state, float *out) {
    const struct delta_row change = change_of(job, row, head);
    const struct cpu_kernels *kernels = job->cpu->kernels;
    float *read = scratch_of(job->cpu, worker);
    kernels->delta(&change, state, read);
    kernels->rmsnorm(out, read, job->norm, job->shape->v_dim, job->args->eps, false);
}

/* Runs the recurrence of a head for the rows of a sequence, and finishes its part of `out`. */
static void head_task(void *ctx, uint32_t task, uint32_t worker) {
    const struct recurrent_job *job = ctx;
    const struct recurrent_args *args = job->args;
    const struct recurrent_shape *s = job->shape;
    const struct step_seq *seq = &job->step->seqs[task / s->n_v_heads];
    const uint32_t head = task % s->n_v_heads, end = seq->first_row + seq->n_rows;
    float *state = begin_head(job, seq, head);
    for (uint32_t row = seq->first_row; row < end; row++) {
        const size_t at = (size_t)head * s->v_dim;
        float *out = (float *)args->out + (size_t)row * job->n_values + at;
        job->advance(job, row, head, worker, state, out);
        job->cpu->kernels->gate_mul(out, (const float *)args->z + row * args->gates_stride + at,
                                    out, s->v_dim, GATE_SILU);
    }
}

/* Leaves the last inputs of the convolution to the next step.  Where a slot's own are moved, they
 * move to the front, the first one first. */
static void keep_inputs(const struct recurrent_job *job, const struct step_seq *seq) {
    const uint32_t n_kept = job->shape->width - 1;
    const size_t bytes = job->n_channels * sizeof(float);
    float *to = inputs_of(job, seq->state.to);
    for (uint32_t j = 0; j < n_kept; j++, to += job->n_channels) {
        const float *x = input_at(job, seq, (int64_t)seq->n_rows + j - n_kept);
        if (x) memmove(to, x, bytes);
        else memset(to, 0, bytes);
    }
}

static int run_delta(struct recurrent_job *job, struct error *err) {
    const struct recurrent_args *args = job->args;
    const int rc = scratch_reserve(job->cpu, job->shape->v_dim * sizeof(float), err);
    if (rc) return rc;
    weight_row(job->cpu, args->rates, 0, job->rates);
    weight_row(job->cpu, args->dt_bias, 0, job->biases);
    weight_row(job->cpu, args->norm, 0, job->norm);
    job->inputs = args->qkv;
    job->stride = args->qkv_stride;
    job->advance = delta_of_head;
    pool_run(job->cpu->pool, row_task, job, job->step->n_rows);
    pool_run(job->cpu->pool, head_task, job, job->step->n_seqs * job->shape->n_v_heads);
    return 0;
}

/* Makes a row of the inputs of a short convolution. */
static void gate_task(void *ctx, uint32_t row, uint32_t worker) {
    const struct recurrent_job *job = ctx;
    const float *b = (const float *)job->args->qkv + row * job->args->qkv_stride,
                *x = b + 2 * (size_t)job->n_channels;
    float *u = job->u + (size_t)row * job->n_channels;
    (void)worker;
    for (uint32_t i = 0; i < job->n_channels; i++) u[i] = b[i] * x[i];
}

static void convolve_task(void *ctx, uint32_t row, uint32_t worker) {
    const struct recurrent_job *job = ctx;
    const float *c = (const float *)job->args->qkv + row * job->args->qkv_stride + job->n_channels;
    float *out = (float *)job->args->out + (size_t)row * job->n_channels;
    (void)worker;
    memset(out, 0, job->n_channels * sizeof(*out));
    convolve(job, seq_of_row(job->step, row), row, out);
    for (uint32_t i = 0; i < job->n_channels; i++) out[i] *= c[i];
}

static int run_convolution(struct recurrent_job *job, struct error *err) {
    (void)err;
    job->inputs = job->u;
    job->stride = job->n_channels;
    pool_run(job->cpu->pool, gate_task, job, job->step->n_rows);
    pool_run(job->cpu->pool, convolve_task, job, job->step->n_rows);
    return 0;
}

/* ---- Mamba-2 ---- */

/* Computes a row of x, B and C behind the convolution. */
static void biased_row_task(void *ctx, uint32_t row, uint32_t worker) {
    const struct recurrent_job *job = ctx;
    float *y = job->y + (size_t)row * job->n_channels;
    (void)worker;
    memcpy(y, job->channel_biases, job->n_channels * sizeof(*y));
    convolve(job, seq_of_row(job->step, row), row, y);
    job->cpu->kernels->gate_mul(y, y, job->ones, job->n_channels, GATE_SILU);
}

/* Describes what a row changes in a head's state. */
static struct scan_row scan_of(const struct recurrent_job *job, uint32_t row, uint32_t head) {
    const struct recurrent_shape *s = job->shape;
    const uint32_t k_head = recurrent_k_head(s, head);
    const float *x = job->y + (size_t)row * job->n_channels, *b = x + job->n_values,
                *c = b + (size_t)s->n_k_heads * s->k_dim,
                a = ((const float *)job->args->a)[row * job->args->gates_stride + head],
                dt = fminf(fmaxf(softplus(a + job->biases[head]), s->dt_least), s->dt_most);
    return (struct scan_row){.c = c + (size_t)k_head * s->k_dim,
                             .b = b + (size_t)k_head * s->k_dim,
                             .x = x + (size_t)head * s->v_dim,
                             .decay = expf(job->rates[head] * dt),
                             .dt = dt,
                             .k_dim = s->k_dim,
                             .v_dim = s->v_dim};
}

/* Advances a head by a row of Mamba-2. */
static void scan_of_head(const struct recurrent_job *job, uint32_t row, uint32_t head,
                         uint32_t worker, float *state, float *out) {
    const struct scan_row scan = scan_of(job, row, head);
    (void)worker;
    job->cpu->kernels->scan(&scan, state, out);
    for (uint32_t i = 0; i < job->shape->v_dim; i++) out[i] += job->skip[head] * scan.x[i];
}

static void read_channel_biases(const struct recurrent_job *job) {
    float *out = job->channel_biases;
    memset(out, 0, job->n_channels * sizeof(*out));
    for (size_t i = 0; i < COUNT(job->args->conv_biases); i++) {
        const struct weight *biases = job->args->conv_biases[i];
        if (!biases) return;
        weight_row(job->cpu, biases, 0, out);
        out += biases->cols;
    }
}

static int run_mamba(struct recurrent_job *job, struct error *err) {
    const struct recurrent_args *args = job->args;
    (void)err;
    weight_row(job->cpu, args->rates, 0, job->rates);
    weight_row(job->cpu, args->dt_bias, 0, job->biases);
    weight_row(job->cpu, args->skip, 0, job->skip);
    read_channel_biases(job);
    job->inputs = args->qkv;
    job->stride = args->qkv_stride;
    job->advance = scan_of_head;
    pool_run(job->cpu->pool, biased_row_task, job, job->step->n_rows);
    pool_run(job->cpu->pool, head_task, job, job->step->n_seqs * job->shape->n_v_heads);
    return 0;
}

static int (*const kinds[])(struct recurrent_job *job, struct error *err) = {
    [RECURRENT_DELTA] = run_delta,
    [RECURRENT_CONVOLUTION] = run_convolution,
    [RECURRENT_MAMBA] = run_mamba};

static int cpu_recurrent(struct backend *be, const struct recurrent_args *args, struct error *err) {
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    const struct recurrent_shape *s = &args->states->shape;
    struct recurrent_job job = {.cpu = cpu,
                                .args = args,
                                .shape = s,
                                .step = cpu->step,
                                .n_channels = recurrent_n_channels(s),
                                .n_values = s->n_v_heads * s->v_dim};
    place(&job, s, args->n_rows, args->workspace);
    read_taps(&job);
    const int rc = kinds[s->kind](&job, err);
    if (rc) return rc;
    for (uint32_t i = 0; i < cpu->step->n_seqs; i++) keep_inputs(&job, &cpu->step->seqs[i]);
    return 0;
}

static size_t cpu_recurrent_workspace(const struct backend *be, const struct recurrent_shape *shape,
                                      uint32_t n_rows) {
    struct recurrent_job job;
    (void)be;
    return place(&job, shape, n_rows, NULL);
}

static bool cpu_recurrent_takes(const struct backend *be, const struct recurrent_shape *shape) {
    (void)be;
    return shape->kind == RECURRENT_CONVOLUTION || shape->v_dim % DELTA_UNIT == 0;
}

const struct recurrent_ops cpu_recurrent_ops = {.takes = cpu_recurrent_takes,
                                                .workspace = cpu_recurrent_workspace,
                                                .run = cpu_recurrent,
                                                .chunk = 1};
