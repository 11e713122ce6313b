/* rotation.cuh - rotates keys that are stored before RoPE, by the ranks of their tokens.
 *
 * An angle is rank * inv_freq / 2 pi, computed in two floats, of which the nearest integer is
 * subtracted.  Both are exact, so the rest is off by 2^-25 of a full circle, 2e-7 radians, at any
 * rank below 2^24.
 *
 * Thread: device code.  Memory: none. */
#ifndef CUDA_COMMON_ROTATION_CUH
#define CUDA_COMMON_ROTATION_CUH

#include "cuda/common/device.cuh"
#include "cuda/common/pages.cuh"
#include "cuda/host/kernels.h"
#include "engine/device/pages.h"

/* Returns cos and sin, scaled, of pair `freq` at a rank. */
static __device__ __forceinline__ float2 angle_of(const struct key_rotations &t, uint32_t freq,
                                                  uint32_t rank) {
    const float2 rotations = reinterpret_cast<const float2 *>(t.per_rank)[freq];
    const float r = (float)rank, whole = r * rotations.x;
    const float rest = fmaf(r, rotations.x, -whole) + r * rotations.y;
    float s, c;
    sincospif(2.0f * ((whole - rintf(whole)) + rest), &s, &c);
    return make_float2(c * t.scale, s * t.scale);
}

/* Returns element d, rotated, of a key in a format. */
static __device__ __forceinline__ float rotated_element(const void *key, enum page_format format,
                                                        uint32_t d, const struct key_rotations &t,
                                                        uint32_t rank) {
    const float x = load_element(key, d, format);
    const uint32_t n = t.n_freqs;
    if (d >= 2 * n) return x;
    const float2 angle = angle_of(t, d < n ? d : d - n, rank);
    if (d < n) return x * angle.x - load_element(key, d + n, format) * angle.y;
    return x * angle.x + load_element(key, d - n, format) * angle.y;
}

/* Rotates eight pairs (a, b) of a key, from pair `freq` on.  Rounds like a key that was stored
 * after RoPE. */
template <typename T>
static __device__ __forceinline__ void rotate_pairs(uint4 *a, uint4 *b,
                                                    const struct key_rotations &t, uint32_t freq,
                                                    uint32_t rank) {
    uint32_t *low = &a->x, *high = &b->x;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const float2 u = unpack_pair<T>(low[i]), v = unpack_pair<T>(high[i]),
                     first = angle_of(t, freq + 2 * i, rank),
                     second = angle_of(t, freq + 2 * i + 1, rank);
        low[i] = pack_pair<T>(u.x * first.x - v.x * first.y, u.y * second.x - v.y * second.y);
        high[i] = pack_pair<T>(v.x * first.x + u.x * first.y, v.y * second.x + u.y * second.y);
    }
}

/* Rotates the keys of a page's slots in shared memory (rows of `stride` elements), with all threads
 * of the block.  Slots from n_valid on are unchanged. */
template <typename T>
static __device__ __forceinline__ void rotate_page(T *keys, uint32_t stride, int n_valid,
                                                   const struct key_rotations &t,
                                                   const struct kv_page_state *state) {
    const uint32_t n = t.n_freqs;
    for (uint32_t i = threadIdx.x; i < PAGE_TOKENS * (n / 8); i += blockDim.x) {
        const uint32_t row = i % PAGE_TOKENS, freq = i / PAGE_TOKENS * 8;
        if ((int)row >= n_valid) continue;
        T *at = keys + row * stride + freq;
        uint4 *a = reinterpret_cast<uint4 *>(at), *b = reinterpret_cast<uint4 *>(at + n);
        uint4 x = *a, y = *b;
        rotate_pairs<T>(&x, &y, t, freq, state->rank[row]);
        *a = x;
        *b = y;
    }
}

#endif
