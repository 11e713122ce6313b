/* pages.cuh - where a page has its states and scales (engine/device/pages.h).
 *
 * Thread: device code.  Memory: none. */
#ifndef CUDA_COMMON_PAGES_CUH
#define CUDA_COMMON_PAGES_CUH

#include "cuda/common/device.cuh"
#include "engine/device/dtype.h"
#include "engine/device/pages.h"

/* Returns a KV head's state of a page. */
static __device__ __forceinline__ struct kv_page_state *page_state(const struct kv_pool &kv,
                                                                   int32_t page, uint32_t kv_head) {
    const uint32_t row_bytes =
        kv.head_dim * element_bytes(kv.dtype) + (kv.dtype == DTYPE_FP8 ? 1 : 0);
    char *at = static_cast<char *>(kv.base) + (size_t)page * kv.page_bytes +
               (size_t)kv.n_kv_heads * 2 * PAGE_TOKENS * row_bytes;
    return reinterpret_cast<struct kv_page_state *>(at) + kv_head;
}

/* Returns the scale of a row of a DTYPE_FP8 page; a row is ([K, V], KV head, slot). */
static __device__ __forceinline__ uint8_t *row_scale(const struct kv_pool &kv, int32_t page,
                                                     uint32_t row) {
    return static_cast<uint8_t *>(kv.base) + (size_t)page * kv.page_bytes +
           (size_t)kv.n_kv_heads * 2 * PAGE_TOKENS * kv.head_dim + row;
}

/* Returns the factor of the row's elements as load_dtype() gives them. */
static __device__ __forceinline__ float row_factor(const struct kv_pool &kv, int32_t page,
                                                   uint32_t row) {
    return kv.dtype == DTYPE_FP8 ? fp8_factor(*row_scale(kv, page, row)) : 1.0f;
}

#endif
