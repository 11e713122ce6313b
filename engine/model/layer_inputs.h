/* layer_inputs.h - what each layer gets of a token beside the residual stream (Gemma 4 E2B, E4B).
 *
 * All layers' inputs are computed at once, from the tokens and their embeddings:
 *
 *   inputs   act [n_rows, n_layers * layer_inputs]
 *            (table[token] * sqrt(layer_inputs) + norm(projection(x))) / sqrt(2)
 *
 * The norm is of each layer's part by itself.  Behind its feed-forward part a layer adds
 * norm(projection(gelu(gate(x)) * its part)) to the residual stream x.
 *
 * Where ranks share weights, each of them computes all of this.
 *
 * Thread: engine.  Memory: in the decoder's arena. */
#ifndef ENGINE_MODEL_LAYER_INPUTS_H
#define ENGINE_MODEL_LAYER_INPUTS_H

#include <stdint.h>

#include "engine/model/decoder_internal.h"

struct error;

/* Returns the elements of a row of inputs; 0: the model has none. */
uint32_t layer_inputs_width(const struct model_config *config);
/* Computes the inputs of the step's rows that are the rank's own, from their embeddings. */
int layer_inputs_make(struct decoder *d, struct row_range rows, struct error *err);
/* Returns the inputs of the first of these; NULL if the model has none. */
const void *layer_inputs_of(const struct decoder *d, struct row_range rows);
/* Adds to x what a layer makes of its inputs, if the model has any, and scales the sum (scale as in
 * rmsnorm_args.sum_scale).  inputs: of the rows of x. */
int layer_inputs_add(struct decoder *d, uint32_t layer, const void *inputs, float scale, void *x,
                     uint32_t n_rows, struct error *err);

#endif
