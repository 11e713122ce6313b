/* exchange.c - one request: its checks, its body, its answer.
 *
 * libmicrohttpd calls exchange_started with the request line, then exchange_access with the head,
 * with each piece of the body, with its end and once more after every resume; at last
 * exchange_completed.
 *
 * What it lets through and we refuse, because two readers of the same bytes could disagree about
 * where the request ends: repeated or mixed Content-Length and Transfer-Encoding, codings other
 * than chunked, header names that are not tokens, a NUL in the path.
 *
 * Thread: loop.  Memory: the exchange, freed on completion. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "server/http_internal.h"

/* What the head says, gathered in one pass. */
struct head {
    unsigned n_host, n_content_length, n_transfer_encoding;
    const char *content_length, *transfer_encoding, *request_id;
    bool bad_name;
};

static const char ALNUM[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

void *exchange_started(void *cls, const char *uri, struct MHD_Connection *mhd) {
    (void)cls;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct http_conn *conn = info->socket_context;
    struct http_exchange *exchange = calloc(1, sizeof(*exchange));
    if (!exchange) return NULL; /* exchange_access finds no context and hangs up */
    exchange->conn = conn;
    exchange->bad_target = !uri || strstr(uri, "%00");
    conn->exchange = exchange;
    conn_expect_request(conn, conn->http->config.request_timeout_ms);
    return exchange;
}

void exchange_finish(struct http_exchange *exchange) {
    struct http_conn *conn = exchange->conn;
    conn->exchange = NULL;
    conn_unwatch(conn);
    conn_expect_request(conn, conn->http->config.idle_timeout_ms);
    if (exchange->handed) conn->http->n_open--;
    if (exchange->handed && !exchange->answered && exchange->on_gone)
        exchange->on_gone(exchange->user);
    if (exchange->response) MHD_destroy_response(exchange->response);
    for (struct header_line *line = exchange->headers, *next; line; line = next) {
        next = line->next;
        free(line);
    }
    stream_queue_fini(&exchange->queue);
    free(exchange->body);
    free(exchange);
}

void exchange_completed(void *cls, struct MHD_Connection *mhd, void **context,
                        enum MHD_RequestTerminationCode why) {
    (void)cls;
    (void)mhd;
    struct http_exchange *exchange = *context;
    if (!exchange) return;
    /* It refused a head or a body by itself; there may be more of it to read. */
    if (why == MHD_REQUEST_TERMINATED_WITH_ERROR && exchange->state <= EXCHANGE_BODY) {
        exchange->conn->linger = true;
    }
    exchange_finish(exchange);
    *context = NULL;
}

void exchange_suspend(struct http_exchange *exchange) {
    assert(!exchange->suspended);
    exchange->suspended = true;
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

static enum MHD_Result read_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                   const char *value) {
    (void)kind;
    struct head *head = cls;
    static const char token_marks[] = "!#$%&'*+-.^_`|~";
    const size_t length = strlen(name);
    size_t n = 0;
    while (n < length && (strchr(ALNUM, name[n]) || strchr(token_marks, name[n]))) n++;
    if (length == 0 || n < length) head->bad_name = true;

    if (strcasecmp(name, "host") == 0) {
        head->n_host++;
    } else if (strcasecmp(name, "content-length") == 0) {
        head->n_content_length++;
        head->content_length = value ? value : "";
    } else if (strcasecmp(name, "transfer-encoding") == 0) {
        head->n_transfer_encoding++;
        head->transfer_encoding = value ? value : "";
    } else if (strcasecmp(name, "x-request-id") == 0) {
        head->request_id = value;
    }
    return MHD_YES;
}

static bool parse_length(const char *text, uint64_t *out) {
    if (!*text || text[strspn(text, "0123456789")] || strlen(text) > 18) return false;
    *out = strtoull(text, NULL, 10);
    return true;
}

/* NULL: legal.  Otherwise what to tell the client, with *status. */
static const char *head_fault(struct http_exchange *exchange, const struct head *head,
                              const char *version, unsigned *status) {
    const bool http_1_0 = strcmp(version, "HTTP/1.0") == 0;
    *status = MHD_HTTP_BAD_REQUEST;
    if (exchange->bad_target) return "the request target is not valid";
    if (head->bad_name) return "a header name is not valid";
    if (head->n_host > 1 || (head->n_host == 0 && !http_1_0))
        return "exactly one Host header is required";
    if (head->n_content_length > 1) return "Content-Length is repeated";
    if (head->n_transfer_encoding > 1) return "Transfer-Encoding is repeated";
    if (head->n_transfer_encoding && head->n_content_length) {
        return "Content-Length and Transfer-Encoding exclude each other";
    }
    if (head->n_transfer_encoding &&
        (http_1_0 || strcasecmp(head->transfer_encoding, "chunked") != 0)) {
        return "this Transfer-Encoding is not supported";
    }
    if (head->n_content_length && !parse_length(head->content_length, &exchange->body_declared)) {
        return "Content-Length is not a number";
    }
    if (exchange->body_declared > exchange->conn->http->config.max_body_bytes) {
        *status = MHD_HTTP_CONTENT_TOO_LARGE;
        return "the request body is too large";
    }
    return NULL;
}

static enum MHD_Result refuse(struct http_exchange *exchange, unsigned status,
                              const char *message) {
    char body[512];
    refuse_body(status, message, body, sizeof(body));
    struct MHD_Response *response =
        MHD_create_response_from_buffer(strlen(body), body, MHD_RESPMEM_MUST_COPY);
    exchange->state = EXCHANGE_REFUSED;
    exchange->conn->linger = true;
    refuse_note(exchange->conn->http, exchange->id, status, message);
    exchange_answer(exchange, response, status, "application/json");
    if (!exchange->response) return MHD_NO;
    /* Queued before the body was read, so libmicrohttpd closes the connection behind it. */
    return MHD_queue_response(exchange->conn->mhd, status, exchange->response);
}

static enum MHD_Result queue_answer(struct http_exchange *exchange) {
    const enum MHD_Result queued =
        MHD_queue_response(exchange->conn->mhd, exchange->status, exchange->response);
    MHD_destroy_response(exchange->response);
    exchange->response = NULL;
    return queued;
}

/* Whether the request may go on; if not, its answer is ready. */
static bool admit(struct http_exchange *exchange) {
    const struct http_config *config = &exchange->conn->http->config;
    exchange->state = EXCHANGE_WAITING;
    if (config->admit && !config->admit(exchange, config->ctx)) return false;
    exchange->state = EXCHANGE_BODY;
    return true;
}

static enum MHD_Result read_head(struct http_exchange *exchange, const char *version) {
    struct head head = {0};
    MHD_get_connection_values(exchange->conn->mhd, MHD_HEADER_KIND, read_header, &head);
    if (head.request_id && exchange_id_valid(head.request_id)) {
        snprintf(exchange->id, sizeof(exchange->id), "%s", head.request_id);
    } else {
        exchange_id_make(exchange->id);
    }
    unsigned status;
    const char *fault = head_fault(exchange, &head, version, &status);
    if (fault) return refuse(exchange, status, fault);
    if (admit(exchange)) return MHD_YES;
    /* Its body stays unread, and libmicrohttpd closes the connection behind the answer. */
    exchange->conn->linger = exchange->body_declared > 0 || head.n_transfer_encoding > 0;
    return exchange->response ? queue_answer(exchange) : MHD_NO;
}

bool exchange_id_valid(const char *id) {
    const size_t length = strlen(id);
    size_t n = 0;
    while (n < length && (strchr(ALNUM, id[n]) || strchr("._-", id[n]))) n++;
    return length > 0 && length <= HTTP_ID_MAX && n == length;
}

void exchange_id_make(char id[HTTP_ID_MAX + 1]) {
    uint64_t bits[2] = {0};
    (void)!getrandom(bits, sizeof(bits), 0); /* 16 bytes are never cut short */
    snprintf(id, HTTP_ID_MAX + 1, "%016llx%016llx", (unsigned long long)bits[0],
             (unsigned long long)bits[1]);
}

/* ---- the body ---- */

static bool body_reserve(struct http_exchange *exchange, size_t length) {
    /* Grown as bytes arrive: a declared length alone allocates nothing. */
    const size_t needed = exchange->body_length + length + 1;
    if (needed <= exchange->body_capacity) return true;
    size_t capacity = exchange->body_capacity * 2;
    if (capacity < 4096) capacity = 4096;
    if (capacity < needed) capacity = needed;
    if (exchange->body_declared && capacity > exchange->body_declared + 1) {
        capacity = (size_t)exchange->body_declared + 1;
    }
    char *body = realloc(exchange->body, capacity);
    if (!body) return false;
    exchange->body = body;
    exchange->body_capacity = capacity;
    return true;
}

static enum MHD_Result read_body(struct http_exchange *exchange, const char *data,
                                 size_t *data_length) {
    struct http_conn *conn = exchange->conn;
    const size_t length = *data_length;
    if (length > conn->http->config.max_body_bytes - exchange->body_length) {
        refuse_raw(conn->http, conn->fd, exchange->id, MHD_HTTP_CONTENT_TOO_LARGE,
                   "the request body is too large");
        conn->linger = true;
        return MHD_NO;
    }
    if (!body_reserve(exchange, length)) {
        refuse_raw(conn->http, conn->fd, exchange->id, MHD_HTTP_SERVICE_UNAVAILABLE,
                   "there is no memory for the request body");
        conn->linger = true;
        return MHD_NO;
    }
    memcpy(exchange->body + exchange->body_length, data, length);
    exchange->body_length += length;
    exchange->body[exchange->body_length] = '\0';
    *data_length = 0;
    return MHD_YES;
}

/* ---- the answer ---- */

static enum MHD_Result hand_over(struct http_exchange *exchange) {
    const struct http_config *config = &exchange->conn->http->config;
    exchange->state = EXCHANGE_WAITING;
    exchange->handed = true;
    exchange->conn->http->n_open++;
    config->handler(exchange, config->ctx);
    if (exchange->conn->killed) return MHD_NO;
    if (exchange->response) return queue_answer(exchange);
    exchange_suspend(exchange);
    return MHD_YES;
}

enum MHD_Result exchange_access(void *cls, struct MHD_Connection *mhd, const char *url,
                                const char *method, const char *version, const char *data,
                                size_t *data_length, void **context) {
    (void)cls;
    (void)mhd;
    struct http_exchange *exchange = *context;
    if (!exchange || exchange->conn->killed) return MHD_NO;
    if (exchange->state == EXCHANGE_HEAD) {
        exchange->method = method;
        exchange->path = url;
        return read_head(exchange, version);
    }
    if (exchange->state == EXCHANGE_BODY) {
        return *data_length ? read_body(exchange, data, data_length) : hand_over(exchange);
    }
    if (!exchange->response) return MHD_NO;
    return queue_answer(exchange);
}

static bool add_header(struct MHD_Response *response, const char *name, const char *value) {
    return MHD_add_response_header(response, name, value) == MHD_YES;
}

void exchange_answer(struct http_exchange *exchange, struct MHD_Response *response, unsigned status,
                     const char *content_type) {
    conn_output_started(exchange->conn); /* before the next check looks at the reader */
    if (!response) {
        conn_kill(exchange->conn, true);
        return;
    }
    bool ok = add_header(response, "X-Request-Id", exchange->id);
    if (content_type) ok = ok && add_header(response, "Content-Type", content_type);
    for (const struct header_line *line = exchange->headers; line; line = line->next) {
        ok = ok && add_header(response, line->name, line->value);
    }
    /* Draining: the client's next request should find another server. */
    if (exchange->conn->http->listen_fd < 0) ok = ok && add_header(response, "Connection", "close");
    assert(ok); /* a header that is not one is the handler's mistake */
    exchange->response = response;
    exchange->status = status;
    exchange_resume(exchange);
}

void http_reply(struct http_exchange *exchange, unsigned status, const char *content_type,
                const void *body, size_t length) {
    assert(exchange->state == EXCHANGE_WAITING);
    exchange->state = EXCHANGE_REPLYING;
    exchange->answered = true;
    /* libmicrohttpd does not write through the pointer: it copies. */
    struct MHD_Response *response =
        MHD_create_response_from_buffer(length, (void *)(uintptr_t)body, MHD_RESPMEM_MUST_COPY);
    exchange_answer(exchange, response, status, content_type);
}

void http_set_header(struct http_exchange *exchange, const char *name, const char *value) {
    assert(exchange->state == EXCHANGE_WAITING);
    const size_t name_size = strlen(name) + 1, value_size = strlen(value) + 1;
    struct header_line *line = malloc(sizeof(*line) + name_size + value_size);
    if (!line) {
        conn_kill(exchange->conn,
                  true); /* an answer without its headers would be a different answer */
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

const char *http_body(const struct http_exchange *exchange, size_t *length) {
    if (length) *length = exchange->body_length;
    return exchange->body ? exchange->body : "";
}

const char *http_request_id(const struct http_exchange *exchange) {
    return exchange->id;
}
