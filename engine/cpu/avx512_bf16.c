/* avx512_bf16.c - see avx512_bf16.h. */
#include "engine/cpu/avx512_bf16.h"

#include <immintrin.h>

#include "engine/cpu/product_tile.h"

static void pack_row(uint16_t *out, const float *x, uint32_t n_in) {
    uint32_t padded = (uint32_t)round_up(n_in, PACK_UNIT), i = 0;
    for (; i + LANES <= n_in; i += LANES) {
        __m256bh rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(x + i));
        memcpy(out + i, &rounded, sizeof(rounded));
    }
    for (; i < n_in; i++) out[i] = f32_to_bf16(x[i]);
    for (; i < padded; i++) out[i] = 0;
}

static void pack(void *out, size_t stride, const float *x, uint32_t n_rows, uint32_t n_in) {
    for (uint32_t r = 0; r < n_rows; r++)
        pack_row((uint16_t *)out + r * stride, x + (size_t)r * n_in, n_in);
}

/* Computes rows x cols dot products: an instruction multiplies 32 pairs and adds neighbours. */
INLINE void dot_tile(const uint16_t *x, size_t x_stride, uint32_t rows, uint32_t n_in,
                     const uint16_t *w, size_t ahead, uint32_t cols, const struct out_tile *out,
                     uint32_t col) {
    __m512 acc[TILE_ROWS][TILE_COLS] = {0};
    for (uint32_t k = 0; k < n_in; k += PACK_UNIT) {
        __mmask32 mask = n_in - k < PACK_UNIT ? (1u << (n_in - k)) - 1 : ~0u;
        for (uint32_t c = 0; c < cols; c++)
            prefetch_weight(w, (size_t)c * n_in + k + ahead, ELEMENT_BF16);
        __m512bh a[TILE_ROWS];
#pragma GCC unroll 8
        for (uint32_t r = 0; r < rows; r++)
            a[r] = (__m512bh)_mm512_loadu_si512(x + r * x_stride + k);
#pragma GCC unroll 8
        for (uint32_t c = 0; c < cols; c++) {
            __m512bh b = (__m512bh)_mm512_maskz_loadu_epi16(mask, w + (size_t)c * n_in + k);
#pragma GCC unroll 8
            for (uint32_t r = 0; r < rows; r++) acc[r][c] = _mm512_dpbf16_ps(acc[r][c], a[r], b);
        }
    }
    vecf sums[TILE_ROWS][TILE_COLS];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (uint32_t c = 0; c < cols; c++) sums[r][c] = (vecf)acc[r][c];
    }
    store_tile(sums, rows, cols, out, col);
}

INLINE void dot_rows(const uint16_t *x, size_t x_stride, uint32_t n_rows, uint32_t n_in,
                     const uint16_t *w, uint32_t cols, struct out_tile out, uint32_t col) {
    size_t ahead = (size_t)cols * n_in;
    w += (size_t)col * n_in;
    for (; n_rows >= TILE_ROWS; n_rows -= TILE_ROWS) {
        dot_tile(x, x_stride, TILE_ROWS, n_in, w, ahead, cols, &out, col);
        ahead = 0;
        x += TILE_ROWS * x_stride;
        out.y += TILE_ROWS * out.stride;
    }
    if (n_rows == 3) dot_tile(x, x_stride, 3, n_in, w, ahead, cols, &out, col);
    else if (n_rows == 2) dot_tile(x, x_stride, 2, n_in, w, ahead, cols, &out, col);
    else if (n_rows == 1) dot_tile(x, x_stride, 1, n_in, w, ahead, cols, &out, col);
}

static void dot(const struct product_block *b) {
    const struct out_tile out = {b->bias, b->y, b->y_stride, b->accumulate};
    const uint16_t *w = weight_row_at(b->w, b->col);
    const uint32_t n_in = b->w->cols;
    uint32_t c = 0;
    for (; c + TILE_COLS <= b->n_cols; c += TILE_COLS)
        dot_rows(b->x, b->x_stride, b->n_rows, n_in, w, TILE_COLS, out, c);
    for (; c < b->n_cols; c++) dot_rows(b->x, b->x_stride, b->n_rows, n_in, w, 1, out, c);
}

static float burst(uint64_t rounds) {
    __m512 acc[CHAINS];
    const __m512bh a = (__m512bh)_mm512_set1_epi16((short)f32_to_bf16(0.03f));
    for (int i = 0; i < CHAINS; i++) acc[i] = _mm512_set1_ps((float)i);
    for (uint64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) acc[i] = _mm512_dpbf16_ps(acc[i], a, a);
    }
    for (int i = 1; i < CHAINS; i++) acc[0] += acc[i];
    return vec_sum((vecf)acc[0]);
}

const struct product_kernels avx512_bf16_products =
    PRODUCTS("bf16-pairs", ELEMENT_BF16, pack, dot, burst, 2, sizeof(uint16_t));
