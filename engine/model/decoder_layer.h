/* decoder_layer.h - a layer up to its attention, in a step of the decoder.
 *
 * Thread: engine.  Memory: none of its own. */
#ifndef ENGINE_MODEL_DECODER_LAYER_H
#define ENGINE_MODEL_DECODER_LAYER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/model/decoder_internal.h"

struct error;

/* Computes the rows' q from x, and their keys and values into the pages. */
int decoder_layer_enter(struct decoder *d, uint32_t layer, struct row_range rows,
                        struct error *err);
/* Computes attn from x for all rows of the step.  Enters the layer, attends, and evicts tokens by
 * their scores where sequences have these. */
int decoder_layer_attention(struct decoder *d, uint32_t layer, struct row_range rows,
                            struct error *err);
/* Computes attn of a layer slice's rows, which have entered the layer before, and evicts. */
int decoder_layer_attend_slice(struct decoder *d, uint32_t layer, struct row_range rows,
                               struct error *err);
/* Returns true if the step's sparse prompt chooses in this layer by the backend's index(). */
bool decoder_layer_is_indexed(const struct decoder *d, uint32_t layer);
/* Runs index(); q is that of the first row that the sparse sequence indexes. */
int decoder_layer_index(struct decoder *d, uint32_t layer, const void *q, struct error *err);
/* Evicts the oldest tokens of n_layers layers where sequences have bounded caches without scores.
 * Attention of these layers has been computed. */
int decoder_layer_evict_oldest(struct decoder *d, uint32_t first_layer, uint32_t n_layers,
                               struct error *err);

#endif
