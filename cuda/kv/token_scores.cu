/* token_scores.cu - after a prompt's attention in a filter layer: how much its rows attend to each
 * token.  A row's score of a token is the largest weight that any head gives it.
 *
 *   S = Q K^T again, head after head; the largest of S * scale * log2 e - lse over the heads; then
 *   2 to the power of that, for each row and token
 *
 *   block     one or two pages of tokens against all rows of a sequence that count
 *   step      64 rows of one head: a warp has 32 of them and half of the tokens
 *   shared    | Q 64 x (D + 8), twice | K tokens x (D + 8), twice |   padding: no bank conflicts
 *             while a step is computed, the next one's queries and keys are copied
 *   at the end of a tile of 64 rows their scores take the place of its last queries, 32 rows at a
 *   time.  A thread for each token then adds them up, or keeps them
 *
 * Sums are added up row by row in the order of the text.  So their bits do not depend on how a
 * prompt was cut into steps of whole pages.  Attention's log-sum-exp, which they come from, may
 * differ in its last bit for other cuts.
 *
 * Grid:   (tokens, sequences).  Bound: tensor cores, half of what the layer's attention does.
 * Oracle: engine/cpu/.  token_scores_simple_kernel takes the shapes that token_scores_kernel
 * lacks. */
#include "cuda/common/mma.cuh"
#include "cuda/common/pages.cuh"
#include "cuda/common/step.cuh"
#include "cuda/kv/observe.cuh"
#include "cuda/kv/observe.h"
#include "engine/device/select.h"

enum { WARPS = 4, THREADS = WARPS * 32, ROWS = 64, PART_ROWS = ROWS / 2, BANDS = 2 };
enum { LANE_DIMS = 16, MAX_DIM = 32 * LANE_DIMS };

/* What a block works on. */
struct work {
    struct score_runs runs; /* unless sums are wanted */
    const int32_t *pages;
    int first_token, n_tokens;       /* first_token: the block's; n_tokens: of the sequence */
    int first_row, n_rows, n_before; /* the sequence's rows in the step; tokens before them */
    int first;                       /* the first row of the sequence that counts */
    int first_slot;                  /* of the sequence's first row; a slot is a position here */
};

static __device__ __forceinline__ bool work_of(const struct token_score_params &p, int tokens,
                                               struct work *w) {
    const struct device_step &s = *p.step;
    const uint32_t seq = p.sums ? p.seq : s.n_decode + blockIdx.y;
    *w = {};
    w->first_token = (int)blockIdx.x * tokens;
    w->n_tokens = (int)p.n_sums;
    if (!p.sums) {
        const struct device_observation &o = s.observations[seq];
        w->runs = score_runs_of(s, o, p.kv, p.group_index);
        w->n_tokens = (int)o.n_scored;
        w->n_before = (int)o.n_before;
        w->first = (int)o.first;
        if (w->first_token < w->n_tokens && w->runs.accumulates())
            w->first =
                max(w->first, (int)w->runs.first_query(w->first_token / PAGE_TOKENS) - w->n_before);
    }
    w->pages = pages_of(*p.keys.step, p.layer, seq);
    w->first_row = s.first_row[seq];
    w->n_rows = s.seq_rows[seq];
    w->first_slot = s.n_slots[(size_t)p.layer * s.n_seqs + seq] - w->n_rows;
    return w->first_token < w->n_tokens && w->first < w->n_rows;
}

/* A token's scores while rows give it some. */
struct token_sum {
    int first; /* the first row that counts */
    float sum;
};

/* Returns where the token's accumulated score is. */
static __device__ __forceinline__ float *accumulated_at(const struct work &w, int token) {
    return w.runs.run(token / PAGE_TOKENS, 0) + token % PAGE_TOKENS;
}

static __device__ __forceinline__ struct token_sum begin_token(const struct token_score_params &p,
                                                               const struct work &w, int token) {
    struct token_sum t = {w.first, 0.0f};
    if (p.sums || token >= w.n_tokens || !w.runs.accumulates()) return t;
    const int first_query = (int)w.runs.first_query(token / PAGE_TOKENS);
    t.first = max(t.first, first_query - w.n_before);
    if (w.n_before + t.first > first_query) t.sum = *accumulated_at(w, token);
    return t;
}

static __device__ __forceinline__ void add_row(const struct token_score_params &p,
                                               const struct work &w, struct token_sum *t, int token,
                                               int row, float score) {
    if (row < t->first) return;
    if (p.sums || w.runs.accumulates()) t->sum += score;
    else keep_score(w.runs, token, w.n_before + row, score);
}

static __device__ __forceinline__ void end_token(const struct token_score_params &p,
                                                 const struct work &w, const struct token_sum &t,
                                                 int token) {
    if (p.sums) p.sums[token] = t.sum;
    else if (w.runs.accumulates()) *accumulated_at(w, token) = t.sum;
}

/* ---- with tensor cores ---- */

/* Returns how many tokens a block takes. */
static constexpr __host__ __device__ int block_tokens(int dim) {
    return dim <= 128 ? 2 * PAGE_TOKENS : PAGE_TOKENS;
}

template <typename T, int D> struct scores_plan {
    static constexpr int STRIDE = D + 8; /* elements */
    static constexpr int TOKENS = block_tokens(D), WARP_TOKENS = TOKENS / 2;
    static constexpr int SCORE_STRIDE = TOKENS + 4; /* floats */
    union stage {
        T q[ROWS * STRIDE];
        float scores[PART_ROWS * SCORE_STRIDE];
    };
    T k[2][TOKENS * STRIDE];
    union stage q[2];
};

/* A lane's part of a warp's 32 rows and WARP_TOKENS tokens.
 *
 *   x[b][n][e]   row 16 b + e / 2 * 8 + lane / 4, token 8 n + lane % 4 * 2 + e % 2 */
template <int D> struct lane_scores { float x[BANDS][scores_plan<__half, D>::WARP_TOKENS / 8][4]; };

template <typename T, int D>
static __device__ __forceinline__ void load_queries(T *to, const struct token_score_params &p,
                                                    const struct work &w, int first, int head) {
    const __nv_bfloat16 *q = static_cast<const __nv_bfloat16 *>(p.q) +
                             (size_t)(w.first_row + first) * p.q_stride + (size_t)head * D;
    for (int i = threadIdx.x; i < ROWS * (D / 8); i += THREADS) {
        const int row = i / (D / 8), col = i % (D / 8) * 8;
        const bool valid = first + row < w.n_rows;
        const __nv_bfloat16 *from = valid ? q + row * p.q_stride + col : q;
        T *at = to + row * scores_plan<T, D>::STRIDE + col;
        if constexpr (std::is_same_v<T, __nv_bfloat16>) {
            copy_async(at, from, valid);
        } else {
            uint4 x = valid ? *reinterpret_cast<const uint4 *>(from) : make_uint4(0, 0, 0, 0);
            uint32_t *words = &x.x;
            for (int j = 0; j < 4; j++) {
                const float2 f = unpack_bf16(words[j]);
                words[j] = pack<T>(f.x, f.y);
            }
            *reinterpret_cast<uint4 *>(at) = x;
        }
    }
}

template <typename T, int D>
static __device__ __forceinline__ void load_keys(T *to, const struct token_score_params &p,
                                                 const struct work &w, int kv_head) {
    for (int i = threadIdx.x; i < scores_plan<T, D>::TOKENS * (D / 8); i += THREADS) {
        const int slot = i / (D / 8), col = i % (D / 8) * 8, token = w.first_token + slot;
        const bool valid = token < w.n_tokens;
        const int32_t page = w.pages[valid ? token / PAGE_TOKENS : 0];
        const T *from =
            row_at<const T>(p.keys.kv, page, kv_row(&p.keys.kv, 0, kv_head, token % PAGE_TOKENS));
        copy_async(to + slot * scores_plan<T, D>::STRIDE + col, from + col, valid);
    }
}

/* Starts the copies of step `i`, counted from the first rows that count: n_heads for each tile. */
template <typename T, int D>
static __device__ __forceinline__ void load_step(struct scores_plan<T, D> &plan,
                                                 const struct token_score_params &p,
                                                 const struct work &w, int i) {
    const int group = p.n_heads / p.keys.kv.n_kv_heads, head = i % (int)p.n_heads;
    load_queries<T, D>(plan.q[i % 2].q, p, w, w.first + i / (int)p.n_heads * ROWS, head);
    if (head % group == 0) load_keys<T, D>(plan.k[i / group % 2], p, w, head / group);
}

/* Computes Q K^T of a warp's rows and tokens. */
template <typename T, int D>
static __device__ __forceinline__ void multiply(struct lane_scores<D> &s, const T *q, const T *k) {
    constexpr int STRIDE = scores_plan<T, D>::STRIDE, N = scores_plan<T, D>::WARP_TOKENS / 16;
    const int lane = threadIdx.x % 32;
    const T *qa = q + (lane % 16) * STRIDE + lane / 16 * 8;
    const T *ka = k + (lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        uint32_t a[BANDS][4], b[4];
#pragma unroll
        for (int i = 0; i < BANDS; i++) load_matrix(a[i], qa + i * 16 * STRIDE + d);
#pragma unroll
        for (int n = 0; n < N; n++) {
            load_matrix(b, ka + n * 16 * STRIDE + d);
#pragma unroll
            for (int i = 0; i < BANDS; i++) {
                mma<T>(s.x[i][2 * n], a[i], b[0], b[1]);
                mma<T>(s.x[i][2 * n + 1], a[i], b[2], b[3]);
            }
        }
    }
}

/* The log-sum-exp of a lane's rows. */
struct lane_lse {
    float of[BANDS][2];
};

static __device__ __forceinline__ struct lane_lse load_lse(const struct token_score_params &p,
                                                           const struct work &w, int row,
                                                           int head) {
    struct lane_lse lse;
#pragma unroll
    for (int i = 0; i < 2 * BANDS; i++) {
        const int at = row + i * 8;
        lse.of[i / 2][i % 2] =
            at < w.n_rows ? p.lse[(size_t)(w.first_row + at) * p.n_heads + head] : 0.0f;
    }
    return lse;
}

/* Raises `best` to what a head gives. */
template <int D>
static __device__ __forceinline__ void raise(struct lane_scores<D> &best,
                                             const struct lane_scores<D> &s, float scale,
                                             const struct lane_lse &lse) {
#pragma unroll
    for (int b = 0; b < BANDS; b++)
#pragma unroll
        for (int n = 0; n < (int)(sizeof(s.x[0]) / sizeof(s.x[0][0])); n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                best.x[b][n][e] =
                    fmaxf(best.x[b][n][e], fmaf(s.x[b][n][e], scale, -lse.of[b][e / 2]));
}

/* Takes off what distances cost (ALiBi).  distance: from the lane's first token to its first
 * row. */
template <int D>
static __device__ __forceinline__ void take_off_distances(struct lane_scores<D> &s, float slope,
                                                          int distance) {
#pragma unroll
    for (int b = 0; b < BANDS; b++)
#pragma unroll
        for (int n = 0; n < (int)(sizeof(s.x[0]) / sizeof(s.x[0][0])); n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s.x[b][n][e] -= slope * (float)(distance + 16 * b + e / 2 * 8 - 8 * n - e % 2);
}

template <int D> static __device__ __forceinline__ void clear(struct lane_scores<D> &s, float x) {
#pragma unroll
    for (int i = 0; i < (int)(sizeof(s.x) / sizeof(float)); i++) (&s.x[0][0][0])[i] = x;
}

template <typename T, int D>
static __device__ __forceinline__ void store_scores(float *to, const struct lane_scores<D> &best) {
    constexpr int STRIDE = scores_plan<T, D>::SCORE_STRIDE;
    const int lane = threadIdx.x % 32;
    float *at = to + lane / 4 * STRIDE + lane % 4 * 2;
#pragma unroll
    for (int b = 0; b < BANDS; b++)
#pragma unroll
        for (int n = 0; n < scores_plan<T, D>::WARP_TOKENS / 8; n++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *reinterpret_cast<float2 *>(at + (16 * b + 8 * h) * STRIDE + 8 * n) =
                    make_float2(exp2_fast(best.x[b][n][2 * h]), exp2_fast(best.x[b][n][2 * h + 1]));
}

/* Gives the tokens what the rows [first, first + ROWS) have for them, in two parts. */
template <typename T, int D>
static __device__ __forceinline__ void add_tile(float *shared, const struct token_score_params &p,
                                                const struct work &w, struct token_sum *sum,
                                                const struct lane_scores<D> &best, int first) {
    using plan = scores_plan<T, D>;
    const int warp = threadIdx.x / 32, slot = threadIdx.x, token = w.first_token + slot;
    for (int part = 0; part < 2; part++) {
        __syncthreads(); /* all warps are done with the queries, or with the first part */
        if (warp % 2 == part) store_scores<T, D>(shared + warp / 2 * plan::WARP_TOKENS, best);
        __syncthreads();
        const int begin = first + part * PART_ROWS;
        if (slot >= plan::TOKENS || token >= w.n_tokens) continue;
        for (int row = 0; row < PART_ROWS && begin + row < w.n_rows; row++)
            add_row(p, w, sum, token, begin + row, shared[row * plan::SCORE_STRIDE + slot]);
    }
}

template <typename T, int D>
static __global__ void __launch_bounds__(THREADS)
    token_scores_kernel(const struct token_score_params p) {
    using plan_type = scores_plan<T, D>;
    extern __shared__ __align__(16) unsigned char shared[];
    plan_type &plan = *reinterpret_cast<plan_type *>(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_heads = (int)p.n_heads,
              group = n_heads / (int)p.keys.kv.n_kv_heads,
              token = (int)blockIdx.x * plan_type::TOKENS + (int)threadIdx.x;
    struct work w;
    let_next_start();
    wait_for_previous();
    if (!work_of(p, plan_type::TOKENS, &w)) return;
    const int n_steps = (w.n_rows - w.first + ROWS - 1) / ROWS * n_heads;
    struct token_sum sum = begin_token(p, w, token);
    struct lane_scores<D> best;
    load_step(plan, p, w, 0);
    for (int i = 0; i < n_steps; i++) {
        const int head = i % n_heads, first = w.first + i / n_heads * ROWS;
        copy_async_wait_all();
        __syncthreads(); /* the step has arrived, and all warps are done with the one before */
        if (i + 1 < n_steps) load_step(plan, p, w, i + 1);
        const int row = first + warp % 2 * PART_ROWS + lane / 4;
        const struct lane_lse lse = load_lse(p, w, row, head);
        struct lane_scores<D> s;
        clear(s, 0.0f);
        if (head == 0) clear(best, -INFINITY);
        multiply<T, D>(
            s, plan.q[i % 2].q + warp % 2 * PART_ROWS * plan_type::STRIDE,
            plan.k[i / group % 2] + warp / 2 * plan_type::WARP_TOKENS * plan_type::STRIDE);
        if (p.scale.inner > 0) cap_products(s.x, p.scale.inner);
        if (p.bias.slopes)
            take_off_distances(
                s, p.bias.slopes[head] / p.scale.outer,
                w.first_slot + row -
                    (w.first_token + warp / 2 * plan_type::WARP_TOKENS + lane % 4 * 2));
        raise(best, s, p.scale.outer * LOG2_E, lse);
        if (head == n_heads - 1) add_tile<T, D>(plan.q[i % 2].scores, p, w, &sum, best, first);
    }
    if ((int)threadIdx.x < plan_type::TOKENS && token < w.n_tokens) end_token(p, w, sum, token);
}

/* ---- any shape ---- */

static __device__ __forceinline__ void load_key(float (&key)[LANE_DIMS],
                                                const struct token_score_params &p,
                                                const int32_t *pages, uint32_t kv_head,
                                                uint32_t slot) {
    const struct kv_pool &kv = p.keys.kv;
    const char *row =
        row_at(kv, pages[slot / PAGE_TOKENS], kv_row(&kv, 0, kv_head, slot % PAGE_TOKENS));
    for (uint32_t i = 0; i < LANE_DIMS; i++) {
        const uint32_t d = threadIdx.x % 32 + 32 * i;
        key[i] = d < kv.head_dim ? load_element(row, d, kv.format) : 0.0f;
    }
}

/* Returns the score of a key and a row's query, to base 2; distance: between them. */
static __device__ __forceinline__ float score_key(const struct token_score_params &p,
                                                  const float (&key)[LANE_DIMS], int row,
                                                  uint32_t head, int distance) {
    const uint32_t lane = threadIdx.x % 32, dim = p.keys.kv.head_dim;
    const __nv_bfloat16 *q =
        static_cast<const __nv_bfloat16 *>(p.q) + row * p.q_stride + (size_t)head * dim;
    float dot = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < LANE_DIMS; i++)
        if (lane + 32 * i < dim) dot += to_float(q[lane + 32 * i]) * key[i];
    const float cost = p.bias.slopes ? p.bias.slopes[head] * (float)distance : 0.0f;
    return (score_of(p.scale, warp_sum(dot)) - cost) * LOG2_E;
}

static __device__ float score_row(const struct token_score_params &p, const struct work &w,
                                  int token, int row) {
    const uint32_t group = p.n_heads / p.keys.kv.n_kv_heads;
    float best = -INFINITY, key[LANE_DIMS];
    for (uint32_t head = 0; head < p.n_heads; head++) {
        const size_t at = (size_t)(w.first_row + row) * p.n_heads + head;
        if (head % group == 0) load_key(key, p, w.pages, head / group, token);
        best = fmaxf(best, score_key(p, key, w.first_row + row, head, w.first_slot + row - token) -
                               p.lse[at]);
    }
    return exp2_fast(best);
}

/* Takes any shape; a warp takes every WARPS-th token of a page. */
static __global__ void __launch_bounds__(THREADS)
    token_scores_simple_kernel(const struct token_score_params p) {
    struct work w;
    let_next_start();
    wait_for_previous();
    if (!work_of(p, PAGE_TOKENS, &w)) return;
    for (int i = threadIdx.x / 32; i < PAGE_TOKENS; i += WARPS) {
        const int token = w.first_token + i;
        struct token_sum sum = begin_token(p, w, token);
        for (int row = sum.first; row < w.n_rows; row++) {
            const float score = score_row(p, w, token, row);
            if (threadIdx.x % 32 == 0) add_row(p, w, &sum, token, row, score);
        }
        if (threadIdx.x % 32 == 0) end_token(p, w, sum, token);
    }
}

/* ---- the sums of few rows ---- */

/* Computes the log-sum-exp of a row and a head, with the sink, in a block. */
static __global__ void __launch_bounds__(THREADS)
    observed_lse_kernel(const struct token_score_params p, uint32_t seq) {
    __shared__ float tops[WARPS], sums[WARPS];
    const uint32_t head = blockIdx.x, warp = threadIdx.x / 32;
    let_next_start();
    wait_for_previous();
    const struct device_step &s = *p.step;
    const int row = s.seq_rows[seq] - 1 - (int)blockIdx.y;
    if (row < 0) return;
    const int32_t *pages = pages_of(*p.keys.step, p.layer, seq);
    const int n_seen = s.n_slots[(size_t)p.layer * s.n_seqs + seq] - (int)blockIdx.y;
    const bool has_sink = warp == 0 && p.sinks.are_there;
    float top = has_sink ? sink_of(p.sinks, head) : -INFINITY, sum = has_sink ? 1.0f : 0.0f,
          key[LANE_DIMS];
    for (int slot = (int)warp; slot < n_seen; slot += WARPS) {
        load_key(key, p, pages, head / (p.n_heads / p.keys.kv.n_kv_heads), (uint32_t)slot);
        const float score = score_key(p, key, s.first_row[seq] + row, head, n_seen - 1 - slot),
                    larger = fmaxf(top, score);
        sum = sum * exp2_fast(top - larger) + exp2_fast(score - larger);
        top = larger;
    }
    if (threadIdx.x % 32 == 0) tops[warp] = top, sums[warp] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    float most = -INFINITY, all = 0.0f;
    for (int i = 0; i < WARPS; i++) most = fmaxf(most, tops[i]);
    for (int i = 0; i < WARPS; i++) all += sums[i] * exp2_fast(tops[i] - most);
    p.lse[(size_t)(s.first_row[seq] + row) * p.n_heads + head] = most + log2f(all);
}

/* ---- launching ---- */

template <typename T, int D>
static cudaError_t launch_shape(const struct token_score_params &p, uint32_t n_seqs,
                                uint32_t n_tokens, struct launch launch) {
    constexpr uint32_t tokens = block_tokens(D);
    const int bytes = sizeof(struct scores_plan<T, D>);
    const dim3 grid((n_tokens + tokens - 1) / tokens, n_seqs);
    const cudaError_t status = cudaFuncSetAttribute(
        token_scores_kernel<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
    return launch_kernel(launch, token_scores_kernel<T, D>, grid, THREADS, bytes, p);
}

template <typename T>
static cudaError_t launch_dim(const struct token_score_params &p, uint32_t n_seqs,
                              uint32_t n_tokens, struct launch launch) {
    switch (p.keys.kv.head_dim) {
    case 64: return launch_shape<T, 64>(p, n_seqs, n_tokens, launch);
    case 80: return launch_shape<T, 80>(p, n_seqs, n_tokens, launch);
    case 96: return launch_shape<T, 96>(p, n_seqs, n_tokens, launch);
    case 128: return launch_shape<T, 128>(p, n_seqs, n_tokens, launch);
    case 256: return launch_shape<T, 256>(p, n_seqs, n_tokens, launch);
    default: return cudaErrorInvalidValue;
    }
}

static bool has_shape(const struct token_score_params &p) {
    const uint32_t d = p.keys.kv.head_dim;
    return (d == 64 || d == 80 || d == 96 || d == 128 || d == 256) &&
           p.keys.kv.format != PAGE_F32 && (uintptr_t)p.q % 16 == 0 && p.q_stride % 8 == 0;
}

cudaError_t launch_token_scores(const struct token_score_params *p, uint32_t n_seqs,
                                uint32_t n_tokens, struct launch launch) {
    if (n_seqs == 0 || n_tokens == 0) return cudaSuccess;
    if (p->keys.kv.head_dim > MAX_DIM) return cudaErrorInvalidValue;
    if (!has_shape(*p))
        return launch_kernel(launch, token_scores_simple_kernel,
                             dim3(n_tokens / PAGE_TOKENS, n_seqs), THREADS, 0, *p);
    return p->keys.kv.format == PAGE_F16 ? launch_dim<__half>(*p, n_seqs, n_tokens, launch)
                                         : launch_dim<__nv_bfloat16>(*p, n_seqs, n_tokens, launch);
}

cudaError_t launch_observed_lse(const struct token_score_params *p, uint32_t seq,
                                struct launch launch) {
    if (p->keys.kv.head_dim > MAX_DIM) return cudaErrorInvalidValue;
    return launch_kernel(launch, observed_lse_kernel, dim3(p->n_heads, KV_OBSERVED), THREADS, 0, *p,
                         seq);
}
