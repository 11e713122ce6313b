/* http.c - the HTTP transport's daemon on the loop: accepting, running, closing.
 *
 * libmicrohttpd runs without a thread.  Its epoll descriptor, its timeout and our own resumes only
 * request a run (run_needed).  The run itself happens in the prepare callback, which libuv calls
 * before it blocks:
 *
 *   timers ─► prepare: MHD_run while needed ────► poll: sockets, mailboxes ─► closing ─► timers ...
 *                 ▲                                   │ run_needed
 *                 └───────────────────────────────────┘
 *
 * So whatever a loop iteration writes to 256 streams costs one run, and no output waits for the
 * next event.
 *
 * We accept connections ourselves and give libmicrohttpd the sockets.  At its own limit it would
 * leave clients hanging in the backlog; ours get a 503.
 *
 * Thread: loop.  Memory: struct http, freed when its last uv handle has closed. */
#define _GNU_SOURCE /* accept4 */

#include "server/http/http.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "server/http/feed.h"
#include "server/http/http_internal.h"
#include "server/http/loop_poll.h"
#include "server/http/tls.h"

enum {
    ACCEPTS_PER_EVENT = 64,
    RUNS_PER_ITERATION = 8, /* then the loop's other handles run */
    EXTRA_CONNECTIONS = 16, /* connections that are ending while others have their places */
    /* A waiting connection retains its place among equals for this part of request_timeout_ms. */
    PATIENCE_SHARE = 6,
    /* libmicrohttpd's memory per connection.  It suffices for the largest head that framing.h
     * accepts, with a record of each of its parts, and for the answer's head. */
    HEAD_MEMORY = 64 * 1024,
    TICK_MIN_MS = 10,
    TICK_MAX_MS = 250,
};

static void close_everything(struct http *http);

/* ---- running ---- */

void http_kick(struct http *http) {
    http->run_needed = true;
}

static void timeout_due(uv_timer_t *timer) {
    http_kick(timer->data);
}

static void epoll_ready(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    http_kick(poll->data);
}

static void arm_timeout(struct http *http) {
    MHD_UNSIGNED_LONG_LONG timeout_ms;
    if (MHD_get_timeout(http->daemon, &timeout_ms) == MHD_YES) {
        uv_timer_start(&http->timeout, timeout_due, timeout_ms, 0);
    } else {
        uv_timer_stop(&http->timeout);
    }
}

static bool data_pending(struct http *http) {
    MHD_UNSIGNED_LONG_LONG timeout_ms;
    return MHD_get_timeout(http->daemon, &timeout_ms) == MHD_YES && timeout_ms == 0;
}

static void run_daemon(struct http *http) {
    for (int i = 0; i < RUNS_PER_ITERATION && (http->run_needed || data_pending(http)); i++) {
        http->run_needed = false;
        wire_run(http);
    }
}

static void before_poll(uv_prepare_t *prepare) {
    struct http *http = prepare->data;
    if (http->closing) {
        close_everything(http);
        return;
    }
    if (!http->run_needed) return;
    run_daemon(http);
    /* A handler may have requested another run, or the end: then the loop must not block. */
    if (http->run_needed || http->closing) uv_timer_start(&http->timeout, timeout_due, 0, 0);
    else arm_timeout(http);
}

/* ---- accepting ---- */

static void connection_changed(void *cls, struct MHD_Connection *mhd, void **socket_context,
                               enum MHD_ConnectionNotificationCode what) {
    struct http *http = cls;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        http->adding->mhd = mhd;
        *socket_context = http->adding;
    } else {
        conn_closed(*socket_context);
    }
}

/* Makes a place for the newcomer when all are taken, by evicting another connection that waits for
 * its client.  Returns false when none may be evicted. */
static bool make_room(struct http *http, const struct http_conn *newcomer) {
    struct http_conn *longest = peers_longest_waiting(http);
    if (!longest) return false;
    const uint64_t waited_ms = uv_now(http->loop) - longest->waiting_since_ms;
    const bool has_more = longest->peer->n_waiting > newcomer->peer->n_waiting + 1;
    if (!has_more && waited_ms < http->config.request_timeout_ms / PATIENCE_SHARE) return false;
    conn_evict(longest);
    return true;
}

static void refuse_connection(struct http_conn *conn) {
    const int fd = conn->fd;
    refuse_raw(conn->http, fd, "", MHD_HTTP_SERVICE_UNAVAILABLE, "too many connections");
    conn->linger = true;
    conn_closed(conn);
    close(fd);
}

static void connection_accepted(struct http *http, int fd, const struct sockaddr *address,
                                socklen_t size) {
    const struct http_config *config = &http->config;
    struct http_conn *conn = conn_create(http, fd, address);
    if (!conn) {
        refuse_raw(http, fd, "", MHD_HTTP_SERVICE_UNAVAILABLE,
                   "there is no memory for a connection");
        linger_start(http, fd);
        return;
    }
    if (http->n_conns - http->n_killed > config->max_connections && !make_room(http, conn)) {
        refuse_connection(conn);
        return;
    }
    peer_wait(conn);
    const bool idle_first = config->idle_timeout_ms < config->request_timeout_ms;
    conn_expect_request(conn, idle_first ? config->idle_timeout_ms : config->request_timeout_ms);
    http->adding = conn;
    /* On failure libmicrohttpd has closed the socket.  It has reported that only if it had reported
     * the start. */
    const enum MHD_Result added = MHD_add_connection(http->daemon, fd, address, size);
    http->adding = NULL;
    if (added != MHD_YES && !conn->mhd) conn_closed(conn);
    http_kick(http);
}

static void pause_listening(struct http *http) {
    for (size_t i = 0; i < http->n_listeners; i++) uv_poll_stop(&http->listeners[i].poll);
    http->listen_paused = true;
}

/* Returns a connection and writes its peer's address.  A feed's peers have none. */
static int accept_one(const struct http *http, int fd, struct sockaddr_storage *address,
                      socklen_t *size) {
    if (!http->config.feed)
        return accept4(fd, (struct sockaddr *)address, size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    address->ss_family = AF_UNIX;
    *size = sizeof(address->ss_family);
    return feed_take(fd);
}

static void listen_readable(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    struct http *http = poll->data;
    const int listen_fd = ((struct http_listener *)poll)->fd;
    const uint32_t most = http->config.max_connections + EXTRA_CONNECTIONS;
    for (int i = 0; i < ACCEPTS_PER_EVENT && http->n_conns < most; i++) {
        struct sockaddr_storage address;
        socklen_t size = sizeof(address);
        const int fd = accept_one(http, listen_fd, &address, &size);
        if (fd >= 0) {
            const int plain = http->tls ? tls_accept(http->tls, fd) : fd;
            if (plain >= 0)
                connection_accepted(http, plain, (const struct sockaddr *)&address, size);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM ||
            errno == EPIPE) {
            /* The listener stays readable: polling it now would spin. */
            pause_listening(http);
        }
        if (errno != EINTR && errno != ECONNABORTED) return;
    }
}

/* Returns 0, or what libuv said of a listener that cannot be watched. */
static int start_listening(struct http *http) {
    int status = 0;
    for (size_t i = 0; i < http->n_listeners && !status; i++)
        status = loop_poll_start(&http->listeners[i].poll, UV_READABLE, listen_readable);
    return status;
}

static void tick(uv_timer_t *timer) {
    struct http *http = timer->data;
    const uint64_t now_ms = uv_now(http->loop);
    for (struct http_conn *conn = http->conns; conn; conn = conn->next) conn_check(conn, now_ms);
    linger_check(http, now_ms);
    if (http->listen_paused && start_listening(http) == 0) http->listen_paused = false;
}

/* Opens the sockets.  Their handles are opened with the others. */
static int open_listeners(struct http *http, struct error *err) {
    int fds[LISTEN_MAX];
    if (http->config.feed) {
        http->listeners[http->n_listeners++].fd = http->config.feed;
        return 0;
    }
    http->port = http->config.port;
    const int rc = listen_open(fds, &http->n_listeners, http->config.host, &http->port, err);
    for (size_t i = 0; !rc && i < http->n_listeners; i++) http->listeners[i].fd = fds[i];
    return rc;
}

static void close_listeners(struct http *http) {
    for (size_t i = 0; i < http->n_listeners; i++) close(http->listeners[i].fd);
    http->n_listeners = 0;
}

/* ---- beginning and end ---- */

/* Returns the flag which says that all calls are made by one thread.  Without it, libmicrohttpd
 * from 0.9.77 on puts a connection that is added into a list for another thread, and reports it
 * after MHD_add_connection has returned.  The library that runs decides, not the header that was
 * compiled: a program may be built on a system with an older one. */
static unsigned one_thread_flag(void) {
    enum { NO_THREAD_SAFETY = 1 << 19 }; /* MHD_USE_NO_THREAD_SAFETY, which old headers lack */
    unsigned major, minor, patch;
    if (sscanf(MHD_get_version(), "%u.%u.%u", &major, &minor, &patch) != 3) return 0;
    const bool has_it = major > 0 || minor > 9 || (minor == 9 && patch >= 77);
    return has_it ? NO_THREAD_SAFETY : 0;
}

static struct MHD_Daemon *start_daemon(struct http *http) {
    const unsigned flags =
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_NO_LISTEN_SOCKET | one_thread_flag();
    return MHD_start_daemon(flags, 0, NULL, NULL, exchange_access, http,             /* */
                            MHD_OPTION_URI_LOG_CALLBACK, exchange_started, http,     /* */
                            MHD_OPTION_NOTIFY_COMPLETED, exchange_completed, http,   /* */
                            MHD_OPTION_NOTIFY_CONNECTION, connection_changed, http,  /* */
                            MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEAD_MEMORY, /* */
                            MHD_OPTION_CONNECTION_LIMIT,
                            http->config.max_connections + EXTRA_CONNECTIONS, /* */
                            MHD_OPTION_CONNECTION_TIMEOUT, 0u, MHD_OPTION_END);
}

static uint64_t tick_interval(const struct http_config *config) {
    uint32_t shortest = config->request_timeout_ms;
    if (config->idle_timeout_ms < shortest) shortest = config->idle_timeout_ms;
    if (config->stream_stall_timeout_ms < shortest) shortest = config->stream_stall_timeout_ms;
    const uint32_t interval = shortest / 4;
    return interval < TICK_MIN_MS ? TICK_MIN_MS : interval > TICK_MAX_MS ? TICK_MAX_MS : interval;
}

static int handle_opened(struct http *http, uv_handle_t *handle, int status) {
    if (status) return status;
    handle->data = http; /* close_handle() also tests this */
    http->n_handles++;
    return 0;
}

static int open_handles(struct http *http) {
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    const uint64_t interval = tick_interval(&http->config);
    uv_loop_t *loop = http->loop;
    int status =
        handle_opened(http, (uv_handle_t *)&http->prepare, uv_prepare_init(loop, &http->prepare));
    if (!status)
        status =
            handle_opened(http, (uv_handle_t *)&http->timeout, uv_timer_init(loop, &http->timeout));
    if (!status)
        status = handle_opened(http, (uv_handle_t *)&http->tick, uv_timer_init(loop, &http->tick));
    if (!status) {
        status = handle_opened(http, (uv_handle_t *)&http->epoll,
                               uv_poll_init(loop, &http->epoll, info->epoll_fd));
    }
    for (size_t i = 0; i < http->n_listeners && !status; i++) {
        struct http_listener *listener = &http->listeners[i];
        status = handle_opened(http, (uv_handle_t *)&listener->poll,
                               uv_poll_init(loop, &listener->poll, listener->fd));
    }
    if (!status) status = uv_prepare_start(&http->prepare, before_poll);
    if (!status) status = loop_poll_start(&http->epoll, UV_READABLE, epoll_ready);
    if (!status) status = start_listening(http);
    if (!status) status = uv_timer_start(&http->tick, tick, interval, interval);
    return status;
}

int http_create(struct http **out, uv_loop_t *loop, const struct http_config *config,
                struct error *err) {
    int code = 0;
    struct http *http = calloc(1, sizeof(*http));
    if (!http) return error_set(err, ERR_NOMEM, "no memory for the HTTP transport");
    http->loop = loop;
    http->config = *config;
    if (!wire_in_place()) {
        code = error_set(err, ERR_IO,
                         "libmicrohttpd does not call the program's recv: link with "
                         "-Wl,--export-dynamic-symbol=recv");
        goto fail;
    }
    /* A body takes whole pages, and a byte behind it. */
    const size_t least = body_least_buffer(config->max_body_bytes);
    if (config->max_buffered_bytes >= config->max_body_bytes && config->max_buffered_bytes < least)
        http->config.max_buffered_bytes = least;
    if (config->max_buffered_bytes < config->max_body_bytes) {
        code = error_set(err, ERR_INVALID,
                         "%zu bytes for all request bodies are too few for one body of %zu bytes",
                         config->max_buffered_bytes, config->max_body_bytes);
        goto fail;
    }
    if (config->certificate_file)
        code = tls_create(&http->tls, config->certificate_file, config->key_file, err);
    if (code) goto fail;
    code = open_listeners(http, err);
    if (code) goto fail;
    http->daemon = start_daemon(http);
    if (!http->daemon) {
        code = error_set(err, ERR_IO, "cannot start libmicrohttpd");
        close_listeners(http);
        goto fail;
    }
    const int status = open_handles(http);
    if (status) {
        code = error_set(err, ERR_IO, "the event loop refused a handle: %s", uv_strerror(status));
        close_everything(http); /* the loop frees http once it has closed the handles it accepted */
        return code;
    }
    *out = http;
    return 0;

fail:
    tls_destroy(http->tls);
    free(http);
    return code;
}

int http_reload_certificate(struct http *http, struct error *err) {
    return http->tls ? tls_reload(http->tls, err) : 0;
}

uint16_t http_port(const struct http *http) {
    return http->port;
}

bool http_is_loopback(const struct http *http) {
    for (size_t i = 0; i < http->n_listeners; i++)
        if (!listen_is_loopback(http->listeners[i].fd)) return false;
    return http->n_listeners > 0;
}

uint32_t http_n_open(const struct http *http) {
    return http->n_open;
}

size_t http_body_bytes(const struct http *http) {
    return http->body_bytes;
}

static void handle_closed(uv_handle_t *handle) {
    http_handle_closed(handle->data);
}

void http_handle_closed(struct http *http) {
    if (--http->n_handles || !http->closed) return;
    void (*done)(void *) = http->done;
    void *ctx = http->done_ctx;
    tls_destroy(http->tls);
    free(http->by_fd);
    http_free_body(&http->spare);
    free(http);
    if (done) done(ctx);
}

static void close_handle(uv_handle_t *handle) {
    if (handle->data && !uv_is_closing(handle)) uv_close(handle, handle_closed);
}

void http_stop_accepting(struct http *http) {
    for (size_t i = 0; i < http->n_listeners; i++)
        close_handle((uv_handle_t *)&http->listeners[i].poll);
    close_listeners(http);
}

/* Closes all connections and handles.  Stopping libmicrohttpd with a suspended connection is fatal,
 * so all are marked killed and resumed first.  Every exchange completes on the way, so every
 * on_gone that is due is called.
 *
 * Answers reach their readers: they are written to the sockets before.  A connection without an
 * exchange is closed gently, because a reset discards what the peer has not acknowledged. */
static void close_everything(struct http *http) {
    http->closing = true;
    http_stop_accepting(http);
    run_daemon(http);
    for (struct http_conn *conn = http->conns; conn; conn = conn->next) {
        conn_kill(conn, conn->exchange != NULL);
    }
    wire_run(http);
    linger_stop_all(http);
    http->closed = true;
    close_handle((uv_handle_t *)&http->epoll); /* before the daemon closes its descriptor */
    MHD_stop_daemon(http->daemon);
    assert(!http->conns && http->n_open == 0);
    close_handle((uv_handle_t *)&http->prepare);
    close_handle((uv_handle_t *)&http->timeout);
    close_handle((uv_handle_t *)&http->tick);
}

void http_close(struct http *http, void (*done)(void *), void *ctx) {
    http->closing = true;
    http->done = done;
    http->done_ctx = ctx;
    http_kick(http);
}
