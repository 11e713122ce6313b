/* recurrent_config.h - what config.json says of layers with a recurrent state: which ones they are,
 * and their shape.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_MODEL_RECURRENT_CONFIG_H
#define ENGINE_MODEL_RECURRENT_CONFIG_H

#include "engine/model/family.h"

struct config_reader;
struct model_config;

/* Numbers the layers of c, and counts those that attend.  'layer_types' says which layers are
 * recurrent; or else 'full_attention_interval', or 'full_attn_idxs' of short convolutions. */
int recurrent_config_read(const struct config_reader *r, enum family_recurrent recurrent,
                          struct model_config *c);

#endif
