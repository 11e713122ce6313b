/* recurrent_oracle.h - layers with a recurrent state by their definitions in float64, row after
 * row, for the tests of every backend (engine/device/recurrent.h).
 *
 *   qkv ─ oracle_vectors() ─► vectors ─ oracle_recur() ─► o ─ oracle_finish() ─► out
 *
 * Thread: any.  Memory: the caller's. */
#ifndef TESTS_RECURRENT_ORACLE_H
#define TESTS_RECURRENT_ORACLE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/device/recurrent.h"

enum { ORACLE_MOST_DIM = 256 };

/* The weights of a layer, in the order of struct recurrent_args. */
struct oracle_layer {
    struct recurrent_shape shape;
    const double *taps;   /* [n_channels][width] */
    const double *biases; /* [n_channels]; NULL: none */
    const double *rates, *dt_bias, *norm, *skip;
    double eps;
    double (*stored)(double x); /* returns x as the backend stores it in a vector */
};

static inline double oracle_sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static inline double oracle_silu(double x) {
    return x * oracle_sigmoid(x);
}

static inline double oracle_softplus(double x) {
    return x > 30 ? x : log1p(exp(x));
}

/* Returns the convolution of a text's row, one channel; qkv has the text's rows. */
static inline double oracle_convolve(const struct oracle_layer *l, const double *qkv, size_t row,
                                     uint32_t channel) {
    const uint32_t width = l->shape.width, n = recurrent_n_channels(&l->shape);
    double sum = l->biases ? l->biases[channel] : 0;
    for (uint32_t j = 0; j < width; j++)
        if (row + j + 1 >= width)
            sum += l->taps[(size_t)channel * width + j] * qkv[(row + j + 1 - width) * n + channel];
    return sum;
}

static inline void oracle_make_unit(const struct oracle_layer *l, double *x, uint32_t n) {
    double sum = 1e-6;
    for (uint32_t i = 0; i < n; i++) sum += x[i] * x[i];
    for (uint32_t i = 0; i < n; i++) x[i] = l->stored(x[i] / sqrt(sum));
}

/* Makes a row of vectors, [n_channels]: q and k of length 1, and v; or x, B and C. */
static inline void oracle_vectors(const struct oracle_layer *l, const double *qkv, size_t row,
                                  double *y) {
    const struct recurrent_shape *s = &l->shape;
    for (uint32_t c = 0; c < recurrent_n_channels(s); c++)
        y[c] = l->stored(oracle_silu(oracle_convolve(l, qkv, row, c)));
    for (uint32_t h = 0; s->kind == RECURRENT_DELTA && h < 2 * s->n_k_heads; h++)
        oracle_make_unit(l, y + h * s->k_dim, s->k_dim);
}

/* Changes a v head's state [k_dim][v_dim] by a row of Gated DeltaNet, and reads o of it. */
static inline void oracle_delta_row(const struct oracle_layer *l, const double *vectors, double a,
                                    double b, uint32_t head, double *state, double *o) {
    const struct recurrent_shape *s = &l->shape;
    const uint32_t n_keys = s->n_k_heads * s->k_dim, n = s->v_dim;
    const double *q = vectors + recurrent_k_head(s, head) * s->k_dim, *k = q + n_keys,
                 *v = vectors + 2 * n_keys + head * n,
                 decay = exp(l->rates[head] * oracle_softplus(a + l->dt_bias[head])),
                 beta = oracle_sigmoid(b);
    double add[ORACLE_MOST_DIM] = {0};
    for (uint32_t i = 0; i < s->k_dim; i++)
        for (uint32_t j = 0; j < n; j++) add[j] += (state[i * n + j] *= decay) * k[i];
    for (uint32_t j = 0; j < n; j++) add[j] = beta * (v[j] - add[j]), o[j] = 0;
    for (uint32_t i = 0; i < s->k_dim; i++)
        for (uint32_t j = 0; j < n; j++) o[j] += (state[i * n + j] += k[i] * add[j]) * q[i];
    for (uint32_t j = 0; j < n; j++) o[j] /= sqrt(s->k_dim);
}

/* The same of Mamba-2. */
static inline void oracle_mamba_row(const struct oracle_layer *l, const double *vectors, double a,
                                    uint32_t head, double *state, double *o) {
    const struct recurrent_shape *s = &l->shape;
    const uint32_t n_keys = s->n_k_heads * s->k_dim, n = s->v_dim;
    const double *x = vectors + head * n,
                 *b = vectors + s->n_v_heads * n + recurrent_k_head(s, head) * s->k_dim,
                 *c = b + n_keys,
                 dt = fmin(fmax(oracle_softplus(a + l->dt_bias[head]), (double)s->dt_least),
                           (double)s->dt_most),
                 decay = exp(l->rates[head] * dt);
    for (uint32_t j = 0; j < n; j++) o[j] = l->skip[head] * x[j];
    for (uint32_t i = 0; i < s->k_dim; i++)
        for (uint32_t j = 0; j < n; j++) {
            double *to = &state[i * n + j];
            o[j] += (*to = decay * *to + b[i] * dt * x[j]) * c[i];
        }
}

/* Runs a v head over n rows, from `state` on; vectors [n][n_channels], a and b [n][n_v_heads], o
 * [n][n_v_heads][v_dim]. */
static inline void oracle_recur(const struct oracle_layer *l, const double *vectors,
                                const double *a, const double *b, size_t n, uint32_t head,
                                double *state, double *o) {
    const struct recurrent_shape *s = &l->shape;
    for (size_t row = 0; row < n; row++) {
        const double *own = vectors + row * recurrent_n_channels(s);
        const size_t at = row * s->n_v_heads + head;
        double *to = o + at * s->v_dim;
        if (s->kind == RECURRENT_DELTA) oracle_delta_row(l, own, a[at], b[at], head, state, to);
        else oracle_mamba_row(l, own, a[at], head, state, to);
    }
}

/* Finishes n_heads heads of o, in place: the norm of Gated DeltaNet, and silu(z). */
static inline void oracle_finish(const struct oracle_layer *l, const double *z, double *o,
                                 size_t n_heads) {
    const uint32_t n = l->shape.v_dim;
    for (size_t h = 0; h < n_heads; h++, o += n, z += n) {
        double mean = 0;
        for (uint32_t j = 0; j < n; j++) mean += o[j] * o[j] / n;
        for (uint32_t j = 0; j < n; j++) {
            if (l->shape.kind == RECURRENT_DELTA) o[j] *= l->norm[j] / sqrt(mean + l->eps);
            o[j] *= oracle_silu(z[j]);
        }
    }
}

/* Returns a row of a short convolution, one channel; bcx has the text's rows of b, c and x. */
static inline double oracle_short_convolution(const struct oracle_layer *l, const double *bcx,
                                              size_t row, uint32_t channel) {
    const uint32_t width = l->shape.width, n = recurrent_n_channels(&l->shape);
    double sum = 0;
    for (uint32_t j = 0; j < width; j++) {
        if (row + j + 1 < width) continue;
        const double *b = bcx + (row + j + 1 - width) * 3 * n + channel;
        sum += l->taps[(size_t)channel * width + j] * b[0] * b[2 * n];
    }
    return sum * bcx[row * 3 * n + n + channel];
}

#endif
