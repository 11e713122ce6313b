/* decoder.h - runs a step of a transformer decoder on a backend.  Written once, driven by
 * model_config.
 *
 * A step takes its rows through all layers.  A long prompt may instead be layer-major, so that all
 * of its rows and keys are there when index() (sparse.h) chooses for one layer.  Its rows are cut
 * into slices; a slice is a step of its own, and ordinary steps may run between slices.
 *
 *   layer 0     1     2  …  n_layers - 1      those that attend (layer_slice.h)
 *   slice 0   ┃ ┃   ┃ ┃   ┃ ┃       enters a layer: norm, q k v, keys and values into their pages;
 *   slice 1   ┃ ┃ ─►┃ ┃ ─►┃ ┃       the last slice's step ends with index()
 *   slice 2   ┃ ┃   ┃ ┃   ┃ ┃       leaves it: attention, feed-forward
 *
 * The step that takes a slice out of a layer takes it into the next: (layer, slice) enters `layer`
 * and leaves the one before it.  Rows that need no logits never leave the last layer; their pages
 * are filled.  The prompt's last token, which is not one of them, is then computed in an ordinary
 * step.  Where some need logits (leaves_last), all leave it in one more round of slices, those with
 * layer n_layers.  Until a slice leaves a layer, x and q stay in a workspace for all rows of the
 * one long prompt.
 *
 * Thread: engine.  Memory: activation buffers are allocated at create for the largest step. */
#ifndef ENGINE_MODEL_DECODER_H
#define ENGINE_MODEL_DECODER_H

#include "engine/device/dtype.h"
#include "engine/device/layer_slice.h"
#include "engine/model/model.h"

struct backend;
struct decoder;
struct evict_total;
struct host_pool;
struct kv_pool;
struct layer_group;
struct sample_result;
struct sample_row;
struct select_total;
struct sparse_totals;
struct state_pool;
struct step;

struct decoder_limits {
    uint32_t max_rows;       /* rows of the largest step */
    uint32_t max_logit_rows; /* logits are made for at most this many rows at a time */
    uint32_t max_long_rows;  /* of a layer-major prompt; 0: there are none */
    /* For sequences that select, borrowed: host [n_groups], ascending, and the host pool, or
     * NULL. */
    const struct layer_group *groups;
    uint32_t n_groups;
    const struct host_pool *store;
    /* Of models with recurrent layers; else NULL.  Its shape is that of the model.  Its memory may
     * be allocated later. */
    const struct state_pool *states;
};

/* Returns the bytes of a long prompt's workspace, a part of decoder_workspace_bytes(). */
size_t decoder_long_bytes(const struct model_config *config, uint32_t n_rows, enum dtype act_dtype);
/* Returns the bytes of activations that decoder_create() allocates on the device where activations
 * are f32.  Most of it halves where they have 16 bits, so it is a bound. */
size_t decoder_workspace_bytes(const struct model_config *config, const struct backend *be,
                               const struct decoder_limits *limits);

/* Creates a decoder; model, be and the pool behind kv are borrowed. */
int decoder_create(struct decoder **out, const struct model *model, struct backend *be,
                   const struct kv_pool *kv, const struct decoder_limits *limits,
                   struct error *err);
void decoder_destroy(struct decoder *decoder); /* NULL is allowed */

/* Submits the step.  samples[i].logit_row is a row of the *step* (any order, repeats allowed).
 * Once the step has been collected, results[i] has the answer to samples[i], and totals[i] that of
 * sequence i if it has a budget.  Until then neither may be touched; all else may change as soon as
 * this returns. */
int decoder_submit(struct decoder *decoder, const struct step *step,
                   const struct sample_row *samples, uint32_t n_samples,
                   struct sample_result *results, struct evict_total *totals, struct error *err);
/* Submits the step in two parts: its rows, and what is sampled from them.  Between the two, other
 * members of the samples than logit_row may still change, and the results of the step before may be
 * collected, with n_newer 1. */
int decoder_submit_rows(struct decoder *decoder, const struct step *step,
                        const struct sample_row *samples, uint32_t n_samples, struct error *err);
int decoder_submit_samples(struct decoder *decoder, const struct sample_row *samples,
                           uint32_t n_samples, struct sample_result *results,
                           struct evict_total *totals, struct error *err);
/* Submits what a submitted step still has to evict: the oldest tokens of caches without scores.
 * Their results do not wait for it.  Until then a sequence has all the slots of the step, from
 * which a state before it can be copied. */
int decoder_submit_evictions(struct decoder *decoder, struct error *err);
/* Submits a step of one sequence, whose rows are the slice's.  Slices come in order of their rows,
 * layer by layer.  Only those that leave the last layer may have samples, as in decoder_submit().
 * totals are those of the last slice of all. */
int decoder_submit_slice(struct decoder *decoder, const struct step *step,
                         const struct layer_slice *slice, const struct sample_row *samples,
                         uint32_t n_samples, struct sample_result *results,
                         struct evict_total *totals, struct error *err);
/* Returns q of the long prompt's first row, laid out as in attn_args and sparse_index_args, for
 * measuring attention.  It is that of the layer that all slices have entered and none has left. */
const void *decoder_long_q(const struct decoder *decoder, size_t *q_stride);
/* Submits a read of what was visited since the last call, after a submitted step or slice with a
 * sparse sequence.  *out is valid once the step has been collected. */
int decoder_submit_totals(struct decoder *decoder, struct sparse_totals *out, struct error *err);
/* Submits a read of the selections, after a submitted step: out[i] is that of sequence i if it
 * selects.  It is valid once the step has been collected. */
int decoder_submit_selected(struct decoder *decoder, struct select_total *out, struct error *err);
/* Waits for the results of all submitted steps but the newest n_newer. */
int decoder_collect(struct decoder *decoder, uint32_t n_newer, struct error *err);

/* Submits the step and waits for it; totals may be NULL.  logits_out, if not NULL, is host f32
 * [n_samples, n_vocab] and receives the raw logits (tests, goldens). */
int decoder_step(struct decoder *decoder, const struct step *step, const struct sample_row *samples,
                 uint32_t n_samples, struct sample_result *results, struct evict_total *totals,
                 float *logits_out, struct error *err);

#endif
