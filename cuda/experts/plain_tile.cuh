/* plain_tile.cuh - a tile of y = x W^T for weights of bf16 on Hopper.
 *
 * It has the frame of packed_tile.cuh.  W is matrix A of wgmma, which reads both matrices from
 * shared memory.
 *
 *      stage       | x: ROWS x 64 | W: 64 rows for each warpgroup |
 *
 * Thread: device code, and launchers on the engine thread.  Memory: struct plain_plan. */
#ifndef CUDA_EXPERTS_PLAIN_TILE_CUH
#define CUDA_EXPERTS_PLAIN_TILE_CUH

#include "cuda/linear/packed_tile.cuh"

struct plain_format {
    static constexpr bool IS_WHOLE = false;
    static constexpr float SUM_SCALE = 1.0f;
};

/* Shared memory of a block, with the names of packed_plan. */
template <int ROWS_, int GROUPS_, int OTHERS> struct plain_plan {
    typedef plain_format Format;
    static constexpr int ROWS = ROWS_, GROUPS = GROUPS_, N_CONSUMERS = GROUPS * GROUP_THREADS,
                         N_THREADS = N_CONSUMERS + N_PRODUCERS;
    static constexpr int PRODUCER_REGISTERS = GROUPS == 2 ? 40 : 32,
                         CONSUMER_REGISTERS = GROUPS == 2 ? 232 : 112;
    static constexpr int COLUMNS = UNIT_COLUMNS, UNITS = 1, BOX_BYTES = ROWS * 128,
                         X_BYTES = BOX_BYTES, GROUP_BYTES = GROUP_OUTPUTS * 128,
                         W_BYTES = GROUPS * GROUP_BYTES;
    static constexpr int GROUP_RESULTS = ROWS * GROUP_OUTPUTS * 2,
                         RESULT_BYTES = GROUPS * GROUP_RESULTS;
    static constexpr int FIT = (MEMORY_BYTES - 512 - OTHERS - RESULT_BYTES) / (X_BYTES + W_BYTES);
    static constexpr int N_STAGES = FIT < 8 ? FIT : 8;
    typedef ring_place<N_STAGES> place;
    typedef float accumulator[ROWS / 2];
    struct {
        unsigned char x[X_BYTES], w[W_BYTES];
    } stages[N_STAGES];
    unsigned char results[RESULT_BYTES];
    uint64_t full[N_STAGES], empty[N_STAGES];
    static_assert(N_STAGES >= 3, "a stage is copied while another one is multiplied");
};

template <class Plan> static constexpr bool is_plain() {
    return std::is_same_v<typename Plan::Format, plain_format>;
}

/* Starts copying rows of W, from `row` of part number `part` on, to those of warpgroup `first`. */
template <int ROWS, int GROUPS, int OTHERS>
static __device__ __forceinline__ void load_rows_of_w(const struct packed_params &w,
                                                      struct plain_plan<ROWS, GROUPS, OTHERS> *plan,
                                                      uint32_t part, uint32_t row, uint32_t k,
                                                      uint32_t first, uint32_t stage) {
    typedef struct plain_plan<ROWS, GROUPS, OTHERS> Plan;
    tensor_load(plan->stages[stage].w + first * Plan::GROUP_BYTES, &w.w[part],
                (int)k * Plan::COLUMNS, (int)row, &plan->full[stage]);
}

/* Does the same for packed weights. */
template <class Format, int ROWS, int GROUPS, int OTHERS>
static __device__ __forceinline__ void load_rows_of_w(
    const struct packed_params &w, struct packed_plan<Format, ROWS, GROUPS, OTHERS> *plan,
    uint32_t part, uint32_t row, uint32_t k, uint32_t first, uint32_t stage) {
    load_strips(w, plan, part, row / STRIP, k, first * GROUP_STRIPS, stage);
}

/* Returns the bytes of W, and its scales, that come to a stage. */
template <class Plan>
static __device__ __forceinline__ uint32_t weight_bytes(const struct packed_params &w) {
    if constexpr (is_plain<Plan>()) return Plan::W_BYTES;
    else return Plan::W_BYTES + Plan::N_SCALES * Plan::N_STRIPS * w.scale_strip_bytes;
}

/* Multiplies as multiply() of packed_tile.cuh does. */
template <class Plan, class Product>
static __device__ __forceinline__ void multiply_plain(uint32_t n_stages, Plan *plan,
                                                      typename Plan::place *at,
                                                      typename Plan::accumulator &sums,
                                                      const Product &product) {
    constexpr int N_SLABS = UNIT_COLUMNS / 16;
    const uint32_t own = warpgroup() * Plan::GROUP_BYTES;
    uint32_t last = 0;
#pragma unroll 1
    for (uint32_t k = 0; k < n_stages; k++, at->advance()) {
        uint64_t x[N_SLABS], w[N_SLABS];
        barrier_wait(&plan->full[at->stage], at->parity);
#pragma unroll
        for (int slab = 0; slab < N_SLABS; slab++) {
            x[slab] = wgmma_advance(wgmma_matrix(plan->stages[at->stage].x, 0), slab * 32);
            w[slab] = wgmma_advance(wgmma_matrix(plan->stages[at->stage].w + own, 0), slab * 32);
        }
        product(sums, w, x, k > 0);
        wgmma_wait<1>();
        if (k > 0) release_stage(plan, last);
        last = at->stage;
    }
    wgmma_wait<0>();
    wgmma_pin(sums);
    release_stage(plan, last);
}

/* Describes the weights of p, stacks of n_matrices. */
template <class Plan>
static cudaError_t describe_plain_weights(struct packed_params *w, const struct product *p,
                                          uint32_t n_matrices) {
    cudaError_t rc = cudaSuccess;
    const uint32_t box_rows = Plan::GROUPS * GROUP_OUTPUTS / (p->gated ? 2 : 1);
    for (uint32_t i = 0; i < p->n_parts && !rc; i++)
        rc = tensor_map_matrix(&w->w[i], p->parts[i].w, (uint64_t)p->parts[i].n_out * n_matrices,
                               p->n_in, (uint64_t)p->n_in * 2, box_rows);
    return rc;
}

#endif
