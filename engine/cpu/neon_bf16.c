/* neon_bf16.c - see neon_bf16.h.
 *
 * An instruction multiplies 4 columns of 2 rows of x by those of 2 outputs, and adds to 4 sums:
 *
 *   a [2 rows][4]   b [2 outputs][4]   sums [2 rows][2 outputs]
 *
 *   packed rows     pairs of rows [n_in / 4][2][4]; a last row without a second one [n_in]
 *
 * Weights are used as stored: two registers of one output each, 8 columns, make two of b.  A row
 * that is alone has zeros beside it.  So the instructions that add up an output are the same for
 * any number of rows. */
#include "engine/cpu/neon_bf16.h"

#include <arm_neon.h>
#include <string.h>

#include "engine/base/sizes.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/vec.h"

/* A tile has 4 * 4 sums of 32 registers; the rows of x take 8, weights 4.  STEP: columns that a
 * register of weights holds. */
enum { TILE_PAIRS = 4, TILE_COLS = 8, STEP = 8, HALF = 4 };

#define INLINE static inline __attribute__((always_inline))

/* ---- x ---- */

static bfloat16x4_t load_rounded(const float *x, uint32_t n) {
    float padded[HALF] = {0};
    if (n >= HALF) return vcvt_bf16_f32(vld1q_f32(x));
    memcpy(padded, x, n * sizeof(float));
    return vcvt_bf16_f32(vld1q_f32(padded));
}

/* Packs n_rows, 1 or 2; padded to STEP. */
static void pack_pair(bfloat16_t *out, const float *x, uint32_t n_rows, uint32_t n_in) {
    const uint32_t padded = (uint32_t)round_up(n_in, STEP);
    for (uint32_t k = 0; k < padded; k += HALF)
        for (uint32_t r = 0; r < n_rows; r++, out += HALF)
            vst1_bf16(out, load_rounded(x + (size_t)r * n_in + k, k < n_in ? n_in - k : 0));
}

static void pack(void *out, size_t stride, const float *x, uint32_t n_rows, uint32_t n_in) {
    for (uint32_t r = 0; r < n_rows; r += 2)
        pack_pair((bfloat16_t *)out + r * stride, x + (size_t)r * n_in, min_u32(2, n_rows - r),
                  n_in);
}

/* ---- a tile ---- */

/* The rows of x that a tile multiplies, and where its outputs go. */
struct rows {
    const bfloat16_t *x;
    size_t x_stride; /* as in struct product_block */
    uint32_t n_rows; /* an odd number only if it is 1 */
    float *y;
    size_t y_stride;
};

/* The weights of up to TILE_COLS outputs.  The last pair of an odd number has its first twice. */
struct columns {
    const uint16_t *w[TILE_COLS];
    const float *bias; /* NULL: none */
    uint32_t n;
    bool accumulate;
};

INLINE bfloat16x8_t load_pair(const struct rows *rows, uint32_t pair, uint32_t k) {
    const bfloat16_t *x = rows->x + 2 * pair * rows->x_stride;
    if (rows->n_rows > 1) return vld1q_bf16(x + 2 * (size_t)k);
    return vcombine_bf16(vld1_bf16(x + k), vreinterpret_bf16_u16(vdup_n_u16(0)));
}

INLINE bfloat16x8_t pair_of(uint64x2_t weights) {
    return vreinterpretq_bf16_u64(weights);
}

/* Multiplies columns k to k + STEP of x; the weights are those from k_w on. */
INLINE void add_step(float32x4_t (*sums)[TILE_COLS / 2], const struct rows *rows, uint32_t pairs,
                     const uint16_t *const *w, uint32_t cols, uint32_t k, size_t k_w) {
    bfloat16x8_t low[TILE_PAIRS], high[TILE_PAIRS];
#pragma GCC unroll 4
    for (uint32_t p = 0; p < pairs; p++) {
        low[p] = load_pair(rows, p, k);
        high[p] = load_pair(rows, p, k + HALF);
    }
#pragma GCC unroll 4
    for (uint32_t c = 0; c < cols; c += 2) {
        const uint64x2_t first = vreinterpretq_u64_u16(vld1q_u16(w[c] + k_w)),
                         second = vreinterpretq_u64_u16(vld1q_u16(w[c + 1] + k_w));
#pragma GCC unroll 4
        for (uint32_t p = 0; p < pairs; p++)
            sums[p][c / 2] =
                vbfmmlaq_f32(sums[p][c / 2], low[p], pair_of(vzip1q_u64(first, second)));
#pragma GCC unroll 4
        for (uint32_t p = 0; p < pairs; p++)
            sums[p][c / 2] =
                vbfmmlaq_f32(sums[p][c / 2], high[p], pair_of(vzip2q_u64(first, second)));
    }
}

static void store_row(float *y, const float *sums, const struct columns *to) {
    for (uint32_t c = 0; c < to->n; c++) {
        const float sum = to->bias ? sums[c] + to->bias[c] : sums[c];
        y[c] = to->accumulate ? y[c] + sum : sum;
    }
}

INLINE void store_tile(float32x4_t (*sums)[TILE_COLS / 2], const struct rows *rows, uint32_t pairs,
                       const struct columns *columns, uint32_t cols) {
    for (uint32_t p = 0; p < pairs; p++) {
        float of_row[2][TILE_COLS];
        for (uint32_t c = 0; c < cols; c += 2) {
            vst1_f32(of_row[0] + c, vget_low_f32(sums[p][c / 2]));
            vst1_f32(of_row[1] + c, vget_high_f32(sums[p][c / 2]));
        }
        store_row(rows->y + 2 * p * rows->y_stride, of_row[0], columns);
        if (rows->n_rows > 1) store_row(rows->y + (2 * p + 1) * rows->y_stride, of_row[1], columns);
    }
}

/* Computes a tile: `pairs` and `cols` are constants once it is inlined. */
INLINE void multiply(const struct rows *rows, uint32_t pairs, const struct columns *columns,
                     uint32_t cols, uint32_t n_in) {
    float32x4_t sums[TILE_PAIRS][TILE_COLS / 2] = {0};
    uint32_t k = 0;
    for (; k + STEP <= n_in; k += STEP) add_step(sums, rows, pairs, columns->w, cols, k, k);
    if (k < n_in) { /* x is padded, w is not */
        uint16_t tail[TILE_COLS][STEP] = {0};
        const uint16_t *w[TILE_COLS];
        for (uint32_t c = 0; c < cols; c++) {
            memcpy(tail[c], columns->w[c] + k, (n_in - k) * sizeof(uint16_t));
            w[c] = tail[c];
        }
        add_step(sums, rows, pairs, w, cols, k, 0);
    }
    store_tile(sums, rows, pairs, columns, cols);
}

INLINE void multiply_rows(struct rows rows, uint32_t n_rows, const struct columns *columns,
                          uint32_t cols, uint32_t n_in) {
    for (rows.n_rows = 2 * TILE_PAIRS; n_rows >= 2 * TILE_PAIRS; n_rows -= 2 * TILE_PAIRS) {
        multiply(&rows, TILE_PAIRS, columns, cols, n_in);
        rows.x += 2 * TILE_PAIRS * rows.x_stride;
        rows.y += 2 * TILE_PAIRS * rows.y_stride;
    }
    /* The rest, each with its own number of registers. */
    const uint32_t pairs = n_rows / 2;
    rows.n_rows = 2 * pairs;
    if (pairs == 3) multiply(&rows, 3, columns, cols, n_in);
    else if (pairs == 2) multiply(&rows, 2, columns, cols, n_in);
    else if (pairs == 1) multiply(&rows, 1, columns, cols, n_in);
    if (n_rows % 2 == 0) return;
    rows.x += 2 * pairs * rows.x_stride;
    rows.y += 2 * pairs * rows.y_stride;
    rows.n_rows = 1;
    multiply(&rows, 1, columns, cols, n_in);
}

static void dot(const struct product_block *b) {
    const uint16_t *w = weight_row_at(b->w, b->col);
    const uint32_t n_in = b->w->cols;
    for (uint32_t col = 0, n; col < b->n_cols; col += n) {
        n = b->n_cols - col >= TILE_COLS ? TILE_COLS : min_u32(2, b->n_cols - col);
        const struct rows rows = {b->x, b->x_stride, 0, b->y + col, b->y_stride};
        struct columns columns = {
            .bias = b->bias ? b->bias + col : NULL, .n = n, .accumulate = b->accumulate};
        for (uint32_t c = 0; c < TILE_COLS; c++)
            columns.w[c] = w + (col + min_u32(c, n - 1)) * (size_t)n_in;
        if (n == TILE_COLS) multiply_rows(rows, b->n_rows, &columns, TILE_COLS, n_in);
        else multiply_rows(rows, b->n_rows, &columns, 2, n_in);
    }
}

/* As many independent chains as a tile has. */
enum { CHAINS = TILE_PAIRS * TILE_COLS / 2 };

static float burst(uint64_t rounds) {
    float32x4_t sums[CHAINS];
    const bfloat16x8_t a = vreinterpretq_bf16_u16(vdupq_n_u16(f32_to_bf16(0.03f)));
    for (int i = 0; i < CHAINS; i++) sums[i] = vdupq_n_f32((float)i);
    for (uint64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++) sums[i] = vbfmmlaq_f32(sums[i], a, a);
    }
    for (int i = 1; i < CHAINS; i++) sums[0] = vaddq_f32(sums[0], sums[i]);
    return vaddvq_f32(sums[0]);
}

const struct product_kernels neon_bf16_products = {
    .name = "neon-bf16",
    .format = {.element = ELEMENT_BF16},
    .pack = pack,
    .dot = dot,
    .burst = burst,
    .burst_size = CHAINS * 16,
    .packed_size = sizeof(uint16_t),
    .row_unit = 2 * TILE_PAIRS,
    .col_unit = TILE_COLS,
    .block_cols = 48,
    .block_bytes = 640 << 10,
};
