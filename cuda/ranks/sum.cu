/* sum.cu - x = or += the sum of what all ranks have computed.
 *
 * A sum is taken in f32 in the order of the ranks, then x is added, and the result is rounded once.
 * Every rank computes all of it, so all have the same bits.
 *
 * Grid:   a thread for each 8 elements, or for each.      Shared: none.
 * Bound:  memory, the bytes of all parts.
 * Oracle: engine/cpu/group.c. */
#include "cuda/common/device.cuh"
#include "cuda/ranks/group.h"

enum { N_THREADS = 256 };

template <int N>
static __global__ void __launch_bounds__(N_THREADS)
    sum_kernel(const __grid_constant__ struct sum_params p) {
    const size_t at = ((size_t)blockIdx.x * N_THREADS + threadIdx.x) * N;
    float sums[N] = {};
    if (at >= p.n) return;
    for (uint32_t rank = 0; rank < p.n_ranks; rank++) {
        const vector<__nv_bfloat16, N> part = *reinterpret_cast<const vector<__nv_bfloat16, N> *>(
            static_cast<const __nv_bfloat16 *>(p.parts[rank]) + at);
#pragma unroll
        for (int i = 0; i < N; i++) sums[i] += to_float(part.x[i]);
    }
    vector<__nv_bfloat16, N> *out =
        reinterpret_cast<vector<__nv_bfloat16, N> *>(static_cast<__nv_bfloat16 *>(p.x) + at);
    vector<__nv_bfloat16, N> all = *out;
#pragma unroll
    for (int i = 0; i < N; i++)
        store_as(&all.x[i], sums[i] + (p.accumulate ? to_float(all.x[i]) : 0.0f));
    *out = all;
}

extern "C" cudaError_t launch_sum(const struct sum_params *p, cudaStream_t stream) {
    const size_t each = p->is_wide ? 8 : 1, n_blocks = (p->n / each + N_THREADS - 1) / N_THREADS;
    if (p->n == 0) return cudaSuccess;
    return launch_kernel(launch_on(stream, false), p->is_wide ? sum_kernel<8> : sum_kernel<1>,
                         dim3((unsigned)n_blocks), dim3(N_THREADS), 0, *p);
}
