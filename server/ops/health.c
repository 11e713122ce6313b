/* health.c - see health.h. */
#include "server/ops/health.h"

#include "engine/base/error.h"
#include "engine/engine.h"
#include "server/api/handlers.h"
#include "server/api/reply.h"
#include "server/api/server.h"
#include "server/json/api_error.h"
#include "server/json/buffer.h"
#include "server/ops/metrics.h"
#include "server/replicas/replicas.h"
#include "server/settings/build_info.h"

/* A large model takes minutes; a client that waits must not ask much oftener than this. */
enum { LOADING_RETRY_S = 2 };

static void reply_ok(struct server *server, struct http_exchange *exchange) {
    struct buffer body = {0};
    buffer_puts(&body, "{\"status\":\"ok\"}");
    reply_polled(server, exchange, "application/json", &body);
}

int health_refuse_loading(struct api_error *err) {
    api_error_set(err, 503, "loading", NULL, "the model is being loaded: try again in %d s",
                  LOADING_RETRY_S);
    err->retry_s = LOADING_RETRY_S;
    return ERR_INVALID;
}

static void reply_unavailable(struct server *server, struct http_exchange *exchange,
                              const char *code, const char *why) {
    struct api_error err;
    api_error_set(&err, 503, code, NULL, "%s", why);
    reply_error(server, exchange, &err);
}

/* Tells whether all steps end within --step-timeout: a hung device ends none. */
bool health_is_live(const struct server *server) {
    return !server->replicas || !replicas_are_stuck(server->replicas);
}

/* Refuses where only a new process helps.  A failed engine ends the process by itself, and a
 * draining server is alive. */
void health_live(struct server *server, struct http_exchange *exchange) {
    if (!health_is_live(server))
        reply_unavailable(server, exchange, "engine_stuck",
                          "a step has taken longer than --step-timeout");
    else reply_ok(server, exchange);
}

void health_health(struct server *server, struct http_exchange *exchange) {
    struct api_error err;
    if (!server->replicas) {
        health_refuse_loading(&err);
        reply_error(server, exchange, &err);
    } else if (replicas_n_healthy(server->replicas) == 0) {
        reply_unavailable(server, exchange, "engine_failed", "the engine has failed");
    } else {
        health_live(server, exchange);
    }
}

void health_ready(struct server *server, struct http_exchange *exchange) {
    if (server->draining) {
        reply_unavailable(server, exchange, "shutting_down", "the server is shutting down");
    } else {
        health_health(server, exchange);
    }
}

void health_version(struct server *server, struct http_exchange *exchange) {
    struct buffer body = {0};
    buffer_printf(&body, "{\"version\":\"%s\",\"commit\":\"%s\",\"backends\":{", build_info.version,
                  build_info.commit);
    for (const struct build_backend *backend = build_info.backends; backend->name; backend++) {
        buffer_printf(&body, "%s\"%s\":[", backend == build_info.backends ? "" : ",",
                      backend->name);
        for (size_t i = 0; backend->kernels[i]; i++)
            buffer_printf(&body, "%s\"%s\"", i ? "," : "", backend->kernels[i]);
        buffer_puts(&body, "]");
    }
    buffer_puts(&body, "}}");
    reply_json(server, exchange, 200, &body);
}

void health_metrics(struct server *server, struct http_exchange *exchange) {
    struct engine_stats stats;
    struct buffer body = {0};
    if (server->replicas) replicas_stats(server->replicas, &stats);
    metrics_write(server, server->replicas ? &stats : NULL, &body);
    reply_polled(server, exchange, "text/plain; version=0.0.4; charset=utf-8", &body);
}
