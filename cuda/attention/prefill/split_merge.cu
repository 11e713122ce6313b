/* split_merge.cu - merges the partial results of split prompts (split.h).
 *
 *   partial_out  f32 [n_partials][n_kv_heads][block_rows][head_dim]    a tile's splits in order
 *   partial_lse  f32 [n_partials][n_kv_heads][block_rows]              base 2; -inf: the row of
 *                                                                      partial_out is not read
 *   out          bf16 [n_total_rows, n_heads * head_dim]
 *
 * decode/exchange.cuh merges few rows with many partial results each; here are many rows, most with
 * a handful of partial results.
 *
 * Grid:   (matrix rows of a tile / 8, cut tiles, KV heads); a warp per row, lanes along head_dim.
 * Shared: none.          Bound: memory, 4 * n_partials * n_kv_heads * block_rows * head_dim bytes.
 * Oracle: the attention's, in double (tests/cuda/kernels/attn_prefill_test.cu). */
#include "cuda/attention/prefill/attn_prefill.cuh"

#include "cuda/attention/prefill/split_tile.cuh"
#include "cuda/common/float4.cuh"

enum { WARPS = 8, BATCH = 4 };

template <int D>
static __global__ void __launch_bounds__(WARPS * 32)
    attn_split_merge_kernel(const __grid_constant__ struct attn_prefill_params p,
                            const __grid_constant__ struct attn_split_view s, int block_rows) {
    constexpr int VECS = (D / 4 + 31) / 32;
    let_next_start();
    wait_for_previous();
    const struct attn_split_item item = s.items[blockIdx.y];
    const int lane = threadIdx.x % 32, row = blockIdx.x * WARPS + threadIdx.x / 32,
              kv_head = blockIdx.z, group = p.n_heads / p.kv.n_kv_heads;
    if (row >= item.n_rows * group) return;
    const size_t first = partial_row(p, item.partial, kv_head, block_rows, row),
                 stride = (size_t)p.kv.n_kv_heads * block_rows;
    const int head = kv_head * group + row % group;
    const float sink = sink_of(p.sinks, head);
    float top = sink;
    for (int i = lane; i < item.n_splits; i += 32)
        top = fmaxf(top, s.partial_lse[first + i * stride]);
    for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    if (top == -INFINITY) top = 0.0f;

    float4 acc[VECS] = {};
    float weights = exp2_fast(sink - top);
    for (int from = 0; from < item.n_splits; from += BATCH) {
        float weight[BATCH];
        float4 x[BATCH][VECS] = {};
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const size_t at = first + (from + b) * stride;
            const float lse = from + b < item.n_splits ? s.partial_lse[at] : -INFINITY;
            weight[b] = exp2_fast(lse - top);
            if (lse == -INFINITY) continue;
            const float4 *out = reinterpret_cast<const float4 *>(s.partial_out + at * D);
#pragma unroll
            for (int v = 0; v < VECS; v++)
                if (lane + 32 * v < D / 4) x[b][v] = out[lane + 32 * v];
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            weights += weight[b];
#pragma unroll
            for (int v = 0; v < VECS; v++) add_scaled(&acc[v], x[b][v], weight[b]);
        }
    }
    const float inverse = weights > 0.0f ? 1.0f / weights : 0.0f;
    const size_t at = (size_t)(p.first_row[item.seq] + item.row + row / group) * p.n_heads + head;
    uint2 *to = reinterpret_cast<uint2 *>(static_cast<__nv_bfloat16 *>(p.out) + at * D);
#pragma unroll
    for (int v = 0; v < VECS; v++) {
        const float4 y = scaled(acc[v], inverse);
        if (lane + 32 * v < D / 4)
            to[lane + 32 * v] = make_uint2(pack_bf16(y.x, y.y), pack_bf16(y.z, y.w));
    }
    if (p.lse && lane == 0) p.lse[at] = top + log2f(weights);
}

template <int D>
static cudaError_t launch_dim(const struct attn_prefill_params &p, const struct attn_split_view &s,
                              struct launch launch) {
    const int block_rows = (int)attn_prefill_block_rows(D);
    return launch_kernel(launch, attn_split_merge_kernel<D>,
                         dim3((uint32_t)block_rows / WARPS, s.n_merges, p.kv.n_kv_heads),
                         WARPS * 32, 0, p, s, block_rows);
}

cudaError_t launch_attn_split_merge(const struct attn_prefill_params &p,
                                    const struct attn_split_view &s, struct launch launch) {
    if (s.n_merges == 0) return cudaSuccess; /* an empty grid is a launch error */
    switch (p.kv.head_dim) {
    case 64: return launch_dim<64>(p, s, launch);
    case 80: return launch_dim<80>(p, s, launch);
    case 96: return launch_dim<96>(p, s, launch);
    case 128: return launch_dim<128>(p, s, launch);
    case 256: return launch_dim<256>(p, s, launch);
    default: return cudaErrorInvalidValue;
    }
}
