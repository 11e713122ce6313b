/* models.c - see models.h. */
#include "server/ops/models.h"

#include <string.h>

#include "server/api/reply.h"
#include "server/api/server.h"
#include "server/http/http.h"
#include "server/json/api_error.h"
#include "server/json/buffer.h"

static void write_model(const struct server *server, struct buffer *out) {
    buffer_puts(out, "{\"id\":");
    buffer_json_string(out, server->model_name, strlen(server->model_name));
    buffer_printf(
        out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"quire\",\"max_model_len\":%u,",
        (long long)server->created, server->info->max_model_len);
    kv_rules_write(&server->limits.kv, out);
    buffer_puts(out, ",");
    prefill_rules_write(&server->limits.prefill, out);
    buffer_puts(out, "}");
}

void models_list(struct server *server, struct http_exchange *exchange) {
    struct buffer body = {0};
    buffer_puts(&body, "{\"object\":\"list\",\"data\":[");
    write_model(server, &body);
    buffer_puts(&body, "]}");
    reply_json(server, exchange, 200, &body);
}

void models_show(struct server *server, struct http_exchange *exchange) {
    const char *id = http_path(exchange) + strlen("/v1/models/");
    if (strcmp(id, server->model_name) != 0) {
        struct api_error err;
        api_error_set(&err, 404, "model_not_found", "model", "the model '%.200s' does not exist",
                      id);
        reply_error(server, exchange, &err);
        return;
    }
    struct buffer body = {0};
    write_model(server, &body);
    reply_json(server, exchange, 200, &body);
}
