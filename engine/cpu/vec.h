/* vec.h - LANES floats at a time, in GCC's vector types: one register of the instruction set.
 *
 * The kernels are written once against these and compiled once per instruction set. */
#ifndef ENGINE_CPU_VEC_H
#define ENGINE_CPU_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "engine/device/weight.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

typedef float vecf __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t veci __attribute__((vector_size(LANES * 4), aligned(4)));
typedef uint32_t vecu __attribute__((vector_size(LANES * 4), aligned(4)));
/* Pairs of 16-bit numbers, as they lie in memory. */
typedef uint32_t vecp __attribute__((vector_size(LANES * 4), aligned(2), may_alias));
typedef uint16_t vech __attribute__((vector_size(LANES * 2), aligned(2), may_alias));
typedef int16_t vecs __attribute__((vector_size(LANES * 2), aligned(2)));
typedef uint8_t vecb __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef int8_t vecc __attribute__((vector_size(LANES), aligned(1), may_alias));

/* Widens bytes with their signs.  Compilers convert to four times the width one by one, and to
 * twice the width by an instruction. */
static inline veci vec_from_bytes(vecc bytes) {
#if defined(__AVX512F__)
    return (veci)_mm512_cvtepi8_epi32((__m128i)bytes);
#elif defined(__AVX2__)
    return (veci)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)&bytes));
#else
    return __builtin_convertvector(__builtin_convertvector(bytes, vecs), veci);
#endif
}

static inline vecf vec_set(float x) {
    return x - (vecf){0};
}

static inline vecf vec_max(vecf a, vecf b) {
    veci greater = a > b;
    return (vecf)(((veci)a & greater) | ((veci)b & ~greater));
}

static inline vecf vec_load(const float *p) {
    return *(const vecf *)p; /* GCC splits a memcpy of 32 bytes into two */
}

static inline void vec_store(float *p, vecf v) {
    *(vecf *)p = v;
}

static inline vecf vec_from_bf16(vech h) {
    return (vecf)(__builtin_convertvector(h, vecu) << 16);
}

/* Converts f16 to f32.  Shifting the exponent and multiplying by 2^112 handles normals and
 * subnormals alike; the mask gives inf and NaN a full exponent. */
static inline vecf vec_from_f16(vech h) {
    vecu x = __builtin_convertvector(h, vecu);
    vecu magnitude = (x & 0x7fffu) << 13;
    vecf value = (vecf)magnitude * 0x1p112f;
    vecu special = (vecu)((x & 0x7c00u) == 0x7c00u);
    vecu bits = ((vecu)value & ~special) | ((magnitude | 0x7f800000u) & special);
    return (vecf)(bits | ((x & 0x8000u) << 16));
}

/* Converts e4m3 codes (fp8.h) to f32.  The bits of a code, shifted into an f32, give 2^-120 times
 * its value; this holds for subnormal codes, too. */
static inline vecf vec_from_e4m3(vecb codes) {
    vecu x = (vecu)vec_from_bytes((vecc)codes), magnitude = x & 0x7fu;
    vecf value = (vecf)(magnitude << 20) * 0x1p120f;
    vecu nan = (vecu)(magnitude == 0x7fu);
    return (vecf)((((vecu)value | (x & 0x80000000u)) & ~nan) | (0x7fc00000u & nan));
}

/* Loads e4m3 codes that are no NaN.  The sign is extended to bit 31, where it belongs. */
static inline vecf vec_from_finite_e4m3(const void *p, size_t index) {
    const veci x = vec_from_bytes(*(const vecc *)((const int8_t *)p + index));
    return (vecf)(((vecu)x << 20) & 0x87f00000u) * 0x1p120f;
}

static inline vecf vec_load_as(const void *p, size_t index, enum element element) {
    if (element == ELEMENT_F32) return vec_load((const float *)p + index);
    if (element == ELEMENT_E4M3) return vec_from_e4m3(*(const vecb *)((const uint8_t *)p + index));
    vech h = *(const vech *)((const uint16_t *)p + index);
    return element == ELEMENT_BF16 ? vec_from_bf16(h) : vec_from_f16(h);
}

/* Loads the last n < LANES elements of a row; the other lanes are zero. */
static inline vecf vec_load_tail(const void *p, size_t index, uint32_t n, enum element element) {
    char padded[LANES * 4] = {0};
    memcpy(padded, (const char *)p + element_bytes(element, index), element_bytes(element, n));
    return vec_load_as(padded, 0, element);
}

/* Adds halves, then quarters, ...: vec_reduce() uses the same order for each of its sums. */
static inline float vec_sum(vecf v) {
    float a[LANES];
    vec_store(a, v);
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) a[i] += a[i + half];
    }
    return a[0];
}

/* Adds the halves of each group of lanes in two registers.  Sums of a are in the lanes without bit
 * `half`, those of b in the lanes with it. */
static inline __attribute__((always_inline)) vecf vec_fold(vecf a, vecf b, int half) {
    veci low, high;
    for (int lane = 0; lane < LANES; lane++) {
        low[lane] = lane & half ? LANES + lane - half : lane;
        high[lane] = lane & half ? LANES + lane : lane + half;
    }
    return __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, high);
}

static inline __attribute__((always_inline)) void vec_fold_all(vecf *t, int half) {
    if (half >= LANES) return;
#pragma GCC unroll 8
    for (int i = 0; i < half; i++) t[i] = vec_fold(t[i], t[i + half], half);
}

/* Returns LANES sums at once: lane i is vec_sum(m[i]), bit for bit. */
static inline __attribute__((always_inline)) vecf vec_reduce(const vecf *m) {
    vecf t[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) t[i] = m[i];
    vec_fold_all(t, 8);
    vec_fold_all(t, 4);
    vec_fold_all(t, 2);
    vec_fold_all(t, 1);
    return t[0];
}

/* Exchanges the blocks of `half` lanes off the diagonal, in pairs of registers. */
static inline __attribute__((always_inline)) void vec_exchange(vecf *m, int half) {
    if (half >= LANES) return;
    veci low, high;
    for (int lane = 0; lane < LANES; lane++) {
        low[lane] = lane & half ? LANES + lane - half : lane;
        high[lane] = lane & half ? LANES + lane : lane + half;
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
        if (i & half) continue;
        const vecf a = m[i], b = m[i + half];
        m[i] = __builtin_shuffle(a, b, low);
        m[i + half] = __builtin_shuffle(a, b, high);
    }
}

/* Transposes LANES registers, as rows of a square matrix. */
static inline __attribute__((always_inline)) void vec_transpose(vecf *m) {
    vec_exchange(m, 8);
    vec_exchange(m, 4);
    vec_exchange(m, 2);
    vec_exchange(m, 1);
}

/* Returns 2^x for x <= 0 (and small positive x), and 0 below -126.  A polynomial of degree 6 on
 * [-0.5, 0.5] has a relative error below 2e-7. */
static inline vecf vec_exp2(vecf x) {
    veci underflow = x < -126.0f;
    x = (vecf)((veci)x & ~underflow);
    vecf magic = vec_set(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    vecf shifted = x + magic;
    vecf whole = shifted - magic;
    vecf f = x - whole;
    vecf p = vec_set(1.5403530e-4f);
    p = p * f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
    p = p * f + 1.0f;
    veci exponent = ((veci)shifted - (veci)magic) << 23;
    return (vecf)(((veci)p + exponent) & ~underflow);
}

static inline float f16_to_f32(uint16_t h) {
    vech v = {h};
    return vec_from_f16(v)[0];
}

static inline float bf16_to_f32(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* Rounds to nearest even; NaN stays NaN. */
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
    if (magnitude < 0x38800000u) { /* subnormal: let the FPU round */
        float scaled;
        memcpy(&scaled, &magnitude, sizeof(scaled));
        return (uint16_t)(sign | (uint32_t)lrintf(scaled * 0x1p24f));
    }
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

static inline float e4m3_to_f32(uint8_t code) {
    vecb v = {code};
    return vec_from_e4m3(v)[0];
}

static inline float load_as_f32(const void *p, size_t index, enum element element) {
    if (element == ELEMENT_F32) return ((const float *)p)[index];
    if (element == ELEMENT_E4M3) return e4m3_to_f32(((const uint8_t *)p)[index]);
    uint16_t h = ((const uint16_t *)p)[index];
    return element == ELEMENT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

static inline void store_f32_as(void *p, size_t index, float value, enum element element) {
    if (element == ELEMENT_F32) {
        ((float *)p)[index] = value;
    } else {
        ((uint16_t *)p)[index] = element == ELEMENT_BF16 ? f32_to_bf16(value) : f32_to_f16(value);
    }
}

#endif
