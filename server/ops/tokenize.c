/* tokenize.c - POST /tokenize and /detokenize, GET /tokenizer_info. */
#include "server/api/handlers.h"

#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "engine/base/error.h"
#include "engine/engine.h"
#include "engine/model/model.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/api/conversation/request.h"
#include "server/api/job.h"
#include "server/api/prompts.h"
#include "server/api/reply.h"
#include "server/api/request_fields.h"
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

/* What the readers of members find. */
struct tokenize_reading {
    const json_t *text; /* borrowed from the body */
    bool is_chat, no_special, strings, skip_special;
};

static struct tokenize_reading *own(struct request_reading *r) {
    return r->own;
}

static int read_text(struct request_reading *r, const struct request_field *field,
                     const json_t *value) {
    own(r)->text = value;
    return json_is_string(value) ? 0 : request_refuse(r, field, "must be a string");
}

static int read_messages(struct request_reading *r, const struct request_field *field,
                         const json_t *value) {
    (void)field, (void)value;
    own(r)->is_chat = true; /* read again as a chat */
    return 0;
}

static int read_special(struct request_reading *r, const struct request_field *field,
                        const json_t *value) {
    bool adds = true;
    const int rc = request_read_flag(r, field, value, &adds);
    own(r)->no_special = !adds;
    return rc;
}

static int read_strings(struct request_reading *r, const struct request_field *field,
                        const json_t *value) {
    return request_read_flag(r, field, value, &own(r)->strings);
}

static int read_skip(struct request_reading *r, const struct request_field *field,
                     const json_t *value) {
    return request_read_flag(r, field, value, &own(r)->skip_special);
}

/* Reads what stands in place of an array, which the guard has cut out before. */
static int read_no_array(struct request_reading *r, const struct request_field *field,
                         const json_t *value) {
    (void)value;
    return request_refuse(r, field, "must be an array of token ids");
}

/* `text` comes before `prompt`, so that the latter wins when a client sends both. */
static const struct request_field text_fields[] = {
    {"model", "string", request_read_model, 0, 0, 0,
     "Must be a name of the served model where it is given."},
    {"text", "string", read_text, 0, 0, 0, "The same as prompt."},
    {"prompt", "string", read_text, 0, 0, 0, "The text; or messages are given."},
    {"messages", "object[]", read_messages, 0, 0, 0, "A chat, which may have all members of one."},
    {"add_special_tokens", "boolean", read_special, 0, 0, 0,
     "The tokenizer puts its special tokens around a prompt."},
    {"return_token_strs", "boolean", read_strings, 0, 0, 0,
     "The answer has the tokens' texts, too."},
};

static const struct request_field id_fields[] = {
    {"model", "string", request_read_model, 0, 0, 0,
     "Must be a name of the served model where it is given."},
    {"tokens", "integer[]", read_no_array, 0, 0, 0, "The token ids."},
    {"skip_special_tokens", "boolean", read_skip, 0, 0, 0,
     "Special tokens are left out of the text."},
};

static const struct request_table text_table = REQUEST_TABLE(text_fields);
static const struct request_table id_table = REQUEST_TABLE(id_fields);
const struct request_table *const tokenize_tables[] = {&text_table, NULL};
const struct request_table *const detokenize_tables[] = {&id_table, NULL};

static int read_members(struct job *job, const struct request_table *table, const json_t *root,
                        struct tokenize_reading *reading) {
    struct request_reading r = {.limits = &job->server->limits, .err = &job->err, .own = reading};
    return request_read_table(&r, table, root);
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

static void write_tokens(struct tokenize_job *t, const struct token_list *tokens, bool strings) {
    buffer_printf(&t->out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", tokens->n,
                  t->job.server->info->max_model_len);
    for (size_t i = 0; i < tokens->n; i++) buffer_printf(&t->out, i ? ",%u" : "%u", tokens->ids[i]);
    buffer_puts(&t->out, "]");
    if (strings) write_token_strings(&t->out, t->job.server->info->tokenizer, tokens);
    buffer_puts(&t->out, "}");
}

static int tokenize_text(struct tokenize_job *t, const json_t *text, bool add_special,
                         bool strings) {
    const struct tokenizer *tokenizer = t->job.server->info->tokenizer;
    struct token_list tokens = {0};
    struct error why = {0};
    const int rc = tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text),
                                    add_special, PROMPTS_MAX_TOKENS, &tokens, &why);
    if (rc) api_error_from(&t->job.err, &why, "prompt");
    else write_tokens(t, &tokens, strings);
    free(tokens.ids);
    return rc;
}

/* Tokenises what the chat template makes of a body, which is that of a chat. */
static int tokenize_chat(struct tokenize_job *t, bool strings) {
    const struct request_limits *limits = &t->job.server->limits;
    struct completion_request request;
    struct chat_request chat;
    int rc =
        chat_request_parse(&request, &chat, NULL, t->job.body, t->job.length, limits, &t->job.err);
    if (rc) return rc;
    rc = completion_request_encode(&request, t->job.server->info->tokenizer, limits, &t->job.err);
    if (!rc) write_tokens(t, &request.prompts.items[0].tokens, strings);
    completion_request_fini(&request);
    chat_request_fini(&chat);
    return rc;
}

static void run_tokenize(struct job *job) {
    struct tokenize_job *t = (struct tokenize_job *)job;
    struct tokenize_reading q = {0};
    struct json_span none;
    json_t *root = load_body(job, NULL, &none);
    if (!root) return;
    job->rc = read_members(job, &text_table, root, &q);
    if (!job->rc && q.is_chat) job->rc = tokenize_chat(t, q.strings);
    else if (!job->rc && q.text) job->rc = tokenize_text(t, q.text, !q.no_special, q.strings);
    else if (!job->rc)
        job->rc = api_error_set(&job->err, 400, NULL, "prompt", "prompt must be a string");
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
    const uint32_t n_model = job->server->limits.n_vocab,
                   n_tokenizer = tokenizer_n_vocab(job->server->info->tokenizer);
    return prompt_list_read(list, array, n_model > n_tokenizer ? n_model : n_tokenizer, "tokens",
                            &job->err);
}

static void run_detokenize(struct job *job) {
    struct json_span array;
    struct prompt_list list = {0};
    struct tokenize_reading q = {0};
    const struct token_list none = {0};
    json_t *root = load_body(job, "tokens", &array);
    if (!root) return;
    job->rc = read_members(job, &id_table, root, &q);
    if (!job->rc) job->rc = read_ids(job, &array, &list);
    if (!job->rc) {
        job->rc = detokenize_ids((struct tokenize_job *)job, list.n ? &list.items[0].tokens : &none,
                                 q.skip_special);
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
