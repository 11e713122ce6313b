/* device.cuh - used by every kernel of the backend: conversions, reductions, launching with
 * overlap.
 *
 * Thread: device code, and launchers on the engine thread.  Memory: none. */
#ifndef CUDA_COMMON_DEVICE_CUH
#define CUDA_COMMON_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include "cuda/common/step_nodes.cuh"
#include "cuda/host/kernels.h"
#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/device/weight.h"

/* exp(x) = exp2(LOG2_E * x) */
static constexpr float LOG2_E = 1.4426950408889634f;

/* Lets the next kernel of the stream start; it waits for this one before it touches what this one
 * writes. */
static __device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Waits until every kernel before this one in the stream has ended and its writes are visible.
 * Every kernel must call this, or "the kernel before has ended" would not mean "all before
 * have". */
static __device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Loads what the host or another block may write at any time, past the first-level cache. */
static __device__ __forceinline__ uint4 load_volatile(const uint4 *from) {
    uint4 x;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}
static __device__ __forceinline__ uint32_t load_volatile(const uint32_t *from) {
    uint32_t x;
    asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

/* Stores what another block waits for. */
static __device__ __forceinline__ void store_volatile(void *to, float4 x) {
    asm volatile("st.volatile.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.x), "f"(x.y),
                 "f"(x.z), "f"(x.w)
                 : "memory");
}
static __device__ __forceinline__ void store_volatile(void *to, float x) {
    asm volatile("st.volatile.global.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}

/* Marks a word that another block has not written yet: a NaN that no operation produces.
 * (Operations make 0x7fffffff, whatever the operands.) */
static constexpr uint32_t MISSING = MISSING_BYTE * 0x01010101u;

static __device__ __forceinline__ bool have_come(uint4 words) {
    return words.x != MISSING && words.y != MISSING && words.z != MISSING && words.w != MISSING;
}

/* Fetches the line of an address to the first-level cache. */
static __device__ __forceinline__ void prefetch_l1(const void *at) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(at));
}

static inline cudaLaunchAttribute cluster_attribute(uint32_t cluster) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    return attribute;
}

/* Counts the clusters of a kernel that run at the same time. */
template <typename... Params>
static cudaError_t count_clusters(void (*kernel)(Params...), uint32_t cluster, dim3 block,
                                  size_t shared_bytes, int *n_clusters) {
    cudaLaunchAttribute attribute = cluster_attribute(cluster);
    cudaLaunchConfig_t config = {};
    config.gridDim = cluster;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaOccupancyMaxActiveClusters(n_clusters, kernel, &config);
}

/* Launches a kernel in clusters: `cluster` blocks of a row of the grid start together.  More than
 * one needs 9.0.  If the kernel is one of a graph's step_nodes, it is not launched but set. */
template <typename... Params, typename... Args>
static cudaError_t launch_clusters(struct launch launch, void (*kernel)(Params...),
                                   uint32_t cluster, dim3 grid, dim3 block, size_t shared_bytes,
                                   Args... args) {
    if (launch.nodes && launch.nodes->graph)
        return step_nodes_set(launch.nodes, kernel, grid, block, shared_bytes, args...);
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = launch.stream;
    config.attrs = attributes;
    if (launch.overlap) {
        cudaLaunchAttribute *overlap = &attributes[config.numAttrs++];
        overlap->id = cudaLaunchAttributeProgrammaticStreamSerialization;
        overlap->val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) attributes[config.numAttrs++] = cluster_attribute(cluster);
    const cudaError_t status = cudaLaunchKernelEx(&config, kernel, args...);
    if (status != cudaSuccess || !launch.nodes) return status;
    return step_nodes_note(launch.nodes, launch.stream);
}

template <typename... Params, typename... Args>
static cudaError_t launch_kernel(struct launch launch, void (*kernel)(Params...), dim3 grid,
                                 dim3 block, size_t shared_bytes, Args... args) {
    return launch_clusters(launch, kernel, 1, grid, block, shared_bytes, args...);
}

/* Says whether this device runs the kernel as compiled for compute capability 9.0.  If not, it has
 * the code for 8.0, without the parts guarded by __CUDA_ARCH__, or no kernel at all. */
template <typename Kernel> static bool runs_sm90_code(Kernel *kernel) {
    cudaFuncAttributes attributes;
    const bool is_there = cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess;
    if (!is_there) cudaGetLastError(); /* an answer, not a fault */
    return is_there && attributes.ptxVersion >= 90;
}

static __device__ __forceinline__ float to_float(float x) {
    return x;
}
static __device__ __forceinline__ float to_float(__half x) {
    return __half2float(x);
}
static __device__ __forceinline__ float to_float(__nv_bfloat16 x) {
    return __bfloat162float(x);
}

static __device__ __forceinline__ void store_as(float *to, float x) {
    *to = x;
}
static __device__ __forceinline__ void store_as(__half *to, float x) {
    *to = __float2half_rn(x);
}
static __device__ __forceinline__ void store_as(__nv_bfloat16 *to, float x) {
    *to = __float2bfloat16_rn(x);
}

/* Holds N elements that are moved together, 16 bytes at most. */
template <typename T, int N> struct alignas(N * sizeof(T)) vector { T x[N]; };

/* Returns x, which the compiler keeps in a register, in place of computing it anew at each use. */
static __device__ __forceinline__ uint32_t in_register(uint32_t x) {
    asm("" : "+r"(x));
    return x;
}
static __device__ __forceinline__ float in_register(float x) {
    asm("" : "+f"(x));
    return x;
}

/* ---- elements as bytes with a scale (engine/device/host_pool.h) ---- */

static __device__ __forceinline__ float fp8_factor(uint32_t scale) {
    return __uint_as_float(scale << 23);
}

/* Returns the least scale that covers elements of which `largest` is the largest; at most
 * `most`. */
static __device__ __forceinline__ uint32_t fp8_scale(float largest, uint32_t most) {
    /* 448 = 1.75 * 2^8: a mantissa above 1.75 carries into the exponent. */
    const uint32_t exponent = (__float_as_uint(largest) + (0x7fffff - 0x600000)) >> 23;
    return min(exponent > 9 ? exponent - 8 : 1u, most);
}

static __device__ __forceinline__ uint8_t fp8_code(float x) {
    return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}

/* Returns the scale with which `largest`, or `most` > 0 if that is less, becomes E4M3's largest. */
static __device__ __forceinline__ float fp8_scale_for(float largest, float most) {
    const float e4m3_most = 448.0f, least = 1.0f / (e4m3_most * 512.0f); /* of what is all 0 */
    if (most > 0.0f) largest = fminf(largest, most);
    return fmaxf(largest * (1.0f / e4m3_most), least);
}

/* Returns two codes, that of x in the lower byte. */
static __device__ __forceinline__ uint16_t fp8_codes(float x, float y) {
    return __nv_cvt_float2_to_fp8x2(make_float2(x, y), __NV_SATFINITE, __NV_E4M3);
}

/* Returns the values of the codes in the lower two bytes, exact in 16 bits of either kind. */
static __device__ __forceinline__ float2 fp8_values(uint32_t codes) {
    return __half22float2(
        __half2(__nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)codes, __NV_E4M3)));
}

/* Returns element i of a weight that is plain (weight_is_plain()). */
static __device__ __forceinline__ float load_element(const void *data, size_t i,
                                                     enum element element) {
    if (element == ELEMENT_F32) return static_cast<const float *>(data)[i];
    if (element == ELEMENT_F16) return to_float(static_cast<const __half *>(data)[i]);
    return to_float(static_cast<const __nv_bfloat16 *>(data)[i]);
}

/* Returns a query head's sink in base 2, as scores are; -inf if there is none. */
static __device__ __forceinline__ float sink_of(const struct head_sinks &sinks, size_t head) {
    if (!sinks.are_there) return -INFINITY;
    return sinks.logits ? load_element(sinks.logits, head, sinks.element) * LOG2_E : 0.0f;
}

/* Unpacks two bf16 from a word; the lower half comes first in memory. */
static __device__ __forceinline__ float2 unpack_bf16(uint32_t pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
static __device__ __forceinline__ uint32_t pack_bf16(float x, float y) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    return *reinterpret_cast<uint32_t *>(&pair);
}

/* Unpacks two elements of type T, __half or __nv_bfloat16, from a word. */
template <typename T> static __device__ __forceinline__ float2 unpack_pair(uint32_t pair) {
    if constexpr (sizeof(T) == 2 && !__is_same(T, __nv_bfloat16))
        return __half22float2(*reinterpret_cast<const __half2 *>(&pair));
    else return unpack_bf16(pair);
}

template <typename T> static __device__ __forceinline__ uint32_t pack_pair(float x, float y) {
    if constexpr (sizeof(T) == 2 && !__is_same(T, __nv_bfloat16)) {
        const __half2 pair = __floats2half2_rn(x, y);
        return *reinterpret_cast<const uint32_t *>(&pair);
    } else {
        return pack_bf16(x, y);
    }
}

static __device__ __forceinline__ uint32_t multiply_pair(uint32_t a, uint32_t b) {
    __nv_bfloat162 product =
        __hmul2(*reinterpret_cast<__nv_bfloat162 *>(&a), *reinterpret_cast<__nv_bfloat162 *>(&b));
    return *reinterpret_cast<uint32_t *>(&product);
}

/* Returns the values of eight codes times a power of two, as bf16. */
static __device__ __forceinline__ uint4 fp8_eight(uint2 codes, float factor) {
    const uint32_t both = pack_bf16(factor, factor);
    uint4 x;
    uint32_t *words = &x.x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 f = fp8_values((i < 2 ? codes.x : codes.y) >> i % 2 * 16);
        words[i] = multiply_pair(pack_bf16(f.x, f.y), both);
    }
    return x;
}

static __device__ __forceinline__ float sum_squares(uint4 v) {
    float sum = 0.0f;
    for (uint32_t word : {v.x, v.y, v.z, v.w}) {
        const float2 f = unpack_bf16(word);
        sum += f.x * f.x + f.y * f.y;
    }
    return sum;
}

/* Returns what a gate divides by: 1 + e^-x.  __expf: 2 ulp near 0, far under bf16's rounding. */
static __device__ __forceinline__ float gate_divisor(float gate, enum gate_kind kind) {
    const float x = kind == GATE_GELU ? gate * (GELU_1 + GELU_3 * gate * gate) : gate;
    return 1.0f + __expf(-x);
}

static __device__ __forceinline__ float gate_mul(float gate, float up, enum gate_kind kind) {
    return gate / gate_divisor(gate, kind) * up;
}

/* Returns 2^x, off by 2 ulp, with 2^-inf = 0: far below the rounding of weights to 16 bits. */
static __device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Returns 1 / x, off by 1 ulp, with 1 / inf = 0. */
static __device__ __forceinline__ float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Does what gate_mul() does, off by a few ulp, in six instructions (eight for GELU): for kernels
 * that have no time for more. */
static __device__ __forceinline__ float gate_mul_short(float gate, float up, enum gate_kind kind) {
    const float x = kind == GATE_GELU ? gate * (-LOG2_E * GELU_1 + -LOG2_E * GELU_3 * (gate * gate))
                                      : -LOG2_E * gate;
    return gate * reciprocal_fast(1.0f + exp2_fast(x)) * up;
}

/* Returns tanh(x / TANH2_UNIT) = 1 - 2 / (1 + 2^x), off by 2^-22.  A score's cap times that is far
 * below what the rounding of keys does to the score.  NaN stays NaN. */
static __device__ __forceinline__ float tanh2(float x) {
    return 1.0f - __fdividef(2.0f, 1.0f + exp2_fast(x));
}

static __device__ __forceinline__ float score_of(const struct score_scale &scale, float product) {
    return scale.outer * (scale.inner > 0 ? tanh2(scale.inner * product) : product);
}

/* Caps products for kernels that multiply by scale.outer later. */
static __device__ __forceinline__ void cap_products(float &product, float inner) {
    product = tanh2(inner * product);
}
template <typename Element, int N>
static __device__ __forceinline__ void cap_products(Element (&products)[N], float inner) {
#pragma unroll
    for (int i = 0; i < N; i++) cap_products(products[i], inner);
}

static __device__ __forceinline__ float warp_max(float x) {
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

static __device__ __forceinline__ float warp_sum(float x) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* Returns the sum over a block of whole warps, in every thread.  `shared` holds one float a
 * warp. */
static __device__ __forceinline__ float block_sum(float x, float *shared) {
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : 0.0f;
    return warp_sum(x);
}

#endif
