/* completion_request.c - see completion_request.h. */
#include "server/api/completion_request.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "server/api/forms.h"
#include "server/api/request_fields.h"
#include "server/json/api_error.h"
#include "server/json/json_guard.h"
#include "server/settings/generation.h"
#include "server/settings/model_names.h"

/* Reads a prompt that is one string.  The guard has cut out arrays before. */
static int read_prompt(struct request_reading *r, const struct request_field *field,
                       const json_t *value) {
    if (!json_is_string(value)) return request_refuse(r, field, "must be a string or an array");
    return prompt_list_add_text(&r->request->prompts, json_string_value(value),
                                json_string_length(value), r->err);
}

static int read_best_of(struct request_reading *r, const struct request_field *field,
                        const json_t *value) {
    r->has_best_of = true;
    return request_read_u32(r, field, value);
}

/* Reads how many best tokens are told.  false, which a chat has here, tells none. */
static int read_logprobs(struct request_reading *r, const struct request_field *field,
                         const json_t *value) {
    return json_is_false(value) ? 0 : request_read_i32(r, field, value);
}

#define AT(member) offsetof(struct completion_request, member)

/* max_tokens comes after max_completion_tokens, so the endpoint's own name wins when a client sends
 * both. */
static const struct request_field fields[] = {
    {"prompt", "string|string[+]|integer[+]|integer[+][+]", read_prompt, 0, 0, 0,
     "The text to continue, or several, or token ids."},
    {"max_completion_tokens", "integer", request_read_max_tokens, AT(max_tokens),
     REQUEST_ALL_TOKENS, INT32_MAX, "The same as max_tokens."},
    {"max_tokens", "integer", request_read_max_tokens, AT(max_tokens), REQUEST_ALL_TOKENS,
     INT32_MAX,
     "Most tokens of an answer; 0 only scores the prompt, -1: as many as the context leaves."},
    {"best_of", "integer", read_best_of, AT(best_of), 1, REQUEST_MAX_CHOICES,
     "Sequences of each prompt, of which the n likeliest are answered."},
    {"logprobs", "integer", read_logprobs, AT(params.n_logprobs), 0, SAMPLE_MAX_TOP,
     "Log-probabilities of each token, and of so many best ones."},
    {"echo", "boolean", request_read_bool, AT(echo), 0, 0, "The prompt comes before the answer."},
    {"add_special_tokens", "boolean", request_read_bool, AT(add_special), 0, 0,
     "The tokenizer puts its special tokens around a text prompt."},
    {"suffix", "refused", request_read_refused, 0, 0, 0, "Not supported."},
};

#undef AT

static const struct request_table own = REQUEST_TABLE(fields);
const struct request_table *const completion_tables[] = {&request_common, &request_openai,
                                                         &request_forms, &own, NULL};

static int check_prefill(const struct completion_request *q, struct api_error *err) {
    const struct dense_rule *rule = completion_request_dense_rule(q);
    if (q->prefill.mode != PREFILL_SPARSE || !rule || !rule->needs) return 0;
    return api_error_set(err, 400, "unsupported", "prefill", "sparse prefill needs %s",
                         rule->needs);
}

int completion_request_check(struct request_reading *r) {
    struct completion_request *q = r->request;
    struct api_error *err = r->err;
    if (q->prompts.n == 0) return api_error_set(err, 400, NULL, "prompt", "prompt is required");
    if (!r->has_best_of) q->best_of = q->n;
    if (q->best_of < q->n)
        return api_error_set(err, 400, NULL, "best_of", "best_of must not be less than n");
    if (q->stream && q->best_of > q->n) {
        return api_error_set(err, 400, NULL, "best_of", "best_of above n cannot be streamed");
    }
    if (r->has_stream_options && !q->stream) {
        return api_error_set(err, 400, NULL, "stream_options",
                             "stream_options is only allowed with stream");
    }
    if (q->return_progress && !q->stream) {
        return api_error_set(err, 400, NULL, "return_progress",
                             "return_progress is only allowed with stream");
    }
    if (q->return_kept && q->prompts.n * q->best_of > 1) {
        return api_error_set(
            err, 400, NULL, "return_kept_positions",
            "return_kept_positions is only allowed with one prompt and one choice");
    }
    if ((uint64_t)q->prompts.n * q->best_of > r->limits->max_sequences) {
        const char *param = r->has_best_of ? "best_of" : q->n > 1 ? "n" : "prompt";
        return api_error_set(
            err, 400, NULL, param,
            "%u prompts times %u choices are more than the %u sequences that a request may have",
            q->prompts.n, q->best_of, r->limits->max_sequences);
    }
    if (q->params.min_tokens > q->max_tokens) {
        return api_error_set(err, 400, NULL, "min_tokens",
                             "min_tokens (%u) must not be more than max_tokens (%u)",
                             q->params.min_tokens, q->max_tokens);
    }
    return check_prefill(q, err);
}

/* Returns the parameters of a request that says nothing of them. */
static struct sampling_params default_params(const struct generation *generation) {
    struct sampling_params params = sampling_defaults();
    if (generation) params.sampler = generation->sampler;
    return params;
}

struct completion_request completion_request_defaults(const struct request_limits *limits) {
    return (struct completion_request){.model = limits->models->names[0],
                                       .prompts.spare = limits->spare_ids,
                                       .params = default_params(limits->generation),
                                       .kv = limits->kv.initial,
                                       .speculation = limits->speculation,
                                       .n = 1,
                                       .best_of = 1,
                                       .max_tokens = 16,
                                       .add_special = true};
}

/* Reads and checks a loaded body, which it takes ownership of.  prompts: the array that was cut out
 * of it. */
static int read_body(struct completion_request *out, json_t *root, const struct json_span *prompts,
                     const struct request_limits *limits, struct api_error *err) {
    struct completion_request request = completion_request_defaults(limits);
    struct request_reading r = {.request = &request, .limits = limits, .err = err};
    int rc = request_read_tables(&r, completion_tables, root);
    json_decref(root); /* before the bulk array takes its memory */
    if (!rc && prompts->start)
        rc = prompt_list_read(&request.prompts, prompts, limits->n_vocab, "prompt", err);
    if (!rc) rc = completion_request_check(&r);
    if (rc) {
        completion_request_fini(&request);
        return rc;
    }
    *out = request;
    return 0;
}

int completion_request_parse(struct completion_request *out, const char *body, size_t length,
                             const struct request_limits *limits, struct api_error *err) {
    struct error why = {0};
    struct json_span prompts;
    json_t *root = NULL;
    int rc = json_guard_load(&root, body, length, "prompt", &prompts, &why);
    if (rc) {
        api_error_from(err, &why, NULL);
        return rc;
    }
    return read_body(out, root, &prompts, limits, err);
}

void completion_request_fini(struct completion_request *request) {
    prompt_list_fini(&request->prompts);
    sampling_fini(&request->params);
    prefill_request_fini(&request->prefill);
    request_structured_fini(&request->structured);
    *request = (struct completion_request){0};
}

static int refuse_total(struct api_error *err) {
    return api_error_set(err, 400, NULL, "prompt",
                         "the tokens of all prompts times best_of must not be more than %d",
                         REQUEST_MAX_COPIED_TOKENS);
}

static int tokenize_text(struct completion_request *request, struct prompt *prompt,
                         const struct tokenizer *tokenizer, const struct request_limits *limits,
                         struct tokenizer_cache *cache, struct api_error *err) {
    /* Counting past the context tells the client by how much the prompt is too long.  The bound
     * keeps a hostile body from costing more memory than an honest one. */
    const bool bounded = completion_request_is_bounded(request);
    const size_t max_ids = bounded ? REQUEST_MAX_COPIED_TOKENS : 16 * (size_t)limits->max_model_len;
    struct error why = {0};
    const struct tokenizer_input input = {.text = prompt->text,
                                          .length = prompt->length,
                                          .add_special = !prompt->rendered && request->add_special,
                                          .is_trusted_in_part = prompt->rendered,
                                          .trusted = prompt->trusted,
                                          .n_trusted = prompt->n_trusted,
                                          .cache = cache,
                                          .scope = request->text_scope};
    const int rc = tokenizer_encode_input(tokenizer, &input, max_ids, &prompt->tokens, &why);
    if (rc == ERR_TOO_LONG && bounded) return refuse_total(err);
    if (rc == ERR_TOO_LONG) {
        return api_error_set_length(
            err, "prompt", max_ids + 1, 0, limits->max_model_len,
            "the prompt has more than %zu tokens, the maximum context length is %u tokens", max_ids,
            limits->max_model_len);
    }
    if (rc) return api_error_from(err, &why, "prompt");
    return 0;
}

/* Returns the prompt's tokens plus all that may be generated.  Without max_tokens only a first
 * token is counted: the rest is cut to what the context leaves. */
static uint64_t wanted_tokens(const struct completion_request *request, size_t n_prompt) {
    return n_prompt + (uint64_t)(request->has_max_tokens ? request->max_tokens : 1);
}

/* Refuses a text whose positions do not fit the model's context. */
static int refuse_positions(const struct kv_choice *choice, size_t n_prompt, uint64_t n_text,
                            const struct request_limits *limits, struct api_error *err) {
    const bool has_other =
        kv_policies_has(choice->type, KV_MEMBER_POSITIONS) && !limits->learned_positions;
    return api_error_set_length(
        err, has_other ? kv_members[KV_MEMBER_POSITIONS].name : "kv_policy", n_prompt,
        n_text - n_prompt, limits->trained_context,
        "%s needs prompt and max_tokens within the model's context of %u tokens, "
        "but they are %" PRIu64 "%s",
        has_other ? "kv_policy.positions text" : "kv_policy", limits->trained_context, n_text,
        has_other ? "; cache has no such limit" : "");
}

/* Checks a request with a bounded policy: the tokens it retains must fit the KV cache.  Its text
 * may have any length with cache positions; text positions end with the model's trained context. */
static int check_budget(const struct completion_request *request, size_t n_prompt,
                        const struct request_limits *limits, struct api_error *err) {
    if (n_prompt > REQUEST_MAX_COPIED_TOKENS) return refuse_total(err);
    const struct kv_choice choice = kv_policy_resolve(&request->kv, (uint32_t)n_prompt);
    const uint64_t capacity = kv_choice_capacity(&choice);
    const uint64_t n_text = wanted_tokens(request, n_prompt);
    if (choice.cache_positions && limits->learned_positions)
        return api_error_set(err, 400, NULL, kv_members[KV_MEMBER_POSITIONS].name,
                             "kv_policy.positions must be text: this model's positions are "
                             "learned, and part of what is cached");
    if (!choice.cache_positions && n_text > limits->trained_context)
        return refuse_positions(&choice, n_prompt, n_text, limits, err);
    if (choice.whole && n_prompt > limits->kv_tokens && n_prompt > limits->long_rows)
        return api_error_set(err, 400, NULL, "kv_policy.prompt",
                             "kv_policy.prompt: a prompt of %zu tokens cannot be read whole; the "
                             "KV cache holds %" PRIu64 " tokens",
                             n_prompt, limits->kv_tokens);
    if (capacity <= limits->kv_tokens) return 0;
    return api_error_set(err, 400, NULL, "kv_policy",
                         "kv_policy keeps %" PRIu64 " tokens; the KV cache holds %" PRIu64,
                         capacity, limits->kv_tokens);
}

/* Checks how many tokens the request selects.  A fraction is resolved only now, when the prompt's
 * length is known. */
static int check_selected(const struct completion_request *request, size_t n_prompt,
                          const struct request_limits *limits, struct api_error *err) {
    const struct kv_choice choice = kv_policy_resolve(&request->kv, (uint32_t)n_prompt);
    return offload_rules_check(&limits->kv.offload, choice.n_selected, err);
}

static int check_length(struct completion_request *request, size_t n_prompt,
                        const struct request_limits *limits, struct api_error *err) {
    const uint64_t n_text = wanted_tokens(request, n_prompt);
    if (n_prompt == 0) return api_error_set(err, 400, NULL, "prompt", "prompt has no tokens");
    if (completion_request_is_bounded(request)) return check_budget(request, n_prompt, limits, err);
    if (n_prompt > limits->max_model_len) {
        return api_error_set_length(
            err, "prompt", n_prompt, 0, limits->max_model_len,
            "the prompt has %zu tokens, the maximum context length is %u tokens", n_prompt,
            limits->max_model_len);
    }
    if (n_text > limits->max_model_len) {
        return api_error_set_length(err, request->has_max_tokens ? "max_tokens" : "prompt",
                                    n_prompt, n_text - n_prompt, limits->max_model_len,
                                    "the maximum context length is %u tokens, but %" PRIu64
                                    " were asked for: %zu in the prompt and %" PRIu64
                                    " to be generated",
                                    limits->max_model_len, n_text, n_prompt, n_text - n_prompt);
    }
    return check_selected(request, n_prompt, limits, err);
}

/* Rough JSON sizes: a token's text or id, its entry in the lists of log-probabilities, and a name
 * with a number for each token considered there. */
enum { TOKEN_BYTES = 8, SCORED_BYTES = 64, CONSIDERED_BYTES = 32 };

static int check_answer_size(const struct completion_request *q, struct api_error *err) {
    const int32_t n_top = q->params.n_logprobs;
    const uint64_t scored = n_top < 0 ? 0 : SCORED_BYTES + CONSIDERED_BYTES * ((uint64_t)n_top + 1);
    uint64_t echoed = 0;
    for (uint32_t i = 0; i < q->prompts.n; i++) {
        const struct prompt *prompt = &q->prompts.items[i];
        const uint64_t n = prompt->tokens.n;
        if (q->echo) echoed += (prompt->text ? prompt->length : TOKEN_BYTES * n) + scored * n;
        if (q->return_token_ids) echoed += TOKEN_BYTES * n;
    }
    echoed *= q->best_of;
    if (q->stream) {
        const char *param = q->echo ? "echo" : "return_token_ids";
        if (echoed <= REQUEST_MAX_STREAMED_ECHO && !q->repeats) return 0;
        if (echoed > REQUEST_MAX_STREAMED_ECHO)
            return api_error_set(err, 400, NULL, param,
                                 "%s adds about %llu MB to the stream; at most %d MB are allowed",
                                 param, (unsigned long long)(echoed >> 20),
                                 REQUEST_MAX_STREAMED_ECHO >> 20);
    }
    const uint64_t n_generated = (uint64_t)q->max_tokens * q->prompts.n * q->best_of;
    const uint64_t whole = echoed + n_generated * (TOKEN_BYTES + scored);
    if (whole <= REQUEST_MAX_ANSWER) return 0;
    return api_error_set(err, 400, NULL, scored ? "logprobs" : "max_tokens",
                         "the answer may take about %llu MB; at most %d MB are allowed without a "
                         "stream. Ask for fewer tokens, choices or logprobs, or for a stream",
                         (unsigned long long)(whole >> 20), REQUEST_MAX_ANSWER >> 20);
}

/* Tokenises the text prompts; runs: each must fit the context, and texts are looked up. */
static int tokenize(struct completion_request *request, const struct tokenizer *tokenizer,
                    const struct request_limits *limits, bool runs, struct api_error *err) {
    struct tokenizer_cache *cache = runs ? limits->tokenizer_cache : NULL;
    size_t total = 0;
    for (uint32_t i = 0; i < request->prompts.n; i++) {
        struct prompt *prompt = &request->prompts.items[i];
        int rc = prompt->text ? tokenize_text(request, prompt, tokenizer, limits, cache, err) : 0;
        if (!rc && runs) rc = check_length(request, prompt->tokens.n, limits, err);
        if (rc) return rc;
        prompt_find_last(prompt, tokenizer);
        total += prompt->tokens.n;
        if (total * request->best_of > REQUEST_MAX_COPIED_TOKENS) return refuse_total(err);
    }
    return 0;
}

int completion_request_encode(struct completion_request *request, const struct tokenizer *tokenizer,
                              const struct request_limits *limits, struct api_error *err) {
    return tokenize(request, tokenizer, limits, false, err);
}

int completion_request_tokenize(struct completion_request *request,
                                const struct tokenizer *tokenizer,
                                const struct request_limits *limits, struct api_error *err) {
    const int rc = tokenize(request, tokenizer, limits, true, err);
    return rc ? rc : check_answer_size(request, err);
}
