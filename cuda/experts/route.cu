/* route.cu - which experts a row uses, and their shares (engine/device/experts.h).
 *
 *   few rows   many blocks normalise a row and make its logits, so that many multiprocessors read
 *              the router
 *   choice     a warp has a row.  Its lanes hold the shares of all experts in registers, or in
 *              shared memory where they are many or in groups.  What is compared are numbers whose
 *              order is that of the floats
 *   of few     a block has a row.  All its warps hold the shares, and each thread counts the
 *              experts that come before its own, so that no expert waits for another one's rank
 *
 * Grid:   FEW_WARPS experts a block, rows; ROWS rows a block; a row a block.
 * Shared: a row; three words for each expert of each row; a word for each expert.
 * Bound:  none: it is latency.    Oracle: the definition, in double (tests/cpu/router_oracle.h). */
#include "cuda/common/device.cuh"
#include "cuda/experts/expert_kernels.h"

enum { ROWS = 4, TAKEN = 0 };
enum { COUNTED_ROWS = 4 }; /* of 16 rows a warp each is faster */

/* Of the kernel for few rows: warps of a block, the most rows and columns. */
enum { FEW_WARPS = 4, FEW_ROWS = 16, FEW_COLUMNS = 8192 };
enum { LANE_EXPERTS = 8 }; /* that a lane has in registers, at most */

static constexpr float LEAST_SUM = 1e-20f; /* shares of 0 stay 0 when they are divided by it */

/* Returns a number, not TAKEN, that is larger where x is; -0 and 0 have the same. */
static __device__ __forceinline__ uint32_t order_of(float x) {
    const uint32_t bits = __float_as_uint(x + 0.0f);
    return max(bits >> 31 ? ~bits : bits | 0x80000000u, TAKEN + 1u);
}

static __device__ __forceinline__ float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

/* Takes the largest of n keys, the first of equal ones, and returns its number.  All lanes call
 * it. */
static __device__ __forceinline__ uint32_t take_largest(uint32_t *keys, uint32_t n, uint32_t lane) {
    uint32_t best = TAKEN, at = 0;
    for (uint32_t i = lane; i < n; i += 32)
        if (keys[i] > best) best = keys[i], at = i;
    const uint32_t most = __reduce_max_sync(0xffffffffu, best),
                   first = __reduce_min_sync(0xffffffffu, best == most ? at : UINT32_MAX);
    __syncwarp();
    if (lane == 0) keys[first] = TAKEN;
    __syncwarp();
    return first;
}

/* ---- the choice, in registers ---- */

/* Says whether lanes can hold all shares in registers. */
static __host__ __device__ __forceinline__ bool fits_lanes(const struct choose_params &p) {
    return p.routing.n_groups <= 1 && p.n_experts <= 32 * LANE_EXPERTS && p.n_used <= 32;
}

/* Chooses among up to 32 * K experts without groups, at most 32 of them.  Lane i has experts i, i +
 * 32 and so on; then it has rank i.  The sums have the order that those in shared memory have. */
template <int K> struct lane_choice {
    const struct choose_params &p;
    uint32_t lane;
    float share[K];
    uint32_t key[K];

    __device__ __forceinline__ uint32_t expert(int k) const { return lane + 32 * k; }

    __device__ __forceinline__ void load(const float *logits) {
#pragma unroll
        for (int k = 0; k < K; k++) {
            const uint32_t e = expert(k);
            share[k] = -INFINITY;
            if (e >= p.n_experts) continue;
            share[k] = logits[e] + (p.bias ? load_element(p.bias, e, p.bias_dtype) : 0.0f);
            if (p.routing.kind == ROUTE_SIGMOID) share[k] = sigmoid(share[k]);
        }
    }

    __device__ __forceinline__ void softmax_all() {
        float most = -INFINITY, sum = 0.0f;
#pragma unroll
        for (int k = 0; k < K; k++) most = fmaxf(most, share[k]);
        most = warp_max(most);
#pragma unroll
        for (int k = 0; k < K; k++)
            if (expert(k) < p.n_experts) sum += share[k] = expf(share[k] - most);
        sum = warp_sum(sum);
#pragma unroll
        for (int k = 0; k < K; k++) share[k] /= sum;
    }

    __device__ __forceinline__ void make_keys() {
#pragma unroll
        for (int k = 0; k < K; k++) {
            const bool exists = expert(k) < p.n_experts;
            const float bias = exists && p.choice_bias
                                   ? load_element(p.choice_bias, expert(k), p.choice_bias_dtype)
                                   : 0.0f;
            key[k] = exists ? order_of(share[k] + bias) : TAKEN;
        }
    }

    /* Takes the largest, the first of equal ones, and returns its number. */
    __device__ __forceinline__ uint32_t take() {
        uint32_t best = TAKEN, at = UINT32_MAX;
#pragma unroll
        for (int k = 0; k < K; k++)
            if (key[k] > best) best = key[k], at = expert(k);
        const uint32_t most = __reduce_max_sync(~0u, best),
                       first = __reduce_min_sync(~0u, best == most ? at : UINT32_MAX);
#pragma unroll
        for (int k = 0; k < K; k++)
            if (expert(k) == first) key[k] = TAKEN;
        return first;
    }

    /* Returns an expert's share, which another lane may have. */
    __device__ __forceinline__ float share_of(uint32_t e) const {
        float x = 0.0f;
#pragma unroll
        for (int k = 0; k < K; k++) {
            const float other = __shfl_sync(~0u, share[k], e % 32);
            if (e / 32 == k) x = other;
        }
        return x;
    }

    /* Sets shares and keys. */
    __device__ __forceinline__ void begin(const float *logits) {
        load(logits);
        if (p.routing.kind == ROUTE_SOFTMAX) softmax_all();
        make_keys();
    }

    __device__ __forceinline__ void choose(uint32_t row, const float *logits, float gate) {
        uint32_t own = 0;
        begin(logits);
        for (uint32_t rank = 0; rank < p.n_used; rank++) {
            const uint32_t e = take();
            if (rank == lane) own = e;
        }
        finish(row, own, share_of(own), gate);
    }

    /* Makes x, the share of the expert of the lane's rank, final, and stores both. */
    __device__ __forceinline__ void finish(uint32_t row, uint32_t own, float x, float gate) const {
        const struct routing &r = p.routing;
        const bool is_rank = lane < p.n_used;
        if (r.kind == ROUTE_SOFTMAX_CHOSEN) {
            const float most = warp_max(is_rank ? x : -INFINITY);
            x = is_rank ? expf(x - most) : 0.0f;
            x /= warp_sum(x);
        }
        const float sum = LEAST_SUM + warp_sum(is_rank ? x : 0.0f);
        x = (r.normalises ? x / sum : x) * r.factor;
        if (p.factors && is_rank) x *= load_element(p.factors, own, p.factors_dtype);
        float *shares = p.shares + (size_t)row * (p.n_used + 1);
        if (is_rank) {
            p.experts[(size_t)row * p.n_used + lane] = own;
            shares[lane] = x;
        }
        if (lane == 0) shares[p.n_used] = r.shared * gate;
    }
};

/* ---- the choice, in shared memory ---- */

struct row_choice {
    const struct choose_params &p;
    float *shares;  /* [n_experts] */
    uint32_t *keys; /* [n_experts] */
    uint32_t lane;

    /* Returns what is compared of an expert. */
    __device__ __forceinline__ float compared(uint32_t expert) const {
        const float bias =
            p.choice_bias ? load_element(p.choice_bias, expert, p.choice_bias_dtype) : 0.0f;
        return shares[expert] + bias;
    }

    __device__ __forceinline__ void make_keys() {
        for (uint32_t e = lane; e < p.n_experts; e += 32) keys[e] = order_of(compared(e));
        __syncwarp();
    }

    /* Makes n numbers their softmax. */
    __device__ __forceinline__ void softmax(float *x, uint32_t n) const {
        float most = -INFINITY, sum = 0.0f;
        for (uint32_t i = lane; i < n; i += 32) most = fmaxf(most, x[i]);
        most = warp_max(most);
        for (uint32_t i = lane; i < n; i += 32) sum += x[i] = expf(x[i] - most);
        sum = warp_sum(sum);
        for (uint32_t i = lane; i < n; i += 32) x[i] /= sum;
        __syncwarp();
    }

    /* Loads logits and makes them shares, but for those that depend on the choice. */
    __device__ __forceinline__ void load(const float *logits) {
        for (uint32_t e = lane; e < p.n_experts; e += 32) {
            const float x = logits[e] + (p.bias ? load_element(p.bias, e, p.bias_dtype) : 0.0f);
            shares[e] = p.routing.kind == ROUTE_SIGMOID ? sigmoid(x) : x;
        }
        __syncwarp();
        if (p.routing.kind == ROUTE_SOFTMAX) softmax(shares, p.n_experts);
    }

    /* Takes the experts of groups that are not used.  groups [n_groups]: keys of groups. */
    __device__ __forceinline__ void leave_groups_out(uint32_t *groups) {
        const uint32_t size = p.n_experts / p.routing.n_groups;
        for (uint32_t g = 0; g < p.routing.n_groups; g++) {
            const uint32_t a = take_largest(keys + g * size, size, lane),
                           b = size > 1 ? take_largest(keys + g * size, size, lane) : a;
            if (lane == 0) groups[g] = order_of(compared(g * size + a) + compared(g * size + b));
        }
        __syncwarp();
        make_keys();
        for (uint32_t i = 0; i < p.routing.n_used_groups; i++)
            take_largest(groups, p.routing.n_groups, lane);
        for (uint32_t e = lane; e < p.n_experts; e += 32)
            if (groups[e / size] != TAKEN) keys[e] = TAKEN;
        __syncwarp();
    }

    /* Makes the shares of the chosen experts final. */
    __device__ __forceinline__ void finish(float *chosen, const uint32_t *experts,
                                           float gate) const {
        const struct routing &r = p.routing;
        float sum = 0.0f;
        if (r.kind == ROUTE_SOFTMAX_CHOSEN) softmax(chosen, p.n_used);
        for (uint32_t i = lane; i < p.n_used; i += 32) sum += chosen[i];
        sum = LEAST_SUM + warp_sum(sum);
        for (uint32_t i = lane; i < p.n_used; i += 32)
            chosen[i] = (r.normalises ? chosen[i] / sum : chosen[i]) * r.factor *
                        (p.factors ? load_element(p.factors, experts[i], p.factors_dtype) : 1.0f);
        if (lane == 0) chosen[p.n_used] = r.shared * gate;
    }
};

/* Chooses the experts of a row.  own [3 * n_experts]: shared memory of the warp. */
static __device__ __forceinline__ void choose_row(const struct choose_params &p, uint32_t row,
                                                  const float *logits, float gate, uint32_t *own) {
    struct row_choice c = {p, reinterpret_cast<float *>(own), own + p.n_experts, threadIdx.x % 32};
    float *chosen = p.shares + (size_t)row * (p.n_used + 1);
    c.load(logits);
    c.make_keys();
    if (p.routing.n_groups > 1) c.leave_groups_out(own + 2 * p.n_experts);
    for (uint32_t r = 0; r < p.n_used; r++) {
        const uint32_t expert = take_largest(c.keys, p.n_experts, c.lane);
        if (c.lane != r % 32) continue;
        p.experts[(size_t)row * p.n_used + r] = expert;
        chosen[r] = c.shares[expert];
    }
    __syncwarp();
    c.finish(chosen, p.experts + (size_t)row * p.n_used, gate);
}

static __global__ void __launch_bounds__(32 * ROWS)
    choose_kernel(const __grid_constant__ struct choose_params p) {
    extern __shared__ uint32_t memory[];
    const uint32_t warp = threadIdx.x / 32, row = blockIdx.x * ROWS + warp;
    let_next_start();
    wait_for_previous();
    if (row >= p.n_rows) return;
    const float *logits = p.logits + (size_t)row * p.n_experts,
                gate = p.gates ? sigmoid(p.gates[row]) : 1.0f;
    if (!fits_lanes(p)) {
        choose_row(p, row, logits, gate, memory + warp * 3 * p.n_experts);
    } else if (p.n_experts <= 128) {
        struct lane_choice<4> c = {
            p, threadIdx.x % 32
        };
        c.choose(row, logits, gate);
    } else {
        struct lane_choice<LANE_EXPERTS> c = {
            p, threadIdx.x % 32
        };
        c.choose(row, logits, gate);
    }
}

/* ---- the choice of few rows ---- */

/* Returns how many of 32 experts, from number `first` on, come before expert `own` with this key.
 * Of equal keys that of the lower number does. */
static __device__ __forceinline__ uint32_t count_before(const uint32_t *keys, uint32_t first,
                                                        uint32_t own, uint32_t key) {
    const uint4 *vectors = reinterpret_cast<const uint4 *>(keys + first);
    uint32_t n[4] = {};
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        const uint4 v = vectors[i];
        const uint32_t others[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            const uint32_t least = first + 4 * i + j < own ? key : key + 1;
            n[j] += others[j] >= least;
        }
    }
    return (n[0] + n[1]) + (n[2] + n[3]);
}

/* Chooses by K warps, which hold K experts in each lane.  Each thread counts for one of them. */
template <int K>
static __global__ void __launch_bounds__(32 * K)
    choose_few_kernel(const __grid_constant__ struct choose_params p) {
    __shared__ __align__(16) uint32_t keys[32 * K];
    __shared__ uint32_t experts[32];
    __shared__ float shares[32];
    const uint32_t row = blockIdx.x, warp = threadIdx.x / 32, own = threadIdx.x;
    struct lane_choice<K> c = {
        p, threadIdx.x % 32
    };
    uint32_t key = TAKEN, rank = 0;
    float share = 0.0f;
    let_next_start();
    wait_for_previous();
    c.begin(p.logits + (size_t)row * p.n_experts);
#pragma unroll
    for (int k = 0; k < K; k++)
        if (k == (int)warp) {
            key = min(c.key[k], UINT32_MAX - 1); /* count_before() adds 1 */
            share = c.share[k];
        }
    keys[own] = key;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < K; k++) rank += count_before(keys, 32 * k, own, key);
    if (own < p.n_experts && rank < p.n_used) {
        experts[rank] = own;
        shares[rank] = share;
    }
    __syncthreads();
    if (warp == 0)
        c.finish(row, experts[min(c.lane, p.n_used - 1)], shares[min(c.lane, p.n_used - 1)],
                 p.gates ? sigmoid(p.gates[row]) : 1.0f);
}

/* ---- few rows: the norm and the logits in one kernel ---- */

static __device__ __forceinline__ float dot(uint4 a, uint4 b, float sum) {
    const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 f = unpack_bf16(x[i]), g = unpack_bf16(y[i]);
        sum = fmaf(f.x, g.x, fmaf(f.y, g.y, sum));
    }
    return sum;
}

/* Returns the router's row of an expert, or the shared expert's gate behind them; NULL behind
 * that. */
static __device__ __forceinline__ const uint4 *weights_of(const struct router_params &p,
                                                          uint32_t expert) {
    const uint32_t n = p.n_experts;
    if (expert < n) return static_cast<const uint4 *>(p.router) + (size_t)expert * (p.dim / 8);
    return expert == n ? static_cast<const uint4 *>(p.shared_gate) : nullptr;
}

/* A thread's share of a row, in vectors of 8 columns: each THREADS-th. */
struct router_row {
    enum { THREADS = 32 * FEW_WARPS, HELD = FEW_COLUMNS / 8 / THREADS };
    const struct router_params &p;
    uint4 x[HELD], weights[HELD]; /* of the norm */

    __device__ __forceinline__ bool has(int k) const {
        return threadIdx.x + k * THREADS < p.dim / 8;
    }
    __device__ __forceinline__ void load_weights() {
#pragma unroll
        for (int k = 0; k < HELD; k++)
            if (has(k))
                weights[k] = __ldg(static_cast<const uint4 *>(p.norm) + threadIdx.x + k * THREADS);
    }
    __device__ __forceinline__ void load(uint32_t row) {
        const uint4 *from = static_cast<const uint4 *>(p.x) + (size_t)row * (p.dim / 8);
#pragma unroll
        for (int k = 0; k < HELD; k++)
            x[k] = has(k) ? from[threadIdx.x + k * THREADS] : make_uint4(0, 0, 0, 0);
    }
    /* shared: a float for each warp. */
    __device__ __forceinline__ void normalise(float *shared) {
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < HELD; k++) sum += sum_squares(x[k]);
        const float scale = rsqrtf(block_sum(sum, shared) / (float)p.dim + p.eps);
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            uint32_t *words = &x[k].x;
            const uint32_t w[4] = {weights[k].x, weights[k].y, weights[k].z, weights[k].w};
            if (!has(k)) break;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 f = unpack_bf16(words[i]), g = unpack_bf16(w[i]);
                words[i] = pack_bf16(f.x * scale * g.x, f.y * scale * g.y);
            }
        }
    }
    __device__ __forceinline__ void store(uint4 *to) const {
#pragma unroll
        for (int k = 0; k < HELD; k++)
            if (has(k)) to[threadIdx.x + k * THREADS] = x[k];
    }
};

/* Makes the logits of a row and FEW_WARPS experts, a warp each.  Every block normalises the row, if
 * that is asked for, and has it in shared memory; the first one leaves it for the experts.  The
 * first weights are on their way before the wait, because they never change. */
static __global__ void __launch_bounds__(32 * FEW_WARPS)
    few_rows_kernel(const __grid_constant__ struct router_params p) {
    enum { AHEAD = 8 };
    extern __shared__ __align__(16) uint4 x[];
    __shared__ float shared[FEW_WARPS];
    const uint32_t row = blockIdx.y, lane = threadIdx.x % 32, n = p.dim / 8,
                   expert = blockIdx.x * FEW_WARPS + threadIdx.x / 32;
    const uint4 *weights = weights_of(p, expert);
    uint4 w[AHEAD];
    struct router_row own = {p};
    float sum = 0.0f;
    let_next_start();
    if (p.norm) own.load_weights();
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (weights && i * 32 + lane < n) w[i] = __ldg(weights + i * 32 + lane);
    wait_for_previous();
    own.load(row);
    if (p.norm) own.normalise(shared);
    own.store(x);
    if (p.norm && blockIdx.x == 0) own.store(static_cast<uint4 *>(p.normed) + (size_t)row * n);
    __syncthreads();
    if (!weights) return;
    for (uint32_t begin = 0; begin < n; begin += AHEAD * 32) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const uint32_t at = begin + i * 32 + lane, next = at + AHEAD * 32;
            if (at < n) sum = dot(w[i], x[at], sum);
            if (next < n) w[i] = __ldg(weights + next);
        }
    }
    sum = warp_sum(sum);
    if (lane > 0) return;
    if (expert < p.n_experts) p.logits[(size_t)row * p.n_experts + expert] = sum;
    else p.gates[row] = sum;
}

/* Says whether this device runs the kernel for few rows, and x and the router suit it. */
extern "C" bool router_takes(const struct router_params *p, struct launch launch) {
    return launch.overlap && p->n_rows <= FEW_ROWS && p->dim % 8 == 0 && p->dim <= FEW_COLUMNS;
}

extern "C" cudaError_t launch_router(const struct router_params *p, struct launch launch) {
    const uint32_t n = p->n_experts + (p->shared_gate != NULL);
    if (p->n_rows == 0) return cudaSuccess;
    return launch_kernel(launch, few_rows_kernel, dim3((n + FEW_WARPS - 1) / FEW_WARPS, p->n_rows),
                         dim3(32 * FEW_WARPS), p->dim * sizeof(__nv_bfloat16), *p);
}

extern "C" cudaError_t launch_choose(const struct choose_params *p, struct launch launch) {
    const size_t shared_bytes = (size_t)ROWS * 3 * p->n_experts * sizeof(uint32_t);
    if (p->n_rows == 0) return cudaSuccess;
    if (p->n_rows <= COUNTED_ROWS && fits_lanes(*p))
        return launch_kernel(
            launch, p->n_experts <= 128 ? choose_few_kernel<4> : choose_few_kernel<LANE_EXPERTS>,
            dim3(p->n_rows), dim3(p->n_experts <= 128 ? 128 : 32 * LANE_EXPERTS), 0, *p);
    return launch_kernel(launch, choose_kernel, dim3((p->n_rows + ROWS - 1) / ROWS),
                         dim3(32 * ROWS), shared_bytes, *p);
}
