/* fetch_count.cu - counts the bytes of offloaded experts that a step fetches (fetch.h).
 *
 *   experts  [n_pairs]   as route() made them
 *
 * Each expert that pairs use counts once, or all of them do.
 *
 * Grid:   one block.      Shared: a bit for each expert.
 * Bound:  latency.
 * Oracle: a count of the experts that differ (tests/cuda/test_experts.c). */
#include "cuda/common/device.cuh"
#include "cuda/experts/fetch_count.h"
#include "engine/device/experts.h"

enum { N_THREADS = 256, N_WORDS = EXPERTS_MAX / 32 };

static __global__ void count_fetched_kernel(const __grid_constant__ struct count_params p) {
    __shared__ uint32_t used[N_WORDS], n_used;
    let_next_start();
    for (uint32_t i = threadIdx.x; i < N_WORDS; i += N_THREADS) used[i] = 0;
    if (threadIdx.x == 0) n_used = p.is_whole ? p.n_experts : 0;
    __syncthreads();
    wait_for_previous();
    for (uint32_t i = threadIdx.x; i < p.n_pairs && !p.is_whole; i += N_THREADS)
        atomicOr(&used[p.experts[i] / 32], 1u << p.experts[i] % 32);
    __syncthreads();
    if (threadIdx.x < N_WORDS && used[threadIdx.x])
        atomicAdd(&n_used, (uint32_t)__popc(used[threadIdx.x]));
    __syncthreads();
    if (threadIdx.x > 0) return;
    volatile uint64_t *sum = p.sum;
    *sum = *sum + p.bytes * n_used;
}

extern "C" cudaError_t launch_count_fetched(const struct count_params *p, struct launch launch) {
    return launch_kernel(launch, count_fetched_kernel, dim3(1), dim3(N_THREADS), 0, *p);
}
