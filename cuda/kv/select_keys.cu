/* select_keys.cu - finds the n_selected candidates of each sequence with the largest scores.
 *
 *   scores   f32 [n_kv_heads][score_stride][group]   as attention wrote them
 *   lse      f32 [n_rows][n_heads], base 2
 *   keys     u32 [n_candidates]       bits of the largest weight, + 1; NaN is 0; sinks exceed all.
 *                                     With an observation: of the sum over the last queries
 *   chosen   bits: the keys above the n_selected-th
 *   equal    bits: the keys equal to it, of which choose_ties() takes the lowest tokens
 *
 * The n_selected-th key is found digit by digit, from the top (common/topk.cuh).  Each kernel reads
 * what the kernel before has counted and finds a digit.  It then counts or marks the keys that
 * share the digits found.  Counts are integers, so the order of blocks does not matter.
 *
 * Grid: n_blocks over the rows; a block takes every gridDim.x-th THREADS candidates of one row.
 * Bound: memory, n_heads * 4 bytes a candidate in token_score_kernel; then 4 bytes three times,
 * from L2.  Oracle: engine/cpu/; ties go to the lower token. */
#include "cuda/common/topk.cuh"
#include "cuda/kv/observe.cuh"

enum { THREADS = 512, KEY_SINK = 0x7f800001 };

/* Returns how many bits a digit has: 11, 11 and 10. */
static __device__ __forceinline__ uint32_t digit_bits(uint32_t digit) {
    return digit == 2 ? 10 : 11;
}

/* Returns a digit's lowest bit; the digits found before lie above it. */
static __device__ __forceinline__ uint32_t digit_shift(uint32_t digit) {
    return digit == 2 ? 0 : 21 - 11 * digit;
}

/* What a block works on; nothing if s.n_selected is 0. */
struct row_work {
    struct device_select s;
    uint32_t row, first, stride; /* candidates */
};

static __device__ __forceinline__ struct row_work work_of(const struct select_params &p) {
    struct row_work w = {};
    w.row = blockIdx.y;
    w.first = blockIdx.x * THREADS;
    w.stride = gridDim.x * THREADS;
    if (w.row < p.step->n_decode && p.step->selects) w.s = p.step->selects[w.row];
    return w;
}

static __device__ __forceinline__ uint32_t *histogram_of(const struct select_params &p,
                                                         uint32_t row, uint32_t digit) {
    return p.room.histograms + ((size_t)row * SELECT_DIGITS + digit) * SELECT_BINS;
}

static __device__ void clear_bins(uint32_t *bins) {
    for (uint32_t i = threadIdx.x; i < SELECT_BINS; i += THREADS) bins[i] = 0;
}

static __device__ void add_bins(uint32_t *to, const uint32_t *bins) {
    for (uint32_t i = threadIdx.x; i < SELECT_BINS; i += THREADS)
        if (bins[i] > 0) atomicAdd(&to[i], bins[i]);
}

/* ---- token scores ---- */

static __device__ __forceinline__ float larger(float best, float score, float lse) {
    return fmaxf(best, fmaf(score, LOG2_E, -lse)); /* NaN only if both are */
}

/* Returns the largest exponent of `best` and a slot's scores for one KV head's group.  GROUP 0
 * takes any group size. */
template <int GROUP>
static __device__ __forceinline__ float best_of_group(float best, const float *scores,
                                                      const float *lse, uint32_t group) {
    if constexpr (GROUP % 4 == 0 && GROUP > 0) {
#pragma unroll
        for (int i = 0; i < GROUP; i += 4) {
            const float4 x = __ldcs(reinterpret_cast<const float4 *>(scores + i));
            const float4 y = *reinterpret_cast<const float4 *>(lse + i);
            best = larger(larger(best, x.x, y.x), x.y, y.y);
            best = larger(larger(best, x.z, y.z), x.w, y.w);
        }
    } else {
        for (uint32_t i = 0; i < group; i++) best = larger(best, __ldcs(scores + i), lse[i]);
    }
    return best;
}

/* Returns the key of a weight.  Weights are at least 0, so their bits have their order. */
static __device__ __forceinline__ uint32_t key_of_weight(float weight) {
    return isnan(weight) ? 0 : __float_as_uint(weight) + 1;
}

/* Returns how many tokens get scores: the candidates, and those that an observed query scores. */
static __device__ __forceinline__ uint32_t n_scored(const struct select_params &p,
                                                    const struct row_work &w,
                                                    const struct device_observation *o) {
    return w.row < p.step->n_decode && o ? max(w.s.n_candidates, o->n_scored) : w.s.n_candidates;
}

/* Keeps what the row's query gives a token, and returns by what the token is chosen. */
static __device__ __forceinline__ float observe(const struct score_runs &runs,
                                                const struct row_work &w, uint32_t token,
                                                float weight) {
    const uint32_t position = runs.o->n_before;
    const float score = keep_score(runs, token, position, isnan(weight) ? 0.0f : weight);
    return token < w.s.n_candidates ? sum_scores(runs, token, position, score) : score;
}

template <int GROUP>
static __global__ void __launch_bounds__(THREADS) token_score_kernel(const struct select_params p) {
    extern __shared__ __align__(16) float lse[]; /* [n_heads] */
    __shared__ uint32_t bins[SELECT_BINS];
    const struct row_work w = work_of(p);
    const uint32_t group = p.n_heads / p.kv.n_kv_heads;
    const struct device_observation *o =
        p.step->observations ? p.step->observations + w.row : nullptr;
    const uint32_t n = n_scored(p, w, o);
    let_next_start();
    wait_for_previous();
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x < FETCH_KINDS)
        p.room.n_fetches[threadIdx.x] = 0;
    if (w.first >= n) return;
    const bool observed = o && o->n_scored > 0;
    struct score_runs runs = {};
    if (observed) runs = score_runs_of(*p.step, *o, p.kv, p.group_index);
    clear_bins(bins);
    for (uint32_t i = threadIdx.x; i < p.n_heads; i += THREADS)
        lse[i] = p.attn_stats.lse[(size_t)w.row * p.n_heads + i];
    __syncthreads();
    for (uint32_t t = w.first + threadIdx.x; t < n; t += w.stride) {
        const float *at = p.attn_stats.scores + ((size_t)w.s.scores_at + t) * group;
        float best = NAN;
#pragma unroll 8
        for (uint32_t head = 0; head < p.kv.n_kv_heads; head++)
            best = best_of_group<GROUP>(best, at + head * p.attn_stats.score_stride * group,
                                        lse + head * group, group);
        float score = exp2_fast(best);
        if (observed) score = observe(runs, w, t, score);
        if (t >= w.s.n_candidates) continue;
        const uint32_t weight = key_of_weight(score),
                       key = t < w.s.n_sink ? (uint32_t)KEY_SINK : weight;
        if (p.token_scores && w.row == 0)
            p.token_scores[t] = weight ? __uint_as_float(weight - 1) : -1.0f;
        p.room.keys[(size_t)w.s.keys_at + t] = key;
        atomicAdd(&bins[key >> digit_shift(0)], 1u);
    }
    __syncthreads();
    add_bins(histogram_of(p, w.row, 0), bins);
}

/* ---- digits ---- */

/* Finds the key's bits down to `digit`, and how many of the keys that share them must still be
 * taken. */
static __device__ struct select_result find(struct select_plan<THREADS> *plan,
                                            const struct select_params &p, const struct row_work &w,
                                            uint32_t digit) {
    const uint32_t *bins = histogram_of(p, w.row, digit);
    uint32_t *found = p.room.found + (size_t)w.row * SELECT_DIGITS * 2;
    struct select_result before = {0, w.s.n_selected};
    if (digit > 0) before = {found[digit * 2 - 2], found[digit * 2 - 1]};
    for (uint32_t i = threadIdx.x; i < SELECT_BINS; i += THREADS)
        plan->histograms[digit][i] = bins[i];
    __syncthreads();
    find_digit<THREADS>(plan, {0, 1}, (int)digit, before.n_equal);
    const struct select_result result = {before.key << digit_bits(digit) | plan->found[0],
                                         before.n_equal - plan->found[1]};
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        found[digit * 2] = result.key;
        found[digit * 2 + 1] = result.n_equal;
    }
    return result;
}

/* Finds the digit before this one, and counts this one. */
static __global__ void __launch_bounds__(THREADS)
    narrow_kernel(const struct select_params p, uint32_t digit) {
    __shared__ struct select_plan<THREADS> plan;
    const struct row_work w = work_of(p);
    let_next_start();
    wait_for_previous();
    if (w.first >= w.s.n_candidates) return;
    uint32_t *const bins = plan.histograms[digit];
    clear_bins(bins);
    /* find() synchronises the block, so the bins are clear after it. */
    const struct select_result before = find(&plan, p, w, digit - 1);
    const uint32_t above = digit_shift(digit) + digit_bits(digit);
    for (uint32_t t = w.first + threadIdx.x; t < w.s.n_candidates; t += w.stride) {
        const uint32_t key = p.room.keys[(size_t)w.s.keys_at + t];
        if (key >> above == before.key)
            atomicAdd(&bins[(key >> digit_shift(digit)) & ((1u << digit_bits(digit)) - 1)], 1u);
    }
    __syncthreads();
    add_bins(histogram_of(p, w.row, digit), bins);
}

/* Marks the keys above and equal to the last one.  A warp has 32 candidates or none: their number
 * is a multiple of PAGE_TOKENS. */
static __global__ void __launch_bounds__(THREADS) mark_kernel(const struct select_params p) {
    __shared__ struct select_plan<THREADS> plan;
    const struct row_work w = work_of(p);
    let_next_start();
    wait_for_previous();
    if (w.first >= w.s.n_candidates) return;
    const struct select_result last = find(&plan, p, w, SELECT_DIGITS - 1);
    for (uint32_t t = w.first + threadIdx.x; t < w.s.n_candidates; t += w.stride) {
        const size_t at = (size_t)w.s.keys_at + t;
        const uint32_t key = p.room.keys[at];
        const uint32_t above = __ballot_sync(0xffffffffu, key > last.key),
                       equal = __ballot_sync(0xffffffffu, key == last.key);
        if (threadIdx.x % 32 > 0) continue;
        p.room.chosen[at / 32] = above;
        p.room.equal[at / 32] = equal;
    }
}

/* ---- launching ---- */

static cudaError_t launch_token_scores(const struct select_params *p, dim3 grid,
                                       struct launch launch) {
    const size_t shared = p->n_heads * sizeof(float);
    switch (p->n_heads / p->kv.n_kv_heads) {
    case 4: return launch_kernel(launch, token_score_kernel<4>, grid, THREADS, shared, *p);
    case 8: return launch_kernel(launch, token_score_kernel<8>, grid, THREADS, shared, *p);
    default: return launch_kernel(launch, token_score_kernel<0>, grid, THREADS, shared, *p);
    }
}

static dim3 grid_of(const struct select_params *p, uint32_t n_rows) {
    const uint32_t least = 8; /* blocks a row, however many rows there are */
    return dim3(p->n_blocks > least * n_rows ? p->n_blocks / n_rows : least, n_rows);
}

cudaError_t launch_select_observe(const struct select_params *p, uint32_t n_rows,
                                  struct launch launch) {
    return n_rows == 0 ? cudaSuccess : launch_token_scores(p, grid_of(p, n_rows), launch);
}

cudaError_t launch_select_keys(const struct select_params *p, uint32_t n_rows,
                               struct launch launch) {
    if (n_rows == 0) return cudaSuccess;
    const dim3 grid = grid_of(p, n_rows);
    /* No overlap: the kernel follows an event, not a kernel. */
    cudaError_t code = launch_token_scores(p, grid, without_overlap(launch));
    for (uint32_t digit = 1; digit < SELECT_DIGITS && code == cudaSuccess; digit++)
        code = launch_kernel(launch, narrow_kernel, grid, THREADS, 0, *p, digit);
    return code != cudaSuccess ? code : launch_kernel(launch, mark_kernel, grid, THREADS, 0, *p);
}
