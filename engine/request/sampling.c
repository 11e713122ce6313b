/* sampling.c - see sampling.h. */
#include "engine/request/sampling.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/rng.h"
#include "engine/grammar/grammar.h"

struct sampling_params sampling_defaults(void) {
    return (struct sampling_params){
        .sampler = {.temperature = 1, .top_p = 1, .repetition_penalty = 1},
        .max_tokens = 16,
        .skip_special = true,
        .n_logprobs = -1,
        .n_prompt_logprobs = -1};
}

void sampling_fini(struct sampling_params *params) {
    for (uint32_t i = 0; i < params->n_stop; i++) free(params->stop[i]);
    free(params->stop);
    free(params->stop_tokens);
    free(params->shown);
    free(params->bias);
    grammar_unref(params->grammar);
    *params = (struct sampling_params){0};
}

/* Checks the bounds of single numbers; the comparisons are written so that NaN fails them. */
static int check_numbers(const struct sampling_params *p, struct error *err) {
    const struct sampler *s = &p->sampler;
    if (!(s->temperature >= 0 && isfinite(s->temperature)))
        return error_set(err, ERR_INVALID, "temperature must be a number >= 0");
    if (!(s->top_p > 0 && s->top_p <= 1))
        return error_set(err, ERR_INVALID, "top_p must be in (0, 1]");
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return error_set(err, ERR_INVALID, "min_p must be in [0, 1]");
    if (!(s->repetition_penalty > 0 && isfinite(s->repetition_penalty)))
        return error_set(err, ERR_INVALID, "repetition_penalty must be a number > 0");
    if (!isfinite(s->presence_penalty))
        return error_set(err, ERR_INVALID, "presence_penalty must be finite");
    if (!isfinite(s->frequency_penalty))
        return error_set(err, ERR_INVALID, "frequency_penalty must be finite");
    if (p->n_logprobs < -1 || p->n_logprobs > SAMPLE_MAX_TOP)
        return error_set(err, ERR_INVALID, "at most %d log-probabilities per token",
                         SAMPLE_MAX_TOP);
    if (p->n_prompt_logprobs < -1 || p->n_prompt_logprobs > SAMPLE_MAX_TOP)
        return error_set(err, ERR_INVALID, "at most %d log-probabilities per prompt token",
                         SAMPLE_MAX_TOP);
    return 0;
}

int sampling_check(const struct sampling_params *p, uint32_t n_vocab, struct error *err) {
    int code = check_numbers(p, err);
    if (code) return code;
    for (uint32_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].token >= n_vocab)
            return error_set(err, ERR_INVALID, "logit_bias: no token %" PRIu32, p->bias[i].token);
        if (isnan(p->bias[i].bias) || p->bias[i].bias == INFINITY)
            return error_set(err, ERR_INVALID, "logit_bias must be a number");
    }
    for (uint32_t i = 0; i < p->n_stop_tokens; i++)
        if (p->stop_tokens[i] >= n_vocab)
            return error_set(err, ERR_INVALID, "stop_token_ids: no token %" PRIu32,
                             p->stop_tokens[i]);
    for (uint32_t i = 0; i < p->n_stop; i++)
        if (!p->stop[i] || !*p->stop[i])
            return error_set(err, ERR_INVALID, "stop must not be an empty string");
    return 0;
}

int sampling_state_init(struct sampling_state *state, const struct sampling_params *params,
                        const uint32_t *eos, uint32_t n_eos) {
    const struct sampler *s = &params->sampler;
    *state = (struct sampling_state){.params = params};
    state->seed = params->has_seed ? params->seed : rng_fresh_seed();
    state->counting =
        s->repetition_penalty != 1 || s->presence_penalty != 0 || s->frequency_penalty != 0;
    /* A grammar's text ends with an end token, ignored or not. */
    const bool can_end = params->grammar || !params->ignore_eos;
    const uint32_t n = params->n_stop_tokens + (can_end ? n_eos : 0);
    if (params->min_tokens == 0 || n == 0) return 0;
    state->banned = malloc(n * sizeof(*state->banned));
    if (!state->banned) return ERR_NOMEM;
    for (uint32_t i = 0; i < params->n_stop_tokens; i++) state->banned[i] = params->stop_tokens[i];
    for (uint32_t i = params->n_stop_tokens; i < n; i++)
        state->banned[i] = eos[i - params->n_stop_tokens];
    state->n_banned = n;
    return 0;
}

void sampling_state_fini(struct sampling_state *state) {
    free(state->banned);
    free(state->counts);
    free(state->slots);
    *state = (struct sampling_state){0};
}

static uint32_t find_slot(const struct sampling_state *state, uint32_t token) {
    uint32_t slot = token * 2654435761u & state->slot_mask;
    while (state->slots[slot] != UINT32_MAX && state->counts[state->slots[slot]].token != token)
        slot = (slot + 1) & state->slot_mask;
    return slot;
}

/* Doubles the table; it is never more than half full, so that probes stay short. */
static int grow_table(struct sampling_state *state) {
    uint32_t n_slots = state->slots ? 2 * (state->slot_mask + 1) : 128;
    struct token_count *counts = realloc(state->counts, n_slots / 2 * sizeof(*counts));
    if (!counts) return ERR_NOMEM;
    state->counts = counts;
    uint32_t *slots = malloc(n_slots * sizeof(*slots));
    if (!slots) return ERR_NOMEM;
    free(state->slots);
    state->slots = slots;
    state->slot_mask = n_slots - 1;
    memset(slots, 0xff, n_slots * sizeof(*slots));
    for (uint32_t i = 0; i < state->n_counts; i++) slots[find_slot(state, counts[i].token)] = i;
    return 0;
}

/* Returns the token's count, a new one if it has none; NULL: no memory. */
static struct token_count *count_of(struct sampling_state *state, uint32_t token) {
    if ((!state->slots || state->n_counts == (state->slot_mask + 1) / 2) && grow_table(state))
        return NULL;
    uint32_t *index = &state->slots[find_slot(state, token)];
    if (*index == UINT32_MAX) {
        *index = state->n_counts++;
        state->counts[*index] = (struct token_count){.token = token};
    }
    return &state->counts[*index];
}

int sampling_state_count_prompt(struct sampling_state *state, const uint32_t *tokens, uint32_t n) {
    for (uint32_t i = 0; i < n && state->counting; i++) {
        struct token_count *count = count_of(state, tokens[i]);
        if (!count) return ERR_NOMEM;
        count->in_prompt = true;
    }
    return 0;
}

int sampling_state_count(struct sampling_state *state, uint32_t token) {
    if (!state->counting) return 0;
    struct token_count *count = count_of(state, token);
    if (!count) return ERR_NOMEM;
    count->n_output++;
    return 0;
}

struct sample_row sampling_row(const struct sampling_state *state, uint32_t logit_row,
                               uint32_t n_generated) {
    const struct sampling_params *p = state->params;
    return (struct sample_row){.logit_row = logit_row,
                               .kind = SAMPLE_DRAW,
                               .sampler = p->sampler,
                               .uniform = rng_uniform(state->seed, n_generated),
                               .counts = state->counts,
                               .n_counts = state->n_counts,
                               .bias = p->bias,
                               .n_bias = p->n_bias,
                               .banned = state->banned,
                               .n_banned = n_generated < p->min_tokens ? state->n_banned : 0,
                               .n_top = p->n_logprobs > 0 ? (uint32_t)p->n_logprobs : 0};
}
