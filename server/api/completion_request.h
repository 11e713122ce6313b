/* completion_request.h - what a completion asks for, whatever the API, and the body of
 * POST /v1/completions, read and checked (request_fields.h).
 *
 * Thread: any one.  Memory: the request owns everything in it. */
#ifndef SERVER_API_COMPLETION_REQUEST_H
#define SERVER_API_COMPLETION_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>

#include "engine/engine.h"
#include "server/api/prompts.h"
#include "server/api/salt.h"
#include "server/api/structured.h"
#include "server/settings/kv_rules.h"
#include "server/settings/prefill_rules.h"

struct api_error;
struct chat_template;
struct generation;
struct json_span;
struct request_reading;
struct request_table;
struct skipped_types;

/* The members of a body of POST /v1/completions; NULL ends the list. */
extern const struct request_table *const completion_tables[];

enum {
    REQUEST_MAX_CHOICES = 128,    /* n and best_of */
    REQUEST_MAX_SEQUENCES = 2048, /* prompts times best_of, however long the queue */
    REQUEST_MAX_STOPS = 16,
    REQUEST_MAX_STOP_BYTES = 1024,
    REQUEST_MAX_STOP_TOKENS = 1024,
    REQUEST_MAX_BIASES = 1024,
    REQUEST_MAX_COPIED_TOKENS = 16 * 1024 * 1024, /* prompt tokens times best_of: 64 MB */
    /* Bytes of JSON, roughly: what a stream must send at once, and what one body gathers. */
    REQUEST_MAX_STREAMED_ECHO = 32 * 1024 * 1024,
    REQUEST_MAX_ANSWER = 512 * 1024 * 1024,
};

/* The bounds that a request is checked against. */
struct request_limits {
    const struct model_names *models;
    uint32_t
        n_vocab; /* of the model: ids above the tokenizer's last one are padding, without a text */
    uint32_t max_model_len;
    uint32_t max_sequences; /* of one request: no more than the engine ever takes */
    uint32_t trained_context;
    bool learned_positions; /* as in struct kv_limits */
    uint64_t kv_tokens;     /* tokens that the KV cache holds in layers with a budget */
    uint32_t long_rows;     /* tokens of a prompt that can be computed layer by layer */
    struct kv_rules kv;
    struct prefill_rules prefill;
    struct speculation_choice speculation; /* of requests that do not say */
    struct salt_key salt_key;
    const struct tokenizer *tokenizer;
    struct tokenizer_cache *tokenizer_cache; /* NULL: none */
    struct spare_ids *spare_ids;             /* NULL: none */
    const struct chat_template *chat;        /* NULL or without a template: no chats */
    struct skipped_types *skipped;           /* and unknown fields; NULL: they are not logged */
    bool strict_fields;                      /* unknown fields are refused */
    const struct generation *generation;     /* NULL: the sampling of sampling_defaults() */
};

struct completion_request {
    const char *model; /* the served name that was asked for, one of request_limits.models */
    struct prompt_list prompts;
    struct sampling_params params;
    struct kv_policy kv;
    struct prefill_request prefill;
    struct speculation_choice speculation;
    struct request_structured structured;
    uint32_t n, best_of;
    uint32_t max_tokens; /* without has_max_tokens a default, cut to what the context leaves */
    bool has_max_tokens;
    bool return_progress, return_kept;
    bool stream, include_usage, continuous_usage, echo, add_special, return_token_ids;
    bool repeats;        /* the last event of a stream has the whole answer */
    uint64_t cache_salt; /* 0: none */
    uint64_t text_scope; /* of the tokenizer's cache; set by the caller before tokenising */
    int32_t priority;
};

static inline bool completion_request_is_bounded(const struct completion_request *request) {
    return kv_choice_is_bounded(&request->kv.tokens);
}

/* Returns what keeps the request's prompts dense, or NULL. */
static inline const struct dense_rule *completion_request_dense_rule(
    const struct completion_request *request) {
    return prefill_dense_rule(&request->kv.tokens, &request->kv.override,
                              request->echo && request->params.n_logprobs >= 0);
}

struct completion_request completion_request_defaults(const struct request_limits *limits);
/* Checks the rules that involve more than one member.  Without best_of it is n. */
int completion_request_check(struct request_reading *r);

/* Reads and checks a body.  On failure *out holds nothing to free and err names the cause. */
int completion_request_parse(struct completion_request *out, const char *body, size_t length,
                             const struct request_limits *limits, struct api_error *err);
void completion_request_fini(struct completion_request *request);

/* Tokenises the text prompts, to count or to show their tokens.  Looks nothing up. */
int completion_request_encode(struct completion_request *request, const struct tokenizer *tokenizer,
                              const struct request_limits *limits, struct api_error *err);
/* Tokenises the text prompts, to run them.  Each prompt must fit the context; in a bounded request,
 * the tokens that its policy retains must fit the KV cache. */
int completion_request_tokenize(struct completion_request *request,
                                const struct tokenizer *tokenizer,
                                const struct request_limits *limits, struct api_error *err);

#endif
