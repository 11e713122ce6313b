/* linear_wide.cu - y = x W^T for up to 256 rows on Hopper: decoding many sequences.
 *
 *   tile        all rows of x against `width` rows of W (wide_cut.h); gated: half of them are
 *               gate's, half up's, and a thread has the sums of both
 *   cluster     two blocks, each of which copies half of what they share to both: up to 192 rows
 *               they have neighbouring tiles and share x, else halves of a tile's rows and share W
 *
 *      stage of block 0    | x: upper half | x: lower half | W: rows of tile 2i     |  64 columns
 *      stage of block 1    | x: upper half | x: lower half | W: rows of tile 2i + 1 |
 *                           by block 0 ^    by block 1 ^
 *
 *      stage of block 0    | x: upper half | W: first half | W: second half |
 *      stage of block 1    | x: lower half | W: first half | W: second half |
 *                                           by block 0 ^    by block 1 ^
 *
 *   producers   one thread asks for W, which never changes, so it fills the ring before the kernel
 *               before has ended; another asks for x
 *   consumers   a warpgroup for every 64 rows: wgmma with x as A and the stage of W as B
 *   shares      where tiles are too few for the device, the sums are split along n_in; the blocks
 *               of a tile send each other their shares in f32, and each adds up some columns
 *
 * Sums have one order, whatever the timing.  Rows of a stage behind x's last are not written; their
 * sums are not used.
 *
 * With few rows memory bounds a stage.  A map asks L2 for 256 bytes at a time where memory is slow,
 * else for what is copied (find_memory_rate()).  With 256 rows wgmma, shared memory and memory take
 * about as long.  Blocks of 256 rows and 112 outputs would read W four times from shared memory.
 * docs/benchmarks/gpu-kernels.md ("Products of many rows") has times, and what was tried in vain.
 *
 * From 193 rows on gate and up are for linear_gated.cu, where it is faster: gated_beats_wide().
 *
 * The code that follows the sums runs once, so it is short: fetching longer code takes longer than
 * it saves.  Integer operations on the sums, and loops that threads leave alone, make the compiler
 * wait after every wgmma (tests/cuda/test_wgmma.sh).
 *
 * Shared: struct wide_plan.  Bound: memory, 2 * n_in * n_out bytes.
 * Oracle: engine/cpu/linear.c. */
#include "cuda/host/internal.h"
#include "cuda/linear/block_pair.cuh"
#include "cuda/linear/product.cuh"
#include "cuda/linear/wide_cut.h"

typedef __nv_bfloat16 bf16;

enum {
    STAGE_COLUMNS = WIDE_STAGE_COLUMNS,
    ROW_BYTES = STAGE_COLUMNS * 2,
    GROUP_ROWS = WIDE_GROUP_ROWS
};

/* Shared memory of a block.  GROUPS: warpgroups of consumers.  WIDTH: of a tile.  SHARES_W: the
 * blocks of a cluster have the halves of x's rows, and share W; else they have two tiles, and share
 * x. */
template <int GROUPS_, int WIDTH_, bool SHARES_W_, enum product_mode MODE_>
struct wide_plan {
    static constexpr int GROUPS = GROUPS_, WIDTH = WIDTH_, N_CONSUMERS = GROUPS *GROUP_THREADS;
    static constexpr enum product_mode MODE = MODE_;
    static constexpr bool SHARES_W = SHARES_W_, FP8 = MODE != MODE_BF16;
    static constexpr int X_BYTES = GROUPS * GROUP_ROWS * ROW_BYTES, W_BYTES = WIDTH *ROW_BYTES;
    /* Of MODE_FP8_BLOCKS: the scales of a stage's columns, of each row of x. */
    static constexpr int N_SCALES = MODE == MODE_FP8_BLOCKS ? GROUPS * GROUP_ROWS : 0;
    static constexpr int N_STAGES = (MEMORY_BYTES - 512) / (X_BYTES + W_BYTES + N_SCALES * 4);
    typedef ring_place<N_STAGES> place; typedef float accumulator[WIDTH / 2];
    struct {unsigned char x[X_BYTES], w[W_BYTES];}
stages[N_STAGES];
float x_scales[N_STAGES][N_SCALES ? N_SCALES : 4];
uint64_t full[N_STAGES], empty[N_STAGES];
}
;

static_assert((int)CLUSTER == WIDE_CLUSTER, "tiles are counted in pairs");

struct wide_params {
    CUtensorMap x, w[LINEAR_MAX_PARTS];
    struct product p;
    struct wide_device room;
    /* n_items: what a cluster computes at a time, times the shares of a sum */
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

template <class Plan>
static __device__ __forceinline__ struct wide_item find_item(const struct wide_params &w,
                                                             uint32_t item) {
    const uint32_t n_stages = (w.p.n_in + STAGE_COLUMNS - 1) / STAGE_COLUMNS,
                   split = item % w.n_splits, pair = item / w.n_splits;
    return {Plan::SHARES_W ? pair : pair * CLUSTER + cluster_rank(), n_stages * split / w.n_splits,
            n_stages * (split + 1) / w.n_splits};
}

template <class Plan>
static __device__ __forceinline__ struct wide_place find_place(const struct wide_params &w,
                                                               uint32_t tile) {
    const uint32_t part = find_part(w.p, Plan::WIDTH, &tile);
    return {part, tile * (w.p.gated ? Plan::WIDTH / 2 : Plan::WIDTH)};
}

/* ---- producers ---- */

/* Starts copying a stage of a tile's weights: half of it, to both blocks, or all. */
template <class Plan>
static __device__ __forceinline__ void load_tile(const struct wide_params &w,
                                                 const struct wide_place &place, unsigned char *to,
                                                 uint32_t column, uint64_t *full, uint64_t policy) {
    const uint32_t rank = cluster_rank();
    unsigned char *second = to + Plan::W_BYTES / 2;
    if (Plan::SHARES_W) {
        tensor_load_shared(rank ? second : to, &w.w[w.p.gated ? rank : place.part], column,
                           place.first + (w.p.gated ? 0 : rank * (Plan::WIDTH / 2)), full, BOTH,
                           policy);
    } else {
        tensor_load_hinted(to, &w.w[place.part], column, place.first, full, policy);
        if (w.p.gated) tensor_load_hinted(second, &w.w[1], column, place.first, full, policy);
    }
}

template <class Plan>
static __device__ __forceinline__ void load_weights(const struct wide_params &w, Plan *plan) {
    const uint64_t policy = pass_through_policy();
    typename Plan::place at = {0, 1};
    for (uint32_t i = blockIdx.x / CLUSTER; i < w.n_items; i += gridDim.x / CLUSTER) {
        const struct wide_item item = find_item<Plan>(w, i);
        /* The second block of the last pair may have no tile: it takes the first one's, too. */
        const struct wide_place place = find_place<Plan>(w, min(item.tile, w.n_tiles - 1));
#pragma unroll 1
        for (uint32_t k = item.begin; k < item.end; k++, at.advance()) {
            uint64_t *full = &plan->full[at.stage];
            barrier_wait(&plan->empty[at.stage], at.parity);
            barrier_arrive_expect(full, Plan::W_BYTES);
            load_tile<Plan>(w, place, plan->stages[at.stage].w, k * STAGE_COLUMNS, full, policy);
        }
    }
    if (Plan::SHARES_W) await_empty(plan, at);
}

/* Copies the block's half of x: to both blocks, unless each needs its own. */
template <class Plan>
static __device__ __forceinline__ void load_x(const struct wide_params &w, Plan *plan) {
    const uint32_t row = cluster_rank() * w.half_rows;
    typename Plan::place at = {0, 1};
    wait_for_previous();
    for (uint32_t i = blockIdx.x / CLUSTER; i < w.n_items; i += gridDim.x / CLUSTER) {
        const struct wide_item item = find_item<Plan>(w, i);
#pragma unroll 1
        for (uint32_t k = item.begin; k < item.end; k++, at.advance()) {
            unsigned char *to = plan->stages[at.stage].x;
            uint64_t *full = &plan->full[at.stage];
            barrier_wait(&plan->empty[at.stage], at.parity);
            const uint32_t n_rows = (Plan::SHARES_W ? 1 : CLUSTER) * w.half_rows;
            if (Plan::MODE == MODE_FP8_BLOCKS) {
                barrier_arrive_expect(full, n_rows * (ROW_BYTES + sizeof(float)));
                bulk_load(
                    plan->x_scales[at.stage],
                    w.p.x_scales + k * (size_t)w.p.x_scale_stride + (Plan::SHARES_W ? row : 0),
                    n_rows * sizeof(float), full);
            } else {
                barrier_arrive_expect(full, n_rows * ROW_BYTES);
            }
            if (Plan::SHARES_W) tensor_load(to, &w.x, k * STAGE_COLUMNS, row, full);
            else tensor_load_shared(to + row * ROW_BYTES, &w.x, k * STAGE_COLUMNS, row, full, BOTH);
        }
    }
    if (!Plan::SHARES_W) await_empty(plan, at);
}

/* ---- consumers ---- */

/* sums[4 j + 2 h + e] is of row lane / 4 + 8 h of the warp's 16 and of column 8 j + lane % 4 * 2 +
 * e of the tile. */
template <class Plan>
static __device__ __forceinline__ void multiply(const struct wide_item &item, Plan *plan,
                                                typename Plan::place *at,
                                                typename Plan::accumulator &sums) {
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
            wgmma_shared_of<Plan::FP8>(sums, wgmma_advance(x, i * 32), wgmma_advance(w, i * 32),
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

/* Returns which row of x a thread's sums of this half are of. */
template <class Plan>
static __device__ __forceinline__ uint32_t row_of(const struct wide_params &w, int half) {
    const uint32_t local = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + half * 8;
    return Plan::SHARES_W ? cluster_rank() * w.half_rows + local : local;
}

/* Multiplies sums by the scales of their rows of x and of W. */
template <class Plan>
static __device__ __forceinline__ void scale_sums(const struct wide_params &w,
                                                  const struct wide_place &place,
                                                  typename Plan::accumulator &sums) {
    constexpr int N_COLUMNS = Plan::WIDTH / 8;
    const struct product_part *part = &w.p.parts[place.part];
    float of_row[2];
    float2 of_column[N_COLUMNS];
#pragma unroll
    for (int half = 0; half < 2; half++)
        of_row[half] = w.p.x_scales[min(row_of<Plan>(w, half), w.p.n_rows - 1)];
#pragma unroll
    for (int j = 0; j < N_COLUMNS; j++) {
        const bool up = w.p.gated && j >= N_COLUMNS / 2;
        const uint32_t out = place.first + (up ? j - N_COLUMNS / 2 : j) * 8 + threadIdx.x % 4 * 2;
        const float *scales = static_cast<const float *>(part[up].scales);
        of_column[j] = *reinterpret_cast<const float2 *>(scales + min(out, part->n_out - 2));
    }
#pragma unroll
    for (int j = 0; j < N_COLUMNS; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            sums[4 * j + 2 * half] *= of_row[half] * of_column[j].x;
            sums[4 * j + 2 * half + 1] *= of_row[half] * of_column[j].y;
        }
}

/* The scales of a tile's outputs, which are of two blocks of W at most. */
struct block_scales {
    const float *low, *high; /* of the outputs before `border`, and behind it; one for each stage */
    int border;              /* in groups of 8 outputs */
};

static __device__ __forceinline__ struct block_scales find_scales(const struct product &p,
                                                                  const struct product_part *part,
                                                                  uint32_t first) {
    const uint32_t n_stages = p.n_in / STAGE_COLUMNS, block = first / FP8_BLOCK,
                   last = (part->n_out - 1) / FP8_BLOCK;
    const float *scales = static_cast<const float *>(part->scales);
    return {scales + (size_t)block * n_stages, scales + (size_t)min(block + 1, last) * n_stages,
            (int)((block + 1) * FP8_BLOCK - first) / 8};
}

/* Does what multiply() does where each stage's columns are a block with scales of its own: adds the
 * stage's sums, times these. */
template <class Plan>
static __device__ __forceinline__ void multiply_blocks(const struct wide_params &w,
                                                       const struct wide_place &place,
                                                       const struct wide_item &item, Plan *plan,
                                                       typename Plan::place *at,
                                                       typename Plan::accumulator &sums) {
    constexpr int N_COLUMNS = Plan::WIDTH / 8;
    const uint32_t group = threadIdx.x / GROUP_THREADS,
                   local = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    const struct product_part *part = &w.p.parts[place.part];
    const struct block_scales gate = find_scales(w.p, part, place.first),
                              up = w.p.gated ? find_scales(w.p, part + 1, place.first) : gate;
    const int half_at = w.p.gated ? N_COLUMNS / 2 : N_COLUMNS;
    typename Plan::accumulator stage_sums;
#pragma unroll
    for (int i = 0; i < Plan::WIDTH / 2; i++) sums[i] = 0.0f;
#pragma unroll 1
    for (uint32_t k = item.begin; k < item.end; k++, at->advance()) {
        const uint64_t x = wgmma_matrix(
                           plan->stages[at->stage].x + group * (GROUP_ROWS * ROW_BYTES), 0),
                       w_at = wgmma_matrix(plan->stages[at->stage].w, 0);
        const float scales[4] = {__ldg(gate.low + k), __ldg(gate.high + k), __ldg(up.low + k),
                                 __ldg(up.high + k)};
        barrier_wait(&plan->full[at->stage], at->parity);
        const float of_row[2] = {plan->x_scales[at->stage][local],
                                 plan->x_scales[at->stage][local + 8]};
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < STAGE_COLUMNS / 16; i++)
            wgmma_shared_a_e4m3(stage_sums, wgmma_advance(x, i * 32), wgmma_advance(w_at, i * 32),
                                i > 0);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_pin(stage_sums);
        release_stage(plan, at->stage);
#pragma unroll
        for (int j = 0; j < N_COLUMNS; j++) {
            const bool is_up = j >= half_at;
            const float scale = is_up ? (j - half_at < up.border ? scales[2] : scales[3])
                                      : (j < gate.border ? scales[0] : scales[1]);
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[4 * j + i] += stage_sums[4 * j + i] * (of_row[i / 2] * scale);
        }
    }
}

/* Sends four sums to a thread of another block; an addition returns no MISSING word. */
static __device__ __forceinline__ void send_four(uint4 *to, const float *sums) {
    store_volatile(to, make_float4(__fadd_rn(sums[0], 0.0f), __fadd_rn(sums[1], 0.0f),
                                   __fadd_rn(sums[2], 0.0f), __fadd_rn(sums[3], 0.0f)));
}

/* The groups of 8 columns of a tile, [begin, end) of n, whose results a block writes; of a gated
 * tile, those of gate. */
struct wide_columns {
    int begin, end, n;
    __device__ __forceinline__ bool has(int j) const { return j >= begin && j < end; }
    __device__ __forceinline__ bool others_have(int j) const { return j < n && !has(j); }
};

/* Returns where the blocks of an item's tile exchange a share of the sums: for each group of 8
 * columns four of each thread, N_CONSUMERS from group to group. */
template <class Plan>
static __device__ __forceinline__ uint4 *find_share(const struct wide_params &w, uint32_t item) {
    return static_cast<uint4 *>(w.room.shares) + threadIdx.x +
           ((size_t)item * CLUSTER + cluster_rank()) * (Plan::WIDTH / 8 * Plan::N_CONSUMERS);
}

/* Sends the blocks that write the other columns this block's shares of them. */
template <class Plan>
static __device__ __forceinline__ void send_shares(const struct wide_params &w, uint32_t item,
                                                   const struct wide_columns &mine,
                                                   const typename Plan::accumulator &sums) {
    constexpr int N_COLUMNS = Plan::WIDTH / 8;
    uint4 *share = find_share<Plan>(w, item);
#pragma unroll
    for (int j = 0; j < N_COLUMNS; j++)
        if (mine.others_have(w.p.gated ? j % (N_COLUMNS / 2) : j))
            send_four(share + j * Plan::N_CONSUMERS, sums + 4 * j);
}

/* Adds the others' shares, in their order, as they come.  All of the blocks run: they are not more
 * than fit on the device, and no later kernel starts before they have. */
template <class Plan>
static __device__ __forceinline__ void add_shares(const struct wide_params &w, uint32_t item,
                                                  const struct wide_columns &mine,
                                                  typename Plan::accumulator &sums) {
    constexpr int N_COLUMNS = Plan::WIDTH / 8, AT_ONCE = 4;
    const uint32_t first = item - item % w.n_splits;
#pragma unroll 1
    for (uint32_t other = first; other < first + w.n_splits; other++) {
        if (other == item) continue;
        uint4 *share = find_share<Plan>(w, other);
#pragma unroll
        for (int begin = 0; begin < N_COLUMNS; begin += AT_ONCE) {
            uint4 fours[AT_ONCE];
            bool are_there;
            do {
                are_there = true;
#pragma unroll
                for (int i = 0; i < AT_ONCE && begin + i < N_COLUMNS; i++)
                    if (mine.has(w.p.gated ? (begin + i) % (N_COLUMNS / 2) : begin + i))
                        fours[i] = load_volatile(share + (begin + i) * Plan::N_CONSUMERS);
                    else fours[i] = make_uint4(0, 0, 0, 0);
#pragma unroll
                for (int i = 0; i < AT_ONCE && begin + i < N_COLUMNS; i++)
                    are_there &= have_come(fours[i]);
            } while (!__all_sync(~0u, are_there));
#pragma unroll
            for (int i = 0; i < AT_ONCE && begin + i < N_COLUMNS; i++) {
                const int j = begin + i;
                if (!mine.has(w.p.gated ? j % (N_COLUMNS / 2) : j)) continue;
                sums[4 * j] += __uint_as_float(fours[i].x);
                sums[4 * j + 1] += __uint_as_float(fours[i].y);
                sums[4 * j + 2] += __uint_as_float(fours[i].z);
                sums[4 * j + 3] += __uint_as_float(fours[i].w);
                share[j * Plan::N_CONSUMERS] = make_uint4(MISSING, MISSING, MISSING, MISSING);
            }
        }
    }
}

template <class Plan>
static __device__ __forceinline__ void add_bias(const struct product &p,
                                                const struct wide_place &place,
                                                typename Plan::accumulator &sums) {
    constexpr int N_COLUMNS = Plan::WIDTH / 8;
    const struct product_part *part = &p.parts[place.part];
    if (!part->bias && !(p.gated && part[1].bias)) return;
#pragma unroll
    for (int j = 0; j < N_COLUMNS; j++) {
        const bool up = p.gated && j >= N_COLUMNS / 2;
        const uint32_t out = place.first + (up ? j - N_COLUMNS / 2 : j) * 8 + threadIdx.x % 4 * 2;
        if (!part[up].bias || out >= part->n_out) continue;
        for (int e = 0; e < 2; e++) {
            const float x = load_element(part[up].bias, out + e, part[up].bias_dtype);
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

/* Returns where a thread's results of one of its two rows begin: those of sums[4 j + ...] are the
 * two elements there + 4 j.  NULL: x has no such row. */
template <class Plan, typename Two>
static __device__ __forceinline__ Two *find_results(const struct wide_params &w,
                                                    const struct wide_place &place, int half) {
    const struct product_part *part = &w.p.parts[place.part];
    const uint32_t row = row_of<Plan>(w, half),
                   local = row - (Plan::SHARES_W ? cluster_rank() * w.half_rows : 0);
    if (row >= w.p.n_rows || (Plan::SHARES_W && local >= w.half_rows)) return nullptr;
    return static_cast<Two *>(part->y) + (row * part->y_stride + place.first) / 2 + threadIdx.x % 4;
}

/* Adds what the results are added to: where sums are split, while the others' shares are on their
 * way.  Read before the products, it would delay their start. */
template <class Plan, typename Two>
static __device__ __forceinline__ void add_results(const struct wide_params &w,
                                                   const struct wide_place &place,
                                                   const struct wide_columns &mine,
                                                   typename Plan::accumulator &sums) {
    constexpr int N_COLUMNS = Plan::WIDTH / 8, AT_ONCE = 48 / sizeof(Two);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const Two *y = find_results<Plan, Two>(w, place, half);
        if (!y) continue;
#pragma unroll
        for (int begin = 0; begin < N_COLUMNS; begin += AT_ONCE) {
            Two old[AT_ONCE];
#pragma unroll
            for (int j = begin; j < begin + AT_ONCE && j < N_COLUMNS; j++)
                if (mine.has(j)) old[j - begin] = y[j * 4];
#pragma unroll
            for (int j = begin; j < begin + AT_ONCE && j < N_COLUMNS; j++) {
                if (!mine.has(j)) continue;
                const float2 x = unpack_two(old[j - begin]);
                sums[4 * j + 2 * half] += x.x, sums[4 * j + 2 * half + 1] += x.y;
            }
        }
    }
}

template <class Plan, typename Two, bool GATED>
static __device__ __forceinline__ void store_sums(const struct wide_params &w,
                                                  const struct wide_place &place,
                                                  const struct wide_columns &mine,
                                                  const typename Plan::accumulator &sums) {
    constexpr int N_COLUMNS = GATED ? Plan::WIDTH / 16 : Plan::WIDTH / 8;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        Two *y = find_results<Plan, Two>(w, place, half);
        if (!y) continue;
#pragma unroll
        for (int j = 0; j < N_COLUMNS; j++) {
            float2 x = make_float2(sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]);
            if (GATED) {
                const int up = 4 * (j + N_COLUMNS) + 2 * half;
                x = make_float2(gate_mul_short(x.x, sums[up], w.p.kind),
                                gate_mul_short(x.y, sums[up + 1], w.p.kind));
            }
            if (mine.has(j)) store_two(y + j * 4, x);
        }
    }
}

template <class Plan>
static __device__ __forceinline__ void consume(const struct wide_params &w, Plan *plan) {
    constexpr int WIDTH = Plan::WIDTH;
    typename Plan::place at = {0, 0};
    const int n_splits = (int)w.n_splits;
    wait_for_previous();
    for (uint32_t i = blockIdx.x / CLUSTER; i < w.n_items; i += gridDim.x / CLUSTER) {
        const struct wide_item item = find_item<Plan>(w, i);
        const struct wide_place place = find_place<Plan>(w, min(item.tile, w.n_tiles - 1));
        const int split = (int)i % n_splits,
                  n_columns = min(w.p.gated ? WIDTH / 16 : WIDTH / 8,
                                  (int)(w.p.parts[place.part].n_out - place.first) / 8);
        const struct wide_columns mine = {n_columns * split / n_splits,
                                          n_columns * (split + 1) / n_splits, n_columns};
        typename Plan::accumulator sums;
        if constexpr (Plan::MODE == MODE_FP8_BLOCKS)
            multiply_blocks<Plan>(w, place, item, plan, &at, sums);
        else multiply<Plan>(item, plan, &at, sums);
        if (item.tile >= w.n_tiles) continue;
        if (Plan::MODE == MODE_FP8_ROWS) scale_sums<Plan>(w, place, sums);
        if (n_splits > 1) send_shares<Plan>(w, i, mine, sums);
        if (w.p.accumulate && w.p.y_f32) add_results<Plan, float2>(w, place, mine, sums);
        else if (w.p.accumulate) add_results<Plan, uint32_t>(w, place, mine, sums);
        if (n_splits > 1) add_shares<Plan>(w, i, mine, sums);
        add_bias<Plan>(w.p, place, sums);
        if (w.p.gated) store_sums<Plan, uint32_t, true>(w, place, mine, sums);
        else if (w.p.y_f32) store_sums<Plan, float2, false>(w, place, mine, sums);
        else store_sums<Plan, uint32_t, false>(w, place, mine, sums);
    }
}

template <class Plan>
static __global__ void __launch_bounds__(Plan::N_CONSUMERS + GROUP_THREADS, 1)
    wide_kernel(const __grid_constant__ struct wide_params w) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) unsigned char wide_memory[];
    Plan *plan = reinterpret_cast<Plan *>(wide_memory);
    let_next_start();
    make_barriers(plan, CLUSTER * Plan::GROUPS);
    if (threadIdx.x < Plan::N_CONSUMERS) consume<Plan>(w, plan);
    if (threadIdx.x == Plan::N_CONSUMERS) load_weights<Plan>(w, plan);
    if (threadIdx.x == Plan::N_CONSUMERS + 32) load_x<Plan>(w, plan);
#endif
}

/* ---- host ---- */

static struct wide_shape shape_of(const struct product *p) {
    struct wide_shape shape = {p->n_rows, p->n_in, p->n_parts, {}, p->gated};
    for (uint32_t i = 0; i < p->n_parts; i++) shape.n_out[i] = p->parts[i].n_out;
    return shape;
}

template <class Plan>
static cudaError_t launch_tiles(const struct product *p, uint32_t n_splits,
                                const struct wide_device *room, struct launch launch) {
    struct wide_params w = {};
    w.p = *p;
    w.room = *room;
    const struct wide_shape shape = shape_of(p);
    const uint32_t box_rows = Plan::SHARES_W || p->gated ? Plan::WIDTH / 2 : Plan::WIDTH;
    w.n_splits = n_splits;
    w.n_tiles = wide_count_tiles(&shape, Plan::WIDTH);
    w.n_items = wide_count_items(&shape, {Plan::WIDTH, n_splits});
    w.half_rows = (p->n_rows + 15) / 16 * 8;
    const CUtensorMapL2promotion l2 =
        room->fast_memory ? CU_TENSOR_MAP_L2_PROMOTION_NONE : TENSOR_MAP_L2;
    const uint64_t row_bytes = (uint64_t)p->n_in * 2;
    cudaError_t rc = tensor_map_matrix(&w.x, p->x, p->n_rows, p->n_in, row_bytes, w.half_rows);
    for (uint32_t i = 0; i < p->n_parts && !rc; i++)
        rc = tensor_map_matrix(&w.w[i], p->parts[i].w, p->parts[i].n_out, p->n_in, row_bytes,
                               box_rows, l2);
    if (rc) return rc;
    /* The grid has as many clusters as can have equal numbers of items. */
    const uint32_t n_waves = (w.n_items + room->n_clusters - 1) / room->n_clusters,
                   n_clusters = (w.n_items + n_waves - 1) / n_waves;
    return launch_clusters(launch, wide_kernel<Plan>, CLUSTER, CLUSTER * n_clusters,
                           Plan::N_CONSUMERS + GROUP_THREADS, sizeof(Plan), w);
}

typedef cudaError_t (*tiles_launcher)(const struct product *p, uint32_t n_splits,
                                      const struct wide_device *room, struct launch launch);

template <int GROUPS, enum product_mode MODE> static tiles_launcher find_pairs(uint32_t width) {
    switch (width) {
    case 112: return launch_tiles<wide_plan<GROUPS, 112, false, MODE>>;
    case 96: return launch_tiles<wide_plan<GROUPS, 96, false, MODE>>;
    case 64: return launch_tiles<wide_plan<GROUPS, 64, false, MODE>>;
    default: return launch_tiles<wide_plan<GROUPS, 48, false, MODE>>;
    }
}

template <enum product_mode MODE> static tiles_launcher find_halves(uint32_t width) {
    switch (width) {
    case 224: return launch_tiles<wide_plan<2, 224, true, MODE>>;
    case 192: return launch_tiles<wide_plan<2, 192, true, MODE>>;
    case 128: return launch_tiles<wide_plan<2, 128, true, MODE>>;
    case 96: return launch_tiles<wide_plan<2, 96, true, MODE>>;
    default: return launch_tiles<wide_plan<2, 64, true, MODE>>;
    }
}

template <enum product_mode MODE>
static tiles_launcher find_launcher(const struct wide_shape *shape, uint32_t width) {
    const uint32_t n_groups = (shape->n_rows + GROUP_ROWS - 1) / GROUP_ROWS;
    if (n_groups == 1) return find_pairs<1, MODE>(width);
    if constexpr (MODE == MODE_FP8_BLOCKS) return find_pairs<2, MODE>(width);
    else if (wide_halves(shape)) return find_halves<MODE>(width);
    else return n_groups == 2 ? find_pairs<2, MODE>(width) : find_pairs<3, MODE>(width);
}

static tiles_launcher find_launcher_of(enum product_mode mode, const struct wide_shape *shape,
                                       uint32_t width) {
    switch (mode) {
    case MODE_FP8_ROWS: return find_launcher<MODE_FP8_ROWS>(shape, width);
    case MODE_FP8_BLOCKS: return find_launcher<MODE_FP8_BLOCKS>(shape, width);
    default: return find_launcher<MODE_BF16>(shape, width);
    }
}

static cudaError_t start_wide(const struct product *p, const struct wide_device *room,
                              struct launch launch) {
    const struct wide_shape shape = shape_of(p);
    if (wide_count_tiles(&shape, GROUP_ROWS) == 0 || p->n_rows == 0) return cudaSuccess;
    if (room->n_clusters == 0) return cudaErrorNotSupported;
    if (p->n_rows > (p->x_scale_stride ? WIDE_MAX_BLOCK_ROWS : WIDE_MAX_ROWS))
        return cudaErrorInvalidValue;
    const struct wide_cut cut = wide_choose_cut(&shape, room->n_clusters);
    return find_launcher_of(product_mode_of(p), &shape, cut.width)(p, cut.n_splits, room, launch);
}

extern "C" product_launch launch_wide;
int launch_wide(struct cuda_backend *cuda, const struct product *p, struct error *err) {
    struct product joined = p->gated ? *p : product_join(p);
    if (p->x_scales) joined.n_in /= 2; /* pairs of E4M3 are copied as bf16 are */
    return cuda_check(cuda, start_wide(&joined, &cuda->products.wide, launch_of(cuda)),
                      "the product kernel \"wide\"", err);
}

template <class Plan> static bool open_tiles(int *n) {
    return open_pairs<Plan>(wide_kernel<Plan>, Plan::N_CONSUMERS + GROUP_THREADS, n);
}

template <int GROUPS, enum product_mode MODE> static bool open_two_tiles(int *n) {
    return open_tiles<wide_plan<GROUPS, 112, false, MODE>>(n) &&
           open_tiles<wide_plan<GROUPS, 96, false, MODE>>(n) &&
           open_tiles<wide_plan<GROUPS, 64, false, MODE>>(n) &&
           open_tiles<wide_plan<GROUPS, 48, false, MODE>>(n);
}

template <enum product_mode MODE> static bool open_halves(int *n) {
    return open_tiles<wide_plan<2, 224, true, MODE>>(n) &&
           open_tiles<wide_plan<2, 192, true, MODE>>(n) &&
           open_tiles<wide_plan<2, 128, true, MODE>>(n) &&
           open_tiles<wide_plan<2, 96, true, MODE>>(n) &&
           open_tiles<wide_plan<2, 64, true, MODE>>(n);
}

template <enum product_mode MODE> static bool open_all(int *n) {
    if (!open_two_tiles<1, MODE>(n) || !open_two_tiles<2, MODE>(n)) return false;
    if constexpr (MODE == MODE_FP8_BLOCKS) return true;
    else return open_two_tiles<3, MODE>(n) && open_halves<MODE>(n);
}

/* Says whether the memory moves at least 16 bytes in a clock of each multiprocessor. */
static cudaError_t find_memory_rate(int device, int n_multiprocessors, bool *is_fast) {
    const double fast = 16, bits = 8, transfers = 2; /* of a memory clock */
    int memory_khz, bus_bits, khz;
    cudaError_t rc = cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, device);
    if (!rc) rc = cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, device);
    if (!rc) rc = cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, device);
    if (rc) return rc;
    *is_fast = transfers * memory_khz * bus_bits / bits / khz / n_multiprocessors > fast;
    return cudaSuccess;
}

static cudaError_t find_wide(int device, struct wide_device *room) {
    int n_multiprocessors;
    cudaError_t rc =
        cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (!rc) rc = find_memory_rate(device, n_multiprocessors, &room->fast_memory);
    if (rc) return rc;
    int n = n_multiprocessors / CLUSTER;
    if (n > 0 && open_all<MODE_BF16>(&n) && open_all<MODE_FP8_ROWS>(&n) &&
        open_all<MODE_FP8_BLOCKS>(&n))
        room->n_clusters = (uint32_t)n;
    cudaGetLastError(); /* an answer, not a fault */
    return cudaSuccess;
}

/* Makes the kernel ready where the device runs it, and sets from how many rows on it is faster than
 * the stream kernel.  Blocks of that kernel hold 8 rows of x, and read more of them with every
 * tile.  Where memory is fast it waits for x; elsewhere both kernels wait for the weights. */
extern "C" product_open open_wide;
int open_wide(struct cuda_backend *cuda, struct error *err) {
    enum { FAST_FROM = 9 };
    struct wide_device *room = &cuda->products.wide;
    const size_t bytes = (size_t)cuda->n_multiprocessors * WIDE_SHARE_BYTES;
    int rc = cuda_check(cuda, find_wide(cuda->device, room), "asking for the memory's rate", err);
    cuda->products.wide_from = room->fast_memory ? FAST_FROM : FEW_MAX_ROWS + 1;
    if (rc || room->n_clusters == 0) return rc;
    rc = device_alloc(cuda, bytes, &room->shares, err);
    if (rc) return rc;
    return cuda_check(cuda, cudaMemsetAsync(room->shares, MISSING_BYTE, bytes, cuda->stream),
                      "clearing memory", err);
}
