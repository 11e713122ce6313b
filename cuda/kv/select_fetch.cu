/* select_fetch.cu - copies tokens' keys and values from the host pool into pages, pages into the
 * host pool, and whole blocks back into pages, without conversion.  Where the host pool is fp8 and
 * pages are not, select_fp8.cu does the first two; the third is not done.
 *
 *   page    [K, V][n_kv_heads][PAGE_TOKENS][head_dim]; if fp8, with scales behind (struct kv_pool)
 *   block   [n_host_layers][PAGE_TOKENS][K, V][n_kv_heads][head_dim]; if fp8, with a token's scales
 *           behind it.  It lies in the system's memory, where the kernels read and write it; a
 *           token's part of a host layer is contiguous
 *
 * Grid: fetch: (blocks, layers), one warp a token; store, reload: blocks over the units of all
 * pages.  A thread moves units of 16 bytes, or of 2 where rows of head_dim or addresses are no
 * multiple of that.
 * Shared: none.          Oracle: engine/cpu/, exact. */
#include "cuda/common/pages.cuh"
#include "cuda/kv/host_pool.cuh"
#include "engine/device/host_pool.h"
#include "engine/device/pages.h"

enum { THREADS = MOVE_THREADS, UNROLL = 8 };

/* The length of a head's row, and of a token's keys and values, in units that a thread moves. */
template <typename T> struct units {
    uint32_t row, token;
    __device__ __forceinline__ explicit units(const struct kv_pool &kv) {
        row = page_row_bytes(kv.format, kv.head_dim) / sizeof(T);
        token = row * 2 * kv.n_kv_heads;
    }
};

/* Returns the address of unit `unit` of slot `at` of a page. */
template <typename T>
static __device__ __forceinline__ T *page_unit(const struct kv_pool &kv, uint32_t page, uint32_t at,
                                               uint32_t unit, const units<T> &n) {
    return page_at<T>(kv, page) + (unit / n.row * PAGE_TOKENS + at) * n.row + unit % n.row;
}

/* Returns the pool page that holds the token; only for tokens that come from pool pages. */
static __device__ __forceinline__ int32_t source_page(const struct fetch_params &p,
                                                      const struct fetch &f) {
    const int32_t *lists = p.step->select_lists;
    return lists[lists[p.step->selects[f.seq].pages + p.first_layer + blockIdx.y] +
                 f.source / PAGE_TOKENS];
}

template <typename T>
static __device__ __forceinline__ const T *source_of(const struct fetch_params &p,
                                                     const struct fetch &f, uint32_t unit,
                                                     const units<T> &n) {
    const uint32_t at = f.source % PAGE_TOKENS;
    if (p.store.base)
        return reinterpret_cast<T *>(token_in_store(p.store, f.source / PAGE_TOKENS,
                                                    p.first_host_layer + blockIdx.y, at)) +
               unit;
    return page_unit<T>(p.kv, (uint32_t)source_page(p, f), at, unit, n);
}

/* Returns the scales of a token in an fp8 host pool. */
static __device__ __forceinline__ uint8_t *stored_scales(const struct host_pool &store,
                                                         uint32_t block, uint32_t host_layer,
                                                         uint32_t at) {
    return scales_of(store, token_in_store(store, block, host_layer, at));
}

/* Transfers a token's scales to slot `at` of a page, as one warp. */
static __device__ __forceinline__ void fetch_scales(const struct fetch_params &p,
                                                    const struct fetch &f, uint32_t page,
                                                    uint32_t at, uint32_t lane) {
    const uint32_t from = f.source % PAGE_TOKENS;
    for (uint32_t row = lane; row < 2 * p.kv.n_kv_heads; row += 32)
        *row_scale(p.kv, (int32_t)page, row * PAGE_TOKENS + at) =
            p.store.base ? stored_scales(p.store, f.source / PAGE_TOKENS,
                                         p.first_host_layer + blockIdx.y, from)[row]
                         : *row_scale(p.kv, source_page(p, f), row * PAGE_TOKENS + from);
}

template <typename T>
static __global__ void __launch_bounds__(THREADS, 2) fetch_kernel(const struct fetch_params p) {
    const units<T> n(p.kv);
    let_next_start();
    wait_for_previous();
    each_fetch(p, [&](const struct fetch &f, uint32_t page, uint32_t at, uint32_t lane) {
        move_units<T, UNROLL>(
            lane, 32, n.token, [&](uint32_t unit) { return __ldcs(source_of<T>(p, f, unit, n)); },
            [&](uint32_t unit, T x) { *page_unit<T>(p.kv, page, at, unit, n) = x; });
        if (page_is_scaled(p.kv.format)) fetch_scales(p, f, page, at, lane);
    });
}

/* ---- whole pages, to the host pool or back ---- */

template <bool TO_STORE>
static __device__ __forceinline__ void move_scales(const struct offload_params &p) {
    const uint32_t n_rows = 2 * p.kv.n_kv_heads;
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < p.n * PAGE_TOKENS * n_rows;
         i += gridDim.x * THREADS) {
        const uint32_t row = i % n_rows, at = i / n_rows % PAGE_TOKENS,
                       copy = i / n_rows / PAGE_TOKENS;
        uint8_t *stored = stored_scales(p.store, p.copies[copy].block, p.host_layer, at) + row,
                *in_page = row_scale(p.kv, (int32_t)p.copies[copy].page, row * PAGE_TOKENS + at);
        *(TO_STORE ? stored : in_page) = *(TO_STORE ? in_page : stored);
    }
}

template <typename T, bool TO_STORE>
static __global__ void __launch_bounds__(THREADS)
    move_pages_kernel(const __grid_constant__ struct offload_params p) {
    const units<T> n(p.kv);
    const uint32_t page_units = PAGE_TOKENS * n.token;
    let_next_start();
    wait_for_previous();
    const auto in_page = [&](uint32_t i) {
        return page_unit<T>(p.kv, p.copies[i / page_units].page, i / n.token % PAGE_TOKENS,
                            i % n.token, n);
    };
    const auto stored = [&](uint32_t i) {
        uint8_t *token = token_in_store(p.store, p.copies[i / page_units].block, p.host_layer,
                                        i / n.token % PAGE_TOKENS);
        return reinterpret_cast<T *>(token) + i % n.token;
    };
    move_units<T, UNROLL>(
        blockIdx.x * THREADS + threadIdx.x, gridDim.x * THREADS, p.n * page_units,
        [&](uint32_t i) { return __ldcs(TO_STORE ? in_page(i) : stored(i)); },
        [&](uint32_t i, T x) { *(TO_STORE ? stored(i) : in_page(i)) = x; });
    if (page_is_scaled(p.kv.format)) move_scales<TO_STORE>(p);
}

template <bool TO_STORE>
static cudaError_t launch_move_pages(const struct offload_params &p, struct launch launch) {
    return launch_kernel(launch,
                         moves_vectors(&p.kv, &p.store) ? move_pages_kernel<uint4, TO_STORE>
                                                        : move_pages_kernel<uint16_t, TO_STORE>,
                         BUS_BLOCKS, THREADS, 0, p);
}

/* ---- launching ---- */

cudaError_t launch_fetch(const struct fetch_params *p, uint32_t n_layers, struct launch launch) {
    const dim3 grid(p->store.base ? +BUS_BLOCKS : +DEVICE_BLOCKS, n_layers);
    if (n_layers == 0) return cudaSuccess;
    if (p->store.base && !host_pool_is_exact(&p->store))
        return launch_fetch_fp8(p, n_layers, launch);
    if (moves_vectors(&p->kv, &p->store))
        return launch_kernel(launch, fetch_kernel<uint4>, grid, THREADS, 0, *p);
    return launch_kernel(launch, fetch_kernel<uint16_t>, grid, THREADS, 0, *p);
}

cudaError_t launch_offload_pages(const struct offload_params *p, struct launch launch) {
    if (p->n == 0) return cudaSuccess;
    if (!host_pool_is_exact(&p->store)) return launch_offload_fp8(p, launch);
    return launch_move_pages<true>(*p, launch);
}

cudaError_t launch_reload_pages(const struct offload_params *p, struct launch launch) {
    if (p->n == 0) return cudaSuccess;
    if (!host_pool_is_exact(&p->store)) return cudaErrorNotSupported;
    return launch_move_pages<false>(*p, launch);
}
