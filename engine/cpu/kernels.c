/* kernels.c - see kernels.h.  Compiled once per instruction set with KERNELS_NAME set. */
#include "engine/cpu/kernels.h"

#include "engine/base/sizes.h"
#include "engine/cpu/product_tile.h"
#include "engine/cpu/vec.h"
#include "engine/device/activation.h"
#include "engine/device/pages.h"

/* Attention: ATTN_ROWS queries x ATTN_VECS registers. */
enum { ATTN_VECS = 4, DELTA_VECS = 4 };
#if defined(__AVX512F__) || defined(__aarch64__)
enum { ATTN_ROWS = 6 };
#elif defined(__AVX2__)
enum { ATTN_ROWS = 3 };
#else
enum { ATTN_ROWS = 2 };
#endif

/* Returns half of the 2 * LANES weights at `at`, as f32.  A register holds 2 * LANES bf16 weights,
 * whose even and odd elements convert in one instruction each: hence the order of
 * pack_in_pairs(). */
INLINE vecf weight_half(const void *w, size_t at, uint32_t half, enum element element) {
    if (element == ELEMENT_E4M3) return vec_from_finite_e4m3(w, at + half * LANES);
    if (element != ELEMENT_BF16) return vec_load_as(w, at + half * LANES, element);
    vecu pairs = *(const vecp *)((const uint16_t *)w + at);
    return (vecf)(half ? pairs & 0xffff0000u : pairs << 16);
}

static void pack_in_order(void *out, size_t stride, const float *x, uint32_t n_rows,
                          uint32_t n_in) {
    const size_t padded = round_up(n_in, 2 * LANES);
    for (uint32_t r = 0; r < n_rows; r++) {
        float *row = (float *)out + r * stride;
        memcpy(row, x + (size_t)r * n_in, n_in * sizeof(float));
        memset(row + n_in, 0, (padded - n_in) * sizeof(float));
    }
}

INLINE void pack_step(float *out, const float *x, veci even, veci odd) {
    vecf a = vec_load(x), b = vec_load(x + LANES);
    vec_store(out, __builtin_shuffle(a, b, even));
    vec_store(out + LANES, __builtin_shuffle(a, b, odd));
}

/* Separates even and odd elements, as weight_half() gives those of bf16 weights. */
static void pack_row_in_pairs(float *out, const float *x, uint32_t n_in) {
    veci even, odd;
    for (int i = 0; i < LANES; i++) {
        even[i] = 2 * i;
        odd[i] = 2 * i + 1;
    }
    uint32_t k = 0;
    for (; k + 2 * LANES <= n_in; k += 2 * LANES) pack_step(out + k, x + k, even, odd);
    if (k == n_in) return;
    float padded[2 * LANES] = {0};
    memcpy(padded, x + k, (n_in - k) * sizeof(float));
    pack_step(out + k, padded, even, odd);
}

static void pack_in_pairs(void *out, size_t stride, const float *x, uint32_t n_rows,
                          uint32_t n_in) {
    for (uint32_t r = 0; r < n_rows; r++)
        pack_row_in_pairs((float *)out + r * stride, x + (size_t)r * n_in, n_in);
}

/* The rows of x and the columns of w that a tile multiplies. */
struct in_tile {
    const float *x;
    size_t x_stride;
    const void *w;
    size_t w_stride;
    size_t ahead; /* elements from w to the weights to prefetch */
    enum element element;
    const struct weight *scaled; /* the weight, whose row `row` is at w; NULL: it has no scales */
    uint32_t row;
};

/* Returns the end of the columns from k on that have one scale in each row. */
INLINE uint32_t end_of_block(const struct in_tile *in, uint32_t k, uint32_t n_in) {
    const uint32_t cols = in->element == ELEMENT_E4M3 ? in->scaled->format.block_cols : 0;
    return cols && k + cols < n_in ? k + cols : n_in;
}

/* Returns the number of the first scale of a row; those of its other blocks of columns follow. */
INLINE size_t first_scale(const struct weight *w, uint32_t row) {
    const struct weight_format *f = &w->format;
    const size_t n_blocks = f->block_cols ? div_up(w->cols, f->block_cols) : 1;
    return f->block_rows ? row / f->block_rows * n_blocks : 0;
}

/* Writes which scales the tile's columns have first: those of rows of W, in order. */
INLINE void find_scales(const struct in_tile *in, uint32_t cols, size_t *first) {
    if (in->element != ELEMENT_E4M3) return;
    for (uint32_t c = 0; c < cols; c++) first[c] = first_scale(in->scaled, in->row + c);
}

/* Loads the scales of the columns' block number `block`. */
INLINE void load_scales(const struct in_tile *in, uint32_t cols, const size_t *first,
                        uint32_t block, float *scales) {
    if (in->element != ELEMENT_E4M3) return;
    const struct weight *w = in->scaled;
    for (uint32_t c = 0; c < cols; c++)
        scales[c] = w->format.scale == SCALE_F32 ? ((const float *)w->scales)[first[c] + block]
                                                 : weight_scale_at(w, first[c] + block);
}

/* Computes acc += x[k, k + 2 * LANES) w[k, k + 2 * LANES).  After inlining only k is not a
 * constant. */
INLINE void dot_step(vecf (*acc)[TILE_COLS], const struct in_tile *in, uint32_t rows, uint32_t cols,
                     size_t k_x, size_t k_w, const float *scales) {
#pragma GCC unroll 2
    for (uint32_t half = 0; half < 2; half++) {
        vecf a[TILE_ROWS];
#pragma GCC unroll 8
        for (uint32_t r = 0; r < rows; r++)
            a[r] = vec_load(in->x + r * in->x_stride + k_x + half * LANES);
#pragma GCC unroll 8
        for (uint32_t c = 0; c < cols; c++) {
            vecf b = weight_half(in->w, c * in->w_stride + k_w, half, in->element);
            if (in->element == ELEMENT_E4M3) b *= scales[c];
#pragma GCC unroll 8
            for (uint32_t r = 0; r < rows; r++) acc[r][c] += a[r] * b;
        }
        /* Loading the weights again for the other half beats the registers to keep them. */
        __asm__ volatile("" ::: "memory");
    }
}

/* Computes rows x cols dot products; w as stored. */
INLINE void dot_tile(struct in_tile in, uint32_t rows, uint32_t n_in, uint32_t cols,
                     const struct out_tile *out, uint32_t col) {
    vecf acc[TILE_ROWS][TILE_COLS] = {0};
    float scales[TILE_COLS];
    size_t first[TILE_COLS];
    uint32_t k = 0, end = 0, block = 0;
    find_scales(&in, cols, first);
    do {
        end = end_of_block(&in, end, n_in);
        load_scales(&in, cols, first, block++, scales);
        for (; k + 2 * LANES <= end; k += 2 * LANES) {
            for (uint32_t c = 0; c < cols; c++)
                prefetch_weight(in.w, c * in.w_stride + k + in.ahead, in.element);
            dot_step(acc, &in, rows, cols, k, k, scales);
        }
    } while (end < n_in);
    if (k < n_in) { /* x is padded, w is not */
        float tail[TILE_COLS][2 * LANES] = {0};
        size_t size = element_bits(in.element) / 8;
        for (uint32_t c = 0; c < cols; c++)
            memcpy(tail[c], (const char *)in.w + (c * in.w_stride + k) * size, (n_in - k) * size);
        in.w = tail;
        in.w_stride = sizeof(tail[0]) / size;
        dot_step(acc, &in, rows, cols, k, 0, scales);
    }
    store_tile(acc, rows, cols, out, col);
}

INLINE void dot_rows(struct in_tile in, uint32_t n_rows, uint32_t n_in, uint32_t cols,
                     struct out_tile out, uint32_t col) {
    in.w = (const char *)in.w + element_bytes(in.element, col * in.w_stride);
    in.row += col;
    in.ahead = cols * in.w_stride;
    for (; n_rows >= TILE_ROWS; n_rows -= TILE_ROWS) {
        dot_tile(in, TILE_ROWS, n_in, cols, &out, col);
        in.ahead = 0;
        in.x += TILE_ROWS * in.x_stride;
        out.y += TILE_ROWS * out.stride;
    }
    /* The rest, each with its own number of registers. */
    if (TILE_ROWS > 3 && n_rows == 3) dot_tile(in, 3, n_in, cols, &out, col);
    else if (TILE_ROWS > 2 && n_rows == 2) dot_tile(in, 2, n_in, cols, &out, col);
    else if (n_rows == 1) dot_tile(in, 1, n_in, cols, &out, col);
}

/* Multiplies all columns, a few at a time: these stay in the first cache while the rows of x pass
 * by. */
INLINE void dot_columns(struct in_tile in, uint32_t n_rows, uint32_t n_in, uint32_t n_cols,
                        const struct out_tile *out) {
    uint32_t c = 0;
    for (; c + TILE_COLS <= n_cols; c += TILE_COLS) dot_rows(in, n_rows, n_in, TILE_COLS, *out, c);
    for (; c < n_cols; c++) dot_rows(in, n_rows, n_in, 1, *out, c);
}

static void to_f32(float *out, const void *in, size_t n, enum element element) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) vec_store(out + i, vec_load_as(in, i, element));
    for (; i < n; i++) out[i] = load_as_f32(in, i, element);
}

/* Inlined for each element, so that its conversion is, too. */
INLINE void dot_as(const struct product_block *b, enum element element) {
    const struct out_tile out = {b->bias, b->y, b->y_stride, b->accumulate};
    const struct in_tile in = {.x = b->x,
                               .x_stride = b->x_stride,
                               .w = weight_row_at(b->w, b->col),
                               .w_stride = b->w->cols,
                               .element = element,
                               .scaled = b->w,
                               .row = b->col};
    dot_columns(in, b->n_rows, b->w->cols, b->n_cols, &out);
}

static void dot_f32(const struct product_block *b) {
    dot_as(b, ELEMENT_F32);
}

static void dot_f16(const struct product_block *b) {
    dot_as(b, ELEMENT_F16);
}

static void dot_bf16(const struct product_block *b) {
    dot_as(b, ELEMENT_BF16);
}

static void dot_e4m3(const struct product_block *b) {
    dot_as(b, ELEMENT_E4M3);
}

/* Writes a row of a weight of E4M3 as dot_e4m3() reads it. */
static void widen_e4m3(const struct weight *w, uint32_t row, float *out) {
    const uint8_t *codes = weight_row_at(w, row);
    const uint32_t cols = w->format.block_cols ? w->format.block_cols : w->cols;
    size_t at = first_scale(w, row);
    for (uint32_t k = 0, end; k < w->cols; k = end) {
        const float scale = weight_scale_at(w, at++);
        end = k + cols < w->cols ? k + cols : w->cols;
        for (; k + LANES <= end; k += LANES)
            vec_store(out + k, vec_from_finite_e4m3(codes, k) * scale);
        for (; k < end; k++) out[k] = load_as_f32(codes, k, ELEMENT_E4M3) * scale;
    }
}

static float burst(uint64_t rounds) {
    vecf acc[CHAINS];
    vecf factor = vec_set(0.999f), term = vec_set(1e-3f);
    for (int i = 0; i < CHAINS; i++) acc[i] = vec_set((float)i);
    for (uint64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) acc[i] = acc[i] * factor + term;
    }
    for (int i = 1; i < CHAINS; i++) acc[0] += acc[i];
    return vec_sum(acc[0]);
}

static float square_sum(const float *x, uint32_t n) {
    vecf acc = {0};
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vecf v = vec_load(x + i);
        acc += v * v;
    }
    float sum = vec_sum(acc);
    for (; i < n; i++) sum += x[i] * x[i];
    return sum;
}

static void rmsnorm(float *out, const float *x, const float *weight, uint32_t n, float eps,
                    bool accumulate) {
    uint32_t i;
    float scale = 1.0f / sqrtf(square_sum(x, n) / (float)n + eps);
    if (accumulate)
        for (i = 0; i < n; i++) out[i] += x[i] * scale * weight[i];
    else
        for (i = 0; i < n; i++) out[i] = x[i] * scale * weight[i];
}

/* Computes the variance from the differences from the mean.  The mean of squares minus the square
 * of the mean would lose its digits where the mean is large. */
static void layernorm(float *out, const float *x, const float *weight, const float *bias,
                      uint32_t n, float eps) {
    vecf acc = {0};
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) acc += vec_load(x + i);
    float sum = vec_sum(acc);
    for (; i < n; i++) sum += x[i];
    const float mean = sum / (float)n;
    acc = vec_set(0.0f);
    for (i = 0; i + LANES <= n; i += LANES) {
        const vecf v = vec_load(x + i) - mean;
        acc += v * v;
    }
    sum = vec_sum(acc);
    for (; i < n; i++) sum += (x[i] - mean) * (x[i] - mean);
    const float scale = 1.0f / sqrtf(sum / (float)n + eps);
    for (i = 0; i < n; i++) out[i] = (x[i] - mean) * scale * weight[i] + (bias ? bias[i] : 0.0f);
}

/* Returns g * sigmoid(x), computed through exp(-|x|), so that the exponent is never positive. */
INLINE vecf gated(vecf g, vecf x) {
    vecf magnitude = (vecf)((veci)x & 0x7fffffff);
    vecf e = vec_exp2(magnitude * -1.44269504f);
    veci negative = x < 0.0f;
    vecf numerator = (vecf)(((veci)e & negative) | ((veci)vec_set(1.0f) & ~negative));
    return g * numerator / (1.0f + e);
}

INLINE vecf through_gate(vecf g, enum gate_kind kind) {
    if (kind == GATE_GELU) return gated(g, g * (GELU_1 + GELU_3 * g * g));
    return gated(g, g);
}

static void gate_mul(float *out, const float *gate, const float *up, uint32_t n,
                     enum gate_kind kind) {
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        vec_store(out + i, through_gate(vec_load(gate + i), kind) * vec_load(up + i));
    if (i == n) return;
    vecf last = through_gate(vec_load_tail(gate, i, n - i, ELEMENT_F32), kind) *
                vec_load_tail(up, i, n - i, ELEMENT_F32);
    memcpy(out + i, &last, (n - i) * sizeof(float));
}

static void sigmoid_mul(float *x, const float *gate, uint32_t n) {
    const vecf one = vec_set(1.0f);
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        vec_store(x + i, vec_load(x + i) * gated(one, vec_load(gate + i)));
    if (i == n) return;
    const vecf last = vec_load_tail(x, i, n - i, ELEMENT_F32) *
                      gated(one, vec_load_tail(gate, i, n - i, ELEMENT_F32));
    memcpy(x + i, &last, (n - i) * sizeof(float));
}

static void gelu_tanh(float *x, uint32_t n) {
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) vec_store(x + i, through_gate(vec_load(x + i), GATE_GELU));
    if (i == n) return;
    const vecf last = through_gate(vec_load_tail(x, i, n - i, ELEMENT_F32), GATE_GELU);
    memcpy(x + i, &last, (n - i) * sizeof(float));
}

static void activate(float *x, uint32_t n, enum act_kind kind) {
    if (kind == ACT_GELU_TANH) gelu_tanh(x, n);
    else if (kind == ACT_GELU)
        for (uint32_t i = 0; i < n; i++) x[i] *= 0.5f * (1.0f + erff(x[i] * 0.70710678f));
    else
        for (uint32_t i = 0; i < n; i++) x[i] = x[i] < 0.0f ? 0.0f : x[i];
    if (kind == ACT_RELU2)
        for (uint32_t i = 0; i < n; i++) x[i] *= x[i];
}

/* Returns cap * tanh(x / cap), by tanh(y) = (1 - e) / (1 + e) with e = exp(-2 y).  Computes it for
 * |x| and restores the sign of x; NaN stays NaN. */
INLINE vecf capped(vecf x, float cap) {
    const veci sign = (veci)x & INT32_MIN, is_nan = x != x;
    const vecf e = vec_exp2((vecf)((veci)x & INT32_MAX) * (-2.88539008f / cap));
    const veci y = (veci)((1.0f - e) / (1.0f + e) * cap) | sign;
    return (vecf)((y & ~is_nan) | ((veci)x & is_nan));
}

static void soft_cap(float *x, size_t n, float cap) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) vec_store(x + i, capped(vec_load(x + i), cap));
    if (i == n) return;
    const vecf last = capped(vec_load_tail(x, i, (uint32_t)(n - i), ELEMENT_F32), cap);
    memcpy(x + i, &last, (n - i) * sizeof(float));
}

/* Computes the scores of `rows` queries against ATTN_VECS * LANES slots. */
INLINE void scores_tile(float *s, const float *q, uint32_t rows, const float *kt, uint32_t dim) {
    vecf acc[ATTN_ROWS][ATTN_VECS] = {0};
    for (uint32_t d = 0; d < dim; d++) {
#pragma GCC unroll 4
        for (uint32_t j = 0; j < ATTN_VECS; j++) {
            vecf k = vec_load(kt + (size_t)d * PAGE_TOKENS + j * LANES);
#pragma GCC unroll 8
            for (uint32_t r = 0; r < rows; r++) acc[r][j] += vec_set(q[(size_t)r * dim + d]) * k;
        }
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (uint32_t j = 0; j < ATTN_VECS; j++)
            vec_store(s + r * PAGE_TOKENS + j * LANES, acc[r][j]);
    }
}

INLINE void scores_rows(float *s, const float *q, uint32_t rows, const float *kt, uint32_t dim) {
    for (uint32_t slot = 0; slot < PAGE_TOKENS; slot += ATTN_VECS * LANES)
        scores_tile(s + slot, q, rows, kt + slot, dim);
}

static void page_scores(float *s, const float *q, uint32_t n_rows, const void *k,
                        enum element element, uint32_t dim, float *scratch) {
    const float *kt = k;
    if (element != ELEMENT_F32) {
        to_f32(scratch, k, (size_t)PAGE_TOKENS * dim, element);
        kt = scratch;
    }
    for (; n_rows >= ATTN_ROWS; n_rows -= ATTN_ROWS) {
        scores_rows(s, q, ATTN_ROWS, kt, dim);
        s += ATTN_ROWS * PAGE_TOKENS;
        q += (size_t)ATTN_ROWS * dim;
    }
    /* The rest, each with its own number of registers. */
    if (ATTN_ROWS > 5 && n_rows == 5) scores_rows(s, q, 5, kt, dim);
    else if (ATTN_ROWS > 4 && n_rows == 4) scores_rows(s, q, 4, kt, dim);
    else if (ATTN_ROWS > 3 && n_rows == 3) scores_rows(s, q, 3, kt, dim);
    else if (ATTN_ROWS > 2 && n_rows == 2) scores_rows(s, q, 2, kt, dim);
    else if (n_rows == 1) scores_rows(s, q, 1, kt, dim);
}

/* Rotates n pairs of elements, from i on, of LANES slots' keys.  c[f] and s[f] hold the cos and sin
 * of angle i + f for these slots. */
INLINE void rotate_pairs(float *out, const void *k, enum element element, uint32_t n_freqs,
                         uint32_t i, uint32_t n, uint32_t slot, const vecf *c, const vecf *s) {
    for (uint32_t f = 0; f < n; f++) {
        const size_t first = (size_t)(i + f) * PAGE_TOKENS + slot,
                     second = first + (size_t)n_freqs * PAGE_TOKENS;
        const vecf a = vec_load_as(k, first, element), b = vec_load_as(k, second, element);
        vec_store(out + first, a * c[f] - b * s[f]);
        vec_store(out + second, b * c[f] + a * s[f]);
    }
}

INLINE void rotate_as(float *out, const void *k, enum element element, const uint32_t *rank,
                      const float *angles, uint32_t n_freqs) {
    const uint32_t stride = angle_stride(n_freqs);
    for (uint32_t slot = 0; slot < PAGE_TOKENS; slot += LANES) {
        for (uint32_t i = 0; i < n_freqs; i += LANES) {
            vecf c[LANES], s[LANES];
            /* The angles of a slot are adjacent in memory; a transposition makes the slots of an
             * angle so. */
            for (uint32_t lane = 0; lane < LANES; lane++) {
                const float *row = angles + (size_t)rank[slot + lane] * 2 * stride + i;
                c[lane] = vec_load(row);
                s[lane] = vec_load(row + stride);
            }
            vec_transpose(c);
            vec_transpose(s);
            rotate_pairs(out, k, element, n_freqs, i, n_freqs - i < LANES ? n_freqs - i : LANES,
                         slot, c, s);
        }
    }
}

static void rotate_page(float *out, const void *k, enum element element, uint32_t dim,
                        const uint32_t *rank, const float *angles, uint32_t n_freqs) {
    const size_t done = (size_t)2 * n_freqs * PAGE_TOKENS, all = (size_t)dim * PAGE_TOKENS;
    switch (element) { /* a constant element lets the conversion inline */
    case ELEMENT_F32: rotate_as(out, k, ELEMENT_F32, rank, angles, n_freqs); break;
    case ELEMENT_F16: rotate_as(out, k, ELEMENT_F16, rank, angles, n_freqs); break;
    case ELEMENT_BF16: rotate_as(out, k, ELEMENT_BF16, rank, angles, n_freqs); break;
    default: break; /* page_rows() has dequantised the others */
    }
    to_f32(out + done, (const char *)k + element_bytes(element, done), all - done, element);
}

static float softmax_update(float *s, uint32_t n, float *max, float *sum) {
    for (uint32_t i = n; i < PAGE_TOKENS; i++) s[i] = -INFINITY;
    vecf top = vec_load(s);
    for (uint32_t i = LANES; i < PAGE_TOKENS; i += LANES) top = vec_max(top, vec_load(s + i));
    float row_max = *max;
    for (int i = 0; i < LANES; i++) row_max = top[i] > row_max ? top[i] : row_max;
    /* 0 for the first page, whose max was -inf. */
    float factor = *max == row_max ? 1.0f : exp2f(*max - row_max);
    vecf acc = {0};
    for (uint32_t i = 0; i < PAGE_TOKENS; i += LANES) {
        vecf p = vec_exp2(vec_load(s + i) - row_max);
        vec_store(s + i, p);
        acc += p;
    }
    *max = row_max;
    *sum = *sum * factor + vec_sum(acc);
    return factor;
}

INLINE void values_tile(float *o, const float *factor, const float *s, uint32_t rows,
                        const float *v, uint32_t dim, uint32_t d, uint32_t vectors,
                        uint32_t n_slots) {
    vecf acc[ATTN_ROWS][ATTN_VECS];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (uint32_t j = 0; j < vectors; j++)
            acc[r][j] = vec_load(o + (size_t)r * dim + d + j * LANES) * factor[r];
    }
    for (uint32_t slot = 0; slot < n_slots; slot++) {
#pragma GCC unroll 4
        for (uint32_t j = 0; j < vectors; j++) {
            vecf x = vec_load(v + (size_t)slot * dim + d + j * LANES);
#pragma GCC unroll 8
            for (uint32_t r = 0; r < rows; r++) acc[r][j] += vec_set(s[r * PAGE_TOKENS + slot]) * x;
        }
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (uint32_t j = 0; j < vectors; j++)
            vec_store(o + (size_t)r * dim + d + j * LANES, acc[r][j]);
    }
}

INLINE void values_rows(float *o, const float *factor, const float *s, uint32_t rows,
                        const float *v, uint32_t dim, uint32_t n_slots) {
    uint32_t d = 0;
    for (; d + ATTN_VECS * LANES <= dim; d += ATTN_VECS * LANES) {
        values_tile(o, factor, s, rows, v, dim, d, ATTN_VECS, n_slots);
    }
    for (; d + LANES <= dim; d += LANES) values_tile(o, factor, s, rows, v, dim, d, 1, n_slots);
    if (d == dim) return;
    /* Vectors here, too: scalar code might contract differently per tile. */
    for (uint32_t r = 0; r < rows; r++) {
        vecf acc = vec_load_tail(o, (size_t)r * dim + d, dim - d, ELEMENT_F32) * factor[r];
        for (uint32_t slot = 0; slot < n_slots; slot++) {
            acc += vec_set(s[r * PAGE_TOKENS + slot]) *
                   vec_load_tail(v, (size_t)slot * dim + d, dim - d, ELEMENT_F32);
        }
        memcpy(o + (size_t)r * dim + d, &acc, (dim - d) * sizeof(float));
    }
}

static void page_values(float *o, const float *factor, const float *s, uint32_t n_rows,
                        const void *v, enum element element, uint32_t dim, uint32_t n_slots,
                        float *scratch) {
    const float *wide = v;
    if (element != ELEMENT_F32) {
        to_f32(scratch, v, (size_t)n_slots * dim, element);
        wide = scratch;
    }
    for (; n_rows >= ATTN_ROWS; n_rows -= ATTN_ROWS) {
        values_rows(o, factor, s, ATTN_ROWS, wide, dim, n_slots);
        o += (size_t)ATTN_ROWS * dim;
        factor += ATTN_ROWS;
        s += ATTN_ROWS * PAGE_TOKENS;
    }
    if (ATTN_ROWS > 5 && n_rows == 5) values_rows(o, factor, s, 5, wide, dim, n_slots);
    else if (ATTN_ROWS > 4 && n_rows == 4) values_rows(o, factor, s, 4, wide, dim, n_slots);
    else if (ATTN_ROWS > 3 && n_rows == 3) values_rows(o, factor, s, 3, wide, dim, n_slots);
    else if (ATTN_ROWS > 2 && n_rows == 2) values_rows(o, factor, s, 2, wide, dim, n_slots);
    else if (n_rows == 1) values_rows(o, factor, s, 1, wide, dim, n_slots);
}

static void add_scores(float *score, float decay, const float *s, const float *softmax,
                       uint32_t n_rows, uint32_t n) {
    vecf p[PAGE_TOKENS / LANES] = {0};
    veci lanes;
    for (int lane = 0; lane < LANES; lane++) lanes[lane] = lane;
    for (uint32_t r = 0; r < n_rows; r++) {
        const float max = softmax[2 * r], factor = 1.0f / softmax[2 * r + 1];
        for (uint32_t i = 0; i < PAGE_TOKENS / LANES; i++)
            p[i] += vec_exp2(vec_load(s + r * PAGE_TOKENS + i * LANES) - max) * factor;
    }
    for (uint32_t slot = 0; slot < n; slot += LANES) {
        const vecf before = vec_load(score + slot), after = before * decay + p[slot / LANES];
        const veci seen = lanes < (int32_t)(n - slot);
        vec_store(score + slot, (vecf)(((veci)after & seen) | ((veci)before & ~seen)));
    }
}

/* Advances DELTA_VECS registers' columns of a state by a row. */
INLINE void delta_columns(const struct delta_row *r, float *s, uint32_t column, float *out,
                          int n_vecs) {
    vecf sum[DELTA_VECS] = {0}, change[DELTA_VECS], read[DELTA_VECS] = {0};
    for (uint32_t i = 0; i < r->k_dim; i++)
        for (int j = 0; j < n_vecs; j++) {
            float *at = s + (size_t)i * r->v_dim + column + j * LANES;
            const vecf faded = vec_load(at) * r->decay;
            vec_store(at, faded);
            sum[j] += faded * r->k[i];
        }
    for (int j = 0; j < n_vecs; j++)
        change[j] = (vec_load(r->v + column + j * LANES) - sum[j]) * r->beta;
    for (uint32_t i = 0; i < r->k_dim; i++)
        for (int j = 0; j < n_vecs; j++) {
            float *at = s + (size_t)i * r->v_dim + column + j * LANES;
            const vecf next = vec_load(at) + change[j] * r->k[i];
            vec_store(at, next);
            read[j] += next * r->q[i];
        }
    for (int j = 0; j < n_vecs; j++) vec_store(out + column + j * LANES, read[j]);
}

static void delta(const struct delta_row *r, float *s, float *out) {
    uint32_t column = 0;
    for (; column + DELTA_VECS * LANES <= r->v_dim; column += DELTA_VECS * LANES)
        delta_columns(r, s, column, out, DELTA_VECS);
    for (; column < r->v_dim; column += LANES) delta_columns(r, s, column, out, 1);
}

/* Does the same by a row of Mamba-2, which reads nothing of the state before it changes it. */
INLINE void scan_columns(const struct scan_row *r, float *s, uint32_t column, float *out,
                         int n_vecs) {
    vecf change[DELTA_VECS], read[DELTA_VECS] = {0};
    for (int j = 0; j < n_vecs; j++) change[j] = vec_load(r->x + column + j * LANES) * r->dt;
    for (uint32_t i = 0; i < r->k_dim; i++)
        for (int j = 0; j < n_vecs; j++) {
            float *at = s + (size_t)i * r->v_dim + column + j * LANES;
            const vecf next = vec_load(at) * r->decay + change[j] * r->b[i];
            vec_store(at, next);
            read[j] += next * r->c[i];
        }
    for (int j = 0; j < n_vecs; j++) vec_store(out + column + j * LANES, read[j]);
}

static void scan(const struct scan_row *r, float *s, float *out) {
    uint32_t column = 0;
    for (; column + DELTA_VECS * LANES <= r->v_dim; column += DELTA_VECS * LANES)
        scan_columns(r, s, column, out, DELTA_VECS);
    for (; column < r->v_dim; column += LANES) scan_columns(r, s, column, out, 1);
}

/* Adds short runs in f32 and their sums in double: one f32 sum over a vocabulary's terms loses up
 * to 2e-5 of the result. */
static float log_sum_exp(const float *x, uint32_t n, float max) {
    enum { RUN = 1024 };
    double sum = 0;
    uint32_t i = 0;
    while (i + LANES <= n) {
        vecf acc = {0};
        const uint32_t end = n - i < RUN ? n : i + RUN;
        for (; i + LANES <= end; i += LANES) acc += vec_exp2((vec_load(x + i) - max) * 1.44269504f);
        sum += (double)vec_sum(acc);
    }
    for (; i < n; i++) sum += (double)exp2f((x[i] - max) * 1.44269504f);
    return (float)((double)max + log(sum));
}

static const struct product_kernels products[] = {
    PRODUCTS("f32", ELEMENT_F32, pack_in_order, dot_f32, burst, 1, sizeof(float)),
    PRODUCTS("f16", ELEMENT_F16, pack_in_order, dot_f16, burst, 1, sizeof(float)),
    PRODUCTS("bf16", ELEMENT_BF16, pack_in_pairs, dot_bf16, burst, 1, sizeof(float)),
    PRODUCTS("e4m3", ELEMENT_E4M3, pack_in_order, dot_e4m3, burst, 1, sizeof(float)),
};

const struct cpu_kernels KERNELS_NAME = {
    .products = products,
    .n_products = sizeof(products) / sizeof(products[0]),
    .to_f32 = to_f32,
    .square_sum = square_sum,
    .widen_e4m3 = widen_e4m3,
    .rmsnorm = rmsnorm,
    .layernorm = layernorm,
    .gate_mul = gate_mul,
    .sigmoid_mul = sigmoid_mul,
    .activate = activate,
    .soft_cap = soft_cap,
    .page_scores = page_scores,
    .rotate_page = rotate_page,
    .softmax_update = softmax_update,
    .page_values = page_values,
    .add_scores = add_scores,
    .delta = delta,
    .scan = scan,
    .log_sum_exp = log_sum_exp,
};
