/* reply.c - see reply.h. */
#include "server/api/reply.h"

#include <stdio.h>
#include <string.h>

#include "server/api/server.h"
#include "server/http/http.h"
#include "server/json/buffer.h"
#include "server/settings/log.h"

/* Limits for what the client chose in a log line. */
enum { METHOD_BYTES = 32, PATH_BYTES = 256 };

static void note(struct server *server, enum log_level level, const char *request_id,
                 const char *method, const char *path, unsigned status, double seconds,
                 const char *more) {
    char quoted_method[METHOD_BYTES], quoted_path[PATH_BYTES];
    log_quote(quoted_method, sizeof(quoted_method), method);
    log_quote(quoted_path, sizeof(quoted_path), path);
    const char *counted = method,
               *route = server->route_of ? server->route_of(path, &counted) : NULL;
    counters_count_answer(&server->counters, route, counted, status, seconds);
    if (seconds < 0) {
        log_event(level, "request id=%s method=%s path=%s status=%u", request_id, quoted_method,
                  quoted_path, status);
    } else {
        log_event(level, "request id=%s method=%s path=%s status=%u ms=%.0f%s", request_id,
                  quoted_method, quoted_path, status, 1e3 * seconds, more);
    }
}

void reply_note(struct server *server, const char *request_id, const char *method, const char *path,
                unsigned status, double seconds, const char *more) {
    note(server, LOG_INFO, request_id, method, path, status, seconds, more);
}

static void reply(struct server *server, struct http_exchange *exchange, enum log_level level,
                  unsigned status, const char *content_type, struct buffer *body) {
    static const char no_memory[] = REPLY_NO_MEMORY;
    if (body->failed) {
        buffer_fini(body);
        status = 500;
        level = LOG_INFO;
        content_type = "application/json";
    }
    note(server, level, http_request_id(exchange), http_method(exchange), http_path(exchange),
         status, -1, "");
    if (body->data) {
        http_reply(exchange, status, content_type, body->data, body->length);
    } else {
        http_reply(exchange, status, content_type, status == 500 ? no_memory : "",
                   status == 500 ? strlen(no_memory) : 0);
    }
    buffer_fini(body);
}

void reply_text(struct server *server, struct http_exchange *exchange, unsigned status,
                const char *content_type, struct buffer *body) {
    reply(server, exchange, LOG_INFO, status, content_type, body);
}

void reply_polled(struct server *server, struct http_exchange *exchange, const char *content_type,
                  struct buffer *body) {
    reply(server, exchange, LOG_DEBUG, 200, content_type, body);
}

void reply_json(struct server *server, struct http_exchange *exchange, unsigned status,
                struct buffer *body) {
    reply_text(server, exchange, status, "application/json", body);
}

void reply_error_as(struct server *server, struct http_exchange *exchange,
                    const struct api_error *err, api_error_writer write) {
    struct buffer body = {0};
    (write ? write : api_error_write)(err, &body);
    if (err->status == 429 || err->retry_s) {
        char seconds[16];
        snprintf(seconds, sizeof(seconds), "%u", err->retry_s ? err->retry_s : 1);
        http_set_header(exchange, "Retry-After", seconds);
    }
    if (err->status == 401) http_set_header(exchange, "WWW-Authenticate", "Bearer");
    reply_json(server, exchange, err->status, &body);
}

void reply_error(struct server *server, struct http_exchange *exchange,
                 const struct api_error *err) {
    reply_error_as(server, exchange, err, NULL);
}
