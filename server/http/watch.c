/* watch.c - one connection: its deadlines, and its socket while libmicrohttpd does not look.
 *
 * A suspended connection is only in our own epoll set: a uv_poll for UV_DISCONNECT alone, which
 * pipelined input does not wake.  The socket is shared, not duplicated: it is in two epoll sets,
 * and libmicrohttpd reports (conn_closed) before it closes it.
 *
 * A client that closes its side has either left, or has half closed the connection (HTTP/1.1 allows
 * it once the request is whole) and waits for the answer.  Both look the same until something is
 * sent: a client that has left answers with a reset.
 *
 *   before its request is whole      it has left: wire.c closes at once
 *   up to HALF_CLOSE_MS behind it    in doubt: it is still served, and the next bytes tell.  A
 *                                    stream writes some now and then; a client whose stream is
 *                                    silent for SILENCE_MS counts as gone.  A client that waits for
 *                                    a whole answer is sent `100 Continue` after PROBE_MS, which
 *                                    HTTP/1.1 clients skip.  HTTP/1.0 has no such probe: there the
 *                                    system's keep-alive tells, when the peer's system forgets the
 *                                    connection (a minute or more)
 *   later                            it has left
 *
 * libmicrohttpd's timeout is per activity, so a client could send single bytes for ever.  It is
 * off; conn_check looks at every connection some times a second instead:
 *
 *   between requests           until deadline_ms, then closed in silence (the client would take an
 *                              answer for the one to its next request)
 *   a request is arriving      until deadline_ms for all of it, then 408
 *   the handler has it         no limit here
 *   an answer is being sent    the peer must acknowledge something within stream_stall_timeout_ms
 *
 * Thread: loop.  Memory: the connection is freed in its handle's close callback. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/http/http_internal.h"
#include "server/http/loop_poll.h"
#include "server/http/tcp_progress.h"

enum {
    HALF_CLOSE_MS = 1000,
    PROBE_MS = 1000,
    SILENCE_MS = 3000,
    KEEP_ALIVE_S = 10, /* between the system's own probes of a half-closed connection */
};

struct http_conn *conn_create(struct http *http, int fd, const struct sockaddr *address) {
    struct http_conn *conn = calloc(1, sizeof(*conn));
    if (!conn) return NULL;
    conn->http = http;
    conn->fd = fd;
    conn->peer = peers_enter(http, address);
    if (!conn->peer || wire_attach(conn) != 0 || uv_poll_init(http->loop, &conn->watch, fd) != 0) {
        if (conn->peer) peers_leave(http, conn->peer);
        wire_detach(conn);
        free(conn);
        return NULL;
    }
    conn->watch.data = conn;
    framing_init(&conn->framing, http->config.max_body_bytes);
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
    /* Normally the exchange has been completed long ago.  But when its own epoll_ctl fails,
     * libmicrohttpd does not report completion. */
    if (conn->exchange) exchange_finish(conn->exchange);
    if (conn->prev) conn->prev->next = conn->next;
    else http->conns = conn->next;
    if (conn->next) conn->next->prev = conn->prev;
    http->n_conns--;
    if (conn->killed) http->n_killed--;
    peer_unwait(conn);
    peers_leave(http, conn->peer);
    wire_detach(conn);
    uv_close((uv_handle_t *)&conn->watch, watch_closed);
    if (!conn->linger) return;
    const int fd = dup(conn->fd);
    if (fd >= 0) linger_start(http, fd);
}

/* ---- the client closes its side ---- */

static bool may_be_half_closed(const struct http_conn *conn) {
    return !conn->half_closed && conn->exchange &&
           uv_now(conn->http->loop) - conn->whole_at_ms <= HALF_CLOSE_MS;
}

static void half_close(struct http_conn *conn) {
    const int on = 1, seconds = KEEP_ALIVE_S;
    conn->half_closed = true;
    const bool streaming = conn->exchange->state == EXCHANGE_STREAMING;
    conn->probe_at_ms = uv_now(conn->http->loop) + (streaming ? SILENCE_MS : PROBE_MS);
    (void)setsockopt(conn->fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof(seconds));
    (void)setsockopt(conn->fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof(seconds));
    (void)setsockopt(conn->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

static void probe(struct http_conn *conn) {
    static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";
    conn->probe_at_ms = 0;
    if (conn->framing.http_1_0) return;
    /* A client that has left answers with a reset, which ends the watch. */
    const ssize_t n = send(conn->fd, interim, sizeof(interim) - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n != (ssize_t)sizeof(interim) - 1) conn_kill(conn, true);
}

static void disconnected(uv_poll_t *watch, int status, int events) {
    (void)events;
    struct http_conn *conn = watch->data;
    conn_unwatch(conn);
    if (status == 0 && may_be_half_closed(conn)) {
        half_close(conn);
        conn_watch(conn);
    } else {
        conn_kill(conn, false);
    }
}

void conn_watch(struct http_conn *conn) {
    if (conn->watching || conn->killed) return;
    /* A half-closed connection would report its end for ever.  Errors, including a reset, are
     * always reported, whatever events are requested. */
    const int events = conn->half_closed ? UV_PRIORITIZED : UV_DISCONNECT;
    /* Not watched, a client that leaves is only noticed when it is sent something. */
    conn->watching = loop_poll_start(&conn->watch, events, disconnected) == 0;
}

void conn_unwatch(struct http_conn *conn) {
    if (conn->watching) uv_poll_stop(&conn->watch);
    conn->watching = false;
}

/* ---- the end ---- */

static void mark_killed(struct http_conn *conn) {
    conn->killed = true;
    conn->http->n_killed++;
    peer_unwait(conn);
    if (conn->exchange) exchange_resume(conn->exchange); /* so that it sees the mark */
    http_kick(conn->http);
}

void conn_kill(struct http_conn *conn, bool hard) {
    if (conn->killed) return;
    if (hard) {
        const struct linger reset = {.l_onoff = 1, .l_linger = 0};
        (void)setsockopt(conn->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    }
    /* libmicrohttpd finds an active connection closed; a suspended one must be resumed to find
     * out. */
    shutdown(conn->fd, SHUT_RDWR);
    mark_killed(conn);
}

void conn_refuse(struct http_conn *conn, unsigned status, const char *message) {
    char id[HTTP_ID_MAX + 1];
    if (conn->killed) return;
    exchange_id_choose(conn->exchange ? conn->exchange->id : conn->framing.id, id);
    refuse_raw(conn->http, conn->fd, id, status, message);
    conn->linger = true;
    mark_killed(conn);
}

void conn_evict(struct http_conn *conn) {
    if (framing_unfinished(&conn->framing))
        conn_refuse(conn, MHD_HTTP_SERVICE_UNAVAILABLE, "too many connections");
    /* libmicrohttpd waits for the client, and must find the connection closed. */
    shutdown(conn->fd, SHUT_RDWR);
    if (!conn->killed) mark_killed(conn);
}

/* ---- its requests, and the time they take ---- */

void conn_request_begun(struct http_conn *conn) {
    conn_expect_request(conn, conn->http->config.request_timeout_ms);
}

void conn_request_whole(struct http_conn *conn) {
    peer_unwait(conn);
    conn->whole_at_ms = uv_now(conn->http->loop);
}

void conn_request_over(struct http_conn *conn) {
    framing_init(&conn->framing, conn->http->config.max_body_bytes);
    conn_expect_request(conn, conn->http->config.idle_timeout_ms);
    conn->half_closed = false; /* a half close after the next request counts for that one */
    conn->probe_at_ms = 0;
    if (!conn->killed) peer_wait(conn);
}

void conn_expect_request(struct http_conn *conn, uint32_t timeout_ms) {
    conn->deadline_ms = uv_now(conn->http->loop) + timeout_ms;
}

void conn_output_started(struct http_conn *conn) {
    conn->acked_at_ms = uv_now(conn->http->loop);
}

static void check_reader(struct http_conn *conn, uint64_t now_ms) {
    const struct http_exchange *exchange = conn->exchange;
    if (conn->probe_at_ms && now_ms >= conn->probe_at_ms) {
        conn_kill(conn, false);
        return;
    }
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

/* Makes libmicrohttpd look at a connection that has ended, by entering it into its epoll set anew.
 * It closes a connection in two steps, and between them waits for an event.  A shut socket of TCP
 * has one more, but a socket pair whose other end is gone (tls.c) has none. */
static void nudge(struct http_conn *conn) {
    MHD_suspend_connection(conn->mhd);
    MHD_resume_connection(conn->mhd);
    http_kick(conn->http);
}

void conn_check(struct http_conn *conn, uint64_t now_ms) {
    if (conn->killed && !conn->exchange && conn->mhd) nudge(conn);
    if (conn->killed) return;
    if (!conn->exchange) {
        if (now_ms >= conn->deadline_ms) conn_kill(conn, false);
        return;
    }
    switch (conn->exchange->state) {
    case EXCHANGE_HEAD:
    case EXCHANGE_BODY:
        if (now_ms < conn->deadline_ms) return;
        conn_refuse(conn, MHD_HTTP_REQUEST_TIMEOUT, "the request did not arrive in time");
        shutdown(conn->fd, SHUT_RDWR); /* libmicrohttpd must find it closed */
        return;
    case EXCHANGE_WAITING:
        if (conn->probe_at_ms && now_ms >= conn->probe_at_ms) probe(conn);
        return;
    case EXCHANGE_REPLYING:
    case EXCHANGE_STREAMING: check_reader(conn, now_ms); return;
    }
}
