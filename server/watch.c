/* watch.c - one connection: its deadlines, and its socket while libmicrohttpd does not look.
 *
 * A suspended connection is in nobody's epoll set but ours: a uv_poll for UV_DISCONNECT alone,
 * which pipelined input does not wake. The socket is shared, not duplicated: it is in two epoll
 * sets, and libmicrohttpd tells us (conn_closed) before it closes it.
 *
 * libmicrohttpd's timeout is per activity, so a client may drip bytes for ever; it is off, and
 * conn_check looks at every connection some times a second instead:
 *
 *   between requests           until deadline_ms, then closed in silence (an answer without a
 *                              question would be taken for one to the next question)
 *   a request is arriving      until deadline_ms for all of it, then 408
 *   the handler has it         no limit here
 *   an answer is on its way    the peer must acknowledge something within stream_stall_timeout_ms
 *
 * Thread: loop.  Memory: the connection is freed in its handle's close callback. */
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/http_internal.h"
#include "server/tcp_progress.h"

struct http_conn *conn_create(struct http *http, int fd) {
    struct http_conn *conn = calloc(1, sizeof(*conn));
    if (!conn) return NULL;
    if (uv_poll_init(http->loop, &conn->watch, fd) != 0) {
        free(conn);
        return NULL;
    }
    conn->watch.data = conn;
    conn->http = http;
    conn->fd = fd;
    conn->next = http->conns;
    if (conn->next) conn->next->prev = conn;
    http->conns = conn;
    http->n_conns++;
    http->n_handles++;
    return conn;
}

static void watch_closed(uv_handle_t *handle) {
    struct http_conn *conn = handle->data;
    struct http *http = conn->http;
    free(conn);
    http_handle_closed(http);
}

void conn_closed(struct http_conn *conn) {
    struct http *http = conn->http;
    /* Normally completed long ago; but when its own epoll_ctl fails libmicrohttpd forgets to say
     * so. */
    if (conn->exchange) exchange_finish(conn->exchange);
    if (conn->prev)
        conn->prev->next = conn->next;
    else
        http->conns = conn->next;
    if (conn->next) conn->next->prev = conn->prev;
    http->n_conns--;
    uv_close((uv_handle_t *)&conn->watch, watch_closed);
    if (!conn->linger) return;
    const int fd = dup(conn->fd);
    if (fd >= 0) linger_start(http, fd);
}

static void disconnected(uv_poll_t *watch, int status, int events) {
    (void)status;
    (void)events;
    struct http_conn *conn = watch->data;
    conn_unwatch(conn);
    conn_kill(conn, false);
}

void conn_watch(struct http_conn *conn) {
    if (conn->watching || conn->killed) return;
    if (uv_poll_start(&conn->watch, UV_DISCONNECT, disconnected) == 0) conn->watching = true;
}

void conn_unwatch(struct http_conn *conn) {
    if (conn->watching) uv_poll_stop(&conn->watch);
    conn->watching = false;
}

void conn_kill(struct http_conn *conn, bool hard) {
    if (conn->killed) return;
    conn->killed = true;
    if (hard) {
        const struct linger reset = {.l_onoff = 1, .l_linger = 0};
        (void)setsockopt(conn->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    }
    /* An active connection is found hung up by libmicrohttpd, a suspended one must be woken to find
     * out. */
    shutdown(conn->fd, SHUT_RDWR);
    if (conn->exchange) exchange_resume(conn->exchange);
    http_kick(conn->http);
}

void conn_expect_request(struct http_conn *conn, uint32_t timeout_ms) {
    conn->deadline_ms = uv_now(conn->http->loop) + timeout_ms;
}

void conn_output_started(struct http_conn *conn) {
    conn->acked_at_ms = uv_now(conn->http->loop);
}

static void check_reader(struct http_conn *conn, uint64_t now_ms) {
    const struct http_exchange *exchange = conn->exchange;
    const bool nothing_to_take = exchange->state == EXCHANGE_STREAMING && !exchange->queue.ended &&
                                 exchange->queue.start == exchange->queue.end;
    const uint64_t n_acked = nothing_to_take ? conn->n_acked : tcp_progress(conn->fd);
    if (nothing_to_take || n_acked != conn->n_acked) {
        conn->n_acked = n_acked;
        conn->acked_at_ms = now_ms;
        return;
    }
    if (now_ms - conn->acked_at_ms >= conn->http->config.stream_stall_timeout_ms)
        conn_kill(conn, true);
}

void conn_check(struct http_conn *conn, uint64_t now_ms) {
    if (conn->killed) return;
    if (!conn->exchange) {
        if (now_ms >= conn->deadline_ms) conn_kill(conn, false);
        return;
    }
    switch (conn->exchange->state) {
    case EXCHANGE_HEAD:
    case EXCHANGE_BODY:
        if (now_ms < conn->deadline_ms) return;
        refuse_raw(conn->http, conn->fd, conn->exchange->id, MHD_HTTP_REQUEST_TIMEOUT,
                   "the request did not arrive in time");
        conn->linger = true;
        conn_kill(conn, false);
        return;
    case EXCHANGE_WAITING:
        return;
    case EXCHANGE_REFUSED:
    case EXCHANGE_REPLYING:
    case EXCHANGE_STREAMING:
        check_reader(conn, now_ms);
        return;
    }
}
