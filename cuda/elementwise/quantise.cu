/* quantise.cu - rows of activations as E4M3 with scales: what products of E4M3 with E4M3 read.
 *
 *   codes    E4M3 [n_rows, dim]
 *   scales   f32: [n_rows], or of groups of QUANTISE_GROUP columns
 *            [dim / QUANTISE_GROUP][scale_stride], row after row
 *
 * A scale makes the largest element of its row or group E4M3's largest, 448.  A row is also
 * normalised on the way, or is gate * up, so neither is written as bf16 and read again.
 *
 * Grid:   one block per row; a thread holds up to MOST_HELD vectors of 8 elements in registers.
 * Bound:  memory, each input and output once.     Oracle: tests/cuda/test_rounded.c. */
#include "cuda/common/device.cuh"

typedef __nv_bfloat16 bf16;

enum { VECTOR = 8, GROUP_LANES = QUANTISE_GROUP / VECTOR };
enum { FEW_HELD = 4, MOST_HELD = 8, MOST_THREADS = 1024 }; /* vectors of a thread; of a block */
static constexpr float E4M3_MOST = 448.0f;

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

/* Reads the thread's vectors of the block's row; a gate's results are rounded to bf16, as they are
 * where nothing is quantised. */
template <enum quantise_source FROM, int HELD>
static __device__ __forceinline__ void read_row(const struct quantise_params &p,
                                                float (&x)[HELD][VECTOR]) {
    const uint32_t n = p.dim / VECTOR;
    const uint4 *from =
        static_cast<const uint4 *>(p.x) + (size_t)blockIdx.x * (FROM == FROM_GATE ? 2 * n : n);
    uint4 held[HELD], up[HELD];
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const uint32_t i = threadIdx.x + k * blockDim.x;
        held[k] = i < n ? from[i] : make_uint4(0, 0, 0, 0);
        if (FROM == FROM_GATE) up[k] = i < n ? from[i + n] : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        float y[VECTOR];
        unpack_eight(held[k], x[k]);
        if (FROM != FROM_GATE) continue;
        unpack_eight(up[k], y);
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            x[k][j] = to_float(__float2bfloat16_rn(gate_mul(x[k][j], y[j], p.kind)));
    }
}

/* Reads eight elements of the norm's weight. */
static __device__ __forceinline__ void read_weight(const struct quantise_params &p, uint32_t i,
                                                   float (&w)[VECTOR]) {
    if (p.norm_element == ELEMENT_BF16) {
        unpack_eight(__ldg(static_cast<const uint4 *>(p.norm_weight) + i), w);
        return;
    }
#pragma unroll
    for (int j = 0; j < VECTOR; j++)
        w[j] = load_element(p.norm_weight, (size_t)i * VECTOR + j, p.norm_element);
}

template <int HELD>
static __device__ __forceinline__ void normalise(const struct quantise_params &p, float *shared,
                                                 float (&x)[HELD][VECTOR]) {
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < HELD; k++)
#pragma unroll
        for (int j = 0; j < VECTOR; j++) sum += x[k][j] * x[k][j];
    const float scale = rsqrtf(block_sum(sum, shared) / (float)p.dim + p.eps);
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const uint32_t i = threadIdx.x + k * blockDim.x;
        float w[VECTOR];
        if (i >= p.dim / VECTOR) break;
        read_weight(p, i, w);
#pragma unroll
        for (int j = 0; j < VECTOR; j++) x[k][j] *= scale * w[j];
    }
}

/* Returns the scale for elements of which `largest` is the largest. */
static __device__ __forceinline__ float scale_for(const struct quantise_params &p, float largest) {
    const float least = 1.0f / (E4M3_MOST * 512.0f); /* of rows that are 0 */
    if (p.most > 0.0f) largest = fminf(largest, p.most);
    return fmaxf(largest * (1.0f / E4M3_MOST), least);
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
    float x[HELD][VECTOR], largest = 0.0f;
    let_next_start();
    wait_for_previous();
    read_row<FROM>(p, x);
    if (FROM == FROM_NORM) normalise(p, sums, x);
#pragma unroll
    for (int k = 0; k < HELD; k++) largest = fmaxf(largest, largest_of(x[k]));
    const float scale = scale_for(p, block_max(largest, largests));
    if (threadIdx.x == 0) p.scales[blockIdx.x] = scale;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const uint32_t i = threadIdx.x + k * blockDim.x;
        if (i < p.dim / VECTOR) store_codes(p, i, x[k], 1.0f / scale);
    }
}

template <enum quantise_source FROM, int HELD>
static __global__ void quantise_groups_kernel(struct quantise_params p) {
    __shared__ float sums[32];
    float x[HELD][VECTOR];
    let_next_start();
    wait_for_previous();
    read_row<FROM>(p, x);
    if (FROM == FROM_NORM) normalise(p, sums, x);
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const uint32_t i = threadIdx.x + k * blockDim.x;
        float largest = largest_of(x[k]);
        for (int step = GROUP_LANES / 2; step > 0; step /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
        const float scale = scale_for(p, largest);
        if (i >= p.dim / VECTOR) continue;
        if (threadIdx.x % GROUP_LANES == 0)
            p.scales[(size_t)(i / GROUP_LANES) * p.scale_stride + blockIdx.x] = scale;
        store_codes(p, i, x[k], 1.0f / scale);
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
