/* evict.cuh - what kernels that evict have in common.
 *
 * It says where a prompt's keys are read, and which tokens may be evicted, in which order.  It
 * counts the attention that is lost with them.
 *
 * Thread: device code.  Memory: none. */
#ifndef CUDA_KV_EVICT_CUH
#define CUDA_KV_EVICT_CUH

#include "cuda/common/device.cuh"
#include "engine/device/evict.h"
#include "engine/device/pages.h"

/* Returns a KV head's list of slots that stay after a chunk with scores, in the place of these.
 * group: query heads of a KV head. */
static __device__ __forceinline__ uint32_t *list_of(const struct attn_stats &stats,
                                                    const struct device_budget &b, uint32_t kv_head,
                                                    uint32_t group) {
    return reinterpret_cast<uint32_t *>(
        stats.scores + (kv_head * stats.score_stride + (size_t)b.scores_at) * group);
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

/* Returns the share of a row's attention that no token gets, the mean over the query heads from
 * `first` on.  lse: the row's, of these heads. */
static __device__ __forceinline__ float sink_share(const struct head_sinks &sinks, const float *lse,
                                                   uint32_t first, uint32_t group) {
    float sum = 0.0f;
    for (uint32_t i = 0; sinks.are_there && i < group; i++)
        sum += exp2_fast(sink_of(sinks, first + i) - lse[i]);
    return sum / (float)group;
}

/* Adds evicted tokens to the first page's lost attention.  Threads 0 to KV_LOST_TERMS - 1 each
 * update their own term.  `given` is what the newest query gave to all the evicted tokens, and
 * `to_sinks` what it gave to none.  `term` is the sum, over these tokens, of the product of what it
 * gave, age and fade. */
static __device__ __forceinline__ void note_loss(struct kv_page_state *first, uint32_t n_text,
                                                 float given, float to_sinks, float term) {
    const uint32_t k = threadIdx.x;
    const float to_tokens = 1.0f - to_sinks,
                kept = given < to_tokens - KV_LEAST_KEPT ? to_tokens - given : KV_LEAST_KEPT;
    first->lost[k] =
        first->lost[k] * fade_after(k, n_text - first->lost_at) + __fdividef(term, kept);
}

#endif
