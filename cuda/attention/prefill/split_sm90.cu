/* split_sm90.cu - few prompt rows after many keys (split.h) for Hopper (sm90.cuh): a block takes
 * fewer rows, with all heads of a group, in one matrix, and one split of their pairs.  Pages are
 * bf16, or of 8 bits (codes.cuh).
 *
 *   q       a stack of matrices [n_heads][D], one per row: a box of (128 / group rows, group, 64)
 *
 * Grid:   (KV heads, items).
 * Shared: an sm90_plan, or a codes_plan.
 * Bound:  of bf16 pages, memory with less than 128 rows times heads of a group, then tensor cores;
 *         of 8 bits, see codes.cuh.
 * Oracle: engine/cpu/attention.c in plain C; the test's oracle is in double. */
#include "cuda/attention/prefill/attn_prefill.cuh"

#include "cuda/attention/prefill/codes.cuh"
#include "cuda/attention/prefill/sm90.cuh"
#include "cuda/attention/prefill/split_tile.cuh"
#include "engine/device/pages.h"

/* Loads the queries of a split tile, row after row with all heads of a group, as a box of heads and
 * rows. */
template <int D>
static __device__ void load_group(struct sm90_plan<D> &plan, const CUtensorMap *queries,
                                  const struct split_tile &t) {
    const int group = t.pairs.group;
    barrier_arrive_expect(&plan.q_full, ATTN_PREFILL_TILE / group * group * D * 2);
    for (int c = 0; c < D / COLUMN; c++)
        tensor_load(plan.q + c * COLUMN_BYTES, queries, c * COLUMN, t.kv_head * group,
                    t.rows.first_row, &plan.q_full);
}

/* Hides slots as in a dense tile with a window.  The second condition allows for 64 different rows;
 * a consumer's matrix rows hold group times fewer. */
static __device__ __forceinline__ void hide(float (&s)[64], const struct split_pairs &pairs, int j,
                                            const struct prefill_tile &t, const int32_t *, int row,
                                            int first_visible) {
    const struct key_pair pair = pairs.at(j);
    const bool behind = (pair.second + 1) * PAGE_TOKENS > first_visible;
    const bool before =
        pair.first * PAGE_TOKENS < first_visible + ATTN_PREFILL_TILE / CONSUMERS - pairs.window;
    if (!behind && !before) return;
    const int at = row_of(pairs, row), apart = row_of(pairs, row + 8) - at;
    if (behind) mask_scores(s, pair, t.first_visible + at, apart);
    if (before) mask_before(s, pair, t.first_visible + at - pairs.window, apart);
}

/* Each of these fills a block's stages from one kind of pages: bf16, or 8 bits. */
template <int D> struct bf16_pages {
    typedef struct sm90_plan<D> plan;
    static constexpr int PRODUCER = PRODUCER_REGISTERS, CONSUMER = CONSUMER_REGISTERS;
    static __device__ __forceinline__ sm90_plan<D> &stages(plan &p) { return p; }
    static __device__ __forceinline__ void init(plan &p) { init_barriers<own_stages>(p); }
    static __device__ __forceinline__ void fill(plan &p, const struct sm90_maps &maps,
                                                const struct kv_pool &kv,
                                                const struct split_tile &t) {
        if (threadIdx.x < 32)
            produce<D, own_stages>(p, maps, t.rows, t.pairs, t.kv_head, kv.n_kv_heads);
    }
    static cudaError_t map(CUtensorMap *pool, const struct kv_pool &kv) {
        return map_pool<D>(pool, kv, PAGE_TOKENS);
    }
};

template <int D> struct code_pages {
    typedef struct codes_plan<D> plan;
    static constexpr int PRODUCER = FILLER_REGISTERS, CONSUMER = CODE_CONSUMER_REGISTERS;
    static __device__ __forceinline__ sm90_plan<D> &stages(plan &p) { return p.pages; }
    static __device__ __forceinline__ void init(plan &p) { init_code_barriers(p); }
    static __device__ __forceinline__ void fill(plan &p, const struct sm90_maps &maps,
                                                const struct kv_pool &kv,
                                                const struct split_tile &t) {
        fill_stages<D>(p, &maps.pool, kv, t);
    }
    static cudaError_t map(CUtensorMap *pool, const struct kv_pool &kv) {
        return map_codes<D>(pool, kv);
    }
};

template <int D, class Pages, bool CAPPED>
static __global__ void __launch_bounds__(THREADS, 1)
    attn_split_sm90_kernel(const __grid_constant__ struct sm90_maps maps,
                           const __grid_constant__ struct attn_prefill_params p,
                           const __grid_constant__ struct attn_split_view s) {
    extern __shared__ __align__(1024) unsigned char shared[];
    typename Pages::plan &plan = *reinterpret_cast<typename Pages::plan *>(shared);
    struct sm90_plan<D> &stages = Pages::stages(plan);
    if (s.n_merges > 0) let_next_start(); /* the merge */
    const int group = __shfl_sync(~0u, threadIdx.x / GROUP_THREADS, 0);
    const struct split_tile t = split_tile_of(p, s, blockIdx.y, blockIdx.x);
    if (t.pairs.n == 0) {
        store_nothing(p, s, t, ATTN_PREFILL_TILE);
        return;
    }
    if (threadIdx.x == 0) {
        tensor_map_prefetch(&maps.q);
        tensor_map_prefetch(&maps.pool);
        Pages::init(plan);
    }
    own_stages::await_barriers();
    if (group == 0) {
        registers_lower<Pages::PRODUCER>();
        if (threadIdx.x == 0) load_group(stages, &maps.q, t);
        Pages::fill(plan, maps, p.kv, t);
    } else {
        registers_raise<Pages::CONSUMER>();
        consume<D, CAPPED, own_stages>(stages, p, t.rows, t.pairs, nullptr, group - 1,
                                       [&](int row, float top, float sum, const auto &pair) {
                                           store_split_row<D>(p, s, t, p.sinks, ATTN_PREFILL_TILE,
                                                              row, top, sum, pair);
                                       });
    }
}

/* Maps the queries as a stack of one matrix per row, whose rows are the heads. */
template <int D>
static cudaError_t map_groups(CUtensorMap *map, const struct attn_prefill_params &p) {
    const uint32_t group = p.n_heads / p.kv.n_kv_heads;
    return tensor_map_stack(map, p.q, p.n_total_rows, p.q_stride * 2, p.n_heads, D, D * 2, group,
                            ATTN_PREFILL_TILE / group);
}

template <int D, class Pages>
static cudaError_t launch_pages(const struct attn_prefill_params &p,
                                const struct attn_split_view &s, struct launch launch) {
    const int bytes = sizeof(typename Pages::plan);
    const auto kernel = p.scale.inner > 0 ? attn_split_sm90_kernel<D, Pages, true>
                                          : attn_split_sm90_kernel<D, Pages, false>;
    struct sm90_maps maps;
    cudaError_t status = map_groups<D>(&maps.q, p);
    if (status == cudaSuccess) status = Pages::map(&maps.pool, p.kv);
    if (status == cudaSuccess)
        status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
    return launch_kernel(without_overlap(launch), kernel, dim3(p.kv.n_kv_heads, s.n_items), THREADS,
                         bytes, maps, p, s);
}

template <int D>
static cudaError_t launch_split(const struct attn_prefill_params &p,
                                const struct attn_split_view &s, struct launch launch) {
    switch (p.kv.format) {
    case PAGE_BF16: return launch_pages<D, bf16_pages<D>>(p, s, launch);
    case PAGE_FP8: return launch_pages<D, code_pages<D>>(p, s, launch);
    default: return cudaErrorInvalidValue;
    }
}

cudaError_t launch_attn_split_sm90(const struct attn_prefill_params &p,
                                   const struct attn_split_view &s, struct launch launch) {
    if (s.n_items == 0) return cudaSuccess;
    switch (p.kv.head_dim) {
    case 64: return launch_split<64>(p, s, launch);
    case 128: return launch_split<128>(p, s, launch);
    default: return cudaErrorInvalidValue;
    }
}
