/* tile.cuh - what the two prefill kernels share on the device: the geometry of one query tile and
 * the order in which it visits the keys.
 *
 * A key block is the PAGE_TOKENS slots of one page, named by its index in the sequence's part of
 * the block table.  Kernels never count blocks themselves: they ask an iterator for pair i of n
 * (sparse tiles have their own, sparse/attend.cuh).  If the number of blocks is odd, a pair names a
 * block past the last slot: it is loaded from some page and masked. */
#ifndef CUDA_ATTENTION_PREFILL_TILE_CUH
#define CUDA_ATTENTION_PREFILL_TILE_CUH

#include "cuda/attention/prefill/attn_prefill.cuh"
#include "cuda/common/device.cuh"
#include "engine/device/pages.h"

struct key_pair {
    int first, second; /* block numbers */
};

/* Every block with a visible slot, last pair first: pairs that need masks come first, and
 * neighbouring tiles, which run at the same time, read the same pages at about the same time. */
struct dense_pairs {
    int n;
    __device__ struct key_pair at(int i) const {
        const int pair = n - 1 - i;
        return {2 * pair, 2 * pair + 1};
    }
    /* The interface of sparse tiles; here all pairs are for both halves of a tile. */
    __device__ bool is_shared(int) const { return true; }
    __device__ int after(int i, int) const { return i + 1; }
    __device__ int before(int i) const { return i - 1; }
};

/* The same with a window: pairs before the window of the first row are left out. */
struct window_pairs {
    int n, last, window;
    __device__ struct key_pair at(int i) const { return {2 * (last - i), 2 * (last - i) + 1}; }
    __device__ bool is_shared(int) const { return true; }
    __device__ int after(int i, int) const { return i + 1; }
    __device__ int before(int i) const { return i - 1; }
};

/* Returns the tile's row that a row of a block's matrix belongs to.  It is the same number, unless
 * the matrix holds several heads (split_tile.cuh). */
template <typename Pairs>
static __device__ __forceinline__ int row_of(const Pairs &, int matrix_row) {
    return matrix_row;
}

struct prefill_tile {
    int seq;           /* of the step */
    int first_row;     /* in the step's matrices */
    int n_rows;        /* rows of this tile that exist, 1 .. ATTN_PREFILL_TILE */
    int first_visible; /* slots that the tile's row 0 sees; row i sees i more */
    int n_slots;       /* of the sequence */
    const int32_t *pages;
};

static __device__ __forceinline__ struct prefill_tile prefill_tile_of(
    const struct attn_prefill_params &p, int item) {
    const int seq = p.items[item].seq, row = p.items[item].tile * ATTN_PREFILL_TILE;
    struct prefill_tile t;
    t.seq = seq;
    t.first_row = p.first_row[seq] + row;
    t.n_rows = min(p.n_rows[seq] - row, (int)ATTN_PREFILL_TILE);
    t.n_slots = p.n_slots[seq];
    t.first_visible = t.n_slots - p.n_rows[seq] + row + 1;
    t.pages = p.page_table + p.table_at[seq];
    return t;
}

static __device__ __forceinline__ struct dense_pairs dense_pairs_of(const struct prefill_tile &t) {
    const int visible = t.first_visible + t.n_rows - 1;
    return {(visible + 2 * PAGE_TOKENS - 1) / (2 * PAGE_TOKENS)};
}

template <bool WINDOW>
static __device__ __forceinline__ auto pairs_of(const struct attn_prefill_params &p,
                                                const struct prefill_tile &t) {
    const struct dense_pairs all = dense_pairs_of(t);
    if constexpr (WINDOW) {
        const int window = (int)p.window,
                  first = max(t.first_visible - window, 0) / (2 * PAGE_TOKENS);
        return window_pairs{all.n - first, all.n - 1, window};
    } else {
        return all;
    }
}

/* Returns the page to load for a block.  A block past the end is masked, so any page of the
 * sequence will do. */
static __device__ __forceinline__ int page_of_block(const struct prefill_tile &t, int block) {
    return t.pages[min(block, (t.n_slots - 1) / PAGE_TOKENS)];
}

/* How a row's softmax ends: its outputs are multiplied by `factor`. */
struct row_end {
    float factor, lse; /* base 2 */
};

/* Ends a row with the largest score `top` (base 2), the sum of its weights, and a sink. */
static __device__ __forceinline__ struct row_end end_row(float top, float total, float sink) {
    if (sink == -INFINITY) return {1.0f / total, top + log2f(total)};
    const float max = fmaxf(top, sink), keep = exp2_fast(top - max),
                all = total * keep + exp2_fast(sink - max);
    return {keep / all, max + log2f(all)};
}

/* Writes one row of the tile of queries.  Four lanes hold its accumulators, its largest score (base
 * 2) and the sum of its weights; pair(n) is what this lane holds of columns 8 n and on.  sink: the
 * head's. */
template <int D, typename Pair>
static __device__ __forceinline__ void store_row(const struct attn_prefill_params &p,
                                                 const struct prefill_tile &t, int row, int head,
                                                 float sink, float top, float sum, Pair pair) {
    float total = sum + __shfl_xor_sync(~0u, sum, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    if (row >= t.n_rows) return;
    const struct row_end end = end_row(top, total, sink);
    const size_t at = (size_t)(t.first_row + row) * p.n_heads + head;
    __nv_bfloat16 *to = (__nv_bfloat16 *)p.out + at * D;
    if (p.lse && threadIdx.x % 4 == 0) p.lse[at] = end.lse;
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
        const float2 x = pair(n);
        *(uint32_t *)(to + n * 8 + threadIdx.x % 4 * 2) =
            pack_bf16(x.x * end.factor, x.y * end.factor);
    }
}

#endif
