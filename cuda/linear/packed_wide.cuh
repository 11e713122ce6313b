/* packed_wide.cuh - y = x W^T for packed weights on Hopper, any number of rows: a template.
 * packed_wide_*.cu have its kernels, packed_tile.cuh what happens inside of a tile.
 *
 *   wave        a tile for each block, at the same time
 *   split       in the last wave, where tiles are too few for the device, the blocks of a cluster
 *               have shares of a tile's columns; each adds up the sums of some rows, which the
 *               others put into its shared memory
 *   order       rows_at_once row tiles against all outputs, tile after tile of these; then the next
 *               row tiles.  So x stays in L2 while all of W passes through
 *   producers   one thread asks for W, which never changes, so it fills the ring before the kernel
 *               before has ended; another asks for x
 *
 * Sums have one order for a number of rows, whatever the timing.
 *
 * Shared: struct packed_plan.  Bound: memory for few rows, power for many.
 * Oracle: unpacked.cu, and sums in double (tests/cuda/test_packed.c). */
#ifndef CUDA_LINEAR_PACKED_WIDE_CUH
#define CUDA_LINEAR_PACKED_WIDE_CUH

#include "cuda/linear/packed_tile.cuh"

/* An item is the stages [begin, end) of a tile, from this strip of a part and this row on.  It is
 * one of n_shares. */
struct packed_item {
    uint32_t part, strip, row, begin, end, n_shares;
};

/* Returns item number i, below n_items.  Row tiles of the same weights follow each other, at most
 * rows_at_once of them.  The first n_whole items are whole tiles.  Behind them a tile's shares are
 * neighbours, a block each. */
template <class Plan>
static __device__ __forceinline__ struct packed_item find_item(const struct packed_params &w,
                                                               uint32_t i) {
    const bool is_whole = i < w.n_whole;
    const uint32_t n_stages = (w.p.n_in + Plan::COLUMNS - 1) / Plan::COLUMNS,
                   n_shares = is_whole ? 1 : w.n_splits,
                   split = is_whole ? 0 : (i - w.n_whole) % n_shares;
    if (!is_whole) i = w.n_whole + (i - w.n_whole) / n_shares;
    const uint32_t most = w.rows_at_once * w.n_tiles, first = i / most * w.rows_at_once,
                   n = min(w.rows_at_once, w.n_row_tiles - first), at = i % most;
    uint32_t tile = at / n;
    struct packed_item item = {};
    item.row = (first + at % n) * Plan::ROWS;
    const uint32_t per_tile = w.p.gated ? Plan::N_STRIPS / 2 : Plan::N_STRIPS;
    item.part = 0;
#pragma unroll 1
    for (; item.part + 1 < w.p.n_parts && !w.p.gated; item.part++) {
        const uint32_t n_tiles =
            (w.p.parts[item.part].n_out + Plan::N_STRIPS * STRIP - 1) / (Plan::N_STRIPS * STRIP);
        if (tile < n_tiles) break;
        tile -= n_tiles;
    }
    item.strip = tile * per_tile;
    item.begin = n_stages * split / n_shares;
    item.end = n_stages * (split + 1) / n_shares;
    item.n_shares = n_shares;
    return item;
}

/* ---- producers ---- */

/* Does the part of the thread that copies weights.  It fills every stage of the block's items
 * that the consumers have released, and returns when the last copy has been started. */
template <class Plan>
static __device__ __forceinline__ void load_weights(const struct packed_params &w, Plan *plan) {
    const uint32_t bytes = Plan::W_BYTES + Plan::N_SCALES * Plan::N_STRIPS * w.scale_strip_bytes;
    typename Plan::place at = {0, 1};
    for (uint32_t i = blockIdx.x; i < w.n_items; i += gridDim.x) {
        const struct packed_item item = find_item<Plan>(w, i);
#pragma unroll 1
        for (uint32_t k = item.begin; k < item.end; k++, at.advance()) {
            barrier_wait(&plan->empty[at.stage], at.parity);
            barrier_arrive_expect(&plan->full[at.stage], bytes);
            if (!w.p.gated) {
                load_strips(w, plan, item.part, item.strip, k, 0, at.stage);
                continue;
            }
            load_strips(w, plan, 0, item.strip, k, 0, at.stage);
            load_strips(w, plan, 1, item.strip, k, Plan::N_STRIPS / 2, at.stage);
        }
    }
}

/* Does the part of the thread that copies rows of x, in the order of load_weights().  It waits
 * for the kernel that computes x. */
template <class Plan>
static __device__ __forceinline__ void load_x(const struct packed_params &w, Plan *plan) {
    typename Plan::place at = {0, 1};
    wait_for_previous();
    for (uint32_t i = blockIdx.x; i < w.n_items; i += gridDim.x) {
        const struct packed_item item = find_item<Plan>(w, i);
#pragma unroll 1
        for (uint32_t k = item.begin; k < item.end; k++, at.advance()) {
            uint64_t *full = &plan->full[at.stage];
            barrier_wait(&plan->empty[at.stage], at.parity);
            barrier_arrive_expect(full, Plan::X_BYTES);
#pragma unroll
            for (int u = 0; u < Plan::UNITS; u++) {
                unsigned char *to = plan->stages[at.stage].x + u * Plan::BOX_BYTES;
                const int column = k * Plan::COLUMNS + u * UNIT_COLUMNS;
                tensor_load(to, &w.x, column, item.row, full);
            }
        }
    }
}

/* ---- shares of sums ---- */

/* Writes x to the shared memory of another block of the cluster.  `at` is the same place in this
 * block's memory, and `block` a rank in the cluster.  Only a barrier of the cluster says that x
 * is there. */
static __device__ __forceinline__ void store_remote(uint32_t at, uint32_t block, float4 x) {
    asm volatile("{\n.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "st.shared::cluster.v4.f32 [there], {%2, %3, %4, %5};\n}" ::"r"(at),
                 "r"(block), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
                 : "memory");
}

/* Puts sums into the shared memory of the blocks that write them, where the ring has been.  Then
 * adds what the other blocks have put there to this block's sums, in the order of the blocks. */
template <class Plan>
static __device__ __forceinline__ void add_shares(const struct packed_params &w, Plan *plan,
                                                  const struct packed_rows &mine,
                                                  typename Plan::accumulator &sums) {
    constexpr int N = Plan::ROWS / 8, STEP = Plan::N_CONSUMERS * 16;
    const int n_splits = (int)w.n_splits, rank = (int)(blockIdx.x % w.n_splits);
    const uint32_t room = shared_at(plan->stages).address + threadIdx.x * 16;
    cluster_arrive();
    cluster_wait();
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int owner = ((j + 1) * n_splits - 1) / N, begin = N * owner / n_splits,
                  n = N * (owner + 1) / n_splits - begin;
        if (owner == rank) continue;
        store_remote(room + ((rank - (rank > owner)) * n + j - begin) * STEP, owner,
                     make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]));
    }
    cluster_arrive();
    cluster_wait();
#pragma unroll 1
    for (int other = 0; other < n_splits - 1; other++) {
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (!mine.has(j)) continue;
            uint32_t four[4];
            load_shared(
                four, shared_at(room + (other * (mine.end - mine.begin) + j - mine.begin) * STEP));
#pragma unroll
            for (int i = 0; i < 4; i++) sums[4 * j + i] += __uint_as_float(four[i]);
        }
    }
}

/* ---- results ---- */

/* Returns the outputs of the thread's warpgroup in this item. */
template <class Plan>
static __device__ __forceinline__ struct packed_results find_results(const struct packed_params &w,
                                                                     const struct packed_item &item,
                                                                     Plan *plan) {
    const uint32_t group = warpgroup();
    return {&w.p.parts[w.p.gated ? group / (Plan::GROUPS / 2) : item.part],
            shared_at(plan->results + group * Plan::GROUP_RESULTS).address,
            group,
            item.row,
            w.p.n_rows,
            item.strip * STRIP + (w.p.gated ? group % (Plan::GROUPS / 2) : group) * GROUP_OUTPUTS,
            0};
}

/* Starts reading y, bf16, to where results are in shared memory: what they will be added to, of the
 * rows `mine`.  Returns before it is there: add_old() waits. */
template <class Plan>
static __device__ __forceinline__ void read_old(const struct packed_params &w,
                                                const struct packed_results &r,
                                                const struct packed_rows &mine) {
#pragma unroll 1
    for (int i = mine.begin * 64 + threadIdx.x % GROUP_THREADS; i < mine.end * 64;
         i += GROUP_THREADS) {
        const uint32_t row = r.first_row + i / 8, out = r.first_out + i % 8 * 8;
        const bool valid = row < w.p.n_rows && out < r.part->n_out;
        const bf16 *y = static_cast<const bf16 *>(r.part->y);
        if (valid) y += row * r.part->y_stride + out;
        copy_async(result_at(r, i / 8, i % 8), y, valid);
    }
    copy_async_commit();
}

/* Adds what read_old() has read to the sums of the rows `mine`.  It waits for those reads.  All
 * threads of the warpgroup call it. */
template <class Plan>
static __device__ __forceinline__ void add_old(const struct packed_results &r,
                                               const struct packed_rows &mine,
                                               typename Plan::accumulator &sums) {
    copy_async_wait_all();
    sync_group(r);
#pragma unroll
    for (int j = 0; j < Plan::ROWS / 8; j += 2) {
        if (!mine.has(j) && !mine.has(j + 1)) continue;
        uint32_t old[4];
        load_matrix_trans(old, matrix_at(r, j));
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const float2 x = unpack_bf16(old[m]);
            sums[4 * j + 2 * m] += x.x;
            sums[4 * j + 2 * m + 1] += x.y;
        }
    }
}

/* Writes the thread's sums of the rows `mine` to y in f32, or adds them to it if accumulate. */
template <class Plan>
static __device__ __forceinline__ void write_f32(const struct packed_params &w,
                                                 const struct packed_results &r,
                                                 const struct packed_rows &mine,
                                                 const typename Plan::accumulator &sums) {
#pragma unroll
    for (int j = 0; j < Plan::ROWS / 8; j++) {
        if (!mine.has(j)) continue;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t row = r.first_row + 8 * j + threadIdx.x % 4 * 2 + i % 2,
                           out = output_of(r, i / 2);
            if (row >= w.p.n_rows || out >= r.part->n_out) continue;
            float *y = static_cast<float *>(r.part->y) + row * r.part->y_stride + out;
            *y = w.p.accumulate ? *y + sums[4 * j + i] : sums[4 * j + i];
        }
    }
}

/* Makes results of an item's sums and writes them.  It changes sums.  If the item is a share, all
 * blocks of the cluster must call it. */
template <class Plan>
static __device__ __forceinline__ void finish(const struct packed_params &w, Plan *plan,
                                              const struct packed_item &item,
                                              const struct packed_rows &mine,
                                              typename Plan::accumulator &sums) {
    const struct packed_results r = find_results(w, item, plan);
    if (item.n_shares > 1) add_shares<Plan>(w, plan, mine, sums);
    apply_rows<Plan>(w, r, sums);
    if (w.p.y_f32) {
        write_f32<Plan>(w, r, mine, sums);
        return;
    }
    if (w.p.accumulate) add_old<Plan>(r, mine, sums);
    const auto gate = [&](float g, float u) { return gate_mul_short(g, u, w.p.kind); };
    if (w.p.gated) share_gated(plan, r, gate, sums);
    else share_results(r, mine, sums);
    write_results<Plan>(w, r, mine);
}

/* Returns the groups of 8 rows of an item's tile that the block writes.  These are all, or its part
 * of them where the blocks of a cluster have shares. */
template <class Plan>
static __device__ __forceinline__ struct packed_rows find_rows(const struct packed_item &item) {
    const int n = Plan::ROWS / 8, of = (int)item.n_shares, rank = (int)blockIdx.x % of;
    return {n * rank / of, n * (rank + 1) / of};
}

/* Does the consumers' part of the kernel; each of their threads calls it once.  It multiplies
 * what the producers copy and writes the results of each of the block's items.  A share is the
 * block's last item, because shares are exchanged where the ring has been. */
template <class Plan>
static __device__ __forceinline__ void consume(const struct packed_params &w, Plan *plan) {
    typename Plan::place at = {0, 0};
    wait_for_previous();
    for (uint32_t i = blockIdx.x; i < w.n_items; i += gridDim.x) {
        const struct packed_item item = find_item<Plan>(w, i);
        const float *blocks = find_blocks<Plan>(w.p, find_results(w, item, plan));
        typename Plan::accumulator sums;
        if (w.p.accumulate && !w.p.y_f32)
            read_old<Plan>(w, find_results(w, item, plan), find_rows<Plan>(item));
        multiply<Plan>(w, item.begin, item.end, threadIdx.x / 32, blocks, plan, &at, sums);
        const struct packed_item again = find_item<Plan>(w, i);
        finish<Plan>(w, plan, again, find_rows<Plan>(again), sums);
    }
}

/* The kernel: N_CONSUMERS threads multiply, and one thread of each of the two warps behind them
 * copies.  The blocks take items in turn, in clusters of n_splits. */
template <class Plan>
static __global__ void __launch_bounds__(Plan::N_THREADS, 1)
    packed_kernel(const __grid_constant__ struct packed_params w) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) unsigned char packed_memory[];
    Plan *plan = reinterpret_cast<Plan *>(packed_memory);
    let_next_start();
    if (threadIdx.x == 0) {
        for (int i = 0; i < Plan::N_STAGES; i++) {
            barrier_init(&plan->full[i], 2);
            barrier_init(&plan->empty[i], Plan::GROUPS);
        }
        barriers_publish();
    }
    __syncthreads();
    if (threadIdx.x < Plan::N_CONSUMERS) {
        registers_raise<Plan::CONSUMER_REGISTERS>();
        consume<Plan>(w, plan);
    } else {
        registers_lower<Plan::PRODUCER_REGISTERS>();
        const uint32_t warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
        if (warp == Plan::N_CONSUMERS / 32 && elect_lane()) load_weights<Plan>(w, plan);
        if (warp == Plan::N_CONSUMERS / 32 + 1 && elect_lane()) load_x<Plan>(w, plan);
    }
#endif
}

/* ---- host ---- */

/* Starts the kernel for a product that this plan fits.  Tiles that do not fill a wave have n_splits
 * shares each of their columns.  launch.n_multiprocessors blocks run at the same time.  Returns
 * CUDA's error. */
template <class Plan>
static cudaError_t launch_packed(const struct product *p, uint32_t n_splits, struct launch launch) {
    struct packed_params w = {};
    w.p = *p;
    w.n_splits = n_splits;
    const uint32_t per_tile =
                       p->gated ? Plan::GROUPS * GROUP_OUTPUTS / 2 : Plan::GROUPS * GROUP_OUTPUTS,
                   n_parts = p->gated ? 1 : p->n_parts;
    for (uint32_t i = 0; i < n_parts; i++)
        w.n_tiles += (p->parts[i].n_out + per_tile - 1) / per_tile;
    w.n_row_tiles = (p->n_rows + Plan::ROWS - 1) / Plan::ROWS;
    w.rows_at_once = 2048 / Plan::ROWS;
    const uint32_t n_all = w.n_row_tiles * w.n_tiles, most = launch.n_multiprocessors;
    w.n_whole = n_splits > 1 ? n_all / most * most : n_all;
    w.n_items = w.n_whole + (n_all - w.n_whole) * n_splits;
    cudaError_t rc =
        tensor_map_matrix(&w.x, p->x, p->n_rows, p->n_in, (uint64_t)p->n_in * 2, Plan::ROWS);
    if (!rc) rc = describe_weights<Plan>(&w, p, 1);
    if (rc) return rc;
    const uint32_t n_waves = (w.n_items + most - 1) / most,
                   n_blocks =
                       n_splits > 1 ? min(w.n_items, most) : (w.n_items + n_waves - 1) / n_waves;
    return launch_clusters(launch, packed_kernel<Plan>, n_splits, n_blocks, Plan::N_THREADS,
                           sizeof(Plan), w);
}

/* ---- the kernels of a format ---- */

struct packed_wide_kernels {
    cudaError_t (*launch[N_PACKED_WIDE_TILES])(const struct product *p, uint32_t n_splits,
                                               struct launch launch);
    bool (*open)(struct packed_wide_device *device);
};

/* The formats' kernels, each in one of packed_wide_*.cu. */
extern const struct packed_wide_kernels packed_wide_i4_rows, packed_wide_i4_bf16,
    packed_wide_i4_bf16_64, packed_wide_i4_bf16_32, packed_wide_i4_f16, packed_wide_i4_f16_64,
    packed_wide_i4_f16_32, packed_wide_i4_f16_16, packed_wide_i4_f32, packed_wide_i4_f32_min,
    packed_wide_i4_f32_64_min, packed_wide_i4_f32_32_min, packed_wide_i4_f16_32_min,
    packed_wide_i4_f16_16_min, packed_wide_i8_rows, packed_wide_i8_bf16, packed_wide_i8_f16,
    packed_wide_i8_f16_32, packed_wide_i8_f16_16, packed_wide_i8_f16_32_min, packed_wide_e4m3_rows,
    packed_wide_e4m3_blocks, packed_wide_e2m1_32;

/* Gives a kernel its shared memory, and lowers the numbers of clusters to those that run at the
 * same time.  False: the device cannot run it. */
template <class Plan> static bool open_packed(struct packed_wide_device *device) {
    if (!runs_sm90_code(packed_kernel<Plan>) ||
        cudaFuncSetAttribute(packed_kernel<Plan>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)sizeof(Plan)) != cudaSuccess)
        return false;
    for (uint32_t n_splits = 1; n_splits <= PACKED_WIDE_MAX_SPLITS && device; n_splits++) {
        int n = 0;
        if (count_clusters(packed_kernel<Plan>, n_splits, Plan::N_THREADS, sizeof(Plan), &n) !=
            cudaSuccess)
            n = 0;
        device->n_clusters[n_splits] = min((uint32_t)n, device->n_clusters[n_splits]);
    }
    return true;
}

/* Returns the launches of these plans, and a function that opens all of them. */
template <class... Plans> static constexpr struct packed_wide_kernels list_kernels() {
    return {{launch_packed<Plans>...},
            [](struct packed_wide_device *device) { return (open_packed<Plans>(device) && ...); }};
}

/* Returns the kernels of a packed_format, in the order of packed_wide_tiles. */
template <class Format> static constexpr struct packed_wide_kernels kernels_of() {
    return list_kernels<
        packed_plan<Format, 16, 4>, packed_plan<Format, 16, 2>, packed_plan<Format, 32, 4>,
        packed_plan<Format, 32, 2>, packed_plan<Format, 64, 4>, packed_plan<Format, 64, 2>,
        packed_plan<Format, 128, 4>, packed_plan<Format, 128, 2>, packed_plan<Format, 160, 2>,
        packed_plan<Format, 192, 2>, packed_plan<Format, 256, 2>>();
}

#endif
