/* tokenize.c - see tokenize.h. */
#include "server/ops/tokenize.h"

#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "engine/base/error.h"
#include "engine/engine.h"
#include "engine/model/model.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/api/job.h"
#include "server/api/prompts.h"
#include "server/api/reply.h"
#include "server/api/server.h"
#include "server/json/buffer.h"
#include "server/json/json_guard.h"

struct tokenize_job {
    struct job job; /* first: see job.h */
    struct buffer out;
};

static void job_done(struct job *job) {
    struct tokenize_job *t = (struct tokenize_job *)job;
    if (job->exchange && job->rc) {
        reply_error(job->server, job->exchange, &job->err);
    } else if (job->exchange) {
        reply_json(job->server, job->exchange, 200, &t->out);
    }
    buffer_fini(&t->out);
    job_free(job);
}

static json_t *load_body(struct job *job, const char *bulk_key, struct json_span *bulk) {
    struct error why = {0};
    json_t *root = NULL;
    job->rc = json_guard_load(&root, job->body, job->length, bulk_key, bulk, &why);
    if (job->rc) api_error_from(&job->err, &why, NULL);
    return root;
}

static int read_flag(struct job *job, const json_t *root, const char *name, bool *out) {
    const json_t *value = json_object_get(root, name);
    if (!value || json_is_null(value)) return 0;
    *out = json_is_true(value);
    if (json_is_boolean(value)) return 0;
    return api_error_set(&job->err, 400, NULL, name, "%s must be true or false", name);
}

static int check_model(struct job *job, const json_t *root) {
    const json_t *model = json_object_get(root, "model");
    if (!model || json_is_null(model)) return 0;
    if (!json_is_string(model))
        return api_error_set(&job->err, 400, NULL, "model", "model must be a string");
    const char *name = job->server->model_name;
    if (json_string_length(model) == strlen(name) && strcmp(json_string_value(model), name) == 0)
        return 0;
    return api_error_set(&job->err, 404, "model_not_found", "model",
                         "the model '%.200s' does not exist", json_string_value(model));
}

static void write_token_strings(struct buffer *out, const struct tokenizer *tokenizer,
                                const struct token_list *tokens) {
    buffer_puts(out, ",\"token_strs\":[");
    for (size_t i = 0; i < tokens->n; i++) {
        size_t length = 0;
        const char *bytes = tokenizer_token_bytes(tokenizer, tokens->ids[i], &length);
        if (i) buffer_puts(out, ",");
        buffer_json_string(out, bytes, length);
    }
    buffer_puts(out, "]");
}

static int tokenize_text(struct tokenize_job *t, const json_t *text, bool add_special,
                         bool strings) {
    const struct tokenizer *tokenizer = t->job.server->info->tokenizer;
    struct token_list tokens = {0};
    struct error why = {0};
    const int rc = tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text),
                                    add_special, PROMPTS_MAX_TOKENS, &tokens, &why);
    if (rc) {
        api_error_from(&t->job.err, &why, "prompt");
    } else {
        buffer_printf(&t->out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", tokens.n,
                      t->job.server->info->max_model_len);
        for (size_t i = 0; i < tokens.n; i++)
            buffer_printf(&t->out, i ? ",%u" : "%u", tokens.ids[i]);
        buffer_puts(&t->out, "]");
        if (strings) write_token_strings(&t->out, tokenizer, &tokens);
        buffer_puts(&t->out, "}");
    }
    free(tokens.ids);
    return rc;
}

static void run_tokenize(struct job *job) {
    struct json_span none;
    bool add_special = true, strings = false;
    json_t *root = load_body(job, NULL, &none);
    if (!root) return;
    const json_t *text = json_object_get(root, "prompt");
    if (!text) text = json_object_get(root, "text");
    job->rc = check_model(job, root);
    if (!job->rc) job->rc = read_flag(job, root, "add_special_tokens", &add_special);
    if (!job->rc) job->rc = read_flag(job, root, "return_token_strs", &strings);
    if (!job->rc && !json_is_string(text)) {
        job->rc = api_error_set(&job->err, 400, NULL, "prompt", "prompt must be a string");
    }
    if (!job->rc) job->rc = tokenize_text((struct tokenize_job *)job, text, add_special, strings);
    json_decref(root);
}

static int detokenize_ids(struct tokenize_job *t, const struct token_list *tokens,
                          bool skip_special) {
    char *text = NULL;
    size_t length = 0;
    struct error why = {0};
    const int rc = tokenizer_decode(t->job.server->info->tokenizer, tokens->ids, tokens->n,
                                    skip_special, &text, &length, &why);
    if (rc) return api_error_from(&t->job.err, &why, "tokens");
    buffer_puts(&t->out, "{\"prompt\":");
    buffer_json_string(&t->out, text, length);
    buffer_puts(&t->out, "}");
    free(text);
    return 0;
}

/* Reads one flat array of ids; an empty one is an empty text. */
static int read_ids(struct job *job, const struct json_span *array, struct prompt_list *list) {
    const char first = array->start ? array->start[1 + strspn(array->start + 1, " \t\r\n")] : 0;
    if (first == ']') return 0;
    if (!first || first == '[' || first == '"') {
        return api_error_set(&job->err, 400, NULL, "tokens",
                             "tokens must be an array of token ids");
    }
    return prompt_list_read(list, array, job->server->limits.n_vocab, "tokens", &job->err);
}

static void run_detokenize(struct job *job) {
    struct json_span array;
    struct prompt_list list = {0};
    const struct token_list none = {0};
    bool skip_special = false;
    json_t *root = load_body(job, "tokens", &array);
    if (!root) return;
    job->rc = check_model(job, root);
    if (!job->rc) job->rc = read_flag(job, root, "skip_special_tokens", &skip_special);
    if (!job->rc) job->rc = read_ids(job, &array, &list);
    if (!job->rc) {
        job->rc = detokenize_ids((struct tokenize_job *)job, list.n ? &list.items[0].tokens : &none,
                                 skip_special);
    }
    prompt_list_fini(&list);
    json_decref(root);
}

void tokenize_handle(struct server *server, struct http_exchange *exchange) {
    job_start(server, exchange, JOB_TEXT, sizeof(struct tokenize_job), run_tokenize, job_done);
}

void detokenize_handle(struct server *server, struct http_exchange *exchange) {
    job_start(server, exchange, JOB_TEXT, sizeof(struct tokenize_job), run_detokenize, job_done);
}

static void write_named_token(const struct server *server, struct buffer *out, const char *name,
                              uint32_t id) {
    size_t length = 0;
    const char *bytes = tokenizer_token_bytes(server->info->tokenizer, id, &length);
    buffer_printf(out, ",\"%s\":", name);
    buffer_json_string(out, bytes, length);
    buffer_printf(out, ",\"%s_id\":%u", name, id);
}

void tokenizer_info_handle(struct server *server, struct http_exchange *exchange) {
    const struct tokenizer *tokenizer = server->info->tokenizer;
    const struct model_config *model = server->info->model;
    const uint32_t n_vocab = tokenizer_n_vocab(tokenizer);
    struct buffer body = {0};
    buffer_printf(&body, "{\"vocab_size\":%u,\"model_max_length\":%u", n_vocab,
                  server->info->max_model_len);
    if (model->has_bos) write_named_token(server, &body, "bos_token", model->bos);
    if (model->n_eos) write_named_token(server, &body, "eos_token", model->eos[0]);
    buffer_puts(&body, ",\"special_tokens\":{");
    bool first = true;
    for (uint32_t id = 0; id < n_vocab; id++) {
        size_t length = 0;
        const char *bytes = tokenizer_token_bytes(tokenizer, id, &length);
        if (!bytes || !tokenizer_is_special(tokenizer, id)) continue;
        if (!first) buffer_puts(&body, ",");
        first = false;
        buffer_json_string(&body, bytes, length);
        buffer_printf(&body, ":%u", id);
    }
    buffer_puts(&body, "}}");
    reply_json(server, exchange, 200, &body);
}
