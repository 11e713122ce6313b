/* sort.cu - puts pairs in the order of their experts (expert_product.h).
 *
 * Each expert has a block, which counts the pairs of experts before its own, and then writes its
 * own behind so many.  The blocks know nothing of each other.
 *
 * Grid:   a block for each expert.      Shared: a word for each warp.
 * Bound:  the second-level cache, 8 bytes for each pair and expert.
 * Oracle: a stable sort (tests/cuda/test_experts.c). */
#include "cuda/common/device.cuh"
#include "cuda/experts/expert_kernels.h"

enum { N_THREADS = 256, N_WARPS = N_THREADS / 32 };

/* Returns the sum of the counts of all warps before the thread's, and sets *all to that of all. */
static __device__ __forceinline__ uint32_t add_warps(uint32_t count, uint32_t *counts,
                                                     uint32_t *all) {
    uint32_t before = 0;
    *all = 0;
    __syncthreads(); /* the counts of the last call have been read */
    if (threadIdx.x % 32 == 0) counts[threadIdx.x / 32] = count;
    __syncthreads();
    for (uint32_t w = 0; w < N_WARPS; w++) {
        before += w < threadIdx.x / 32 ? counts[w] : 0;
        *all += counts[w];
    }
    return before;
}

static __global__ void __launch_bounds__(N_THREADS)
    sort_kernel(const __grid_constant__ struct expert_order o) {
    __shared__ uint32_t counts[N_WARPS];
    const uint32_t expert = blockIdx.x, n_pairs = o.n_rows * o.n_used, lane = threadIdx.x % 32;
    uint32_t at, n_before = 0;
    let_next_start();
    wait_for_previous();
    for (uint32_t i = threadIdx.x; i < n_pairs; i += N_THREADS) n_before += o.experts[i] < expert;
    add_warps(__reduce_add_sync(0xffffffffu, n_before), counts, &at);
    if (threadIdx.x == 0) o.first[expert] = at;
    for (uint32_t begin = 0; begin < n_pairs; begin += N_THREADS) {
        const uint32_t i = begin + threadIdx.x;
        const bool is_own = i < n_pairs && o.experts[i] == expert;
        const uint32_t own = __ballot_sync(0xffffffffu, is_own);
        uint32_t n;
        const uint32_t place =
            at + add_warps(__popc(own), counts, &n) + __popc(own & ((1u << lane) - 1));
        if (is_own) {
            o.pair[place] = i;
            o.place[i] = place;
        }
        at += n;
    }
    if (threadIdx.x == 0 && expert + 1 == o.n_experts) o.first[o.n_experts] = at;
}

extern "C" cudaError_t launch_sort(const struct expert_order *order, struct launch launch) {
    if (order->n_rows == 0) return cudaSuccess;
    return launch_kernel(launch, sort_kernel, dim3(order->n_experts), dim3(N_THREADS), 0, *order);
}
