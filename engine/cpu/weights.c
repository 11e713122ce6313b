/* weights.c - weights on the CPU.  Plain ones are used as the host has them; packed ones and those
 * with scales are repacked, if products of whole numbers are wanted.  The matrices of a stack are
 * repacked each by itself, and follow one another. */
#include "engine/cpu/backend.h"

#include <math.h>
#include <stdatomic.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/cpu/int8_weight.h"
#include "engine/device/weight.h"

bool cpu_repacks(const struct cpu_backend *cpu, const struct weight_format *format,
                 struct int8_layout *out) {
    return cpu->int8_products && !weight_is_plain(format) && int8_layout_of(format, out);
}

/* Takes every format for tables, of which a step reads a few rows.  Products are computed from
 * every format, too, but those that no kernel reads are converted again in each step. */
bool cpu_takes(const struct backend *be, const struct weight_format *format, unsigned uses) {
    const struct cpu_backend *cpu = (const struct cpu_backend *)be;
    const struct cpu_kernels *kernels = cpu->kernels;
    struct int8_layout layout;
    uint32_t i = 0;
    /* Their own products are slower than those of bf16. */
    if (format->element == ELEMENT_E4M3 && cpu->bf16_products && uses != WEIGHT_TABLE) return false;
    if (uses == WEIGHT_TABLE || weight_is_plain(format)) return true;
    if (uses & WEIGHT_VECTOR) return false;
    if (cpu_repacks(cpu, format, &layout)) return true;
    while (i < kernels->n_products && !product_kernels_take(&kernels->products[i], format)) i++;
    return i < kernels->n_products;
}

/* Returns the bytes of a matrix of a weight that is repacked. */
static uint64_t matrix_bytes(const struct weight *w) {
    struct weight one = *w;
    one.n_stacked = 1;
    const struct int8_weight to = int8_weight_of(&one);
    return int8_weight_bytes(&to);
}

uint64_t cpu_repacked_bytes(const struct backend *be, const struct weight *host) {
    struct int8_layout layout;
    if (!cpu_repacks((const struct cpu_backend *)be, &host->format, &layout)) return 0;
    return host->n_stacked * matrix_bytes(host);
}

struct weight cpu_matrix(const struct cpu_backend *cpu, const struct weight *stack, uint32_t i) {
    struct weight matrix = weight_matrix(stack, i);
    struct int8_layout layout;
    if (cpu_repacks(cpu, &stack->format, &layout)) {
        matrix.data = (const char *)stack->data + i * matrix_bytes(stack);
        matrix.scales = matrix.mins = NULL;
    }
    return matrix;
}

struct repack_job {
    const struct weight *from; /* the stack */
    struct int8_weight to;     /* of each matrix */
    uint32_t n_groups;         /* of each */
    uint8_t *out;
    atomic_bool is_broken;
};

static void repack_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    struct repack_job *job = ctx;
    const struct weight matrix = weight_matrix(job->from, task / job->n_groups);
    if (!int8_repack_group(&matrix, &job->to, task % job->n_groups,
                           job->out + task * job->to.group_bytes))
        atomic_store(&job->is_broken, true);
}

struct check_job {
    const struct weight *w; /* a stack of E4M3 */
    atomic_bool is_broken;
};

enum { CHECKED_ROWS = 64 };

/* Looks for NaN among the codes of some rows. */
static void check_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    struct check_job *job = ctx;
    const struct weight *w = job->w;
    const size_t n_all = (size_t)w->n_stacked * w->rows, first = (size_t)task * CHECKED_ROWS,
                 n_rows = n_all - first < CHECKED_ROWS ? n_all - first : CHECKED_ROWS;
    const uint8_t *codes = (const uint8_t *)w->data + first * w->cols;
    uint8_t is_broken = 0;
    for (size_t i = 0; i < n_rows * w->cols; i++) is_broken |= (codes[i] & 0x7f) == 0x7f;
    if (is_broken) atomic_store(&job->is_broken, true);
}

/* Checks that no value is NaN or infinite.  Products do not look at that. */
static int check_e4m3(struct cpu_backend *cpu, const struct weight *w, struct error *err) {
    struct check_job job = {.w = w};
    const size_t n = (size_t)w->n_stacked * w->rows, n_scales = (size_t)weight_n_scales(w);
    pool_run(cpu->pool, check_task, &job, (uint32_t)div_up(n, CHECKED_ROWS));
    bool is_broken = atomic_load(&job.is_broken);
    for (size_t i = 0; i < n_scales; i++) is_broken |= !isfinite(weight_scale_at(w, i));
    return is_broken ? weight_refuse_values(err) : 0;
}

int cpu_weight_load(struct backend *be, const struct weight *host, struct weight *out,
                    struct error *err) {
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    struct int8_layout layout;
    void *memory;
    if (!cpu_repacks(cpu, &host->format, &layout)) {
        *out = *host;
        return host->format.element == ELEMENT_E4M3 ? check_e4m3(cpu, host, err) : 0;
    }
    const int rc = weight_memory_take(&cpu->weights, cpu_repacked_bytes(be, host), &memory, err);
    if (rc) return rc;
    const struct weight first = weight_matrix(host, 0);
    struct repack_job job = {.from = host,
                             .to = int8_weight_of(&first),
                             .n_groups = (uint32_t)div_up(host->rows, INT8_GROUP),
                             .out = memory};
    pool_run(cpu->pool, repack_task, &job, host->n_stacked * job.n_groups);
    if (atomic_load(&job.is_broken)) {
        weight_memory_give(&cpu->weights, memory);
        return weight_refuse_values(err);
    }
    *out = *host;
    out->data = memory;
    out->scales = out->mins = NULL;
    return 0;
}

void cpu_weight_release(struct backend *be, const struct weight *weight) {
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    struct int8_layout layout;
    if (cpu_repacks(cpu, &weight->format, &layout)) weight_memory_give(&cpu->weights, weight->data);
}

void weight_row(const struct cpu_backend *cpu, const struct weight *w, uint32_t row, float *out) {
    struct int8_layout layout;
    if (weight_is_plain(&w->format))
        cpu->kernels->to_f32(out, weight_row_at(w, row), w->cols, w->format.element);
    else if (cpu_repacks(cpu, &w->format, &layout)) int8_weight_row(w, row, out);
    else weight_to_float(w, row, out);
}
