/* grouped.cuh - products of many pairs with the matrices of their experts, on Hopper: a template.
 * grouped_*.cu have its kernels.
 *
 *   tile      up to ROWS pairs of one expert against 64 outputs for each warpgroup
 *             (packed_tile.cuh).  An expert's pairs are cut evenly; wgmma takes as many rows as a
 *             tile has (some_rows.cuh)
 *   item      a tile of pairs against a tile of outputs.  The blocks take items in turn, and find
 *             them themselves: the host does not know how many pairs an expert has
 *   order     expert after expert; of one the same weights against rows_at_once tiles of pairs
 *
 *   producers   one thread asks for W.  ROW_WARPS warps copy rows of x, which lie anywhere, and
 *               hand each item to the consumers with its first stage
 *   consumers   those of packed_tile.cuh, or of plain_tile.cuh for bf16
 *
 * A sum is one chain over n_in, in order, in one accumulator.  Neither the size of a tile nor the
 * plan changes that, so a pair's bits depend on its row and its expert only.
 *
 * Shared: struct grouped_memory.  Bound: memory for few pairs, power for many.
 * Oracle: sums in double (tests/cuda/kernels/grouped_test.cu), and any.cu. */
#ifndef CUDA_EXPERTS_GROUPED_CUH
#define CUDA_EXPERTS_GROUPED_CUH

#include "cuda/experts/expert_tile.cuh"
#include "cuda/experts/grouped_cut.h"
#include "cuda/experts/plain_tile.cuh"
#include "cuda/experts/some_rows.cuh"
#include "cuda/linear/packed_tile.cuh"

enum {
    ROW_WARPS = N_PRODUCERS / 32 - 1,
    GROUP_ROWS = 4, /* that a warp copies at a time, eight lanes each */
    MOST_ROWS = 256
};

/* Holds an item: pairs of an expert from this place in sorted order on, outputs from first_out. */
struct alignas(16) grouped_item {
    uint32_t expert, place, n_pairs, first_out;
};

/* The first tile of each expert, and behind the last one the number of all tiles. */
typedef uint16_t grouped_tiles[GROUPED_MAX_EXPERTS + 2];

/* Where the rows of x are that a warp copies for an item, in units of 8 elements.  Lanes 8 q ... of
 * warp w copy rows (ROW_WARPS j + w) * GROUP_ROWS + q, for every j. */
enum { SOURCES = ((MOST_ROWS / GROUP_ROWS + ROW_WARPS - 1) / ROW_WARPS + 3) / 4 * 4 };
typedef uint32_t grouped_sources[ROW_WARPS][GROUP_ROWS][SOURCES];

/* Items that producers may have begun and consumers not finished: one for each stage, and one whose
 * results are written. */
enum {
    N_ITEMS = 16,
    GROUPED_OTHERS =
        sizeof(grouped_tiles) + N_ITEMS * sizeof(struct grouped_item) + sizeof(grouped_sources)
};

/* Shared memory of a block.  Plan: a packed_plan or a plain_plan. */
template <class Plan> struct grouped_memory {
    Plan plan;
    struct grouped_item items[N_ITEMS]; /* the block's item number i is at i % N_ITEMS */
    alignas(16) grouped_sources sources;
    grouped_tiles first_tile;
    static_assert(Plan::N_STAGES < N_ITEMS, "an item that is needed is not overwritten");
};

struct grouped_params : packed_params {
    struct expert_order order;
    struct expert_gate gate;
    const bf16 *x;
    bool gathers;
};

/* Returns by how many rows the sizes of tiles differ: some_rows.cuh. */
template <class Plan> static constexpr uint32_t rows_step() {
    return Plan::ROWS == 256 ? 32 : 16;
}

/* ---- items ---- */

/* Numbers the tiles of all experts.  All threads of the block call it; it synchronises them. */
template <class Plan>
static __device__ __forceinline__ void number_tiles(const struct expert_order &o,
                                                    grouped_tiles &first_tile) {
    const uint32_t n = o.n_experts, lane = threadIdx.x % 32, per_lane = (n + 31) / 32;
    for (uint32_t e = threadIdx.x; e < n; e += Plan::N_THREADS)
        first_tile[e] = (uint16_t)((o.first[e + 1] - o.first[e] + Plan::ROWS - 1) / Plan::ROWS);
    __syncthreads();
    if (threadIdx.x < 32) {
        const uint32_t begin = min(lane * per_lane, n), end = min(begin + per_lane, n);
        uint32_t own = 0, sum;
        for (uint32_t e = begin; e < end; e++) own += first_tile[e];
        sum = own;
        for (uint32_t step = 1; step < 32; step *= 2) {
            const uint32_t other = __shfl_up_sync(0xffffffffu, sum, step);
            sum += lane >= step ? other : 0;
        }
        if (lane == 31) first_tile[n] = (uint16_t)sum;
        sum -= own;
        for (uint32_t e = begin; e < end; e++) {
            const uint32_t tiles = first_tile[e];
            first_tile[e] = (uint16_t)sum;
            sum += tiles;
        }
    }
    __syncthreads();
}

/* Returns the expert that a tile belongs to. */
static __device__ __forceinline__ uint32_t expert_of(const grouped_tiles &first_tile,
                                                     uint32_t n_experts, uint32_t tile) {
    uint32_t begin = 0, end = n_experts; /* first_tile[begin] <= tile < first_tile[end] */
    while (end - begin > 1) {
        const uint32_t middle = (begin + end) / 2;
        if (first_tile[middle] <= tile) begin = middle;
        else end = middle;
    }
    return begin;
}

/* Returns item number i. */
template <class Plan>
static __device__ __forceinline__ struct grouped_item find_item(const struct grouped_params &g,
                                                                const grouped_tiles &first_tile,
                                                                uint32_t i) {
    constexpr uint32_t STEP = rows_step<Plan>();
    const uint32_t expert = expert_of(first_tile, g.order.n_experts, i / g.n_tiles),
                   n_tiles = first_tile[expert + 1] - first_tile[expert],
                   in_expert = i - first_tile[expert] * g.n_tiles,
                   most = g.rows_at_once * g.n_tiles, first = in_expert / most * g.rows_at_once,
                   n_at_once = min(g.rows_at_once, n_tiles - first), at = in_expert % most;
    const uint32_t begin = g.order.first[expert], n = g.order.first[expert + 1] - begin,
                   size = ((n + n_tiles - 1) / n_tiles + STEP - 1) / STEP * STEP,
                   before = (first + at % n_at_once) * size,
                   outputs = Plan::GROUPS * GROUP_OUTPUTS / (g.p.gated ? 2 : 1);
    return {expert, begin + before, min(size, n - before), at / n_at_once * outputs};
}

/* ---- producers ---- */

/* Does the part of the thread that copies weights.  It fills every stage of the block's items that
 * the consumers have released. */
template <class Plan>
static __device__ __forceinline__ void load_weights(const struct grouped_params &g,
                                                    struct grouped_memory<Plan> *memory,
                                                    uint32_t n_items) {
    const uint32_t n_stages = (g.p.n_in + Plan::COLUMNS - 1) / Plan::COLUMNS,
                   n_out = g.p.parts[0].n_out;
    Plan *plan = &memory->plan;
    typename Plan::place at = {0, 1};
    uint32_t number = 0;
    for (uint32_t i = blockIdx.x; i < n_items; i += gridDim.x, number++) {
        const struct grouped_item item = find_item<Plan>(g, memory->first_tile, i);
        const uint32_t row = item.expert * n_out + item.first_out;
#pragma unroll 1
        for (uint32_t k = 0; k < n_stages; k++, at.advance()) {
            barrier_wait(&plan->empty[at.stage], at.parity);
            if (k == 0) memory->items[number % N_ITEMS] = item;
            barrier_arrive_expect(&plan->full[at.stage], weight_bytes<Plan>(g));
            load_rows_of_w(g, plan, 0, row, k, 0, at.stage);
            if (g.p.gated) load_rows_of_w(g, plan, 1, row, k, Plan::GROUPS / 2, at.stage);
        }
    }
}

/* Finds the sources of a warp's rows.  Rows that the item lacks are its last one. */
static __device__ __forceinline__ void find_sources(const struct grouped_params &g,
                                                    const struct grouped_item &item, uint32_t warp,
                                                    grouped_sources &sources) {
    __syncwarp(); /* no lane reads the sources of the item before */
    for (uint32_t i = threadIdx.x % 32; i < SOURCES * GROUP_ROWS; i += 32) {
        const uint32_t q = i % GROUP_ROWS, j = i / GROUP_ROWS,
                       row = (j * ROW_WARPS + warp) * GROUP_ROWS + q,
                       place = item.place + min(row, item.n_pairs - 1);
        if (row >= item.n_pairs + GROUP_ROWS) break;
        sources[warp][q][j] =
            (g.gathers ? g.order.pair[place] / g.order.n_used : place) * (g.p.n_in / 8);
    }
    __syncwarp();
}

/* Starts copying a warp's rows of a stage.  The source costs an instruction for each row.  The
 * destination costs none: the swizzle is one of two, and all else are constants. */
template <class Plan>
static __device__ __forceinline__ void copy_rows(const struct grouped_params &g,
                                                 const grouped_sources &sources, uint32_t warp,
                                                 uint32_t n_rows, uint32_t k, shared_at x) {
    constexpr int PER_WARP = (Plan::ROWS / GROUP_ROWS + ROW_WARPS - 1) / ROW_WARPS;
    const uint32_t q = threadIdx.x % 32 / 8, chunk = threadIdx.x % 8, column = k * Plan::COLUMNS,
                   n_groups = (n_rows + GROUP_ROWS - 1) / GROUP_ROWS, first = warp * GROUP_ROWS + q,
                   own = x.address + first * 128,
                   to[2] = {own + (chunk ^ first % 8) * 16, own + (chunk ^ (first + 4) % 8) * 16};
    const char *from = reinterpret_cast<const char *>(g.x + column + chunk * 8);
    const bool has_second = column + UNIT_COLUMNS < g.p.n_in;
#pragma unroll
    for (int j = 0; j < PER_WARP; j += 4) {
        if (j * ROW_WARPS + warp >= n_groups) break;
        uint32_t four[4];
        load_shared(four, &sources[warp][q][j]);
#pragma unroll
        for (int i = 0; i < 4 && j + i < PER_WARP; i++) {
            const char *row = from + (size_t)four[i] * 16;
            const uint32_t at = to[(j + i) % 2] + (j + i) * ROW_WARPS * GROUP_ROWS * 128;
            if ((j + i) * ROW_WARPS + warp >= n_groups) break;
            copy_async(at, row, true);
            if (Plan::UNITS == 2) copy_async(at + Plan::BOX_BYTES, row + 128, has_second);
        }
    }
}

/* Makes the thread's copies arrive at a barrier when they have been made. */
static __device__ __forceinline__ void copy_async_arrive(shared_at bar) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar.address)
                 : "memory");
}

/* Does the part of a warp that copies rows of x. */
template <class Plan>
static __device__ __forceinline__ void load_x(const struct grouped_params &g,
                                              struct grouped_memory<Plan> *memory, uint32_t n_items,
                                              uint32_t warp) {
    const uint32_t n_stages = (g.p.n_in + Plan::COLUMNS - 1) / Plan::COLUMNS;
    Plan *plan = &memory->plan;
    typename Plan::place at = {0, 1};
    for (uint32_t i = blockIdx.x; i < n_items; i += gridDim.x) {
        const struct grouped_item item = find_item<Plan>(g, memory->first_tile, i);
        find_sources(g, item, warp, memory->sources);
#pragma unroll 1
        for (uint32_t k = 0; k < n_stages; k++, at.advance()) {
            barrier_wait(&plan->empty[at.stage], at.parity);
            copy_rows<Plan>(g, memory->sources, warp, item.n_pairs, k, plan->stages[at.stage].x);
            copy_async_arrive(&plan->full[at.stage]);
        }
    }
    copy_async_wait_all();
}

/* ---- consumers ---- */

/* Returns the outputs of the thread's warpgroup in this item. */
template <class Plan>
static __device__ __forceinline__ struct packed_results find_results(
    const struct grouped_params &g, const struct grouped_item &item, Plan *plan) {
    const uint32_t group = warpgroup(), side = g.p.gated ? group / (Plan::GROUPS / 2) : 0,
                   at = g.p.gated ? group % (Plan::GROUPS / 2) : group;
    return {&g.p.parts[side],
            shared_at(plan->results + group * Plan::GROUP_RESULTS).address,
            group,
            item.place,
            item.place + item.n_pairs,
            item.first_out + at * GROUP_OUTPUTS,
            item.expert};
}

/* Does what expert_gate_mul() does, off by a few ulp, as gate_mul_short() does. */
static __device__ __forceinline__ float expert_gate_short(const struct expert_gate &gate, float g,
                                                          float u) {
    if (gate.most == 0.0f) return gate_mul_short(g, u, gate.kind);
    g = g > gate.most ? gate.most : g;
    u = u > gate.most ? gate.most : u < -gate.most ? -gate.most : u;
    return g * reciprocal_fast(1.0f + exp2_fast(-LOG2_E * gate.slope * g)) * (u + 1.0f);
}

/* Makes results of an item's sums and writes them.  It changes sums. */
template <class Plan>
static __device__ __forceinline__ void finish(const struct grouped_params &g, Plan *plan,
                                              const struct grouped_item &item,
                                              typename Plan::accumulator &sums) {
    const struct packed_results r = find_results(g, item, plan);
    const struct packed_rows rows = {0, (int)(item.n_pairs + 7) / 8};
    const auto gate = [&](float a, float b) { return expert_gate_short(g.gate, a, b); };
    apply_rows<Plan>(g, r, sums);
    if (g.p.gated) share_gated(plan, r, gate, sums);
    else share_results(r, rows, sums);
    write_results<Plan>(g, r, rows);
}

/* Reads the item that producers have put at this place. */
static __device__ __forceinline__ struct grouped_item read_item(shared_at from) {
    uint32_t item[4];
    load_shared(item, from);
    return {item[0], item[1], item[2], item[3]};
}

/* Does the consumers' part of the kernel; each of their threads calls it once. */
template <class Plan>
static __device__ __forceinline__ void consume(const struct grouped_params &g,
                                               struct grouped_memory<Plan> *memory,
                                               uint32_t n_items) {
    const uint32_t n_stages = (g.p.n_in + Plan::COLUMNS - 1) / Plan::COLUMNS;
    Plan *plan = &memory->plan;
    typename Plan::place at = {0, 0};
    uint32_t number = 0;
    for (uint32_t i = blockIdx.x; i < n_items; i += gridDim.x, number++) {
        const shared_at item = &memory->items[number % N_ITEMS];
        typename Plan::accumulator sums;
        barrier_wait(&plan->full[at.stage], at.parity);
        const struct some_rows rows = {__shfl_sync(0xffffffffu, read_item(item).n_pairs, 0)};
        if constexpr (is_plain<Plan>()) multiply_plain(n_stages, plan, &at, sums, rows);
        else {
            const float *blocks = find_blocks<Plan>(g.p, find_results(g, read_item(item), plan));
            multiply<Plan>(g, 0, n_stages, threadIdx.x / 32, blocks, plan, &at, sums, rows);
        }
        finish(g, plan, read_item(item), sums);
    }
}

/* The kernel: N_CONSUMERS threads multiply, and the warps behind them copy.  The kernel after it
 * may start when this one has begun to work: all before this one have ended then. */
template <class Plan>
static __global__ void __launch_bounds__(Plan::N_THREADS, 1)
    grouped_kernel(const __grid_constant__ struct grouped_params g) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) unsigned char grouped_bytes[];
    struct grouped_memory<Plan> *memory =
        reinterpret_cast<struct grouped_memory<Plan> *>(grouped_bytes);
    Plan *plan = &memory->plan;
    if (threadIdx.x == 0) {
        for (int i = 0; i < Plan::N_STAGES; i++) {
            barrier_init(&plan->full[i], 1 + ROW_WARPS * 32);
            barrier_init(&plan->empty[i], Plan::GROUPS);
        }
        barriers_publish();
    }
    wait_for_previous();
    let_next_start();
    number_tiles<Plan>(g.order, memory->first_tile);
    const uint32_t n_items = memory->first_tile[g.order.n_experts] * g.n_tiles;
    if (threadIdx.x < Plan::N_CONSUMERS) {
        registers_raise<Plan::CONSUMER_REGISTERS>();
        consume<Plan>(g, memory, n_items);
    } else {
        registers_lower<Plan::PRODUCER_REGISTERS>();
        const uint32_t warp =
            __shfl_sync(0xffffffffu, threadIdx.x / 32, 0) - Plan::N_CONSUMERS / 32;
        if (warp < ROW_WARPS) load_x<Plan>(g, memory, n_items, warp);
        else if (elect_lane()) load_weights<Plan>(g, memory, n_items);
    }
#endif
}

/* ---- host ---- */

/* Returns the product of one expert, without its rows. */
static inline struct product product_of_expert(const struct expert_product *p) {
    struct product product = {};
    product.n_in = p->n_in;
    product.n_parts = p->gated ? 2 : 1;
    product.w_format = p->stacks[0].format;
    product.gated = p->gated;
    for (uint32_t i = 0; i < product.n_parts; i++) {
        const struct expert_stack *s = &p->stacks[i];
        struct product_part *part = &product.parts[i];
        part->w = s->w, part->scales = s->scales, part->mins = s->mins;
        part->bias = s->bias, part->bias_dtype = s->bias_dtype;
        part->n_out = p->n_out;
        part->y = p->y, part->y_stride = p->n_out;
    }
    return product;
}

/* Starts the kernel of a plan for a product that it fits.  Returns CUDA's error. */
template <class Plan>
static cudaError_t launch_plan(const struct expert_product *p, struct launch launch) {
    const uint32_t outputs = Plan::GROUPS * GROUP_OUTPUTS / (p->gated ? 2 : 1),
                   n_row_tiles = most_expert_tiles(&p->order, Plan::ROWS);
    struct grouped_params g = {};
    g.p = product_of_expert(p);
    g.order = p->order, g.gate = p->gate;
    g.x = static_cast<const bf16 *>(p->x), g.gathers = p->gathers;
    g.n_tiles = (p->n_out + outputs - 1) / outputs;
    g.n_row_tiles = expert_n_pairs(&p->order) <= p->order.n_experts * Plan::ROWS ? 1 : 2;
    g.rows_at_once = 2048 / Plan::ROWS;
    cudaError_t rc = cudaSuccess;
    if constexpr (is_plain<Plan>()) rc = describe_plain_weights<Plan>(&g, &g.p, p->order.n_experts);
    else rc = describe_weights<Plan>(&g, &g.p, p->order.n_experts);
    if (!rc)
        rc = cudaFuncSetAttribute(grouped_kernel<Plan>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  (int)sizeof(struct grouped_memory<Plan>));
    if (rc) return rc;
    const uint64_t n_items = (uint64_t)n_row_tiles * g.n_tiles;
    return launch_kernel(
        launch, grouped_kernel<Plan>,
        dim3((unsigned)(n_items < launch.n_multiprocessors ? n_items : launch.n_multiprocessors)),
        dim3(Plan::N_THREADS), sizeof(struct grouped_memory<Plan>), g);
}

/* ---- the kernels of a format ---- */

struct grouped_kernels {
    cudaError_t (*launch[N_GROUPED_PLANS])(const struct expert_product *p, struct launch launch);
};

/* The formats' kernels, each in one of grouped_*.cu. */
extern const struct grouped_kernels grouped_i4_rows, grouped_i4_bf16, grouped_i4_bf16_64,
    grouped_i4_bf16_32, grouped_i4_f16, grouped_i4_f16_64, grouped_i4_f16_32, grouped_i4_f16_16,
    grouped_i4_f32, grouped_i4_f32_min, grouped_i4_f32_64_min, grouped_i4_f32_32_min,
    grouped_i4_f16_32_min, grouped_i4_f16_16_min, grouped_i8_rows, grouped_i8_bf16, grouped_i8_f16,
    grouped_i8_f16_32, grouped_i8_f16_16, grouped_i8_f16_32_min, grouped_e4m3_rows,
    grouped_e4m3_blocks, grouped_e2m1_32, grouped_bf16;

/* Returns the kernels of a packed_format. */
template <class Format> static constexpr struct grouped_kernels grouped_kernels_of() {
    return {{launch_plan<packed_plan<Format, 16, 4, GROUPED_OTHERS>>,
             launch_plan<packed_plan<Format, 64, 4, GROUPED_OTHERS>>,
             launch_plan<packed_plan<Format, 256, 2, GROUPED_OTHERS>>}};
}

#endif
