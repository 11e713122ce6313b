/* http.h - the HTTP transport: one libuv loop drives libmicrohttpd; handlers see whole requests.
 *
 * A handler runs once a request has arrived complete and legal, and answers now or later, once:
 * http_reply(), or http_stream_begin() + http_stream_write()* + http_stream_end().  Until it has,
 * the connection is suspended and the transport watches the client: when it leaves, on_gone is
 * called (at most once, and never after the answer was completed).  A client that closes its side
 * just behind its request has perhaps not left (watch.c).  After on_gone, or after
 * completing the answer, the exchange must not be touched.
 *
 * Thread: loop, all of it.  Memory: the exchange is owned by the transport; bodies given to
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

typedef void (*http_handler)(struct http_exchange *exchange, void *ctx);
typedef bool (*http_admit)(struct http_exchange *exchange, void *ctx);
typedef void (*http_gone)(void *user);
typedef void (*http_refused)(void *ctx, const char *request_id, unsigned status, const char *why);

struct http_config {
    const char *host;
    uint16_t port;               /* 0: any free one, see http_port() */
    size_t max_body_bytes;       /* more is 413 */
    size_t max_buffered_bytes;   /* of all bodies that are kept; more is 503 */
    uint32_t max_connections;
    uint32_t request_timeout_ms; /* deadline to receive one whole request; 408 or close */
    uint32_t idle_timeout_ms;    /* keep-alive connections without a request */
    size_t max_stream_backlog;   /* bytes a reader may lag behind before it is dropped (on_gone) */
    uint32_t stream_stall_timeout_ms; /* a reader that takes nothing for this long is dropped */
    /* Asked once the head has arrived, before a body is taken: true, or false after http_reply().
     * May be NULL. */
    http_admit admit;
    http_handler handler;        /* every legal request that was admitted */
    http_refused refused;        /* of requests that the transport answers itself; may be NULL */
    void *ctx;
};

/* Listens at once; the loop is borrowed and runs the transport. */
int http_create(struct http **out, uv_loop_t *loop, const struct http_config *config,
                struct error *err);
uint16_t http_port(const struct http *http);
bool http_is_loopback(const struct http *http); /* nobody but this machine's programs reaches it */
void http_stop_accepting(struct http *http);
uint32_t http_n_open(const struct http *http); /* exchanges not yet answered completely */
size_t http_body_bytes(const struct http *http); /* kept of request bodies */
/* Closes every connection and handle; done is called from the loop when nothing is left. */
void http_close(struct http *http, void (*done)(void *), void *ctx);

const char *http_method(const struct http_exchange *exchange);
const char *http_path(const struct http_exchange *exchange);  /* decoded, without query */
const char *http_header(const struct http_exchange *exchange, const char *name); /* NULL: absent */
/* A NUL follows; valid until completed. */
const char *http_body(const struct http_exchange *exchange, size_t *length);
/* x-request-id, taken if sane or made. */
const char *http_request_id(const struct http_exchange *exchange);

/* Extra response headers, before the answer begins. */
void http_set_header(struct http_exchange *exchange, const char *name, const char *value);
void http_on_gone(struct http_exchange *exchange, http_gone on_gone, void *user);

void http_reply(struct http_exchange *exchange, unsigned status, const char *content_type,
                const void *body, size_t length);
void http_stream_begin(struct http_exchange *exchange, unsigned status, const char *content_type);
/* May call on_gone later, not inside. */
void http_stream_write(struct http_exchange *exchange, const void *data, size_t length);
void http_stream_end(struct http_exchange *exchange);

#endif
