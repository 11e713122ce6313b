/* fanout.c - see fanout.h. */
#include "server/api/fanout.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/engine.h"
#include "engine/grammar/grammar.h"
#include "server/api/completion_request.h"

static void *copy(const void *from, size_t size) {
    void *to = size ? malloc(size) : NULL;
    if (to) memcpy(to, from, size);
    return to;
}

/* Returns the tokens' array, or a copy if it is still needed, with space behind the tokens.
 * Without it the answer's first token would have the whole text copied before the client sees
 * it. */
static uint32_t *give_prompt(struct token_list *tokens, bool is_needed) {
    const size_t n_bytes = (tokens->n + PROMPT_SPARE_TOKENS) * sizeof(*tokens->ids);
    uint32_t *to = is_needed ? malloc(n_bytes) : realloc(tokens->ids, n_bytes);
    if (to && is_needed) memcpy(to, tokens->ids, tokens->n * sizeof(*to));
    if (to && !is_needed) *tokens = (struct token_list){0};
    return to;
}

/* Makes a deep copy.  A part for which there was no memory is missing, and is_whole() notices
 * it. */
static struct sampling_params copy_params(const struct sampling_params *from) {
    struct sampling_params to = *from;
    to.bias = copy(from->bias, from->n_bias * sizeof(*from->bias));
    to.stop_tokens = copy(from->stop_tokens, from->n_stop_tokens * sizeof(*from->stop_tokens));
    to.shown = copy(from->shown, from->n_shown * sizeof(*from->shown));
    to.grammar = grammar_ref(from->grammar);
    to.stop = from->n_stop ? calloc(from->n_stop, sizeof(*to.stop)) : NULL;
    to.n_stop = to.stop ? from->n_stop : 0;
    for (uint32_t i = 0; i < to.n_stop; i++) to.stop[i] = strdup(from->stop[i]);
    return to;
}

static int is_whole(const struct sampling_params *to, const struct sampling_params *from) {
    if ((from->n_bias && !to->bias) || (from->n_stop_tokens && !to->stop_tokens) ||
        (from->n_shown && !to->shown))
        return 0;
    for (uint32_t i = 0; i < from->n_stop; i++)
        if (!to->stop || !to->stop[i]) return 0;
    return 1;
}

/* Returns how many tokens the request may generate behind the prompt: at most max_tokens, cut to
 * what the context leaves.  A bounded cache with text positions ends with the trained context; one
 * with cache positions has no end. */
static uint32_t most_tokens(const struct completion_request *request, uint32_t n_prompt,
                            const struct request_limits *limits) {
    const bool bounded = completion_request_is_bounded(request);
    const uint32_t end = bounded ? limits->trained_context : limits->max_model_len;
    if (bounded && request->kv.tokens.cache_positions) return request->max_tokens;
    return request->max_tokens < end - n_prompt ? request->max_tokens : end - n_prompt;
}

static int fill(struct engine_request *out, const struct completion_request *request,
                struct prompt *prompt, uint32_t choice, const struct request_limits *limits) {
    const bool is_last = choice + 1 == request->best_of;
    struct sampling_params *params = &out->params;
    *params = copy_params(&request->params);
    out->n_prompt = (uint32_t)prompt->tokens.n;
    out->n_spare = PROMPT_SPARE_TOKENS;
    out->n_before_last = prompt->n_before_last;
    out->prompt = give_prompt(&prompt->tokens, !is_last || request->return_token_ids);
    out->kv = kv_policy_resolve(&request->kv, out->n_prompt);
    out->kv_override = kv_policy_resolve_part(&request->kv, out->n_prompt);
    out->prefill = prefill_rules_resolve(&limits->prefill, &request->prefill,
                                         completion_request_dense_rule(request));
    out->speculation = request->speculation;
    out->cache_salt = request->cache_salt;
    out->priority = request->priority;
    out->progress = request->return_progress;
    out->kept = request->return_kept;
    if (!is_whole(params, &request->params) || !out->prompt) return ERR_NOMEM;

    params->max_tokens = most_tokens(request, out->n_prompt, limits);
    params->seed += choice; /* choices of one seed differ, and can be reproduced */
    if (request->echo) params->n_prompt_logprobs = params->n_logprobs;
    /* Choosing the best needs the log-probabilities even when the client does not ask for them. */
    if (request->best_of > request->n && params->n_logprobs < 0) params->n_logprobs = 0;
    return 0;
}

int fanout_create(struct engine_request **out, struct completion_request *request,
                  const struct request_limits *limits, struct error *err) {
    const uint32_t n = request->prompts.n * request->best_of;
    struct engine_request *requests = calloc(n, sizeof(*requests));
    if (!requests) goto fail;
    for (uint32_t i = 0; i < n; i++) {
        struct prompt *prompt = &request->prompts.items[i / request->best_of];
        if (fill(&requests[i], request, prompt, i % request->best_of, limits)) goto fail;
    }
    *out = requests;
    return 0;

fail:
    fanout_destroy(requests, n);
    return error_set(err, ERR_NOMEM, "no memory for %u sequences", n);
}

void fanout_destroy(struct engine_request *requests, uint32_t n) {
    for (uint32_t i = 0; requests && i < n; i++) {
        free(requests[i].prompt);
        free(requests[i].plan);
        free(requests[i].block_names);
        sampling_fini(&requests[i].params);
    }
    free(requests);
}
