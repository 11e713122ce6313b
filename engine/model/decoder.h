/* decoder.h - runs a step of a transformer decoder on a backend.  Written once, driven by
 * model_config.
 *
 * A step takes its rows through all layers.  A long prompt may instead go layer by layer, so that
 * all of its rows and keys are there when attn_index chooses for one layer: its rows are cut into
 * slices, and a slice is a step of its own, between which ordinary steps may run.
 *
 *   layer 0     1     2  …  n_layers - 1
 *   slice 0   ┃ ┃   ┃ ┃   ┃ ┃       enters a layer: norm, q k v, keys and values into their pages;
 *   slice 1   ┃ ┃ ─►┃ ┃ ─►┃ ┃       the last slice's step ends with attn_index
 *   slice 2   ┃ ┃   ┃ ┃   ┃ ┃       leaves it: attention, feed-forward
 *
 * The step that takes a slice out of a layer takes it into the next: (layer, slice) leaves
 * layer - 1 and enters layer.  Behind the last layer nobody needs the rows, so they never leave it;
 * their pages are filled, and the prompt's last token, which is not one of them, takes the ordinary
 * way.
 * Until a slice leaves a layer, x and q stay in a room for all rows of the one long prompt.
 *
 * Thread: engine.  Memory: activation buffers are allocated at create for the largest step. */
#ifndef ENGINE_MODEL_DECODER_H
#define ENGINE_MODEL_DECODER_H

#include "engine/device/layer_slice.h"
#include "engine/model/model.h"

struct decoder;

struct decoder_limits {
    uint32_t max_rows;       /* rows of the largest step */
    uint32_t max_logit_rows; /* logits are made in slices of at most this many rows */
    uint32_t max_long_rows;  /* of a long prompt; 0: there are none */
    /* For sequences that select, borrowed: host [n_groups], ascending; and where their tokens are
     * that are not in the pool, or NULL. */
    const struct layer_group *groups;
    uint32_t n_groups;
    const struct host_pool *store;
};

/* Bytes of a long prompt's room, a part of decoder_workspace_bytes(). */
size_t decoder_long_bytes(const struct model_config *config, uint32_t n_rows, enum dtype act_dtype);
/* Bytes of activations that decoder_create() will allocate where activations are f32; half of most
 * of it where they are 16 bits wide, so it is a bound everywhere. */
size_t decoder_workspace_bytes(const struct model_config *config,
                               const struct decoder_limits *limits);

/* model, be and the pool behind kv are borrowed. */
int decoder_create(struct decoder **out, const struct model *model, struct backend *be,
                   const struct kv_pool *kv, const struct decoder_limits *limits,
                   struct error *err);
void decoder_destroy(struct decoder *decoder); /* NULL is allowed */

/* Submits the step.  samples[i].logit_row is a row of the *step* (any order, repeats allowed);
 * results[i] answers samples[i], and totals[i] sequence i if it has a budget, once the step has
 * been collected.  Until then neither is to be touched; all else may change as soon as this
 * returns. */
int decoder_submit(struct decoder *decoder, const struct step *step,
                   const struct sample_row *samples, uint32_t n_samples,
                   struct sample_result *results, struct evict_total *totals, struct error *err);
/* Submits a step of one sequence without samples, whose rows are the slice's.  Slices come in order
 * of their rows, layer by layer. */
int decoder_submit_slice(struct decoder *decoder, const struct step *step,
                         const struct layer_slice *slice, struct error *err);
/* q of the long prompt's first row, as in attn_args and attn_index_args, of the layer that all of
 * its slices have entered and none has left: for whoever measures attention there. */
const void *decoder_long_q(const struct decoder *decoder, size_t *q_stride);
/* Behind a submitted step or slice with a sparse sequence: what was visited since the last call,
 * there once the step has been collected. */
int decoder_submit_totals(struct decoder *decoder, struct sparse_totals *out, struct error *err);
/* Behind a submitted step: out[i] is sequence i's if it selects, there once the step has been
 * collected. */
int decoder_submit_selected(struct decoder *decoder, struct select_total *out, struct error *err);
/* Waits until all submitted steps but the newest n_newer are done. */
int decoder_collect(struct decoder *decoder, uint32_t n_newer, struct error *err);

/* Submits the step and waits for it.  totals may be NULL; logits_out, if not NULL, is host f32
 * [n_samples, n_vocab] and receives the raw logits (tests, goldens). */
int decoder_step(struct decoder *decoder, const struct step *step, const struct sample_row *samples,
                 uint32_t n_samples, struct sample_result *results, struct evict_total *totals,
                 float *logits_out, struct error *err);

#endif
