/* quantise.cu - rows of activations as E4M3 with scales: what products of E4M3 with E4M3 read.
 *
 *   codes    E4M3 [n_rows, dim]
 *   scales   f32: [n_rows], or of groups of QUANTISE_GROUP columns
 *            [dim / QUANTISE_GROUP][scale_stride], row after row
 *
 * A scale makes the largest element of its row or group E4M3's largest, 448.  A row is also
 * normalised on the way, or is gate * up, so neither is written as bf16 and read again.
 *
 * Grid:   one block per row; a thread holds up to MOST_HELD vectors of 8 elements in registers, as
 *         bf16, so that a multiprocessor has more rows at a time.
 * Bound:  memory, each input and output once.     Oracle: tests/cuda/test_rounded.c. */
#include "cuda/common/device.cuh"

typedef __nv_bfloat16 bf16;

enum { VECTOR = 8, GROUP_LANES = QUANTISE_GROUP / VECTOR };
enum { FEW_HELD = 4, MOST_HELD = 8, MOST_THREADS = 1024 }; /* vectors of a thread; of a block */

enum quantise_source { FROM_ROWS, FROM_NORM, FROM_GATE };

/* Returns the maximum over a block of whole warps, in every thread.  `shared` holds one float a
 * warp. */
static __device__ __forceinline__ float block_max(float x, float *shared) {
    x = warp_max(x);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_max(threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : 0.0f);
}

static __device__ __forceinline__ void unpack_eight(uint4 v, float (&x)[VECTOR]) {
    const uint32_t words[] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < VECTOR / 2; i++) {
        const float2 f = unpack_bf16(words[i]);
        x[2 * i] = f.x, x[2 * i + 1] = f.y;
    }
}

static __device__ __forceinline__ uint32_t gate_pair(uint32_t gate, uint32_t up,
                                                     enum gate_kind kind) {
    const float2 g = unpack_bf16(gate), u = unpack_bf16(up);
    return pack_bf16(gate_mul_short(g.x, u.x, kind), gate_mul_short(g.y, u.y, kind));
}

/* Reads the thread's vectors of the block's row, which stay bf16 because registers then hold more
 * rows at a time.  A gate's results are rounded to bf16, as they are where nothing is quantised. */
template <enum quantise_source FROM, int HELD>
static __device__ __forceinline__ void read_row(const struct quantise_params &p,
                                                uint4 (&held)[HELD]) {
    const uint32_t n = p.dim / VECTOR;
    const uint4 *from =
        static_cast<const uint4 *>(p.x) + (size_t)blockIdx.x * (FROM == FROM_GATE ? 2 * n : n);
    uint4 up[HELD];
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const uint32_t i = threadIdx.x + k * blockDim.x;
        held[k] = i < n ? from[i] : make_uint4(0, 0, 0, 0);
        if (FROM == FROM_GATE) up[k] = i < n ? from[i + n] : make_uint4(0, 0, 0, 0);
    }
    if constexpr (FROM == FROM_GATE) {
#pragma unroll
        for (int k = 0; k < HELD; k++)
            held[k] = make_uint4(
                gate_pair(held[k].x, up[k].x, p.kind), gate_pair(held[k].y, up[k].y, p.kind),
                gate_pair(held[k].z, up[k].z, p.kind), gate_pair(held[k].w, up[k].w, p.kind));
    }
}

/* Reads the weights of the norm for the thread's vectors, if they are bf16.  They never change, so
 * this may come before the wait for the kernel before. */
template <enum quantise_source FROM, int HELD>
static __device__ __forceinline__ void read_weights(const struct quantise_params &p,
                                                    uint4 (&weights)[HELD]) {
    if constexpr (FROM == FROM_NORM) {
        if (p.norm_element != ELEMENT_BF16) return;
#pragma unroll
        for (int k = 0; k < HELD; k++)
            weights[k] = __ldg(static_cast<const uint4 *>(p.norm_weight) +
                               min(threadIdx.x + k * blockDim.x, p.dim / VECTOR - 1));
    }
}

/* Returns what the norm multiplies the row by, besides its weights. */
template <int HELD>
static __device__ __forceinline__ float norm_scale(const struct quantise_params &p, float *shared,
                                                   const uint4 (&held)[HELD]) {
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < HELD; k++) sum += sum_squares(held[k]);
    return rsqrtf(block_sum(sum, shared) / (float)p.dim + p.eps);
}

/* Unpacks vector i, which the thread holds, and normalises it; `weights` are of read_weights(). */
template <enum quantise_source FROM>
static __device__ __forceinline__ void elements_of(const struct quantise_params &p, uint32_t i,
                                                   uint4 held, uint4 weights, float norm,
                                                   float (&x)[VECTOR]) {
    float w[VECTOR];
    unpack_eight(held, x);
    if (FROM != FROM_NORM || i >= p.dim / VECTOR) return;
    if (p.norm_element == ELEMENT_BF16) {
        unpack_eight(weights, w);
    } else {
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            w[j] = load_element(p.norm_weight, (size_t)i * VECTOR + j, p.norm_element);
    }
#pragma unroll
    for (int j = 0; j < VECTOR; j++) x[j] *= norm * w[j];
}

static __device__ __forceinline__ float largest_of(const float (&x)[VECTOR]) {
    float largest = 0.0f; /* fmaxf ignores NaN */
#pragma unroll
    for (int j = 0; j < VECTOR; j++) largest = fmaxf(largest, fabsf(x[j]));
    return largest;
}

static __device__ __forceinline__ void store_codes(const struct quantise_params &p, uint32_t i,
                                                   const float (&x)[VECTOR], float factor) {
    uint32_t words[2];
#pragma unroll
    for (int j = 0; j < 2; j++)
        words[j] = fp8_codes(x[4 * j] * factor, x[4 * j + 1] * factor) |
                   (uint32_t)fp8_codes(x[4 * j + 2] * factor, x[4 * j + 3] * factor) << 16;
    reinterpret_cast<uint2 *>(p.codes + (size_t)blockIdx.x * p.dim)[i] =
        make_uint2(words[0], words[1]);
}

template <enum quantise_source FROM, int HELD>
static __global__ void quantise_kernel(struct quantise_params p) {
    __shared__ float sums[32], largests[32];
    float x[VECTOR], largest = 0.0f;
    uint4 held[HELD], weights[HELD];
    let_next_start();
    read_weights<FROM>(p, weights);
    wait_for_previous();
    read_row<FROM>(p, held);
    const float norm = FROM == FROM_NORM ? norm_scale(p, sums, held) : 1.0f;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        elements_of<FROM>(p, threadIdx.x + k * blockDim.x, held[k], weights[k], norm, x);
        largest = fmaxf(largest, largest_of(x));
    }
    const float scale = fp8_scale_for(block_max(largest, largests), p.most), factor = 1.0f / scale;
    if (threadIdx.x == 0) p.scales[blockIdx.x] = scale;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const uint32_t i = threadIdx.x + k * blockDim.x;
        if (i >= p.dim / VECTOR) break;
        elements_of<FROM>(p, i, held[k], weights[k], norm, x);
        store_codes(p, i, x, factor);
    }
}

template <enum quantise_source FROM, int HELD>
static __global__ void quantise_groups_kernel(struct quantise_params p) {
    __shared__ float sums[32];
    uint4 held[HELD], weights[HELD];
    let_next_start();
    read_weights<FROM>(p, weights);
    wait_for_previous();
    read_row<FROM>(p, held);
    const float norm = FROM == FROM_NORM ? norm_scale(p, sums, held) : 1.0f;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const uint32_t i = threadIdx.x + k * blockDim.x;
        float x[VECTOR];
        elements_of<FROM>(p, i, held[k], weights[k], norm, x);
        float largest = largest_of(x);
        for (int step = GROUP_LANES / 2; step > 0; step /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
        const float scale = fp8_scale_for(largest, p.most);
        if (i >= p.dim / VECTOR) continue;
        if (threadIdx.x % GROUP_LANES == 0)
            p.scales[(size_t)(i / GROUP_LANES) * p.scale_stride + blockIdx.x] = scale;
        store_codes(p, i, x, 1.0f / scale);
    }
}

template <enum quantise_source FROM>
static cudaError_t launch_from(const struct quantise_params *p, struct launch launch) {
    const uint32_t n = p->dim / VECTOR;
    const bool few = n <= FEW_HELD * MOST_THREADS / 2;
    const uint32_t held = few ? FEW_HELD : MOST_HELD,
                   threads = (n + 32 * held - 1) / (32 * held) * 32;
    if (threads > MOST_THREADS) return cudaErrorInvalidValue;
    if (p->scale_stride)
        return launch_kernel(
            launch,
            few ? quantise_groups_kernel<FROM, FEW_HELD> : quantise_groups_kernel<FROM, MOST_HELD>,
            p->n_rows, threads, 0, *p);
    return launch_kernel(launch,
                         few ? quantise_kernel<FROM, FEW_HELD> : quantise_kernel<FROM, MOST_HELD>,
                         p->n_rows, threads, 0, *p);
}

cudaError_t launch_quantise(const struct quantise_params *p, struct launch launch) {
    if (p->n_rows == 0) return cudaSuccess;
    if (p->norm_weight) return launch_from<FROM_NORM>(p, launch);
    return p->gated ? launch_from<FROM_GATE>(p, launch) : launch_from<FROM_ROWS>(p, launch);
}
