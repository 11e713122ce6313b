/* int8_kernels.c - see int8_kernels.h.  Compiled once per instruction set with INT8_NAME set.
 *
 *   a row of x     codes i8 [blocks][32] | d f32 [blocks] | starts i32 [spans] | sums f32 [spans]
 *
 *   step           64 bytes: 4 columns of 16 outputs.  An instruction multiplies 4 codes of x,
 *                  the same in all lanes, with those of each output, and adds them to its sum.
 *
 * Codes of weights have no sign, so the sum of a span starts at -offset * the sum of x's codes.
 *
 * Few rows of x multiply codes as they lie in memory.  For more rows, the codes of a chunk of
 * columns are widened to bytes first.  These stay in the first cache while the rows pass by. */
#include "engine/cpu/int8_kernels.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/base/sizes.h"
#include "engine/cpu/vec.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

/* Outputs are computed VECS registers at a time, for TILE_ROWS rows of x: their sums fit the
 * registers.  UNROLLED: how often loops over these are unrolled.  Up to FEW_ROWS rows, no codes
 * are widened. */
#if defined(__AVX512VNNI__)
enum { TILE_ROWS = 6, VECS = 2, FEW_ROWS = 4, UNROLLED = 8 };
#elif defined(__AVX2__)
enum { TILE_ROWS = 3, VECS = 2, FEW_ROWS = 3, UNROLLED = 8 };
#else
enum { TILE_ROWS = 1, VECS = 4, FEW_ROWS = 1, UNROLLED = 1 };
#endif
/* CHUNK: blocks that are widened at a time.  MANY_ROWS: rows whose sums are held while chunks pass
 * by.  BLOCK_EXTRA: bytes of a block of x beside its codes. */
enum { CHUNK = 16, MANY_ROWS = 256, BLOCK_EXTRA = 20 };
enum { TILE_COLS = VECS * LANES, GROUPS = TILE_COLS / INT8_GROUP };

typedef int8_t vecc __attribute__((vector_size(LANES), aligned(1), may_alias));

/* ---- registers ---- */

#if defined(__AVX512VNNI__)
typedef __m512i whole;
#elif defined(__AVX2__)
typedef __m256i whole;
#else
typedef veci whole;
#endif

/* Whether codes of 8 bits get a sign.  AVX2's instruction adds products in pairs, and a pair of
 * codes without a sign would not fit its sum. */
#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
enum { SIGNED_BYTES = 1 };
#else
enum { SIGNED_BYTES = 0 };
#endif

INLINE vecf multiply_add(vecf a, vecf b, vecf c) {
#if defined(__AVX512F__)
    return (vecf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (vecf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
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

/* Moves bits by n places, to the higher ones if n > 0; bits cross bytes, so the caller masks. */
INLINE whole shifted(whole x, int n) {
    return n < 0 ? (whole)((vecu)x >> -n) : (whole)((vecu)x << n);
}

INLINE whole masked(whole x, uint8_t mask) {
    return (whole)((vecu)x & (mask * UINT32_C(0x01010101)));
}

/* Replaces each code, 0 to 15, by its byte of the table. */
INLINE whole looked_up(whole codes, const uint8_t *table) {
#if defined(__AVX512VNNI__)
    return _mm512_shuffle_epi8(
        _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)table)), codes);
#elif defined(__AVX2__)
    return _mm256_shuffle_epi8(
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table)), codes);
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
    bool has_table;
    bool is_wide;   /* bytes that widen() made, not as they lie in weights */
    bool is_signed; /* they have a sign */
};

/* Returns codes of step j of a block, 4 columns of LANES outputs. */
INLINE whole codes_of_step(const uint8_t *block, uint32_t j, struct code_shape shape,
                           const uint8_t *table) {
    const uint8_t *high = block + 4 * INT8_STEP;
    if (shape.bits == 8 && (shape.is_wide || !shape.is_signed)) return load(block + j * INT8_STEP);
    if (shape.bits == 8) return load(block + j * INT8_STEP) ^ masked(same_in_all(-1), 0x80);
    whole codes = masked(shifted(load(block + j % 4 * INT8_STEP), j < 4 ? 0 : -4), 0x0f);
    if (shape.has_table) return looked_up(codes, table);
    if (shape.bits == 5) codes |= masked(shifted(load(high), 4 - (int)j), 0x10);
    if (shape.bits == 6)
        codes |= masked(shifted(load(high + j / 4 * INT8_STEP), 4 - 2 * ((int)j % 4)), 0x30);
    return codes;
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
                      uint32_t span, int32_t offset) {
    for (uint32_t r = 0; r < n_rows; r++)
        pack_row((char *)out + r * stride, x + (size_t)r * n_in, n_in, span, offset);
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
#endif
    return vec_load_as(numbers, at, (enum element)type);
}

/* The scales and mins of a chunk of columns: [spans][outputs of a tile]. */
struct scales {
    float scale[2 * CHUNK * TILE_COLS], min[2 * CHUNK * TILE_COLS];
};

/* Converts those of a group of weights, LANES outputs from `lane` on, to f32: to column `to`. */
INLINE void convert_scales(struct scales *out, const struct int8_weight *w, const uint8_t *group,
                           uint32_t lane, uint32_t to, uint32_t first, uint32_t n, uint32_t span) {
    const struct int8_layout *l = &w->layout;
    const bool is_bytes = l->scale == INT8_SCALE_BYTES;
    for (uint32_t s = 0; s < n; s++) {
        const uint32_t col = (first + s) * span;
        const size_t at = (l->per_scale ? col / l->per_scale : 0) * (size_t)INT8_GROUP + lane,
                     unit = col / INT8_SUPER * (size_t)INT8_GROUP + lane;
        vecf scale, min = {0};
        if (is_bytes) {
            scale = numbers_at(group + w->units, unit, INT8_SCALE_F16) *
                    __builtin_convertvector(*(const vecc *)(group + at), vecf);
            if (l->has_min)
                min = -(numbers_at(group + w->min_units, unit, INT8_SCALE_F16) *
                        __builtin_convertvector(*(const vecc *)(group + w->mins + at), vecf));
        } else {
            scale = numbers_at(group, at, l->scale);
            if (l->has_min) min = numbers_at(group + w->mins, at, l->scale);
        }
        vec_store(out->scale + s * TILE_COLS + to, scale);
        vec_store(out->min + s * TILE_COLS + to, min);
    }
}

/* ---- a tile of outputs ---- */

struct tile {
    struct input x;
    const uint8_t *codes[VECS]; /* of the first block */
    size_t block_bytes;         /* from a block of codes to the next */
    const struct scales *scales;
    const uint8_t *table;
    bool has_min;
    float *sums; /* [rows][TILE_COLS] */
};

/* Adds the products of a span, the steps from `step` on, to the sums. */
INLINE void add_span(vecf (*acc)[VECS], const struct tile *t, uint32_t rows, uint32_t b,
                     uint32_t half, uint32_t first, struct code_shape shape) {
    const uint32_t per_block = INT8_BLOCK / shape.span, steps = shape.span / 4,
                   span = b * per_block + half;
    whole sums[TILE_ROWS][VECS];
#pragma GCC unroll UNROLLED
    for (uint32_t r = 0; r < rows; r++) {
        const whole start = same_in_all(start_at(&t->x, r, first * per_block + span));
#pragma GCC unroll UNROLLED
        for (uint32_t v = 0; v < VECS; v++) sums[r][v] = start;
    }
#pragma GCC unroll UNROLLED
    for (uint32_t j = half * steps; j < (half + 1) * steps; j++) {
        whole codes[VECS];
#pragma GCC unroll UNROLLED
        for (uint32_t v = 0; v < VECS; v++)
            codes[v] = codes_of_step(t->codes[v] + b * t->block_bytes, j, shape, t->table);
#pragma GCC unroll UNROLLED
        for (uint32_t r = 0; r < rows; r++) {
            const whole x = x_of_step(&t->x, r, first + b, j);
#pragma GCC unroll UNROLLED
            for (uint32_t v = 0; v < VECS; v++)
                sums[r][v] = add_products(sums[r][v], codes[v], x, shape.is_signed);
        }
    }
#pragma GCC unroll UNROLLED
    for (uint32_t v = 0; v < VECS; v++) {
        const vecf scale = vec_load(t->scales->scale + span * TILE_COLS + v * LANES);
#pragma GCC unroll UNROLLED
        for (uint32_t r = 0; r < rows; r++) {
            const vecf d = vec_set(float_at(&t->x, t->x.d, r, first + b));
            acc[r][v] = multiply_add(floats_of(sums[r][v]), scale * d, acc[r][v]);
        }
        if (!t->has_min) continue;
        const vecf min = vec_load(t->scales->min + span * TILE_COLS + v * LANES);
#pragma GCC unroll UNROLLED
        for (uint32_t r = 0; r < rows; r++) {
            const vecf sum = vec_set(float_at(&t->x, t->x.sums, r, first * per_block + span));
            acc[r][v] = multiply_add(min, sum, acc[r][v]);
        }
    }
}

/* Adds the products of n blocks of rows of x, from block `first` on. */
INLINE void add_tile(const struct tile *t, uint32_t rows, uint32_t first, uint32_t n,
                     struct code_shape shape) {
    vecf acc[TILE_ROWS][VECS];
#pragma GCC unroll UNROLLED
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll UNROLLED
        for (uint32_t v = 0; v < VECS; v++)
            acc[r][v] = vec_load(t->sums + r * TILE_COLS + v * LANES);
    }
    for (uint32_t b = 0; b < n; b++) {
#pragma GCC unroll UNROLLED
        for (uint32_t half = 0; half < INT8_BLOCK / shape.span; half++)
            add_span(acc, t, rows, b, half, first, shape);
    }
#pragma GCC unroll UNROLLED
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll UNROLLED
        for (uint32_t v = 0; v < VECS; v++)
            vec_store(t->sums + r * TILE_COLS + v * LANES, acc[r][v]);
    }
}

/* ---- a block of y ---- */

/* What the columns of a tile need. */
struct columns {
    const struct int8_weight *w;
    const uint8_t *groups[GROUPS]; /* where a matrix ends, the last one again */
    uint32_t first, n;             /* columns of the block */
};

INLINE struct columns columns_at(const struct product_block *b, const struct int8_weight *w,
                                 uint32_t first) {
    struct columns cols = {.w = w, .first = first, .n = min_u32(TILE_COLS, b->n_cols - first)};
    const uint32_t last = (uint32_t)div_up(w->rows, INT8_GROUP) - 1;
    for (uint32_t g = 0; g < GROUPS; g++)
        cols.groups[g] =
            w->data + min_u32((b->col + first) / INT8_GROUP + g, last) * w->group_bytes;
    return cols;
}

INLINE void convert_chunk(struct scales *out, const struct columns *cols, uint32_t first,
                          uint32_t n, uint32_t span) {
    const uint32_t per_block = INT8_BLOCK / span;
    for (uint32_t v = 0; v < VECS; v++)
        convert_scales(out, cols->w, cols->groups[v * LANES / INT8_GROUP], v * LANES % INT8_GROUP,
                       v * LANES, first * per_block, n * per_block, span);
}

/* Writes sums of rows from `row` on to y. */
INLINE void store_rows(const struct product_block *b, const struct columns *cols, const float *sums,
                       uint32_t row, uint32_t n_rows) {
    for (uint32_t r = 0; r < n_rows; r++) {
        float *y = b->y + (row + r) * b->y_stride + cols->first;
        for (uint32_t c = 0; c < cols->n; c++) {
            const float sum = sums[r * TILE_COLS + c] + (b->bias ? b->bias[cols->first + c] : 0);
            y[c] = b->accumulate ? y[c] + sum : sum;
        }
    }
}

/* Makes the bytes of a table that kernels multiply. */
INLINE void table_bytes(uint8_t bytes[16], const struct int8_weight *w, struct code_shape shape) {
    for (int i = 0; shape.has_table && i < 16; i++)
        bytes[i] = (uint8_t)(w->layout.table[i] + (shape.is_signed ? 0 : 128));
}

/* Adds the products of up to TILE_ROWS rows. */
INLINE void add_rows(const struct tile *t, uint32_t rows, uint32_t first, uint32_t n,
                     struct code_shape shape) {
    if (rows == 1) add_tile(t, 1, first, n, shape);
    if (TILE_ROWS >= 2 && rows == 2) add_tile(t, 2, first, n, shape);
    if (TILE_ROWS >= 3 && rows == 3) add_tile(t, 3, first, n, shape);
    if (TILE_ROWS >= 4 && rows == 4) add_tile(t, 4, first, n, shape);
    if (TILE_ROWS >= 5 && rows == 5) add_tile(t, 5, first, n, shape);
    if (TILE_ROWS >= 6 && rows == 6) add_tile(t, 6, first, n, shape);
}

/* Adds those of up to FEW_ROWS, so that no more copies of the loop are made for each kind. */
INLINE void add_few_rows(const struct tile *t, uint32_t rows, uint32_t first, uint32_t n,
                         struct code_shape shape) {
    if (rows == 1) add_tile(t, 1, first, n, shape);
    if (FEW_ROWS >= 2 && rows == 2) add_tile(t, 2, first, n, shape);
    if (FEW_ROWS >= 3 && rows == 3) add_tile(t, 3, first, n, shape);
    if (FEW_ROWS >= 4 && rows == 4) add_tile(t, 4, first, n, shape);
}

/* Returns where the codes of a register's outputs begin in a block. */
INLINE const uint8_t *codes_of(const struct columns *cols, uint32_t v, uint32_t block) {
    return cols->groups[v * LANES / INT8_GROUP] + cols->w->codes + block * cols->w->block_bytes +
           v * LANES % INT8_GROUP * 4;
}

/* Computes at most FEW_ROWS rows. */
INLINE void dot_few(const struct product_block *b, const struct int8_weight *w,
                    struct code_shape shape) {
    float sums[FEW_ROWS * TILE_COLS];
    struct scales scales;
    uint8_t table[16];
    struct tile t = {.x = input_of(b->x, b->x_stride, w->n_blocks, shape.span),
                     .block_bytes = w->block_bytes,
                     .scales = &scales,
                     .table = table,
                     .has_min = w->layout.has_min,
                     .sums = sums};
    table_bytes(table, w, shape);
    for (uint32_t first = 0; first < b->n_cols; first += TILE_COLS) {
        const struct columns cols = columns_at(b, w, first);
        memset(sums, 0, sizeof(sums));
        for (uint32_t k = 0; k < w->n_blocks; k += CHUNK) {
            const uint32_t n = min_u32(CHUNK, w->n_blocks - k);
            convert_chunk(&scales, &cols, k, n, shape.span);
            for (uint32_t v = 0; v < VECS; v++) t.codes[v] = codes_of(&cols, v, k);
            add_few_rows(&t, b->n_rows, k, n, shape);
        }
        store_rows(b, &cols, sums, 0, b->n_rows);
    }
}

/* Codes of a chunk as bytes, each register's outputs by themselves: [VECS][blocks][steps]. */
struct wide_codes {
    uint8_t bytes[VECS][CHUNK * INT8_STEPS * INT8_STEP] __attribute__((aligned(64)));
};

INLINE void widen(struct wide_codes *out, const struct columns *cols, uint32_t first, uint32_t n,
                  struct code_shape shape, const uint8_t *table) {
    for (uint32_t v = 0; v < VECS; v++) {
        const uint8_t *codes = codes_of(cols, v, first);
        uint8_t *to = out->bytes[v];
        for (uint32_t b = 0; b < n; b++, codes += cols->w->block_bytes) {
#pragma GCC unroll UNROLLED
            for (uint32_t j = 0; j < INT8_STEPS; j++, to += INT8_STEP) {
                const whole step = codes_of_step(codes, j, shape, table);
                memcpy(to, &step, sizeof(step));
            }
        }
    }
}

/* Multiplies rows of x with a chunk of columns, TILE_ROWS at a time. */
static __attribute__((noinline)) void add_chunk(struct tile t, uint32_t n_rows, uint32_t first,
                                                uint32_t n, struct code_shape shape) {
    for (uint32_t rows; n_rows > 0; n_rows -= rows) {
        rows = min_u32(n_rows, TILE_ROWS);
        struct code_shape wide = {.bits = 8, .is_wide = true};
        /* The copies of the loop for each span and sign are chosen here, outside of it. */
        if (shape.span == 16) wide.span = 16, add_rows(&t, rows, first, n, wide);
        else if (shape.is_signed)
            wide.span = 32, wide.is_signed = SIGNED_BYTES, add_rows(&t, rows, first, n, wide);
        else wide.span = 32, add_rows(&t, rows, first, n, wide);
        t.x.codes += rows * t.x.stride;
        t.sums += rows * TILE_COLS;
    }
}

/* Computes the rows of a block, up to MANY_ROWS at a time. */
INLINE void dot_many(const struct product_block *b, const struct int8_weight *w,
                     struct code_shape shape) {
    float sums[MANY_ROWS * TILE_COLS];
    struct scales scales;
    struct wide_codes wide;
    uint8_t table[16];
    struct tile t = {.block_bytes = INT8_STEPS * INT8_STEP,
                     .scales = &scales,
                     .has_min = w->layout.has_min,
                     .sums = sums};
    table_bytes(table, w, shape);
    for (uint32_t v = 0; v < VECS; v++) t.codes[v] = wide.bytes[v];
    for (uint32_t first = 0; first < b->n_cols; first += TILE_COLS) {
        const struct columns cols = columns_at(b, w, first);
        for (uint32_t row = 0, n_rows; row < b->n_rows; row += n_rows) {
            n_rows = min_u32(MANY_ROWS, b->n_rows - row);
            t.x = input_of((const char *)b->x + row * b->x_stride, b->x_stride, w->n_blocks,
                           shape.span);
            memset(sums, 0, sizeof(float) * n_rows * TILE_COLS);
            for (uint32_t k = 0; k < w->n_blocks; k += CHUNK) {
                const uint32_t n = min_u32(CHUNK, w->n_blocks - k);
                convert_chunk(&scales, &cols, k, n, shape.span);
                widen(&wide, &cols, k, n, shape, table);
                add_chunk(t, n_rows, k, n, shape);
            }
            store_rows(b, &cols, sums, row, n_rows);
        }
    }
}

INLINE void dot_as(const struct product_block *b, struct code_shape shape) {
    const struct int8_weight w = int8_weight_of(b->w);
    assert(b->col % INT8_GROUP == 0);
    if (b->n_rows <= FEW_ROWS) dot_few(b, &w, shape);
    else dot_many(b, &w, shape);
}

/* Twelve independent chains hide the latency of the instruction. */
enum { CHAINS = 12 };

static float burst(uint64_t rounds) {
    whole sums[CHAINS], all = same_in_all(0);
    const whole codes = same_in_all(0x01010101);
    for (int i = 0; i < CHAINS; i++) sums[i] = same_in_all(i);
    for (uint64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) sums[i] = add_products(sums[i], codes, codes, false);
    }
    for (int i = 0; i < CHAINS; i++) all = (whole)((veci)all + (veci)sums[i]);
    return vec_sum(floats_of(all));
}

/* Defines the functions of a kind: its number of bits, span and offset as constants. */
#define KIND(name, bits, span, offset, has_table)                                                  \
    static void pack_##name(void *out, size_t stride, const float *x, uint32_t n_rows,             \
                            uint32_t n_in) {                                                       \
        pack_rows(out, stride, x, n_rows, n_in, span,                                              \
                  !(has_table || bits == 8) ? offset                                               \
                  : SIGNED_BYTES            ? 0                                                    \
                                            : 128);                                                           \
    }                                                                                              \
    static void dot_##name(const struct product_block *b) {                                        \
        dot_as(b, (struct code_shape){bits, span, has_table, false,                                \
                                      SIGNED_BYTES && (has_table || bits == 8)});                  \
    }

KIND(u4_32, 4, 32, 0, false)
KIND(s4_32, 4, 32, 8, false)
KIND(t4_32, 4, 32, 0, true)
KIND(u5_32, 5, 32, 0, false)
KIND(s5_32, 5, 32, 16, false)
KIND(s8_32, 8, 32, 128, false)
KIND(s6_16, 6, 16, 32, false)
KIND(s3_16, 4, 16, 4, false)
KIND(u2_16, 4, 16, 0, false)

#define ROW(kind)                                                                                  \
    {                                                                                              \
        .name = "int8", .pack = pack_##kind, .dot = dot_##kind, .burst = burst,                    \
        .burst_size = CHAINS * LANES * 4, .packed_size = 1, .block_extra = BLOCK_EXTRA,            \
        .row_unit = TILE_ROWS, .col_unit = 32, .block_cols = 64, .block_bytes = 1 << 20            \
    }

const struct product_kernels INT8_NAME[INT8_KINDS] = {
    [INT8_U4_32] = ROW(u4_32), [INT8_S4_32] = ROW(s4_32), [INT8_T4_32] = ROW(t4_32),
    [INT8_U5_32] = ROW(u5_32), [INT8_S5_32] = ROW(s5_32), [INT8_S8_32] = ROW(s8_32),
    [INT8_S6_16] = ROW(s6_16), [INT8_S3_16] = ROW(s3_16), [INT8_U2_16] = ROW(u2_16)};
