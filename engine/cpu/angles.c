/* angles.c - cos and sin for RoPE: of the positions of a step's rows, and of every rank that a key
 * in a bounded cache can have.  Angles are doubles: a float is off by 0.06 radians at position
 * 1,000,000.
 *
 * Memory: the table of ranks is made when it is first needed.  It is made again, with a larger
 * power of two of ranks, for a higher rank, and for other frequencies. */
#include "engine/cpu/backend.h"

#include <math.h>
#include <string.h>

#include "engine/base/sizes.h"
#include "engine/device/attention.h"
#include "engine/device/evict.h"
#include "engine/device/step.h"

enum { ROWS_PER_TASK = 16, MIN_RANKS = 512 };

struct angle_job {
    const double *inv_freq;
    double scale;
    const uint32_t *positions; /* NULL: a row is its own position */
    float *out;                /* row i at out + i * 2 * stride: cos, sin */
    uint32_t n_rows, n_freqs, stride;
};

static void angles_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    const struct angle_job *job = ctx;
    const uint32_t end = (task + 1) * ROWS_PER_TASK;
    for (uint32_t row = task * ROWS_PER_TASK; row < end && row < job->n_rows; row++) {
        const uint32_t position = job->positions ? job->positions[row] : row;
        float *c = job->out + (size_t)row * 2 * job->stride, *s = c + job->stride;
        for (uint32_t i = 0; i < job->n_freqs; i++) {
            const double angle = position * job->inv_freq[i];
            c[i] = (float)(cos(angle) * job->scale);
            s[i] = (float)(sin(angle) * job->scale);
        }
    }
}

static void run_angles(struct cpu_backend *cpu, struct angle_job *job) {
    pool_run(cpu->pool, angles_task, job, div_up(job->n_rows, ROWS_PER_TASK));
}

/* Tells whether some rows have another position in layers that do not have their sequence's
 * budget. */
static bool has_two_positions(const struct step *step) {
    for (uint32_t i = 0; i < step->n_seqs; i++)
        if (step->seqs[i].budgeted &&
            step_ranked(&step->seqs[i], step_first_budgeted(&step->seqs[i])))
            return true;
    return false;
}

/* Lists the rows' positions in the text. */
static int list_text_positions(struct cpu_backend *cpu, struct error *err) {
    const struct step *step = cpu->step;
    const size_t bytes = step->n_rows * sizeof(uint32_t);
    const int rc = cpu_buffer_reserve(&cpu->text_positions, bytes, err);
    if (rc < 0) return rc;
    uint32_t *positions = cpu->text_positions.data;
    memcpy(positions, step->positions, bytes);
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        const struct step_seq *seq = &step->seqs[i];
        for (uint32_t r = 0; seq->budget && r < seq->n_rows; r++)
            positions[seq->first_row + r] = seq->n_before + r;
    }
    return 0;
}

int row_angles_prepare(struct cpu_backend *cpu, const struct rope_append_args *args,
                       struct error *err) {
    const uint32_t n_rows = cpu->step->n_rows, n_freqs = args->n_freqs;
    const size_t n_floats = (size_t)n_rows * 2 * n_freqs;
    struct cpu_buffer *angles = &cpu->angles[args->rope];
    if (n_freqs == 0 || cpu->angles_valid[args->rope])
        return 0; /* many layers rotate by the same angles */
    cpu->two_positions = has_two_positions(cpu->step);
    int rc = cpu_buffer_reserve(angles, (1 + cpu->two_positions) * n_floats * sizeof(float), err);
    if (!rc && cpu->two_positions) rc = list_text_positions(cpu, err);
    if (rc < 0) return rc;
    struct angle_job job = {args->inv_freq, args->rope_scale, cpu->step->positions,
                            angles->data,   n_rows,           n_freqs,
                            n_freqs};
    run_angles(cpu, &job);
    job.positions = cpu->text_positions.data;
    job.out += n_floats;
    if (cpu->two_positions) run_angles(cpu, &job);
    cpu->angles_valid[args->rope] = true;
    return 0;
}

/* Tells whether the row counts by its position in the text, though its step has another. */
static bool is_in_text(const struct cpu_backend *cpu, const struct rope_append_args *args,
                       const struct step_seq *seq) {
    return cpu->two_positions && !step_ranked(seq, args->layer);
}

const float *row_angles(const struct cpu_backend *cpu, const struct rope_append_args *args,
                        const struct step_seq *seq, uint32_t row) {
    const bool in_text = is_in_text(cpu, args, seq);
    return (const float *)cpu->angles[args->rope].data +
           ((size_t)row + (in_text ? cpu->step->n_rows : 0)) * 2 * args->n_freqs;
}

float row_query_scale(const struct cpu_backend *cpu, const struct rope_append_args *args,
                      const struct step_seq *seq, uint32_t row) {
    const uint32_t *positions =
        is_in_text(cpu, args, seq) ? cpu->text_positions.data : cpu->step->positions;
    if (args->query_beta == 0) return 1;
    return (float)(1 + args->query_beta * log(1 + positions[row] / args->query_period));
}

/* Returns how many ranks the layer needs: ranks are smaller than the number of slots. */
static uint32_t ranks_of_step(const struct step *step, uint32_t layer) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        const struct step_seq *seq = &step->seqs[i];
        if (step_ranked(seq, layer) && seq->layers[layer].n_slots > n)
            n = seq->layers[layer].n_slots;
    }
    return n;
}

static bool same_frequencies(const struct rank_angles *angles, const struct attn_args *args) {
    return angles->n_freqs == args->n_freqs && angles->rope_scale == args->rope_scale &&
           memcmp(angles->inv_freq.data, args->inv_freq, args->n_freqs * sizeof(double)) == 0;
}

static int make_table(struct cpu_backend *cpu, const struct attn_args *args, uint32_t n_ranks,
                      struct error *err) {
    struct rank_angles *angles = &cpu->rank_angles;
    const uint32_t stride = angle_stride(args->n_freqs);
    const size_t row_bytes = 2 * stride * sizeof(float),
                 freq_bytes = args->n_freqs * sizeof(double);
    angles->n_ranks = 0;
    int rc = cpu_buffer_reserve(&angles->inv_freq, freq_bytes, err);
    if (!rc) rc = cpu_buffer_reserve(&angles->table, n_ranks * row_bytes, err);
    if (rc < 0) return rc;
    memcpy(angles->inv_freq.data, args->inv_freq, freq_bytes);
    memset(angles->table.data, 0, n_ranks * row_bytes);
    angles->n_freqs = args->n_freqs;
    angles->rope_scale = args->rope_scale;
    angles->n_ranks = n_ranks;
    struct angle_job job = {args->inv_freq, args->rope_scale, NULL,  angles->table.data,
                            n_ranks,        args->n_freqs,    stride};
    run_angles(cpu, &job);
    return 0;
}

int rank_angles_prepare(struct cpu_backend *cpu, const struct attn_args *args, struct error *err) {
    const struct rank_angles *angles = &cpu->rank_angles;
    const uint32_t needed = ranks_of_step(cpu->step, args->layer);
    uint32_t n_ranks = MIN_RANKS;
    if (needed == 0 || args->n_freqs == 0) return 0;
    if (needed <= angles->n_ranks && same_frequencies(angles, args)) return 0;
    while (n_ranks < needed) n_ranks *= 2;
    return make_table(cpu, args, n_ranks, err);
}
