/* attend_sm90.cu - sparse prompts (attend.cuh) for Hopper (prefill/sm90.cuh): a block takes a tile
 * of 128 rows and one head as for dense prompts, but visits the pairs of an index.
 *
 *   warps 0, 2  keys, values: pairs of pages in boxes of 64 rows, of groups in boxes of 16, or of
 *               64 where four of them are a page
 *   warp 1      meanwhile lists the tile's columns in shared memory
 *   all four    then copy the columns, row by row (cp.async), into the same swizzle: warps 0 and 1
 *               their keys, 2 and 3 their values
 *   warps 0, 2  finally copy the pairs of one half alone
 *
 * The last pairs of a tile are for one consumer each, alternately.  The consumer that takes such a
 * pair releases its stage for both, and the other never waits for that stage again.  The number of
 * stages is even, so each consumer meets only stages that it has followed from phase to phase.
 *
 * Grid:   (heads of a group, items, KV heads), one KV head after the other: tiles visit scattered
 *         keys, and those of one head nearly fit into L2.
 * Shared: an sm90_plan, and the columns after it.
 * Bound:  tensor cores, 4 * D operations per visited (row, slot) and head.
 * Oracle: engine/cpu/sparse.c in plain C; the test's oracle is in double. */
#include "cuda/attention/prefill/attn_prefill.cuh"

#include "cuda/attention/prefill/sm90.cuh"
#include "cuda/attention/sparse/attend.cuh"
#include "cuda/common/pages.cuh"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"

enum {
    SM90_SHARED_BYTES = 227 * 1024, /* that a block may have */
    LIST_BARRIER = 3,               /* all producers: columns are listed, earlier pairs requested */
    SIDE_BARRIER = 4,               /* 4 and 5: the producers of keys, and those of values */
    SIDE_THREADS = GROUP_THREADS / 2,
    SPARSE_PRODUCER_REGISTERS = 40,
    SPARSE_CONSUMER_REGISTERS = 232
};

/* The shared memory; space for the columns follows the rest. */
template <int D> struct sparse_plan {
    struct sm90_plan<D> dense;
    int32_t columns[1]; /* sparse_view.max_columns, in whole pairs */
};

struct sparse_maps {
    CUtensorMap q, pool, groups; /* the pool twice: in boxes of a page and of a group */
};

/* --- producers --- */

/* One side, keys or values: where it goes, and its rows in a page. */
template <int D> struct side {
    unsigned char *to; /* [STAGES][TILE_BYTES] */
    uint64_t *full, *empty;
    int first_row, id;
};

template <int D>
static __device__ __forceinline__ struct side<D> side_of(struct sm90_plan<D> &plan, int id,
                                                         const struct kv_pool &kv, int kv_head) {
    const int first_row = (int)kv_row(&kv, id, kv_head, 0);
    return id == 0 ? side<D>{plan.k[0], plan.k_full, plan.k_empty, first_row, id}
                   : side<D>{plan.v[0], plan.v_full, plan.v_empty, first_row, id};
}

template <int D>
static __device__ __forceinline__ void wait_empty(const struct side<D> &side, int pair) {
    constexpr int STAGES = sm90_plan<D>::STAGES;
    barrier_wait(&side.empty[pair % STAGES], pair / STAGES % 2 ^ 1);
}

/* A lane's share of a pair: `rows` consecutive slots, 64 elements wide. */
struct box {
    int rows, to_row, column; /* column past the last: nothing to copy */
    int page, row;            /* in the pool */
};

/* Joins the groups of four lanes, highest first, if they are a page: the last lane then takes all
 * of it.  Keys of a pair may be in any order if nothing is masked, and a page's groups are never
 * the repeated ones.  Returns the slot where the lane's box begins. */
static __device__ __forceinline__ int join_groups(struct box &box, int slot, int lane) {
    const int last = SPARSE_PAGE_GROUPS - 1, behind = last - lane % SPARSE_PAGE_GROUPS;
    const int lowest = __shfl_sync(~0u, slot, lane | last);
    const uint32_t fits =
        __ballot_sync(~0u, lowest % PAGE_TOKENS == 0 && slot == lowest + behind * SPARSE_GROUP);
    if ((~fits >> (lane & ~last) & ((1 << SPARSE_PAGE_GROUPS) - 1)) != 0) return slot;
    box.rows = PAGE_TOKENS;
    box.to_row -= lane % SPARSE_PAGE_GROUPS * SPARSE_GROUP;
    if (behind > 0) box.column = INT32_MAX;
    return lowest;
}

/* Returns a lane's box of a pair.  A whole warp calls it. */
static __device__ __forceinline__ struct box box_of(const struct prefill_tile &t,
                                                    const struct sparse_keys &keys, int pair,
                                                    int lane) {
    const bool pages = keys.has_pages(pair);
    struct box box;
    box.rows = pages ? PAGE_TOKENS : SPARSE_GROUP;
    box.to_row = pages ? lane % 2 * PAGE_TOKENS : lane % SPARSE_TILE_GROUPS * SPARSE_GROUP;
    box.column = pages ? lane / 2 : lane / SPARSE_TILE_GROUPS;
    int slot = keys.slot(pair, box.to_row);
    if (!pages) slot = join_groups(box, slot, lane);
    box.page = page_of_block(t, slot / PAGE_TOKENS);
    box.row = slot % PAGE_TOKENS;
    return box;
}

template <int D>
static __device__ __forceinline__ void load_box(unsigned char *to, const struct sparse_maps &maps,
                                                const struct box &box, int first_row, uint64_t *bar,
                                                int lane) {
    if (lane == 0) barrier_arrive_expect(bar, sm90_plan<D>::TILE_BYTES);
    __syncwarp();
    if (box.column < D / COLUMN)
        tensor_load(to + box.column * COLUMN_BYTES + box.to_row * COLUMN * 2,
                    box.rows == PAGE_TOKENS ? &maps.pool : &maps.groups, box.column * COLUMN,
                    first_row + box.row, box.page, bar);
}

/* Copies pairs [from, end), none of them columns, by a side's first warp. */
template <int D>
static __device__ void produce_boxes(struct sm90_plan<D> &plan, const struct sparse_maps &maps,
                                     const struct prefill_tile &t, const struct sparse_keys &keys,
                                     const struct side<D> &side, int from, int end, int lane) {
    if (from == end) return;
    constexpr int STAGES = sm90_plan<D>::STAGES, BYTES = sm90_plan<D>::TILE_BYTES;
    uint32_t tail_parity = 0;
    struct box next = box_of(t, keys, from, lane);
    for (int j = from; j < end; j++) {
        const struct box box = next;
        const int stage = j % STAGES, block = keys.causal_block(j);
        unsigned char *to = side.to + stage * BYTES;
        /* Looked up early, because it waits for a distance and then for a page number. */
        next = box_of(t, keys, min(j + 1, end - 1), lane);
        wait_empty(side, j);
        if (side.id == 0 || (block + 2) * PAGE_TOKENS <= t.n_slots) {
            load_box<D>(to, maps, box, side.first_row, &side.full[stage], lane);
            continue;
        }
        load_box<D>(to, maps, box, side.first_row, &plan.tail_full, lane);
        barrier_wait(&plan.tail_full, tail_parity);
        tail_parity ^= 1;
        clear_tail<D>(to, {block, block + 1}, t.n_slots, lane);
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) barrier_arrive(&side.full[stage]);
    }
}

/* Copies a warp's half of a pair of columns, from key `first` of the pair on.  A lane looks up two
 * slots, and D / 8 lanes copy a row. */
template <int D>
static __device__ __forceinline__ void copy_columns(unsigned char *to, const struct kv_pool &kv,
                                                    const struct prefill_tile &t,
                                                    const int32_t *columns, int n_valid, int first,
                                                    int first_row, int lane) {
    constexpr int LANES = D / 8;
    const char *from[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int slot = columns[min(first + h * 32 + lane, n_valid - 1)] & COLUMN_SLOT;
        from[h] = page_at(kv, t.pages[slot / PAGE_TOKENS]) +
                  (first_row + slot % PAGE_TOKENS) * page_row_bytes(PAGE_BF16, D);
    }
    const int chunk = lane % LANES;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll 4
        for (int i = 0; i < 32; i += 32 / LANES) {
            const int source = i + lane / LANES, row = first + h * 32 + source;
            const char *at = (const char *)__shfl_sync(~0u, (unsigned long long)from[h], source);
            copy_async(to + chunk / 8 * COLUMN_BYTES + row * 128 + (chunk % 8 ^ row % 8) * 16,
                       at + chunk * 16, true);
        }
}

/* Copies the columns, by both warps of a side.  The copies are ordinary ones, which the tensor
 * cores see only after the fence. */
template <int D>
static __device__ void produce_columns(const struct kv_pool &kv, const struct prefill_tile &t,
                                       const struct sparse_keys &keys, const struct side<D> &side,
                                       const int32_t *columns) {
    constexpr int STAGES = sm90_plan<D>::STAGES, BYTES = sm90_plan<D>::TILE_BYTES;
    const int thread = threadIdx.x % SIDE_THREADS;
    for (int j = keys.n_listed; j < keys.n_shared; j++) {
        wait_empty(side, j);
        copy_columns<D>(side.to + j % STAGES * BYTES, kv, t,
                        columns + (j - keys.n_listed) * PAIR_KEYS, keys.n_valid(j),
                        thread / 32 * (PAIR_KEYS / 2), side.first_row, thread % 32);
        copy_async_wait_all();
        fence_async_proxy();
        named_sync(SIDE_BARRIER + side.id, SIDE_THREADS);
        if (thread == 0) barrier_arrive(&side.full[j % STAGES]);
    }
}

/* Copies everything, by the four warps of the producer group.  Before they meet, the first warp of
 * each side has waited for every stage's last pair but one.  A warp that waits for a stage after
 * that cannot mistake an earlier phase for the one it needs. */
template <int D>
static __device__ void produce_sparse(struct sparse_plan<D> &plan, const struct sparse_maps &maps,
                                      const struct attn_prefill_params &p,
                                      const struct sparse_view &s, const struct prefill_tile &t,
                                      const struct sparse_keys &keys, int head) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const struct side<D> side =
        side_of(plan.dense, warp / 2, p.kv, head / (p.n_heads / p.kv.n_kv_heads));
    if (threadIdx.x == 0) load_queries(plan.dense, &maps.q, t.first_row, head);
    if (warp == 1 && keys.n_columns)
        list_columns(s, head, keys.own, 0, plan.columns, keys.n_columns);
    const bool boxes = warp % 2 == 0;
    if (boxes) produce_boxes(plan.dense, maps, t, keys, side, 0, keys.n_listed, lane);
    if (keys.n_columns) {
        named_sync(LIST_BARRIER, GROUP_THREADS);
        produce_columns(p.kv, t, keys, side, plan.columns);
    }
    if (boxes) produce_boxes(plan.dense, maps, t, keys, side, keys.n_shared, keys.n, lane);
}

/* --- consumers --- */

/* Hides all keys from n_valid on. */
static __device__ __forceinline__ void mask_behind(float (&s)[64], int n_valid) {
    const int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 64; i++)
        if (i / 4 * 8 + column + i % 2 >= n_valid) s[i] = -INFINITY;
}

/* Hides the columns that a half visits with their groups. */
static __device__ __forceinline__ void mask_columns(float (&s)[64], const int32_t *columns,
                                                    int half) {
    const int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            if ((uint32_t)columns[n * 8 + column + e] >> (COLUMN_HIDDEN + half) & 1)
                s[4 * n + e] = s[4 * n + e + 2] = -INFINITY;
}

static __device__ __forceinline__ void hide(float (&s)[64], const struct sparse_keys &keys, int j,
                                            const struct prefill_tile &t, const int32_t *columns,
                                            int row, int first_visible) {
    const int block = keys.causal_block(j), n_valid = keys.n_valid(j);
    /* The list has space for whole pairs: what lies past its end is masked below. */
    if (keys.has_columns(j))
        mask_columns(s, columns + (j - keys.n_listed) * PAIR_KEYS, row / SPARSE_HALF);
    if ((block + 2) * PAGE_TOKENS > first_visible)
        mask_scores(s, {block, block + 1}, t.first_visible + row);
    if (n_valid < PAIR_KEYS) mask_behind(s, n_valid);
}

/* --- kernel --- */

template <int D, bool CAPPED>
static __global__ void __launch_bounds__(THREADS, 1)
    attn_sparse_sm90_kernel(const __grid_constant__ struct sparse_maps maps,
                            const __grid_constant__ struct attn_prefill_params p,
                            const __grid_constant__ struct sparse_view s) {
    extern __shared__ __align__(1024) unsigned char shared[];
    struct sparse_plan<D> &plan = *reinterpret_cast<struct sparse_plan<D> *>(shared);
    const int group = __shfl_sync(~0u, threadIdx.x / GROUP_THREADS, 0);
    const int head = blockIdx.z * gridDim.x + blockIdx.x;
    const struct prefill_tile t = prefill_tile_of(p, blockIdx.y);
    if (threadIdx.x == 0) {
        tensor_map_prefetch(&maps.q);
        tensor_map_prefetch(&maps.pool);
        tensor_map_prefetch(&maps.groups);
        init_barriers<own_stages>(plan.dense);
    }
    const struct sparse_keys keys = sparse_keys_of(s, t, head);
    own_stages::await_barriers();
    if (group == 0) {
        registers_lower<SPARSE_PRODUCER_REGISTERS>();
        produce_sparse<D>(plan, maps, p, s, t, keys, head);
    } else {
        registers_raise<SPARSE_CONSUMER_REGISTERS>();
        consume<D, CAPPED, own_stages>(plan.dense, p, t, keys, plan.columns, group - 1,
                                       [&](int row, float top, float sum, const auto &pair) {
                                           store_row<D>(p, t, row, head, sink_of(p.sinks, head),
                                                        top, sum, pair);
                                       });
    }
}

/* --- launchers --- */

/* Returns a block's shared memory.  The list has whole pairs: consumers read a pair at a time. */
template <int D> static size_t sparse_bytes(const struct sparse_view &s) {
    const size_t n_pairs = (s.max_columns + PAIR_KEYS - 1) / PAIR_KEYS;
    return sizeof(struct sparse_plan<D>) + n_pairs * PAIR_KEYS * sizeof(int32_t);
}

template <int D>
static cudaError_t launch_sparse(const struct attn_prefill_params &p, const struct sparse_view &s,
                                 cudaStream_t stream) {
    const int bytes = (int)sparse_bytes<D>(s);
    const uint32_t group = p.n_heads / p.kv.n_kv_heads;
    const auto kernel =
        p.scale.inner > 0 ? attn_sparse_sm90_kernel<D, true> : attn_sparse_sm90_kernel<D, false>;
    struct sparse_maps maps;
    cudaError_t status = map_queries<D>(&maps.q, p);
    if (status == cudaSuccess) status = map_pool<D>(&maps.pool, p.kv, PAGE_TOKENS);
    if (status == cudaSuccess) status = map_pool<D>(&maps.groups, p.kv, SPARSE_GROUP);
    if (status == cudaSuccess)
        status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
    kernel<<<dim3(group, p.n_items, p.kv.n_kv_heads), THREADS, bytes, stream>>>(maps, p, s);
    return cudaGetLastError();
}

bool attn_sparse_sm90_fits(const struct sparse_view &s, uint32_t head_dim) {
    return (head_dim == 64 ? sparse_bytes<64>(s) : sparse_bytes<128>(s)) <= SM90_SHARED_BYTES;
}

cudaError_t launch_attn_sparse_sm90(const struct attn_prefill_params &p,
                                    const struct sparse_view &s, cudaStream_t stream) {
    if (p.n_items == 0) return cudaSuccess;
    if (p.kv.format != PAGE_BF16) return cudaErrorInvalidValue;
    switch (p.kv.head_dim) {
    case 64: return launch_sparse<64>(p, s, stream);
    case 128: return launch_sparse<128>(p, s, stream);
    default: return cudaErrorInvalidValue;
    }
}
