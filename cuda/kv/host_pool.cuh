/* host_pool.cuh - shared by the kernels that move tokens between pages and the host pool.
 *
 * Thread: device code, and launchers on the engine thread.  Memory: none. */
#ifndef CUDA_KV_HOST_POOL_CUH
#define CUDA_KV_HOST_POOL_CUH

#include "cuda/common/device.cuh"
#include "cuda/common/step.cuh"
#include "cuda/kv/select.h"
#include "engine/device/host_pool.h"
#include "engine/device/pages.h"

/* Over the bus, speed depends on how many bytes are requested at a time.  A round trip is long, and
 * longer while other kernels keep the device's memory busy.  8 blocks of 512 threads
 * that each request 8 x 16 bytes make 512 KB.  Blocks are few and large because a product of few
 * rows fills all registers of a multiprocessor with two of its own blocks.  As many threads in 16
 * blocks would delay twice as many of those. */
enum { MOVE_THREADS = 512, BUS_BLOCKS = 8, DEVICE_BLOCKS = 64 };

/* Loads and stores every stride-th unit below `total`: first UNROLL loads, then as many stores. */
template <typename X, int UNROLL, typename Load, typename Store>
static __device__ __forceinline__ void move_units(uint32_t first, uint32_t stride, uint32_t total,
                                                  const Load &load, const Store &store) {
    for (; first < total; first += UNROLL * stride) {
        X x[UNROLL];
#pragma unroll
        for (uint32_t u = 0; u < UNROLL; u++)
            if (first + u * stride < total) x[u] = load(first + u * stride);
#pragma unroll
        for (uint32_t u = 0; u < UNROLL; u++)
            if (first + u * stride < total) store(first + u * stride, x[u]);
    }
}

/* Calls move(fetch, the slot's page, its place there, lane) for each fetch of the layer, a warp a
 * token.  So
 * what a warp requests at a time is contiguous, in one page of the system's memory. */
template <typename Move>
static __device__ __forceinline__ void each_fetch(const struct fetch_params &p, const Move &move) {
    const uint32_t n = *p.n_fetches, n_warps = gridDim.x * MOVE_THREADS / 32,
                   layer = p.first_layer + blockIdx.y;
    for (uint32_t i = (blockIdx.x * MOVE_THREADS + threadIdx.x) / 32; i < n; i += n_warps) {
        const uint4 x = *reinterpret_cast<const uint4 *>(p.fetches + i);
        const struct fetch f = {x.x, x.y, x.z, x.w};
        if (budget_of(*p.step, f.seq, layer)) continue; /* the sequence selects nothing here */
        const int32_t *pages = pages_of(*p.step, layer, f.seq);
        move(f, (uint32_t)pages[f.slot / PAGE_TOKENS], f.slot % PAGE_TOKENS, threadIdx.x % 32);
    }
}

static __device__ __forceinline__ uint8_t *token_in_store(const struct host_pool &store,
                                                          uint32_t block, uint32_t host_layer,
                                                          uint32_t at) {
    const size_t token = ((size_t)block * store.n_host_layers + host_layer) * PAGE_TOKENS + at;
    return static_cast<uint8_t *>(store.base) + token * host_pool_token_bytes(&store);
}

/* Returns the scales of a token in a host pool that has any. */
static __device__ __forceinline__ uint8_t *scales_of(const struct host_pool &store,
                                                     uint8_t *token) {
    return token + 2 * store.n_kv_heads * page_row_bytes(host_pool_format(&store), store.head_dim);
}

/* Says whether a thread can move 16 bytes at a time. */
static inline bool moves_vectors(const struct kv_pool *kv, const struct host_pool *store) {
    return page_row_bytes(kv->format, kv->head_dim) % 16 == 0 && kv->page_bytes % 16 == 0 &&
           ((uintptr_t)kv->base | (uintptr_t)store->base) % 16 == 0;
}

#endif
