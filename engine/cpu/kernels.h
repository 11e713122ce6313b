/* kernels.h - the inner loops of the CPU backend, one table per instruction set.
 *
 * kernels.c is compiled once for each; the table is chosen when the backend is created.
 * All numbers are f32 unless an element says otherwise. */
#ifndef ENGINE_CPU_KERNELS_H
#define ENGINE_CPU_KERNELS_H

#include "engine/base/sizes.h"
#include "engine/device/backend.h"
#include "engine/device/weight.h"

enum { PACK_UNIT = 32, PACK_ROWS = 16, ANGLE_UNIT = 16, DELTA_UNIT = 16 };

/* Returns how many floats the cos (or sin) of a rank's n_freqs angles take, padded to whole
 * registers. */
static inline uint32_t angle_stride(uint32_t n_freqs) {
    return (uint32_t)round_up(n_freqs, ANGLE_UNIT);
}

/* A block of y[r * y_stride + c] (+)= dot(x[r], w[col + c]) + bias[c]: r < n_rows, c < n_cols. */
struct product_block {
    const void *x;   /* packed rows of w->cols elements */
    size_t x_stride; /* elements of a packed row */
    uint32_t n_rows;
    const struct weight *w;
    uint32_t col, n_cols; /* rows of w */
    const float *bias;    /* NULL: none */
    float *y;
    size_t y_stride;
    bool accumulate;
};

/* How to multiply with weights of one format.  Blocks begin at multiples of row_unit and col_unit,
 * unless a matrix ends. */
struct product_kernels {
    const char *name;
    struct weight_format format;
    /* Packs at most PACK_ROWS rows, n_in floats each, for dot(): rows `stride` elements apart, or
     * the group as a whole.  Pads them with zeros to PACK_UNIT elements or less. */
    void (*pack)(void *out, size_t stride, const float *x, uint32_t n_rows, uint32_t n_in);
    /* Computes a block.  The order of a sum depends on the number of its terms alone. */
    void (*dot)(const struct product_block *b);
    /* Runs rounds * burst_size multiply-adds on registers alone, to measure the peak rate.  Returns
     * one of their sums so that they are not optimised away. */
    float (*burst)(uint64_t rounds);
    uint32_t burst_size;
    uint32_t packed_size;                    /* bytes of a packed element */
    uint32_t block_extra;                    /* bytes beside PACK_UNIT packed elements */
    uint32_t row_unit, col_unit, block_cols; /* block_cols: of a block of many rows */
    uint32_t block_bytes;                    /* packed rows that a second-level cache holds */
};

/* Says whether the kernels multiply with weights of a format.  Those of E4M3 take any scales, of
 * rows, blocks or the whole weight.  Their columns are whole registers. */
static inline bool product_kernels_take(const struct product_kernels *kernels,
                                        const struct weight_format *format) {
    if (format->element != ELEMENT_E4M3) return weight_same_format(&kernels->format, format);
    return kernels->format.element == ELEMENT_E4M3 && format->scale != SCALE_NONE &&
           !format->has_min && format->block_cols % PACK_UNIT == 0;
}

/* What a row changes in a head's state of a recurrent layer (recurrent.h). */
struct delta_row {
    const float *q, *k;    /* [k_dim], normalised */
    const float *v;        /* [v_dim] */
    float decay, beta;     /* exp(g) and beta */
    uint32_t k_dim, v_dim; /* v_dim: a multiple of DELTA_UNIT */
};

/* The same of Mamba-2. */
struct scan_row {
    const float *c, *b;    /* [k_dim] */
    const float *x;        /* [v_dim] */
    float decay, dt;       /* exp(rate * dt) */
    uint32_t k_dim, v_dim; /* v_dim: a multiple of DELTA_UNIT */
};

struct cpu_kernels {
    /* Products in f32, a row for each format that has kernels.  The first row is F32: weights of
     * other formats are converted to it.  The row of E4M3 is for all scales of it that
     * product_kernels_take(). */
    const struct product_kernels *products;
    uint32_t n_products;
    void (*to_f32)(float *out, const void *in, size_t n, enum element element);
    float (*square_sum)(const float *x, uint32_t n);
    /* Writes a row of a weight of E4M3 without NaN, with its scales, in f32. */
    void (*widen_e4m3)(const struct weight *w, uint32_t row, float *out);
    void (*rmsnorm)(float *out, const float *x, const float *weight, uint32_t n, float eps,
                    bool accumulate);
    /* bias NULL: none. */
    void (*layernorm)(float *out, const float *x, const float *weight, const float *bias,
                      uint32_t n, float eps);
    void (*gate_mul)(float *out, const float *gate, const float *up, uint32_t n,
                     enum gate_kind kind);
    /* Computes x[i] *= sigmoid(gate[i]). */
    void (*sigmoid_mul)(float *x, const float *gate, uint32_t n);
    void (*activate)(float *x, uint32_t n, enum act_kind kind);
    /* Computes x[i] = cap * tanh(x[i] / cap); NaN stays NaN. */
    void (*soft_cap)(float *x, size_t n, float cap);
    /* Computes the scores of n_rows queries against one page: s[r][slot] = dot(q[r], k[.][slot]).
     * Rows of s are PAGE_TOKENS long; k is [dim, PAGE_TOKENS], and scratch holds as many floats.
     * Unused slots give meaningless numbers. */
    void (*page_scores)(float *s, const float *q, uint32_t n_rows, const void *k,
                        enum element element, uint32_t dim, float *scratch);
    /* Writes a copy of a page's keys, [dim, PAGE_TOKENS], each slot rotated by row rank[slot] of
     * angles.  A row of angles is [2][angle_stride(n_freqs)]: cos, sin. */
    void (*rotate_page)(float *out, const void *k, enum element element, uint32_t dim,
                        const uint32_t *rank, const float *angles, uint32_t n_freqs);
    /* Advances the online softmax of one row in base 2: s[0..n) becomes weights, max and sum are
     * updated.  Returns the factor for what was accumulated before. */
    float (*softmax_update)(float *s, uint32_t n, float *max, float *sum);
    /* Computes o[r] = o[r] * factor[r] + sum over slots of s[r][slot] * v[slot]. */
    void (*page_values)(float *o, const float *factor, const float *s, uint32_t n_rows,
                        const void *v, enum element element, uint32_t dim, uint32_t n_slots,
                        float *scratch);
    /* Adds one query token's attention to the scores of a page's first n slots: score = decay *
     * score + sum of its probabilities.  The sum is over its heads, r < n_rows, in their order;
     * s[r][slot] is in base 2 and softmax[r] is (max, sum). */
    void (*add_scores)(float *score, float decay, const float *s, const float *softmax,
                       uint32_t n_rows, uint32_t n);
    /* Advances the state s [k_dim, v_dim] by a row, and writes what the row reads of it: out
     * [v_dim]. */
    void (*delta)(const struct delta_row *row, float *s, float *out);
    void (*scan)(const struct scan_row *row, float *s, float *out);
    /* Returns log(sum of exp(x[i])); max is the largest of x. */
    float (*log_sum_exp)(const float *x, uint32_t n, float max);
};

extern const struct cpu_kernels cpu_kernels_plain, cpu_kernels_avx2, cpu_kernels_avx512;

#endif
