/* split_tile.cuh - a block's share of a split prompt (split.h), as the two prefill kernels take it
 * on the device.
 *
 *   matrix row   i * group + h: row i of the tile, query head h of the KV head's group
 *   partial      [n_partials][n_kv_heads][block_rows] rows of head_dim, divided by their weights
 *   lse          the same rows; base 2, -inf if a row sees nothing of the split
 *
 * An empty split writes only its log-sum-exps: a result that weighs nothing is not read.
 *
 * Thread: device code.  Memory: none. */
#ifndef CUDA_ATTENTION_PREFILL_SPLIT_TILE_CUH
#define CUDA_ATTENTION_PREFILL_SPLIT_TILE_CUH

#include "cuda/attention/prefill/tile.cuh"

/* The pairs of a split, last one first as in dense_pairs.  window: larger than any text if the
 * layer has none. */
struct split_pairs {
    int n, last, window, group;
    __device__ struct key_pair at(int i) const { return {2 * (last - i), 2 * (last - i) + 1}; }
    __device__ bool is_shared(int) const { return true; }
    __device__ int after(int i, int) const { return i + 1; }
    __device__ int before(int i) const { return i - 1; }
};

/* Returns the tile's row that a row of the matrix belongs to. */
static __device__ __forceinline__ int row_of(const struct split_pairs &pairs, int matrix_row) {
    return matrix_row / pairs.group;
}

struct split_tile {
    struct prefill_tile rows;
    struct split_pairs pairs;
    int kv_head, partial;
};

static __device__ __forceinline__ struct split_tile split_tile_of(
    const struct attn_prefill_params &p, const struct attn_split_view &s, int index, int kv_head) {
    const struct attn_split_item item = s.items[index];
    struct split_tile t;
    t.rows.seq = item.seq;
    t.rows.first_row = p.first_row[item.seq] + item.row;
    t.rows.n_rows = item.n_rows;
    t.rows.n_slots = p.n_slots[item.seq];
    t.rows.first_visible = t.rows.n_slots - p.n_rows[item.seq] + item.row + 1;
    t.rows.pages = p.page_table + p.table_at[item.seq];
    const int window = p.window > 0 ? (int)p.window : t.rows.n_slots + ATTN_PREFILL_TILE,
              first = max(t.rows.first_visible - window, 0) / ATTN_SPLIT_PAIR,
              n_pairs = dense_pairs_of(t.rows).n - first,
              begin = attn_split_begin_of(n_pairs, item.n_splits, item.split),
              end = attn_split_begin_of(n_pairs, item.n_splits, item.split + 1);
    t.pairs = {end - begin, first + end - 1, window, (int)(p.n_heads / p.kv.n_kv_heads)};
    t.kv_head = kv_head;
    t.partial = item.partial;
    return t;
}

/* Returns where a row of the matrix lies among the partial results. */
static __device__ __forceinline__ size_t partial_row(const struct attn_prefill_params &p,
                                                     int partial, int kv_head, int block_rows,
                                                     int matrix_row) {
    return ((size_t)partial * p.kv.n_kv_heads + kv_head) * block_rows + matrix_row;
}

/* Writes the log-sum-exps of an empty split, by the whole block. */
static __device__ __forceinline__ void store_nothing(const struct attn_prefill_params &p,
                                                     const struct attn_split_view &s,
                                                     const struct split_tile &t, int block_rows) {
    const int n = t.rows.n_rows * t.pairs.group;
    for (int row = threadIdx.x; row < n; row += blockDim.x)
        s.partial_lse[partial_row(p, t.partial, t.kv_head, block_rows, row)] = -INFINITY;
}

/* Writes one row of the matrix, which the lanes hold as store_row() takes it. */
template <int D, typename Pair>
static __device__ __forceinline__ void store_split_row(const struct attn_prefill_params &p,
                                                       const struct attn_split_view &s,
                                                       const struct split_tile &t,
                                                       const struct head_sinks &sinks,
                                                       int block_rows, int row, float top,
                                                       float sum, Pair pair) {
    float total = sum + __shfl_xor_sync(~0u, sum, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    if (row >= t.rows.n_rows * t.pairs.group) return;
    const int column = threadIdx.x % 4 * 2;
    if (t.partial < 0) {
        const int head = t.kv_head * t.pairs.group + row % t.pairs.group;
        const size_t at = (size_t)(t.rows.first_row + row / t.pairs.group) * p.n_heads + head;
        const struct row_end end = end_row(top, total, sink_of(sinks, head));
        __nv_bfloat16 *to = (__nv_bfloat16 *)p.out + at * D;
        if (p.lse && column == 0) p.lse[at] = end.lse;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            const float2 x = pair(n);
            *(uint32_t *)(to + n * 8 + column) = pack_bf16(x.x * end.factor, x.y * end.factor);
        }
        return;
    }
    const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
    const size_t at = partial_row(p, t.partial, t.kv_head, block_rows, row);
    float *to = s.partial_out + at * D;
    if (column == 0) s.partial_lse[at] = top + log2f(total);
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
        const float2 x = pair(n);
        *(float2 *)(to + n * 8 + column) = make_float2(x.x * inverse, x.y * inverse);
    }
}

#endif
