/* sample_kernel.cu - one token from one row of logits: penalties, temperature, top-k, min-p, top-p,
 * draw.
 *
 * Grid:   one block a row; the row (at most some hundred KB) stays in the second-level cache
 * between passes.
 *
 * A token's place in the order of all filters and ties (higher logit, then lower id) is one 64-bit
 * key:
 *
 *   bits 63..32  the logit, mapped so that unsigned order is the order of floats
 *   bits 31..0   the complement of the token id
 *
 * Keys are unique, so "the tokens that are kept" is always "keys of at least `low`".  Top-k and
 * top-p find `low` digit by digit, from histograms of the eight bits below what is known already:
 * of counts for top-k, of weights for top-p.  Weights are integers, 2^40 for the best token, so
 * that their sums do not depend on the order in which threads add, and equal requests get equal
 * tokens.
 *
 * Shared: the histograms, one a warp (threads of other warps would wait for the few busy bins).
 * Bound:  one multiprocessor's reads from the second-level cache.  Greedy takes one pass over the
 *         row, a draw one more, top-k about 5 more and top-p 6.
 * Oracle: engine/cpu/sample.c. */
#include <cub/block/block_reduce.cuh>
#include <cuda/functional>

#include "cuda/device.cuh"

enum {
    N_THREADS = 512,
    N_WARPS = N_THREADS / 32,
    DIGIT_BITS = 8,
    N_BINS = 1 << DIGIT_BITS,
    KEY_BITS = 64,
    ID_BITS = 32
};
enum { BINS_PER_LANE = N_BINS / 32 };

typedef unsigned long long u64; /* what atomicAdd and the shuffles take */

struct plan {
    u64 bins[N_WARPS][N_BINS];
    u64 warps[N_WARPS];
    typename cub::BlockReduce<u64, N_THREADS>::TempStorage reduce_u64;
    typename cub::BlockReduce<float, N_THREADS>::TempStorage reduce_f32;
    u64 reduced_u64;
    float reduced_f32;
    u64 found_low, found_weight, found_above; /* select: the bin that reaches the target */
    u64 top[SAMPLE_MAX_TOP];
    uint32_t n_top, token;
};

/* The tokens that may still be drawn. */
struct view {
    const float *x;
    uint32_t n;
    float max, temperature, min_p;
    u64 low;
    bool all; /* weights do not matter: a token of vanishing weight counts, too */
};

static __device__ __forceinline__ u64 key_of(float x, uint32_t token) {
    const uint32_t bits = __float_as_uint(x + 0.0f); /* -0 equals 0 */
    const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (u64)ordered << ID_BITS | (uint32_t)~token;
}

static __device__ __forceinline__ float value_of(u64 key) {
    const uint32_t ordered = (uint32_t)(key >> ID_BITS);
    return __uint_as_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

static __device__ __forceinline__ uint32_t token_of(u64 key) {
    return ~(uint32_t)key;
}

/* ---- one pass over the row ---- */

/* Over the block; the result in every thread. */
template <typename Op> static __device__ u64 block_reduce(u64 x, Op op, struct plan *plan) {
    x = cub::BlockReduce<u64, N_THREADS>(plan->reduce_u64).Reduce(x, op);
    if (threadIdx.x == 0) plan->reduced_u64 = x;
    __syncthreads();
    x = plan->reduced_u64;
    __syncthreads(); /* read by all before the next one */
    return x;
}

static __device__ float block_sum(float x, struct plan *plan) {
    x = cub::BlockReduce<float, N_THREADS>(plan->reduce_f32).Sum(x);
    if (threadIdx.x == 0) plan->reduced_f32 = x;
    __syncthreads();
    x = plan->reduced_f32;
    __syncthreads();
    return x;
}

/* visit(value, token) for the tokens of this thread, in the order of their ids, from 16-byte loads
 * where the row allows them: N_LOADS of them at a time, or latency would be the time of a pass. */
template <typename Visit>
static __device__ __forceinline__ void visit_row(const float *x, uint32_t n, Visit visit) {
    enum { N_LOADS = 8 };
    if (n % 4 == 0 && (uintptr_t)x % 16 == 0) {
        for (uint32_t first = threadIdx.x; first < n / 4; first += N_LOADS * N_THREADS) {
            float4 v[N_LOADS];
#pragma unroll
            for (uint32_t k = 0; k < N_LOADS; k++)
                if (first + k * N_THREADS < n / 4)
                    v[k] = reinterpret_cast<const float4 *>(x)[first + k * N_THREADS];
#pragma unroll
            for (uint32_t k = 0; k < N_LOADS; k++) {
                const uint32_t i = first + k * N_THREADS;
                if (i >= n / 4) break;
                visit(v[k].x, 4 * i);
                visit(v[k].y, 4 * i + 1);
                visit(v[k].z, 4 * i + 2);
                visit(v[k].w, 4 * i + 3);
            }
        }
    } else {
        for (uint32_t i = threadIdx.x; i < n; i += N_THREADS) visit(x[i], i);
    }
}

struct scan {
    u64 best;     /* key */
    float lse;    /* log of the sum of exp */
    bool invalid; /* NaN or +inf anywhere, or nothing finite */
};

/* A thread keeps the sum of exp relative to its own maximum so far, so one pass is enough.  __expf:
 * 2 ulp of each term, far below the bf16 steps of what the logits were made from. */
static __device__ struct scan scan_row(const float *x, uint32_t n, struct plan *plan) {
    float max = -INFINITY, sum = 0.0f;
    uint32_t token = 0;
    int bad = 0;
    visit_row(x, n, [&](float value, uint32_t i) {
        bad |= !(value < INFINITY);
        if (value > max) { /* seldom */
            sum *= __expf(max - value);
            max = value;
            token = i;
        }
        if (value > -INFINITY) sum += __expf(value - max);
    });
    struct scan scan;
    const u64 own = max > -INFINITY ? key_of(max, token) : 0;
    scan.best = block_reduce(own, cuda::maximum<>{}, plan);
    scan.invalid = __syncthreads_or(bad) || scan.best == 0;
    const float top = value_of(scan.best);
    scan.lse = top + logf(block_sum(sum * __expf(max - top), plan));
    return scan;
}

/* 1: the token has the best key. */
static __device__ uint32_t rank_of(const float *x, uint32_t n, uint32_t token, struct plan *plan) {
    const u64 key = key_of(x[token], token);
    u64 above = 0;
    visit_row(x, n, [&](float value, uint32_t i) { above += key_of(value, i) > key; });
    return (uint32_t)block_reduce(above, cuda::std::plus<>{}, plan) + 1;
}

/* ---- selection ---- */

/* 2^40 for the best; 0: cannot be drawn. */
static __device__ __forceinline__ u64 weight_of(const struct view &v, float x) {
    const float p = expf((x - v.max) / v.temperature);
    return p >= v.min_p ? (u64)(p * 1099511627776.0f) : 0;
}

/* Whether a token takes part in a count. */
static __device__ __forceinline__ bool counts(const struct view &v, float x) {
    return v.all || expf((x - v.max) / v.temperature) > 0.0f;
}

template <bool BY_WEIGHT>
static __device__ void fill_bins(const struct view &v, u64 known, int shift, struct plan *plan) {
    u64 *bins = plan->bins[threadIdx.x / 32];
    for (uint32_t i = threadIdx.x % 32; i < N_BINS; i += 32) bins[i] = 0;
    __syncwarp();
    visit_row(v.x, v.n, [&](float x, uint32_t i) {
        const u64 key = key_of(x, i);
        const bool matches = shift + DIGIT_BITS == KEY_BITS ||
                             key >> (shift + DIGIT_BITS) == known >> (shift + DIGIT_BITS);
        if (key < v.low || !matches) return;
        const u64 weight = BY_WEIGHT ? weight_of(v, x) : counts(v, x);
        if (weight) atomicAdd(&bins[key >> shift & (N_BINS - 1)], weight);
    });
    __syncthreads();
    for (uint32_t b = threadIdx.x; b < N_BINS; b += N_THREADS)
        for (uint32_t w = 1; w < N_WARPS; w++) plan->bins[0][b] += plan->bins[w][b];
    __syncthreads();
}

/* The bin, from the best down, in which the sum reaches the target: lane l of the first warp looks
 * at the bins that begin with BINS_PER_LANE * l. */
static __device__ void find_bin(u64 target, struct plan *plan) {
    const uint32_t lane = threadIdx.x;
    if (lane < 32) {
        u64 own = 0;
        for (int i = 0; i < BINS_PER_LANE; i++) own += plan->bins[0][lane * BINS_PER_LANE + i];
        u64 above = own;
        for (uint32_t step = 1; step < 32; step *= 2) {
            const u64 other = __shfl_down_sync(0xffffffffu, above, step);
            if (lane + step < 32) above += other;
        }
        above -= own;
        if (lane == 0)
            plan->found_weight = 0; /* nothing reaches it, unless a lane says otherwise */
        __syncwarp();
        for (int i = BINS_PER_LANE - 1; i >= 0; i--) {
            const u64 weight = plan->bins[0][lane * BINS_PER_LANE + i];
            if (above < target && above + weight >= target) {
                plan->found_low = lane * BINS_PER_LANE + i;
                plan->found_weight = weight;
                plan->found_above = above;
            }
            above += weight;
        }
    }
    __syncthreads();
}

/* The largest key such that the tokens from it up reach the target; v.low if all of them do not. */
template <bool BY_WEIGHT>
static __device__ u64 select_low(const struct view &v, u64 target, struct plan *plan) {
    u64 known = 0;
    for (int shift = KEY_BITS - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        fill_bins<BY_WEIGHT>(v, known, shift, plan);
        find_bin(target, plan);
        if (plan->found_weight == 0) return v.low;
        known |= plan->found_low << shift;
        target -= plan->found_above;
        /* Below the value's bits lie ties; one that stands alone needs no look at its id. */
        const u64 one = BY_WEIGHT ? weight_of(v, value_of(known)) : 1;
        if (shift <= ID_BITS && plan->found_weight == one) break;
        __syncthreads();
    }
    __syncthreads();
    return known > v.low ? known : v.low;
}

/* ---- the draw ---- */

static __device__ __forceinline__ u64 kept_weight(const struct view &v, uint32_t i) {
    const float x = v.x[i];
    return key_of(x, i) >= v.low ? weight_of(v, x) : 0;
}

static __device__ u64 total_weight(const struct view &v, struct plan *plan) {
    u64 sum = 0;
    visit_row(v.x, v.n, [&](float x, uint32_t i) {
        if (key_of(x, i) >= v.low) sum += weight_of(v, x);
    });
    return block_reduce(sum, cuda::std::plus<>{}, plan);
}

/* The lane-strided sum of a warp's run of ids, in every lane. */
static __device__ u64 run_weight(const struct view &v, uint32_t first, uint32_t end) {
    u64 sum = 0;
#pragma unroll 8
    for (uint32_t i = first + threadIdx.x % 32; i < end; i += 32) sum += kept_weight(v, i);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

/* In a run whose ids follow weights of `before`: the first at which the sum exceeds `at`. */
static __device__ uint32_t token_in_run(const struct view &v, uint32_t first, uint32_t end,
                                        u64 before, u64 at) {
    const uint32_t lane = threadIdx.x % 32;
    for (; first < end; first += 32) {
        u64 sum = first + lane < end ? kept_weight(v, first + lane) : 0;
        for (uint32_t step = 1; step < 32; step *= 2) {
            const u64 other = __shfl_up_sync(0xffffffffu, sum, step);
            if (lane >= step) sum += other;
        }
        const uint32_t over = __ballot_sync(0xffffffffu, before + sum > at);
        if (over) return first + (uint32_t)__ffs((int)over) - 1;
        before += __shfl_sync(0xffffffffu, sum, 31);
    }
    return end - 1; /* not reached: the run's weight exceeds at - before */
}

/* The first token, in the order of their ids, at which the sum of the weights exceeds its share
 * `uniform` of all.  A warp adds up one run of ids; the one whose run holds the token walks it. */
static __device__ uint32_t token_at(const struct view &v, double uniform, struct plan *plan) {
    const uint32_t warp = threadIdx.x / 32, run = (v.n + N_WARPS - 1) / N_WARPS;
    const uint32_t first = warp * run < v.n ? warp * run : v.n;
    const uint32_t end = first + run < v.n ? first + run : v.n;
    const u64 own = run_weight(v, first, end);
    u64 before = 0, total = 0;
    if (threadIdx.x % 32 == 0) plan->warps[warp] = own;
    __syncthreads();
    for (uint32_t w = 0; w < N_WARPS; w++) {
        if (w < warp) before += plan->warps[w];
        total += plan->warps[w];
    }
    u64 at = (u64)(uniform * (double)total);
    if (at >= total) at = total - 1; /* a double may round up to the total */
    if (at >= before && at < before + own) {
        const uint32_t token = token_in_run(v, first, end, before, at);
        if (threadIdx.x % 32 == 0) plan->token = token;
    }
    __syncthreads();
    return plan->token;
}

static __device__ uint32_t draw(const struct device_sample &row, const float *x, uint32_t n,
                                u64 best, struct plan *plan) {
    if (row.temperature <= 0.0f) return token_of(best);
    struct view v = {x, n, value_of(best), row.temperature, 0.0f, 0, false};
    if (row.top_k > 0 && row.top_k < n) v.low = select_low<false>(v, row.top_k, plan);
    v.min_p = row.min_p;
    if (row.top_p < 1.0f) {
        const u64 total = total_weight(v, plan);
        v.low = select_low<true>(v, (u64)ceil((double)row.top_p * (double)total), plan);
    }
    return token_at(v, row.uniform, plan);
}

/* ---- the rest of a row ---- */

static __device__ const float *apply_penalties(const struct device_sample &row, const float *logits,
                                               uint32_t n) {
    float *x = row.changed;
    for (uint32_t i = threadIdx.x; i < n; i += N_THREADS) x[i] = logits[i];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < row.n_bias; i += N_THREADS)
        if (row.bias[i].token < n)
            atomicAdd(&x[row.bias[i].token], row.bias[i].bias); /* a token may come twice */
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < row.n_banned; i += N_THREADS)
        if (row.banned[i] < n) x[row.banned[i]] = -INFINITY;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < row.n_counts; i += N_THREADS) {
        const struct token_count seen = row.counts[i];
        if (seen.token >= n) continue;
        float logit = x[seen.token];
        logit = logit > 0.0f ? logit / row.repetition_penalty : logit * row.repetition_penalty;
        if (seen.n_output)
            logit -= row.frequency_penalty * (float)seen.n_output + row.presence_penalty;
        x[seen.token] = logit;
    }
    __syncthreads();
    return x;
}

/* The best n_top of the unmodified logits, best first. */
static __device__ void report_top(const float *logits, uint32_t n, uint32_t n_top, float lse,
                                  struct sample_result *result, struct plan *plan) {
    struct view v = {logits, n, 0.0f, 1.0f, 0.0f, 0, true};
    if (n_top > n) n_top = n;
    if (n_top == 0) return;
    const u64 low = select_low<false>(v, n_top, plan);
    if (threadIdx.x == 0) plan->n_top = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += N_THREADS) {
        const u64 key = key_of(logits[i], i);
        if (key >= low) plan->top[atomicAdd(&plan->n_top, 1u)] = key;
    }
    __syncthreads();
    if (threadIdx.x >= n_top) return;
    uint32_t place = 0;
    const u64 key = plan->top[threadIdx.x];
    for (uint32_t i = 0; i < n_top; i++) place += plan->top[i] > key;
    result->top[place] = (struct token_logprob){token_of(key), logits[token_of(key)] - lse};
    if (threadIdx.x == 0) result->n_top = n_top;
}

/* The token of the row, or *invalid. */
static __device__ uint32_t choose(const struct device_sample &row, const float *logits, uint32_t n,
                                  u64 best, bool *invalid, struct plan *plan) {
    if (row.kind == SAMPLE_SCORE) return row.target;
    if (!row.changed) return draw(row, logits, n, best, plan);
    const float *x = apply_penalties(row, logits, n);
    const struct scan scan = scan_row(x, n, plan);
    *invalid = scan.invalid; /* every token is banned */
    return scan.invalid ? 0 : draw(row, x, n, scan.best, plan);
}

static __global__ void __launch_bounds__(N_THREADS) sample_kernel(struct sample_params p) {
    __shared__ struct plan plan;
    let_next_start();
    wait_for_previous();
    const struct device_sample row = p.rows[blockIdx.x];
    const float *logits = p.logits + (size_t)row.logit_row * p.n_vocab;
    struct sample_result *result = &p.results[blockIdx.x];
    const struct scan scan = scan_row(logits, p.n_vocab, &plan);
    bool invalid = scan.invalid;
    uint32_t token = 0;
    if (!invalid) token = choose(row, logits, p.n_vocab, scan.best, &invalid, &plan);
    if (threadIdx.x == 0) {
        *result = (struct sample_result){.token = token, .invalid = invalid};
        p.drawn[blockIdx.x] = (int32_t)token;
    }
    if (invalid) return;
    const uint32_t rank = token == token_of(scan.best) ? 1 : rank_of(logits, p.n_vocab, token, &plan);
    if (threadIdx.x == 0) {
        result->logprob = logits[token] - scan.lse;
        result->rank = rank;
    }
    report_top(logits, p.n_vocab, row.n_top < SAMPLE_MAX_TOP ? row.n_top : SAMPLE_MAX_TOP,
               scan.lse, result, &plan);
}

cudaError_t launch_sample(const struct sample_params *p, struct launch launch) {
    if (p->n == 0) return cudaSuccess;
    return launch_kernel(launch, sample_kernel, p->n, N_THREADS, 0, *p);
}
