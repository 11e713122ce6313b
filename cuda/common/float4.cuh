/* float4.cuh - arithmetic on four floats, as they are read from memory.
 *
 * Thread: device code.  Memory: none. */
#ifndef CUDA_COMMON_FLOAT4_CUH
#define CUDA_COMMON_FLOAT4_CUH

#include <cuda_runtime.h>

static __device__ __forceinline__ float4 scaled(float4 x, float w) {
    return make_float4(x.x * w, x.y * w, x.z * w, x.w * w);
}

static __device__ __forceinline__ void add_scaled(float4 *sum, float4 x, float w) {
    sum->x += x.x * w;
    sum->y += x.y * w;
    sum->z += x.z * w;
    sum->w += x.w * w;
}

#endif
