/* route.cu - which experts a row uses, and their shares (engine/device/experts.h).
 *
 * A warp has a row.  Its lanes hold the shares of all experts in shared memory, and what is
 * compared as numbers whose order is that of the floats.
 *
 * Grid:   ROWS rows a block.      Shared: three words for each expert of each row.
 * Bound:  none: it is latency.    Oracle: the definition, in double (tests/cpu/router_oracle.h). */
#include "cuda/common/device.cuh"
#include "cuda/experts/expert_product.h"

enum { ROWS = 4, TAKEN = 0 };

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
    __device__ __forceinline__ void finish(float *chosen, float gate) const {
        const struct routing &r = p.routing;
        float sum = 0.0f;
        if (r.kind == ROUTE_SOFTMAX_CHOSEN) softmax(chosen, p.n_used);
        for (uint32_t i = lane; i < p.n_used; i += 32) sum += chosen[i];
        sum = LEAST_SUM + warp_sum(sum);
        for (uint32_t i = lane; i < p.n_used; i += 32)
            chosen[i] = (r.normalises ? chosen[i] / sum : chosen[i]) * r.factor;
        if (lane == 0) chosen[p.n_used] = r.shared * gate;
    }
};

static __global__ void __launch_bounds__(32 * ROWS)
    choose_kernel(const __grid_constant__ struct choose_params p) {
    extern __shared__ uint32_t memory[];
    const uint32_t warp = threadIdx.x / 32, row = blockIdx.x * ROWS + warp;
    uint32_t *own = memory + warp * 3 * p.n_experts;
    struct row_choice c = {p, reinterpret_cast<float *>(own), own + p.n_experts, threadIdx.x % 32};
    let_next_start();
    wait_for_previous();
    if (row >= p.n_rows) return;
    float *chosen = p.shares + (size_t)row * (p.n_used + 1);
    c.load(p.logits + (size_t)row * p.n_experts);
    c.make_keys();
    if (p.routing.n_groups > 1) c.leave_groups_out(own + 2 * p.n_experts);
    for (uint32_t r = 0; r < p.n_used; r++) {
        const uint32_t expert = take_largest(c.keys, p.n_experts, c.lane);
        if (c.lane != r % 32) continue;
        p.experts[(size_t)row * p.n_used + r] = expert;
        chosen[r] = c.shares[expert];
    }
    __syncwarp();
    c.finish(chosen, p.gates ? sigmoid(p.gates[row]) : 1.0f);
}

extern "C" cudaError_t launch_choose(const struct choose_params *p, struct launch launch) {
    const size_t shared_bytes = (size_t)ROWS * 3 * p->n_experts * sizeof(uint32_t);
    if (p->n_rows == 0) return cudaSuccess;
    return launch_kernel(launch, choose_kernel, dim3((p->n_rows + ROWS - 1) / ROWS),
                         dim3(32 * ROWS), shared_bytes, *p);
}
