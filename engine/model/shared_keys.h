/* shared_keys.h - layers without keys and values of their own, which read those of an earlier one.
 *
 *   layer    0  1  2  3  4  5  6       a window: layers 0, 2 and 4
 *   keys of  0  1  2  3  2  3  3       the last three layers share
 *
 * A step and the KV cache know the layers that have keys alone.  A layer that shares has the number
 * of the layer whose keys it reads (layer_shape).  So it has that layer's pages, budget and chosen
 * tokens.  The last layer that reads the keys evicts.  No such layer is a filter.
 * The keys that are shared are those of the last layer of their kind, so none of that kind follows.
 *
 * Thread: loading.  Memory: none of its own. */
#ifndef ENGINE_MODEL_SHARED_KEYS_H
#define ENGINE_MODEL_SHARED_KEYS_H

#include "engine/model/config_reader.h"
#include "engine/model/model.h"

/* Reads how many of the last layers share, 'num_kv_shared_layers'. */
int shared_keys_read(const struct config_reader *r, struct model_config *c);
/* Gives each of them the number of the last layer before them that has keys and the same kind of
 * window.  Called once it is known which layers have a window. */
int shared_keys_place(const struct config_reader *r, struct model_config *c);
/* Returns how many layers a row goes through until all of its keys are in the pages. */
uint32_t shared_keys_n_writing(const struct model_config *c);

#endif
