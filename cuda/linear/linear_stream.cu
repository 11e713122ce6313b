/* linear_stream.cu - y = x W^T for few rows on Hopper: weights that never stop coming.
 *
 *   producer    one warp asks the copy engine for the block's tiles, a ring of stages ahead
 *   consumers   N_WARPS warps multiply the stages with x as in few_rows.cuh, and store the tiles
 *
 *   tile        16 rows of W, in stages of [16 x STAGE_K]; rows lie STAGE_ROW apart, so that the
 *               16-byte reads of a quarter warp fall into different banks
 *
 * A block that takes one tile and ends has nothing on the way while it adds up and stores, and the
 * next one begins with a read's latency.  Here one or two blocks of a multiprocessor take one tile
 * after the other, and the next one is on its way by then.  They fill shared memory: where blocks of
 * the next kernel fitted beside them, their reads delayed the slowest blocks of this one, and the
 * memory waited between the two.  As it is they come when a block ends, and then fill their rings
 * before they wait for this kernel, because weights never change.
 *
 * Up to 8 rows of at most 4,096 columns are loaded once, normalised, and held in registers for all
 * of a block's tiles.  Longer or more rows are loaded stage by stage, with two blocks so that one
 * multiplies while the other waits for x.  (16 held rows gain 1 to 8 % in three of a layer's products
 * and lose 9 in the output's; a layer is 0.5 % slower.)
 *
 * The copy engine takes a copy of a row at a time, of 2 KB: with 1 KB it was what an H200 waited
 * for.
 *
 * With Llama-3-8B's weights, of the rate of plain reads with 1, 4, 8 and 16 rows: 0.98, 0.98, 0.97 and
 * 0.91 on an H100; with x loaded stage by stage 0.93, 0.94, 0.92 and 0.81 on an H200; the kernel of linear_kernels.cu there 0.86,
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
    HELD_STAGES = 4,                          /* of x, at most, that registers hold */
    THREADS = 32 * (1 + N_WARPS),
};

/* HOLDS: the consumers hold x in registers.  They need those of two blocks, and one block of a
 * multiprocessor is enough then, because its consumers wait for nothing but weights. */
template <int N_MMA_, bool HOLDS_> struct stream_shape {
    static constexpr int N_MMA = N_MMA_;
    static constexpr bool HOLDS = HOLDS_;
    static constexpr int BLOCKS = HOLDS ? 1 : 2; /* of a multiprocessor */
    static constexpr int N_STAGES = HOLDS ? 6 : N_MMA == 1 ? 3 : 2;
    static constexpr int N_HELD = HOLDS ? HELD_STAGES * STAGE_SLICES : 1; /* slices of x */
};

template <class S> struct stream_memory {
    char stages[S::N_STAGES][STAGE_BYTES];
    struct plan<S::N_MMA> plans[2];
    uint64_t full[S::N_STAGES], empty[S::N_STAGES];
};

/* Returns row `row` (0 .. 15) of a tile. */
static __device__ __forceinline__ const bf16 *tile_row(const struct skinny_params &p, uint32_t tile,
                                                       uint32_t row) {
    const struct skinny_part *part = find_part(p, &tile);
    const uint32_t half = TILE_OUT / 2;
    if (!p.gated) return weight_row(part, tile * TILE_OUT + row, p.n_in);
    return weight_row(row < half ? part : part + 1, tile * half + row % half, p.n_in);
}

template <class S>
static __device__ __forceinline__ void produce(const struct skinny_params &p,
                                               struct stream_memory<S> *m, uint32_t n_tiles) {
    const uint32_t lane = threadIdx.x;
    const uint64_t policy = pass_through_policy();
    ring_place<S::N_STAGES> at = {0, 1};
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

/* A consumer: the warp's share of x, and of a tile's sums. */
template <int N_MMA, bool NORM> struct consumer {
    const struct skinny_params &p;
    uint32_t warp, lane;
    float sums[N_MMA][4], squares[N_MMA];

    /* Returns the first of the eight columns of a stage that the thread has in slice i. */
    __device__ __forceinline__ uint32_t column(int i) const {
        return (warp + i * N_WARPS) * SLICE + lane % 4 * 8;
    }

    /* Loads the thread's part of x in a stage's slice, and multiplies it by the norm's weights. */
    __device__ __forceinline__ void load(uint4 (&x)[N_MMA], uint32_t k) {
        const uint4 weight = NORM && k < p.n_in ? load_norm_weight(p, k) : uint4{};
#pragma unroll
        for (int m = 0; m < N_MMA; m++) {
            x[m] = load_x(p, lane / 4 + m * MMA_ROWS, k);
            if (!NORM) continue;
            squares[m] += sum_squares(x[m]);
            x[m] = multiply_pairs(x[m], weight);
        }
    }

    /* Multiplies slice i of a stage by the thread's part of x. */
    __device__ __forceinline__ void multiply_slice(const char *stage, uint32_t k, int i,
                                                   const uint4 (&x)[N_MMA]) {
        const char *low = stage + lane / 4 * STAGE_ROW + column(i) * 2;
        struct slice w = {};
        if (k + column(i) < p.n_in)
            w = {*reinterpret_cast<const uint4 *>(low),
                 *reinterpret_cast<const uint4 *>(low + TILE_OUT / 2 * STAGE_ROW)};
#pragma unroll
        for (int m = 0; m < N_MMA; m++) multiply(sums[m], &w, x[m]);
    }

    __device__ __forceinline__ void clear_sums() {
#pragma unroll
        for (int i = 0; i < N_MMA * 4; i++) sums[i / 4][i % 4] = 0.0f;
    }
    __device__ __forceinline__ void clear_squares() {
#pragma unroll
        for (int m = 0; m < N_MMA; m++) squares[m] = 0.0f;
    }
};

/* Multiplies a tile's stages as they arrive. */
template <class S, bool NORM>
static __device__ __forceinline__ void multiply_tile(struct consumer<S::N_MMA, NORM> &c,
                                                     struct stream_memory<S> *m,
                                                     uint4 (&held)[S::N_HELD][S::N_MMA],
                                                     ring_place<S::N_STAGES> &at) {
    constexpr uint32_t MOST_STAGES = S::HOLDS ? HELD_STAGES : UINT32_MAX;
#pragma unroll(S::HOLDS ? HELD_STAGES : 1)
    for (uint32_t s = 0; s < MOST_STAGES; s++) {
        const uint32_t k = s * STAGE_K;
        if (k >= c.p.n_in) break;
        uint4 fresh[STAGE_SLICES][S::N_MMA];
        if (!S::HOLDS) {
#pragma unroll
            for (int i = 0; i < STAGE_SLICES; i++) c.load(fresh[i], k + c.column(i));
        }
        barrier_wait(&m->full[at.stage], at.parity);
#pragma unroll
        for (int i = 0; i < STAGE_SLICES; i++)
            c.multiply_slice(m->stages[at.stage], k, i,
                             S::HOLDS ? held[s * STAGE_SLICES + i] : fresh[i]);
        /* Without this fence the barrier gets ahead of reads that wait behind those of x, and the
         * copy engine overwrites what they have yet to read. */
        fence_async_proxy();
        __syncwarp();
        if (c.lane == 0) barrier_arrive(&m->empty[at.stage]);
        at.advance();
    }
}

template <class S, bool NORM>
static __device__ __forceinline__ void consume(const struct skinny_params &p,
                                               struct stream_memory<S> *m, uint32_t n_tiles) {
    constexpr int N_MMA = S::N_MMA;
    const uint32_t thread = threadIdx.x - 32;
    struct consumer<N_MMA, NORM> c = {
        p, thread / 32, thread % 32, {}, {}
    };
    ring_place<S::N_STAGES> at = {0, 0};
    uint32_t turn = 0;
    uint4 held[S::N_HELD][N_MMA];
    wait_for_previous();
    if (S::HOLDS) {
#pragma unroll
        for (int i = 0; i < S::N_HELD; i++)
            c.load(held[i], i / STAGE_SLICES * STAGE_K + c.column(i % STAGE_SLICES));
    }
    for (uint32_t tile = blockIdx.x; tile < n_tiles; tile += gridDim.x, turn ^= 1) {
        c.clear_sums();
        if (!S::HOLDS) c.clear_squares();
        multiply_tile<S, NORM>(c, m, held, at);
        struct plan<N_MMA> *plan = &m->plans[turn];
        share_sums<N_MMA>(plan, c.warp, c.sums);
        if (NORM) share_squares<N_MMA>(plan, c.warp, c.squares);
        /* Warps that are ahead write to the other plan, and wait here before they come back to
         * this one. */
        named_sync(1, N_WARPS * 32);
        uint32_t in_part = tile;
        const struct skinny_part *part = find_part(p, &in_part);
        store_tile<N_MMA, NORM>(plan, thread, p, part, in_part);
    }
}

template <class S, bool NORM>
static __global__ void __launch_bounds__(THREADS, S::BLOCKS)
    stream_kernel(const __grid_constant__ struct skinny_params p, uint32_t n_tiles) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char memory[];
    struct stream_memory<S> *m = reinterpret_cast<struct stream_memory<S> *>(memory);
    let_next_start();
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::N_STAGES; i++) {
            barrier_init(&m->full[i], 1);
            barrier_init(&m->empty[i], N_WARPS);
        }
        barriers_publish();
    }
    __syncthreads();
    if (threadIdx.x < 32) produce<S>(p, m, n_tiles);
    else consume<S, NORM>(p, m, n_tiles);
#endif
}

template <class S, bool NORM> static bool open_kernel() {
    const auto kernel = stream_kernel<S, NORM>;
    return runs_sm90_code(kernel) &&
           cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)sizeof(struct stream_memory<S>)) == cudaSuccess;
}

template <class S> static bool open_shape() {
    return open_kernel<S, false>() && open_kernel<S, true>();
}

bool open_stream(void) {
    return open_shape<stream_shape<1, true>>() && open_shape<stream_shape<1, false>>() &&
           open_shape<stream_shape<2, false>>();
}

template <class S>
static cudaError_t launch_shape(const struct skinny_params *p, struct launch launch) {
    const uint32_t n_tiles = count_tiles(p), n_blocks = S::BLOCKS * launch.n_multiprocessors;
    const auto kernel = p->norm_weight ? stream_kernel<S, true> : stream_kernel<S, false>;
    return launch_kernel(launch, kernel, n_tiles < n_blocks ? n_tiles : n_blocks, THREADS,
                         sizeof(struct stream_memory<S>), *p, n_tiles);
}

cudaError_t launch_stream(const struct skinny_params *p, struct launch launch) {
    if (count_tiles(p) == 0 || p->n_rows == 0) return cudaSuccess;
    if (p->n_rows > SKINNY_MAX_ROWS || launch.n_multiprocessors == 0) return cudaErrorInvalidValue;
    if (p->n_rows > MMA_ROWS) return launch_shape<stream_shape<2, false>>(p, launch);
    return p->n_in <= HELD_STAGES * STAGE_K ? launch_shape<stream_shape<1, true>>(p, launch)
                                            : launch_shape<stream_shape<1, false>>(p, launch);
}
