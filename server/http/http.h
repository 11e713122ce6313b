/* http.h - the HTTP transport: one libuv loop drives libmicrohttpd; handlers see whole requests.
 *
 * A handler runs once a request has arrived complete and legal.  It answers once, now or later:
 * http_reply(), or http_stream_begin() + http_stream_write()* + http_stream_end().  Until then the
 * connection is suspended and the transport watches the client.  When the client leaves, on_gone is
 * called (at most once, and never after the answer was completed).  A client that closes its side
 * just after its request may not have left (watch.c).  After on_gone, or after completing the
 * answer, the exchange must not be touched.
 *
 * Thread: loop, all of it.  Memory: the transport owns the exchange; bodies given to
 * http_reply/http_stream_write are copied. */
#ifndef SERVER_HTTP_HTTP_H
#define SERVER_HTTP_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct error;
struct http;
struct http_exchange;

/* A body that has outlived its exchange. */
struct http_held_body {
    char *data;
    size_t capacity;
    bool mapped; /* in its own pages */
};

typedef void (*http_handler)(struct http_exchange *exchange, void *ctx);
typedef bool (*http_admit)(struct http_exchange *exchange, void *ctx);
typedef void (*http_gone)(void *user);
typedef void (*http_refused)(void *ctx, const char *request_id, unsigned status, const char *why);

struct http_config {
    const char *host;
    uint16_t port; /* 0: any free one, see http_port() */
    int feed; /* connections come from there (feed.h), and from no host and port; 0: they do not */
    const char *certificate_file, *key_file; /* PEM, for TLS; both NULL: plain HTTP */
    size_t max_body_bytes;                   /* a longer body is answered 413 */
    size_t max_buffered_bytes;               /* of all bodies in memory; more is answered 503 */
    uint32_t max_connections;
    uint32_t request_timeout_ms; /* to receive one whole request; then 408 or close */
    uint32_t idle_timeout_ms;    /* for keep-alive connections without a request */
    size_t max_stream_backlog;   /* bytes a reader may lag behind before it is dropped (on_gone) */
    uint32_t stream_stall_timeout_ms; /* a reader that takes nothing for this long is dropped */
    /* Called once the head has arrived, before the body is read.  Returns true, or false after
     * http_reply().  May be NULL. */
    http_admit admit;
    http_handler handler; /* called for every legal request that was admitted */
    http_refused refused; /* told of answers by the transport itself; may be NULL */
    void *ctx;
};

/* Creates the transport, which listens at once; the loop is borrowed and runs it. */
int http_create(struct http **out, uv_loop_t *loop, const struct http_config *config,
                struct error *err);
uint16_t http_port(const struct http *http);
/* Reads the files for TLS again; connections from now on use them.  On failure the former ones stay
 * in use. */
int http_reload_certificate(struct http *http, struct error *err);
bool http_is_loopback(const struct http *http); /* only this machine reaches it */
void http_stop_accepting(struct http *http);
uint32_t http_n_open(const struct http *http);   /* exchanges whose answer is not complete */
size_t http_body_bytes(const struct http *http); /* memory of request bodies */
/* Closes every connection and handle; done is called from the loop when nothing is left. */
void http_close(struct http *http, void (*done)(void *), void *ctx);

const char *http_method(const struct http_exchange *exchange);
/* Returns the path: decoded, without query, and without slashes that name nothing (target.h). */
const char *http_path(const struct http_exchange *exchange);
/* Returns the host that the request names: the target's, else the header's; NULL: none. */
const char *http_host(const struct http_exchange *exchange);
const char *http_header(const struct http_exchange *exchange, const char *name); /* NULL: absent */
/* Returns an argument of the query, decoded; NULL: absent, or without a value. */
const char *http_argument(const struct http_exchange *exchange, const char *name);
/* Returns whether Content-Encoding says that the body is compressed. */
bool http_body_is_encoded(const struct http_exchange *exchange);
/* Returns the body; a NUL follows it.  It is valid until completion, or as long as it is kept. */
const char *http_body(const struct http_exchange *exchange, size_t *length);
/* Lets the body outlive the exchange, which ends: called by on_gone.  It does not move, and counts
 * no longer among the bodies that are bounded.  The caller owns it and must http_free_body() it. */
struct http_held_body http_hold_body(struct http_exchange *exchange);
void http_free_body(struct http_held_body *body); /* zeroed: allowed */
/* Returns the client's X-Request-Id if it is valid, else a generated one. */
const char *http_request_id(const struct http_exchange *exchange);

/* Adds a response header; call it before the answer begins. */
void http_set_header(struct http_exchange *exchange, const char *name, const char *value);
void http_on_gone(struct http_exchange *exchange, http_gone on_gone, void *user);

void http_reply(struct http_exchange *exchange, unsigned status, const char *content_type,
                const void *body, size_t length);
void http_stream_begin(struct http_exchange *exchange, unsigned status, const char *content_type);
/* Adds to the stream.  It may cause on_gone later, but never calls it inside. */
void http_stream_write(struct http_exchange *exchange, const void *data, size_t length);
void http_stream_end(struct http_exchange *exchange);

#endif
