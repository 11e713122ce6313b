/* request.h - what a request asks the engine for.
 *
 * Thread: any.  Memory: a request owns its arrays; see engine_submit(). */
#ifndef ENGINE_REQUEST_REQUEST_H
#define ENGINE_REQUEST_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/device/sample.h"
#include "engine/request/kv_choice.h"
#include "engine/request/prefill_choice.h"
#include "engine/request/speculation.h"
#include "engine/request/thought.h"

struct grammar;
struct request_plan;

/* A token that is text in its own way.  It is shown as it reads though it is a special one, as one
 * byte that no UTF-8 has, or not at all. */
struct shown_token {
    uint32_t token;
    char byte;      /* 0: as it reads */
    bool is_hidden; /* it is no text */
};

/* The parameters of a request's output.  sampling_defaults() gives the OpenAI defaults. */
struct sampling_params {
    struct grammar *grammar; /* which texts are allowed, counted (grammar.h); NULL: all */
    bool has_prefix;         /* with a grammar: `prefix` comes before all that it says */
    bool is_free_before;     /* and any text before the prefix, or instead of it */
    uint32_t prefix;         /* a token, which may be special */
    struct sampler sampler;  /* temperature 1, every other one off */
    struct logit_bias *bias; /* owned */
    uint32_t n_bias;
    bool has_seed;
    uint64_t seed;
    uint32_t max_tokens; /* >= 0; 0 only scores the prompt */
    uint32_t min_tokens;
    uint32_t *stop_tokens; /* owned */
    uint32_t n_stop_tokens;
    char **stop; /* owned array of owned strings; they end what is said, not a thought */
    uint32_t n_stop;
    struct thought thought;    /* where the text begins */
    struct shown_token *shown; /* owned: tokens that are not text as others are */
    uint32_t n_shown;
    bool ignore_eos, include_stop, skip_special;
    int32_t n_logprobs;        /* -1: none; else top-n per generated token, <= SAMPLE_MAX_TOP */
    int32_t n_prompt_logprobs; /* -1: none; else per prompt token */
};

enum { REQUEST_MAX_TENANTS = 65 }; /* 64 API keys, and requests without one */

struct engine_request {
    uint32_t *prompt; /* owned, [n_prompt], n_prompt >= 1 */
    uint32_t n_prompt;
    uint32_t
        n_spare; /* tokens that prompt has space for behind n_prompt: the answer's first ones */
    /* Names of the prompt's beginnings, by which one of several replicas is chosen; owned, or
     * NULL. */
    uint64_t *block_names;
    uint32_t n_block_names;
    uint32_t n_before_last; /* tokens of the prompt before its last message; 0: it has none */
    struct sampling_params params;
    struct kv_choice kv;
    struct kv_override kv_override;
    struct prefill_choice prefill;
    struct speculation_choice speculation;
    /* Sequences share cached prefixes only within one salt; 0: the common one. */
    uint64_t cache_salt;
    /* Names the client by its key; 0: it has none.  Answers of one are found by no other one
     * (recent_answers.h). */
    uint64_t client;
    int32_t priority; /* lower runs first; ties by fair share, then by arrival */
    /* Among equals tenants get tokens in proportion to their weights (fair_share.h). */
    uint32_t tenant;  /* < REQUEST_MAX_TENANTS */
    uint32_t weight;  /* 0 counts as 1 */
    bool progress;    /* events tell how much of the prompt has been computed */
    double arrived_s; /* of clock_seconds(), for times that metrics tell; 0: when it is submitted */
    void *user;       /* returned with every event */
    bool kept;        /* the final event tells which tokens the KV cache still has */
    struct request_plan *plan; /* NULL, or what engine_admit() has decided; owned */
};

struct sampling_params sampling_defaults(void);
/* Returns how a token is shown; NULL: as any other one is. */
static inline const struct shown_token *sampling_shown(const struct sampling_params *params,
                                                       uint32_t token) {
    for (uint32_t i = 0; i < params->n_shown; i++)
        if (params->shown[i].token == token) return &params->shown[i];
    return NULL;
}
void sampling_fini(struct sampling_params *params);

#endif
