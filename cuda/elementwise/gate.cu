/* gate.cu - x *= sigmoid(gate), and out = kind(gate) * x, element by element.
 *
 *   x, gate   bf16 [n]; or rows, those of x with a stride of their own
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

static __device__ __forceinline__ uint32_t gate_mul_pair(uint32_t gate, uint32_t x,
                                                         enum gate_kind kind) {
    const float2 g = unpack_bf16(gate), f = unpack_bf16(x);
    return pack_bf16(gate_mul(g.x, f.x, kind), gate_mul(g.y, f.y, kind));
}

static __global__ void gate_rows_vector_kernel(struct gate_rows_params p) {
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const uint32_t width = p.dim / VECTOR;
    let_next_start();
    wait_for_previous();
    if (i >= (size_t)p.n_rows * width) return;
    const size_t at = i / width * (p.x_stride / VECTOR) + i % width;
    const uint4 x = static_cast<const uint4 *>(p.x)[at],
                gate = static_cast<const uint4 *>(p.gate)[i];
    static_cast<uint4 *>(p.out)[i] =
        make_uint4(gate_mul_pair(gate.x, x.x, p.kind), gate_mul_pair(gate.y, x.y, p.kind),
                   gate_mul_pair(gate.z, x.z, p.kind), gate_mul_pair(gate.w, x.w, p.kind));
}

static __global__ void gate_rows_kernel(struct gate_rows_params p) {
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    let_next_start();
    wait_for_previous();
    if (i >= (size_t)p.n_rows * p.dim) return;
    const size_t at = i / p.dim * p.x_stride + i % p.dim;
    const float x = to_float(static_cast<const bf16 *>(p.x)[at]),
                gate = to_float(static_cast<const bf16 *>(p.gate)[i]);
    store_as(static_cast<bf16 *>(p.out) + i, gate_mul(gate, x, p.kind));
}

cudaError_t launch_gate_rows(const struct gate_rows_params *p, struct launch launch) {
    const bool vectors = (p->dim | p->x_stride) % VECTOR == 0 &&
                         ((uintptr_t)p->x | (uintptr_t)p->gate | (uintptr_t)p->out) % 16 == 0;
    const size_t n = (size_t)p->n_rows * p->dim / (vectors ? VECTOR : 1);
    if (n == 0) return cudaSuccess;
    return launch_kernel(launch, vectors ? gate_rows_vector_kernel : gate_rows_kernel,
                         (uint32_t)((n + THREADS - 1) / THREADS), THREADS, 0, *p);
}
