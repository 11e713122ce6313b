/* recurrent_layer.h - a layer with a recurrent state (recurrent.h), up to where attention would be.
 *
 * Thread: engine.  Memory: none of its own. */
#ifndef ENGINE_MODEL_RECURRENT_LAYER_H
#define ENGINE_MODEL_RECURRENT_LAYER_H

#include <stdint.h>

#include "engine/model/decoder_internal.h"

struct error;
struct model_config;

/* Elements of a row in the decoder's buffers qkv, gates and attn, which all layers share. */
struct mixer_widths {
    uint32_t qkv, gates, attn;
};

/* Returns the widths that the model's widest layers need. */
struct mixer_widths mixer_widths(const struct model_config *config);
/* Returns the elements of a row of attn in this layer: the input of its product o. */
uint32_t mixer_attn_width(const struct model_config *config, uint32_t layer);

/* Computes attn from x for all rows of the step, and the states of its sequences. */
int recurrent_layer_run(struct decoder *d, uint32_t layer, struct row_range rows,
                        struct error *err);

#endif
