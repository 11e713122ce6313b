/* mma.cu - prefill attention with mma.sync and cp.async, for sm_80 and later.
 *
 *   block   4 warps, 128 query rows of one head (64 at head_dim 256); a warp owns 32 (16)
 *   step    one key block (a page): S = Q K^T, online softmax in base 2, O += P V
 *
 *   shared  | Q rows x (D + 8) | K 64 x (D + 8) | V 64 x (D + 8) | 16 bytes of padding per row keep
 *                                                                  ldmatrix free of bank conflicts
 *   loads   V of this block is copied while S is computed, K of the next while P V is
 *   rotated keys that are stored before RoPE are rotated in shared memory, block by block
 *   sparse  blocks are any 64 slots, named by a list in shared memory (sparse/attend.cuh).  A bit
 *           marks each half of a tile that must not see a slot: a warp's rows are all of one half
 *   altered scores are capped, or get less by the distances of keys (ALiBi); sums have sinks
 *   split   the matrix holds fewer rows, with all heads of a group, and the block takes one split
 *           of their pairs (split.h)
 *
 * Grid:   (heads x parts of a tile, items); split: (KV heads, items).   Bound: tensor cores.
 * Oracle: engine/cpu/attention.c in plain C; the test's oracle is in double. */
#include "cuda/attention/prefill/attn_prefill.cuh"

#include "cuda/attention/prefill/split_tile.cuh"
#include "cuda/attention/prefill/tile.cuh"
#include "cuda/attention/sparse/attend.cuh"
#include "cuda/common/bias.cuh"
#include "cuda/common/mma.cuh"
#include "cuda/common/pages.cuh"
#include "cuda/common/rotation.cuh"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"

enum { WARPS = 4, THREADS = WARPS * 32, KEYS = PAGE_TOKENS };

/* Returns how many bands of 16 rows a warp has.  Two share each fragment of K and V; at head_dim
 * 256 one fills the registers. */
static constexpr __host__ __device__ int bands(int dim) {
    return dim <= 128 ? 2 : 1;
}

static constexpr __host__ __device__ int block_rows(int dim) {
    return WARPS * 16 * bands(dim);
}

static_assert(block_rows(128) == attn_prefill_block_rows(128), "plans count with these rows");
static_assert(block_rows(256) == attn_prefill_block_rows(256), "plans count with these rows");

template <typename T, int D> struct mma_plan {
    static constexpr int STRIDE = D + 8; /* elements */
    T q[block_rows(D) * STRIDE], k[KEYS * STRIDE], v[KEYS * STRIDE];
};

/* Loads the rows of one head or, with GROUP, of `group` heads from this one on, row after row.
 * Queries are bf16 whatever the pages are; f16 mma needs them as f16 (exact from 2^-14 to 2^16). */
template <typename T, int D, bool GROUP = false>
static __device__ void load_queries(T *to, const struct attn_prefill_params &p, int first_row,
                                    int n_rows, int head, int group = 1) {
    const __nv_bfloat16 *q =
        (const __nv_bfloat16 *)p.q + (size_t)first_row * p.q_stride + (size_t)head * D;
    for (int i = threadIdx.x; i < block_rows(D) * (D / 8); i += THREADS) {
        const int row = i / (D / 8), col = i % (D / 8) * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if constexpr (GROUP) {
            if (row < n_rows)
                v = *(const uint4 *)(q + row / group * p.q_stride + row % group * D + col);
        } else {
            if (row < n_rows) v = *(const uint4 *)(q + row * p.q_stride + col);
        }
        if constexpr (sizeof(T) == 2 && !__is_same(T, __nv_bfloat16)) {
            uint32_t *w = &v.x;
            for (int j = 0; j < 4; j++) {
                const float2 f = __bfloat1622float2(*(const __nv_bfloat162 *)&w[j]);
                w[j] = pack<T>(f.x, f.y);
            }
        }
        *(uint4 *)(to + row * mma_plan<T, D>::STRIDE + col) = v;
    }
}

/* Starts the copy of one block's keys or values; slots from n_valid on become zeros. */
template <typename T, int D> static __device__ void load_block(T *to, const T *from, int n_valid) {
    for (int i = threadIdx.x; i < KEYS * (D / 8); i += THREADS) {
        const int slot = i / (D / 8), col = i % (D / 8) * 8;
        copy_async(to + slot * mma_plan<T, D>::STRIDE + col, from + slot * D + col, slot < n_valid);
    }
}

/* Scores, outputs and row states of a warp: B bands of 16 rows.  Element e of x[b][n] is row
 * b * 16 + e / 2 * 8 + lane / 4, column n * 8 + lane % 4 * 2 + e % 2; max, sum by row. */
template <int D> struct warp_state {
    static constexpr int B = bands(D);
    float s[B][KEYS / 8][4], o[B][D / 8][4], max[B][2], sum[B][2];
};

template <typename T, int D>
static __device__ __forceinline__ void scores(struct warp_state<D> &w, const T *q, const T *k,
                                              int lane) {
    constexpr int STRIDE = mma_plan<T, D>::STRIDE, B = bands(D);
    const T *qa = q + (lane % 16) * STRIDE + lane / 16 * 8;
    const T *ka = k + (lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll
    for (int i = 0; i < B * KEYS / 2; i++) w.s[i / (KEYS / 2)][i / 4 % (KEYS / 8)][i % 4] = 0.0f;
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        uint32_t a[B][4], b[4];
#pragma unroll
        for (int i = 0; i < B; i++) load_matrix(a[i], qa + i * 16 * STRIDE + d);
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            load_matrix(b, ka + n * 16 * STRIDE + d);
#pragma unroll
            for (int i = 0; i < B; i++) {
                mma<T>(w.s[i][2 * n], a[i], b[0], b[1]);
                mma<T>(w.s[i][2 * n + 1], a[i], b[2], b[3]);
            }
        }
    }
}

template <typename T, int D>
static __device__ __forceinline__ void add_values(struct warp_state<D> &w, const T *v, int lane) {
    constexpr int STRIDE = mma_plan<T, D>::STRIDE, B = bands(D);
    const T *va = v + (lane % 16) * STRIDE + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        uint32_t a[B][4], b[4];
#pragma unroll
        for (int i = 0; i < B * 4; i++) {
            const float *weights = w.s[i / 4][2 * k + i % 4 / 2] + i % 2 * 2;
            a[i / 4][i % 4] = pack<T>(weights[0], weights[1]);
        }
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            load_matrix_trans(b, va + k * 16 * STRIDE + d * 16);
#pragma unroll
            for (int i = 0; i < B; i++) {
                mma<T>(w.o[i][2 * d], a[i], b[0], b[1]);
                mma<T>(w.o[i][2 * d + 1], a[i], b[2], b[3]);
            }
        }
    }
}

/* Hides what the rows may not see: column c of the block is visible to row 0 of the tile while
 * c < limit, and each later row sees one more.  row: the lane's first in the matrix. */
template <int D, typename Pairs>
static __device__ __forceinline__ void mask_scores(struct warp_state<D> &w, const Pairs &pairs,
                                                   int limit, int row, int lane) {
#pragma unroll
    for (int b = 0; b < bands(D); b++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (n * 8 + lane % 4 * 2 + e % 2 >= limit + row_of(pairs, row + b * 16 + e / 2 * 8))
                    w.s[b][n][e] = -INFINITY;
}

/* Hides what lies before the rows' windows: column c of the block is hidden from row 0 of the tile
 * while c < first, and from each later row one more. */
template <int D, typename Pairs>
static __device__ __forceinline__ void mask_before(struct warp_state<D> &w, const Pairs &pairs,
                                                   int first, int row, int lane) {
#pragma unroll
    for (int b = 0; b < bands(D); b++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (n * 8 + lane % 4 * 2 + e % 2 < first + row_of(pairs, row + b * 16 + e / 2 * 8))
                    w.s[b][n][e] = -INFINITY;
}

/* Converts the scores of band b, row half h, to weights against the new running maximum, and scales
 * what was summed so far.  A row that has seen nothing yet keeps the maximum -inf, from which -inf
 * must not be subtracted.  If the maximum does not change, the factor is exactly 1, so a masked
 * block changes nothing. */
template <int D>
static __device__ __forceinline__ void update_softmax(struct warp_state<D> &w, int b, int h,
                                                      float scale) {
    float top = w.max[b][h], total = 0.0f;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
        top = fmaxf(top, fmaxf(w.s[b][n][2 * h], w.s[b][n][2 * h + 1]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    const float base = top == -INFINITY ? 0.0f : top;
    const float factor = exp2_fast((w.max[b][h] - base) * scale), shift = base * scale;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; e++)
            total += w.s[b][n][e] = exp2_fast(fmaf(w.s[b][n][e], scale, -shift));
    w.max[b][h] = top;
    w.sum[b][h] = fmaf(w.sum[b][h], factor, total);
#pragma unroll
    for (int n = 0; n < D / 8; n++) w.o[b][n][2 * h] *= factor, w.o[b][n][2 * h + 1] *= factor;
}

/* Stores a lane's rows, the first of which is `row` of the block's.  It calls store(row, largest
 * score in base 2, sum of weights, accumulators as store_row() takes them). */
template <int D, typename Store>
static __device__ __forceinline__ void store_rows(const struct warp_state<D> &w, int row,
                                                  float scale, const Store &store) {
#pragma unroll
    for (int i = 0; i < 2 * bands(D); i++) {
        const int b = i / 2, h = i % 2;
        store(row + 8 * i, w.max[b][h] * scale, w.sum[b][h],
              [&](int n) { return make_float2(w.o[b][n][2 * h], w.o[b][n][2 * h + 1]); });
    }
}

/* Returns the softmax's sinks; kernels that alter nothing have none. */
template <bool ALTERED>
static __device__ __forceinline__ struct head_sinks sinks_of(const struct attn_prefill_params &p) {
    return ALTERED ? p.sinks : head_sinks{};
}

/* Where the keys and values of block i of the tile's plan lie, and how many of its slots exist. */
template <typename T, typename Pairs> struct block_source {
    const T *keys; /* of the KV head, in page 0 */
    size_t page_elements, to_values;
    Pairs pairs;

    __device__ int block(int i) const {
        return i % 2 ? pairs.at(i / 2).first : pairs.at(i / 2).second;
    }
    __device__ int n_valid(const struct prefill_tile &t, int i) const {
        return t.n_slots - block(i) * KEYS;
    }
    __device__ const T *page(const struct prefill_tile &t, int i) const {
        return keys + page_of_block(t, block(i)) * page_elements;
    }
    __device__ const struct kv_page_state *state(const struct attn_prefill_params &p,
                                                 const struct prefill_tile &t, int i,
                                                 int kv_head) const {
        return page_state(p.kv, page_of_block(t, block(i)), kv_head);
    }
};

template <typename T, int D, typename Pairs>
static __device__ __forceinline__ struct block_source<T, Pairs> block_source_of(
    const struct attn_prefill_params &p, int head, const Pairs &pairs) {
    const size_t head_elements = (size_t)KEYS * D;
    return {(const T *)p.kv.base + head / (p.n_heads / p.kv.n_kv_heads) * head_elements,
            p.kv.page_bytes / sizeof(T), p.kv.n_kv_heads *head_elements, pairs};
}

/* Returns the head that a row of a block's matrix belongs to; head: its first row's. */
template <typename Pairs>
static __device__ __forceinline__ int head_of(const Pairs &, int head, int) {
    return head;
}
static __device__ __forceinline__ int head_of(const struct split_pairs &pairs, int head, int row) {
    return head + row % pairs.group;
}

/* Takes from products what the distances of keys cost.  row: the lane's first in the matrix;
 * place(c): the position of column c's key. */
template <int D, typename Pairs, typename Place>
static __device__ __forceinline__ void add_bias(struct warp_state<D> &w,
                                                const struct attn_prefill_params &p,
                                                const struct prefill_tile &t, const Pairs &pairs,
                                                int head, int row, int lane, const Place &place) {
    const int n_rows = 2 * bands(D);
    const uint32_t first = query_place(p.bias, t.seq, t.first_row);
    float slopes[n_rows];
#pragma unroll
    for (int i = 0; i < n_rows; i++)
        slopes[i] = p.bias.slopes[head_of(pairs, head, row + 8 * i)] / p.scale.outer;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const uint32_t key = place(n * 8 + lane % 4 * 2 + e);
#pragma unroll
            for (int i = 0; i < n_rows; i++)
                w.s[i / 2][n][i % 2 * 2 + e] -=
                    distance_cost(slopes[i], first + row_of(pairs, row + 8 * i), key);
        }
}

/* Makes scores of a block's products where that is more than a factor. */
template <int D, typename Pairs, typename Place>
static __device__ __forceinline__ void alter_scores(struct warp_state<D> &w,
                                                    const struct attn_prefill_params &p,
                                                    const struct prefill_tile &t,
                                                    const Pairs &pairs, int head, int row, int lane,
                                                    const Place &place) {
    if (p.scale.inner > 0) cap_products(w.s, p.scale.inner);
    if (p.bias.slopes) add_bias(w, p, t, pairs, head, row, lane, place);
}

/* Attends to all blocks of the pairs, after load_queries().  head: any of those that share the
 * keys; warp_row: the warp's first row in the matrix. */
template <typename T, int D, bool ROTATED, bool WINDOW, bool ALTERED, typename Pairs>
static __device__ __forceinline__ void attend(struct mma_plan<T, D> &plan, struct warp_state<D> &w,
                                              const struct attn_prefill_params &p,
                                              const struct prefill_tile &t,
                                              const struct block_source<T, Pairs> &from, int head,
                                              int warp_row, int lane, float scale) {
    const int n = 2 * from.pairs.n;
    for (int i = 0; i < 2 * bands(D); i++) w.max[i / 2][i % 2] = -INFINITY;
    load_block<T, D>(plan.k, from.page(t, 0), from.n_valid(t, 0));
    for (int i = 0; i < n; i++) {
        copy_async_wait_all();
        __syncthreads(); /* K(i) has arrived, and all warps are done with V(i - 1) */
        load_block<T, D>(plan.v, from.page(t, i) + from.to_values, from.n_valid(t, i));
        if constexpr (ROTATED) {
            rotate_page<T>(plan.k, mma_plan<T, D>::STRIDE, from.n_valid(t, i), p.rotations,
                           from.state(p, t, i, head / (p.n_heads / p.kv.n_kv_heads)));
            __syncthreads();
        }
        scores<T, D>(w, plan.q + warp_row * mma_plan<T, D>::STRIDE, plan.k, lane);
        if constexpr (ALTERED) {
            struct key_places places = {};
            if (p.bias.slopes)
                places = places_of(p.bias, t.seq, head / (p.n_heads / p.kv.n_kv_heads),
                                   min(from.block(i), (t.n_slots - 1) / KEYS) * KEYS);
            alter_scores(w, p, t, from.pairs, head, warp_row + lane / 4, lane,
                         [&](int column) { return places.of(column); });
        }
        copy_async_wait_all();
        __syncthreads(); /* V(i) has arrived, and all warps are done with K(i) */
        if (i + 1 < n) load_block<T, D>(plan.k, from.page(t, i + 1), from.n_valid(t, i + 1));
        const int limit = t.first_visible - from.block(i) * KEYS; /* of row 0 */
        if (limit < KEYS) mask_scores(w, from.pairs, limit, warp_row + lane / 4, lane);
        if constexpr (WINDOW) {
            const int first = limit - from.pairs.window; /* the first column that row 0 sees */
            if (first + block_rows(D) > 0)
                mask_before(w, from.pairs, first, warp_row + lane / 4, lane);
        }
#pragma unroll
        for (int b = 0; b < 2 * bands(D); b++) update_softmax(w, b / 2, b % 2, scale);
        add_values<T, D>(w, plan.v, lane);
    }
}

/* Never both ROTATED and WINDOW: a bounded cache is no longer than the window. */
template <typename T, int D, bool ROTATED, bool WINDOW, bool ALTERED>
static __global__ void __launch_bounds__(THREADS)
    attn_prefill_mma_kernel(const struct attn_prefill_params p) {
    constexpr int ROWS = block_rows(D), PARTS = ATTN_PREFILL_TILE / ROWS;
    extern __shared__ __align__(16) unsigned char shared[];
    struct mma_plan<T, D> &plan = *reinterpret_cast<struct mma_plan<T, D> *>(shared);
    const int head = blockIdx.x / PARTS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    struct prefill_tile t = prefill_tile_of(p, blockIdx.y);
    const int skip = blockIdx.x % PARTS * ROWS; /* to this block's part of the tile */
    t.first_row += skip, t.first_visible += skip, t.n_rows = min(t.n_rows - skip, ROWS);
    if (t.n_rows <= 0) return;

    const auto from = block_source_of<T, D>(p, head, pairs_of<WINDOW>(p, t));
    const int warp_row = warp * 16 * bands(D);
    const float scale = p.scale.outer * LOG2_E; /* softmax in base 2 */
    const struct head_sinks sinks = sinks_of<ALTERED>(p);
    struct warp_state<D> w = {};
    load_queries<T, D>(plan.q, p, t.first_row, t.n_rows, head);
    attend<T, D, ROTATED, WINDOW, ALTERED>(plan, w, p, t, from, head, warp_row, lane, scale);
    store_rows(w, warp_row + lane / 4, scale, [&](int row, float top, float sum, const auto &pair) {
        store_row<D>(p, t, row, head, sink_of(sinks, head), top, sum, pair);
    });
}

/* Checks the window even if the layer has none: few rows come here. */
template <typename T, int D, bool ALTERED>
static __global__ void __launch_bounds__(THREADS)
    attn_split_mma_kernel(const struct attn_prefill_params p, const struct attn_split_view s) {
    extern __shared__ __align__(16) unsigned char shared[];
    struct mma_plan<T, D> &plan = *reinterpret_cast<struct mma_plan<T, D> *>(shared);
    const int warp_row = threadIdx.x / 32 * 16 * bands(D), lane = threadIdx.x % 32;
    const struct split_tile t = split_tile_of(p, s, blockIdx.y, blockIdx.x);
    if (t.pairs.n == 0) {
        store_nothing(p, s, t, block_rows(D));
        return;
    }
    const int head = t.kv_head * t.pairs.group; /* the first one */
    const auto from = block_source_of<T, D>(p, head, t.pairs);
    const float scale = p.scale.outer * LOG2_E; /* softmax in base 2 */
    const struct head_sinks sinks = sinks_of<ALTERED>(p);
    struct warp_state<D> w = {};
    load_queries<T, D, true>(plan.q, p, t.rows.first_row, t.rows.n_rows * t.pairs.group, head,
                             t.pairs.group);
    attend<T, D, false, true, ALTERED>(plan, w, p, t.rows, from, head, warp_row, lane, scale);
    store_rows(w, warp_row + lane / 4, scale, [&](int row, float top, float sum, const auto &pair) {
        store_split_row<D>(p, s, t, sinks, block_rows(D), row, top, sum, pair);
    });
}

/* --- sparse --- */

template <typename T, int D> struct sparse_mma_plan {
    struct mma_plan<T, D> dense;
    struct sparse_keys keys; /* in shared memory, because registers are scarce */
    int32_t slots[2][KEYS];  /* of a block and of the next, in the form of columns; -1: none */
};

/* Lists the slots of half a pair.  next_column: where warp 0 continues in the head's columns. */
static __device__ __forceinline__ void name_slots(int32_t *to, const struct sparse_view &s,
                                                  const struct sparse_keys &keys, int head, int i,
                                                  int &next_column) {
    const int pair = i / 2, first = i % 2 * KEYS, n = keys.n_valid(pair) - first;
    if (!keys.has_columns(pair)) {
        const int hidden = keys.is_shared(pair) ? 0 : 1 << (COLUMN_HIDDEN + 1 - keys.half_of(pair));
        if (threadIdx.x < KEYS)
            to[threadIdx.x] =
                (int)threadIdx.x < n ? keys.slot(pair, first + (int)threadIdx.x) | hidden : -1;
    } else if (threadIdx.x < 32) {
        next_column = list_columns(s, head, keys.own, next_column, to, min(n, (int)KEYS));
        for (int c = threadIdx.x; c < KEYS; c += 32)
            if (c >= n) to[c] = -1;
    }
}

/* Starts the copy of the named slots; unnamed ones become zeros. */
template <typename T, int D>
static __device__ void load_slots(T *to, const T *from, size_t page_elements,
                                  const struct prefill_tile &t, const int32_t *slots) {
    for (int i = threadIdx.x; i < KEYS * (D / 8); i += THREADS) {
        const int row = i / (D / 8), col = i % (D / 8) * 8, slot = slots[row] & COLUMN_SLOT;
        const bool valid = slot < t.n_slots; /* -1 becomes a slot past the last */
        const T *at =
            valid ? from + t.pages[slot / PAGE_TOKENS] * page_elements + slot % PAGE_TOKENS * D
                  : from;
        copy_async(to + row * mma_plan<T, D>::STRIDE + col, at + col, valid);
    }
}

/* Hides slots that the rows, all of one half of a tile, may not see, and unnamed slots. */
template <int D>
static __device__ __forceinline__ void mask_slots(struct warp_state<D> &w, const int32_t *slots,
                                                  int half, int visible, int lane) {
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t named = (uint32_t)slots[n * 8 + lane % 4 * 2 + e % 2];
            const int slot =
                named >> (COLUMN_HIDDEN + half) & 1 ? COLUMN_SLOT : (int)(named & COLUMN_SLOT);
#pragma unroll
            for (int b = 0; b < bands(D); b++)
                if (slot >= visible + b * 16 + e / 2 * 8) w.s[b][n][e] = -INFINITY;
        }
}

static __device__ __forceinline__ bool has_hidden(const struct prefill_tile &t,
                                                  const struct sparse_keys &keys, int i) {
    return (keys.causal_block(i / 2) + 2) * PAGE_TOKENS > t.first_visible ||
           keys.n_valid(i / 2) < 2 * PAGE_TOKENS || keys.has_columns(i / 2) ||
           !keys.is_shared(i / 2);
}

template <typename T, int D, bool ALTERED>
static __global__ void __launch_bounds__(THREADS)
    attn_sparse_mma_kernel(const struct attn_prefill_params p, const struct sparse_view s) {
    constexpr int ROWS = block_rows(D), PARTS = ATTN_PREFILL_TILE / ROWS;
    extern __shared__ __align__(16) unsigned char shared[];
    struct sparse_mma_plan<T, D> &sparse =
        *reinterpret_cast<struct sparse_mma_plan<T, D> *>(shared);
    struct mma_plan<T, D> &plan = sparse.dense;
    const int head = blockIdx.x / PARTS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    struct prefill_tile t = prefill_tile_of(p, blockIdx.y);
    const struct sparse_keys &keys = sparse.keys;
    if (warp == 0) {
        const struct sparse_keys found = sparse_keys_of(s, t, head);
        if (lane == 0) sparse.keys = found;
    }
    const int skip = blockIdx.x % PARTS * ROWS; /* to this block's part of the tile */
    t.first_row += skip, t.first_visible += skip, t.n_rows = min(t.n_rows - skip, ROWS);
    if (t.n_rows <= 0) return;
    __syncthreads();

    const auto from = block_source_of<T, D>(p, head, pairs_of<false>(p, t));
    const int n = 2 * keys.n, warp_row = warp * 16 * bands(D);
    const float scale = p.scale.outer * LOG2_E; /* softmax in base 2 */
    const struct head_sinks sinks = sinks_of<ALTERED>(p);
    struct warp_state<D> w = {};
    int next_column = 0;
    for (int i = 0; i < 2 * bands(D); i++) w.max[i / 2][i % 2] = -INFINITY;
    load_queries<T, D>(plan.q, p, t.first_row, t.n_rows, head);
    name_slots(sparse.slots[0], s, keys, head, 0, next_column);
    __syncthreads();
    load_slots<T, D>(plan.k, from.keys, from.page_elements, t, sparse.slots[0]);
    for (int i = 0; i < n; i++) {
        const int32_t *slots = sparse.slots[i % 2];
        copy_async_wait_all();
        __syncthreads(); /* K(i) has arrived, and all warps are done with V(i - 1) and its slots */
        load_slots<T, D>(plan.v, from.keys + from.to_values, from.page_elements, t, slots);
        if (i + 1 < n) name_slots(sparse.slots[(i + 1) % 2], s, keys, head, i + 1, next_column);
        scores<T, D>(w, plan.q + warp_row * mma_plan<T, D>::STRIDE, plan.k, lane);
        if constexpr (ALTERED)
            alter_scores(w, p, t, keys, head, warp_row + lane / 4, lane, [&](int column) {
                const int slot = min(slots[column] & COLUMN_SLOT, t.n_slots - 1);
                return places_of(p.bias, t.seq, head / (p.n_heads / p.kv.n_kv_heads), slot).of(0);
            });
        copy_async_wait_all();
        __syncthreads(); /* V(i) and the next slots are there, and all warps are done with K(i) */
        if (i + 1 < n)
            load_slots<T, D>(plan.k, from.keys, from.page_elements, t, sparse.slots[(i + 1) % 2]);
        if (has_hidden(t, keys, i))
            mask_slots(w, slots, (skip + warp_row) / SPARSE_HALF,
                       t.first_visible + warp_row + lane / 4, lane);
#pragma unroll
        for (int b = 0; b < 2 * bands(D); b++) update_softmax(w, b / 2, b % 2, scale);
        add_values<T, D>(w, plan.v, lane);
    }
    store_rows(w, warp_row + lane / 4, scale, [&](int row, float top, float sum, const auto &pair) {
        store_row<D>(p, t, row, head, sink_of(sinks, head), top, sum, pair);
    });
}

/* --- launchers --- */

template <int D> static dim3 grid_of(const struct attn_prefill_params &p) {
    return dim3(p.n_heads * (ATTN_PREFILL_TILE / block_rows(D)), p.n_items);
}

/* The keys that the rows of a list visit: all, those that an index lists, or all in splits. */
struct work {
    const struct sparse_view *sparse;    /* NULL: no index */
    const struct attn_split_view *split; /* NULL: no splits */
    int *n_residents; /* not NULL: counts the blocks of a multiprocessor and launches nothing */
};

template <typename T, int D, bool ALTERED>
static cudaError_t launch_work(const struct attn_prefill_params &p, const struct work &work,
                               struct launch launch) {
    const auto dense = p.rotated      ? attn_prefill_mma_kernel<T, D, true, false, ALTERED>
                       : p.window > 0 ? attn_prefill_mma_kernel<T, D, false, true, ALTERED>
                                      : attn_prefill_mma_kernel<T, D, false, false, ALTERED>;
    const auto sparse = attn_sparse_mma_kernel<T, D, ALTERED>;
    const auto split = attn_split_mma_kernel<T, D, ALTERED>;
    const void *kernel = work.sparse  ? (const void *)sparse
                         : work.split ? (const void *)split
                                      : (const void *)dense;
    const int bytes =
        work.sparse ? sizeof(struct sparse_mma_plan<T, D>) : sizeof(struct mma_plan<T, D>);
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
    if (work.n_residents)
        return cudaOccupancyMaxActiveBlocksPerMultiprocessor(work.n_residents, kernel, THREADS,
                                                             bytes);
    launch = without_overlap(launch);
    if (work.sparse)
        return launch_kernel(launch, sparse, grid_of<D>(p), THREADS, bytes, p, *work.sparse);
    if (work.split)
        return launch_kernel(launch, split, dim3(p.kv.n_kv_heads, work.split->n_items), THREADS,
                             bytes, p, *work.split);
    return launch_kernel(launch, dense, grid_of<D>(p), THREADS, bytes, p);
}

/* Launches the kernel with or without code that alters scores or sums.  A branch in the kernels
 * would cost those of head_dim 64 and 128 registers, or memory. */
template <typename T, int D>
static cudaError_t launch_altered(const struct attn_prefill_params &p, const struct work &work,
                                  struct launch launch) {
    return p.scale.inner > 0 || p.bias.slopes || p.sinks.are_there
               ? launch_work<T, D, true>(p, work, launch)
               : launch_work<T, D, false>(p, work, launch);
}

template <typename T>
static cudaError_t launch_dim(const struct attn_prefill_params &p, const struct work &work,
                              struct launch launch) {
    switch (p.kv.head_dim) {
    case 64: return launch_altered<T, 64>(p, work, launch);
    case 80: return launch_altered<T, 80>(p, work, launch);
    case 96: return launch_altered<T, 96>(p, work, launch);
    case 128: return launch_altered<T, 128>(p, work, launch);
    case 256: return launch_altered<T, 256>(p, work, launch);
    default: return cudaErrorInvalidValue;
    }
}

static cudaError_t launch_dtype(const struct attn_prefill_params &p, const struct work &work,
                                struct launch launch) {
    switch (p.kv.format) {
    case PAGE_BF16: return launch_dim<__nv_bfloat16>(p, work, launch);
    case PAGE_F16: return launch_dim<__half>(p, work, launch);
    default: return cudaErrorInvalidValue;
    }
}

cudaError_t launch_attn_prefill_mma(const struct attn_prefill_params &p, struct launch launch) {
    if (p.n_items == 0) return cudaSuccess; /* an empty grid is a launch error */
    return launch_dtype(p, {}, launch);
}

cudaError_t launch_attn_sparse_mma(const struct attn_prefill_params &p, const struct sparse_view &s,
                                   cudaStream_t stream) {
    if (p.n_items == 0) return cudaSuccess;
    return p.rotated ? cudaErrorInvalidValue
                     : launch_dtype(p, {&s, nullptr, nullptr}, launch_on(stream, false));
}

cudaError_t launch_attn_split_mma(const struct attn_prefill_params &p,
                                  const struct attn_split_view &s, struct launch launch) {
    if (s.n_items == 0) return cudaSuccess;
    return p.rotated ? cudaErrorInvalidValue : launch_dtype(p, {nullptr, &s, nullptr}, launch);
}

cudaError_t attn_split_mma_residents(const struct kv_pool &kv, int *n_blocks) {
    struct attn_prefill_params p = {};
    const struct attn_split_view none = {};
    p.kv = kv;
    return launch_dtype(p, {nullptr, &none, n_blocks}, {});
}
