/* sm90.cu - prefill attention for Hopper (sm90.cuh): a block takes one query tile of 128 rows and
 * one head.
 *
 *   q       bf16 rows through a tensor map [n_total_rows, n_heads * D]; rows past the end of the
 *           sequence belong to a neighbour: they are computed and not stored
 *   cluster two neighbouring heads of a tile, if a group has an even number of them: they visit
 *           the same keys, so they share their stages (paired_stages)
 *
 * Grid:   (heads, items): heads of one tile run together and share pages in L2.
 * Shared: an sm90_plan.
 * Bound:  tensor cores, 4 * D operations per visible (row, slot) and head.
 * Oracle: engine/cpu/attention.c in plain C; the test's oracle is in double. */
#include "cuda/attention/prefill/attn_prefill.cuh"
#include "engine/device/pages.h"

#include "cuda/attention/prefill/sm90.cuh"

/* Hides what the rows may not see of pair j.  row: this thread's first; first_visible: slots that
 * the consumer's first row sees.  The columns are for sparse tiles. */
static __device__ __forceinline__ void hide(float (&s)[64], const struct dense_pairs &pairs, int j,
                                            const struct prefill_tile &t, const int32_t *, int row,
                                            int first_visible) {
    const struct key_pair pair = pairs.at(j);
    if ((max(pair.first, pair.second) + 1) * PAGE_TOKENS > first_visible)
        mask_scores(s, pair, t.first_visible + row);
}

static __device__ __forceinline__ void hide(float (&s)[64], const struct window_pairs &pairs, int j,
                                            const struct prefill_tile &t, const int32_t *, int row,
                                            int first_visible) {
    const struct key_pair pair = pairs.at(j);
    if ((pair.second + 1) * PAGE_TOKENS > first_visible)
        mask_scores(s, pair, t.first_visible + row);
    if (pair.first * PAGE_TOKENS < first_visible + ATTN_PREFILL_TILE / CONSUMERS - pairs.window)
        mask_before(s, pair, t.first_visible + row - pairs.window);
}

template <int D, bool WINDOW, bool CAPPED, typename Stages>
static __global__ void __launch_bounds__(THREADS, 1)
    attn_prefill_sm90_kernel(const __grid_constant__ struct sm90_maps maps,
                             const __grid_constant__ struct attn_prefill_params p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    struct sm90_plan<D> &plan = *reinterpret_cast<struct sm90_plan<D> *>(shared);
    /* The shuffle tells the compiler that a whole warp takes one branch; without it wgmma is
     * serialised. */
    const int group = __shfl_sync(~0u, threadIdx.x / GROUP_THREADS, 0), head = blockIdx.x;
    const struct prefill_tile t = prefill_tile_of(p, blockIdx.y);
    const auto pairs = pairs_of<WINDOW>(p, t);
    if (threadIdx.x == 0) {
        tensor_map_prefetch(&maps.q);
        tensor_map_prefetch(&maps.pool);
        init_barriers<Stages>(plan);
    }
    Stages::await_barriers();
    if (group == 0) {
        registers_lower<PRODUCER_REGISTERS>();
        const int n_kv_heads = p.kv.n_kv_heads, kv_head = head / (p.n_heads / n_kv_heads);
        if (threadIdx.x == 0) load_queries(plan, &maps.q, t.first_row, head);
        if (threadIdx.x < 32) produce<D, Stages>(plan, maps, t, pairs, kv_head, n_kv_heads);
    } else {
        registers_raise<CONSUMER_REGISTERS>();
        consume<D, CAPPED, Stages>(plan, p, t, pairs, nullptr, group - 1,
                                   [&](int row, float top, float sum, const auto &pair) {
                                       store_row<D>(p, t, row, head, sink_of(p.sinks, head), top,
                                                    sum, pair);
                                   });
    }
}

template <int D, typename Stages>
static cudaError_t launch_dense(const struct attn_prefill_params &p, struct launch launch) {
    const int bytes = sizeof(struct sm90_plan<D>);
    const bool capped = p.scale.inner > 0;
    const auto windowed = capped ? attn_prefill_sm90_kernel<D, true, true, Stages>
                                 : attn_prefill_sm90_kernel<D, true, false, Stages>;
    const auto unwindowed = capped ? attn_prefill_sm90_kernel<D, false, true, Stages>
                                   : attn_prefill_sm90_kernel<D, false, false, Stages>;
    const auto kernel = p.window > 0 ? windowed : unwindowed;
    struct sm90_maps maps;
    cudaError_t status = map_queries<D>(&maps.q, p);
    if (status == cudaSuccess) status = map_pool<D>(&maps.pool, p.kv, PAGE_TOKENS);
    if (status == cudaSuccess)
        status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
    return launch_clusters(without_overlap(launch), kernel, Stages::BLOCKS,
                           dim3(p.n_heads, p.n_items), THREADS, bytes, maps, p);
}

template <int D>
static cudaError_t launch_heads(const struct attn_prefill_params &p, struct launch launch) {
    const uint32_t group = p.n_heads / p.kv.n_kv_heads;
    return group % PAIRED_BLOCKS == 0 ? launch_dense<D, paired_stages>(p, launch)
                                      : launch_dense<D, own_stages>(p, launch);
}

bool attn_prefill_sm90_is_there(void) {
    return runs_sm90_code(attn_prefill_sm90_kernel<128, false, false, own_stages>);
}

cudaError_t launch_attn_prefill_sm90(const struct attn_prefill_params &p, struct launch launch) {
    if (p.n_items == 0) return cudaSuccess; /* an empty grid is a launch error */
    if (p.kv.format != PAGE_BF16) return cudaErrorInvalidValue;
    switch (p.kv.head_dim) {
    case 64: return launch_heads<64>(p, launch);
    case 128: return launch_heads<128>(p, launch);
    default: return cudaErrorInvalidValue;
    }
}
