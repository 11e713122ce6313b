/* attn_simple.cu - attention over pages by the definition.  It is the reference for the fast
 * kernels, and takes what they do not: any head_dim up to 512, any page format.
 *
 *   q     bf16 rows of [n_heads, head_dim]
 *   pool  pages [K,V][n_kv_heads][PAGE_TOKENS][head_dim]; page states if it is tracked
 *   out   bf16 [n_rows, n_heads * head_dim]
 *
 * Grid:   one block per (row, KV head, query head of its group).
 * A warp takes every N_WARPS-th slot with an online softmax in f32, a lane every 32nd dimension;
 * the warps' (max, sum, out) are merged at the end.  Row i of a sequence sees slots [0, n_slots -
 * n_rows + i].  If the layer has a window, the row sees only the newest of these; in a sparse
 * prompt it sees only those that the index lists. */
#include "cuda/attention/sparse/sparse_view.h"
#include "cuda/common/bias.cuh"
#include "cuda/common/device.cuh"
#include "cuda/common/pages.cuh"
#include "cuda/common/rotation.cuh"
#include "cuda/common/step.cuh"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"

/* LANE_DIMS: the most dimensions of a lane, USUAL_LANE_DIMS or MOST_LANE_DIMS. */
enum { N_WARPS = 4, USUAL_LANE_DIMS = 8, MOST_LANE_DIMS = 16 };

template <int LANE_DIMS> struct plan {
    float max[N_WARPS], sum[N_WARPS];
    float out[N_WARPS][32 * LANE_DIMS];
};

template <int LANE_DIMS> struct softmax {
    float max, sum;
    float out[LANE_DIMS]; /* dimension lane + 32 * i */
};

template <int LANE_DIMS>
static __device__ __forceinline__ float dot_key(const struct kv_pool &kv, const float *q,
                                                const char *key) {
    const uint32_t lane = threadIdx.x % 32;
    float dot = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < LANE_DIMS; i++)
        if (lane + 32 * i < kv.head_dim) dot += q[i] * load_element(key, lane + 32 * i, kv.format);
    return warp_sum(dot);
}

template <int LANE_DIMS>
static __device__ float dot_rotated_key(const struct kv_pool &kv, const float *q, const char *key,
                                        const struct key_rotations &rotations, uint32_t rank) {
    const uint32_t lane = threadIdx.x % 32;
    float dot = 0.0f;
    for (uint32_t i = 0; i < LANE_DIMS; i++)
        if (lane + 32 * i < kv.head_dim)
            dot += q[i] * rotated_element(key, kv.format, lane + 32 * i, rotations, rank);
    return warp_sum(dot);
}

template <int LANE_DIMS>
static __device__ __forceinline__ void visit_slot(struct softmax<LANE_DIMS> *state,
                                                  const struct kv_pool &kv, float score,
                                                  const char *value, float factor) {
    const uint32_t lane = threadIdx.x % 32, dim = kv.head_dim;
    const float max = fmaxf(state->max, score);
    const float keep = __expf(state->max - max),
                weight = __expf(score - max); /* the first max is -inf: keep 0 */
    state->max = max;
    state->sum = state->sum * keep + weight;
#pragma unroll
    for (uint32_t i = 0; i < LANE_DIMS; i++)
        if (lane + 32 * i < dim)
            state->out[i] = state->out[i] * keep +
                            weight * (load_element(value, lane + 32 * i, kv.format) * factor);
}

/* Merges the warps' results of one row and head, and a sink, into `out`.  lse: where the row's
 * log-sum-exp goes, or NULL. */
template <int LANE_DIMS>
static __device__ void merge_warps(const struct softmax<LANE_DIMS> *state,
                                   struct plan<LANE_DIMS> *plan, float sink, __nv_bfloat16 *out,
                                   uint32_t dim, float *lse) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float max = sink;
    if (lane == 0) {
        plan->max[warp] = state->max;
        plan->sum[warp] = state->sum;
    }
#pragma unroll
    for (uint32_t i = 0; i < LANE_DIMS; i++) plan->out[warp][lane + 32 * i] = state->out[i];
    __syncthreads();
    for (uint32_t w = 0; w < N_WARPS; w++) max = fmaxf(max, plan->max[w]);
    if (max == -INFINITY) max = 0.0f; /* no slot at all: the result is 0 */
    float sum = __expf(sink - max);
    for (uint32_t w = 0; w < N_WARPS; w++) sum += plan->sum[w] * __expf(plan->max[w] - max);
    for (uint32_t d = threadIdx.x; d < dim; d += blockDim.x) {
        float x = 0.0f;
        for (uint32_t w = 0; w < N_WARPS; w++) x += plan->out[w][d] * __expf(plan->max[w] - max);
        store_as(out + d, sum > 0.0f ? x / sum : 0.0f);
    }
    if (lse && threadIdx.x == 0) *lse = max * LOG2_E + log2f(sum);
}

/* Returns where a decoding row's scores for the group of a KV head go, NULL if they are unused. */
static __device__ float *scores_of(const struct attn_simple_params &p, size_t seq,
                                   uint32_t kv_head) {
    if (!p.decode || !p.attn_stats.scores) return nullptr;
    const int32_t at = scores_place(*p.step, seq, p.layer, p.selects);
    const uint32_t group = p.n_heads / p.kv.n_kv_heads;
    if (at < 0) return nullptr;
    return p.attn_stats.scores + (kv_head * p.attn_stats.score_stride + (size_t)at) * group;
}

template <int LANE_DIMS>
static __device__ void attend(const struct attn_simple_params &p, struct plan<LANE_DIMS> *plan,
                              uint32_t row, uint32_t kv_head, uint32_t head) {
    const struct device_step &s = *p.step;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, dim = p.kv.head_dim;
    const uint32_t group = p.n_heads / p.kv.n_kv_heads;
    const size_t seq = (size_t)s.row_seq[row], view = p.layer * (size_t)s.n_seqs + seq;
    const uint32_t first = (uint32_t)s.first_row[seq], n_rows = (uint32_t)s.seq_rows[seq];
    const uint32_t n_seen = (uint32_t)s.n_slots[view] - n_rows + (row - first) + 1;
    const int32_t *pages = pages_of(s, p.layer, seq);
    const struct device_budget *budget = budget_of(s, seq, p.layer);
    const bool rotated = budget && budget->cache_positions;
    float *const scores = scores_of(p, seq, kv_head);
    const __nv_bfloat16 *from =
        static_cast<const __nv_bfloat16 *>(p.q) + row * p.q_stride + (size_t)head * dim;
    struct softmax<LANE_DIMS> state = {};
    state.max = -INFINITY;
    float q[LANE_DIMS];
#pragma unroll
    for (uint32_t i = 0; i < LANE_DIMS; i++)
        q[i] = lane + 32 * i < dim ? to_float(from[lane + 32 * i]) : 0.0f;
    const bool sparse = (int32_t)seq == p.sparse_seq;
    const uint32_t half = sparse
                              ? 2 * sparse_first_tile(p.sparse, (uint32_t)s.n_slots[view], n_rows) +
                                    (row - first) / SPARSE_HALF
                              : 0;
    const uint32_t query = p.bias.slopes ? query_place(p.bias, (uint32_t)seq, row) : 0;
    const uint32_t first_seen = p.window > 0 && n_seen > p.window ? n_seen - p.window : 0;
    for (uint32_t slot = first_seen + warp; slot < n_seen; slot += N_WARPS) {
        if (sparse && !sparse_visits(p.sparse, head, half, slot)) continue;
        const int32_t page = pages[slot / PAGE_TOKENS];
        const uint32_t at = slot % PAGE_TOKENS, key_row = kv_row(&p.kv, 0, kv_head, at),
                       value_row = kv_row(&p.kv, 1, kv_head, at);
        const char *key = row_at(p.kv, page, key_row), *value = row_at(p.kv, page, value_row);
        const float product =
            rotated ? dot_rotated_key<LANE_DIMS>(p.kv, q, key, p.rotations,
                                                 page_state(p.kv, page, kv_head)->rank[at])
                    : dot_key<LANE_DIMS>(p.kv, q, key);
        float score = score_of(p.scale, product * row_factor(p.kv, page, key_row));
        if (p.bias.slopes)
            score -= distance_cost(p.bias.slopes[head], query,
                                   places_of(p.bias, (uint32_t)seq, kv_head, slot).of(0));
        if (scores && lane == 0) scores[(size_t)slot * group + head % group] = score;
        visit_slot(&state, p.kv, score, value, row_factor(p.kv, page, value_row));
    }
    const size_t out = (size_t)row * p.n_heads + head;
    merge_warps(&state, plan, sink_of(p.sinks, head) / LOG2_E,
                static_cast<__nv_bfloat16 *>(p.out) + out * dim, dim,
                p.attn_stats.lse ? p.attn_stats.lse + out : nullptr);
}

template <int LANE_DIMS> static __global__ void attn_simple_kernel(struct attn_simple_params p) {
    __shared__ struct plan<LANE_DIMS> plan;
    let_next_start();
    wait_for_previous();
    const uint32_t row = blockIdx.x + (p.decode ? 0 : p.step->n_decode);
    if (row >= (p.decode ? p.step->n_decode : p.step->n_rows)) return;
    attend(p, &plan, row, blockIdx.y, blockIdx.y * gridDim.z + blockIdx.z);
}

cudaError_t launch_attn_simple(const struct attn_simple_params *p, struct launch launch) {
    if (p->n_rows == 0) return cudaSuccess;
    if (p->kv.head_dim > 32 * MOST_LANE_DIMS) return cudaErrorInvalidValue;
    return launch_kernel(
        launch,
        p->kv.head_dim > 32 * USUAL_LANE_DIMS ? attn_simple_kernel<MOST_LANE_DIMS>
                                              : attn_simple_kernel<USUAL_LANE_DIMS>,
        dim3(p->n_rows, p->kv.n_kv_heads, p->n_heads / p->kv.n_kv_heads), 32 * N_WARPS, 0, *p);
}
