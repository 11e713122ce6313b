/* decoder.h - runs a step of a transformer decoder on a backend.  Written once, driven by
 * model_config.
 *
 * Thread: engine.  Memory: activation buffers are allocated at create for the largest step. */
#ifndef ENGINE_MODEL_DECODER_H
#define ENGINE_MODEL_DECODER_H

#include "engine/model/model.h"

struct decoder;

struct decoder_limits {
    uint32_t max_rows;       /* rows of the largest step */
    uint32_t max_logit_rows; /* logits are made in slices of at most this many rows */
};

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
                   struct sample_result *results, struct keep_total *totals, struct error *err);
/* Waits until all submitted steps but the newest n_newer are done. */
int decoder_collect(struct decoder *decoder, uint32_t n_newer, struct error *err);

/* Submits the step and waits for it.  totals may be NULL; logits_out, if not NULL, is host f32
 * [n_samples, n_vocab] and receives the raw logits (tests, goldens). */
int decoder_step(struct decoder *decoder, const struct step *step, const struct sample_row *samples,
                 uint32_t n_samples, struct sample_result *results, struct keep_total *totals,
                 float *logits_out, struct error *err);

#endif
