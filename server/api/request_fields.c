/* request_fields.c - see request_fields.h. */
#include "server/api/request_fields.h"

#include <float.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json_arena.h"
#include "engine/base/likeness.h"
#include "server/api/completion_request.h"
#include "server/api/conversation/skipped.h"
#include "server/json/api_error.h"
#include "server/json/json_value.h"
#include "server/settings/log.h"
#include "server/settings/model_names.h"

int request_refuse(struct request_reading *r, const struct request_field *field, const char *rule) {
    return api_error_set(r->err, 400, NULL, field->name, "%s %s", field->name, rule);
}

static void *target(struct request_reading *r, const struct request_field *field) {
    return (char *)r->request + field->offset;
}

static int read_float(struct request_reading *r, const struct request_field *field,
                      const json_t *value) {
    if (!json_is_number(value)) return request_refuse(r, field, "must be a number");
    const double x = json_number_value(value);
    if (!(x >= field->low && x <= field->high) && json_number_text(value))
        return api_error_set(r->err, 400, NULL, field->name,
                             "%s must be between %g and %g, not %.64s", field->name, field->low,
                             field->high, json_number_text(value));
    if (!(x >= field->low && x <= field->high)) {
        return api_error_set(r->err, 400, NULL, field->name, "%s must be between %g and %g, not %g",
                             field->name, field->low, field->high, x);
    }
    *(float *)target(r, field) = (float)x;
    return 0;
}

static int read_integer(struct request_reading *r, const struct request_field *field,
                        const json_t *value, json_int_t *out) {
    if (json_number_digits(value))
        return api_error_set(r->err, 400, NULL, field->name,
                             "%s must be between %.0f and %.0f, not %.64s", field->name, field->low,
                             field->high, json_number_digits(value));
    if (!json_read_integer(value, out)) return request_refuse(r, field, "must be an integer");
    if ((double)*out >= field->low && (double)*out <= field->high) return 0;
    return api_error_set(r->err, 400, NULL, field->name,
                         "%s must be between %.0f and %.0f, not %" JSON_INTEGER_FORMAT, field->name,
                         field->low, field->high, *out);
}

int request_read_u32(struct request_reading *r, const struct request_field *field,
                     const json_t *value) {
    json_int_t x = 0;
    const int rc = read_integer(r, field, value, &x);
    if (!rc) *(uint32_t *)target(r, field) = (uint32_t)x;
    return rc;
}

int request_read_i32(struct request_reading *r, const struct request_field *field,
                     const json_t *value) {
    json_int_t x = 0;
    const int rc = read_integer(r, field, value, &x);
    if (!rc) *(int32_t *)target(r, field) = (int32_t)x;
    return rc;
}

int request_read_flag(struct request_reading *r, const struct request_field *field,
                      const json_t *value, bool *out) {
    if (!json_is_boolean(value)) return request_refuse(r, field, "must be true or false");
    *out = json_is_true(value);
    return 0;
}

int request_read_bool(struct request_reading *r, const struct request_field *field,
                      const json_t *value) {
    return request_read_flag(r, field, value, target(r, field));
}

int request_read_model(struct request_reading *r, const struct request_field *field,
                       const json_t *value) {
    if (!json_is_string(value)) return request_refuse(r, field, "must be a string");
    if (json_string_length(value) == 0) return 0; /* as clients of one-model servers send it */
    const char *text = json_string_value(value);
    const char *name = strlen(text) == json_string_length(value)
                           ? model_names_find(r->limits->models, text)
                           : NULL; /* a zero in it */
    if (name && r->request) r->request->model = name;
    if (name) return 0;
    return api_error_set(r->err, 404, "model_not_found", field->name,
                         "the model '%.200s' does not exist: '%.200s' is served", text,
                         r->limits->models->names[0]);
}

/* Tells whether a value asks for nothing. */
static bool asks_nothing(const struct request_field *field, const json_t *value) {
    if (json_is_number(value)) return field->high > 0 && json_number_value(value) == field->low;
    if (json_is_string(value)) return json_string_length(value) == 0;
    if (json_is_object(value)) return json_object_size(value) == 0;
    if (json_is_array(value)) return json_array_size(value) == 0;
    return json_is_false(value);
}

int request_read_refused(struct request_reading *r, const struct request_field *field,
                         const json_t *value) {
    if (asks_nothing(field, value)) return 0;
    return api_error_set(r->err, 400, "unsupported", field->name, "%s is not supported",
                         field->name);
}

int request_read_ignored(struct request_reading *r, const struct request_field *field,
                         const json_t *value) {
    if (strcmp(field->type, "object") == 0)
        return json_is_object(value) ? 0 : request_refuse(r, field, "must be an object");
    if (strcmp(field->type, "string") == 0)
        return json_is_string(value) ? 0 : request_refuse(r, field, "must be a string");
    return json_is_array(value) ? 0 : request_refuse(r, field, "must be an array");
}

int request_keep(struct request_reading *r, const struct request_field *field,
                 const json_t *value) {
    request_keep_any(r, field, value);
    return request_read_ignored(r, field, value);
}

int request_keep_any(struct request_reading *r, const struct request_field *field,
                     const json_t *value) {
    *(const json_t **)((char *)r->own + field->offset) = value;
    return 0;
}

int request_read_max_tokens(struct request_reading *r, const struct request_field *field,
                            const json_t *value) {
    json_int_t n = 0;
    r->request->has_max_tokens = !json_read_integer(value, &n) || n != REQUEST_ALL_TOKENS;
    if (r->request->has_max_tokens) return request_read_u32(r, field, value);
    r->request->max_tokens = r->limits->max_model_len;
    return 0;
}

static int read_seed(struct request_reading *r, const struct request_field *field,
                     const json_t *value) {
    if (json_number_digits(value))
        return request_refuse(r, field, "must be an integer of 64 bits, from -2^63 to 2^63 - 1");
    json_int_t seed = 0;
    if (!json_read_integer(value, &seed)) return request_refuse(r, field, "must be an integer");
    r->request->params.has_seed = true;
    r->request->params.seed = (uint64_t)seed;
    return 0;
}

/* Reads top_p.  OpenAI allows 0, "the smallest mass", which means the best token alone. */
static int read_top_p(struct request_reading *r, const struct request_field *field,
                      const json_t *value) {
    const int rc = read_float(r, field, value);
    if (!rc && r->request->params.sampler.top_p < FLT_MIN)
        r->request->params.sampler.top_p = FLT_MIN;
    return rc;
}

/* Reads top_k.  Some clients send -1 for "off". */
static int read_top_k(struct request_reading *r, const struct request_field *field,
                      const json_t *value) {
    json_int_t x = 0;
    const int rc = read_integer(r, field, value, &x);
    if (!rc) r->request->params.sampler.top_k = x < 0 ? 0 : (uint32_t)x;
    return rc;
}

#define AT(member) offsetof(struct completion_request, member)

static const struct request_field stream_options[] = {
    {"include_usage", "boolean", request_read_bool, AT(include_usage), 0, 0,
     "The stream ends with the usage."},
    {"continuous_usage_stats", "boolean", request_read_bool, AT(continuous_usage), 0, 0,
     "Every event has the usage so far."},
    {"include_obfuscation", "refused", request_read_refused, 0, 0, 0, "Not supported."},
};

#undef AT

const struct request_table request_stream_options = REQUEST_TABLE(stream_options);

static int read_stream_options(struct request_reading *r, const struct request_field *field,
                               const json_t *value) {
    if (!json_is_object(value)) return request_refuse(r, field, "must be an object");
    r->has_stream_options = true;
    const int rc = request_read_table(r, &request_stream_options, value);
    if (rc) r->err->param = field->name;
    return rc;
}

static int add_stop(struct request_reading *r, const struct request_field *field,
                    const json_t *value) {
    struct sampling_params *params = &r->request->params;
    if (!json_is_string(value))
        return request_refuse(r, field, "must be a string or an array of strings");
    const size_t length = json_string_length(value);
    if (length == 0) return request_refuse(r, field, "must not hold an empty string");
    if (length > REQUEST_MAX_STOP_BYTES)
        return request_refuse(r, field, "strings must not be longer than 1024 bytes");
    if (strlen(json_string_value(value)) != length)
        return request_refuse(r, field, "strings must not hold a NUL");
    params->stop[params->n_stop] = strdup(json_string_value(value));
    if (!params->stop[params->n_stop]) return api_error_no_memory(r->err);
    params->n_stop++;
    return 0;
}

int request_read_stop(struct request_reading *r, const struct request_field *field,
                      const json_t *value) {
    struct sampling_params *params = &r->request->params;
    const size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (n > REQUEST_MAX_STOPS)
        return request_refuse(r, field, "must not hold more than 16 strings");
    if (n == 0) return 0;
    params->stop = calloc(n, sizeof(*params->stop));
    if (!params->stop) return api_error_no_memory(r->err);
    if (!json_is_array(value)) return add_stop(r, field, value);
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++) rc = add_stop(r, field, json_array_get(value, i));
    return rc;
}

static int read_stop_tokens(struct request_reading *r, const struct request_field *field,
                            const json_t *value) {
    struct sampling_params *params = &r->request->params;
    const size_t n = json_array_size(value);
    if (!json_is_array(value)) return request_refuse(r, field, "must be an array of token ids");
    if (n > REQUEST_MAX_STOP_TOKENS)
        return request_refuse(r, field, "must not hold more than 1024 token ids");
    if (n == 0) return 0;
    params->stop_tokens = calloc(n, sizeof(*params->stop_tokens));
    if (!params->stop_tokens) return api_error_no_memory(r->err);
    for (size_t i = 0; i < n; i++) {
        json_int_t x = 0;
        if (!json_read_integer(json_array_get(value, i), &x))
            return request_refuse(r, field, "must be an array of token ids");
        if (x < 0 || x >= (json_int_t)r->limits->n_vocab)
            return request_refuse(r, field, "holds a token id out of range");
        params->stop_tokens[params->n_stop_tokens++] = (uint32_t)x;
    }
    return 0;
}

/* Reads the key of a bias: a decimal token id, digits only. */
static int bias_token(struct request_reading *r, const struct request_field *field, const char *key,
                      uint32_t *token) {
    uint64_t id = 0;
    const char *at = key;
    for (; *at >= '0' && *at <= '9' && at - key < 10; at++) id = id * 10 + (uint64_t)(*at - '0');
    if (at == key || *at)
        return request_refuse(r, field, "must map token ids (decimal strings) to numbers");
    if (id >= r->limits->n_vocab) return request_refuse(r, field, "holds a token id out of range");
    *token = (uint32_t)id;
    return 0;
}

static int read_bias(struct request_reading *r, const struct request_field *field,
                     const json_t *value) {
    struct sampling_params *params = &r->request->params;
    if (!json_is_object(value)) return request_refuse(r, field, "must be an object");
    const size_t n = json_object_size(value);
    if (n > REQUEST_MAX_BIASES)
        return request_refuse(r, field, "must not hold more than 1024 tokens");
    if (n == 0) return 0;
    params->bias = calloc(n, sizeof(*params->bias));
    if (!params->bias) return api_error_no_memory(r->err);
    const char *key;
    const json_t *number;
    void *iterator = json_object_iter((json_t *)value);
    for (; iterator; iterator = json_object_iter_next((json_t *)value, iterator)) {
        key = json_object_iter_key(iterator);
        number = json_object_iter_value(iterator);
        if (!json_is_number(number))
            return request_refuse(r, field, "must map token ids to numbers");
        const double bias = json_number_value(number);
        if (!(bias >= -100 && bias <= 100))
            return request_refuse(r, field, "values must be between -100 and 100");
        uint32_t token = 0;
        const int rc = bias_token(r, field, key, &token);
        if (rc) return rc;
        params->bias[params->n_bias++] = (struct logit_bias){token, (float)bias};
    }
    return 0;
}

static int read_salt(struct request_reading *r, const struct request_field *field,
                     const json_t *value) {
    if (!json_is_string(value)) return request_refuse(r, field, "must be a string");
    if (json_string_length(value) == 0) return request_refuse(r, field, "must not be empty");
    r->request->cache_salt =
        salt_hash(&r->limits->salt_key, json_string_value(value), json_string_length(value));
    return 0;
}

static int read_kv_policy(struct request_reading *r, const struct request_field *field,
                          const json_t *value) {
    (void)field;
    const int rc = kv_policy_read(&r->request->kv, value, r->err);
    return rc ? rc : kv_rules_apply(&r->limits->kv, &r->request->kv, r->err);
}

static int read_prefill(struct request_reading *r, const struct request_field *field,
                        const json_t *value) {
    (void)field;
    return prefill_rules_read(&r->request->prefill, value, &r->limits->prefill, r->err);
}

static int read_speculation(struct request_reading *r, const struct request_field *field,
                            const json_t *value) {
    struct speculation_choice *choice = &r->request->speculation;
    const char *word = json_string_value(value);
    *choice = (struct speculation_choice){.is_asked = true};
    if (word && strcmp(word, "suffix") == 0) choice->mode = SPECULATION_SUFFIX;
    else if (!word || strcmp(word, "off") != 0)
        return request_refuse(r, field, "must be \"off\" or \"suffix\"");
    return 0;
}

#define AT(member) offsetof(struct completion_request, member)

static const struct request_field common[] = {
    {"model", "string", request_read_model, 0, 0, 0,
     "Must be a name of the served model where it is given."},
    {"min_tokens", "integer", request_read_u32, AT(params.min_tokens), 0, INT32_MAX,
     "Least number of tokens before the model may end the text."},
    {"temperature", "number", read_float, AT(params.sampler.temperature), 0, 2, "0 is greedy."},
    {"top_p", "number", read_top_p, AT(params.sampler.top_p), 0, 1, "0 is the best token alone."},
    {"top_k", "integer", read_top_k, 0, -1, INT32_MAX,
     "Only so many of the best tokens; -1 and 0 are off."},
    {"min_p", "number", read_float, AT(params.sampler.min_p), 0, 1,
     "Only tokens of at least this share of the best one's probability."},
    {"repetition_penalty", "number", read_float, AT(params.sampler.repetition_penalty), 0.01, 100,
     "Above 1, tokens that the text has are less likely."},
    {"presence_penalty", "number", read_float, AT(params.sampler.presence_penalty), -2, 2,
     "Taken from the logits of tokens that the answer has."},
    {"frequency_penalty", "number", read_float, AT(params.sampler.frequency_penalty), -2, 2,
     "Taken from the logits of tokens as often as the answer has them."},
    {"logit_bias", "@logit_bias", read_bias, 0, 0, 0,
     "Token id, a decimal string, to a number from -100 to 100."},
    {"seed", "integer", read_seed, 0, (double)INT64_MIN, (double)INT64_MAX,
     "The same seed gives the same answer; choice i uses seed + i."},
    {"stream", "boolean", request_read_bool, AT(stream), 0, 0, "The answer is a stream of events."},
    {"stop_token_ids", "@stop_token_ids", read_stop_tokens, 0, 0, 0,
     "Up to 1024 token ids that end the text."},
    {"ignore_eos", "boolean", request_read_bool, AT(params.ignore_eos), 0, 0,
     "The model's end tokens do not end the text."},
    {"include_stop_str_in_output", "boolean", request_read_bool, AT(params.include_stop), 0, 0,
     "The text includes the stop string."},
    {"skip_special_tokens", "boolean", request_read_bool, AT(params.skip_special), 0, 0,
     "Special tokens are left out of the text."},
    {"return_progress", "boolean", request_read_bool, AT(return_progress), 0, 0,
     "A stream tells how much of the prompt has been computed."},
    {"cache_salt", "string+", read_salt, 0, 0, 0,
     "Cached prefixes are shared only by requests of one salt."},
    {"kv_policy", "@kv_policy", read_kv_policy, 0, 0, 0, "What is kept in the KV cache."},
    {"prefill", "@prefill", read_prefill, 0, 0, 0, "How the prompt is computed."},
    {"speculation", "'off'|'suffix'", read_speculation, 0, 0, 0,
     "off, or suffix: tokens are guessed from what followed the text's end before."},
    {"priority", "integer", request_read_i32, AT(priority), INT32_MIN, INT32_MAX,
     "Lower runs first, equals by arrival."},
    {"prompt_logprobs", "refused", request_read_refused, 0, 0, 1, "Not supported."},
    {"return_tokens_as_token_ids", "refused", request_read_refused, 0, 0, 0, "Not supported."},
    {"prompt_embeds", "refused", request_read_refused, 0, 0, 0, "Not supported."},
    {"truncate_prompt_tokens", "refused", request_read_refused, 0, 0, 0, "Not supported."},
    {"use_beam_search", "refused", request_read_refused, 0, 0, 0, "Not supported."},
    {"early_stopping", "refused", request_read_refused, 0, 0, 0, "Not supported."},
    {"length_penalty", "refused", request_read_refused, 0, 1, 1, "Not supported."},
    {"bad_words", "refused", request_read_refused, 0, 0, 0, "Not supported."},
    {"allowed_token_ids", "refused", request_read_refused, 0, 0, 0, "Not supported."},
    {"logits_processors", "refused", request_read_refused, 0, 0, 0, "Not supported."},
    {"kv_transfer_params", "refused", request_read_refused, 0, 0, 0, "Not supported."},
    {"vllm_xargs", "refused", request_read_refused, 0, 0, 0, "Not supported."},
};

static const struct request_field openai[] = {
    {"n", "integer", request_read_u32, AT(n), 1, REQUEST_MAX_CHOICES, "Choices of each prompt."},
    {"stream_options", "@stream_options", read_stream_options, 0, 0, 0,
     "include_usage and continuous_usage_stats, both booleans."},
    {"stop", "@stop", request_read_stop, 0, 0, 0, "Up to 16 strings that end the text."},
    {"return_token_ids", "boolean", request_read_bool, AT(return_token_ids), 0, 0,
     "Choices have prompt_token_ids and token_ids."},
    {"return_kept_positions", "boolean", request_read_bool, AT(return_kept), 0, 0,
     "The choice tells which tokens the KV cache still has at its end."},
    {"user", "string", request_read_ignored, 0, 0, 0, "Ignored."},
};

#undef AT

const struct request_table request_common = REQUEST_TABLE(common);
const struct request_table request_openai = REQUEST_TABLE(openai);

int request_read_table(struct request_reading *r, const struct request_table *table,
                       const json_t *root) {
    for (size_t i = 0; i < table->n; i++) {
        const struct request_field *field = &table->fields[i];
        const json_t *value = json_object_get(root, field->name);
        if (!value || json_is_null(value)) continue;
        const int rc = field->read(r, field, value);
        if (rc) return rc;
    }
    return 0;
}

/* Returns the field of the tables that is most like the name, and sets *distance to how much they
 * differ (likeness.h). */
static const char *find_like(const struct request_table *const *tables, const char *name,
                             unsigned *distance) {
    const char *best = NULL;
    *distance = UINT_MAX;
    for (; *tables; tables++)
        for (size_t i = 0; i < (*tables)->n; i++) {
            const char *candidate = (*tables)->fields[i].name;
            const unsigned n = likeness_distance(name, candidate);
            if (n >= *distance) continue;
            *distance = n;
            best = candidate;
        }
    return best;
}

static bool is_field(const struct request_table *const *tables, const char *name) {
    for (; *tables; tables++)
        for (size_t i = 0; i < (*tables)->n; i++)
            if (strcmp(name, (*tables)->fields[i].name) == 0) return true;
    return false;
}

/* Refuses a member that no table has, or logs that it is ignored, once for each name. */
static int note_unknown(struct request_reading *r, const struct request_table *const *tables,
                        const char *name) {
    const bool is_strict = r->limits->strict_fields;
    char quoted[SKIPPED_NAME_BYTES];
    unsigned distance;
    if (!is_strict && !skipped_types_add(r->limits->skipped, "fields", name)) return 0;
    const char *like = find_like(tables, name, &distance);
    if (distance > likeness_most(name)) like = NULL;
    log_quote(quoted, sizeof(quoted), name);
    if (!is_strict) {
        log_event(LOG_INFO, "ignored field=%s: there is no such field%s%s", quoted,
                  like ? "; the likeliest is " : "", like ? like : "");
        return 0;
    }
    return api_error_set(r->err, 400, "unknown_field", like,
                         "there is no field %s%s%s; without --strict-fields it is ignored", quoted,
                         like ? ": the likeliest is " : "", like ? like : "");
}

int request_read_tables(struct request_reading *r, const struct request_table *const *tables,
                        const json_t *root) {
    int rc = 0, n_unknown = 0;
    for (size_t i = 0; tables[i] && !rc; i++) rc = request_read_table(r, tables[i], root);
    for (void *at = json_object_iter((json_t *)root); at && !rc && n_unknown < REQUEST_UNKNOWN_MOST;
         at = json_object_iter_next((json_t *)root, at)) {
        const char *name = json_object_iter_key(at);
        if (is_field(tables, name)) continue;
        n_unknown++;
        rc = note_unknown(r, tables, name);
    }
    return rc;
}
