/* linear_gated.cu - kind(x Wg^T) * (x Wu^T) for more than 192 rows on Hopper: many sequences,
 * prompts.
 *
 *   tile        128 rows of x against 256 of W: gate's and up's for the same 128 outputs; or
 *               against 224, for 112 outputs
 *   cluster     two blocks with the same outputs and neighbouring rows; each copies half of W to
 *               both.  Where the number of row tiles is odd, pairs of the last one have the same
 *               rows and neighbouring outputs; each block copies half of x to both
 *
 *      stage of block 0    | x: rows of tile 2i     | W: gate's rows | W: up's rows |   64 columns
 *      stage of block 1    | x: rows of tile 2i + 1 | W: gate's rows | W: up's rows |
 *                                                      by block 0 ^     by block 1 ^
 *
 *   producers   one thread asks for W, which never changes, so it fills the ring before the kernel
 *               before has ended; another asks for x
 *   consumers   two warpgroups with 64 rows each: wgmma with x as A and the stage of W as B.  Gate
 *               and up of an output are in the same thread
 *   order       gated_cut.h: a few pairs of row tiles stay in L2 while all of W passes through
 *   last wave   of half of the clusters or fewer: twice as many take half of a tile's outputs each
 *
 * A warpgroup has no time to gate: its tensor cores would wait.  It only rounds its finished sums
 * to bf16, as cuBLASLt would, holds them in registers, and gates and stores a slice in each of the
 * next tile's first stages, while that stage's products run:
 *
 *      products    | tile n - 1 |  tile n: 0 | 1 | 2 | ... | 7 | 8 | ... | tile n + 1: 0 | 1 | ...
 *      stores                    of n - 1: 0 | 1 | 2 | ... | 7 |               of n:   0 | 1 | ...
 *
 * Sums have one order, whatever the timing.  Fewer than one result in a million differs in its bits
 * from that of cuBLASLt and launch_gate_mul().
 *
 * What bounds it is power: the clock falls at the device's limit, and the products fill nearly all
 * clocks.  docs/benchmarks/gpu-kernels.md ("Gate and up of longer prompts") has times, and what was
 * tried in vain.
 *
 * Shared: struct gated_plan.  Bound: wgmma, 4 * n_rows * n_in * n_out operations.
 * Oracle: engine/cpu/linear.c. */
#include "cuda/host/internal.h"
#include "cuda/linear/block_pair.cuh"
#include "cuda/linear/gated_cut.h"
#include "cuda/linear/product.h"

typedef __nv_bfloat16 bf16;

enum {
    STAGE_COLUMNS = GATED_STAGE_COLUMNS,
    ROW_BYTES = STAGE_COLUMNS * 2,
    GROUP_ROWS = GATED_TILE_ROWS / 2, /* of x: a warpgroup's, and copied at a time */
    GROUP_BYTES = GROUP_ROWS * ROW_BYTES,
    N_SLICES = GATED_SLICES,
    N_CONSUMERS = 2 * GROUP_THREADS,
    N_THREADS = N_CONSUMERS + GROUP_THREADS,
    PRODUCER_REGISTERS = 40,
    CONSUMER_REGISTERS = 232,
};

/* Shared memory of a block with tiles of so many OUTPUTS.  Half of a tile's, a box, are copied at a
 * time. */
template <int OUTPUTS_> struct gated_plan {
    static constexpr int OUTPUTS = OUTPUTS_, BOX_ROWS = OUTPUTS / 2,
                         BOX_BYTES = BOX_ROWS * ROW_BYTES;
    static constexpr int N_STAGES = (MEMORY_BYTES - 512) / (2 * GROUP_BYTES + 4 * BOX_BYTES);
    typedef ring_place<N_STAGES> place;
    struct {
        unsigned char x[2 * GROUP_BYTES], w[4 * BOX_BYTES]; /* w: of gate, then of up */
    } stages[N_STAGES];
    uint64_t full[N_STAGES], empty[N_STAGES];
    static_assert(BOX_BYTES % 1024 == 0, "swizzled matrices begin at multiples of 1024");
};

static_assert((int)CLUSTER == GATED_CLUSTER, "tiles are counted in pairs");

struct gated_params {
    CUtensorMap x, w[2];
    struct product p;
    struct gated_cut cut;
};

static __device__ __forceinline__ struct gated_item find_item(const struct gated_params &g,
                                                              uint32_t wave) {
    return gated_find_item(&g.cut, wave, blockIdx.x / CLUSTER, gridDim.x / CLUSTER, cluster_rank());
}

/* ---- producers ---- */

/* Starts copying the weights of one box of outputs: those of gate or of up to both blocks. */
template <class Plan>
static __device__ __forceinline__ void load_box(const struct gated_params &g,
                                                const struct gated_item &item, unsigned char *to,
                                                int k, uint32_t out, uint64_t *full,
                                                uint64_t policy) {
    const uint32_t rank = cluster_rank(), up = item.n_boxes * Plan::BOX_BYTES;
    if (item.shares_x) {
        tensor_load_hinted(to, &g.w[0], k, out, full, policy);
        tensor_load_hinted(to + up, &g.w[1], k, out, full, policy);
    } else {
        tensor_load_shared(to + rank * up, &g.w[rank], k, out, full, BOTH, policy);
    }
}

template <class Plan>
static __device__ __forceinline__ void load_weights(const struct gated_params &g, Plan *plan) {
    const uint64_t policy = pass_through_policy();
    typename Plan::place at = {0, 1};
    struct gated_item item;
    for (uint32_t wave = 0; item = find_item(g, wave), item.n_boxes > 0; wave++) {
#pragma unroll 1
        for (int k = 0; k < (int)g.p.n_in; k += STAGE_COLUMNS, at.advance()) {
            unsigned char *to = plan->stages[at.stage].w;
            uint64_t *full = &plan->full[at.stage];
            barrier_wait(&plan->empty[at.stage], at.parity);
            barrier_arrive_expect(full, 2 * item.n_boxes * Plan::BOX_BYTES);
            load_box<Plan>(g, item, to, k, item.out, full, policy);
            if (item.n_boxes == 2)
                load_box<Plan>(g, item, to + Plan::BOX_BYTES, k, item.out + Plan::BOX_ROWS, full,
                               policy);
        }
    }
}

template <class Plan>
static __device__ __forceinline__ void load_x(const struct gated_params &g, Plan *plan) {
    const uint32_t rank = cluster_rank(), own = rank * GROUP_BYTES;
    typename Plan::place at = {0, 1};
    struct gated_item item;
    wait_for_previous();
    for (uint32_t wave = 0; item = find_item(g, wave), item.n_boxes > 0; wave++) {
#pragma unroll 1
        for (int k = 0; k < (int)g.p.n_in; k += STAGE_COLUMNS, at.advance()) {
            unsigned char *to = plan->stages[at.stage].x;
            uint64_t *full = &plan->full[at.stage];
            barrier_wait(&plan->empty[at.stage], at.parity);
            barrier_arrive_expect(full, 2 * GROUP_BYTES);
            if (item.shares_x) {
                tensor_load_shared(to + own, &g.x, k, item.row + rank * GROUP_ROWS, full, BOTH);
            } else {
                tensor_load(to, &g.x, k, item.row, full);
                tensor_load(to + GROUP_BYTES, &g.x, k, item.row + GROUP_ROWS, full);
            }
        }
    }
    await_empty(plan, at);
}

/* ---- consumers: gate's sums of a thread are sums[4 j + 2 h + e], of row lane / 4 + 8 h of the
 * warp's 16 and of output 8 j + lane % 4 * 2 + e; up's are as many, behind them ---- */

template <class Plan, int N>
static __device__ __forceinline__ void start_stage(Plan *plan, const typename Plan::place &at,
                                                   uint32_t group, float (&sums)[N], bool add) {
    const uint64_t x = wgmma_matrix(plan->stages[at.stage].x + group * GROUP_BYTES, 0),
                   w = wgmma_matrix(plan->stages[at.stage].w, 0);
    barrier_wait(&plan->full[at.stage], at.parity);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < STAGE_COLUMNS / 16; i++)
        wgmma_shared_a(sums, wgmma_advance(x, i * 32), wgmma_advance(w, i * 32), add || i > 0);
    wgmma_commit();
}

/* A tile whose sums are complete, in bf16: word [h][j] has those of e = 0 and 1. */
struct held_tile {
    uint32_t gate[2][GATED_LARGE_TILE / 8], up[2][GATED_LARGE_TILE / 8];
    uint32_t row, out, end; /* the thread's first row, the tile's first output, and its end */
};

template <int N>
static __device__ __forceinline__ void add_bias(const struct product &p, uint32_t out,
                                                float (&sums)[N]) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        const struct product_part *part = &p.parts[i >= N / 2];
        const uint32_t at = out + i % (N / 2) * 2 + threadIdx.x % 4 * 2;
        if (!part->bias || at >= part->n_out) continue;
        for (int e = 0; e < 2; e++) {
            const float b = load_element(part->bias, at + e, part->bias_dtype);
            sums[i + e] += b, sums[i + 2 + e] += b;
        }
    }
}

/* Rounds sums to bf16. */
template <int N>
static __device__ __forceinline__ void hold(const float (&sums)[N], struct held_tile *held) {
#pragma unroll
    for (int i = 0; i < N / 2; i += 2) {
        held->gate[i / 2 % 2][i / 4] = pack_bf16(sums[i], sums[i + 1]);
        held->up[i / 2 % 2][i / 4] = pack_bf16(sums[i + N / 2], sums[i + N / 2 + 1]);
    }
}

/* Stores 32 outputs of half of the held rows. */
template <enum gate_kind KIND>
static __device__ __forceinline__ void store_slice(const struct product &p,
                                                   const struct held_tile &held, int slice) {
    const int h = slice % 2, j = slice / 2 * 4;
    const uint32_t row = held.row + h * 8, out = held.out + (j + threadIdx.x % 4) * 8;
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 gate = unpack_bf16(held.gate[h][j + i]), up = unpack_bf16(held.up[h][j + i]);
        words[i] =
            pack_bf16(gate_mul_short(gate.x, up.x, KIND), gate_mul_short(gate.y, up.y, KIND));
    }
    transpose_words(words);
    if (row >= p.n_rows || out >= held.end) return;
    bf16 *y = static_cast<bf16 *>(p.parts[0].y) + row * p.parts[0].y_stride + out;
    *reinterpret_cast<uint4 *>(y) = make_uint4(words[0], words[1], words[2], words[3]);
}

/* Multiplies one item, and stores what is held from the one before, a slice in each of the first
 * stages.  Then holds this item, and makes *item that of `wave`. */
template <enum gate_kind KIND, int N, class Plan>
static __device__ __forceinline__ void multiply(const struct gated_params &g, uint32_t wave,
                                                uint32_t group, Plan *plan,
                                                typename Plan::place *at, struct gated_item *item,
                                                struct held_tile *held) {
    const int n_stages = (int)g.p.n_in / STAGE_COLUMNS;
    float sums[N];
    uint32_t last = 0;
#pragma unroll
    for (int k = 0; k < N_SLICES; k++, at->advance()) {
        start_stage(plan, *at, group, sums, k > 0);
        store_slice<KIND>(g.p, *held, k);
        if (k > 0) {
            wgmma_wait<1>();
            release_stage(plan, last);
        }
        last = at->stage;
    }
    held->row = item->row + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    held->out = item->out;
    held->end = min(item->out + item->n_boxes * Plan::BOX_ROWS, g.p.parts[0].n_out);
    /* The compiler would put the divisions behind the sums, where nothing else runs. */
    *item = find_item(g, wave);
    asm volatile("" : "+r"(item->row), "+r"(item->out), "+r"(item->n_boxes)::"memory");
#pragma unroll 1
    for (int k = N_SLICES; k < n_stages; k++, at->advance()) {
        start_stage(plan, *at, group, sums, true);
        wgmma_wait<1>();
        release_stage(plan, last);
        last = at->stage;
    }
    wgmma_wait<0>();
    wgmma_pin(sums);
    release_stage(plan, last);
    if (g.p.parts[0].bias || g.p.parts[1].bias) add_bias(g.p, held->out, sums);
    hold(sums, held);
}

template <enum gate_kind KIND, class Plan>
static __device__ __forceinline__ void consume(const struct gated_params &g, Plan *plan) {
    const uint32_t group = warpgroup();
    typename Plan::place at = {0, 0};
    struct held_tile held = {};
    struct gated_item item = find_item(g, 0);
    wait_for_previous();
    for (uint32_t wave = 1; item.n_boxes == 2; wave++)
        multiply<KIND, Plan::OUTPUTS>(g, wave, group, plan, &at, &item, &held);
    if (item.n_boxes == 1) multiply<KIND, Plan::OUTPUTS / 2>(g, 0, group, plan, &at, &item, &held);
#pragma unroll
    for (int i = 0; i < N_SLICES; i++) store_slice<KIND>(g.p, held, i);
}

template <enum gate_kind KIND, class Plan>
static __global__ void __launch_bounds__(N_THREADS, 1)
    gated_kernel(const __grid_constant__ struct gated_params g) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) unsigned char gated_memory[];
    Plan *plan = reinterpret_cast<Plan *>(gated_memory);
    let_next_start();
    make_barriers(plan, CLUSTER * N_CONSUMERS / GROUP_THREADS);
    if (threadIdx.x < N_CONSUMERS) {
        registers_raise<CONSUMER_REGISTERS>();
        consume<KIND>(g, plan);
    } else {
        registers_lower<PRODUCER_REGISTERS>();
        if (threadIdx.x == N_CONSUMERS) load_weights(g, plan);
        if (threadIdx.x == N_CONSUMERS + 32) load_x(g, plan);
    }
#endif
}

/* ---- host ---- */

template <class Plan>
static cudaError_t launch_tiles(struct gated_params *g, struct launch launch) {
    const struct product &p = g->p;
    const uint64_t row_bytes = (uint64_t)p.n_in * 2;
    cudaError_t rc = tensor_map_matrix(&g->x, p.x, p.n_rows, p.n_in, row_bytes, GROUP_ROWS);
    for (int i = 0; i < 2 && !rc; i++)
        rc = tensor_map_matrix(&g->w[i], p.parts[i].w, p.parts[i].n_out, p.n_in, row_bytes,
                               Plan::BOX_ROWS);
    if (rc) return rc;
    return launch_clusters(
        launch, p.kind == GATE_GELU ? gated_kernel<GATE_GELU, Plan> : gated_kernel<GATE_SILU, Plan>,
        CLUSTER, CLUSTER * g->cut.n_clusters, N_THREADS, sizeof(Plan), *g);
}

static cudaError_t start_gated(const struct product *p, uint32_t max_clusters,
                               struct launch launch) {
    if (max_clusters == 0) return cudaErrorNotSupported;
    struct gated_params g = {
        {}, {}, *p, gated_choose_cut(p->n_rows, p->parts[0].n_out, max_clusters)};
    switch (g.cut.tile_outputs) {
    case GATED_LARGE_TILE: return launch_tiles<gated_plan<GATED_LARGE_TILE>>(&g, launch);
    case GATED_SMALL_TILE: return launch_tiles<gated_plan<GATED_SMALL_TILE>>(&g, launch);
    default: return cudaErrorInvalidValue;
    }
}

extern "C" product_launch launch_gated;
int launch_gated(struct cuda_backend *cuda, const struct product *p, struct error *err) {
    return cuda_check(cuda, start_gated(p, cuda->products.n_gated_clusters, launch_of(cuda)),
                      "the product kernel \"gated\"", err);
}

template <enum gate_kind KIND, int OUTPUTS> static bool open_kernel(int *n) {
    typedef gated_plan<OUTPUTS> plan;
    return open_pairs<plan>(gated_kernel<KIND, plan>, N_THREADS, n);
}

extern "C" product_open open_gated;
int open_gated(struct cuda_backend *cuda, struct error *) {
    int n = (int)(cuda->n_multiprocessors / CLUSTER);
    if (n > 0 && open_kernel<GATE_SILU, GATED_LARGE_TILE>(&n) &&
        open_kernel<GATE_GELU, GATED_LARGE_TILE>(&n) &&
        open_kernel<GATE_SILU, GATED_SMALL_TILE>(&n) &&
        open_kernel<GATE_GELU, GATED_SMALL_TILE>(&n))
        cuda->products.n_gated_clusters = (uint32_t)n;
    cudaGetLastError(); /* an answer, not a fault */
    return 0;
}
