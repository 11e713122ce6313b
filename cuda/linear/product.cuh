/* product.cuh - what product kernels do alike: finding a tile's part, biases, results.
 *
 * Tiles are `width` outputs of a part; the last one of a part may be smaller.  Gate and up count as
 * one part, whose tiles have half of their width of each.
 *
 * Thread: device code, and launchers on the engine thread.  Memory: none. */
#ifndef CUDA_LINEAR_PRODUCT_CUH
#define CUDA_LINEAR_PRODUCT_CUH

#include "cuda/common/device.cuh"
#include "cuda/linear/product.h"

/* Returns the number of the part to which tile *tile belongs; *tile becomes its number in the
 * part. */
static __device__ __forceinline__ uint32_t find_part(const struct product &p, uint32_t width,
                                                     uint32_t *tile) {
    uint32_t i = 0;
#pragma unroll 1
    for (; i + 1 < p.n_parts && !p.gated; i++) {
        const uint32_t n_tiles = (p.parts[i].n_out + width - 1) / width;
        if (*tile < n_tiles) break;
        *tile -= n_tiles;
    }
    return i;
}

/* Returns how many tiles of `width` outputs all parts have together; if gated, of both. */
static inline uint32_t count_tiles(const struct product *p, uint32_t width) {
    uint32_t n = 0;
    if (p->gated) return (p->parts[0].n_out + width / 2 - 1) / (width / 2);
    for (uint32_t i = 0; i < p->n_parts; i++) n += (p->parts[i].n_out + width - 1) / width;
    return n;
}

/* Returns x plus the part's bias of output `out`, if it has one. */
static __device__ __forceinline__ float with_bias(const struct product_part *part, uint32_t out,
                                                  float x) {
    return part->bias ? x + load_element(part->bias, out, part->bias_dtype) : x;
}

/* Writes x to y of the part at this row and output, or adds it to what is there if accumulate.  y
 * is f32 if y_f32, else bf16. */
static __device__ __forceinline__ void store_result(const struct product &p,
                                                    const struct product_part *part, uint32_t row,
                                                    uint32_t out, float x) {
    const size_t at = row * part->y_stride + out;
    if (p.y_f32) {
        float *y = static_cast<float *>(part->y) + at;
        *y = p.accumulate ? *y + x : x;
    } else {
        __nv_bfloat16 *y = static_cast<__nv_bfloat16 *>(part->y) + at;
        store_as(y, p.accumulate ? to_float(*y) + x : x);
    }
}

#endif
