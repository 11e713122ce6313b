/* pages.cuh - where a page of the KV pool has its rows, scales and states, as engine/device/pages.h
 * lays them out.
 *
 * Kernels for one type of elements and one head_dim call those functions with constants.  Kernels
 * for any type call the functions below.  Two of these write their sums out, because the compiler
 * orders the instructions of many kernels differently otherwise.
 *
 * Thread: device code.  Memory: none. */
#ifndef CUDA_COMMON_PAGES_CUH
#define CUDA_COMMON_PAGES_CUH

#include <type_traits>

#include "cuda/common/device.cuh"
#include "engine/device/dtype.h"
#include "engine/device/pages.h"

/* Returns the dtype of pages whose elements a kernel reads as T. */
template <typename T> static constexpr enum dtype page_dtype_of() {
    if (sizeof(T) == 1) return DTYPE_FP8;
    return std::is_same<T, __half>::value ? DTYPE_F16 : DTYPE_BF16;
}

/* Returns the address of a page. */
template <typename T = char, typename Page>
static __device__ __forceinline__ T *page_at(const struct kv_pool &kv, Page page) {
    return reinterpret_cast<T *>(static_cast<char *>(kv.base) + (size_t)page * kv.page_bytes);
}

/* Returns how many elements a page has space for.  Element i of a pool is element
 * i % page_elements() of page i / page_elements(), for load_dtype(). */
static __device__ __forceinline__ size_t page_elements(const struct kv_pool &kv) {
    return kv.page_bytes / page_row_bytes(kv.dtype, 1);
}

/* Returns a KV head's state of a page, as page_states_at() says. */
static __device__ __forceinline__ struct kv_page_state *page_state(const struct kv_pool &kv,
                                                                   int32_t page, uint32_t kv_head) {
    const uint32_t row_bytes =
        kv.head_dim * element_bytes(kv.dtype) + (kv.dtype == DTYPE_FP8 ? 1 : 0);
    char *at = static_cast<char *>(kv.base) + (size_t)page * kv.page_bytes +
               (size_t)kv.n_kv_heads * 2 * PAGE_TOKENS * row_bytes;
    return reinterpret_cast<struct kv_page_state *>(at) + kv_head;
}

static __device__ __forceinline__ bool has_scales(const struct kv_pool &kv) {
    return page_scale_bytes(kv.dtype) > 0;
}

/* Returns the scale of row number `row` (kv_row()) of a page whose rows have scales, as
 * page_scales_at() says. */
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
