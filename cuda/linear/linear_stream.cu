/* linear_stream.cu - y = x W^T for few rows on Hopper: streams weights through a ring.
 *
 *   producer    one warp asks the copy engine for the block's tiles, a ring of stages ahead
 *   consumers   N_WARPS warps multiply the stages with x as in few_rows.cuh, and store the tiles
 *
 *   tile        16 rows of W, in stages of [16 x STAGE_K]; rows lie STAGE_ROW apart, so that the
 *               16-byte reads of a quarter warp fall into different banks
 *   x           in registers: HELD_STAGES of it, all there is or a ring of its own
 *
 * A block that takes one tile and ends has nothing on the way while it adds up and stores, and the
 * next one begins with a read's latency.  Here a block stays on its multiprocessor and takes one
 * tile after the other, and the next one is on its way by then.  It fills shared memory: where
 * blocks of the next kernel fitted beside it, their reads delayed the slowest blocks of this one,
 * and the memory waited between the two.  As it is they come when a block ends, and then fill their
 * rings before they wait for this kernel, because weights never change.
 *
 * At most IN_FLIGHT stages are on their way, however many are free.  Whatever else a block asks
 * for, x before all, comes behind them.  Memory may be slower if it is asked for more at once
 * (docs/benchmarks/gpu-kernels.md, "Two stages on the way").
 *
 * Blocks begin their tiles at different columns, because memory is slower if all begin at the same.
 *
 * The copy engine takes a copy of 2 KB of a row at a time.  Its rate of copies is limited, so
 * smaller ones are slower; larger ones are no faster.
 *
 * Code is kept short, as a layer's kernels hardly fit the instruction cache together: there is a
 * kernel for an x that registers hold as a whole, and producers' loops are not unrolled.
 *
 * Shared: a ring of stages, two plans, the norm's weights.
 * Bound:  memory, 2 * n_in * n_out bytes.        Oracle: engine/cpu/linear.c. */
#include "cuda/common/sm90.cuh"
#include "cuda/host/internal.h"
#include "cuda/linear/few_rows.cuh"

enum {
    STAGE_K = 1024,
    STAGE_ROW = STAGE_K * 2 + 64, /* bytes */
    STAGE_BYTES = TILE_OUT * STAGE_ROW,
    STAGE_SLICES = STAGE_K / SLICE / N_WARPS, /* of a warp */
    IN_FLIGHT = 2,
    THREADS = 32 * (1 + N_WARPS),
};

template <int N_MMA_> struct stream_shape {
    static constexpr int N_MMA = N_MMA_;
    static constexpr int N_STAGES = N_MMA == 1 ? 6 : 3;    /* fewer leave more of a cache for x */
    static constexpr int HELD_STAGES = N_MMA == 1 ? 4 : 2; /* of x, in registers */
    static constexpr int N_HELD = HELD_STAGES * STAGE_SLICES;
};

template <class S> struct stream_memory {
    char stages[S::N_STAGES][STAGE_BYTES];
    struct plan<S::N_MMA> plans[2];
    uint64_t full[S::N_STAGES], empty[S::N_STAGES], norm_full;
    alignas(16) bf16 norm[STREAM_MAX_NORM]; /* a launch has as much of it as it needs */
};

/* Returns row `row` (0 .. 15) of a tile. */
static __device__ __forceinline__ const bf16 *tile_row(const struct product &p, uint32_t tile,
                                                       uint32_t row) {
    const struct product_part *part = &p.parts[find_part(p, TILE_OUT, &tile)];
    const uint32_t half = TILE_OUT / 2;
    if (!p.gated) return weight_row(part, tile * TILE_OUT + row, p.n_in);
    return weight_row(row < half ? part : part + 1, tile * half + row % half, p.n_in);
}

/* Every block has a tile, the first n_second blocks have another one, and the first n_third of
 * these share the others: n_second tiles further on, and so forth. */
struct block_tiles {
    uint32_t n_tiles, n_second, n_third;
    __device__ __forceinline__ uint32_t end() const {
        if (blockIdx.x < n_third) return n_tiles;
        return blockIdx.x < n_second ? gridDim.x + n_second : gridDim.x;
    }
    __device__ __forceinline__ uint32_t after(uint32_t tile) const {
        return tile + (tile < gridDim.x ? gridDim.x : n_second);
    }
};

/* Deals tiles to blocks.  The first n_idle blocks find a multiprocessor idle, and have filled their
 * rings when the others begin: they take a third tile, and the others a second only where that is
 * not enough.  Where three are not enough, tile i is that of block i % n_blocks. */
static struct block_tiles deal_tiles(uint32_t n_tiles, uint32_t n_blocks, uint32_t n_idle) {
    const uint32_t n_left = n_tiles - n_blocks,
                   n_second = n_idle < n_left ? max(n_idle, n_left - n_idle) : n_left;
    if (n_second > n_blocks) return {n_tiles, n_blocks, n_blocks};
    return {n_tiles, n_second, n_left - n_second};
}

/* The order in which a block takes the stages of a tile: all of them, from one of its own on. */
struct stage_order {
    uint32_t n, first;
    __device__ __forceinline__ explicit stage_order(uint32_t n_in)
        : n((n_in + STAGE_K - 1) / STAGE_K), first(blockIdx.x % n) {}
    /* Returns the first column of the stage that comes i-th (i < n). */
    __device__ __forceinline__ uint32_t column(uint32_t i) const {
        return (first + i < n ? first + i : first + i - n) * STAGE_K;
    }
};

template <class S>
static __device__ __forceinline__ void produce(const struct product &p, struct stream_memory<S> *m,
                                               struct block_tiles tiles) {
    const uint32_t lane = threadIdx.x;
    const uint64_t policy = pass_through_policy();
    const struct stage_order order(p.n_in);
    ring_place<S::N_STAGES> at = {0, 1}, arriving = {0, 0};
    uint32_t n_asked = 0;
    if (lane >= TILE_OUT) return;
    if (lane == 0 && p.norm_weight) {
        barrier_arrive_expect(&m->norm_full, p.n_in * sizeof(bf16));
        bulk_load(m->norm, p.norm_weight, p.n_in * sizeof(bf16), &m->norm_full, policy);
    }
#pragma unroll 1
    for (uint32_t tile = blockIdx.x; tile < tiles.end(); tile = tiles.after(tile)) {
        const bf16 *row = tile_row(p, tile, lane);
#pragma unroll 1
        for (uint32_t i = 0; i < order.n; i++, at.advance()) {
            const uint32_t k = order.column(i), bytes = min((uint32_t)STAGE_K, p.n_in - k) * 2;
            if (n_asked++ >= IN_FLIGHT) {
                barrier_wait(&m->full[arriving.stage], arriving.parity);
                arriving.advance();
            }
            barrier_wait(&m->empty[at.stage], at.parity);
            if (lane == 0) barrier_arrive_expect(&m->full[at.stage], TILE_OUT * bytes);
            __syncwarp(0xffff);
            bulk_load(m->stages[at.stage] + lane * STAGE_ROW, row + k, bytes, &m->full[at.stage],
                      policy);
        }
    }
}

/* A consumer: the warp's share of x, and of a tile's sums. */
template <class S, bool NORM, bool CAN_RELOAD> struct consumer {
    static constexpr int N_MMA = S::N_MMA;
    const struct product &p;
    const bf16 *norm;
    const struct stage_order order;
    uint32_t warp, lane;
    uint4 held[S::N_HELD][N_MMA];
    float sums[N_MMA][4], squares[N_MMA];

    __device__ __forceinline__ consumer(const struct product &params, const bf16 *weights)
        : p(params), norm(weights), order(params.n_in), warp(threadIdx.x / 32 - 1),
          lane(threadIdx.x % 32) {}

    /* Says whether the registers hold a part of x only. */
    __device__ __forceinline__ bool reloads() const {
        return CAN_RELOAD && order.n > S::HELD_STAGES;
    }

    /* Returns the first of the eight columns of a stage that the thread has in slice i. */
    __device__ __forceinline__ uint32_t column(int i) const {
        return (warp + i * N_WARPS) * SLICE + lane % 4 * 8;
    }

    /* Asks for the thread's part of x in a stage. */
    __device__ __forceinline__ void load(int place, uint32_t stage) {
        if (stage >= order.n) return;
#pragma unroll
        for (int i = 0; i < STAGE_SLICES; i++)
#pragma unroll
            for (int m = 0; m < N_MMA; m++)
                held[place * STAGE_SLICES + i][m] =
                    load_x(p, lane / 4 + m * MMA_ROWS, order.column(stage) + column(i));
    }

    /* Multiplies it by the norm's weights. */
    __device__ __forceinline__ void normalise(int place, uint32_t stage, bool is_first) {
        if (stage >= order.n) return;
#pragma unroll
        for (int i = 0; i < STAGE_SLICES; i++) {
            const uint32_t k = order.column(stage) + column(i);
            if (k >= p.n_in) continue;
            const uint4 weight = *reinterpret_cast<const uint4 *>(norm + k);
#pragma unroll
            for (int m = 0; m < N_MMA; m++) {
                uint4 &x = held[place * STAGE_SLICES + i][m];
                if (is_first) squares[m] += sum_squares(x);
                x = multiply_pairs(x, weight);
            }
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
};

/* Multiplies a tile's stages as they arrive. */
template <class S, bool NORM, bool CAN_RELOAD>
static __device__ __forceinline__ void multiply_tile(struct consumer<S, NORM, CAN_RELOAD> &c,
                                                     struct stream_memory<S> *m,
                                                     ring_place<S::N_STAGES> &at, bool is_first) {
#pragma unroll
    for (int i = 0; i < S::N_MMA * 4; i++) c.sums[i / 4][i % 4] = 0.0f;
    for (uint32_t done = 0; done < c.order.n; done += S::HELD_STAGES) {
#pragma unroll
        for (int place = 0; place < S::HELD_STAGES; place++) {
            const uint32_t stage = done + place;
            if (stage >= c.order.n) break;
            if (NORM && c.reloads()) c.normalise(place, stage, is_first);
            barrier_wait(&m->full[at.stage], at.parity);
#pragma unroll
            for (int i = 0; i < STAGE_SLICES; i++)
                c.multiply_slice(m->stages[at.stage], c.order.column(stage), i,
                                 c.held[place * STAGE_SLICES + i]);
            /* Without this fence the barrier gets ahead of reads that wait behind those of x, and
             * the copy engine overwrites what they have yet to read. */
            fence_async_proxy();
            __syncwarp();
            if (c.lane == 0) barrier_arrive(&m->empty[at.stage]);
            at.advance();
            const uint32_t next = stage + S::HELD_STAGES;
            if (c.reloads()) c.load(place, next < c.order.n ? next : place);
        }
    }
}

template <class S, bool NORM, bool CAN_RELOAD>
static __device__ __forceinline__ void consume(const struct product &p, struct stream_memory<S> *m,
                                               struct block_tiles tiles) {
    const uint32_t thread = threadIdx.x - 32;
    struct consumer<S, NORM, CAN_RELOAD> c(p, m->norm);
    ring_place<S::N_STAGES> at = {0, 0};
    uint32_t half = 0;
#pragma unroll
    for (int i = 0; i < S::N_MMA; i++) c.squares[i] = 0.0f;
    if (NORM) barrier_wait(&m->norm_full, 0);
    wait_for_previous();
#pragma unroll
    for (int place = 0; place < S::HELD_STAGES; place++) c.load(place, place);
#pragma unroll
    for (int place = 0; place < S::HELD_STAGES; place++)
        if (NORM && !c.reloads()) c.normalise(place, place, true);
    for (uint32_t tile = blockIdx.x; tile < tiles.end(); tile = tiles.after(tile), half ^= 1) {
        multiply_tile<S, NORM, CAN_RELOAD>(c, m, at, tile == blockIdx.x);
        struct plan<S::N_MMA> *plan = &m->plans[half];
        share_sums<S::N_MMA>(plan, c.warp, c.sums);
        if (NORM) share_squares<S::N_MMA>(plan, c.warp, c.squares);
        /* Warps that are ahead write to the other plan, and wait here before they come back to
         * this one. */
        named_sync(1, N_WARPS * 32);
        uint32_t in_part = tile;
        const struct product_part *part = &p.parts[find_part(p, TILE_OUT, &in_part)];
        store_tile<S::N_MMA, NORM>(plan, thread, p, part, in_part);
    }
}

template <class S, bool NORM, bool CAN_RELOAD>
static __global__ void __launch_bounds__(THREADS, 1)
    stream_kernel(const __grid_constant__ struct product p, struct block_tiles tiles) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char memory[];
    struct stream_memory<S> *m = reinterpret_cast<struct stream_memory<S> *>(memory);
    let_next_start();
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::N_STAGES; i++) {
            barrier_init(&m->full[i], 1);
            barrier_init(&m->empty[i], N_WARPS);
        }
        barrier_init(&m->norm_full, 1);
        barriers_publish();
    }
    __syncthreads();
    if (threadIdx.x < 32) produce<S>(p, m, tiles);
    else consume<S, NORM, CAN_RELOAD>(p, m, tiles);
#endif
}

template <class S, bool NORM, bool CAN_RELOAD> static bool open_kernel() {
    const auto kernel = stream_kernel<S, NORM, CAN_RELOAD>;
    return runs_sm90_code(kernel) &&
           cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)sizeof(struct stream_memory<S>)) == cudaSuccess;
}

template <class S> static bool open_shape() {
    return open_kernel<S, false, true>() && open_kernel<S, true, false>() &&
           open_kernel<S, true, true>();
}

static bool open_shapes() {
    return open_shape<stream_shape<1>>() && open_shape<stream_shape<2>>();
}

extern "C" product_open open_stream;
int open_stream(struct cuda_backend *cuda, struct error *) {
    cuda->products.streams = open_shapes();
    return 0;
}

template <class S> static cudaError_t launch_shape(const struct product *p, struct launch launch) {
    const uint32_t n_tiles = count_tiles(p, TILE_OUT),
                   n_blocks = min(n_tiles, launch.n_multiprocessors);
    const struct block_tiles tiles = deal_tiles(n_tiles, n_blocks, p->n_idle);
    const auto norm = p->n_in > S::HELD_STAGES * STAGE_K ? stream_kernel<S, true, true>
                                                         : stream_kernel<S, true, false>,
               kernel = p->norm_weight ? norm : stream_kernel<S, false, true>;
    const size_t n_norm = p->norm_weight ? p->n_in : 0,
                 bytes = offsetof(struct stream_memory<S>, norm) + n_norm * sizeof(bf16);
    return launch_kernel(launch, kernel, n_blocks, THREADS, bytes, *p, tiles);
}

static cudaError_t start_stream(const struct product *p, struct launch launch) {
    if (count_tiles(p, TILE_OUT) == 0 || p->n_rows == 0) return cudaSuccess;
    if (p->n_rows > FEW_MAX_ROWS || launch.n_multiprocessors == 0 ||
        (p->norm_weight && p->n_in > STREAM_MAX_NORM))
        return cudaErrorInvalidValue;
    return p->n_rows > MMA_ROWS ? launch_shape<stream_shape<2>>(p, launch)
                                : launch_shape<stream_shape<1>>(p, launch);
}

extern "C" product_launch launch_stream;
int launch_stream(struct cuda_backend *cuda, const struct product *p, struct error *err) {
    return cuda_check(cuda, start_stream(p, launch_of(cuda)), "the product kernel \"stream\"", err);
}
