/* route.cu - which experts a row uses, and their shares (engine/device/experts.h).
 *
 * A warp has a row.  Its lanes hold the shares of all experts in shared memory, and what is
 * compared as numbers whose order is that of the floats.
 *
 * Grid:   ROWS rows a block.      Shared: three words for each expert of each row.
 * Bound:  none: it is latency.    Oracle: the definition, in double (tests/cpu/router_oracle.h). */
#include "cuda/common/sm90.cuh"
#include "cuda/experts/expert_kernels.h"

enum { ROWS = 4, TAKEN = 0 };

/* Of the kernel for few rows: blocks of a cluster, warps of a block, the most rows and columns. */
enum { FEW_BLOCKS = 8, FEW_WARPS = 8, FEW_ROWS = 16, FEW_COLUMNS = 8192 };

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
    choose_row(p, row, p.logits + (size_t)row * p.n_experts, p.gates ? sigmoid(p.gates[row]) : 1.0f,
               memory + warp * 3 * p.n_experts);
}

/* ---- few rows: logits and choice in one kernel ---- */

/* A warp's share of the products: the experts of its block are dealt to warps, and an expert's
 * columns to lanes.  Number i of its vectors of 8 columns: */
struct router_share {
    const struct router_params &p;
    uint32_t first, n_own, a_row; /* experts of the block; vectors of an expert that a lane has */

    __device__ __forceinline__ uint32_t expert(uint32_t i) const {
        return first + threadIdx.x / 32 + i / a_row * FEW_WARPS;
    }
    __device__ __forceinline__ uint32_t column(uint32_t i) const {
        return (i % a_row * 32 + threadIdx.x % 32) * 8;
    }
    __device__ __forceinline__ uint4 load(uint32_t i) const {
        const uint32_t e = expert(i), c = column(i);
        if (e >= first + n_own || c >= p.dim) return make_uint4(0, 0, 0, 0);
        const __nv_bfloat16 *row =
            e < p.choose.n_experts
                ? static_cast<const __nv_bfloat16 *>(p.router) + (size_t)e * p.dim
                : static_cast<const __nv_bfloat16 *>(p.shared_gate);
        return __ldg(reinterpret_cast<const uint4 *>(row + c));
    }
};

/* Stores x at this place of the shared memory of a block of the cluster. */
static __device__ __forceinline__ void store_remote(const float *at, uint32_t block, float x) {
    asm volatile("{\n.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "st.shared::cluster.f32 [there], %2;\n}" ::"r"(shared_at(at).address),
                 "r"(block), "f"(x)
                 : "memory");
}

static __device__ __forceinline__ float dot(uint4 a, uint4 b, float sum) {
    const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 f = unpack_bf16(x[i]), g = unpack_bf16(y[i]);
        sum = fmaf(f.x, g.x, fmaf(f.y, g.y, sum));
    }
    return sum;
}

/* Routes a row by a cluster, whose blocks have some experts each.  The first weights are on their
 * way before the wait, because they never change.  The cluster's first block chooses.
 *
 *   shared  x [dim] bf16 | logits [n_experts + 1] | what choose_row() needs */
static __global__ void __launch_bounds__(32 * FEW_WARPS)
    few_rows_kernel(const __grid_constant__ struct router_params p) {
#if __CUDA_ARCH__ >= 900
    enum { AHEAD = 16 };
    extern __shared__ __align__(16) uint32_t memory[];
    const uint32_t row = blockIdx.x / FEW_BLOCKS, rank = blockIdx.x % FEW_BLOCKS,
                   n_all = p.choose.n_experts + (p.shared_gate != nullptr),
                   each = (n_all + FEW_BLOCKS - 1) / FEW_BLOCKS, first = min(rank * each, n_all);
    const struct router_share share = {p, first, min(each, n_all - first), (p.dim / 8 + 31) / 32};
    const uint32_t n = (each + FEW_WARPS - 1) / FEW_WARPS * share.a_row;
    float *logits = reinterpret_cast<float *>(memory + p.dim / 2), sum = 0.0f;
    uint4 w[AHEAD];
    let_next_start();
#pragma unroll
    for (int i = 0; i < AHEAD; i++) w[i] = share.load(i);
    cluster_arrive_relaxed(); /* the first block's memory is there */
    wait_for_previous();
    const __nv_bfloat16 *x = static_cast<const __nv_bfloat16 *>(p.x) + (size_t)row * p.dim;
    for (uint32_t v = threadIdx.x; v < p.dim / 8; v += 32 * FEW_WARPS)
        reinterpret_cast<uint4 *>(memory)[v] = reinterpret_cast<const uint4 *>(x)[v];
    __syncthreads();
    cluster_wait();
    for (uint32_t begin = 0; begin < n; begin += AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const uint32_t at = begin + i, c = share.column(at), e = share.expert(at);
            if (at >= n) break;
            if (c < p.dim) sum = dot(w[i], *reinterpret_cast<const uint4 *>(memory + c / 2), sum);
            if (at % share.a_row < share.a_row - 1) continue;
            sum = warp_sum(sum);
            if (threadIdx.x % 32 == 0 && e < first + share.n_own) store_remote(&logits[e], 0, sum);
            sum = 0.0f;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) w[i] = share.load(begin + AHEAD + i);
    }
    cluster_arrive();
    cluster_wait();
    if (rank == 0 && threadIdx.x < 32)
        choose_row(p.choose, row, logits,
                   p.shared_gate ? sigmoid(logits[p.choose.n_experts]) : 1.0f,
                   memory + p.dim / 2 + n_all);
#endif
}

/* Says whether this device runs the kernel for few rows, and x and the router suit it. */
extern "C" bool router_takes(const struct router_params *p, struct launch launch) {
    return launch.overlap && p->choose.n_rows <= FEW_ROWS && p->dim % 8 == 0 &&
           p->dim <= FEW_COLUMNS;
}

extern "C" cudaError_t launch_router(const struct router_params *p, struct launch launch) {
    const size_t shared_bytes =
        p->dim * sizeof(__nv_bfloat16) + (4 * p->choose.n_experts + 1) * sizeof(uint32_t);
    if (p->choose.n_rows == 0) return cudaSuccess;
    return launch_clusters(launch, few_rows_kernel, FEW_BLOCKS, dim3(FEW_BLOCKS * p->choose.n_rows),
                           dim3(32 * FEW_WARPS), shared_bytes, *p);
}

extern "C" cudaError_t launch_choose(const struct choose_params *p, struct launch launch) {
    const size_t shared_bytes = (size_t)ROWS * 3 * p->n_experts * sizeof(uint32_t);
    if (p->n_rows == 0) return cudaSuccess;
    return launch_kernel(launch, choose_kernel, dim3((p->n_rows + ROWS - 1) / ROWS),
                         dim3(32 * ROWS), shared_bytes, *p);
}
