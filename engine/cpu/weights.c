/* weights.c - weights on the CPU: they are used as the host has them. */
#include "engine/cpu/backend.h"

#include "engine/device/weight.h"

void weight_row(const struct cpu_backend *cpu, const struct weight *w, uint32_t row, float *out) {
    const char *data = (const char *)w->data + row * weight_row_bytes(w);
    if (weight_is_plain(&w->format)) cpu->kernels->to_f32(out, data, w->cols, w->format.element);
    else weight_to_float(w, row, out);
}
