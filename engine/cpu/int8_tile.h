/* int8_tile.h - what int8_kernels.c has for each instruction set: registers of whole numbers, codes
 * and scales of weights, and packed rows of x.
 *
 * Included by int8_kernels.c alone, which says how all of it is used. */
#ifndef ENGINE_CPU_INT8_TILE_H
#define ENGINE_CPU_INT8_TILE_H

#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/base/sizes.h"
#include "engine/cpu/int8_kernels.h"
#include "engine/cpu/vec.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(INT8_NEON) /* plain C is compiled for ARM, too */
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))

/* Outputs are computed VECS registers at a time, for TILE_ROWS rows of x: their sums fit the
 * registers.  UNROLLED: how often loops over these are unrolled.  Up to FEW_ROWS rows, no codes
 * are widened, and FEW_TILE of them are multiplied at a time. */
#if defined(__AVX512VNNI__)
enum { TILE_ROWS = 6, VECS = 2, FEW_ROWS = 8, FEW_TILE = 4, UNROLLED = 8 };
#elif defined(__AVX2__)
enum { TILE_ROWS = 3, VECS = 2, FEW_ROWS = 6, FEW_TILE = 2, UNROLLED = 8 };
#elif defined(INT8_NEON) && defined(__ARM_FEATURE_MATMUL_INT8)
enum { TILE_ROWS = 4, VECS = 4, FEW_ROWS = 2, FEW_TILE = 2, UNROLLED = 8 };
#elif defined(INT8_NEON)
enum { TILE_ROWS = 3, VECS = 4, FEW_ROWS = 2, FEW_TILE = 2, UNROLLED = 8 };
#else
enum { TILE_ROWS = 1, VECS = 4, FEW_ROWS = 0, FEW_TILE = 2, UNROLLED = 1 };
#endif
/* MANY_ROWS: rows whose sums are held while sections pass by.  BLOCK_EXTRA: bytes of a block of x
 * beside its codes.  GROUP_VECS: registers of a group. */
enum { MANY_ROWS = 256, BLOCK_EXTRA = 20, GROUP_VECS = INT8_GROUP / LANES };
enum { TILE_COLS = VECS * LANES, GROUPS = TILE_COLS / INT8_GROUP };

/* ---- registers ---- */

#if defined(__AVX512VNNI__)
typedef __m512i whole;
#elif defined(__AVX2__)
typedef __m256i whole;
#else
typedef veci whole;
#endif

/* Whether codes of 8 bits get a sign.  AVX2's instruction adds products in pairs, and a pair of
 * codes without a sign would not fit its sum.  NEON's multiplies two numbers with a sign. */
#if (defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)) || defined(INT8_NEON)
enum { SIGNED_BYTES = 1 };
#else
enum { SIGNED_BYTES = 0 };
#endif

/* Whether an instruction adds four products to a sum at once, without pairs that could be too
 * large on the way. */
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
enum { ADDS_WHOLE = 1 };
#else
enum { ADDS_WHOLE = 0 };
#endif

INLINE vecf multiply_add(vecf a, vecf b, vecf c) {
#if defined(__AVX512F__)
    return (vecf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (vecf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(INT8_NEON)
    return (vecf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    for (int i = 0; i < LANES; i++) c[i] = fmaf(a[i], b[i], c[i]);
    return c;
#endif
}

INLINE whole same_in_all(int32_t x) {
#if defined(__AVX512VNNI__)
    return _mm512_set1_epi32(x);
#elif defined(__AVX2__)
    return _mm256_set1_epi32(x);
#else
    return x - (veci){0};
#endif
}

INLINE vecf floats_of(whole sums) {
    return __builtin_convertvector((veci)sums, vecf);
}

INLINE vecf floats_of_bytes(const uint8_t *bytes) {
    return __builtin_convertvector(vec_from_bytes(*(const vecc *)bytes), vecf);
}

/* Adds to each lane of sum the products of its 4 codes with those of x. */
INLINE whole add_products(whole sum, whole codes, whole x, bool is_signed) {
#if defined(__AVX512VNNI__)
    (void)is_signed;
    return _mm512_dpbusd_epi32(sum, codes, x);
#elif defined(__AVXVNNI__)
    (void)is_signed;
    return _mm256_dpbusd_avx_epi32(sum, codes, x);
#elif defined(__AVX2__)
    if (is_signed) {
        x = _mm256_sign_epi8(x, codes);
        codes = _mm256_abs_epi8(codes);
    }
    const whole pairs = _mm256_maddubs_epi16(codes, x);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#elif defined(INT8_NEON) && defined(__ARM_FEATURE_DOTPROD)
    (void)is_signed;
    return (whole)vdotq_s32((int32x4_t)sum, (int8x16_t)codes, (int8x16_t)x);
#elif defined(INT8_NEON)
    (void)is_signed; /* a sum of two products fits 16 bits */
    const int16x8_t low = vmull_s8(vget_low_s8((int8x16_t)codes), vget_low_s8((int8x16_t)x)),
                    high = vmull_high_s8((int8x16_t)codes, (int8x16_t)x);
    return (whole)vpadalq_s16((int32x4_t)sum, vpaddq_s16(low, high));
#else
    (void)is_signed;
    for (int i = 0; i < LANES; i++) {
        for (int c = 0; c < 4; c++) {
            const uint8_t code = (uint8_t)((uint32_t)codes[i] >> 8 * c);
            sum[i] += code * (int8_t)((uint32_t)x[i] >> 8 * c);
        }
    }
    return sum;
#endif
}

INLINE whole load(const uint8_t *from) {
    whole codes;
    memcpy(&codes, from, sizeof(codes));
    return codes;
}

/* Keeps x in its register: the compiler would load it again for each row of x. */
INLINE whole kept(whole x) {
#if defined(__AVX2__)
    __asm__("" : "+v"(x));
#elif defined(INT8_NEON)
    __asm__("" : "+w"(x));
#endif
    return x;
}

/* Moves bits by n places, to the higher ones if n > 0; bits cross bytes, so the caller masks. */
INLINE whole shifted(whole x, int n) {
    return n < 0 ? (whole)((vecu)x >> -n) : (whole)((vecu)x << n);
}

INLINE whole masked(whole x, uint8_t mask) {
    return (whole)((vecu)x & (mask * UINT32_C(0x01010101)));
}

/* Returns codes with the masked bits of x: one instruction of AVX-512, which the compiler does not
 * find. */
INLINE whole joined(whole codes, whole x, uint8_t mask) {
#if defined(__AVX512VNNI__)
    return _mm512_ternarylogic_epi32(codes, x, masked(same_in_all(-1), mask), 0xf8);
#else
    return (whole)((vecu)codes | (vecu)masked(x, mask));
#endif
}

/* Replaces each code, 0 to 15, by its byte of the table. */
INLINE whole looked_up(whole codes, const uint8_t *table) {
#if defined(__AVX512VNNI__)
    return _mm512_shuffle_epi8(
        _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)table)), codes);
#elif defined(__AVX2__)
    return _mm256_shuffle_epi8(
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table)), codes);
#elif defined(INT8_NEON)
    return (whole)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)codes);
#else
    uint8_t bytes[sizeof(whole)];
    memcpy(bytes, &codes, sizeof(codes));
    for (size_t i = 0; i < sizeof(bytes); i++) bytes[i] = table[bytes[i]];
    return load(bytes);
#endif
}

/* How the codes of a kind lie: constants once it is inlined. */
struct code_shape {
    uint32_t bits, span;
    uint8_t offset; /* of the codes that are multiplied */
    bool has_table;
    bool is_wide;   /* bytes that widen() made, not as they lie in weights */
    bool is_signed; /* they have a sign */
};

/* Returns where the line lies that has a step's codes, or the lower 4 bits of them. */
INLINE const uint8_t *line_of_step(const uint8_t *block, uint32_t j, struct code_shape shape) {
    return block + (shape.bits == 8 ? j : j % 4) * INT8_STEP;
}

/* Returns codes of step j of a block, 4 columns of LANES outputs.  line: what lies there. */
INLINE whole codes_of_line(whole line, const uint8_t *block, uint32_t j, struct code_shape shape,
                           const uint8_t *table) {
    const uint8_t *high = block + 4 * INT8_STEP;
    if (shape.bits == 8 && (shape.is_wide || !shape.is_signed)) return line;
    if (shape.bits == 8) return line ^ masked(same_in_all(-1), 0x80);
    whole codes = masked(shifted(line, j < 4 ? 0 : -4), 0x0f);
    if (shape.has_table) return looked_up(codes, table);
    if (shape.bits == 5) codes = joined(codes, shifted(load(high), 4 - (int)j), 0x10);
    if (shape.bits == 6) {
        const whole bits = load(high + j / 4 * INT8_STEP);
        codes = joined(codes, shifted(bits, 4 - 2 * ((int)j % 4)), 0x30);
    }
    return codes;
}

INLINE whole codes_of_step(const uint8_t *block, uint32_t j, struct code_shape shape,
                           const uint8_t *table) {
    return codes_of_line(load(line_of_step(block, j, shape)), block, j, shape, table);
}

/* ---- x ---- */

/* Where what lies of packed rows of x. */
struct input {
    const int8_t *codes; /* of the first row and block; the others' lie so many bytes behind: */
    size_t stride;
    size_t d, starts, sums;
};

INLINE struct input input_of(const void *x, size_t stride, uint32_t n_blocks, uint32_t span) {
    const size_t d = (size_t)n_blocks * INT8_BLOCK, starts = d + n_blocks * sizeof(float),
                 n_spans = (size_t)n_blocks * (INT8_BLOCK / span);
    return (struct input){x, stride, d, starts, starts + n_spans * sizeof(int32_t)};
}

INLINE float float_at(const struct input *in, size_t numbers, uint32_t row, uint32_t i) {
    float value;
    memcpy(&value, (const char *)in->codes + row * in->stride + numbers + i * sizeof(value),
           sizeof(value));
    return value;
}

INLINE int32_t start_at(const struct input *in, uint32_t row, uint32_t span) {
    int32_t value;
    memcpy(&value, (const char *)in->codes + row * in->stride + in->starts + span * sizeof(value),
           sizeof(value));
    return value;
}

INLINE whole x_of_step(const struct input *in, uint32_t row, uint32_t block, uint32_t j) {
    int32_t four;
    memcpy(&four, in->codes + row * in->stride + block * INT8_BLOCK + 4 * j, sizeof(four));
    return same_in_all(four);
}

/* Rounds 32 floats to codes and returns d.  Values below 2^-100 are as good as 0.  NaN or infinity
 * makes d NaN, and with it the row's outputs. */
INLINE float round_block(int8_t *codes, const float *x) {
    vecu most = {0};
    uint32_t bits = 0;
    float largest;
    for (int i = 0; i < INT8_BLOCK; i += LANES) {
        const vecu magnitude = (vecu)vec_load(x + i) & 0x7fffffffu, greater = magnitude > most;
        most = (magnitude & greater) | (most & ~greater);
    }
    for (int i = 0; i < LANES; i++) bits = most[i] > bits ? most[i] : bits;
    memcpy(&largest, &bits, sizeof(largest));
    if (bits >= 0x7f800000u || largest < 0x1p-100f) {
        memset(codes, 0, INT8_BLOCK);
        return bits >= 0x7f800000u ? NAN : 0;
    }
    const vecf factor = vec_set(127.0f / largest), magic = vec_set(0x1.8p23f);
    for (int i = 0; i < INT8_BLOCK; i += LANES) {
        /* Adding the magic number rounds to a whole one, ties to even. */
        const veci rounded = (veci)(vec_load(x + i) * factor + magic) - (veci)magic;
        *(vecc *)(codes + i) = __builtin_convertvector(rounded, vecc);
    }
    return largest / 127.0f;
}

INLINE void pack_row(char *out, const float *x, uint32_t n_in, uint32_t span, int32_t offset) {
    const uint32_t n_blocks = (uint32_t)div_up(n_in, INT8_BLOCK), per_block = INT8_BLOCK / span;
    const struct input in = input_of(out, 0, n_blocks, span);
    int8_t *codes = (int8_t *)out;
    for (uint32_t b = 0; b < n_blocks; b++, codes += INT8_BLOCK) {
        const uint32_t n = min_u32(INT8_BLOCK, n_in - b * INT8_BLOCK);
        float padded[INT8_BLOCK] = {0};
        if (n < INT8_BLOCK) memcpy(padded, x + (size_t)b * INT8_BLOCK, n * sizeof(float));
        const float d = round_block(codes, n < INT8_BLOCK ? padded : x + (size_t)b * INT8_BLOCK);
        memcpy(out + in.d + b * sizeof(d), &d, sizeof(d));
        for (uint32_t s = 0; s < per_block; s++) {
            int32_t sum = 0;
            for (uint32_t c = s * span; c < (s + 1) * span; c++) sum += codes[c];
            const size_t at = ((size_t)b * per_block + s) * sizeof(sum);
            const int32_t start = -offset * sum;
            const float scaled = d * (float)sum;
            memcpy(out + in.starts + at, &start, sizeof(start));
            memcpy(out + in.sums + at, &scaled, sizeof(scaled));
        }
    }
}

INLINE void pack_rows(void *out, size_t stride, const float *x, uint32_t n_rows, uint32_t n_in,
                      struct code_shape shape) {
    for (uint32_t r = 0; r < n_rows; r++)
        pack_row((char *)out + r * stride, x + (size_t)r * n_in, n_in, shape.span, shape.offset);
}

/* ---- scales ---- */

/* Loads LANES numbers. */
INLINE vecf numbers_at(const uint8_t *numbers, size_t at, enum int8_scale type) {
#if defined(__AVX512F__)
    if (type == INT8_SCALE_F16)
        return (vecf)_mm512_cvtph_ps(
            _mm256_loadu_si256((const __m256i *)(const void *)(numbers + 2 * at)));
#elif defined(__AVX2__)
    if (type == INT8_SCALE_F16)
        return (vecf)_mm256_cvtph_ps(
            _mm_loadu_si128((const __m128i *)(const void *)(numbers + 2 * at)));
#elif defined(INT8_NEON)
    if (type == INT8_SCALE_F16)
        return (vecf)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(numbers + 2 * at)));
#endif
    return vec_load_as(numbers, at, (enum element)type);
}

/* The scales and mins of a section of a group, for each of its spans. */
struct scales {
    float scale[2 * INT8_SECTION][INT8_GROUP], min[2 * INT8_SECTION][INT8_GROUP];
};

/* Converts numbers, of which each is that of 2^per spans. */
INLINE void convert_numbers(float (*out)[INT8_GROUP], const uint8_t *numbers, uint32_t n,
                            uint32_t per, enum int8_scale type) {
    for (uint32_t s = 0; s < n; s++)
        for (uint32_t v = 0; v < GROUP_VECS; v++)
            vec_store(out[s] + v * LANES,
                      numbers_at(numbers, (s >> per) * INT8_GROUP + v * LANES, type));
}

/* Converts bytes, which are in units of their superblock. */
INLINE void convert_bytes(float (*out)[INT8_GROUP], const uint8_t *bytes, const uint8_t *units,
                          uint32_t n, uint32_t span, float sign) {
    for (uint32_t s = 0; s < n; units += 2 * INT8_GROUP) {
        vecf unit[GROUP_VECS];
        for (uint32_t v = 0; v < GROUP_VECS; v++)
            unit[v] = numbers_at(units, v * LANES, INT8_SCALE_F16) * sign;
        for (const uint32_t end = min_u32(n, s + INT8_SUPER / span); s < end; s++)
            for (uint32_t v = 0; v < GROUP_VECS; v++)
                vec_store(out[s] + v * LANES,
                          unit[v] * floats_of_bytes(bytes + s * INT8_GROUP + v * LANES));
    }
}

/* Converts the numbers of n spans of a section. */
INLINE void convert_section(struct scales *out, const struct int8_weight *w,
                            const struct int8_section *at, const uint8_t *section, uint32_t n,
                            uint32_t span) {
    const enum int8_scale type = w->layout.scale;
    const uint32_t per = (uint32_t)__builtin_ctz(w->scale_cols / span);
    const bool has_min = w->layout.has_min;
    if (type == INT8_SCALE_BYTES) {
        convert_bytes(out->scale, section, section + at->units, n, span, 1);
        if (has_min)
            convert_bytes(out->min, section + at->mins, section + at->min_units, n, span, -1);
    } else if (type == INT8_SCALE_F16) {
        convert_numbers(out->scale, section, n, per, INT8_SCALE_F16);
        if (has_min) convert_numbers(out->min, section + at->mins, n, per, INT8_SCALE_F16);
    } else {
        convert_numbers(out->scale, section, n, per, type);
        if (has_min) convert_numbers(out->min, section + at->mins, n, per, type);
    }
}

/* ---- tiles ---- */

/* A tile of outputs: rows of x by registers of columns. */
struct tile {
    struct input x;
    const uint8_t *codes[VECS];  /* of the first block */
    size_t block_bytes;          /* from a block of codes to the next */
    const struct scales *scales; /* [groups of the tile] */
    const uint8_t *table;
    bool has_min;
    float *sums; /* [rows][TILE_COLS] */
};

/* Returns a register's scales, or mins, of a span. */
INLINE vecf scale_at(const struct tile *t, uint32_t v, uint32_t span) {
    return vec_load(t->scales[v * LANES / INT8_GROUP].scale[span] + v * LANES % INT8_GROUP);
}

INLINE vecf min_at(const struct tile *t, uint32_t v, uint32_t span) {
    return vec_load(t->scales[v * LANES / INT8_GROUP].min[span] + v * LANES % INT8_GROUP);
}

/* Returns a group; where a matrix ends, the last one. */
INLINE const uint8_t *group_at(const struct int8_weight *w, uint32_t col) {
    const uint32_t last = (uint32_t)div_up(w->rows, INT8_GROUP) - 1;
    return w->data + min_u32(col / INT8_GROUP, last) * w->group_bytes;
}

#endif
