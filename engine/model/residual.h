/* residual.h - how the parts of a layer read the residual stream, and add to it.
 *
 * Thread: engine.  Memory: none of its own. */
#ifndef ENGINE_MODEL_RESIDUAL_H
#define ENGINE_MODEL_RESIDUAL_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/backend.h"

struct decoder;
struct error;

/* A product's input: the residual stream, which the product norms, or its norm. */
struct residual_input {
    const void *x;                    /* act [n_rows, dim] */
    const struct rmsnorm_input *norm; /* NULL, or &rms */
    struct rmsnorm_input rms;
};

/* Prepares the rows of x, act [n_rows, dim], as the input of products.  LayerNorm is computed at
 * once, into the decoder's `normed`; RMSNorm is computed by the products.  An absent weight: they
 * read x as it is.  *out is valid until the next call, and must not be copied. */
int residual_norm(struct decoder *d, const void *x, uint32_t n_rows, const struct weight *weight,
                  const struct weight *bias, struct residual_input *out, struct error *err);
/* Norms the input now, for operations that are no products; afterwards it is plain. */
int residual_norm_now(struct decoder *d, struct residual_input *input, uint32_t n_rows,
                      struct error *err);
/* Norms rows of the model's width, act [n_rows, dim], into `out`, or adds the norm to it.  The sum
 * is multiplied by sum_scale; 0: it is not. */
int residual_norm_rows(struct decoder *d, const void *x, const struct weight *weight, void *out,
                       bool accumulate, float sum_scale, uint32_t n_rows, struct error *err);

/* A product in W^T + bias of what a part of a layer has computed. */
struct residual_term {
    const void *in;                /* act [n_rows, w->cols] */
    const struct weight *w, *bias; /* bias may be absent */
};

/* Adds n terms to x, act [n_rows, dim], one after the other.  Where ranks share the model, their
 * parts of all terms are summed at once.  Where the model has post_norms, there is one term, and
 * its norm is added instead.  Then x is multiplied by `scale`; 0: it is not. */
int residual_add(struct decoder *d, const struct residual_term *terms, uint32_t n,
                 const struct weight *post_norm, float scale, void *x, uint32_t n_rows,
                 struct error *err);
/* Adds the sum over the ranks of d->part to x, or makes x that sum, for what is not added as a
 * product. */
int residual_add_parts(struct decoder *d, void *x, uint32_t n_rows, struct error *err);
int residual_sum_parts(struct decoder *d, void *x, uint32_t n_rows, struct error *err);

#endif
