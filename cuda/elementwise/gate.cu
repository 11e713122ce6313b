/* gate.cu - x *= sigmoid(gate), element by element.
 *
 *   x, gate   bf16 [n]
 *
 * Grid:   a thread has VECTOR elements, or one where arrays are not aligned.
 * Bound:  memory, 6 bytes an element.        Oracle: tests/cuda/test_elementwise.c. */
#include "cuda/elementwise/gate.h"

#include "cuda/common/device.cuh"

typedef __nv_bfloat16 bf16;

enum { VECTOR = 8, THREADS = 256 };

static __device__ __forceinline__ uint32_t gate_pair(uint32_t x, uint32_t gate) {
    const float2 f = unpack_bf16(x), g = unpack_bf16(gate);
    return pack_bf16(f.x / gate_divisor(g.x, GATE_SILU), f.y / gate_divisor(g.y, GATE_SILU));
}

static __global__ void gate_vector_kernel(struct gate_params p) {
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    let_next_start();
    wait_for_previous();
    if (i >= p.n / VECTOR) return;
    uint4 *x = static_cast<uint4 *>(p.x) + i;
    const uint4 from = *x, gate = static_cast<const uint4 *>(p.gate)[i];
    *x = make_uint4(gate_pair(from.x, gate.x), gate_pair(from.y, gate.y), gate_pair(from.z, gate.z),
                    gate_pair(from.w, gate.w));
}

static __global__ void gate_kernel(struct gate_params p) {
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    let_next_start();
    wait_for_previous();
    if (i >= p.n) return;
    bf16 *x = static_cast<bf16 *>(p.x) + i;
    const float gate = to_float(static_cast<const bf16 *>(p.gate)[i]);
    store_as(x, to_float(*x) / gate_divisor(gate, GATE_SILU));
}

cudaError_t launch_gate(const struct gate_params *p, struct launch launch) {
    const bool vectors = p->n % VECTOR == 0 && ((uintptr_t)p->x | (uintptr_t)p->gate) % 16 == 0;
    const size_t n = p->n / (vectors ? VECTOR : 1);
    if (n == 0) return cudaSuccess;
    return launch_kernel(launch, vectors ? gate_vector_kernel : gate_kernel,
                         (uint32_t)((n + THREADS - 1) / THREADS), THREADS, 0, *p);
}
