/* gate.h - the gate of attention's output, and of a layer's own inputs (gate.cu). */
#ifndef CUDA_ELEMENTWISE_GATE_H
#define CUDA_ELEMENTWISE_GATE_H

#include "cuda/host/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gate_params {
    void *x;          /* bf16 [n] */
    const void *gate; /* bf16 [n] */
    size_t n;
};

/* out = kind(gate) * x. */
struct gate_rows_params {
    const void *gate; /* bf16 [n_rows, dim] */
    const void *x;    /* bf16, row i at x + i * x_stride elements: [dim] */
    size_t x_stride;
    void *out; /* bf16 [n_rows, dim]; may be gate */
    uint32_t n_rows, dim;
    enum gate_kind kind;
};

cudaError_t launch_gate_rows(const struct gate_rows_params *p, struct launch launch);

cudaError_t launch_gate(const struct gate_params *p, struct launch launch);

#ifdef __cplusplus
}
#endif

#endif
