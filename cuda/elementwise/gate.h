/* gate.h - the gate of attention's output (gate.cu). */
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

cudaError_t launch_gate(const struct gate_params *p, struct launch launch);

#ifdef __cplusplus
}
#endif

#endif
