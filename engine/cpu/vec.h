/* vec.h - sixteen floats at a time, in GCC's vector types.
 *
 * The kernels are written once against these and compiled once per instruction set: sixteen lanes are
 * one AVX-512 register, two of AVX2, four of SSE.  Sums therefore have one order on every machine. */
#ifndef ENGINE_CPU_VEC_H
#define ENGINE_CPU_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "engine/backend.h"

enum { LANES = 16 };

typedef float v16f __attribute__((vector_size(64), aligned(4)));
typedef int32_t v16i __attribute__((vector_size(64), aligned(4)));
typedef uint32_t v16u __attribute__((vector_size(64), aligned(4)));
typedef uint16_t v16h __attribute__((vector_size(32), aligned(2)));

static inline v16f v16_set(float x) {
    return x - (v16f){0};
}

static inline v16f v16_load(const float *p) {
    v16f v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static inline void v16_store(float *p, v16f v) {
    memcpy(p, &v, sizeof(v));
}

static inline v16f v16_from_bf16(v16h h) {
    return (v16f)(__builtin_convertvector(h, v16u) << 16);
}

/* Shifting the exponent and multiplying by 2^112 handles normals and subnormals alike; inf and NaN keep
 * a full exponent by the select. */
static inline v16f v16_from_f16(v16h h) {
    v16u x = __builtin_convertvector(h, v16u);
    v16u magnitude = (x & 0x7fffu) << 13;
    v16f value = (v16f)magnitude * 0x1p112f;
    v16u special = (v16u)((x & 0x7c00u) == 0x7c00u);
    v16u bits = ((v16u)value & ~special) | ((magnitude | 0x7f800000u) & special);
    return (v16f)(bits | ((x & 0x8000u) << 16));
}

static inline v16f v16_load_as(const void *p, size_t index, enum dtype dtype) {
    if (dtype == DTYPE_F32) return v16_load((const float *)p + index);
    v16h h;
    memcpy(&h, (const uint16_t *)p + index, sizeof(h));
    return dtype == DTYPE_BF16 ? v16_from_bf16(h) : v16_from_f16(h);
}

/* The last n < 16 elements of a row; the other lanes are zero. */
static inline v16f v16_load_tail(const void *p, size_t index, uint32_t n, enum dtype dtype) {
    char padded[64] = {0};
    size_t size = dtype_size(dtype);
    memcpy(padded, (const char *)p + index * size, n * size);
    return v16_load_as(padded, 0, dtype);
}

static inline float v16_sum(v16f v) {
    float a[16];
    v16_store(a, v);
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) a[i] += a[i + half];
    }
    return a[0];
}

static inline float v16_max(v16f v) {
    float a[16];
    v16_store(a, v);
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) a[i] = a[i] > a[i + half] ? a[i] : a[i + half];
    }
    return a[0];
}

/* 2^x for x <= 0 (and small positive x); below -126 it is 0.  Degree-6 polynomial on [-0.5, 0.5],
 * relative error below 2e-7. */
static inline v16f v16_exp2(v16f x) {
    v16i underflow = x < -126.0f;
    x = (v16f)((v16i)x & ~underflow);
    v16f magic = v16_set(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    v16f shifted = x + magic;
    v16f whole = shifted - magic;
    v16f f = x - whole;
    v16f p = v16_set(1.5403530e-4f);
    p = p * f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
    p = p * f + 1.0f;
    v16i exponent = ((v16i)shifted - (v16i)magic) << 23;
    return (v16f)(((v16i)p + exponent) & ~underflow);
}

static inline float f16_to_f32(uint16_t h) {
    v16h v = {h};
    return v16_from_f16(v)[0];
}

static inline float bf16_to_f32(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* Round to nearest even; NaN stays NaN. */
static inline uint16_t f32_to_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

static inline uint16_t f32_to_f16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds past 65504 */
    if (magnitude < 0x38800000u) {                                  /* subnormal: let the FPU round */
        float scaled;
        memcpy(&scaled, &magnitude, sizeof(scaled));
        return (uint16_t)(sign | (uint32_t)lrintf(scaled * 0x1p24f));
    }
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

static inline float load_as_f32(const void *p, size_t index, enum dtype dtype) {
    if (dtype == DTYPE_F32) return ((const float *)p)[index];
    uint16_t h = ((const uint16_t *)p)[index];
    return dtype == DTYPE_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

static inline void store_f32_as(void *p, size_t index, float value, enum dtype dtype) {
    if (dtype == DTYPE_F32) {
        ((float *)p)[index] = value;
    } else {
        ((uint16_t *)p)[index] = dtype == DTYPE_BF16 ? f32_to_bf16(value) : f32_to_f16(value);
    }
}

#endif
