/* kernels.c - see kernels.h.  Compiled once per instruction set with KERNELS_NAME set. */
#include "engine/cpu/kernels.h"

#include "engine/cpu/vec.h"

/* Register tile of the products: 4 x 6 accumulators and 10 operands fit 32 vector registers; where a vector
 * spans two or four registers a smaller tile does. */
#if defined(__AVX512F__)
enum { TILE_ROWS = 4, TILE_COLS = 6, ATTN_ROWS = 6 };
#else
enum { TILE_ROWS = 2, TILE_COLS = 2, ATTN_ROWS = 2 };
#endif

#define INLINE static inline __attribute__((always_inline))

struct out_tile {
    const float *bias;
    float *y;
    size_t stride;
    bool accumulate;
};

INLINE void store_output(const struct out_tile *t, uint32_t r, uint32_t c, float sum) {
    float *y = t->y + r * t->stride + c;
    if (t->bias) sum += t->bias[c];
    *y = t->accumulate ? *y + sum : sum;
}

/* rows x cols dot products; w as stored.  Both constants are known at compile time after inlining. */
INLINE void dot_tile(const float *x, uint32_t rows, uint32_t n_in, const void *w, enum dtype dtype, size_t w_stride,
                     uint32_t cols, const struct out_tile *out, uint32_t col) {
    v16f acc[TILE_ROWS][TILE_COLS] = {0};
    uint32_t k = 0;
    for (; k + LANES <= n_in; k += LANES) {
        v16f a[TILE_ROWS];
#pragma GCC unroll 8
        for (uint32_t r = 0; r < rows; r++) a[r] = v16_load(x + (size_t)r * n_in + k);
#pragma GCC unroll 8
        for (uint32_t c = 0; c < cols; c++) {
            v16f b = v16_load_as(w, c * w_stride + k, dtype);
#pragma GCC unroll 8
            for (uint32_t r = 0; r < rows; r++) acc[r][c] += a[r] * b;
        }
    }
    if (k < n_in) {
        for (uint32_t c = 0; c < cols; c++) {
            v16f b = v16_load_tail(w, c * w_stride + k, n_in - k, dtype);
            for (uint32_t r = 0; r < rows; r++) {
                acc[r][c] += v16_load_tail(x, (size_t)r * n_in + k, n_in - k, DTYPE_F32) * b;
            }
        }
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (uint32_t c = 0; c < cols; c++) store_output(out, r, col + c, v16_sum(acc[r][c]));
    }
}

INLINE void dot_columns(const float *x, uint32_t rows, uint32_t n_in, const void *w, enum dtype dtype, size_t stride,
                        uint32_t n_cols, const struct out_tile *out) {
    const char *base = w;
    size_t size = dtype_size(dtype);
    uint32_t c = 0;
    for (; c + TILE_COLS <= n_cols; c += TILE_COLS) {
        dot_tile(x, rows, n_in, base + c * stride * size, dtype, stride, TILE_COLS, out, c);
    }
    for (; c < n_cols; c++) dot_tile(x, rows, n_in, base + c * stride * size, dtype, stride, 1, out, c);
}

INLINE void dot_rows(const float *x, uint32_t n_rows, uint32_t n_in, const void *w, enum dtype dtype, size_t stride,
                     uint32_t n_cols, struct out_tile out) {
    uint32_t r = 0;
    for (; r + TILE_ROWS <= n_rows; r += TILE_ROWS) {
        dot_columns(x + (size_t)r * n_in, TILE_ROWS, n_in, w, dtype, stride, n_cols, &out);
        out.y += TILE_ROWS * out.stride;
    }
    for (; r < n_rows; r++) {
        dot_columns(x + (size_t)r * n_in, 1, n_in, w, dtype, stride, n_cols, &out);
        out.y += out.stride;
    }
}

static void to_f32(float *out, const void *in, size_t n, enum dtype dtype) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) v16_store(out + i, v16_load_as(in, i, dtype));
    for (; i < n; i++) out[i] = load_as_f32(in, i, dtype);
}

static void linear_block(const float *x, uint32_t n_rows, uint32_t n_in, const void *w, enum dtype dtype,
                         uint32_t n_cols, const float *bias, float *y, size_t y_stride, bool accumulate,
                         float *scratch) {
    struct out_tile out = {bias, y, y_stride, accumulate};
    if (n_rows > TILE_ROWS && dtype != DTYPE_F32) {
        /* Many rows: widen the block once and reuse it from the cache. */
        to_f32(scratch, w, (size_t)n_cols * n_in, dtype);
        dot_rows(x, n_rows, n_in, scratch, DTYPE_F32, n_in, n_cols, out);
        return;
    }
    switch (dtype) { /* a constant dtype lets the conversion inline */
    case DTYPE_F32: dot_rows(x, n_rows, n_in, w, DTYPE_F32, n_in, n_cols, out); break;
    case DTYPE_F16: dot_rows(x, n_rows, n_in, w, DTYPE_F16, n_in, n_cols, out); break;
    case DTYPE_BF16: dot_rows(x, n_rows, n_in, w, DTYPE_BF16, n_in, n_cols, out); break;
    }
}

static void rmsnorm(float *out, const float *x, const float *weight, uint32_t n, float eps) {
    v16f acc = {0};
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        v16f v = v16_load(x + i);
        acc += v * v;
    }
    float sum = v16_sum(acc);
    for (; i < n; i++) sum += x[i] * x[i];
    float scale = 1.0f / sqrtf(sum / (float)n + eps);
    for (i = 0; i < n; i++) out[i] = x[i] * scale * weight[i];
}

static void silu_mul(float *out, const float *gate, const float *up, uint32_t n) {
    uint32_t i = 0;
    for (; i < n; i += LANES) {
        uint32_t left = n - i < LANES ? n - i : LANES;
        float g[LANES] = {0}, u[LANES] = {0}, result[LANES];
        memcpy(g, gate + i, left * sizeof(float));
        memcpy(u, up + i, left * sizeof(float));
        /* Through exp(-|g|), so that the exponent is never positive. */
        v16f v = v16_load(g);
        v16f magnitude = (v16f)((v16i)v & 0x7fffffff);
        v16f e = v16_exp2(magnitude * -1.44269504f);
        v16i negative = v < 0.0f;
        v16f numerator = (v16f)(((v16i)e & negative) | ((v16i)v16_set(1.0f) & ~negative));
        v16_store(result, v * numerator / (1.0f + e) * v16_load(u));
        memcpy(out + i, result, left * sizeof(float));
    }
}

/* kt[d][slot] = k[slot][d]; slots past n_slots are zero so that nothing reads stale numbers. */
static void transpose_keys(float *kt, const void *k, enum dtype dtype, uint32_t dim, uint32_t n_slots) {
    float row[LANES];
    for (uint32_t slot = 0; slot < PAGE_TOKENS; slot++) {
        for (uint32_t d = 0; d < dim; d += LANES) {
            uint32_t n = dim - d < LANES ? dim - d : LANES;
            v16f v = {0};
            if (slot < n_slots) {
                size_t at = (size_t)slot * dim + d;
                v = n == LANES ? v16_load_as(k, at, dtype) : v16_load_tail(k, at, n, dtype);
            }
            v16_store(row, v);
            for (uint32_t i = 0; i < n; i++) kt[(size_t)(d + i) * PAGE_TOKENS + slot] = row[i];
        }
    }
}

INLINE void scores_tile(float *s, const float *q, uint32_t rows, const float *kt, uint32_t dim) {
    v16f acc[ATTN_ROWS][PAGE_TOKENS / LANES] = {0};
    for (uint32_t d = 0; d < dim; d++) {
#pragma GCC unroll 4
        for (uint32_t j = 0; j < PAGE_TOKENS / LANES; j++) {
            v16f k = v16_load(kt + (size_t)d * PAGE_TOKENS + j * LANES);
#pragma GCC unroll 8
            for (uint32_t r = 0; r < rows; r++) acc[r][j] += v16_set(q[(size_t)r * dim + d]) * k;
        }
    }
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t j = 0; j < PAGE_TOKENS / LANES; j++) v16_store(s + r * PAGE_TOKENS + j * LANES, acc[r][j]);
    }
}

static void page_scores(float *s, const float *q, uint32_t n_rows, const void *k, enum dtype dtype, uint32_t dim,
                        uint32_t n_slots, float *scratch) {
    transpose_keys(scratch, k, dtype, dim, n_slots);
    uint32_t r = 0;
    for (; r + ATTN_ROWS <= n_rows; r += ATTN_ROWS) {
        scores_tile(s + r * PAGE_TOKENS, q + (size_t)r * dim, ATTN_ROWS, scratch, dim);
    }
    for (; r < n_rows; r++) scores_tile(s + r * PAGE_TOKENS, q + (size_t)r * dim, 1, scratch, dim);
}

static float softmax_update(float *s, uint32_t n, float *max, float *sum) {
    float row_max = *max;
    for (uint32_t i = 0; i < n; i++) row_max = s[i] > row_max ? s[i] : row_max;
    float factor = *max == -INFINITY ? 0.0f : exp2f(*max - row_max);
    v16f acc = {0};
    for (uint32_t i = 0; i < PAGE_TOKENS; i += LANES) {
        for (uint32_t j = i; j < i + LANES; j++) {
            if (j >= n) s[j] = -INFINITY;
        }
        v16f p = v16_exp2(v16_load(s + i) - row_max);
        v16_store(s + i, p);
        acc += p;
    }
    *max = row_max;
    *sum = *sum * factor + v16_sum(acc);
    return factor;
}

INLINE void values_tile(float *o, const float *factor, const float *s, uint32_t rows, const float *v, uint32_t dim,
                        uint32_t d, uint32_t vectors, uint32_t n_slots) {
    v16f acc[ATTN_ROWS][4];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (uint32_t j = 0; j < vectors; j++) acc[r][j] = v16_load(o + (size_t)r * dim + d + j * LANES) * factor[r];
    }
    for (uint32_t slot = 0; slot < n_slots; slot++) {
#pragma GCC unroll 4
        for (uint32_t j = 0; j < vectors; j++) {
            v16f x = v16_load(v + (size_t)slot * dim + d + j * LANES);
#pragma GCC unroll 8
            for (uint32_t r = 0; r < rows; r++) acc[r][j] += v16_set(s[r * PAGE_TOKENS + slot]) * x;
        }
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (uint32_t j = 0; j < vectors; j++) v16_store(o + (size_t)r * dim + d + j * LANES, acc[r][j]);
    }
}

INLINE void values_rows(float *o, const float *factor, const float *s, uint32_t rows, const float *v, uint32_t dim,
                        uint32_t n_slots) {
    uint32_t d = 0;
    for (; d + 4 * LANES <= dim; d += 4 * LANES) values_tile(o, factor, s, rows, v, dim, d, 4, n_slots);
    for (; d + LANES <= dim; d += LANES) values_tile(o, factor, s, rows, v, dim, d, 1, n_slots);
    for (; d < dim; d++) {
        for (uint32_t r = 0; r < rows; r++) {
            float acc = o[(size_t)r * dim + d] * factor[r];
            for (uint32_t slot = 0; slot < n_slots; slot++) acc += s[r * PAGE_TOKENS + slot] * v[(size_t)slot * dim + d];
            o[(size_t)r * dim + d] = acc;
        }
    }
}

static void page_values(float *o, const float *factor, const float *s, uint32_t n_rows, const void *v,
                        enum dtype dtype, uint32_t dim, uint32_t n_slots, float *scratch) {
    const float *wide = v;
    if (dtype != DTYPE_F32) {
        to_f32(scratch, v, (size_t)n_slots * dim, dtype);
        wide = scratch;
    }
    uint32_t r = 0;
    for (; r + ATTN_ROWS <= n_rows; r += ATTN_ROWS) {
        values_rows(o + (size_t)r * dim, factor + r, s + r * PAGE_TOKENS, ATTN_ROWS, wide, dim, n_slots);
    }
    for (; r < n_rows; r++) values_rows(o + (size_t)r * dim, factor + r, s + r * PAGE_TOKENS, 1, wide, dim, n_slots);
}

const struct cpu_kernels KERNELS_NAME = {
    .linear_block = linear_block,
    .to_f32 = to_f32,
    .rmsnorm = rmsnorm,
    .silu_mul = silu_mul,
    .page_scores = page_scores,
    .softmax_update = softmax_update,
    .page_values = page_values,
};
