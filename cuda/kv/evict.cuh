/* evict.cuh - what kernels know of bounded caches: a page's states, which tokens may be evicted and
 * in which order, and the rotation of keys that are stored before RoPE.
 *
 * Angles of ranks.  rank * inv_freq / 2 pi is computed in two floats, and its nearest integer is
 * subtracted.  Both are exact, so the rest is off by 2^-25 of a full circle, 2e-7 radians, at any
 * rank below 2^24.
 *
 * Thread: device code.  Memory: none. */
#ifndef CUDA_KV_EVICT_CUH
#define CUDA_KV_EVICT_CUH

#include "cuda/common/device.cuh"
#include "engine/device/dtype.h"
#include "engine/device/evict.h"
#include "engine/device/pages.h"

static __device__ __forceinline__ struct kv_page_state *page_state(const struct kv_pool &kv,
                                                                   int32_t page, uint32_t kv_head) {
    const uint32_t row_bytes =
        kv.head_dim * element_bytes(kv.dtype) + (kv.dtype == DTYPE_FP8 ? 1 : 0);
    char *at = static_cast<char *>(kv.base) + (size_t)page * kv.page_bytes +
               (size_t)kv.n_kv_heads * 2 * PAGE_TOKENS * row_bytes;
    return reinterpret_cast<struct kv_page_state *>(at) + kv_head;
}

/* Returns the scale of a row of a DTYPE_FP8 page; a row is ([K, V], KV head, slot). */
static __device__ __forceinline__ uint8_t *row_scale(const struct kv_pool &kv, int32_t page,
                                                     uint32_t row) {
    return static_cast<uint8_t *>(kv.base) + (size_t)page * kv.page_bytes +
           (size_t)kv.n_kv_heads * 2 * PAGE_TOKENS * kv.head_dim + row;
}

/* Returns the factor of the row's elements as load_dtype() gives them. */
static __device__ __forceinline__ float row_factor(const struct kv_pool &kv, int32_t page,
                                                   uint32_t row) {
    return kv.dtype == DTYPE_FP8 ? fp8_factor(*row_scale(kv, page, row)) : 1.0f;
}

/* Tells whether the layer has the budget. */
static __device__ __forceinline__ bool has_layer(const struct device_budget &b, uint32_t layer) {
    return b.layers[layer / 32] >> layer % 32 & 1;
}

/* Returns the sequence's budget in the layer, or NULL if it has none there. */
static __device__ __forceinline__ const struct device_budget *budget_of(
    const struct device_step &step, size_t seq, uint32_t layer) {
    if (!step.budgets || step.budgets[seq].capacity == 0) return nullptr;
    return has_layer(step.budgets[seq], layer) ? step.budgets + seq : nullptr;
}

/* Returns the first slot of a decoding sequence's scores (struct attn_stats), or -1 if it needs
 * none of the layer. */
static __device__ __forceinline__ int32_t scores_place(const struct device_step &step, size_t seq,
                                                       uint32_t layer, bool selects) {
    if (selects && step.selects && step.selects[seq].n_selected > 0)
        return step.selects[seq].scores_at;
    const struct device_budget *budget = budget_of(step, seq, layer);
    return budget ? budget->scores_at : -1;
}

/* Returns a KV head's list of slots that stay after a chunk with scores, in the place of these.
 * group: query heads of a KV head. */
static __device__ __forceinline__ uint32_t *list_of(const struct attn_stats &stats,
                                                    const struct device_budget &b, uint32_t kv_head,
                                                    uint32_t group) {
    return reinterpret_cast<uint32_t *>(
        stats.scores + (kv_head * stats.score_stride + (size_t)b.scores_at) * group);
}

/* Returns the pages of a sequence in a layer. */
static __device__ __forceinline__ const int32_t *pages_of(const struct device_step &step,
                                                          uint32_t layer, size_t seq) {
    return step.table + (size_t)layer * step.layer_pages +
           step.table_at[(size_t)layer * step.n_seqs + seq];
}

/* Returns the pages from which a prompt's keys are read. */
static __device__ __forceinline__ const struct prompt_pages &keys_of(
    const struct evict_params &p, const struct device_budget &b) {
    return b.cache_positions ? p.ranked : p.stored;
}

/* Says whether keys must be rotated when they are read from there. */
static __device__ __forceinline__ bool must_rotate(const struct evict_params &p,
                                                   const struct device_budget &b) {
    return b.cache_positions && !p.is_rotated;
}

/* ---- eviction order ---- */

/* Says whether the token may be evicted: it is neither a sink nor recent.  n_text tokens of the
 * text are known. */
static __device__ __forceinline__ bool may_leave(const struct device_budget &b, uint32_t n_text,
                                                 uint32_t position) {
    return position >= b.n_sink && n_text - position > b.n_recent;
}

/* Returns a token's eviction order: the lowest is evicted first.  NaN is 0; other values keep their
 * order. */
static __device__ __forceinline__ uint32_t leave_order(const struct device_budget &b,
                                                       uint32_t n_text, uint32_t position,
                                                       float score) {
    const float value = b.score == KV_SCORE_MEAN ? score / (float)(n_text - position) : score;
    if (isnan(value)) return 0;
    const uint32_t bits = __float_as_uint(value + 0.0f); /* -0 becomes 0 */
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* ---- attention lost to evictions (struct kv_page_state) ---- */

/* Returns exp(-rate(k) * n). */
static __device__ __forceinline__ float fade_after(uint32_t k, uint32_t n) {
    return __expf(-ldexpf((float)n, -(int)k));
}

/* Adds evicted tokens to the first page's lost attention.  Threads 0 to KV_LOST_TERMS - 1 each
 * update their own term.  `given` is what the newest query gave to all the evicted tokens.  `term`
 * is the sum, over these tokens, of the product of what it gave, age and fade. */
static __device__ __forceinline__ void note_loss(struct kv_page_state *first, uint32_t n_text,
                                                 float given, float term) {
    const uint32_t k = threadIdx.x;
    const float kept = given < 1.0f - KV_LEAST_KEPT ? 1.0f - given : KV_LEAST_KEPT;
    first->lost[k] =
        first->lost[k] * fade_after(k, n_text - first->lost_at) + __fdividef(term, kept);
}

/* ---- rotating keys ---- */

/* Returns cos and sin, scaled, of pair `freq` at a rank. */
static __device__ __forceinline__ float2 angle_of(const struct key_rotations &t, uint32_t freq,
                                                  uint32_t rank) {
    const float2 rotations = reinterpret_cast<const float2 *>(t.per_rank)[freq];
    const float r = (float)rank, whole = r * rotations.x;
    const float rest = fmaf(r, rotations.x, -whole) + r * rotations.y;
    float s, c;
    sincospif(2.0f * ((whole - rintf(whole)) + rest), &s, &c);
    return make_float2(c * t.scale, s * t.scale);
}

/* Returns element d, rotated, of the key that begins at element `key`. */
static __device__ __forceinline__ float rotated_element(const void *data, enum dtype dtype,
                                                        size_t key, uint32_t d,
                                                        const struct key_rotations &t,
                                                        uint32_t rank) {
    const float x = load_dtype(data, key + d, dtype);
    const uint32_t n = t.n_freqs;
    if (d >= 2 * n) return x;
    const float2 angle = angle_of(t, d < n ? d : d - n, rank);
    if (d < n) return x * angle.x - load_dtype(data, key + d + n, dtype) * angle.y;
    return x * angle.x + load_dtype(data, key + d - n, dtype) * angle.y;
}

template <typename T> static __device__ __forceinline__ float2 unpack_pair(uint32_t pair) {
    if constexpr (sizeof(T) == 2 && !__is_same(T, __nv_bfloat16))
        return __half22float2(*reinterpret_cast<const __half2 *>(&pair));
    else return unpack_bf16(pair);
}

template <typename T> static __device__ __forceinline__ uint32_t pack_pair(float x, float y) {
    if constexpr (sizeof(T) == 2 && !__is_same(T, __nv_bfloat16)) {
        const __half2 pair = __floats2half2_rn(x, y);
        return *reinterpret_cast<const uint32_t *>(&pair);
    } else {
        return pack_bf16(x, y);
    }
}

/* Rotates eight pairs (a, b) of a key, from pair `freq` on.  Rounds like a key that was stored
 * after RoPE. */
template <typename T>
static __device__ __forceinline__ void rotate_pairs(uint4 *a, uint4 *b,
                                                    const struct key_rotations &t, uint32_t freq,
                                                    uint32_t rank) {
    uint32_t *low = &a->x, *high = &b->x;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const float2 u = unpack_pair<T>(low[i]), v = unpack_pair<T>(high[i]),
                     first = angle_of(t, freq + 2 * i, rank),
                     second = angle_of(t, freq + 2 * i + 1, rank);
        low[i] = pack_pair<T>(u.x * first.x - v.x * first.y, u.y * second.x - v.y * second.y);
        high[i] = pack_pair<T>(v.x * first.x + u.x * first.y, v.y * second.x + u.y * second.y);
    }
}

/* Rotates the keys of a page's slots in shared memory (rows of `stride` elements), with all threads
 * of the block.  Slots from n_valid on are unchanged. */
template <typename T>
static __device__ __forceinline__ void rotate_page(T *keys, uint32_t stride, int n_valid,
                                                   const struct key_rotations &t,
                                                   const struct kv_page_state *state) {
    const uint32_t n = t.n_freqs;
    for (uint32_t i = threadIdx.x; i < PAGE_TOKENS * (n / 8); i += blockDim.x) {
        const uint32_t row = i % PAGE_TOKENS, freq = i / PAGE_TOKENS * 8;
        if ((int)row >= n_valid) continue;
        T *at = keys + row * stride + freq;
        uint4 *a = reinterpret_cast<uint4 *>(at), *b = reinterpret_cast<uint4 *>(at + n);
        uint4 x = *a, y = *b;
        rotate_pairs<T>(&x, &y, t, freq, state->rank[row]);
        *a = x;
        *b = y;
    }
}

#endif
