/* evict_scores.cu - after a prompt's attention: adds to each slot's score the attention that it
 * received from the step's rows.
 *
 *   S = Q K^T again, p = 2^(S * scale * log2 e - lse), and the sums of p's columns
 *
 *   block      the 64 slots of a page against all rows; its keys stay in shared memory
 *   iteration  16 * WARPS rows (a token's heads one after the other): a warp computes 16 of them,
 *              then one thread a slot adds them up in their order
 *
 *   shared  | K 64 x (D + 8) | Q ROWS x (D + 8) | P ROWS x 72 |   padding: no bank conflicts
 *
 * A score is added up row by row in the order of the text.  So its bits do not depend on how a
 * prompt was cut into steps.
 *
 * Grid:   (pages, KV heads, sequences).  Bound: tensor cores, half of what attention does.
 * Oracle: engine/cpu/.  evict_scores_simple_kernel takes the shapes that evict_scores_kernel
 * lacks. */
#include "cuda/common/bias.cuh"
#include "cuda/common/mma.cuh"
#include "cuda/common/pages.cuh"
#include "cuda/common/rotation.cuh"
#include "cuda/common/step.cuh"
#include "cuda/kv/evict.cuh"
#include "engine/device/evict.h"
#include "engine/device/pages.h"

enum { WARPS = 4, THREADS = WARPS * 32, ROWS = WARPS * 16, P_STRIDE = PAGE_TOKENS + 8 };
enum { LANE_DIMS = 16, MAX_DIM = 32 * LANE_DIMS };

/* A block's work: rows of a sequence against the slots of one of its pages. */
struct work {
    const struct device_budget *budget;
    struct kv_page_state *state;
    const char *keys;      /* the KV head's rows of the page */
    bool rotates;          /* its keys must be rotated */
    int n_valid;           /* slots of the page that are in use */
    uint32_t query;        /* with slopes: the position of its first row */
    int first_row, n_rows; /* the sequence's rows in the step's matrices */
    int first_token;       /* the first row that counts and sees a slot of the page */
    int first_seer;        /* row i sees slot j of the page if i >= first_seer + j */
};

static __device__ __forceinline__ bool work_of(const struct evict_params &p, struct work *w) {
    const struct device_step &s = *p.step;
    const uint32_t seq = s.n_decode + blockIdx.z;
    const int base = (int)blockIdx.x * PAGE_TOKENS;
    w->budget = budget_of(s, seq, p.layer);
    const int n_slots = s.n_slots[(size_t)p.layer * s.n_seqs + seq];
    if (!w->budget || w->budget->score == KV_SCORE_NONE || base >= n_slots) return false;
    const struct prompt_pages &keys = keys_of(p, *w->budget);
    w->rotates = must_rotate(p, *w->budget);
    w->keys = row_at(keys.kv, pages_of(*keys.step, p.layer, seq)[blockIdx.x],
                     kv_row(&keys.kv, 0, blockIdx.y, 0));
    w->state = page_state(p.kv, pages_of(s, p.layer, seq)[blockIdx.x], blockIdx.y);
    w->n_valid = min(n_slots - base, (int)PAGE_TOKENS);
    w->first_row = s.first_row[seq];
    w->n_rows = s.seq_rows[seq];
    if (p.bias.slopes) w->query = query_place(p.bias, seq, (uint32_t)w->first_row);
    w->first_seer = base - (n_slots - w->n_rows);
    w->first_token = max((int)w->budget->score_row, max(w->first_seer, 0));
    return true;
}

/* Returns the positions of the page's keys, as the step counts them. */
static __device__ __forceinline__ const uint32_t *key_positions(const struct work &w) {
    return w.budget->cache_positions ? w.state->rank : w.state->position;
}

/* A slot's score while rows are added to it. */
struct column {
    float score, received; /* received: of the present token's heads so far */
};

static __device__ __forceinline__ struct column column_of(const struct work &w, int slot) {
    const bool forget = w.budget->score == KV_SCORE_WINDOW && w.budget->begins_chunk;
    return {forget ? 0.0f : w.state->score[slot], 0.0f};
}

static __device__ __forceinline__ void end_token(struct column *c, const struct device_budget &b) {
    c->score =
        b.score == KV_SCORE_DECAY ? fmaf(b.decay, c->score, c->received) : c->score + c->received;
    c->received = 0.0f;
}

/* ---- with tensor cores ---- */

template <typename T, int D> struct scores_plan {
    static constexpr int STRIDE = D + 8; /* elements */
    T k[PAGE_TOKENS * STRIDE], q[ROWS * STRIDE];
    float p[ROWS * P_STRIDE];
};

template <typename T, int D>
static __device__ __forceinline__ void load_keys(T *to, const struct evict_params &p,
                                                 const struct work &w) {
    const T *from = reinterpret_cast<const T *>(w.keys);
    for (int i = threadIdx.x; i < PAGE_TOKENS * (D / 8); i += THREADS) {
        const int slot = i / (D / 8), col = i % (D / 8) * 8;
        copy_async(to + slot * scores_plan<T, D>::STRIDE + col, from + slot * D + col,
                   slot < w.n_valid);
    }
}

/* Loads rows `first` to `end` of Q, ROWS at most.  Row v is head v % group of token v / group. */
template <typename T, int D>
static __device__ __forceinline__ void load_queries(T *to, const struct evict_params &p,
                                                    const struct work &w, int first, int end,
                                                    int group) {
    const __nv_bfloat16 *q = static_cast<const __nv_bfloat16 *>(p.q) +
                             (size_t)w.first_row * p.q_stride + (size_t)blockIdx.y * group * D;
    for (int i = threadIdx.x; i < ROWS * (D / 8); i += THREADS) {
        const int row = i / (D / 8), col = i % (D / 8) * 8, v = first + row;
        const __nv_bfloat16 *from =
            q + (size_t)(v / group) * p.q_stride + (size_t)(v % group) * D + col;
        T *at = to + row * scores_plan<T, D>::STRIDE + col;
        if constexpr (std::is_same_v<T, __nv_bfloat16>) {
            copy_async(at, v < end ? from : q, v < end);
        } else {
            uint4 x = v < end ? *reinterpret_cast<const uint4 *>(from) : make_uint4(0, 0, 0, 0);
            uint32_t *words = &x.x;
            for (int j = 0; j < 4; j++) {
                const float2 f = unpack_bf16(words[j]);
                words[j] = pack<T>(f.x, f.y);
            }
            *reinterpret_cast<uint4 *>(at) = x;
        }
    }
}

/* Adds Q K^T to s: rows lane / 4 and + 8 of the warp's 16, slots 8 n + lane % 4 * 2 and + 1. */
template <typename T, int D>
static __device__ __forceinline__ void multiply(float (&s)[PAGE_TOKENS / 8][4], const T *q,
                                                const T *k, int lane) {
    constexpr int STRIDE = scores_plan<T, D>::STRIDE;
    const T *qa = q + (lane % 16) * STRIDE + lane / 16 * 8;
    const T *ka = k + (lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        uint32_t a[4], b[4];
        load_matrix(a, qa + d);
#pragma unroll
        for (int n = 0; n < PAGE_TOKENS / 16; n++) {
            load_matrix(b, ka + n * 16 * STRIDE + d);
            mma<T>(s[2 * n], a, b[0], b[1]);
            mma<T>(s[2 * n + 1], a, b[2], b[3]);
        }
    }
}

/* Takes from products what the distances of keys cost; v: the warp's first row. */
static __device__ __forceinline__ void add_bias(float (&s)[PAGE_TOKENS / 8][4],
                                                const struct evict_params &p, const struct work &w,
                                                int v, int group, int lane) {
    const uint32_t *keys = key_positions(w);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = v + lane / 4 + h * 8;
        const uint32_t query = w.query + row / group;
        const float slope = p.bias.slopes[blockIdx.y * group + row % group] / p.scale.outer;
#pragma unroll
        for (int i = 0; i < PAGE_TOKENS / 4; i++) {
            const int slot = i / 2 * 8 + lane % 4 * 2 + i % 2;
            s[i / 2][2 * h + i % 2] -= distance_cost(slope, query, keys[slot]);
        }
    }
}

/* Stores the probabilities of the warp's 16 rows, 0 where a row sees nothing; its first row is
 * v. */
static __device__ __forceinline__ void store_probabilities(float *to, const struct evict_params &p,
                                                           const struct work &w,
                                                           const float (&s)[PAGE_TOKENS / 8][4],
                                                           int v, int end, int group, int lane) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = lane / 4 + h * 8, token = (v + row) / group;
        const int n_seen = v + row < end ? min(token - w.first_seer + 1, w.n_valid) : 0;
        float lse = 0.0f;
        if (n_seen > 0)
            lse = p.attn_stats.lse[(size_t)(w.first_row + token) * p.n_heads + blockIdx.y * group +
                                   (v + row) % group];
#pragma unroll
        for (int n = 0; n < PAGE_TOKENS / 8; n++) {
            const int slot = n * 8 + lane % 4 * 2;
            float2 x;
            x.x = exp2_fast(fmaf(s[n][2 * h], p.scale.outer * LOG2_E, -lse));
            x.y = exp2_fast(fmaf(s[n][2 * h + 1], p.scale.outer * LOG2_E, -lse));
            if (slot >= n_seen) x.x = 0.0f;
            if (slot + 1 >= n_seen) x.y = 0.0f;
            *reinterpret_cast<float2 *>(to + row * P_STRIDE + slot) = x;
        }
    }
}

/* Adds n rows of a column of P to the slot; the first is the `head`th of its token.  Rows past n
 * are zeros. */
static __device__ __forceinline__ void add_rows(struct column *column, const float *p,
                                                const struct device_budget &b, int n, int head,
                                                int group) {
    for (int base = 0; base < n; base += 8) {
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = p[(base + i) * P_STRIDE];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (base + i >= n) return;
            column->received += x[i];
            if (++head < group) continue;
            head = 0;
            end_token(column, b);
        }
    }
}

template <typename T, int D>
static __global__ void __launch_bounds__(THREADS) evict_scores_kernel(const struct evict_params p) {
    extern __shared__ __align__(16) unsigned char shared[];
    struct scores_plan<T, D> &plan = *reinterpret_cast<struct scores_plan<T, D> *>(shared);
    const int group = p.n_heads / p.kv.n_kv_heads, warp = threadIdx.x / 32, lane = threadIdx.x % 32,
              slot = threadIdx.x;
    struct work w;
    let_next_start();
    wait_for_previous();
    if (!work_of(p, &w)) return;
    struct column column = {};
    if (slot < w.n_valid) column = column_of(w, slot);
    const int end = w.n_rows * group;
    int first = w.first_token * group;
    load_keys<T, D>(plan.k, p, w);
    if (w.rotates) {
        copy_async_wait_all();
        __syncthreads();
        rotate_page<T>(plan.k, plan.STRIDE, w.n_valid, p.rotations, w.state);
    }
    load_queries<T, D>(plan.q, p, w, first, end, group);
    for (; first < end; first += ROWS) {
        copy_async_wait_all();
        __syncthreads(); /* Q is loaded, and all threads are done with P */
        float s[PAGE_TOKENS / 8][4] = {};
        multiply<T, D>(s, plan.q + warp * 16 * plan.STRIDE, plan.k, lane);
        if (p.scale.inner > 0) cap_products(s, p.scale.inner);
        if (p.bias.slopes) add_bias(s, p, w, first + warp * 16, group, lane);
        store_probabilities(plan.p + warp * 16 * P_STRIDE, p, w, s, first + warp * 16, end, group,
                            lane);
        __syncthreads(); /* P is stored, and all warps are done with Q */
        if (first + ROWS < end) load_queries<T, D>(plan.q, p, w, first + ROWS, end, group);
        if (slot < w.n_valid)
            add_rows(&column, plan.p + slot, *w.budget, min(end - first, (int)ROWS), first % group,
                     group);
    }
    if (slot < w.n_valid) w.state->score[slot] = column.score;
}

/* ---- any shape ---- */

static __device__ float dot_query(const struct evict_params &p, const float *key, size_t row,
                                  uint32_t head) {
    const uint32_t lane = threadIdx.x % 32, dim = p.kv.head_dim;
    const __nv_bfloat16 *q =
        static_cast<const __nv_bfloat16 *>(p.q) + row * p.q_stride + (size_t)head * dim;
    float dot = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < LANE_DIMS; i++)
        if (lane + 32 * i < dim) dot += to_float(q[lane + 32 * i]) * key[i];
    return score_of(p.scale, warp_sum(dot));
}

/* Takes any shape; a warp takes every WARPS-th slot. */
static __global__ void __launch_bounds__(THREADS)
    evict_scores_simple_kernel(const struct evict_params p) {
    const uint32_t lane = threadIdx.x % 32, dim = p.kv.head_dim, kv_head = blockIdx.y;
    const int group = p.n_heads / p.kv.n_kv_heads;
    struct work w;
    let_next_start();
    wait_for_previous();
    if (!work_of(p, &w)) return;
    const enum page_format format = p.stored.kv.format;
    for (int slot = threadIdx.x / 32; slot < w.n_valid; slot += WARPS) {
        const char *row = w.keys + slot * page_row_bytes(format, dim);
        float key[LANE_DIMS] = {};
        for (uint32_t i = 0; i < LANE_DIMS; i++) {
            const uint32_t d = lane + 32 * i;
            if (d >= dim) continue;
            key[i] = w.rotates ? rotated_element(row, format, d, p.rotations, w.state->rank[slot])
                               : load_element(row, d, format);
        }
        struct column column = column_of(w, slot);
        for (int token = max(w.first_token, w.first_seer + slot); token < w.n_rows; token++) {
            const size_t row = (size_t)(w.first_row + token);
            for (int i = 0; i < group; i++) {
                const uint32_t head = kv_head * group + i;
                float score = dot_query(p, key, row, head);
                if (p.bias.slopes)
                    score -=
                        distance_cost(p.bias.slopes[head], w.query + token, key_positions(w)[slot]);
                column.received +=
                    exp2_fast(fmaf(score, LOG2_E, -p.attn_stats.lse[row * p.n_heads + head]));
            }
            end_token(&column, *w.budget);
        }
        if (lane == 0) w.state->score[slot] = column.score;
    }
}

/* ---- launching ---- */

template <typename T, int D>
static cudaError_t launch_shape(const struct evict_params &p, dim3 grid, struct launch launch) {
    const int bytes = sizeof(struct scores_plan<T, D>);
    const cudaError_t status = cudaFuncSetAttribute(
        evict_scores_kernel<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
    return launch_kernel(launch, evict_scores_kernel<T, D>, grid, THREADS, bytes, p);
}

template <typename T>
static cudaError_t launch_dim(const struct evict_params &p, dim3 grid, struct launch launch) {
    switch (p.kv.head_dim) {
    case 64: return launch_shape<T, 64>(p, grid, launch);
    case 80: return launch_shape<T, 80>(p, grid, launch);
    case 96: return launch_shape<T, 96>(p, grid, launch);
    case 128: return launch_shape<T, 128>(p, grid, launch);
    case 256: return launch_shape<T, 256>(p, grid, launch);
    default: return cudaErrorInvalidValue;
    }
}

static bool has_shape(const struct evict_params &p) {
    const bool dim = p.kv.head_dim == 64 || p.kv.head_dim == 80 || p.kv.head_dim == 96 ||
                     p.kv.head_dim == 128 || p.kv.head_dim == 256;
    return dim && p.stored.kv.format != PAGE_F32 && (uintptr_t)p.q % 16 == 0 &&
           p.q_stride % 8 == 0 && rotates_in_vectors(p.rotations.n_freqs);
}

cudaError_t launch_evict_scores(const struct evict_params *p, uint32_t n_seqs, uint32_t max_slots,
                                struct launch launch) {
    const dim3 grid((max_slots + PAGE_TOKENS - 1) / PAGE_TOKENS, p->kv.n_kv_heads, n_seqs);
    if (n_seqs == 0 || max_slots == 0) return cudaSuccess;
    if (p->kv.head_dim > MAX_DIM) return cudaErrorInvalidValue;
    if (!has_shape(*p))
        return launch_kernel(launch, evict_scores_simple_kernel, grid, THREADS, 0, *p);
    return p->stored.kv.format == PAGE_F16 ? launch_dim<__half>(*p, grid, launch)
                                           : launch_dim<__nv_bfloat16>(*p, grid, launch);
}
