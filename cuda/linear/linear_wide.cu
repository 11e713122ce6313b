/* linear_wide.cu - y = x W^T for up to 256 rows on Hopper: decoding many sequences.
 *
 *   tile        all rows of x against `width` rows of W (wide_cut.h); gated: half of them are
 *               gate's, half up's, and a thread has the sums of both
 *   cluster     two blocks with neighbouring tiles; each copies half of x to both
 *
 *      stage of block 0    | x: upper half | x: lower half | W: rows of tile 2i     |  64 columns
 *      stage of block 1    | x: upper half | x: lower half | W: rows of tile 2i + 1 |
 *                           by block 0 ^    by block 1 ^
 *
 *   producers   one thread asks for W, which never changes, so it fills the ring before the kernel
 *               before has ended; another asks for x
 *   consumers   a warpgroup for every 64 rows: wgmma with x as A and the stage of W as B
 *   shares      where tiles are too few for the device, the sums are split along n_in; the blocks
 *               of a tile exchange their shares in f32, and each adds up some columns
 *
 * Sums have one order, whatever the timing.  Rows of a stage behind x's last are not written; their
 * sums are not used.
 *
 * What bounds a stage: with few rows the memory, of which an H200 gives these tiles 0.93, in any order
 * (linear_stream.cu's longer rows 1.00); with 256 rows shared memory, where each warpgroup
 * reads all of W, 1070 clocks of 128 bytes for 112 rows of W, while wgmma takes 900, and the memory
 * 1080 for its 14 KB.
 *
 * With Llama-3-8B's shapes, us on an H100; in brackets cuBLASLt, with the SiLU of gate and up; a
 * layer in one CUDA graph after the other over 15 GB:
 *
 *   rows    qkv           o             gate, up      down          layer
 *     32    18.6 (21.3)   14.5 (14.3)    80.0 (87)    42.7 (45.4)   155 (169)
 *     64    19.0 (20.3)   15.5 (14.5)    80.9 (91)    42.8 (46.5)   158 (173)
 *    128    21.4 (21.6)   17.8 (15.3)    82.6 (94)    45.0 (52.6)   166 (185)
 *    192    25.1 (22.9)   19.2 (16.5)    87.3 (103)   50.5 (66.3)   188 (203)
 *    256    31.8 (25.4)   24.3 (19.0)   102.5 (122)   58.1 (61.5)   218 (224); 212 by linear.c
 *
 * Tried and slower: prefetching W to L2 ahead of the copies (by a tenth and more), 128 bytes as the
 * tensor map's promotion (2 us a layer of an H100; not measured on an H200), W without evict-first (5
 * us), tiles of 128 and 32 rows; W as A with tiles of 128 rows, in equal runs of stages for all clusters
 * (1 to 25 % on an H200).
 * The code that follows the sums runs once, so it is as short as unrolled code can be: what it took
 * to fetch a longer one cost 15 us.
 *
 * Shared: struct wide_plan.  Bound: memory, 2 * n_in * n_out bytes.
 * Oracle: engine/cpu/linear.c. */
#include "cuda/linear/block_pair.cuh"
#include "cuda/linear/wide_cut.h"

typedef __nv_bfloat16 bf16;

enum {
    STAGE_COLUMNS = WIDE_STAGE_COLUMNS,
    ROW_BYTES = STAGE_COLUMNS * 2,
    GROUP_ROWS = WIDE_GROUP_ROWS,
    MEMORY_BYTES = 227 << 10,
    /* With four warpgroups of consumers; else there are registers enough. */
    WIDE_PRODUCER_REGISTERS = 32,
    WIDE_CONSUMER_REGISTERS = 112,
};

template <int GROUPS, int WIDTH> struct wide_plan {
    static constexpr int X_BYTES = GROUPS * GROUP_ROWS * ROW_BYTES, W_BYTES = WIDTH * ROW_BYTES;
    static constexpr int N_STAGES = (MEMORY_BYTES - 512) / (X_BYTES + W_BYTES);
    typedef ring_place<N_STAGES> place;
    struct {
        unsigned char x[X_BYTES], w[W_BYTES];
    } stages[N_STAGES];
    uint64_t full[N_STAGES], empty[N_STAGES];
};

static_assert((int)CLUSTER == WIDE_CLUSTER, "tiles are counted in pairs");

struct wide_params {
    CUtensorMap x, w[LINEAR_MAX_PARTS];
    struct skinny_params p;
    struct wide_room room;
    /* n_items: pairs of neighbouring tiles, times the shares of a sum */
    uint32_t n_tiles, n_splits, n_items, half_rows;
};

/* An item is the stages [begin, end) of a tile.  A block computes one at a time. */
struct wide_item {
    uint32_t tile, begin, end;
};

/* A tile's part, and its first result there. */
struct wide_place {
    uint32_t part, first;
};

static __device__ __forceinline__ struct wide_item find_item(const struct wide_params &w,
                                                             uint32_t item) {
    const uint32_t n_stages = (w.p.n_in + STAGE_COLUMNS - 1) / STAGE_COLUMNS,
                   split = item % w.n_splits;
    return {item / w.n_splits * CLUSTER + cluster_rank(), n_stages * split / w.n_splits,
            n_stages * (split + 1) / w.n_splits};
}

/* Gate and up count as one part. */
template <int WIDTH>
static __device__ __forceinline__ struct wide_place find_place(const struct wide_params &w,
                                                               uint32_t tile) {
    uint32_t part = 0;
    if (w.p.gated) return {0, tile * (WIDTH / 2)};
    for (; part + 1 < w.p.n_parts; part++) {
        const uint32_t n_tiles = (w.p.parts[part].n_out + WIDTH - 1) / WIDTH;
        if (tile < n_tiles) break;
        tile -= n_tiles;
    }
    return {part, tile * WIDTH};
}

/* ---- producers ---- */

template <int GROUPS, int WIDTH>
static __device__ __forceinline__ void load_weights(const struct wide_params &w,
                                                    struct wide_plan<GROUPS, WIDTH> *plan) {
    const int bytes = wide_plan<GROUPS, WIDTH>::W_BYTES;
    const uint64_t policy = pass_through_policy();
    typename wide_plan<GROUPS, WIDTH>::place at = {0, 1};
    for (uint32_t i = blockIdx.x / CLUSTER; i < w.n_items; i += gridDim.x / CLUSTER) {
        const struct wide_item item = find_item(w, i);
        /* The second block of the last pair may have no tile: it takes the first one's, too. */
        const struct wide_place place = find_place<WIDTH>(w, min(item.tile, w.n_tiles - 1));
#pragma unroll 1
        for (uint32_t k = item.begin; k < item.end; k++, at.advance()) {
            unsigned char *to = plan->stages[at.stage].w;
            uint64_t *full = &plan->full[at.stage];
            barrier_wait(&plan->empty[at.stage], at.parity);
            barrier_arrive_expect(full, bytes);
            tensor_load_hinted(to, &w.w[place.part], k * STAGE_COLUMNS, place.first, full, policy);
            if (w.p.gated)
                tensor_load_hinted(to + bytes / 2, &w.w[1], k * STAGE_COLUMNS, place.first, full,
                                   policy);
        }
    }
}

/* Copies the block's half of x to both blocks of the cluster. */
template <int GROUPS, int WIDTH>
static __device__ __forceinline__ void load_x(const struct wide_params &w,
                                              struct wide_plan<GROUPS, WIDTH> *plan) {
    const uint32_t row = cluster_rank() * w.half_rows;
    typename wide_plan<GROUPS, WIDTH>::place at = {0, 1};
    wait_for_previous();
    for (uint32_t i = blockIdx.x / CLUSTER; i < w.n_items; i += gridDim.x / CLUSTER) {
        const struct wide_item item = find_item(w, i);
#pragma unroll 1
        for (uint32_t k = item.begin; k < item.end; k++, at.advance()) {
            uint64_t *full = &plan->full[at.stage];
            barrier_wait(&plan->empty[at.stage], at.parity);
            barrier_arrive_expect(full, CLUSTER * w.half_rows * ROW_BYTES);
            tensor_load_shared(plan->stages[at.stage].x + row * ROW_BYTES, &w.x, k * STAGE_COLUMNS,
                               row, full, (1 << CLUSTER) - 1);
        }
    }
    await_empty(plan, at);
}

/* ---- consumers ---- */

/* sums[4 j + 2 h + e] is of row lane / 4 + 8 h of the warp's 16 and of column 8 j + lane % 4 * 2 + e
 * of the tile. */
template <int GROUPS, int WIDTH>
static __device__ __forceinline__ void multiply(const struct wide_item &item,
                                                struct wide_plan<GROUPS, WIDTH> *plan,
                                                typename wide_plan<GROUPS, WIDTH>::place *at,
                                                float (&sums)[WIDTH / 2]) {
    const uint32_t group = threadIdx.x / GROUP_THREADS;
    uint32_t last = 0;
#pragma unroll 1
    for (uint32_t k = item.begin; k < item.end; k++, at->advance()) {
        const uint64_t x = wgmma_matrix(
                           plan->stages[at->stage].x + group * (GROUP_ROWS * ROW_BYTES), 0),
                       w = wgmma_matrix(plan->stages[at->stage].w, 0);
        barrier_wait(&plan->full[at->stage], at->parity);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < STAGE_COLUMNS / 16; i++)
            wgmma_shared_a(sums, wgmma_advance(x, i * 32), wgmma_advance(w, i * 32),
                           k > item.begin || i > 0);
        wgmma_commit();
        if (k > item.begin) {
            wgmma_wait<1>();
            release_stage(plan, last);
        }
        last = at->stage;
    }
    wgmma_wait<0>();
    wgmma_pin(sums);
    release_stage(plan, last);
}

/* The groups of 8 columns of a tile, [begin, end), whose results a block writes; of a gated tile,
 * those of gate. */
struct wide_columns {
    int begin, end;
    __device__ __forceinline__ bool has(int j) const { return j >= begin && j < end; }
};

/* Waits until n blocks have come here, and sees what they wrote before.  All of them run: they are
 * not more than fit on the device, and no later kernel starts before they have. */
static __device__ __forceinline__ void meet(uint32_t *arrived, uint32_t n) {
    uint32_t seen;
    __threadfence();
    atomicAdd(arrived, 1);
    do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(seen) : "l"(arrived) : "memory");
    while (seen < n);
    /* The last to leave sets it to 0 for the next kernel. */
    if (atomicAdd(arrived, 1) == 2 * n - 1) *arrived = 0;
}

/* Exchanges shares of the sums with the blocks that have the tile's others.  A column's sum is the
 * share of the block that writes it, and then the others in their order. */
template <int GROUPS, int WIDTH>
static __device__ __forceinline__ void add_shares(const struct wide_params &w, uint32_t item,
                                                  uint32_t tile, const struct wide_columns &mine,
                                                  float (&sums)[WIDTH / 2]) {
    constexpr int N_THREADS = GROUPS * GROUP_THREADS, N_COLUMNS = WIDTH / 8;
    const uint32_t split = item % w.n_splits;
    const size_t stride = (size_t)CLUSTER * N_COLUMNS * N_THREADS; /* from share to share */
    float4 *shares = reinterpret_cast<float4 *>(w.room.shares) + (item - split) * stride +
                     cluster_rank() * (N_COLUMNS * N_THREADS) + threadIdx.x;
#pragma unroll
    for (int j = 0; j < N_COLUMNS; j++)
        if (!mine.has(w.p.gated ? j % (N_COLUMNS / 2) : j))
            __stcg(shares + split * stride + j * N_THREADS,
                   make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]));
    named_sync(1, N_THREADS);
    if (threadIdx.x == 0) meet(&w.room.arrived[tile], w.n_splits);
    named_sync(1, N_THREADS);
#pragma unroll 1
    for (uint32_t s = 0; s < w.n_splits; s++) {
        if (s == split) continue;
#pragma unroll
        for (int j = 0; j < N_COLUMNS; j++) {
            if (!mine.has(w.p.gated ? j % (N_COLUMNS / 2) : j)) continue;
            const float4 v = __ldcg(shares + s * stride + j * N_THREADS);
            sums[4 * j] += v.x, sums[4 * j + 1] += v.y;
            sums[4 * j + 2] += v.z, sums[4 * j + 3] += v.w;
        }
    }
}

template <int WIDTH>
static __device__ __forceinline__ void add_bias(const struct skinny_params &p,
                                                const struct wide_place &place,
                                                float (&sums)[WIDTH / 2]) {
    constexpr int N_COLUMNS = WIDTH / 8;
    const struct skinny_part *part = &p.parts[place.part];
    if (!part->bias && !(p.gated && part[1].bias)) return;
#pragma unroll
    for (int j = 0; j < N_COLUMNS; j++) {
        const bool up = p.gated && j >= N_COLUMNS / 2;
        const uint32_t out = place.first + (up ? j - N_COLUMNS / 2 : j) * 8 + threadIdx.x % 4 * 2;
        if (!part[up].bias || out >= part->n_out) continue;
        for (int e = 0; e < 2; e++) {
            const float x = load_dtype(part[up].bias, out + e, part[up].bias_dtype);
            sums[4 * j + e] += x, sums[4 * j + 2 + e] += x;
        }
    }
}

/* Returns two results that lie side by side: a word of bf16, or a float2. */
static __device__ __forceinline__ float2 unpack_two(uint32_t two) {
    return unpack_bf16(two);
}
static __device__ __forceinline__ float2 unpack_two(float2 two) {
    return two;
}
static __device__ __forceinline__ void store_two(uint32_t *to, float2 x) {
    *to = pack_bf16(x.x, x.y);
}
static __device__ __forceinline__ void store_two(float2 *to, float2 x) {
    *to = x;
}

template <typename Two, int WIDTH, bool GATED>
static __device__ __forceinline__ void store_sums(const struct skinny_params &p,
                                                  const struct wide_place &place,
                                                  const struct wide_columns &mine,
                                                  const float (&sums)[WIDTH / 2]) {
    constexpr int N_COLUMNS = GATED ? WIDTH / 16 : WIDTH / 8;
    const struct skinny_part *part = &p.parts[place.part];
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t row = threadIdx.x / 32 * 16 + lane / 4 + half * 8;
        if (row >= p.n_rows) continue;
        Two *y = static_cast<Two *>(part->y) + (row * part->y_stride + place.first) / 2 + lane % 4;
        Two old[N_COLUMNS] = {};
        if (p.accumulate)
#pragma unroll
            for (int j = 0; j < N_COLUMNS; j++)
                if (mine.has(j)) old[j] = y[j * 4];
#pragma unroll
        for (int j = 0; j < N_COLUMNS; j++) {
            float2 x = make_float2(sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]);
            if (GATED) {
                const int up = 4 * (j + N_COLUMNS) + 2 * half;
                x = make_float2(gate_mul_short(x.x, sums[up], p.kind),
                                gate_mul_short(x.y, sums[up + 1], p.kind));
            }
            const float2 before = unpack_two(old[j]);
            if (mine.has(j)) store_two(y + j * 4, make_float2(x.x + before.x, x.y + before.y));
        }
    }
}

template <int GROUPS, int WIDTH>
static __device__ __forceinline__ void consume(const struct wide_params &w,
                                               struct wide_plan<GROUPS, WIDTH> *plan) {
    typename wide_plan<GROUPS, WIDTH>::place at = {0, 0};
    const int n_splits = (int)w.n_splits;
    wait_for_previous();
    for (uint32_t i = blockIdx.x / CLUSTER; i < w.n_items; i += gridDim.x / CLUSTER) {
        const struct wide_item item = find_item(w, i);
        float sums[WIDTH / 2];
        multiply<GROUPS, WIDTH>(item, plan, &at, sums);
        if (item.tile >= w.n_tiles) continue;
        const struct wide_place place = find_place<WIDTH>(w, item.tile);
        const int split = (int)i % n_splits,
                  n_columns = min(w.p.gated ? WIDTH / 16 : WIDTH / 8,
                                  (int)(w.p.parts[place.part].n_out - place.first) / 8);
        const struct wide_columns mine = {n_columns * split / n_splits,
                                          n_columns * (split + 1) / n_splits};
        if (n_splits > 1) add_shares<GROUPS, WIDTH>(w, i, item.tile, mine, sums);
        add_bias<WIDTH>(w.p, place, sums);
        if (w.p.gated) store_sums<uint32_t, WIDTH, true>(w.p, place, mine, sums);
        else if (w.p.y_f32) store_sums<float2, WIDTH, false>(w.p, place, mine, sums);
        else store_sums<uint32_t, WIDTH, false>(w.p, place, mine, sums);
    }
}

template <int GROUPS, int WIDTH>
static __global__ void __launch_bounds__((GROUPS + 1) * GROUP_THREADS, 1)
    wide_kernel(const __grid_constant__ struct wide_params w) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) unsigned char wide_memory[];
    struct wide_plan<GROUPS, WIDTH> *plan =
        reinterpret_cast<struct wide_plan<GROUPS, WIDTH> *>(wide_memory);
    const uint32_t n_consumers = GROUPS * GROUP_THREADS;
    let_next_start();
    make_barriers(plan, GROUPS);
    if (threadIdx.x < n_consumers) {
        if (GROUPS == 4) registers_raise<WIDE_CONSUMER_REGISTERS>();
        consume<GROUPS, WIDTH>(w, plan);
    } else {
        if (GROUPS == 4) registers_lower<WIDE_PRODUCER_REGISTERS>();
        if (threadIdx.x == n_consumers) load_weights<GROUPS, WIDTH>(w, plan);
        if (threadIdx.x == n_consumers + 32) load_x<GROUPS, WIDTH>(w, plan);
    }
#endif
}

/* ---- host ---- */

static struct wide_shape shape_of(const struct skinny_params *p) {
    struct wide_shape shape = {p->n_rows, p->n_in, p->n_parts, {}, p->gated};
    for (uint32_t i = 0; i < p->n_parts; i++) shape.n_out[i] = p->parts[i].n_out;
    return shape;
}

template <int GROUPS, int WIDTH>
static cudaError_t launch_tiles(const struct skinny_params *p, uint32_t n_splits,
                                const struct wide_room *room, struct launch launch) {
    struct wide_params w = {};
    w.p = *p;
    w.room = *room;
    const struct wide_shape shape = shape_of(p);
    w.n_splits = n_splits;
    w.n_tiles = wide_count_tiles(&shape, WIDTH);
    w.n_items = wide_count_items(&shape, {WIDTH, n_splits});
    w.half_rows = (p->n_rows + 15) / 16 * 8;
    cudaError_t rc =
        tensor_map_matrix(&w.x, p->x, p->n_rows, p->n_in, (uint64_t)p->n_in * 2, w.half_rows);
    for (uint32_t i = 0; i < p->n_parts && !rc; i++)
        rc = tensor_map_matrix(&w.w[i], p->parts[i].w, p->parts[i].n_out, p->n_in,
                               (uint64_t)p->n_in * 2, p->gated ? WIDTH / 2 : WIDTH);
    if (rc) return rc;
    /* The grid has as many clusters as can have equal numbers of items. */
    const uint32_t n_turns = (w.n_items + room->n_clusters - 1) / room->n_clusters,
                   n_clusters = (w.n_items + n_turns - 1) / n_turns;
    return launch_clusters(launch, wide_kernel<GROUPS, WIDTH>, CLUSTER, CLUSTER * n_clusters,
                           (GROUPS + 1) * GROUP_THREADS, sizeof(struct wide_plan<GROUPS, WIDTH>),
                           w);
}

typedef cudaError_t (*tiles_launcher)(const struct skinny_params *p, uint32_t n_splits,
                                      const struct wide_room *room, struct launch launch);

template <int GROUPS> static tiles_launcher find_launcher(uint32_t width) {
    switch (width) {
    case 112: return launch_tiles<GROUPS, 112>;
    case 96: return launch_tiles<GROUPS, 96>;
    case 64: return launch_tiles<GROUPS, 64>;
    default: return launch_tiles<GROUPS, 48>;
    }
}

cudaError_t launch_wide(const struct skinny_params *p, const struct wide_room *room,
                        struct launch launch) {
    const struct wide_shape shape = shape_of(p);
    if (wide_count_tiles(&shape, GROUP_ROWS) == 0 || p->n_rows == 0) return cudaSuccess;
    if (room->n_clusters == 0) return cudaErrorNotSupported;
    const struct wide_cut cut = wide_choose_cut(&shape, room->n_clusters);
    tiles_launcher tiles = NULL;
    switch ((p->n_rows - 1) / GROUP_ROWS) {
    case 0: tiles = find_launcher<1>(cut.width); break;
    case 1: tiles = find_launcher<2>(cut.width); break;
    case 2: tiles = find_launcher<3>(cut.width); break;
    case 3: tiles = find_launcher<4>(cut.width); break;
    default: return cudaErrorInvalidValue;
    }
    return tiles(p, cut.n_splits, room, launch);
}

template <int GROUPS, int WIDTH> static bool open_tiles(int *n) {
    return open_pairs<struct wide_plan<GROUPS, WIDTH>>(wide_kernel<GROUPS, WIDTH>,
                                                       (GROUPS + 1) * GROUP_THREADS, n);
}

template <int GROUPS> static bool open_group(int *n) {
    return open_tiles<GROUPS, 112>(n) && open_tiles<GROUPS, 96>(n) && open_tiles<GROUPS, 64>(n) &&
           open_tiles<GROUPS, 48>(n);
}

uint32_t open_wide(uint32_t n_multiprocessors) {
    int n = (int)(n_multiprocessors / CLUSTER);
    if (n > 0 && open_group<1>(&n) && open_group<2>(&n) && open_group<3>(&n) && open_group<4>(&n))
        return (uint32_t)n;
    cudaGetLastError(); /* an answer, not a fault */
    return 0;
}
