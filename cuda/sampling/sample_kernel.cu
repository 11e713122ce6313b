/* sample_kernel.cu - samples one token from one row of logits: penalties, temperature, top-k,
 * min-p, top-p, choice.
 *
 * A team of blocks (up to eight, a cluster on 9.0; one block elsewhere) takes a row, each block a
 * slice of it, each warp a run of the slice, in the order of the ids.  Every warp writes two
 * numbers to every block of the team and continues when all have (`exchange`), so that all warps
 * know the same.
 *
 * All filters and ties use one order: higher logit, then lower id.  A token's place in it is one
 * 64-bit key:
 *
 *   bits 63..52  how near the logit is to the best one, in steps of 1/4095 of the row's range
 *   bits 51..20  the logit, mapped so that unsigned order is the order of floats
 *   bits 19..0   the complement of the token id
 *
 * Keys are unique, so "the tokens that are kept" is always "keys of at least `low`".  The first
 * field follows from the second; it exists because it spreads a row's logits evenly.  Top-k and
 * top-p find `low` digit by digit, four bits at a time.  To find a digit they take the tokens that
 * share the digits found, and add up their count and weight by each value of the digit.  They stop
 * when so few tokens are left that one block can sort them.  Every thread has bins of its own:
 * threads never wait for one another, however flat the row is.
 *
 * Weights are integers, 2^40 for the best token.  So their sums do not depend on the order in which
 * threads add, and equal requests get equal tokens.
 *
 * Grid:   a team a row.  Teams are as large as two blocks a multiprocessor allow if all are to run
 *         at the same time: at the end of an exchange a team waits for its slowest block.  A device
 *         may have room for fewer, because a team's multiprocessors lie together
 *         (docs/benchmarks/gpu-kernels.md, "Sampling of many rows").
 * Shared: struct plan.
 * Bound:  instructions, and most likely their fetching: unrolled, the passes are 590 KB of code.
 *         Greedy takes one pass over the row, a random choice two more; top-k and top-p two or
 *         three each, and one that collects the last few.  Equal logits, of which only the ids
 *         differ, take 15.
 * Oracle: engine/cpu/sample.c. */
#include "cuda/common/device.cuh"
#include "engine/device/sample.h"

enum {
    TEAM_BLOCKS = 8,    /* the most that every device with clusters can start together */
    BLOCKS_AT_ONCE = 2, /* of a multiprocessor */
    N_THREADS = 512,
    N_WARPS = N_THREADS / 32,
    DIGIT_BITS = 4,
    N_BINS = 1 << DIGIT_BITS,
    KEY_BITS = 64,
    ID_BITS = 20,
    NEAR_BITS = 12,
    NEAREST = (1 << NEAR_BITS) - 1,
    N_LISTED = 1024, /* at most so many tokens are sorted: two a thread */
    COUNT_SHIFT = 52 /* in a thread's bin: 2^12 weights of up to 2^40 lie below */
};
static_assert(1 << ID_BITS == SAMPLE_MAX_VOCAB, "a key holds every id");
static_assert(N_BINS == N_WARPS, "a warp adds up one bin");
static_assert(N_LISTED == 2 * N_THREADS, "a thread sorts two keys");

typedef unsigned long long u64; /* what atomicAdd and the shuffles take */

/* What a warp writes to all others. */
struct share {
    u64 a, b;
};

struct plan {
    union {
        u64 bins[N_BINS][N_THREADS]; /* count << COUNT_SHIFT | weight; a column a thread */
        struct {
            u64 list[N_LISTED];   /* keys of this block's slice */
            u64 sorted[N_LISTED]; /* in the first block: keys of all slices */
        };
    };
    struct share shares[2][TEAM_BLOCKS * N_WARPS]; /* alternating: one is read, the other written */
    u64 sums[N_WARPS];
    uint32_t n_list;
};

/* A block's part in the work on a row. */
struct team {
    struct plan *plan;
    uint32_t rank, n_blocks, n_exchanges;
    uint32_t n, run, first, end; /* tokens: the row's, a warp's; this block's */
};

/* The tokens that may still be sampled. */
struct view {
    const float *x;
    float max, temperature, min_p;
    float steps; /* steps of a key's first field, per unit of the logit */
    u64 low;
    uint32_t n_kept; /* at most so many have a weight */
    bool all;        /* weights do not matter: a token whose weight is 0 counts, too */
};

/* ---- blocks of a team ---- */

static __device__ __forceinline__ struct team join_team(struct plan *plan, uint32_t n) {
    struct team team = {plan, 0, 1, 0, n, 0, 0, 0};
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(team.rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(team.n_blocks));
#endif
    const uint32_t n_warps = team.n_blocks * N_WARPS;
    team.run = ((n + n_warps - 1) / n_warps + 3) / 4 * 4; /* for loads of 16 bytes */
    team.first = min(team.rank * N_WARPS * team.run, n);
    team.end = min(team.first + N_WARPS * team.run, n);
    return team;
}

/* Synchronises all threads of all blocks of the team. */
static __device__ __forceinline__ void team_sync() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
#else
    __syncthreads();
#endif
}

/* Returns where block `rank` of the team has what this block has at `shared`. */
template <typename T> static __device__ __forceinline__ T *in_block(T *shared, uint32_t rank) {
#if __CUDA_ARCH__ >= 900
    u64 there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"((u64)shared), "r"(rank));
    return reinterpret_cast<T *>(there);
#else
    (void)rank;
    return shared;
#endif
}

/* Writes (a, b) of each warp to all blocks; returns what all warps wrote, by rank and warp.  It may
 * be read until the next exchange, which uses the other buffer.  A warp that writes this buffer
 * again knows that all readers have reached that exchange. */
static __device__ __forceinline__ const struct share *exchange(struct team *team, u64 a, u64 b) {
    struct share *shares = team->plan->shares[team->n_exchanges++ % 2];
    struct share *own = &shares[team->rank * N_WARPS + threadIdx.x / 32];
    __syncwarp();
    if (threadIdx.x % 32 < team->n_blocks) {
        struct share *to = in_block(own, threadIdx.x % 32);
        to->a = a;
        to->b = b;
    }
    team_sync();
    return shares;
}

static __device__ __forceinline__ u64 warp_sum(u64 x) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

static __device__ __forceinline__ u64 warp_max(u64 x) {
    for (int step = 16; step > 0; step /= 2) {
        const u64 other = __shfl_xor_sync(0xffffffffu, x, step);
        x = other > x ? other : x;
    }
    return x;
}

/* Returns the sum of the lanes up to this one. */
static __device__ __forceinline__ u64 warp_scan(u64 x) {
    for (uint32_t step = 1; step < 32; step *= 2) {
        const u64 other = __shfl_up_sync(0xffffffffu, x, step);
        if (threadIdx.x % 32 >= step) x += other;
    }
    return x;
}

/* Returns the sum over all threads of the team, in every thread. */
static __device__ u64 team_sum(struct team *team, u64 x) {
    const struct share *shares = exchange(team, warp_sum(x), 0);
    u64 sum = 0;
    for (uint32_t i = threadIdx.x % 32; i < team->n_blocks * N_WARPS; i += 32) sum += shares[i].a;
    return warp_sum(sum);
}

static __device__ u64 team_max(struct team *team, u64 x) {
    const struct share *shares = exchange(team, warp_max(x), 0);
    u64 best = 0;
    for (uint32_t i = threadIdx.x % 32; i < team->n_blocks * N_WARPS; i += 32)
        best = shares[i].a > best ? shares[i].a : best;
    return warp_max(best);
}

/* ---- keys ---- */

/* Returns a token's key without the first field. */
static __device__ __forceinline__ u64 rank_key(float x, uint32_t token) {
    const uint32_t bits = __float_as_uint(x + 0.0f); /* -0 equals 0 */
    const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (u64)ordered << ID_BITS | (((1u << ID_BITS) - 1) ^ token);
}

/* Returns a token's key.  The difference, the product and the sum below may round in any way, as
 * long as a higher logit is never farther from the best.  The sum makes an integer of its low
 * bits.  If the product is NaN, infinity times zero where all logits of a row are equal, fminf
 * takes NEAREST. */
static __device__ __forceinline__ u64 key_of(const struct view &v, float x, uint32_t token) {
    const float far = fminf((v.max - x) * v.steps, (float)NEAREST);
    const uint32_t steps = __float_as_uint(far + 8388608.0f) & NEAREST;
    return (u64)(NEAREST - steps) << (KEY_BITS - NEAR_BITS) | rank_key(x, token);
}

static __device__ __forceinline__ float value_of(u64 key) {
    const uint32_t ordered = (uint32_t)(key >> ID_BITS);
    return __uint_as_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

static __device__ __forceinline__ uint32_t token_of(u64 key) {
    return ~(uint32_t)key & ((1u << ID_BITS) - 1);
}

/* ---- one pass over the row ---- */

/* Calls visit(value, token) for the tokens of this thread, in the order of their ids.  It loads 16
 * bytes where the row allows it, N_LOADS times before it visits: else a pass would take as long as
 * its latencies. */
template <typename Visit>
static __device__ __forceinline__ void visit_slice(const struct team &team, const float *x,
                                                   Visit visit) {
    enum { N_LOADS = 8 };
    if (team.n % 4 == 0 && (uintptr_t)x % 16 == 0) {
        const uint32_t end = team.end / 4;
        for (uint32_t i = team.first / 4 + threadIdx.x; i < end; i += N_LOADS * N_THREADS) {
            float4 v[N_LOADS];
#pragma unroll
            for (uint32_t k = 0; k < N_LOADS; k++)
                if (i + k * N_THREADS < end)
                    v[k] = reinterpret_cast<const float4 *>(x)[i + k * N_THREADS];
#pragma unroll
            for (uint32_t k = 0; k < N_LOADS; k++) {
                const uint32_t token = 4 * (i + k * N_THREADS);
                if (token >= team.end) break;
                visit(v[k].x, token);
                visit(v[k].y, token + 1);
                visit(v[k].z, token + 2);
                visit(v[k].w, token + 3);
            }
        }
    } else {
        for (uint32_t i = team.first + threadIdx.x; i < team.end; i += N_THREADS) visit(x[i], i);
    }
}

struct scan {
    u64 best;     /* rank_key(): without the first field */
    float lse;    /* log of the sum of exp */
    float min;    /* the least finite logit */
    bool invalid; /* NaN or +inf anywhere, or nothing finite */
};

/* A thread's statistics of its tokens.  The sum of exp is relative to their maximum so far, so one
 * pass is enough. */
struct part {
    float max, min, sum;
    uint32_t token;
    bool bad;
};

/* Scans the thread's tokens.  __expf is off by 2 ulp of each term, far below the bf16 steps of what
 * the logits were made from. */
static __device__ __forceinline__ struct part scan_slice(const struct team &team, const float *x) {
    struct part part = {-INFINITY, INFINITY, 0.0f, 0, false};
    visit_slice(team, x, [&](float value, uint32_t i) {
        part.bad |= !(value < INFINITY);
        if (value > part.max) { /* seldom */
            part.sum *= __expf(part.max - value);
            part.max = value;
            part.token = i;
        }
        if (value > -INFINITY) {
            part.sum += __expf(value - part.max);
            part.min = fminf(part.min, value);
        }
    });
    return part;
}

static __device__ struct scan join_parts(const struct share *shares, uint32_t n) {
    u64 best = 0;
    float sum = 0.0f, min = INFINITY;
    for (uint32_t i = threadIdx.x % 32; i < n; i += 32) best = max(best, shares[i].a);
    best = warp_max(best);
    for (uint32_t i = threadIdx.x % 32; i < n; i += 32) {
        if (shares[i].a == 0) continue; /* nothing finite */
        sum +=
            __uint_as_float((uint32_t)shares[i].b) * __expf(value_of(shares[i].a) - value_of(best));
        min = fminf(min, __uint_as_float((uint32_t)(shares[i].b >> 32)));
    }
    for (int step = 16; step > 0; step /= 2)
        min = fminf(min, __shfl_xor_sync(0xffffffffu, min, step));
    const bool invalid = best == 0 || best == ~0ull;
    return {best, value_of(best) + logf(warp_sum(sum)), min, invalid};
}

static __device__ struct scan scan_row(struct team *team, const float *x) {
    const struct part part = scan_slice(*team, x);
    float min = part.min;
    for (int step = 16; step > 0; step /= 2)
        min = fminf(min, __shfl_xor_sync(0xffffffffu, min, step));
    const bool any = part.max > -INFINITY, bad = __any_sync(0xffffffffu, part.bad);
    const u64 best = warp_max(any ? rank_key(part.max, part.token) : 0);
    const float sum = warp_sum(any ? part.sum * __expf(part.max - value_of(best)) : 0.0f);
    const u64 b = (u64)__float_as_uint(min) << 32 | __float_as_uint(sum);
    const struct share *shares = exchange(team, bad ? ~0ull : best, b);
    return join_parts(shares, team->n_blocks * N_WARPS);
}

/* Returns the token's rank: 1 if it has the best key. */
static __device__ uint32_t rank_of(struct team *team, const float *x, uint32_t token) {
    const float own = x[token];
    uint32_t above = 0;
    visit_slice(*team, x, [&](float value, uint32_t i) {
        above += value > own || (value == own && i < token);
    });
    return (uint32_t)team_sum(team, above) + 1;
}

/* ---- top-k and top-p ---- */

/* Returns a token's weight: 2^40 for the best, 0 if it cannot be sampled. */
static __device__ __forceinline__ u64 weight_of(const struct view &v, float x) {
    const float p = expf((x - v.max) / v.temperature);
    return p >= v.min_p ? (u64)(p * 1099511627776.0f) : 0;
}

/* Returns what a token adds to the sum that must reach the target. */
template <bool BY_WEIGHT>
static __device__ __forceinline__ u64 measure(const struct view &v, float x) {
    if (BY_WEIGHT) return weight_of(v, x);
    return v.all || expf((x - v.max) / v.temperature) > 0.0f;
}

/* How many tokens are kept, from the best one down: `count`, or until they have the share of all
 * weight. */
struct goal {
    uint32_t count;
    float share;
};

template <bool BY_WEIGHT>
static __device__ __forceinline__ u64 target_of(const struct goal &goal, u64 total) {
    return BY_WEIGHT ? (u64)ceil((double)goal.share * (double)total) : goal.count;
}

/* The keys that agree with `known` from bit `shift` up. */
struct prefix {
    u64 known;
    int shift; /* KEY_BITS: all keys */
};

static __device__ __forceinline__ bool has_prefix(const struct prefix &prefix, u64 key) {
    return prefix.shift == KEY_BITS || (key ^ prefix.known) >> prefix.shift == 0;
}

/* Fills the bins of the digit below the prefix; returns the weights and counts of each block's
 * N_BINS bins. */
template <bool BY_WEIGHT>
static __device__ const struct share *fill_bins(struct team *team, const struct view &v,
                                                const struct prefix &prefix) {
    struct plan *plan = team->plan;
    u64 weight = 0, count = 0;
#pragma unroll
    for (int b = 0; b < N_BINS; b++) plan->bins[b][threadIdx.x] = 0;
    visit_slice(*team, v.x, [&](float x, uint32_t i) {
        const u64 key = key_of(v, x, i);
        if (key < v.low || !has_prefix(prefix, key)) return;
        const u64 own = measure<BY_WEIGHT>(v, x);
        const uint32_t digit = (uint32_t)(key >> (prefix.shift - DIGIT_BITS)) % N_BINS;
        if (own) plan->bins[digit][threadIdx.x] += (1ull << COUNT_SHIFT) + own;
    });
    __syncthreads();
    for (uint32_t i = threadIdx.x % 32; i < N_THREADS; i += 32) {
        const u64 bin = plan->bins[threadIdx.x / 32][i];
        weight += bin & ((1ull << COUNT_SHIFT) - 1);
        count += bin >> COUNT_SHIFT;
    }
    return exchange(team, warp_sum(weight), warp_sum(count));
}

/* Sorts n keys (a power of two), the largest first. */
static __device__ void sort_keys(u64 *keys, uint32_t n) {
    for (uint32_t size = 2; size <= n; size *= 2) {
        for (uint32_t stride = size / 2; stride > 0; stride /= 2) {
            const uint32_t i = 2 * threadIdx.x - threadIdx.x % stride, j = i + stride;
            if (j < n && (keys[i] < keys[j]) == ((i & size) == 0)) {
                const u64 key = keys[i];
                keys[i] = keys[j];
                keys[j] = key;
            }
            const uint32_t next = stride > 1 ? stride / 2 : size;
            if (stride > 32 || next > 32) __syncthreads();
            else __syncwarp(); /* within the 64 keys of a warp */
        }
    }
    __syncthreads();
}

/* Gathers the lists of all blocks in the first block's `sorted`, with zeros behind them. */
static __device__ void join_lists(const struct team &team, const struct share *shares) {
    struct plan *plan = team.plan;
    const uint32_t warp = threadIdx.x / 32, from = warp % team.n_blocks;
    const u64 *list = in_block(plan->list, from);
    uint32_t at = 0;
    for (uint32_t i = threadIdx.x; i < N_LISTED; i += N_THREADS) plan->sorted[i] = 0;
    for (uint32_t rank = 0; rank < from; rank++) at += (uint32_t)shares[rank * N_WARPS].a;
    __syncthreads();
    for (uint32_t i = warp / team.n_blocks * 32 + threadIdx.x % 32; i < shares[from * N_WARPS].a;
         i += N_THREADS / team.n_blocks)
        plan->sorted[at + i] = list[i];
    __syncthreads();
}

/* Collects the keys with the prefix, at most N_LISTED, and returns how many there are.  When it
 * returns, the first block has them sorted.  All blocks must synchronise once more before any uses
 * its bins. */
template <bool BY_WEIGHT>
static __device__ uint32_t collect(struct team *team, const struct view &v,
                                   const struct prefix &prefix) {
    struct plan *plan = team->plan;
    uint32_t n = 0, padded = 1;
    if (threadIdx.x == 0) plan->n_list = 0;
    __syncthreads();
    visit_slice(*team, v.x, [&](float x, uint32_t i) {
        const u64 key = key_of(v, x, i);
        if (key < v.low || !has_prefix(prefix, key)) return;
        if (measure<BY_WEIGHT>(v, x)) plan->list[atomicAdd(&plan->n_list, 1u)] = key;
    });
    __syncthreads();
    const struct share *shares = exchange(team, plan->n_list, 0);
    for (uint32_t rank = 0; rank < team->n_blocks; rank++) n += (uint32_t)shares[rank * N_WARPS].a;
    while (padded < n) padded *= 2;
    if (team->rank > 0) return n;
    join_lists(*team, shares);
    sort_keys(plan->sorted, padded);
    return n;
}

/* Returns the one of n sorted keys at which the sum reaches the target, in one thread of the first
 * block; 0 in its others.  While there is no target yet, the sorted keys are all that there are. */
template <bool BY_WEIGHT>
static __device__ u64 key_at(const struct plan *plan, u64 *sums, const struct view &v, uint32_t n,
                             const struct goal &goal, u64 target) {
    const uint32_t i = 2 * threadIdx.x, warp = threadIdx.x / 32;
    const u64 one = i < n ? measure<BY_WEIGHT>(v, value_of(plan->sorted[i])) : 0;
    const u64 two = i + 1 < n ? measure<BY_WEIGHT>(v, value_of(plan->sorted[i + 1])) : 0;
    u64 sum = warp_scan(one + two), total = 0;
    if (threadIdx.x % 32 == 31) sums[warp] = sum;
    __syncthreads();
    for (uint32_t w = 0; w < N_WARPS; w++) {
        if (w < warp) sum += sums[w];
        total += sums[w];
    }
    if (target == 0) target = target_of<BY_WEIGHT>(goal, total);
    if (sum - two - one < target && sum - two >= target) return plan->sorted[i];
    return sum - two < target && sum >= target ? plan->sorted[i + 1] : 0;
}

/* Returns the largest key such that the tokens from it up reach the goal; v.low if all of them do
 * not. */
template <bool BY_WEIGHT>
static __device__ u64 select_low(struct team *team, const struct view &v, struct goal goal) {
    const uint32_t lane = threadIdx.x % 32;
    struct prefix prefix = {0, KEY_BITS};
    u64 target = 0;
    for (uint32_t n_left = v.n_kept; n_left > N_LISTED;) {
        const struct share *shares = fill_bins<BY_WEIGHT>(team, v, prefix);
        u64 weight = 0, count = 0; /* lane 0 has the best bin */
        for (uint32_t rank = 0; rank < team->n_blocks && lane < N_BINS; rank++) {
            weight += shares[rank * N_WARPS + N_BINS - 1 - lane].a;
            count += shares[rank * N_WARPS + N_BINS - 1 - lane].b;
        }
        const u64 sum = warp_scan(weight);
        if (target == 0) target = target_of<BY_WEIGHT>(goal, __shfl_sync(0xffffffffu, sum, 31));
        const uint32_t reached = __ballot_sync(0xffffffffu, sum >= target);
        if (!reached) return v.low;
        const uint32_t found = (uint32_t)__ffs((int)reached) - 1;
        target -= __shfl_sync(0xffffffffu, sum - weight, found);
        n_left = (uint32_t)__shfl_sync(0xffffffffu, count, found);
        prefix.shift -= DIGIT_BITS;
        prefix.known |= (u64)(N_BINS - 1 - found) << prefix.shift;
    }
    const uint32_t n = collect<BY_WEIGHT>(team, v, prefix);
    u64 low = 0;
    if (team->rank == 0) low = key_at<BY_WEIGHT>(team->plan, team->plan->sums, v, n, goal, target);
    low = team_max(team, low);
    return low > v.low ? low : v.low;
}

/* ---- sampling ---- */

static __device__ __forceinline__ u64 kept_weight(const struct view &v, uint32_t i) {
    const float x = v.x[i];
    return v.low == 0 || key_of(v, x, i) >= v.low ? weight_of(v, x) : 0;
}

/* Returns the sum of the weights in a warp's run of ids, in every lane. */
static __device__ u64 run_weight(const struct view &v, uint32_t first, uint32_t end) {
    u64 sum = 0;
#pragma unroll 8
    for (uint32_t i = first + threadIdx.x % 32; i < end; i += 32) sum += kept_weight(v, i);
    return warp_sum(sum);
}

/* Returns the first token of a run at which the sum of the weights exceeds `at`; `before` is the
 * weight before the run.  A lane takes a few neighbours at a time. */
static __device__ uint32_t token_in_run(const struct view &v, uint32_t first, uint32_t end,
                                        u64 before, u64 at) {
    enum { N_EACH = 4 };
    for (; first < end; first += 32 * N_EACH) {
        const uint32_t own = first + threadIdx.x % 32 * N_EACH;
        u64 weights[N_EACH], sum = 0;
#pragma unroll
        for (uint32_t k = 0; k < N_EACH; k++)
            sum += weights[k] = own + k < end ? kept_weight(v, own + k) : 0;
        const u64 upto = before + warp_scan(sum);
        const uint32_t over = __ballot_sync(0xffffffffu, upto > at);
        if (over) {
            uint32_t token = own;
            u64 reached = upto - sum;
#pragma unroll
            for (uint32_t k = 0; k < N_EACH; k++) token += (reached += weights[k]) <= at;
            return __shfl_sync(0xffffffffu, token, __ffs((int)over) - 1);
        }
        before = __shfl_sync(0xffffffffu, upto, 31);
    }
    return end - 1; /* not reached: the run's weight exceeds at - before */
}

/* Returns the first token, in the order of the ids, at which the sum of the weights exceeds the
 * share `uniform` of all.  A warp adds up one run of ids; the one whose run holds the token
 * searches it. */
static __device__ uint32_t token_at(struct team *team, const struct view &v, double uniform) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t first = min(team->first + warp * team->run, team->end);
    const uint32_t end = min(first + team->run, team->end);
    const u64 own = run_weight(v, first, end);
    const struct share *shares = exchange(team, own, 0);
    u64 before = 0, total = 0, token = 0;
    for (uint32_t i = lane; i < team->n_blocks * N_WARPS; i += 32) {
        if (i < team->rank * N_WARPS + warp) before += shares[i].a;
        total += shares[i].a;
    }
    before = warp_sum(before);
    total = warp_sum(total);
    u64 at = (u64)(uniform * (double)total);
    if (at >= total) at = total - 1; /* a double may round up to the total */
    if (at >= before && at < before + own) token = token_in_run(v, first, end, before, at);
    return (uint32_t)team_max(team, token); /* 0 in the other warps */
}

/* Returns the view of a row before any filter.  Its keys need only tell logits apart that are near
 * enough to the best to have a weight. */
static __device__ struct view view_of(const float *x, const struct scan &scan, float temperature,
                                      uint32_t n, bool all) {
    const float max = value_of(scan.best);
    const float range = fminf(max - scan.min, all ? INFINITY : 104.0f * temperature);
    return {x, max, temperature, 0.0f, (float)NEAREST / range, 0, n, all};
}

static __device__ uint32_t draw(struct team *team, const struct device_sample &row, const float *x,
                                const struct scan &scan) {
    const struct sampler &s = row.sampler;
    if (s.temperature <= 0.0f) return token_of(scan.best);
    struct view v = view_of(x, scan, s.temperature, team->n, false);
    if (s.top_k > 0 && s.top_k < team->n) {
        v.low = select_low<false>(team, v, {s.top_k, 0.0f});
        v.n_kept = s.top_k;
    }
    v.min_p = s.min_p;
    if (s.top_p < 1.0f) v.low = select_low<true>(team, v, {0, s.top_p});
    return token_at(team, v, row.uniform);
}

/* ---- the rest of a row ---- */

/* Applies the mask of allowed tokens, penalties, biases and bans to the block's own slice, which no
 * other block reads. */
static __device__ const float *apply_penalties(const struct team &team,
                                               const struct device_sample &row,
                                               const float *logits) {
    const struct sampler &s = row.sampler;
    const auto is_own = [&](uint32_t token) { return token >= team.first && token < team.end; };
    float *x = row.changed;
    const uint32_t *allowed = row.allowed;
    for (uint32_t i = team.first + threadIdx.x; i < team.end; i += N_THREADS)
        x[i] = !allowed || (allowed[i / 32] >> i % 32 & 1) ? logits[i] : -INFINITY;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < row.n_bias; i += N_THREADS)
        if (is_own(row.bias[i].token))
            atomicAdd(&x[row.bias[i].token], row.bias[i].bias); /* a token may come twice */
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < row.n_banned; i += N_THREADS)
        if (is_own(row.banned[i])) x[row.banned[i]] = -INFINITY;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < row.n_counts; i += N_THREADS) {
        const struct token_count seen = row.counts[i];
        if (!is_own(seen.token)) continue;
        float logit = x[seen.token];
        logit = logit > 0.0f ? logit / s.repetition_penalty : logit * s.repetition_penalty;
        if (seen.n_output) logit -= s.frequency_penalty * (float)seen.n_output + s.presence_penalty;
        x[seen.token] = logit;
    }
    __syncthreads();
    return x;
}

/* Reports the best n_top of the unmodified logits, best first. */
static __device__ void report_top(struct team *team, const float *logits, uint32_t n_top,
                                  const struct scan &scan, struct sample_result *result) {
    struct view v = view_of(logits, scan, 1.0f, team->n, true);
    n_top = min(min(n_top, (uint32_t)SAMPLE_MAX_TOP), team->n);
    if (n_top == 0) return;
    v.low = select_low<false>(team, v, {n_top, 0.0f});
    collect<false>(team, v, {0, KEY_BITS});
    if (team->rank == 0 && threadIdx.x < n_top) {
        const uint32_t token = token_of(team->plan->sorted[threadIdx.x]);
        result->top[threadIdx.x] = {token, logits[token] - scan.lse};
        if (threadIdx.x == 0) result->n_top = n_top;
    }
    team_sync(); /* a block's list is readable only until the block ends */
}

/* Returns the token of the row, or sets *invalid. */
static __device__ uint32_t choose(struct team *team, const struct device_sample &row,
                                  const float *logits, const struct scan &scan, bool *invalid) {
    if (row.kind == SAMPLE_SCORE) return row.target;
    if (!row.changed) return draw(team, row, logits, scan);
    const float *x = apply_penalties(*team, row, logits);
    const struct scan changed = scan_row(team, x);
    *invalid = changed.invalid; /* no token is left */
    return changed.invalid ? 0 : draw(team, row, x, changed);
}

static __global__ void __launch_bounds__(N_THREADS, BLOCKS_AT_ONCE)
    sample_kernel(struct sample_params p) {
    extern __shared__ __align__(16) char shared[];
    let_next_start();
    struct team team = join_team(reinterpret_cast<struct plan *>(shared), p.n_vocab);
    team_sync(); /* no block may write to one that has not begun */
    wait_for_previous();
    const uint32_t i = blockIdx.x / team.n_blocks;
    const bool speaks = team.rank == 0 && threadIdx.x == 0;
    const struct device_sample row = p.rows[i];
    const float *logits = p.logits + (size_t)row.logit_row * p.n_vocab;
    struct sample_result *result = &p.results[i];
    const struct scan scan = scan_row(&team, logits);
    bool invalid = scan.invalid;
    uint32_t token = 0;
    if (!invalid) token = choose(&team, row, logits, scan, &invalid);
    if (speaks) {
        *result = (struct sample_result){.token = token, .invalid = invalid};
        p.sampled[i] = (int32_t)token;
    }
    if (invalid) return;
    const uint32_t rank = token == token_of(scan.best) ? 1 : rank_of(&team, logits, token);
    if (speaks) {
        result->logprob = logits[token] - scan.lse;
        result->rank = rank;
    }
    report_top(&team, logits, row.n_top, scan, result);
}

static uint32_t choose_team(const struct sample_params *p, uint32_t n_multiprocessors) {
    uint32_t n = runs_sm90_code(sample_kernel) ? TEAM_BLOCKS : 1;
    while (n > 1 && p->n * n > BLOCKS_AT_ONCE * n_multiprocessors && !p->fixed_teams) n /= 2;
    return n;
}

cudaError_t launch_sample(const struct sample_params *p, struct launch launch) {
    if (p->n == 0) return cudaSuccess;
    if (p->n_vocab > SAMPLE_MAX_VOCAB) return cudaErrorInvalidValue;
    const cudaError_t code = cudaFuncSetAttribute(
        sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(struct plan));
    if (code != cudaSuccess) return code;
    const uint32_t n_blocks = choose_team(p, launch.n_multiprocessors);
    return launch_clusters(launch, sample_kernel, n_blocks, p->n * n_blocks, N_THREADS,
                           sizeof(struct plan), *p);
}
