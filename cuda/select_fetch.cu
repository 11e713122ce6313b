/* select_fetch.cu - tokens' keys and values from the store into pages, and pages into the store, as
 * they are; where the store is fp8, select_fp8.cu does both.
 *
 *   page    [K, V][n_kv_heads][PAGE_TOKENS][head_dim]
 *   block   [n_planes][PAGE_TOKENS][K, V][n_kv_heads][head_dim], in the system's memory: read and
 *           written by the kernels themselves, a token's plane in one run
 *
 * Grid: fetch: (blocks, layers), a warp a token; store: blocks over the units of all pages.  A
 * thread moves units of 16 bytes, or of 2 where rows of head_dim or addresses are no multiple of
 * that.
 * Shared: none.          Oracle: engine/cpu/, exact. */
#include "cuda/store.cuh"

enum { THREADS = MOVE_THREADS, UNROLL = MOVE_UNROLL };

/* In units of a thread: how long a head's row is, and a token's keys and values. */
template <typename T> struct units {
    uint32_t row, token;
    __device__ __forceinline__ explicit units(const struct kv_pool &kv) {
        row = kv.head_dim * (kv.dtype == DTYPE_F32 ? 4 : 2) / sizeof(T);
        token = row * 2 * kv.n_kv_heads;
    }
};

/* Unit `unit` of slot `at` of a page. */
template <typename T>
static __device__ __forceinline__ T *page_unit(const struct kv_pool &kv, uint32_t page,
                                               uint32_t at, uint32_t unit, const units<T> &n) {
    char *base = static_cast<char *>(kv.base) + (size_t)page * kv.page_bytes;
    return reinterpret_cast<T *>(base) + (unit / n.row * PAGE_TOKENS + at) * n.row + unit % n.row;
}

template <typename T>
static __device__ __forceinline__ T *store_unit(const struct kv_store &store, uint32_t block,
                                                uint32_t plane, uint32_t at, uint32_t unit,
                                                const units<T> &n) {
    const size_t token = ((size_t)block * store.n_planes + plane) * PAGE_TOKENS + at;
    return static_cast<T *>(store.base) + token * n.token + unit;
}

template <typename T>
static __device__ __forceinline__ const T *source_of(const struct fetch_params &p,
                                                     const struct fetch &f, uint32_t unit,
                                                     const units<T> &n) {
    const uint32_t page = f.source / PAGE_TOKENS, at = f.source % PAGE_TOKENS;
    if (p.store.base)
        return store_unit<T>(p.store, page, p.first_plane + blockIdx.y, at, unit, n);
    const int32_t *lists = p.step->select_lists;
    const int32_t list = lists[p.step->selects[f.seq].pages + p.first_layer + blockIdx.y];
    return page_unit<T>(p.kv, (uint32_t)lists[list + page], at, unit, n);
}

/* Every stride-th unit that `from` gives goes where `to` says: first UNROLL loads, then as many
 * stores. */
template <typename T, typename From, typename To>
static __device__ __forceinline__ void move_units(uint32_t first, uint32_t stride, uint32_t total,
                                                  const From &from, const To &to) {
    for (; first < total; first += UNROLL * stride) {
        T x[UNROLL];
#pragma unroll
        for (uint32_t u = 0; u < UNROLL; u++)
            if (first + u * stride < total) x[u] = __ldcs(from(first + u * stride));
#pragma unroll
        for (uint32_t u = 0; u < UNROLL; u++)
            if (first + u * stride < total) *to(first + u * stride) = x[u];
    }
}

/* A warp moves a token: what it asks for at a time lies in one run, of one page of the system's
 * memory. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) fetch_kernel(const struct fetch_params p) {
    const units<T> n(p.kv);
    const uint32_t warp = (blockIdx.x * THREADS + threadIdx.x) / 32,
                   n_warps = gridDim.x * THREADS / 32;
    let_next_start();
    wait_for_previous();
    for (uint32_t i = warp; i < *p.n_fetches; i += n_warps) {
        const struct fetch f = load_fetch(p.fetches + i);
        const int32_t *pages = pages_of(*p.step, p.first_layer + blockIdx.y, f.seq);
        const uint32_t page = (uint32_t)pages[f.slot / PAGE_TOKENS], at = f.slot % PAGE_TOKENS;
        move_units<T>(
            threadIdx.x % 32, 32, n.token,
            [&](uint32_t unit) { return source_of<T>(p, f, unit, n); },
            [&](uint32_t unit) { return page_unit<T>(p.kv, page, at, unit, n); });
    }
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) store_kernel(
    const __grid_constant__ struct store_params p) {
    const units<T> n(p.kv);
    const uint32_t page_units = PAGE_TOKENS * n.token;
    let_next_start();
    wait_for_previous();
    const auto from = [&](uint32_t i) -> const T * {
        return page_unit<T>(p.kv, p.copies[i / page_units].page, i / n.token % PAGE_TOKENS,
                            i % n.token, n);
    };
    const auto to = [&](uint32_t i) {
        return store_unit<T>(p.store, p.copies[i / page_units].block, p.plane,
                             i / n.token % PAGE_TOKENS, i % n.token, n);
    };
    move_units<T>(blockIdx.x * THREADS + threadIdx.x, gridDim.x * THREADS, p.n * page_units, from,
                  to);
}

cudaError_t launch_fetch(const struct fetch_params *p, uint32_t n_layers, struct launch launch) {
    const dim3 grid(p->store.base ? +BUS_BLOCKS : +DEVICE_BLOCKS, n_layers);
    if (n_layers == 0) return cudaSuccess;
    if (p->store.base && p->store.fp8) return launch_fetch_fp8(p, n_layers, launch);
    if (moves_vectors(&p->kv, &p->store))
        return launch_kernel(launch, fetch_kernel<uint4>, grid, THREADS, 0, *p);
    return launch_kernel(launch, fetch_kernel<uint16_t>, grid, THREADS, 0, *p);
}

cudaError_t launch_store(const struct store_params *p, struct launch launch) {
    if (p->n == 0) return cudaSuccess;
    if (p->store.fp8) return launch_store_fp8(p, launch);
    if (moves_vectors(&p->kv, &p->store))
        return launch_kernel(launch, store_kernel<uint4>, BUS_BLOCKS, THREADS, 0, *p);
    return launch_kernel(launch, store_kernel<uint16_t>, BUS_BLOCKS, THREADS, 0, *p);
}
