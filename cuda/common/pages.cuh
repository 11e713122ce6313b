/* pages.cuh - where a page of the KV pool has its rows, scales and states, as engine/device/pages.h
 * lays them out.
 *
 * Kernels for one format and one head_dim call those functions with constants.
 *
 * Thread: device code.  Memory: none. */
#ifndef CUDA_COMMON_PAGES_CUH
#define CUDA_COMMON_PAGES_CUH

#include <type_traits>

#include "cuda/common/device.cuh"
#include "engine/device/pages.h"

/* Returns the format of pages whose elements a kernel reads as T. */
template <typename T> static constexpr enum page_format page_format_of() {
    if (sizeof(T) == 1) return PAGE_FP8;
    if (sizeof(T) == 4) return PAGE_F32;
    return std::is_same<T, __half>::value ? PAGE_F16 : PAGE_BF16;
}

/* Returns the address of a page. */
template <typename T = char, typename Page>
static __device__ __forceinline__ T *page_at(const struct kv_pool &kv, Page page) {
    return reinterpret_cast<T *>(static_cast<char *>(kv.base) + (size_t)page * kv.page_bytes);
}

/* Returns the address of row number `row` (kv_row()) of a page; for words of any type. */
template <typename T = char, typename Page>
static __device__ __forceinline__ T *row_at(const struct kv_pool &kv, Page page, uint32_t row) {
    return reinterpret_cast<T *>(page_at(kv, page) +
                                 (size_t)row * page_row_bytes(kv.format, kv.head_dim));
}

/* Returns a KV head's state of a page. */
static __device__ __forceinline__ struct kv_page_state *page_state(const struct kv_pool &kv,
                                                                   int32_t page, uint32_t kv_head) {
    char *states = page_at(kv, page) + page_states_at(kv.format, kv.n_kv_heads, kv.head_dim);
    return reinterpret_cast<struct kv_page_state *>(states) + kv_head;
}

/* Returns the scale of row number `row` of a page whose rows have scales. */
static __device__ __forceinline__ uint8_t *row_scale(const struct kv_pool &kv, int32_t page,
                                                     uint32_t row) {
    return page_at<uint8_t>(kv, page) + page_scales_at(kv.format, kv.n_kv_heads, kv.head_dim) + row;
}

/* Returns the factor of the row's elements as load_element() gives them. */
static __device__ __forceinline__ float row_factor(const struct kv_pool &kv, int32_t page,
                                                   uint32_t row) {
    return page_is_scaled(kv.format) ? fp8_factor(*row_scale(kv, page, row)) : 1.0f;
}

/* Returns element i of an array in a format that is known at run time only, without its scale. */
static __device__ __forceinline__ float load_element(const void *data, size_t i,
                                                     enum page_format format) {
    if (format == PAGE_F32) return static_cast<const float *>(data)[i];
    if (format == PAGE_FP8) return fp8_values(static_cast<const uint8_t *>(data)[i]).x;
    if (format == PAGE_F16) return to_float(static_cast<const __half *>(data)[i]);
    return to_float(static_cast<const __nv_bfloat16 *>(data)[i]);
}

/* Writes an element of a format without scales. */
static __device__ __forceinline__ void store_element(void *data, size_t i, float x,
                                                     enum page_format format) {
    if (format == PAGE_F32) store_as(static_cast<float *>(data) + i, x);
    else if (format == PAGE_F16) store_as(static_cast<__half *>(data) + i, x);
    else store_as(static_cast<__nv_bfloat16 *>(data) + i, x);
}

#endif
