/* models.c - GET /v1/models and /v1/models/{id}: the model that is served, under each of its names.
 * The shape is OpenAI's, or Anthropic's if the request has the header anthropic-version. */
#include "server/api/handlers.h"

#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "server/api/reply.h"
#include "server/api/server.h"
#include "server/http/http.h"
#include "server/json/api_error.h"
#include "server/json/buffer.h"
#include "server/settings/model_names.h"

/* Tells whether a client of Anthropic asks: it always says which version of that API it speaks. */
static bool is_of_anthropic(const struct http_exchange *exchange) {
    return http_header(exchange, "anthropic-version") != NULL;
}

static void write_name(const char *name, struct buffer *out) {
    buffer_json_string(out, name, strlen(name));
}

/* Writes the members of Anthropic's API. */
static void write_theirs(const struct server *server, const char *name, struct buffer *out) {
    const time_t created = (time_t)server->created;
    char when[32];
    struct tm utc;
    strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&created, &utc));
    buffer_puts(out, "\"type\":\"model\",\"display_name\":");
    write_name(name, out);
    buffer_printf(out, ",\"created_at\":\"%s\",\"max_input_tokens\":%u,\"max_tokens\":%u,", when,
                  server->info->max_model_len, server->info->max_model_len);
}

/* Writes the model under one of its names, in the shape of either API, with quire's own members. */
static void write_model(const struct server *server, const char *name, bool theirs,
                        struct buffer *out) {
    buffer_puts(out, "{\"id\":");
    write_name(name, out);
    buffer_puts(out, ",");
    if (theirs) write_theirs(server, name, out);
    else
        buffer_printf(out, "\"object\":\"model\",\"created\":%lld,\"owned_by\":\"quire\",",
                      (long long)server->created);
    buffer_printf(out, "\"max_model_len\":%u,", server->info->max_model_len);
    kv_rules_write(&server->limits.kv, out);
    buffer_puts(out, ",");
    prefill_rules_write(&server->limits.prefill, out);
    buffer_puts(out, "}");
}

void models_list(struct server *server, struct http_exchange *exchange) {
    const bool theirs = is_of_anthropic(exchange);
    const struct model_names *models = server->limits.models;
    struct buffer body = {0};
    buffer_puts(&body, theirs ? "{\"data\":[" : "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < models->n; i++) {
        if (i > 0) buffer_puts(&body, ",");
        write_model(server, models->names[i], theirs, &body);
    }
    buffer_puts(&body, "]");
    if (theirs) {
        buffer_puts(&body, ",\"has_more\":false,\"first_id\":");
        write_name(models->names[0], &body);
        buffer_puts(&body, ",\"last_id\":");
        write_name(models->names[models->n - 1], &body);
    }
    buffer_puts(&body, "}");
    reply_json(server, exchange, 200, &body);
}

void models_show(struct server *server, struct http_exchange *exchange) {
    const char *id = http_path(exchange) + strlen("/v1/models/");
    const char *name = model_names_find(server->limits.models, id);
    const bool theirs = is_of_anthropic(exchange);
    if (!name) {
        struct api_error err;
        api_error_set(&err, 404, "model_not_found", "model", "the model '%.200s' does not exist",
                      id);
        reply_error_as(server, exchange, &err, theirs ? messages_write_error : NULL);
        return;
    }
    struct buffer body = {0};
    write_model(server, name, theirs, &body);
    reply_json(server, exchange, 200, &body);
}
