/* completion_request.c - see completion_request.h. */
#include "server/api/completion_request.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "server/json/api_error.h"
#include "server/json/json_guard.h"

/* The state that the members' readers share. */
struct request_reading {
    struct completion_request *request;
    const struct request_limits *limits;
    struct api_error *err;
    bool has_stream_options, has_best_of;
};

struct field {
    const char *name;
    int (*read)(struct request_reading *r, const struct field *field, const json_t *value);
    size_t offset;    /* of the target in struct completion_request */
    double low, high; /* of numbers; both are allowed */
};

static int refuse(struct request_reading *r, const struct field *field, const char *rule) {
    return api_error_set(r->err, 400, NULL, field->name, "%s %s", field->name, rule);
}

static int out_of_memory(struct request_reading *r) {
    api_error_set(r->err, 500, NULL, NULL, "no memory for the request");
    return ERR_NOMEM;
}

static void *target(struct request_reading *r, const struct field *field) {
    return (char *)r->request + field->offset;
}

static int read_float(struct request_reading *r, const struct field *field, const json_t *value) {
    if (!json_is_number(value)) return refuse(r, field, "must be a number");
    const double x = json_number_value(value);
    if (!(x >= field->low && x <= field->high)) {
        return api_error_set(r->err, 400, NULL, field->name, "%s must be between %g and %g, not %g",
                             field->name, field->low, field->high, x);
    }
    *(float *)target(r, field) = (float)x;
    return 0;
}

static int read_integer(struct request_reading *r, const struct field *field, const json_t *value,
                        json_int_t *out) {
    if (!json_is_integer(value)) return refuse(r, field, "must be an integer");
    *out = json_integer_value(value);
    if ((double)*out >= field->low && (double)*out <= field->high) return 0;
    return api_error_set(r->err, 400, NULL, field->name,
                         "%s must be between %.0f and %.0f, not %" JSON_INTEGER_FORMAT, field->name,
                         field->low, field->high, *out);
}

static int read_u32(struct request_reading *r, const struct field *field, const json_t *value) {
    json_int_t x = 0;
    const int rc = read_integer(r, field, value, &x);
    if (!rc) *(uint32_t *)target(r, field) = (uint32_t)x;
    return rc;
}

static int read_i32(struct request_reading *r, const struct field *field, const json_t *value) {
    json_int_t x = 0;
    const int rc = read_integer(r, field, value, &x);
    if (!rc) *(int32_t *)target(r, field) = (int32_t)x;
    return rc;
}

static int read_bool(struct request_reading *r, const struct field *field, const json_t *value) {
    if (!json_is_boolean(value)) return refuse(r, field, "must be true or false");
    *(bool *)target(r, field) = json_is_true(value);
    return 0;
}

static int read_model(struct request_reading *r, const struct field *field, const json_t *value) {
    if (!json_is_string(value)) return refuse(r, field, "must be a string");
    if (json_string_length(value) == strlen(r->limits->model_name) &&
        strcmp(json_string_value(value), r->limits->model_name) == 0) {
        return 0;
    }
    return api_error_set(r->err, 404, "model_not_found", field->name,
                         "the model '%.200s' does not exist", json_string_value(value));
}

/* Reads a prompt that is one string.  The guard has cut out arrays before. */
static int read_prompt(struct request_reading *r, const struct field *field, const json_t *value) {
    if (!json_is_string(value)) return refuse(r, field, "must be a string or an array");
    return prompt_list_add_text(&r->request->prompts, json_string_value(value),
                                json_string_length(value), r->err);
}

/* Refuses members that ask for something quire cannot do; false asks for nothing. */
static int read_refused(struct request_reading *r, const struct field *field, const json_t *value) {
    if (json_is_false(value)) return 0;
    return api_error_set(r->err, 400, "unsupported", field->name, "%s is not supported",
                         field->name);
}

static int read_ignored_string(struct request_reading *r, const struct field *field,
                               const json_t *value) {
    return json_is_string(value) ? 0 : refuse(r, field, "must be a string");
}

static int read_max_tokens(struct request_reading *r, const struct field *field,
                           const json_t *value) {
    r->request->has_max_tokens = true;
    return read_u32(r, field, value);
}

static int read_best_of(struct request_reading *r, const struct field *field, const json_t *value) {
    r->has_best_of = true;
    return read_u32(r, field, value);
}

static int read_seed(struct request_reading *r, const struct field *field, const json_t *value) {
    if (!json_is_integer(value)) return refuse(r, field, "must be an integer");
    r->request->params.has_seed = true;
    r->request->params.seed = (uint64_t)json_integer_value(value);
    return 0;
}

/* Reads top_p.  OpenAI allows 0, "the smallest mass", which means the best token alone. */
static int read_top_p(struct request_reading *r, const struct field *field, const json_t *value) {
    const int rc = read_float(r, field, value);
    if (!rc && r->request->params.sampler.top_p < FLT_MIN)
        r->request->params.sampler.top_p = FLT_MIN;
    return rc;
}

/* Reads top_k.  Some clients send -1 for "off". */
static int read_top_k(struct request_reading *r, const struct field *field, const json_t *value) {
    json_int_t x = 0;
    const int rc = read_integer(r, field, value, &x);
    if (!rc) r->request->params.sampler.top_k = x < 0 ? 0 : (uint32_t)x;
    return rc;
}

static int read_stream_options(struct request_reading *r, const struct field *field,
                               const json_t *value) {
    if (!json_is_object(value)) return refuse(r, field, "must be an object");
    r->has_stream_options = true;
    static const struct field options[] = {
        {"include_usage", read_bool, offsetof(struct completion_request, include_usage), 0, 0},
        {"continuous_usage_stats", read_bool, offsetof(struct completion_request, continuous_usage),
         0, 0},
        {"include_obfuscation", read_refused, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++) {
        const json_t *option = json_object_get(value, options[i].name);
        if (!option || json_is_null(option)) continue;
        const int rc = options[i].read(r, &options[i], option);
        if (rc) {
            r->err->param = field->name;
            return rc;
        }
    }
    return 0;
}

static int add_stop(struct request_reading *r, const struct field *field, const json_t *value) {
    struct sampling_params *params = &r->request->params;
    if (!json_is_string(value)) return refuse(r, field, "must be a string or an array of strings");
    const size_t length = json_string_length(value);
    if (length == 0) return refuse(r, field, "must not hold an empty string");
    if (length > REQUEST_MAX_STOP_BYTES)
        return refuse(r, field, "strings must not be longer than 1024 bytes");
    if (strlen(json_string_value(value)) != length)
        return refuse(r, field, "strings must not hold a NUL");
    params->stop[params->n_stop] = strdup(json_string_value(value));
    if (!params->stop[params->n_stop]) return out_of_memory(r);
    params->n_stop++;
    return 0;
}

static int read_stop(struct request_reading *r, const struct field *field, const json_t *value) {
    struct sampling_params *params = &r->request->params;
    const size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (n > REQUEST_MAX_STOPS) return refuse(r, field, "must not hold more than 16 strings");
    if (n == 0) return 0;
    params->stop = calloc(n, sizeof(*params->stop));
    if (!params->stop) return out_of_memory(r);
    if (!json_is_array(value)) return add_stop(r, field, value);
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++) rc = add_stop(r, field, json_array_get(value, i));
    return rc;
}

static int read_stop_tokens(struct request_reading *r, const struct field *field,
                            const json_t *value) {
    struct sampling_params *params = &r->request->params;
    const size_t n = json_array_size(value);
    if (!json_is_array(value)) return refuse(r, field, "must be an array of token ids");
    if (n > REQUEST_MAX_STOP_TOKENS)
        return refuse(r, field, "must not hold more than 1024 token ids");
    if (n == 0) return 0;
    params->stop_tokens = calloc(n, sizeof(*params->stop_tokens));
    if (!params->stop_tokens) return out_of_memory(r);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(value, i);
        if (!json_is_integer(id)) return refuse(r, field, "must be an array of token ids");
        const json_int_t x = json_integer_value(id);
        if (x < 0 || x >= (json_int_t)r->limits->n_vocab)
            return refuse(r, field, "holds a token id out of range");
        params->stop_tokens[params->n_stop_tokens++] = (uint32_t)x;
    }
    return 0;
}

/* Reads the key of a bias: a decimal token id, digits only. */
static int bias_token(struct request_reading *r, const struct field *field, const char *key,
                      uint32_t *token) {
    uint64_t id = 0;
    const char *at = key;
    for (; *at >= '0' && *at <= '9' && at - key < 10; at++) id = id * 10 + (uint64_t)(*at - '0');
    if (at == key || *at)
        return refuse(r, field, "must map token ids (decimal strings) to numbers");
    if (id >= r->limits->n_vocab) return refuse(r, field, "holds a token id out of range");
    *token = (uint32_t)id;
    return 0;
}

static int read_bias(struct request_reading *r, const struct field *field, const json_t *value) {
    struct sampling_params *params = &r->request->params;
    if (!json_is_object(value)) return refuse(r, field, "must be an object");
    const size_t n = json_object_size(value);
    if (n > REQUEST_MAX_BIASES) return refuse(r, field, "must not hold more than 1024 tokens");
    if (n == 0) return 0;
    params->bias = calloc(n, sizeof(*params->bias));
    if (!params->bias) return out_of_memory(r);
    const char *key;
    const json_t *number;
    void *iterator = json_object_iter((json_t *)value);
    for (; iterator; iterator = json_object_iter_next((json_t *)value, iterator)) {
        key = json_object_iter_key(iterator);
        number = json_object_iter_value(iterator);
        if (!json_is_number(number)) return refuse(r, field, "must map token ids to numbers");
        const double bias = json_number_value(number);
        if (!(bias >= -100 && bias <= 100))
            return refuse(r, field, "values must be between -100 and 100");
        uint32_t token = 0;
        const int rc = bias_token(r, field, key, &token);
        if (rc) return rc;
        params->bias[params->n_bias++] = (struct logit_bias){token, (float)bias};
    }
    return 0;
}

static int read_salt(struct request_reading *r, const struct field *field, const json_t *value) {
    if (!json_is_string(value)) return refuse(r, field, "must be a string");
    if (json_string_length(value) == 0) return refuse(r, field, "must not be empty");
    r->request->cache_salt =
        salt_hash(&r->limits->salt_key, json_string_value(value), json_string_length(value));
    return 0;
}

static int read_kv_policy(struct request_reading *r, const struct field *field,
                          const json_t *value) {
    (void)field;
    const int rc = kv_policy_read(&r->request->kv, value, r->err);
    return rc ? rc : kv_rules_apply(&r->limits->kv, &r->request->kv, r->err);
}

static int read_prefill(struct request_reading *r, const struct field *field, const json_t *value) {
    (void)field;
    return prefill_rules_read(&r->request->prefill, value, &r->limits->prefill, r->err);
}

#define AT(member) offsetof(struct completion_request, member)

/* max_tokens comes after max_completion_tokens, so the endpoint's own name wins when a client sends
 * both. */
static const struct field fields[] = {
    {"model", read_model, 0, 0, 0},
    {"prompt", read_prompt, 0, 0, 0},
    {"max_completion_tokens", read_max_tokens, AT(max_tokens), 0, INT32_MAX},
    {"max_tokens", read_max_tokens, AT(max_tokens), 0, INT32_MAX},
    {"min_tokens", read_u32, AT(params.min_tokens), 0, INT32_MAX},
    {"temperature", read_float, AT(params.sampler.temperature), 0, 2},
    {"top_p", read_top_p, AT(params.sampler.top_p), 0, 1},
    {"top_k", read_top_k, 0, -1, INT32_MAX},
    {"min_p", read_float, AT(params.sampler.min_p), 0, 1},
    {"repetition_penalty", read_float, AT(params.sampler.repetition_penalty), 0.01, 100},
    {"presence_penalty", read_float, AT(params.sampler.presence_penalty), -2, 2},
    {"frequency_penalty", read_float, AT(params.sampler.frequency_penalty), -2, 2},
    {"logit_bias", read_bias, 0, 0, 0},
    {"seed", read_seed, 0, 0, 0},
    {"n", read_u32, AT(n), 1, REQUEST_MAX_CHOICES},
    {"best_of", read_best_of, AT(best_of), 1, REQUEST_MAX_CHOICES},
    {"stream", read_bool, AT(stream), 0, 0},
    {"stream_options", read_stream_options, 0, 0, 0},
    {"logprobs", read_i32, AT(params.n_logprobs), 0, SAMPLE_MAX_TOP},
    {"echo", read_bool, AT(echo), 0, 0},
    {"stop", read_stop, 0, 0, 0},
    {"stop_token_ids", read_stop_tokens, 0, 0, 0},
    {"ignore_eos", read_bool, AT(params.ignore_eos), 0, 0},
    {"include_stop_str_in_output", read_bool, AT(params.include_stop), 0, 0},
    {"skip_special_tokens", read_bool, AT(params.skip_special), 0, 0},
    {"add_special_tokens", read_bool, AT(add_special), 0, 0},
    {"return_token_ids", read_bool, AT(return_token_ids), 0, 0},
    {"cache_salt", read_salt, 0, 0, 0},
    {"kv_policy", read_kv_policy, 0, 0, 0},
    {"prefill", read_prefill, 0, 0, 0},
    {"priority", read_i32, AT(priority), INT32_MIN, INT32_MAX},
    {"user", read_ignored_string, 0, 0, 0},
    {"suffix", read_refused, 0, 0, 0},
    {"prompt_logprobs", read_refused, 0, 0, 0},
    {"return_tokens_as_token_ids", read_refused, 0, 0, 0},
    {"prompt_embeds", read_refused, 0, 0, 0},
    {"truncate_prompt_tokens", read_refused, 0, 0, 0},
    {"use_beam_search", read_refused, 0, 0, 0},
    {"early_stopping", read_refused, 0, 0, 0},
    {"length_penalty", read_refused, 0, 0, 0},
    {"bad_words", read_refused, 0, 0, 0},
    {"allowed_token_ids", read_refused, 0, 0, 0},
    {"logits_processors", read_refused, 0, 0, 0},
    {"response_format", read_refused, 0, 0, 0},
    {"structured_outputs", read_refused, 0, 0, 0},
    {"guided_json", read_refused, 0, 0, 0},
    {"guided_regex", read_refused, 0, 0, 0},
    {"guided_choice", read_refused, 0, 0, 0},
    {"guided_grammar", read_refused, 0, 0, 0},
    {"kv_transfer_params", read_refused, 0, 0, 0},
    {"vllm_xargs", read_refused, 0, 0, 0},
};

#undef AT

static int refuse_bounded(struct api_error *err) {
    char names[KV_NAMES_SIZE];
    bool wanted[KV_MAX_POLICIES] = {false};
    for (unsigned i = 0; i < kv_policies_count(); i++)
        wanted[i] = !kv_choice_is_bounded(&kv_policies_row(i)->defaults);
    kv_type_names(names, wanted, " or ");
    return api_error_set(err, 400, "unsupported", "prefill",
                         "sparse prefill needs the kv_policy %s", names);
}

/* Refuses what a sparse prefill cannot give exactly. */
static int check_prefill(const struct completion_request *q, struct api_error *err) {
    const enum dense_reason reason = completion_request_needs_dense(q);
    if (q->prefill.mode != PREFILL_SPARSE || reason == DENSE_NOT_NEEDED) return 0;
    if (reason == DENSE_FOR_BUDGET) return refuse_bounded(err);
    return api_error_set(err, 400, "unsupported", "prefill",
                         "sparse prefill does not allow echo with logprobs: log-probabilities "
                         "of the prompt need dense prefill");
}

/* Checks the rules that involve more than one member. */
static int check_together(struct request_reading *r) {
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

static int read_fields(struct request_reading *r, const json_t *root) {
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
        const json_t *value = json_object_get(root, fields[i].name);
        if (!value || json_is_null(value)) continue;
        const int rc = fields[i].read(r, &fields[i], value);
        if (rc) return rc;
    }
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
    return completion_request_read(out, root, &prompts, limits, err);
}

int completion_request_read(struct completion_request *out, json_t *root,
                            const struct json_span *prompts, const struct request_limits *limits,
                            struct api_error *err) {
    struct completion_request request = {.params = sampling_defaults(),
                                         .kv = limits->kv.initial,
                                         .n = 1,
                                         .best_of = 1,
                                         .max_tokens = 16,
                                         .add_special = true};
    struct request_reading r = {.request = &request, .limits = limits, .err = err};
    int rc = read_fields(&r, root);
    json_decref(root); /* before the bulk array takes its memory */
    if (!rc && prompts->start)
        rc = prompt_list_read(&request.prompts, prompts, limits->n_vocab, "prompt", err);
    if (!rc) rc = check_together(&r);
    if (rc) {
        completion_request_fini(&request);
        return rc;
    }
    *out = request;
    return 0;
}

void completion_request_fini(struct completion_request *request) {
    prompt_list_fini(&request->prompts);
    sampling_fini(&request->params);
    prefill_request_fini(&request->prefill);
    *request = (struct completion_request){0};
}

static int refuse_total(struct api_error *err) {
    return api_error_set(err, 400, NULL, "prompt",
                         "the tokens of all prompts times best_of must not be more than %d",
                         REQUEST_MAX_COPIED_TOKENS);
}

static int tokenize_text(struct completion_request *request, struct prompt *prompt,
                         const struct tokenizer *tokenizer, const struct request_limits *limits,
                         struct api_error *err) {
    /* Counting past the context tells the client by how much the prompt is too long.  The bound
     * keeps a hostile body from costing more memory than an honest one. */
    const bool bounded = completion_request_is_bounded(request);
    const size_t max_ids = bounded ? REQUEST_MAX_COPIED_TOKENS : 16 * (size_t)limits->max_model_len;
    struct error why = {0};
    const int rc = tokenizer_encode(tokenizer, prompt->text, prompt->length, request->add_special,
                                    max_ids, &prompt->tokens, &why);
    if (rc == ERR_TOO_LONG && bounded) return refuse_total(err);
    if (rc == ERR_TOO_LONG) {
        return api_error_set(
            err, 400, "context_length_exceeded", "prompt",
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
static int refuse_positions(const struct kv_choice *choice, uint64_t n_text, uint32_t context,
                            struct api_error *err) {
    const bool has_other = kv_policies_has(choice->type, KV_MEMBER_POSITIONS);
    return api_error_set(err, 400, "context_length_exceeded",
                         has_other ? kv_members[KV_MEMBER_POSITIONS].name : "kv_policy",
                         "%s needs prompt and max_tokens within the model's context of %u tokens, "
                         "but they are %" PRIu64 "%s",
                         has_other ? "kv_policy.positions text" : "kv_policy", context, n_text,
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
    if (!choice.cache_positions && n_text > limits->trained_context)
        return refuse_positions(&choice, n_text, limits->trained_context, err);
    if (choice.whole && n_prompt > limits->kv_tokens)
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
        return api_error_set(err, 400, "context_length_exceeded", "prompt",
                             "the prompt has %zu tokens, the maximum context length is %u tokens",
                             n_prompt, limits->max_model_len);
    }
    if (n_text > limits->max_model_len) {
        return api_error_set(err, 400, "context_length_exceeded",
                             request->has_max_tokens ? "max_tokens" : "prompt",
                             "the maximum context length is %u tokens, but %" PRIu64
                             " were asked for: %zu in the prompt and %" PRIu64 " to be generated",
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
        if (echoed <= REQUEST_MAX_STREAMED_ECHO) return 0;
        return api_error_set(
            err, 400, NULL, param, "%s adds about %llu MB to the stream; at most %d MB are allowed",
            param, (unsigned long long)(echoed >> 20), REQUEST_MAX_STREAMED_ECHO >> 20);
    }
    const uint64_t n_generated = (uint64_t)q->max_tokens * q->prompts.n * q->best_of;
    const uint64_t whole = echoed + n_generated * (TOKEN_BYTES + scored);
    if (whole <= REQUEST_MAX_ANSWER) return 0;
    return api_error_set(err, 400, NULL, scored ? "logprobs" : "max_tokens",
                         "the answer may take about %llu MB; at most %d MB are allowed without a "
                         "stream. Ask for fewer tokens, choices or logprobs, or for a stream",
                         (unsigned long long)(whole >> 20), REQUEST_MAX_ANSWER >> 20);
}

int completion_request_tokenize(struct completion_request *request,
                                const struct tokenizer *tokenizer,
                                const struct request_limits *limits, struct api_error *err) {
    size_t total = 0;
    for (uint32_t i = 0; i < request->prompts.n; i++) {
        struct prompt *prompt = &request->prompts.items[i];
        int rc = prompt->text ? tokenize_text(request, prompt, tokenizer, limits, err) : 0;
        if (!rc) rc = check_length(request, prompt->tokens.n, limits, err);
        if (rc) return rc;
        total += prompt->tokens.n;
        if (total * request->best_of > REQUEST_MAX_COPIED_TOKENS) return refuse_total(err);
    }
    return check_answer_size(request, err);
}
