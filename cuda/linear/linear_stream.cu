/* linear_stream.cu - y = x W^T for few rows on Hopper: weights that never stop coming.
 *
 *   producer    one warp asks the copy engine for the block's tiles, a ring of stages ahead
 *   consumers   N_WARPS warps multiply the stages with x as in few_rows.cuh, and store the tiles
 *
 *   tile        16 rows of W, in stages of [16 x STAGE_K]; rows lie STAGE_ROW apart, so that the
 *               16-byte reads of a quarter warp fall into different banks
 *
 * A block that takes one tile and ends has nothing on the way while it adds up and stores, and the
 * next one begins with a read's latency.  Here BLOCKS blocks of a multiprocessor take one tile after
 * the other, and the next one is on its way by then.  They fill shared memory: where blocks of the
 * next kernel fitted beside them, their reads delayed the slowest blocks of this one, and the
 * memory waited between the two.  As it is they come when a block ends, and then fill their rings
 * before they wait for this kernel, because weights never change.
 *
 * The copy engine takes a copy of a row at a time, of 2 KB: with 1 KB it was what an H200 waited
 * for.
 *
 * With Llama-3-8B's weights, of the rate of plain reads with 1, 4, 8 and 16 rows: 0.98, 0.96, 0.95 and
 * 0.91 on an H100, 0.93, 0.94, 0.92 and 0.81 on an H200; the kernel of linear_kernels.cu there 0.86,
 * 0.84, 0.82 and 0.71.
 *
 * Shared: a ring of stages, two plans.
 * Bound:  memory, 2 * n_in * n_out bytes.        Oracle: engine/cpu/linear.c. */
#include "cuda/common/sm90.cuh"
#include "cuda/linear/few_rows.cuh"

enum {
    STAGE_K = 1024,
    STAGE_ROW = STAGE_K * 2 + 64, /* bytes */
    STAGE_BYTES = TILE_OUT * STAGE_ROW,
    STAGE_SLICES = STAGE_K / SLICE / N_WARPS, /* of a warp */
    BLOCKS = 2,                               /* of a multiprocessor */
    THREADS = 32 * (1 + N_WARPS),
};

template <int N_MMA> struct stream_memory {
    static constexpr int N_STAGES = N_MMA == 1 ? 3 : 2;
    char stages[N_STAGES][STAGE_BYTES];
    struct plan<N_MMA> plans[2];
    uint64_t full[N_STAGES], empty[N_STAGES];
};

/* A position in the ring, of the producer or a consumer. */
template <int N_STAGES> struct ring_place {
    uint32_t stage, parity;
    __device__ __forceinline__ void advance() {
        if (++stage < N_STAGES) return;
        stage = 0;
        parity ^= 1;
    }
};

/* Returns row `row` (0 .. 15) of a tile. */
static __device__ __forceinline__ const bf16 *tile_row(const struct skinny_params &p, uint32_t tile,
                                                       uint32_t row) {
    const struct skinny_part *part = find_part(p, &tile);
    const uint32_t half = TILE_OUT / 2;
    if (!p.gated) return weight_row(part, tile * TILE_OUT + row, p.n_in);
    return weight_row(row < half ? part : part + 1, tile * half + row % half, p.n_in);
}

template <int N_MMA>
static __device__ __forceinline__ void produce(const struct skinny_params &p,
                                               struct stream_memory<N_MMA> *m, uint32_t n_tiles) {
    const uint32_t lane = threadIdx.x;
    const uint64_t policy = pass_through_policy();
    ring_place<stream_memory<N_MMA>::N_STAGES> at = {0, 1};
    if (lane >= TILE_OUT) return;
    for (uint32_t tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        const bf16 *row = tile_row(p, tile, lane);
        for (uint32_t k = 0; k < p.n_in; k += STAGE_K, at.advance()) {
            const uint32_t bytes = min((uint32_t)STAGE_K, p.n_in - k) * 2;
            barrier_wait(&m->empty[at.stage], at.parity);
            if (lane == 0) barrier_arrive_expect(&m->full[at.stage], TILE_OUT * bytes);
            __syncwarp(0xffff);
            bulk_load(m->stages[at.stage] + lane * STAGE_ROW, row + k, bytes, &m->full[at.stage],
                      policy);
        }
    }
}

/* The parts of x, and of the norm's weight, that belong to a warp's slice of a stage. */
template <int N_MMA, bool NORM> struct x_slice {
    uint4 x[N_MMA], weight;
    __device__ __forceinline__ void load(const struct skinny_params &p, uint32_t lane, uint32_t k) {
        weight = NORM && k < p.n_in ? load_norm_weight(p, k) : uint4{};
#pragma unroll
        for (int i = 0; i < N_MMA; i++) x[i] = load_x(p, lane / 4 + i * MMA_ROWS, k);
    }
};

template <int N_MMA, bool NORM>
static __device__ __forceinline__ void multiply_stage(
    const struct skinny_params &p, const char *stage, uint32_t warp, uint32_t lane, uint32_t k,
    const struct x_slice<N_MMA, NORM> *x, float (&sums)[N_MMA][4], float (&squares)[N_MMA]) {
#pragma unroll
    for (int i = 0; i < STAGE_SLICES; i++) {
        const uint32_t column = (warp + i * N_WARPS) * SLICE + lane % 4 * 8;
        const char *low = stage + lane / 4 * STAGE_ROW + column * 2;
        struct slice w = {};
        if (k + column < p.n_in)
            w = {*reinterpret_cast<const uint4 *>(low),
                 *reinterpret_cast<const uint4 *>(low + TILE_OUT / 2 * STAGE_ROW)};
#pragma unroll
        for (int m = 0; m < N_MMA; m++) {
            uint4 v = x[i].x[m];
            if (NORM) {
                squares[m] += sum_squares(v);
                v = multiply_pairs(v, x[i].weight);
            }
            multiply(sums[m], &w, v);
        }
    }
}

template <int N_MMA, bool NORM>
static __device__ __forceinline__ void consume(const struct skinny_params &p,
                                               struct stream_memory<N_MMA> *m, uint32_t n_tiles) {
    const uint32_t thread = threadIdx.x - 32, lane = thread % 32, warp = thread / 32;
    ring_place<stream_memory<N_MMA>::N_STAGES> at = {0, 0};
    uint32_t turn = 0;
    wait_for_previous();
    for (uint32_t tile = blockIdx.x; tile < n_tiles; tile += gridDim.x, turn ^= 1) {
        float sums[N_MMA][4] = {}, squares[N_MMA] = {};
        for (uint32_t k = 0; k < p.n_in; k += STAGE_K, at.advance()) {
            struct x_slice<N_MMA, NORM> x[STAGE_SLICES];
#pragma unroll
            for (int i = 0; i < STAGE_SLICES; i++)
                x[i].load(p, lane, k + (warp + i * N_WARPS) * SLICE + lane % 4 * 8);
            barrier_wait(&m->full[at.stage], at.parity);
            multiply_stage<N_MMA, NORM>(p, m->stages[at.stage], warp, lane, k, x, sums, squares);
            __syncwarp();
            if (lane == 0) barrier_arrive(&m->empty[at.stage]);
        }
        struct plan<N_MMA> *plan = &m->plans[turn];
        share_sums<N_MMA>(plan, warp, sums);
        if (NORM) share_squares<N_MMA>(plan, warp, squares);
        /* Warps that are ahead write to the other plan, and wait here before they come back to
         * this one. */
        named_sync(1, N_WARPS * 32);
        uint32_t in_part = tile;
        const struct skinny_part *part = find_part(p, &in_part);
        store_tile<N_MMA, NORM>(plan, thread, p, part, in_part);
    }
}

template <int N_MMA, bool NORM>
static __global__ void __launch_bounds__(THREADS, BLOCKS)
    stream_kernel(const __grid_constant__ struct skinny_params p, uint32_t n_tiles) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char memory[];
    struct stream_memory<N_MMA> *m = reinterpret_cast<struct stream_memory<N_MMA> *>(memory);
    let_next_start();
    if (threadIdx.x == 0) {
        for (int i = 0; i < stream_memory<N_MMA>::N_STAGES; i++) {
            barrier_init(&m->full[i], 1);
            barrier_init(&m->empty[i], N_WARPS);
        }
        barriers_publish();
    }
    __syncthreads();
    if (threadIdx.x < 32) produce<N_MMA>(p, m, n_tiles);
    else consume<N_MMA, NORM>(p, m, n_tiles);
#endif
}

template <int N_MMA, bool NORM> static bool open_kernel() {
    const auto kernel = stream_kernel<N_MMA, NORM>;
    return runs_sm90_code(kernel) &&
           cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)sizeof(struct stream_memory<N_MMA>)) == cudaSuccess;
}

bool open_stream(void) {
    return open_kernel<1, false>() && open_kernel<1, true>() && open_kernel<2, false>() &&
           open_kernel<2, true>();
}

template <int N_MMA>
static cudaError_t launch_width(const struct skinny_params *p, struct launch launch) {
    const uint32_t n_tiles = count_tiles(p), n_blocks = BLOCKS * launch.n_multiprocessors;
    const auto kernel = p->norm_weight ? stream_kernel<N_MMA, true> : stream_kernel<N_MMA, false>;
    return launch_kernel(launch, kernel, n_tiles < n_blocks ? n_tiles : n_blocks, THREADS,
                         sizeof(struct stream_memory<N_MMA>), *p, n_tiles);
}

cudaError_t launch_stream(const struct skinny_params *p, struct launch launch) {
    if (count_tiles(p) == 0 || p->n_rows == 0) return cudaSuccess;
    if (p->n_rows > SKINNY_MAX_ROWS || launch.n_multiprocessors == 0) return cudaErrorInvalidValue;
    return p->n_rows > MMA_ROWS ? launch_width<2>(p, launch) : launch_width<1>(p, launch);
}
