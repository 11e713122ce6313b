/* expert_tile.cuh - what kernels of the experts' products do alike: finding a tile's expert,
 * results.
 *
 * A tile is a number of pairs of one expert that follow each other in sorted order.  The last tile
 * of an expert may be smaller.
 *
 * Thread: device code, and launchers on the engine thread.  Memory: none. */
#ifndef CUDA_EXPERTS_EXPERT_TILE_CUH
#define CUDA_EXPERTS_EXPERT_TILE_CUH

#include "cuda/common/device.cuh"
#include "cuda/experts/expert_product.h"

struct expert_tile {
    uint32_t expert, first, n; /* pairs in sorted order; n 0: there is no such tile */
};

/* Returns the most tiles of `size` pairs that there may be. */
static inline uint32_t most_expert_tiles(const struct expert_order *order, uint32_t size) {
    const uint32_t n_pairs = expert_n_pairs(order),
                   n_used = n_pairs < order->n_experts ? n_pairs : order->n_experts;
    return (n_pairs - n_used) / size + n_used;
}

/* Returns tile number `tile` of those of `size` pairs.  All lanes of a warp call it, and get the
 * same. */
static __device__ __forceinline__ struct expert_tile find_expert_tile(const struct expert_order &o,
                                                                      uint32_t size,
                                                                      uint32_t tile) {
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t begin = 0; begin < o.n_experts; begin += 32) {
        const uint32_t expert = begin + lane;
        const bool exists = expert < o.n_experts;
        const uint32_t first = exists ? o.first[expert] : 0,
                       n = exists ? o.first[expert + 1] - first : 0,
                       n_tiles = (n + size - 1) / size;
        uint32_t end = n_tiles; /* tiles up to this lane's expert */
        for (uint32_t step = 1; step < 32; step *= 2) {
            const uint32_t other = __shfl_up_sync(0xffffffffu, end, step);
            end += lane >= step ? other : 0;
        }
        const uint32_t here = __ballot_sync(0xffffffffu, tile < end);
        if (here) {
            const uint32_t own = tile - (end - n_tiles), left = n - own * size;
            const int from = __ffs((int)here) - 1;
            return {begin + from, __shfl_sync(0xffffffffu, first + own * size, from),
                    __shfl_sync(0xffffffffu, min(left, size), from)};
        }
        tile -= __shfl_sync(0xffffffffu, end, 31);
    }
    return {0, 0, 0};
}

/* Returns the row of x of the pair at a place in sorted order. */
static __device__ __forceinline__ uint32_t x_row_of(const struct expert_product &p,
                                                    uint32_t place) {
    return p.gathers ? p.order.pair[place] / p.order.n_used : place;
}

static __device__ __forceinline__ float with_expert_bias(const struct expert_product &p, int stack,
                                                         uint32_t expert, uint32_t out, float x) {
    const struct expert_stack &s = p.stacks[stack];
    return s.bias ? x + load_element(s.bias, (size_t)expert * p.n_out + out, s.bias_dtype) : x;
}

/* Returns the function of gate and up.  NaN stays NaN. */
static __device__ __forceinline__ float expert_gate_mul(const struct expert_gate &gate, float g,
                                                        float u) {
    if (gate.most == 0.0f) return gate_mul(g, u, gate.kind);
    g = g > gate.most ? gate.most : g;
    u = u > gate.most ? gate.most : u < -gate.most ? -gate.most : u;
    return g / (1.0f + __expf(-gate.slope * g)) * (u + 1.0f);
}

/* Stores the function of gate and up, which lack their biases, as a pair's output. */
static __device__ __forceinline__ void store_gated(const struct expert_product &p, uint32_t expert,
                                                   uint32_t place, uint32_t out, float gate,
                                                   float up) {
    if (out >= p.n_out) return;
    const float x = expert_gate_mul(p.gate, with_expert_bias(p, 0, expert, out, gate),
                                    with_expert_bias(p, 1, expert, out, up));
    store_as(static_cast<__nv_bfloat16 *>(p.y) + (size_t)place * p.n_out + out, x);
}

/* Stores a pair's output, which lacks its bias. */
static __device__ __forceinline__ void store_plain(const struct expert_product &p, uint32_t expert,
                                                   uint32_t place, uint32_t out, float x) {
    if (out >= p.n_out) return;
    const size_t at = (size_t)place * p.n_out + out;
    x = with_expert_bias(p, 0, expert, out, x);
    if (p.y_f32) static_cast<float *>(p.y)[at] = x;
    else store_as(static_cast<__nv_bfloat16 *>(p.y) + at, x);
}

#endif
