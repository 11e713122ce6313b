/* fuzz_completion_request.c - whatever the bytes: a body is read or refused with a reason, and what
 * is read is legal JSON within every stated bound. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "engine/device/evict.h"
#include "engine/device/sample.h"
#include "engine/device/sparse.h"
#include "server/api/completion_request.h"
#include "server/json/api_error.h"
#include "server/settings/model_names.h"
#include "tests/server/fake_engine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int truth) {
    if (!truth) abort();
}

static void check_policy(const struct kv_policy *policy) {
    const struct kv_choice *c = &policy->tokens;
    const bool bounded = kv_choice_is_bounded(c), selects = kv_choice_selects(c);
    require(c->n_sink <= KV_POLICY_MAX_TOKENS && c->n_recent <= KV_POLICY_MAX_TOKENS);
    require(c->n_heavy <= KV_POLICY_MAX_TOKENS && c->chunk <= KV_POLICY_MAX_TOKENS);
    require((c->score != KV_SCORE_NONE) ==
            (kv_policies_row(c->type)->members >> KV_MEMBER_SCORE & 1));
    require(kv_policies_row(c->type)->defaults.mechanism == c->mechanism);
    require(c->score != KV_SCORE_DECAY || (c->decay > 0 && c->decay < 1));
    require((c->window > 0) == (c->score == KV_SCORE_WINDOW) && c->window <= KV_POLICY_MAX_TOKENS);
    require(c->pooling == KV_POOLING_NONE ? c->kernel == 0
                                          : c->whole && c->window > 0 && c->kernel % 2 == 1 &&
                                                c->kernel <= KV_POLICY_MAX_KERNEL);
    require(bounded || !c->whole);
    const struct kv_choice resolved = kv_policy_resolve(policy, FAKE_MAX_LEN);
    require(bounded ? resolved.n_recent >= 1 && resolved.chunk >= 1
                    : resolved.n_recent == 0 && resolved.n_heavy == 0 && resolved.chunk == 0);
    for (unsigned i = 0; i < KV_N_MEMBERS; i++)
        require(policy->fractions[i] >= 0 && policy->fractions[i] < 1);
    require(policy->placed == selects);
    require(bounded || !c->cache_positions);
    require(c->n_selected <= FAKE_MAX_SELECTED && c->n_tail <= KV_POLICY_MAX_TOKENS);
    require(selects ? resolved.n_selected >= 1 && resolved.n_tail >= 1 &&
                          resolved.n_sink <= resolved.n_selected
                    : resolved.n_selected == 0 && resolved.n_tail == 0 && !resolved.on_device);
}

static void check_bounds(const struct completion_request *q) {
    const struct sampler *s = &q->params.sampler;
    const struct sampling_params *p = &q->params;
    require(s->temperature >= 0 && s->temperature <= 2 && s->top_p > 0 && s->top_p <= 1);
    require(s->min_p >= 0 && s->min_p <= 1 && s->repetition_penalty > 0);
    require(s->presence_penalty >= -2 && s->presence_penalty <= 2);
    require(s->frequency_penalty >= -2 && s->frequency_penalty <= 2);
    require(p->n_logprobs >= -1 && p->n_logprobs <= SAMPLE_MAX_TOP &&
            p->n_stop <= REQUEST_MAX_STOPS);
    require(q->n >= 1 && q->best_of >= q->n && q->best_of <= REQUEST_MAX_CHOICES &&
            q->prompts.n >= 1);
    require(q->prompts.n * q->best_of <= 1280 && p->min_tokens <= q->max_tokens);
    check_policy(&q->kv);
    for (uint32_t i = 0; i < p->n_bias; i++) require(p->bias[i].token < FAKE_N_VOCAB);
    for (uint32_t i = 0; i < p->n_stop_tokens; i++) require(p->stop_tokens[i] < FAKE_N_VOCAB);
    for (uint32_t i = 0; i < p->n_stop; i++)
        require(p->stop[i][0] && strlen(p->stop[i]) <= REQUEST_MAX_STOP_BYTES);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const struct request_limits limits = {
        .models = &(const struct model_names){.names = {"m"}, .n = 1},
        .n_vocab = FAKE_N_VOCAB,
        .max_model_len = FAKE_MAX_LEN,
        .max_sequences = 1280,
        .trained_context = FAKE_MAX_LEN,
        .kv_tokens = FAKE_KV_TOKENS,
        .kv = {.allowed = {true, true, true, true},
               .offload = {.max_selected = FAKE_MAX_SELECTED, .host_pool_bytes = FAKE_STORE_BYTES}},
        .prefill = {.sparse = true, .n_heads = 3}};
    struct completion_request request;
    struct api_error err = {0};
    const int rc = completion_request_parse(&request, (const char *)data, size, &limits, &err);
    if (rc) {
        require(err.status >= 400 && err.message[0]);
        return 0;
    }
    json_t *whole =
        json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    require(json_is_object(whole));
    json_decref(whole);
    check_bounds(&request);
    const struct attn_pattern *patterns = request.prefill.patterns;
    require(!patterns || request.prefill.mode == PREFILL_SPARSE);
    require(!patterns || (patterns[0].kind != PATTERN_DENSE && patterns[2].kind < PATTERN_N_KINDS));
    if (completion_request_tokenize(&request, NULL, &limits, &err) == 0) {
        for (uint32_t i = 0; i < request.prompts.n; i++) {
            const struct token_list *tokens = &request.prompts.items[i].tokens;
            require(tokens->n >= 1);
            require(tokens->n <= FAKE_MAX_LEN || completion_request_is_bounded(&request));
            for (size_t j = 0; j < tokens->n; j++) require(tokens->ids[j] < FAKE_N_VOCAB);
        }
    }
    completion_request_fini(&request);
    return 0;
}
