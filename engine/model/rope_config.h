/* rope_config.h - the rotary settings of config.json.
 *
 * Two kinds of scaling depend on the length of the text: dynamic, and longrope with its two lists
 * of factors.  Keys are cached after they have been rotated, so the choice cannot change within a
 * text.  It is made once, for the longest text that is asked for (config_reader.context):
 *
 *   longrope   longest text within the original context: short_factor, and no text may be longer;
 *              otherwise long_factor, for short texts, too
 *   dynamic    longest text beyond the trained context: the frequencies that a text of that length
 *              has, for short texts, too; otherwise the trained ones
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_MODEL_ROPE_CONFIG_H
#define ENGINE_MODEL_ROPE_CONFIG_H

#include "engine/model/config_reader.h"
#include "engine/model/model.h"
#include "engine/model/rope.h"

/* Reads the settings; the config must have its shape and max_position.  Sets n_freqs, rope_scale
 * and, where the scaling stretches or cuts it, max_position. */
int rope_config_read(const struct config_reader *r, struct model_config *c, struct rope_params *p);

#endif
