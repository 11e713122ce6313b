/* feed_forward.h - what follows attention in a layer.
 *
 * Thread: engine.  Memory: none of its own. */
#ifndef ENGINE_MODEL_FEED_FORWARD_H
#define ENGINE_MODEL_FEED_FORWARD_H

#include <stdint.h>

struct decoder;
struct error;

/* Runs the rest of a layer on n_rows rows.  attn_out, act [n_rows, n_heads * head_dim]: what
 * attention computed; x, act [n_rows, dim]: the residual stream, to which the layer adds. */
int feed_forward_run(struct decoder *d, uint32_t layer, const void *attn_out, void *x,
                     uint32_t n_rows, struct error *err);

#endif
