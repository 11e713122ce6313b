/* store.cuh - what the kernels share that move tokens between pages and the store.
 *
 * Thread: device code, and launchers on the engine thread.  Memory: none. */
#ifndef CUDA_STORE_CUH
#define CUDA_STORE_CUH

#include "cuda/keep.cuh"
#include "cuda/select.h"

/* Across the bus what counts is how much is asked for at a time: a round trip takes 3.4 us, and 6
 * or more while other kernels keep the device's memory busy.  16 blocks of 256 threads that ask for
 * 8 x 16 bytes each are 512 KB, which gives 49 GB/s, and 35 to 42 beside those kernels; of 4 blocks
 * came 38, and 20.  More would only slow down the others. */
enum { MOVE_THREADS = 256, MOVE_UNROLL = 8, BUS_BLOCKS = 16, DEVICE_BLOCKS = 64 };

static __device__ __forceinline__ struct fetch load_fetch(const struct fetch *from) {
    const uint4 x = *reinterpret_cast<const uint4 *>(from);
    return {x.x, x.y, x.z, x.w};
}

/* 16 bytes at a time. */
static inline bool moves_vectors(const struct kv_pool *kv, const struct kv_store *store) {
    return kv->head_dim * dtype_size(kv->dtype) % 16 == 0 && kv->page_bytes % 16 == 0 &&
           ((uintptr_t)kv->base | (uintptr_t)store->base) % 16 == 0;
}

#endif
