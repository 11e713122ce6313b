/* recurrent_config.h - what config.json says of layers with a recurrent state: which ones they are,
 * and their shape.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_MODEL_RECURRENT_CONFIG_H
#define ENGINE_MODEL_RECURRENT_CONFIG_H

#include <stdbool.h>

struct config_reader;
struct model_config;

/* Numbers the layers of c, and counts those that attend.  has_recurrent: 'layer_types' or
 * 'full_attention_interval' say which layers are recurrent; else none is. */
int recurrent_config_read(const struct config_reader *r, bool has_recurrent,
                          struct model_config *c);

#endif
