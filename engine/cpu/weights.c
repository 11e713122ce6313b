/* weights.c - weights on the CPU: they are used as the host has them. */
#include "engine/cpu/backend.h"

#include "engine/device/weight.h"

bool cpu_takes(const struct backend *be, const struct weight_format *format, unsigned uses) {
    (void)be;
    return !(uses & WEIGHT_VECTOR) || weight_is_plain(format);
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
