/* linear_fp8.cu - y = x W^T of E4M3 with E4M3 for many rows on Hopper: prompts.
 *
 *   tile        128 rows of x against `width` rows of W (fp8_cut.h); gated: half of them are
 *               gate's, half up's, and a thread has the sums of both
 *   cluster     two blocks, which copy what they share to both, half of it each: W, or x if they
 *               have neighbouring outputs.  Long sums of few tiles are cut in halves: the blocks
 *               have half of the columns each, and then each has the sums of half of the rows
 *   producers   one thread asks for W, which never changes, so it fills the ring before the kernel
 *               before has ended; another asks for x and its scales
 *   consumers   two warpgroups with 64 rows each: wgmma with x as A and the stage of W as B
 *   results     go through shared memory to a thread that stores them by the copy engine.
 *               Warpgroups take turns there, so one multiplies while the other leaves its results
 *
 * With scales of blocks a stage is one block's columns.  Its sums are made apart, in parts of a
 * tile, scaled and added in f32.  The tensor cores have the other warpgroup's products meanwhile.
 *
 * Sums have one order, whatever the timing.  docs/benchmarks/gpu-kernels.md ("Products with rounded
 * inputs") has times, and what was tried in vain.
 *
 * Shared: struct fp8_plan (fp8_tile.cuh).
 * Bound:  wgmma and power, 2 * n_rows * n_in * n_out operations.
 * Oracle: sums in double (tests/cuda/test_rounded.c). */
#include "cuda/host/internal.h"
#include "cuda/linear/fp8_results.cuh"

/* ---- producers ---- */

/* Says whether the blocks of a cluster have other weights. */
template <class Plan>
static __device__ __forceinline__ bool has_own_weights(const struct fp8_params &f) {
    return Plan::HALVES || f.cut.pair == FP8_PAIR_OUTPUTS;
}

/* Starts copying half i, 0 or 1, of a tile's weights, to this block or to both. */
template <class Plan>
static __device__ __forceinline__ void load_half(const struct fp8_params &f,
                                                 const struct fp8_place &place, unsigned char *to,
                                                 uint32_t i, int column, uint64_t *full) {
    const CUtensorMap *map = &f.w[f.p.gated ? i : place.part];
    const uint32_t row = place.first + (f.p.gated ? 0 : i * Plan::HALF_ROWS);
    if (has_own_weights<Plan>(f)) tensor_load(to + i * Plan::HALF_BYTES, map, column, row, full);
    else tensor_load_shared(to + i * Plan::HALF_BYTES, map, column, row, full, BOTH);
}

/* Returns the bytes of the scales of a tile's outputs. */
template <class Plan>
static __device__ __forceinline__ uint32_t scale_bytes(const struct fp8_params &f,
                                                       const struct fp8_place &place) {
    const uint32_t most = f.p.gated ? Plan::WIDTH / 2 : Plan::WIDTH,
                   n = min(most, f.p.parts[place.part].n_out - place.first);
    return (1 + f.p.gated) * n * sizeof(float);
}

/* Starts copying these scales; gate's come before up's. */
template <class Plan>
static __device__ __forceinline__ void load_scales(const struct fp8_params &f,
                                                   const struct fp8_place &place, float *to,
                                                   uint64_t *full) {
    const uint32_t n = 1 + f.p.gated, bytes = scale_bytes<Plan>(f, place) / n;
    for (uint32_t i = 0; i < n; i++)
        bulk_load(to + i * (Plan::WIDTH / 2),
                  static_cast<const float *>(f.p.parts[place.part + i].scales) + place.first, bytes,
                  full);
}

template <class Plan>
static __device__ __forceinline__ void load_weights(const struct fp8_params &f, Plan *plan) {
    const uint32_t rank = cluster_rank(), n_items = f.cut.n_row_units * f.cut.n_tile_units;
    const struct fp8_stages stages = find_stages<Plan>(f);
    typename Plan::place at = {0, 1};
    ring_place<N_SLOTS> slot = {0, 1};
    for (uint32_t i = blockIdx.x / CLUSTER; i < n_items; i += gridDim.x / CLUSTER) {
        const struct fp8_place place = find_place<Plan>(f, fp8_find_item(&f.cut, i, rank).tile);
#pragma unroll 1
        for (uint32_t k = stages.begin; k < stages.end; k++, at.advance()) {
            const int column = (int)(k * STAGE_COLUMNS / 2);
            unsigned char *to = plan->stages[at.stage].w;
            uint64_t *full = &plan->full[at.stage];
            barrier_wait(&plan->empty[at.stage], at.parity);
            const bool has_scales = !Plan::BLOCKS && k == 0;
            if (has_scales) barrier_wait(&plan->slot_empty[slot.stage], slot.parity);
            barrier_arrive_expect(full,
                                  Plan::W_BYTES + (has_scales ? scale_bytes<Plan>(f, place) : 0));
            if (has_scales) {
                load_scales<Plan>(f, place, plan->w_scales[slot.stage], full);
                slot.advance();
            }
            if (has_own_weights<Plan>(f)) {
                load_half<Plan>(f, place, to, 0, column, full);
                load_half<Plan>(f, place, to, 1, column, full);
            } else {
                load_half<Plan>(f, place, to, rank, column, full);
            }
        }
    }
    if (!Plan::HALVES) await_empty(plan, at);
}

template <class Plan>
static __device__ __forceinline__ void load_x(const struct fp8_params &f, Plan *plan) {
    const uint32_t rank = cluster_rank(), n_items = f.cut.n_row_units * f.cut.n_tile_units,
                   n_scale_bytes = Plan::X_SCALES * sizeof(float);
    const struct fp8_stages stages = find_stages<Plan>(f);
    typename Plan::place at = {0, 1};
    wait_for_previous();
    for (uint32_t i = blockIdx.x / CLUSTER; i < n_items; i += gridDim.x / CLUSTER) {
        const uint32_t row = fp8_find_item(&f.cut, i, rank).row;
        const float *scales = f.p.x_scales + stages.begin * f.p.x_scale_stride + row;
#pragma unroll 1
        for (uint32_t k = stages.begin; k < stages.end; k++, at.advance()) {
            const int column = (int)(k * STAGE_COLUMNS / 2);
            unsigned char *to = plan->stages[at.stage].x;
            uint64_t *full = &plan->full[at.stage];
            barrier_wait(&plan->empty[at.stage], at.parity);
            barrier_arrive_expect(full, Plan::X_BYTES + n_scale_bytes);
            if (!Plan::HALVES && f.cut.pair == FP8_PAIR_OUTPUTS) {
                tensor_load_shared(to + rank * GROUP_BYTES, &f.x, column, row + rank * GROUP_ROWS,
                                   full, BOTH);
            } else {
                tensor_load(to, &f.x, column, row, full);
                tensor_load(to + GROUP_BYTES, &f.x, column, row + GROUP_ROWS, full);
            }
            if (!Plan::BLOCKS) continue;
            bulk_load(plan->x_scales[at.stage], scales, n_scale_bytes, full);
            scales += f.p.x_scale_stride;
        }
    }
    if (!Plan::HALVES) await_empty(plan, at);
}

/* Waits until all threads of the cluster are here that have not ended. */
static __device__ __forceinline__ void cluster_meet() {
    cluster_arrive();
    cluster_wait();
}

/* Stores what warpgroups leave in `results`, or adds it. */
template <class Plan>
static __device__ __forceinline__ void store_results(const struct fp8_params &f, Plan *plan) {
    const uint32_t rank = cluster_rank(), n_items = f.cut.n_row_units * f.cut.n_tile_units,
                   n_boxes = f.p.gated ? Plan::N_BOXES / 2 : Plan::N_BOXES,
                   first_group = Plan::HALVES ? rank : 0,
                   end_group = Plan::HALVES ? rank + 1 : GROUPS;
    uint32_t parity = 0;
    if (Plan::HALVES) cluster_meet(), cluster_meet(); /* as exchange_halves() does */
    wait_for_previous();
    for (uint32_t i = blockIdx.x / CLUSTER; i < n_items; i += gridDim.x / CLUSTER) {
        const struct fp8_item item = fp8_find_item(&f.cut, i, rank);
        const struct fp8_place place = find_place<Plan>(f, item.tile);
        const CUtensorMap *map = &f.y[place.part];
#pragma unroll 1
        for (uint32_t group = first_group; group < end_group; group++, parity ^= 1) {
            const uint32_t row = item.row + group * GROUP_ROWS;
            barrier_wait(&plan->results_full, parity);
            for (uint32_t box = 0; box < n_boxes && item.tile < f.cut.n_tiles; box++) {
                const uint32_t out = place.first + box * BOX_COLUMNS;
                if (f.p.accumulate) tensor_add(map, out, row, plan->results[box]);
                else tensor_store(map, out, row, plan->results[box]);
            }
            stores_commit();
            stores_wait_read<0>();
            barrier_arrive(&plan->results_empty[group]);
        }
    }
    stores_wait();
}

/* ---- consumers: fp8_results.cuh says which sums a thread has ---- */

/* Multiplies all stages of a tile; wgmma adds them up. */
template <class Plan>
static __device__ __forceinline__ void multiply_rows(uint32_t n_stages, uint32_t group, Plan *plan,
                                                     typename Plan::place *at,
                                                     typename Plan::accumulator &sums) {
    uint32_t last = 0;
#pragma unroll 1
    for (uint32_t k = 0; k < n_stages; k++, at->advance()) {
        const uint64_t x = wgmma_matrix(plan->stages[at->stage].x + group * GROUP_BYTES, 0),
                       w = wgmma_matrix(plan->stages[at->stage].w, 0);
        barrier_wait(&plan->full[at->stage], at->parity);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < STAGE_COLUMNS / 32; i++)
            wgmma_shared_a_e4m3(sums, wgmma_advance(x, i * 32), wgmma_advance(w, i * 32),
                                k > 0 || i > 0);
        wgmma_commit();
        if (k > 0) {
            wgmma_wait<1>();
            release_stage(plan, last);
        }
        last = at->stage;
    }
    wgmma_wait<0>();
    wgmma_pin(sums);
    release_stage(plan, last);
}

/* Releases a stage, which both blocks of the cluster copy to unless they have halves of columns. */
template <class Plan>
static __device__ __forceinline__ void release_own_stage(Plan *plan, uint32_t stage) {
    if (!Plan::HALVES) release_stage(plan, stage);
    else if (threadIdx.x % GROUP_THREADS == 0) barrier_arrive(&plan->empty[stage]);
}

/* The scales of a tile's outputs, BOX_COLUMNS of them at a time; one for each stage. */
template <class Plan> struct fp8_block_scales {
    static constexpr int N = Plan::WIDTH / BOX_COLUMNS;
    const float *of[N];

    __device__ __forceinline__ fp8_block_scales(const struct product &p,
                                                const struct fp8_place &place) {
        const uint32_t n_stages = p.n_in / STAGE_COLUMNS;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const bool up = p.gated && i >= N / 2;
            const struct product_part *part = &p.parts[place.part + up];
            const uint32_t out = place.first + (up ? i - N / 2 : i) * BOX_COLUMNS;
            of[i] = static_cast<const float *>(part->scales) +
                    (size_t)(min(out, part->n_out - 1) / FP8_BLOCK) * n_stages;
        }
    }
};

/* Loads the scales of a stage. */
template <class Plan>
static __device__ __forceinline__ void load_block_scales(
    const fp8_block_scales<Plan> &scales, uint32_t k,
    float (&of_column)[Plan::WIDTH / BOX_COLUMNS]) {
    constexpr bool IN_PAIRS = Plan::WIDTH % 256 == 0; /* which are of one block */
#pragma unroll
    for (int i = 0; i < Plan::WIDTH / BOX_COLUMNS; i++) {
        if (IN_PAIRS && i % 2) of_column[i] = of_column[i - 1];
        else
            asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(of_column[i]) : "l"(scales.of[i] + k));
    }
}

/* Adds the sums of a part, times the scales of their rows and columns. */
template <class Plan>
static __device__ __forceinline__ void promote(int part, const float (&part_sums)[Plan::PART / 2],
                                               const float (&of_row)[2],
                                               const float (&of_column)[Plan::WIDTH / BOX_COLUMNS],
                                               typename Plan::accumulator &sums) {
#pragma unroll
    for (int i = 0; i < Plan::PART / 2; i++) {
        const int column = part * Plan::PART + i / 4 * 8;
        sums[part * (Plan::PART / 2) + i] +=
            part_sums[i] * (of_row[i / 2 % 2] * of_column[column / BOX_COLUMNS]);
    }
}

/* Multiplies all stages of a tile, scales the sums of each and adds them up. */
template <class Plan>
static __device__ __forceinline__ void multiply_blocks(const struct fp8_params &f,
                                                       const struct fp8_place &place,
                                                       uint32_t group, Plan *plan,
                                                       typename Plan::place *at,
                                                       typename Plan::accumulator &sums) {
    constexpr int N_SCALES = Plan::WIDTH / BOX_COLUMNS;
    const fp8_block_scales<Plan> scales(f.p, place);
    const struct fp8_stages stages = find_stages<Plan>(f);
    const uint32_t local = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    float part_sums[Plan::PART / 2], next[N_SCALES];
    load_block_scales<Plan>(scales, stages.begin, next);
#pragma unroll
    for (int i = 0; i < Plan::WIDTH / 2; i++) sums[i] = 0.0f;
#pragma unroll 1
    for (uint32_t k = stages.begin; k < stages.end; k++, at->advance()) {
        const uint64_t x = wgmma_matrix(plan->stages[at->stage].x + group * GROUP_BYTES, 0),
                       w = wgmma_matrix(plan->stages[at->stage].w, 0);
        float of_column[N_SCALES];
#pragma unroll
        for (int i = 0; i < N_SCALES; i++) of_column[i] = next[i];
        barrier_wait(&plan->full[at->stage], at->parity);
        const float of_row[2] = {plan->x_scales[at->stage][local],
                                 plan->x_scales[at->stage][local + 8]};
#pragma unroll
        for (int part = 0; part < Plan::PARTS; part++) {
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < STAGE_COLUMNS / 32; i++)
                wgmma_shared_a_e4m3(part_sums, wgmma_advance(x, i * 32),
                                    wgmma_advance(w, part * (Plan::PART * ROW_BYTES) + i * 32),
                                    i > 0);
            wgmma_commit();
            if (part == 0) load_block_scales<Plan>(scales, min(k + 1, stages.end - 1), next);
            wgmma_wait<0>();
            wgmma_pin(part_sums);
            if (part == Plan::PARTS - 1) release_own_stage(plan, at->stage);
            promote<Plan>(part, part_sums, of_row, of_column, sums);
        }
    }
}

/* Adds the sums of both blocks, which have halves of a tile's columns.  Each block then has those
 * of its warpgroup number `rank`.  The other warpgroup's went to the other block, where the ring
 * has been. */
template <class Plan>
static __device__ __forceinline__ void exchange_halves(Plan *plan, uint32_t group,
                                                       typename Plan::accumulator &sums) {
    constexpr uint32_t STEP = GROUP_THREADS * sizeof(float4);
    const uint32_t rank = cluster_rank(),
                   room = shared_at(plan->stages).address + threadIdx.x % GROUP_THREADS * 16;
    cluster_meet(); /* both have read all stages */
#pragma unroll
    for (int j = 0; j < Plan::WIDTH / 8; j++)
        if (group != rank)
            store_to_other(room + j * STEP, make_float4(sums[4 * j], sums[4 * j + 1],
                                                        sums[4 * j + 2], sums[4 * j + 3]));
    cluster_meet();
    if (group != rank) return;
#pragma unroll
    for (int j = 0; j < Plan::WIDTH / 8; j++) {
        uint32_t four[4];
        load_shared(four, shared_at(room + j * STEP));
#pragma unroll
        for (int i = 0; i < 4; i++) sums[4 * j + i] += __uint_as_float(four[i]);
    }
}

/* What a warpgroup computes of the block's tile number `number`. */
struct fp8_work {
    struct fp8_place place;
    uint32_t row, number; /* row: the thread's first */
    bool exists;          /* false: the block has no tile where the other one of the cluster does */
};

template <class Plan>
static __device__ __forceinline__ struct fp8_work find_work(const struct fp8_params &f,
                                                            uint32_t number) {
    const uint32_t i = blockIdx.x / CLUSTER + number * (gridDim.x / CLUSTER);
    const struct fp8_item item = fp8_find_item(&f.cut, i, cluster_rank());
    const uint32_t local = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    struct fp8_work work = {find_place<Plan>(f, item.tile), item.row + local, number,
                            item.tile < f.cut.n_tiles};
    /* The compiler would put the divisions behind the sums, where nothing else runs. */
    asm volatile("" : "+r"(work.place.part), "+r"(work.place.first), "+r"(work.row)::"memory");
    return work;
}

/* Stores a warpgroup's sums, or leaves them to the thread that does.  Warpgroups take turns: each
 * waits until what the other one left has been stored. */
template <class Plan>
static __device__ __forceinline__ void finish_tile(const struct fp8_params &f,
                                                   const struct fp8_work &work, uint32_t group,
                                                   Plan *plan, typename Plan::accumulator &sums) {
    if (f.p.rounded.codes || f.p.y_f32) {
        if (!work.exists) return;
        if (f.p.y_f32) store_f32<Plan>(f.p, work.place, work.row, sums);
        else if constexpr (Plan::BLOCKS && Plan::WIDTH == 2 * FP8_BLOCK)
            store_codes<Plan>(f, work.place, work.row, sums);
        return;
    }
    if (!Plan::HALVES) barrier_wait(&plan->results_empty[group ^ 1], (work.number + group + 1) % 2);
    if (f.p.gated) leave_tile<Plan, true>(f.p, plan, sums);
    else leave_tile<Plan, false>(f.p, plan, sums);
    fence_async_proxy();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(&plan->results_full);
}

template <class Plan>
static __device__ __forceinline__ void consume(const struct fp8_params &f, Plan *plan) {
    const uint32_t group = warpgroup(), n_items = f.cut.n_row_units * f.cut.n_tile_units,
                   cluster = blockIdx.x / CLUSTER, n_clusters = gridDim.x / CLUSTER;
    const bool has_bias = f.p.parts[0].bias || f.p.parts[f.p.n_parts - 1].bias;
    typename Plan::place at = {0, 0};
    struct fp8_work work = find_work<Plan>(f, 0);
    wait_for_previous();
    for (uint32_t i = cluster; i < n_items; i += n_clusters) {
        const struct fp8_work next = find_work<Plan>(f, work.number + 1);
        typename Plan::accumulator sums;
        if constexpr (Plan::BLOCKS) {
            multiply_blocks(f, work.place, group, plan, &at, sums);
        } else {
            const float of_row[2] = {f.p.x_scales[min(work.row, f.p.n_rows - 1)],
                                     f.p.x_scales[min(work.row + 8, f.p.n_rows - 1)]};
            multiply_rows(f.p.n_in / STAGE_COLUMNS, group, plan, &at, sums);
            scale_sums<Plan>(plan->w_scales[work.number % N_SLOTS], of_row, sums);
            if (threadIdx.x % 32 == 0) barrier_arrive(&plan->slot_empty[work.number % N_SLOTS]);
        }
        if constexpr (Plan::HALVES) {
            exchange_halves(plan, group, sums);
            if (group != cluster_rank()) return;
        }
        if (has_bias) add_bias<Plan>(f.p, work.place, sums);
        finish_tile(f, work, group, plan, sums);
        work = next;
    }
}

template <class Plan>
static __global__ void __launch_bounds__(N_THREADS, 1)
    fp8_kernel(const __grid_constant__ struct fp8_params f) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) unsigned char fp8_memory[];
    Plan *plan = reinterpret_cast<Plan *>(fp8_memory);
    let_next_start();
    if (threadIdx.x == 0) {
        for (int i = 0; i < N_SLOTS; i++) barrier_init(&plan->slot_empty[i], N_CONSUMERS / 32);
        barrier_init(&plan->results_full, GROUP_THREADS / 32);
        for (int i = 0; i < GROUPS; i++) barrier_init(&plan->results_empty[i], 1);
    }
    make_barriers(plan, Plan::HALVES ? GROUPS : CLUSTER * GROUPS);
    if (threadIdx.x < N_CONSUMERS) {
        registers_raise<CONSUMER_REGISTERS>();
        consume(f, plan);
    } else {
        registers_lower<PRODUCER_REGISTERS>();
        if (threadIdx.x == N_CONSUMERS) load_weights(f, plan);
        if (threadIdx.x == N_CONSUMERS + 32) load_x(f, plan);
        if (threadIdx.x == N_CONSUMERS + 64 && !f.p.y_f32 && !f.p.rounded.codes)
            store_results(f, plan);
    }
#endif
}

/* ---- host ---- */

template <class Plan>
static cudaError_t launch_tiles(const struct product *p, const struct fp8_cut *cut,
                                struct launch launch) {
    static_assert(sizeof(Plan) <= MEMORY_BYTES, "a block can have so much");
    struct fp8_params f = {};
    f.p = *p;
    f.cut = *cut;
    cudaError_t rc = tensor_map_matrix(&f.x, p->x, p->n_rows, p->n_in / 2, p->n_in, GROUP_ROWS);
    for (uint32_t i = 0; i < p->n_parts && !rc; i++) {
        const struct product_part *part = &p->parts[i];
        rc =
            tensor_map_matrix(&f.w[i], part->w, part->n_out, p->n_in / 2, p->n_in, Plan::HALF_ROWS);
        if (!rc && !p->y_f32 && !p->rounded.codes && (i == 0 || !p->gated))
            rc = tensor_map_matrix(&f.y[i], part->y, p->n_rows, part->n_out, part->y_stride * 2,
                                   GROUP_ROWS);
    }
    if (rc) return rc;
    return launch_clusters(launch, fp8_kernel<Plan>, CLUSTER, CLUSTER * cut->n_clusters, N_THREADS,
                           sizeof(Plan), f);
}

typedef fp8_plan<256, 1, false> fp8_rows_256;
typedef fp8_plan<192, 1, false> fp8_rows_192;
typedef fp8_plan<128, 1, false> fp8_rows_128;
typedef fp8_plan<256, 2, true> fp8_blocks_256;
typedef fp8_plan<128, 1, true> fp8_blocks_128;
typedef fp8_plan<256, 2, true, true> fp8_block_halves_256;
typedef fp8_plan<128, 1, true, true> fp8_block_halves_128;

static cudaError_t start_fp8(const struct product *p, uint32_t max_clusters, struct launch launch) {
    if (p->n_rows == 0) return cudaSuccess;
    if (max_clusters == 0) return cudaErrorNotSupported;
    const struct fp8_cut cut = fp8_choose_cut(p, max_clusters);
    const bool blocks = p->x_scale_stride > 0;
    if (cut.pair == FP8_PAIR_COLUMNS)
        return (cut.width == 256 ? launch_tiles<fp8_block_halves_256>
                                 : launch_tiles<fp8_block_halves_128>)(p, &cut, launch);
    switch (cut.width) {
    case 256:
        return (blocks ? launch_tiles<fp8_blocks_256> : launch_tiles<fp8_rows_256>)(p, &cut,
                                                                                    launch);
    case 192: return blocks ? cudaErrorInvalidValue : launch_tiles<fp8_rows_192>(p, &cut, launch);
    case 128:
        return (blocks ? launch_tiles<fp8_blocks_128> : launch_tiles<fp8_rows_128>)(p, &cut,
                                                                                    launch);
    default: return cudaErrorInvalidValue;
    }
}

extern "C" product_launch launch_fp8;
int launch_fp8(struct cuda_backend *cuda, const struct product *p, struct error *err) {
    const struct product joined = p->gated ? *p : product_join(p);
    return cuda_check(cuda, start_fp8(&joined, cuda->products.n_fp8_clusters, launch_of(cuda)),
                      "the product kernel \"fp8\"", err);
}

template <class Plan> static bool open_tiles(int *n) {
    return open_pairs<Plan>(fp8_kernel<Plan>, N_THREADS, n);
}

extern "C" product_open open_fp8;
int open_fp8(struct cuda_backend *cuda, struct error *) {
    int n = (int)(cuda->n_multiprocessors / CLUSTER);
    if (n > 0 && open_tiles<fp8_rows_256>(&n) && open_tiles<fp8_rows_192>(&n) &&
        open_tiles<fp8_rows_128>(&n) && open_tiles<fp8_blocks_256>(&n) &&
        open_tiles<fp8_blocks_128>(&n) && open_tiles<fp8_block_halves_256>(&n) &&
        open_tiles<fp8_block_halves_128>(&n))
        cuda->products.n_fp8_clusters = (uint32_t)n;
    cudaGetLastError(); /* an answer, not a fault */
    return 0;
}
