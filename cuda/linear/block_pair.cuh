/* block_pair.cuh - what linear_wide.cu, linear_gated.cu and linear_fp8.cu share: clusters of two
 * blocks, each of which copies a part of a stage to both.
 *
 *   full[stage]    a block's own: the bytes that both blocks copy to it have arrived
 *   empty[stage]   the warpgroups of both blocks have read their stage, because both are copied to
 *
 * Thread: device code, and launchers on the engine thread.  Memory: the kernel's plan, with its
 * stages and barriers. */
#ifndef CUDA_LINEAR_BLOCK_PAIR_CUH
#define CUDA_LINEAR_BLOCK_PAIR_CUH

#include "cuda/common/sm90.cuh"

enum {
    CLUSTER = 2,
    BOTH = (1 << CLUSTER) - 1, /* blocks, as a copy to them names them */
    GROUP_THREADS = 128,       /* of a warpgroup */
    MEMORY_BYTES = 227 << 10   /* of shared memory, that a block can have */
};

/* Returns the block's number in its cluster. */
static __device__ __forceinline__ uint32_t cluster_rank() {
    return blockIdx.x % CLUSTER;
}

/* Returns the warpgroup, of which the compiler then knows that it is the same for a warp. */
static __device__ __forceinline__ uint32_t warpgroup() {
    return __shfl_sync(0xffffffffu, threadIdx.x / GROUP_THREADS, 0);
}

/* Transposes 4 x 4 words, of which four neighbouring lanes have a row each. */
static __device__ __forceinline__ void transpose_words(uint32_t (&x)[4]) {
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
        const bool upper = threadIdx.x & bit;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & bit) continue;
            const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? x[i] : x[i | bit], bit);
            x[i] = upper ? got : x[i];
            x[i | bit] = upper ? x[i | bit] : got;
        }
    }
}

/* Makes the barriers of all stages, which n_groups warpgroups of the cluster release, for two
 * producers.  On return the other block of the cluster has made its own. */
template <class Plan>
static __device__ __forceinline__ void make_barriers(Plan *plan, uint32_t n_groups) {
    constexpr int N_STAGES = sizeof(plan->full) / sizeof(plan->full[0]);
    if (threadIdx.x == 0) {
        for (int i = 0; i < N_STAGES; i++) {
            barrier_init(&plan->full[i], 2);
            barrier_init(&plan->empty[i], n_groups);
        }
        barriers_publish();
    }
    __syncwarp();
    cluster_arrive();
    cluster_wait();
}

/* Tells both blocks' producers that the warpgroup has read a stage.  All its threads call it when
 * each of them has. */
template <class Plan>
static __device__ __forceinline__ void release_stage(Plan *plan, uint32_t stage) {
    const uint32_t thread = threadIdx.x % GROUP_THREADS;
    if (thread == 0) barrier_arrive(&plan->empty[stage]);
    if (thread == 32) barrier_arrive_remote(&plan->empty[stage], cluster_rank() ^ 1);
}

/* Writes x to the shared memory of the other block of the cluster, to the same place as `at` is in
 * this block's.  Only a barrier of the cluster says that x is there. */
static __device__ __forceinline__ void store_to_other(shared_at at, float4 x) {
    asm volatile("{\n.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "st.shared::cluster.v4.f32 [there], {%2, %3, %4, %5};\n}" ::"r"(at.address),
                 "r"(cluster_rank() ^ 1), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
                 : "memory");
}

/* Waits until consumers have released all stages.  `at` is where the calling producer would copy
 * next.  The producer of what both blocks read calls it at its end.  A block may not end before:
 * until then the other one copies to it, and arrives at its barriers. */
template <class Plan, int N_STAGES>
static __device__ __forceinline__ void await_empty(Plan *plan, ring_place<N_STAGES> at) {
#pragma unroll 1
    for (int i = 0; i < N_STAGES; i++, at.advance())
        barrier_wait(&plan->empty[at.stage], at.parity);
}

/* Allows a kernel the shared memory of a Plan.  Lowers *n to the number of its clusters that run at
 * the same time, if that is less.  False: the device cannot run it. */
template <class Plan, typename Params>
static bool open_pairs(void (*kernel)(Params), uint32_t n_threads, int *n) {
    int fit = 0;
    if (!runs_sm90_code(kernel) ||
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)sizeof(Plan)) != cudaSuccess ||
        count_clusters(kernel, CLUSTER, n_threads, sizeof(Plan), &fit) != cudaSuccess)
        return false;
    if (fit < *n) *n = fit;
    return true;
}

#endif
