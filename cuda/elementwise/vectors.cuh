/* vectors.cuh - what operations that move 16 bytes of a row at a time share.
 *
 * Thread: device code, and launchers on the engine thread.  Memory: none. */
#ifndef CUDA_ELEMENTWISE_VECTORS_CUH
#define CUDA_ELEMENTWISE_VECTORS_CUH

#include "cuda/common/device.cuh"

typedef __nv_bfloat16 bf16;

enum { VECTOR = 8 }; /* bf16 in 16 bytes */

static inline bool vectors_fit(uint32_t dim, const void *a, const void *b) {
    return dim % VECTOR == 0 && ((uintptr_t)a | (uintptr_t)b) % 16 == 0;
}

/* Returns two normalised elements, added to those of `base`, times out_scale. */
static __device__ __forceinline__ uint32_t scale_pair(uint32_t pair, float scale, float w0,
                                                      float w1, uint32_t base, float out_scale) {
    const float2 f = unpack_bf16(pair), b = unpack_bf16(base);
    return pack_bf16((f.x * scale * w0 + b.x) * out_scale, (f.y * scale * w1 + b.y) * out_scale);
}

#endif
