/* fake_http.c - see fake_http.h. */
#include "tests/server/fake_http.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void fake_http_leave(struct http_exchange *exchange) {
    assert(!exchange->completed && !exchange->gone);
    exchange->gone = true;
    if (exchange->on_gone) exchange->on_gone(exchange->user);
}

void fake_http_fini(struct http_exchange *exchange) {
    buffer_fini(&exchange->headers);
    buffer_fini(&exchange->out);
    free(exchange->content_type);
}

/* What the real transport asserts: nothing touches an exchange that is over. */
static void check_open(const struct http_exchange *exchange) {
    assert(!exchange->completed && !exchange->gone);
    (void)exchange;
}

const char *http_method(const struct http_exchange *exchange) {
    check_open(exchange);
    return exchange->method;
}

const char *http_path(const struct http_exchange *exchange) {
    check_open(exchange);
    return exchange->path;
}

const char *http_header(const struct http_exchange *exchange, const char *name) {
    check_open(exchange);
    if (strcmp(name, "x-api-key") == 0) return exchange->api_key;
    return strcmp(name, "Authorization") == 0 ? exchange->authorization : NULL;
}

const char *http_argument(const struct http_exchange *exchange, const char *name) {
    check_open(exchange);
    for (size_t i = 0; i < 4 && exchange->arguments[i][0]; i++)
        if (strcmp(exchange->arguments[i][0], name) == 0) return exchange->arguments[i][1];
    return NULL;
}

const char *http_host(const struct http_exchange *exchange) {
    return http_header(exchange, "Host");
}

bool http_body_is_encoded(const struct http_exchange *exchange) {
    check_open(exchange);
    return false;
}

const char *http_body(const struct http_exchange *exchange, size_t *length) {
    check_open(exchange);
    if (length) *length = exchange->body ? strlen(exchange->body) : 0;
    return exchange->body ? exchange->body : "";
}

struct http_held_body http_hold_body(struct http_exchange *exchange) {
    assert(exchange->gone && !exchange->kept);
    exchange->kept = true;
    return (struct http_held_body){0}; /* the test's own text lives on */
}

void http_free_body(struct http_held_body *body) {
    free(body->data);
    *body = (struct http_held_body){0};
}

const char *http_request_id(const struct http_exchange *exchange) {
    check_open(exchange);
    return "the-id";
}

void http_set_header(struct http_exchange *exchange, const char *name, const char *value) {
    check_open(exchange);
    assert(!exchange->begun);
    buffer_printf(&exchange->headers, "%s: %s\n", name, value);
}

void http_on_gone(struct http_exchange *exchange, http_gone on_gone, void *user) {
    check_open(exchange);
    exchange->on_gone = on_gone;
    exchange->user = user;
}

static void begin(struct http_exchange *exchange, unsigned status, const char *content_type) {
    check_open(exchange);
    assert(!exchange->begun);
    exchange->begun = true;
    exchange->status = status;
    exchange->content_type = strdup(content_type);
}

void http_reply(struct http_exchange *exchange, unsigned status, const char *content_type,
                const void *body, size_t length) {
    begin(exchange, status, content_type);
    buffer_append(&exchange->out, body, length);
    exchange->completed = true;
}

void http_stream_begin(struct http_exchange *exchange, unsigned status, const char *content_type) {
    begin(exchange, status, content_type);
}

void http_stream_write(struct http_exchange *exchange, const void *data, size_t length) {
    check_open(exchange);
    assert(exchange->begun);
    buffer_append(&exchange->out, data, length);
}

void http_stream_end(struct http_exchange *exchange) {
    check_open(exchange);
    assert(exchange->begun);
    exchange->completed = true;
}
