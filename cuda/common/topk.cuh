/* topk.cuh - the k largest of n numbers, ties to the lower index: finds the k-th largest key by
 * radix digits from the top; then every thread knows whether its key is among them.
 *
 *   keys     uint32, larger is better
 *   digits   11, 11, 10 bits: a histogram of those keys that share the digits found so far, then
 *            the digit in which the k-th largest lies
 *   result   take every key > key, and of those == key the first n_equal
 *
 * A team is a block, or a cluster of blocks that share the numbers and read each other's
 * histograms.  Counts are integers: the order of threads does not matter.
 *
 * Thread: device code.  Memory: shared, struct select_plan. */
#ifndef CUDA_COMMON_TOPK_CUH
#define CUDA_COMMON_TOPK_CUH

#include <cooperative_groups.h>

#include "cuda/common/device.cuh"
#include "cuda/kv/select.h"

template <int THREADS> struct select_plan {
    uint32_t histograms[SELECT_DIGITS][SELECT_BINS]; /* one a digit: blocks read them late */
    uint32_t warp_sums[2][THREADS / 32];
    uint32_t found[2]; /* the digit, and how many keys are above it */
    uint32_t taken[2]; /* this block's: keys above, keys equal */
};

struct select_result {
    uint32_t key, n_equal;
};

struct team {
    uint32_t rank, size;
};

static __device__ __forceinline__ struct team team_of_block() {
#if __CUDA_ARCH__ >= 900
    const auto cluster = cooperative_groups::this_cluster();
    return {cluster.block_rank(), cluster.num_blocks()};
#else
    return {0, 1};
#endif
}

static __device__ __forceinline__ void team_sync(const struct team &t) {
#if __CUDA_ARCH__ >= 900
    if (t.size > 1) {
        cooperative_groups::this_cluster().sync();
        return;
    }
#endif
    (void)t;
    __syncthreads();
}

/* Returns where another block of the team has what this block has at `mine`. */
static __device__ __forceinline__ const uint32_t *team_view(const struct team &t, uint32_t *mine,
                                                            uint32_t rank) {
#if __CUDA_ARCH__ >= 900
    if (t.size > 1) return cooperative_groups::this_cluster().map_shared_rank(mine, rank);
#endif
    (void)t, (void)rank;
    return mine;
}

/* Returns a float's key, which has the order of floats; NaN has the lowest. */
static __device__ __forceinline__ uint32_t select_key(float x) {
    if (isnan(x)) return 0;
    const uint32_t bits = __float_as_uint(x + 0.0f); /* -0 becomes 0 */
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static __device__ __forceinline__ uint32_t warp_inclusive_sum(uint32_t x) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const uint32_t y = __shfl_up_sync(0xffffffffu, x, step);
        if (threadIdx.x % 32 >= step) x += y;
    }
    return x;
}

/* Returns the sum over the threads before this one; *total becomes the sum over all.  `sums`
 * [THREADS / 32] must not be in use by the previous call. */
template <int THREADS>
static __device__ __forceinline__ uint32_t block_exclusive_sum(uint32_t x, uint32_t *sums,
                                                               uint32_t *total) {
    const uint32_t inclusive = warp_inclusive_sum(x);
    uint32_t before = 0, all = 0;
    if (threadIdx.x % 32 == 31) sums[threadIdx.x / 32] = inclusive;
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < THREADS / 32; i++) {
        if (i < threadIdx.x / 32) before += sums[i];
        all += sums[i];
    }
    *total = all;
    return before + inclusive - x;
}

/* Finds the bin in which the need-th key from the top lies: plan->found. */
template <int THREADS>
static __device__ void find_digit(struct select_plan<THREADS> *plan, const struct team &team,
                                  int digit, uint32_t need) {
    constexpr uint32_t MINE = SELECT_BINS / THREADS;
    const uint32_t top = SELECT_BINS - 1 - threadIdx.x * MINE;
    uint32_t counts[MINE] = {}, sum = 0, total;
    for (uint32_t rank = 0; rank < team.size; rank++) {
        const uint32_t *histogram = team_view(team, plan->histograms[digit], rank);
#pragma unroll
        for (uint32_t i = 0; i < MINE; i++) counts[i] += histogram[top - i];
    }
#pragma unroll
    for (uint32_t i = 0; i < MINE; i++) sum += counts[i];
    uint32_t above = block_exclusive_sum<THREADS>(sum, plan->warp_sums[digit % 2], &total);
#pragma unroll
    for (uint32_t i = 0; i < MINE; i++) {
        if (above < need && need <= above + counts[i]) {
            plan->found[0] = top - i;
            plan->found[1] = above;
        }
        above += counts[i];
    }
    __syncthreads();
}

/* Finds the k-th largest key.  for_each(visit) calls visit(key) for all keys of the thread;
 * together the team's threads visit each key once.  1 <= k <= number of keys, the same in all
 * threads.  Every thread calls this. */
template <int THREADS, typename ForEach>
static __device__ struct select_result select_largest(struct select_plan<THREADS> *plan,
                                                      const struct team &team, uint32_t k,
                                                      const ForEach &for_each) {
    constexpr uint32_t BITS[SELECT_DIGITS] = {11, 11, 10};
    uint32_t prefix = 0, shift = 32;
    for (uint32_t i = threadIdx.x; i < SELECT_DIGITS * SELECT_BINS; i += THREADS)
        (&plan->histograms[0][0])[i] = 0;
    __syncthreads();
#pragma unroll
    for (int digit = 0; digit < SELECT_DIGITS; digit++) {
        const uint32_t above = shift; /* bits from here on are known */
        shift -= BITS[digit];
        uint32_t *const histogram = plan->histograms[digit];
        for_each([=](uint32_t key) {
            if (digit > 0 && key >> above != prefix) return;
            atomicAdd(&histogram[(key >> shift) & ((1u << BITS[digit]) - 1)], 1u);
        });
        team_sync(team);
        find_digit<THREADS>(plan, team, digit, k);
        prefix = prefix << BITS[digit] | plan->found[0];
        k -= plan->found[1];
        __syncthreads(); /* all threads have read what was found */
    }
    return {prefix, k};
}

#endif
