/* elementwise.cu - the operations that process each row on its own: embedding, norms, gate,
 * activation, gather, soft cap.  rope.cu has RoPE.
 *
 *   rows        bf16, row-major; strides in elements
 *
 * A thread moves 16 bytes of a row where width and addresses allow it, else an element.  The odd
 * widths are those of tests and tiny models, not of models that are served for speed.
 *
 * Bound: memory, each input and output once.     Oracle: engine/cpu/elementwise.c. */
#include "cuda/elementwise/vectors.cuh"
#include "engine/device/backend.h"
#include "engine/device/step.h"

enum { HELD = 4 }; /* vectors of a row that a thread of rmsnorm holds */

/* ---- embedding and gather: copies of rows ---- */

template <typename T> static __global__ void gather_kernel(struct gather_params p, uint32_t width) {
    let_next_start();
    wait_for_previous();
    const T *from = static_cast<const T *>(p.x) + (size_t)p.rows[blockIdx.x] * width;
    T *to = static_cast<T *>(p.out) + (size_t)blockIdx.x * width;
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) to[i] = from[i];
}

cudaError_t launch_gather(const struct gather_params *p, struct launch launch) {
    if (p->n == 0) return cudaSuccess;
    if (vectors_fit(p->dim, p->x, p->out))
        return launch_kernel(launch, gather_kernel<uint4>, p->n, 256, 0, *p, p->dim / VECTOR);
    return launch_kernel(launch, gather_kernel<bf16>, p->n, 256, 0, *p, p->dim);
}

static __device__ __forceinline__ size_t token_of(const struct device_step &step, size_t row) {
    const uint32_t token = (uint32_t)step.tokens[row];
    return token & STEP_SAMPLED ? (size_t)step.sampled[token & ~STEP_SAMPLED] : token;
}

static __global__ void embed_kernel(struct embed_params p) {
    const size_t row = blockIdx.x;
    let_next_start();
    wait_for_previous();
    if (row >= p.step->n_rows) return;
    const size_t token = token_of(*p.step, row);
    bf16 *out = static_cast<bf16 *>(p.out) + row * p.dim;
    for (uint32_t i = threadIdx.x; i < p.dim; i += blockDim.x)
        store_as(out + i, load_element(p.table, token * p.dim + i, p.element) * p.scale);
}

static __global__ void embed_vector_kernel(struct embed_params p) {
    const size_t row = blockIdx.x, width = p.dim / VECTOR;
    let_next_start();
    wait_for_previous();
    if (row >= p.step->n_rows) return;
    const uint4 *from = static_cast<const uint4 *>(p.table) + token_of(*p.step, row) * width;
    uint4 *to = static_cast<uint4 *>(p.out) + row * width;
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) to[i] = from[i];
}

cudaError_t launch_embed(const struct embed_params *p, struct launch launch) {
    const bool vectors =
        p->element == ELEMENT_BF16 && p->scale == 1.0f && vectors_fit(p->dim, p->table, p->out);
    if (p->n_rows == 0) return cudaSuccess;
    return launch_kernel(launch, vectors ? embed_vector_kernel : embed_kernel, p->n_rows, 256, 0,
                         *p);
}

static __global__ void add_positions_kernel(struct add_positions_params p) {
    const size_t row = blockIdx.x;
    let_next_start();
    wait_for_previous();
    if (row >= p.step->n_rows) return;
    const size_t at = (p.first + (size_t)(uint32_t)p.step->positions[row]) * p.dim;
    bf16 *x = static_cast<bf16 *>(p.x) + row * p.dim;
    for (uint32_t i = threadIdx.x; i < p.dim; i += blockDim.x)
        store_as(x + i, to_float(x[i]) + load_element(p.table, at + i, p.element));
}

cudaError_t launch_add_positions(const struct add_positions_params *p, struct launch launch) {
    if (p->n_rows == 0) return cudaSuccess;
    return launch_kernel(launch, add_positions_kernel, p->n_rows, 256, 0, *p);
}

/* ---- RMSNorm ---- */

/* Says whether the weight is read as vectors of 8 elements. */
static __device__ __forceinline__ bool has_weight_vectors(const struct rmsnorm_params &p) {
    return p.weight && p.element == ELEMENT_BF16 && reinterpret_cast<uintptr_t>(p.weight) % 16 == 0;
}

static __device__ __forceinline__ uint4 weight_vector(const struct rmsnorm_params &p, uint32_t i) {
    return __ldg(static_cast<const uint4 *>(p.weight) + i);
}

/* Converts elements 8 * i .. 8 * i + 7 of the weight; v is its vector i, if it has vectors. */
static __device__ __forceinline__ void unpack_weight(float *w, const struct rmsnorm_params &p,
                                                     uint4 v, uint32_t i) {
    if (has_weight_vectors(p)) {
        const uint32_t words[] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float2 f = unpack_bf16(words[j]);
            w[2 * j] = f.x;
            w[2 * j + 1] = f.y;
        }
    } else {
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            w[j] = p.weight ? load_element(p.weight, (size_t)i * VECTOR + j, p.element) : 1.0f;
    }
}

/* Stores a normalised vector at `out`, or adds it to what is there. */
static __device__ __forceinline__ void store_normalised(uint4 *out, uint4 v, float scale,
                                                        const float *w,
                                                        const struct rmsnorm_params &p) {
    const uint4 base = p.accumulate ? *out : make_uint4(0, 0, 0, 0);
    *out = make_uint4(scale_pair(v.x, scale, w[0], w[1], base.x, p.out_scale),
                      scale_pair(v.y, scale, w[2], w[3], base.y, p.out_scale),
                      scale_pair(v.z, scale, w[4], w[5], base.z, p.out_scale),
                      scale_pair(v.w, scale, w[6], w[7], base.w, p.out_scale));
}

/* Returns where the block's vector begins: head blockIdx.y of row blockIdx.x. */
static __device__ __forceinline__ size_t vector_at(const struct rmsnorm_params &p, size_t stride) {
    return blockIdx.x * stride + (size_t)blockIdx.y * p.dim;
}

/* Normalises one vector a block.  The first HELD vectors of a thread stay in registers between the
 * two passes; the weight's are read while the kernel before still runs.  Blocks are small, so that
 * many fit on a multiprocessor: the others read while one adds up. */
static __global__ void rmsnorm_vector_kernel(struct rmsnorm_params p) {
    __shared__ float shared[32];
    const uint32_t n = p.dim / VECTOR;
    uint4 held[HELD], weights[HELD] = {};
    float sum = 0.0f, w[VECTOR];
    let_next_start();
#pragma unroll
    for (uint32_t k = 0; k < HELD; k++) {
        const uint32_t i = threadIdx.x + k * blockDim.x;
        if (has_weight_vectors(p) && i < n) weights[k] = weight_vector(p, i);
    }
    wait_for_previous();
    const uint4 *x =
        reinterpret_cast<const uint4 *>(static_cast<const bf16 *>(p.x) + vector_at(p, p.x_stride));
    uint4 *out = reinterpret_cast<uint4 *>(static_cast<bf16 *>(p.out) + vector_at(p, p.out_stride));
#pragma unroll
    for (uint32_t k = 0; k < HELD; k++) {
        const uint32_t i = threadIdx.x + k * blockDim.x;
        held[k] = i < n ? x[i] : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (uint32_t k = 0; k < HELD; k++) sum += sum_squares(held[k]);
    const uint32_t rest = threadIdx.x + HELD * blockDim.x;
    for (uint32_t i = rest; i < n; i += blockDim.x) sum += sum_squares(x[i]);
    const float scale = rsqrtf(block_sum(sum, shared) / (float)p.dim + p.eps);
#pragma unroll
    for (uint32_t k = 0; k < HELD; k++) {
        const uint32_t i = threadIdx.x + k * blockDim.x;
        if (i >= n) break;
        unpack_weight(w, p, weights[k], i);
        store_normalised(out + i, held[k], scale, w, p);
    }
    for (uint32_t i = rest; i < n; i += blockDim.x) {
        if (has_weight_vectors(p)) weights[0] = weight_vector(p, i);
        unpack_weight(w, p, weights[0], i);
        store_normalised(out + i, x[i], scale, w, p);
    }
}

static __global__ void rmsnorm_kernel(struct rmsnorm_params p) {
    __shared__ float shared[32];
    float sum = 0.0f;
    let_next_start();
    wait_for_previous();
    const bf16 *x = static_cast<const bf16 *>(p.x) + vector_at(p, p.x_stride);
    bf16 *out = static_cast<bf16 *>(p.out) + vector_at(p, p.out_stride);
    for (uint32_t i = threadIdx.x; i < p.dim; i += blockDim.x)
        sum += to_float(x[i]) * to_float(x[i]);
    const float scale = rsqrtf(block_sum(sum, shared) / (float)p.dim + p.eps);
    for (uint32_t i = threadIdx.x; i < p.dim; i += blockDim.x)
        store_as(out + i, (to_float(x[i]) * scale *
                               (p.weight ? load_element(p.weight, i, p.element) : 1.0f) +
                           (p.accumulate ? to_float(out[i]) : 0.0f)) *
                              p.out_scale);
}

cudaError_t launch_rmsnorm(const struct rmsnorm_params *p, struct launch launch) {
    if (p->n_rows == 0) return cudaSuccess;
    const dim3 grid(p->n_rows, p->n_heads);
    const bool vectors =
        vectors_fit(p->dim, p->x, p->out) && (p->x_stride | p->out_stride) % VECTOR == 0;
    if (!vectors) return launch_kernel(launch, rmsnorm_kernel, grid, 256, 0, *p);
    const uint32_t n = (p->dim / VECTOR + 32 * HELD - 1) / (32 * HELD) * 32;
    return launch_kernel(launch, rmsnorm_vector_kernel, grid, n < 512 ? n : 512, 0, *p);
}

/* ---- LayerNorm ---- */

/* Normalises one row a block, in three passes.  The variance is that of the differences from the
 * mean, as on the CPU. */
static __global__ void layernorm_kernel(struct layernorm_params p) {
    __shared__ float shared[32];
    float sum = 0.0f, squares = 0.0f;
    let_next_start();
    wait_for_previous();
    const bf16 *x = static_cast<const bf16 *>(p.x) + (size_t)blockIdx.x * p.dim;
    bf16 *out = static_cast<bf16 *>(p.out) + (size_t)blockIdx.x * p.dim;
    for (uint32_t i = threadIdx.x; i < p.dim; i += blockDim.x) sum += to_float(x[i]);
    const float mean = block_sum(sum, shared) / (float)p.dim;
    for (uint32_t i = threadIdx.x; i < p.dim; i += blockDim.x) {
        const float difference = to_float(x[i]) - mean;
        squares += difference * difference;
    }
    __syncthreads(); /* all threads have read the first sum */
    const float scale = rsqrtf(block_sum(squares, shared) / (float)p.dim + p.eps);
    for (uint32_t i = threadIdx.x; i < p.dim; i += blockDim.x)
        store_as(out + i, (to_float(x[i]) - mean) * scale * load_element(p.weight, i, p.element) +
                              (p.bias ? load_element(p.bias, i, p.bias_element) : 0.0f));
}

cudaError_t launch_layernorm(const struct layernorm_params *p, struct launch launch) {
    if (p->n_rows == 0) return cudaSuccess;
    return launch_kernel(launch, layernorm_kernel, p->n_rows, 256, 0, *p);
}

/* ---- gate * up ---- */

static __device__ __forceinline__ uint32_t gate_mul_pair(uint32_t gate, uint32_t up,
                                                         enum gate_kind kind) {
    const float2 g = unpack_bf16(gate), u = unpack_bf16(up);
    return pack_bf16(gate_mul(g.x, u.x, kind), gate_mul(g.y, u.y, kind));
}

/* Computes part blockIdx.y of row blockIdx.x. */
static __global__ void gate_mul_vector_kernel(struct gate_mul_params p) {
    const uint32_t width = p.dim / VECTOR, at = blockIdx.y * blockDim.x + threadIdx.x;
    let_next_start();
    wait_for_previous();
    if (at >= width) return;
    const uint4 *from = static_cast<const uint4 *>(p.gate_up) + (size_t)blockIdx.x * 2 * width + at;
    const uint4 gate = from[0], up = from[width];
    static_cast<uint4 *>(p.out)[(size_t)blockIdx.x * width + at] =
        make_uint4(gate_mul_pair(gate.x, up.x, p.kind), gate_mul_pair(gate.y, up.y, p.kind),
                   gate_mul_pair(gate.z, up.z, p.kind), gate_mul_pair(gate.w, up.w, p.kind));
}

static __global__ void gate_mul_kernel(struct gate_mul_params p) {
    const uint32_t at = blockIdx.y * blockDim.x + threadIdx.x;
    let_next_start();
    wait_for_previous();
    if (at >= p.dim) return;
    const bf16 *gate = static_cast<const bf16 *>(p.gate_up) + (size_t)blockIdx.x * 2 * p.dim + at;
    store_as(static_cast<bf16 *>(p.out) + (size_t)blockIdx.x * p.dim + at,
             gate_mul(to_float(gate[0]), to_float(gate[p.dim]), p.kind));
}

cudaError_t launch_gate_mul(const struct gate_mul_params *p, struct launch launch) {
    const bool vectors = vectors_fit(p->dim, p->gate_up, p->out);
    const uint32_t width = p->dim / (vectors ? VECTOR : 1);
    if (p->n_rows == 0 || width == 0) return cudaSuccess;
    return launch_kernel(launch, vectors ? gate_mul_vector_kernel : gate_mul_kernel,
                         dim3(p->n_rows, (width + 255) / 256), 256, 0, *p);
}

/* ---- activation ---- */

static __device__ __forceinline__ float activated(float x, enum act_kind kind) {
    if (kind == ACT_GELU) return x * normcdff(x);
    if (kind == ACT_GELU_TANH) return gate_mul(x, 1.0f, GATE_GELU);
    return x < 0.0f ? 0.0f : x;
}

static __global__ void activate_kernel(struct activate_params p) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    let_next_start();
    wait_for_previous();
    bf16 *x = static_cast<bf16 *>(p.x);
    if (i < p.n) store_as(x + i, activated(to_float(x[i]), p.kind));
}

cudaError_t launch_activate(const struct activate_params *p, struct launch launch) {
    if (p->n == 0) return cudaSuccess;
    return launch_kernel(launch, activate_kernel, (uint32_t)((p->n + 255) / 256), 256, 0, *p);
}

/* ---- soft cap ---- */

static __global__ void soft_cap_kernel(struct soft_cap_params p) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    let_next_start();
    wait_for_previous();
    if (i < p.n) p.x[i] = score_of(p.scale, p.x[i]);
}

cudaError_t launch_soft_cap(const struct soft_cap_params *p, struct launch launch) {
    if (p->n == 0) return cudaSuccess;
    return launch_kernel(launch, soft_cap_kernel, (uint32_t)((p->n + 255) / 256), 256, 0, *p);
}
