/* weights.c - weights on the CPU: they are used as the host has them. */
#include "engine/cpu/backend.h"

#include "engine/device/weight.h"

/* Takes every format for tables, of which a step reads a few rows.  Products are computed from
 * every format, too, but those that no kernel reads are converted again in each step. */
bool cpu_takes(const struct backend *be, const struct weight_format *format, unsigned uses) {
    const struct cpu_kernels *kernels = ((const struct cpu_backend *)be)->kernels;
    uint32_t i = 0;
    if (uses == WEIGHT_TABLE || weight_is_plain(format)) return true;
    if (uses & WEIGHT_VECTOR) return false;
    while (i < kernels->n_products && !weight_same_format(&kernels->products[i].format, format))
        i++;
    return i < kernels->n_products;
}

int cpu_weight_load(struct backend *be, const struct weight *host, struct weight *out,
                    struct error *err) {
    (void)be, (void)err;
    *out = *host;
    return 0;
}

void cpu_weight_release(struct backend *be, const struct weight *weight) {
    (void)be, (void)weight;
}

void weight_row(const struct cpu_backend *cpu, const struct weight *w, uint32_t row, float *out) {
    if (weight_is_plain(&w->format))
        cpu->kernels->to_f32(out, weight_row_at(w, row), w->cols, w->format.element);
    else weight_to_float(w, row, out);
}
