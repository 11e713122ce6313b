/* exchange.c - one request: its admission, its body, its answer.
 *
 * libmicrohttpd calls exchange_started with the request line.  Then it calls exchange_access with
 * the head, with each part of the body, with its end and once more after every resume; at last
 * exchange_completed.
 *
 * The bytes behind these calls were scanned before (wire.c): the head is legal, and the request
 * ends where the scanner says.  At the end of the head and of the body we still check that both
 * have read the same.
 *
 * Thread: loop.  Memory: the exchange, freed on completion. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/error.h"
#include "server/http/http_internal.h"

static const char NO_ROOM[] = "too many request bodies are in progress: try again later";
static const char ALNUM[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

void *exchange_started(void *cls, const char *uri, struct MHD_Connection *mhd) {
    (void)cls;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct http_conn *conn = info->socket_context;
    /* Without a context exchange_access closes the connection: when there is no memory, and when
     * libmicrohttpd has read a line that the scanner has not. */
    struct http_exchange *exchange =
        conn->framing.state >= FRAMING_FIELD_START ? calloc(1, sizeof(*exchange)) : NULL;
    if (exchange && target_read_host(&exchange->target, uri)) {
        free(exchange);
        exchange = NULL;
    }
    if (!exchange) return NULL;
    exchange->conn = conn;
    conn->exchange = exchange;
    return exchange;
}

void exchange_finish(struct http_exchange *exchange) {
    struct http_conn *conn = exchange->conn;
    conn->exchange = NULL;
    conn_unwatch(conn);
    conn_request_over(conn);
    if (exchange->handed) conn->http->n_open--;
    if (exchange->handed && !exchange->answered && exchange->on_gone)
        exchange->on_gone(exchange->user);
    if (exchange->response) MHD_destroy_response(exchange->response);
    for (struct header_line *line = exchange->headers, *next; line; line = next) {
        next = line->next;
        free(line);
    }
    stream_queue_fini(&exchange->queue);
    body_fini(conn, &exchange->body);
    target_fini(&exchange->target);
    free(exchange);
}

void exchange_completed(void *cls, struct MHD_Connection *mhd, void **context,
                        enum MHD_RequestTerminationCode why) {
    (void)cls;
    (void)mhd;
    (void)why;
    struct http_exchange *exchange = *context;
    if (!exchange) return;
    exchange_finish(exchange);
    *context = NULL;
}

void exchange_suspend(struct http_exchange *exchange) {
    assert(!exchange->suspended);
    exchange->suspended = true;
    exchange->rearmed = true;
    MHD_suspend_connection(exchange->conn->mhd);
    conn_watch(exchange->conn);
}

void exchange_resume(struct http_exchange *exchange) {
    if (!exchange->suspended) return;
    exchange->suspended = false;
    MHD_resume_connection(exchange->conn->mhd);
    http_kick(exchange->conn->http);
}

/* ---- the head ---- */

/* Checks the complete head: the scanner and libmicrohttpd must have found the same number of
 * fields. */
static bool head_agrees(const struct http_exchange *exchange) {
    const struct http_conn *conn = exchange->conn;
    return (conn->framing.state >= FRAMING_BODY || conn->framing.trailer) &&
           MHD_get_connection_values(conn->mhd, MHD_HEADER_KIND, NULL, NULL) ==
               (int)conn->framing.n_fields;
}

static bool body_agrees(const struct http_exchange *exchange) {
    const struct framing *framing = &exchange->conn->framing;
    return framing->state == FRAMING_WHOLE && exchange->body.length == framing->body;
}

/* Ends the connection with a refusal while libmicrohttpd reads from it. */
static enum MHD_Result refuse(struct http_exchange *exchange, unsigned status,
                              const char *message) {
    conn_refuse(exchange->conn, status, message);
    return MHD_NO;
}

static enum MHD_Result queue_answer(struct http_exchange *exchange) {
    const enum MHD_Result queued =
        MHD_queue_response(exchange->conn->mhd, exchange->status, exchange->response);
    MHD_destroy_response(exchange->response);
    exchange->response = NULL;
    return queued;
}

/* Queues the answer to a whole request.  What the client sent behind it, bytes or the end, is still
 * in the kernel, and an edge-triggered epoll has already reported it.  A resumed connection enters
 * libmicrohttpd's epoll set anew, which reports again.  So when there is more to read, an answer
 * that was ready at once also suspends and resumes the connection. */
static enum MHD_Result answer_whole(struct http_exchange *exchange) {
    if (!exchange->rearmed && wire_has_more(exchange->conn)) {
        exchange->rearmed = true;
        MHD_suspend_connection(exchange->conn->mhd);
        MHD_resume_connection(exchange->conn->mhd);
        http_kick(exchange->conn->http);
        return MHD_YES;
    }
    return queue_answer(exchange);
}

/* Returns whether the request may continue; if not, its answer is ready. */
static bool admit(struct http_exchange *exchange) {
    const struct http_config *config = &exchange->conn->http->config;
    exchange->state = EXCHANGE_WAITING;
    if (config->admit && !config->admit(exchange, config->ctx)) return false;
    exchange->state = EXCHANGE_BODY;
    return true;
}

static enum MHD_Result read_head(struct http_exchange *exchange) {
    struct http_conn *conn = exchange->conn;
    const struct framing *framing = &conn->framing;
    exchange_id_choose(framing->id, exchange->id);
    if (!head_agrees(exchange))
        return refuse(exchange, MHD_HTTP_BAD_REQUEST, "the request's headers are not valid");
    if (exchange->target.invalid)
        return refuse(exchange, MHD_HTTP_BAD_REQUEST, "the request target is not valid");
    if (!exchange->path)
        return refuse(exchange, MHD_HTTP_SERVICE_UNAVAILABLE, "there is no memory for the request");
    if (admit(exchange)) {
        if (framing->has_coding || framing->body == 0 || body_fits(conn, framing->body))
            return MHD_YES;
        return refuse(exchange, MHD_HTTP_SERVICE_UNAVAILABLE, NO_ROOM);
    }
    if (!exchange->response) return MHD_NO;
    if (framing->state == FRAMING_WHOLE && framing->body == 0 && !framing->has_coding)
        return MHD_YES; /* queued at the next call: the connection stays open */
    /* The body stays unread, and libmicrohttpd closes the connection after the answer. */
    conn->linger = true;
    return queue_answer(exchange);
}

static bool id_valid(const char *id) {
    const size_t length = strlen(id);
    size_t n = 0;
    while (n < length && (strchr(ALNUM, id[n]) || strchr("._-", id[n]))) n++;
    return length > 0 && length <= HTTP_ID_MAX && n == length;
}

void exchange_id_choose(const char *sent, char id[HTTP_ID_MAX + 1]) {
    if (id_valid(sent)) snprintf(id, HTTP_ID_MAX + 1, "%s", sent);
    else exchange_id_make(id);
}

void exchange_id_make(char id[HTTP_ID_MAX + 1]) {
    uint64_t bits[2] = {0};
    (void)!getrandom(bits, sizeof(bits), 0); /* 16 bytes are never cut short */
    snprintf(id, HTTP_ID_MAX + 1, "%016llx%016llx", (unsigned long long)bits[0],
             (unsigned long long)bits[1]);
}

/* ---- the body ---- */

static enum MHD_Result read_body(struct http_exchange *exchange, const char *data,
                                 size_t *data_length) {
    const struct framing *framing = &exchange->conn->framing;
    const int rc = body_append(exchange->conn, &exchange->body, data, *data_length,
                               framing->has_coding ? 0 : framing->body);
    if (rc == ERR_FULL) return refuse(exchange, MHD_HTTP_SERVICE_UNAVAILABLE, NO_ROOM);
    if (rc)
        return refuse(exchange, MHD_HTTP_SERVICE_UNAVAILABLE,
                      "there is no memory for the request body");
    *data_length = 0;
    return MHD_YES;
}

/* ---- the answer ---- */

static enum MHD_Result hand_over(struct http_exchange *exchange) {
    const struct http_config *config = &exchange->conn->http->config;
    if (!body_agrees(exchange))
        return refuse(exchange, MHD_HTTP_BAD_REQUEST, "the request's length is not valid");
    exchange->state = EXCHANGE_WAITING;
    exchange->handed = true;
    exchange->conn->http->n_open++;
    config->handler(exchange, config->ctx);
    if (exchange->conn->killed) return MHD_NO;
    if (exchange->response) return answer_whole(exchange);
    exchange_suspend(exchange);
    return MHD_YES;
}

enum MHD_Result exchange_access(void *cls, struct MHD_Connection *mhd, const char *url,
                                const char *method, const char *version, const char *data,
                                size_t *data_length, void **context) {
    (void)cls;
    (void)mhd;
    (void)version;
    struct http_exchange *exchange = *context;
    if (!exchange || exchange->conn->killed) return MHD_NO;
    if (exchange->state == EXCHANGE_HEAD) {
        exchange->method = method;
        exchange->path = target_read_path(&exchange->target, url);
        return read_head(exchange);
    }
    if (exchange->state == EXCHANGE_BODY) {
        return *data_length ? read_body(exchange, data, data_length) : hand_over(exchange);
    }
    if (!exchange->response) return MHD_NO;
    return answer_whole(exchange);
}

static bool add_header(struct MHD_Response *response, const char *name, const char *value) {
    return MHD_add_response_header(response, name, value) == MHD_YES;
}

/* Adds the answer's headers; false without memory. */
static bool add_headers(const struct http_exchange *exchange, struct MHD_Response *response,
                        const char *content_type) {
    bool ok = add_header(response, "X-Request-Id", exchange->id);
    if (content_type) ok = ok && add_header(response, "Content-Type", content_type);
    for (const struct header_line *line = exchange->headers; line; line = line->next) {
        ok = ok && add_header(response, line->name, line->value);
    }
    /* While draining, the client's next request should find another server. */
    if (exchange->conn->http->n_listeners == 0)
        ok = ok && add_header(response, "Connection", "close");
    return ok;
}

void exchange_answer(struct http_exchange *exchange, struct MHD_Response *response, unsigned status,
                     const char *content_type) {
    struct http_conn *conn = exchange->conn;
    conn_output_started(conn); /* before the next check looks at the reader */
    if (conn->killed || !response || !add_headers(exchange, response, content_type)) {
        /* An answer without its headers would be a different answer. */
        if (response) MHD_destroy_response(response);
        if (conn->killed) return;
        conn_refuse(conn, MHD_HTTP_SERVICE_UNAVAILABLE, "there is no memory for the answer");
        exchange_resume(exchange);
        return;
    }
    exchange->response = response;
    exchange->status = status;
    conn->probe_at_ms = 0; /* the answer probes as well */
    exchange_resume(exchange);
}

void http_reply(struct http_exchange *exchange, unsigned status, const char *content_type,
                const void *body, size_t length) {
    assert(exchange->state == EXCHANGE_WAITING);
    exchange->state = EXCHANGE_REPLYING;
    exchange->answered = true;
    /* libmicrohttpd copies the body and does not write through the pointer. */
    struct MHD_Response *response =
        MHD_create_response_from_buffer(length, (void *)(uintptr_t)body, MHD_RESPMEM_MUST_COPY);
    exchange_answer(exchange, response, status, content_type);
}

void http_set_header(struct http_exchange *exchange, const char *name, const char *value) {
    assert(exchange->state == EXCHANGE_WAITING);
    assert(*name && !strpbrk(name, "\r\n: ") && *value && !strpbrk(value, "\r\n"));
    const size_t name_size = strlen(name) + 1, value_size = strlen(value) + 1;
    struct header_line *line = malloc(sizeof(*line) + name_size + value_size);
    if (!line) {
        conn_refuse(exchange->conn, MHD_HTTP_SERVICE_UNAVAILABLE,
                    "there is no memory for the answer");
        return;
    }
    line->name = memcpy(line + 1, name, name_size);
    line->value = memcpy(line->name + name_size, value, value_size);
    line->next = exchange->headers;
    exchange->headers = line;
}

void http_on_gone(struct http_exchange *exchange, http_gone on_gone, void *user) {
    exchange->on_gone = on_gone;
    exchange->user = user;
}

const char *http_method(const struct http_exchange *exchange) {
    return exchange->method;
}

const char *http_path(const struct http_exchange *exchange) {
    return exchange->path;
}

const char *http_header(const struct http_exchange *exchange, const char *name) {
    return MHD_lookup_connection_value(exchange->conn->mhd, MHD_HEADER_KIND, name);
}

const char *http_argument(const struct http_exchange *exchange, const char *name) {
    return MHD_lookup_connection_value(exchange->conn->mhd, MHD_GET_ARGUMENT_KIND, name);
}

const char *http_host(const struct http_exchange *exchange) {
    const char *host = exchange->target.host;
    return host ? host : http_header(exchange, "Host");
}

bool http_body_is_encoded(const struct http_exchange *exchange) {
    return exchange->conn->framing.encoded;
}

const char *http_body(const struct http_exchange *exchange, size_t *length) {
    if (length) *length = exchange->body.length;
    return exchange->body.data ? exchange->body.data : "";
}

struct http_held_body http_hold_body(struct http_exchange *exchange) {
    return body_hold(exchange->conn, &exchange->body);
}

const char *http_request_id(const struct http_exchange *exchange) {
    return exchange->id;
}
