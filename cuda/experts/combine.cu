/* combine.cu - out += the sum of what a row's experts give, times their shares.
 *
 * The sum goes by rank, in f32, and the shared expert comes last.  So a row's bits depend on
 * nothing else.
 *
 * Grid:   a block for each row and N_THREADS * N columns.      Shared: none.
 * Bound:  memory, the bytes of y.
 * Oracle: sums in double (tests/cuda/test_experts.c). */
#include "cuda/common/device.cuh"
#include "cuda/experts/expert_kernels.h"

enum { N_THREADS = 128, AT_ONCE = 4 };

/* N neighbours of y. */
template <typename T, int N>
static __device__ __forceinline__ vector<T, N> load_y(const void *y, size_t row, uint32_t dim,
                                                      uint32_t column) {
    return *reinterpret_cast<const vector<T, N> *>(static_cast<const T *>(y) + row * dim + column);
}

template <typename T, int N>
static __device__ __forceinline__ void add(float (&sum)[N], const vector<T, N> &y, float share) {
#pragma unroll
    for (int i = 0; i < N; i++) sum[i] = fmaf(share, to_float(y.x[i]), sum[i]);
}

template <typename T, int N>
static __global__ void __launch_bounds__(N_THREADS)
    combine_kernel(const __grid_constant__ struct combine_params p) {
    const uint32_t row = blockIdx.y, column = (blockIdx.x * N_THREADS + threadIdx.x) * N;
    const float *shares = p.shares + (size_t)row * (p.n_used + 1);
    const uint32_t *place = p.place + (size_t)row * p.n_used;
    float sum[N] = {};
    let_next_start();
    wait_for_previous();
    if (column >= p.dim) return;
    for (uint32_t rank = 0; rank < p.n_used; rank += AT_ONCE) {
        vector<T, N> y[AT_ONCE];
        const uint32_t n = min(p.n_used - rank, (uint32_t)AT_ONCE);
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++)
            if (i < n) y[i] = load_y<T, N>(p.y, place[rank + i], p.dim, column);
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++)
            if (i < n) add<T, N>(sum, y[i], shares[rank + i]);
    }
    if (p.shared) add<T, N>(sum, load_y<T, N>(p.shared, row, p.dim, column), shares[p.n_used]);
    __nv_bfloat16 *out = static_cast<__nv_bfloat16 *>(p.out) + (size_t)row * p.dim + column;
    vector<__nv_bfloat16, N> all = *reinterpret_cast<const vector<__nv_bfloat16, N> *>(out);
#pragma unroll
    for (int i = 0; i < N; i++)
        store_as(&all.x[i], (p.overwrites ? 0.0f : to_float(all.x[i])) + sum[i]);
    *reinterpret_cast<vector<__nv_bfloat16, N> *>(out) = all;
}

extern "C" cudaError_t launch_combine(const struct combine_params *p, struct launch launch) {
    const uint32_t n = p->dim % 4 == 0 ? 4 : 1;
    const dim3 grid((p->dim + N_THREADS * n - 1) / (N_THREADS * n), p->n_rows);
    if (p->n_rows == 0) return cudaSuccess;
    if (n == 1)
        return launch_kernel(
            launch, p->is_f32 ? combine_kernel<float, 1> : combine_kernel<__nv_bfloat16, 1>, grid,
            dim3(N_THREADS), 0, *p);
    return launch_kernel(launch,
                         p->is_f32 ? combine_kernel<float, 4> : combine_kernel<__nv_bfloat16, 4>,
                         grid, dim3(N_THREADS), 0, *p);
}
