/* sampling.h - makes rows for the backend's sampler from one request's sampling parameters.
 *
 * Thread: engine (check and init: any).  Memory: the count table grows geometrically with distinct
 * tokens, and exists only when a penalty is on. */
#ifndef ENGINE_REQUEST_SAMPLING_H
#define ENGINE_REQUEST_SAMPLING_H

#include "engine/device/sample.h"
#include "engine/request/request.h"

struct sampling_state {
    const struct sampling_params *params; /* borrowed */
    uint64_t seed;
    uint32_t *banned; /* end tokens, until min_tokens have been generated */
    uint32_t n_banned;
    bool counting;              /* a penalty is on */
    struct token_count *counts; /* [n_counts], in order of first appearance */
    uint32_t n_counts;
    uint32_t *slots; /* open addressing: token -> index into counts, UINT32_MAX: vacant */
    uint32_t slot_mask;
};

/* Refuses values outside their bounds by name (ERR_INVALID). */
int sampling_check(const struct sampling_params *params, uint32_t n_vocab, struct error *err);

/* Borrows params.  eos [n_eos] are the model's end tokens.  ERR_NOMEM; a failed init needs no
 * fini. */
int sampling_state_init(struct sampling_state *state, const struct sampling_params *params,
                        const uint32_t *eos, uint32_t n_eos);
void sampling_state_fini(struct sampling_state *state);

/* Counts the tokens of the prompt, or a generated one, for the penalties.  ERR_NOMEM. */
int sampling_state_count_prompt(struct sampling_state *state, const uint32_t *tokens, uint32_t n);
int sampling_state_count(struct sampling_state *state, uint32_t token);

/* Returns the row that samples generated token number n_generated (from 0). */
struct sample_row sampling_row(const struct sampling_state *state, uint32_t logit_row,
                               uint32_t n_generated);

#endif
