/* wire.c - what clients send, on its way to libmicrohttpd: scanned first, and cut by request.
 *
 * libmicrohttpd 0.9.75 tells its callbacks nothing of the bytes themselves, reads leniently, and
 * answers what it cannot read with its own page.  It reads with recv(), which the dynamic linker
 * resolves.  This file defines recv, so its reads of our sockets come here while the daemon runs
 * (wire_run).  Every other call, of any thread, goes to the system as it is.  This can be removed
 * when a version reads as framing.h does and lets us write the answer.
 *
 *   kernel ──peek──► framing_scan ──► bytes of this request, up to its end ──► libmicrohttpd
 *                        └─► refused ──► our answer, and "connection reset" for libmicrohttpd
 *
 * Bytes behind the request's end stay in the kernel until it is answered.  So a pipelined request
 * is never in libmicrohttpd's memory together with another (where `Expect: 100-continue` would make
 * it lose both), and a refusal never overtakes an earlier answer.
 *
 * This is also where a client is found gone that sent part of a request and closed.  Its last
 * packet carries both, and an edge-triggered epoll reports them once.
 *
 * Thread: any for recv, loop for the rest.  Memory: a table of connections by descriptor. */
#define _GNU_SOURCE /* RTLD_DEFAULT */

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "engine/base/error.h"
#include "server/http/http_internal.h"

/* The transport whose daemon runs on this thread; NULL outside wire_run.  recv has no argument that
 * could carry it. */
static _Thread_local struct http *running;

bool wire_in_place(void) {
    return (uintptr_t)dlsym(RTLD_DEFAULT, "recv") == (uintptr_t)recv;
}

void wire_run(struct http *http) {
    running = http;
    MHD_run(http->daemon);
    running = NULL;
}

int wire_attach(struct http_conn *conn) {
    struct http *http = conn->http;
    const size_t fd = (size_t)conn->fd;
    if (fd >= http->n_fds) {
        const size_t n = fd < 512 ? 1024 : 2 * fd;
        struct http_conn **by_fd = realloc(http->by_fd, n * sizeof(struct http_conn *));
        if (!by_fd) return ERR_NOMEM;
        for (size_t i = http->n_fds; i < n; i++) by_fd[i] = NULL;
        http->by_fd = by_fd;
        http->n_fds = n;
    }
    http->by_fd[fd] = conn;
    return 0;
}

void wire_detach(struct http_conn *conn) {
    /* Without memory for the first of the table's entries there is none. */
    if ((size_t)conn->fd < conn->http->n_fds) conn->http->by_fd[conn->fd] = NULL;
}

/* Receives again where a signal came first: libmicrohttpd would wait for an event. */
static ssize_t receive(const struct http_conn *conn, void *buffer, size_t length, int flags) {
    ssize_t n;
    do n = recvfrom(conn->fd, buffer, length, flags, NULL, NULL);
    while (n < 0 && errno == EINTR);
    return n;
}

bool wire_has_more(const struct http_conn *conn) {
    char byte;
    return receive(conn, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
}

static bool has_ended(const struct http_conn *conn) {
    char byte;
    return receive(conn, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static ssize_t fail_with(int code) {
    errno = code;
    return -1;
}

/* Reads bytes of a body whose end is known, so they are not peeked at first. */
static ssize_t read_body(struct http_conn *conn, char *buffer, size_t length) {
    const uint64_t left = framing_left(&conn->framing);
    const ssize_t n = receive(conn, buffer, left < length ? (size_t)left : length, 0);
    size_t kept;
    if (n > 0) framing_scan(&conn->framing, buffer, (size_t)n, &kept);
    return n;
}

/* Reads bytes and drops them: those that matter were peeked at. */
static int drop(const struct http_conn *conn, size_t length) {
    char bytes[4096];
    while (length > 0) {
        const ssize_t n = receive(conn, bytes, length < sizeof(bytes) ? length : sizeof(bytes), 0);
        if (n <= 0) return -1;
        length -= (size_t)n;
    }
    return 0;
}

static ssize_t refuse(struct http_conn *conn) {
    conn_refuse(conn, conn->framing.status, conn->framing.message);
    return fail_with(ECONNRESET);
}

/* Peeks at bytes among which the request may end, scans them, and reads those of this request.
 * Returns how many of them libmicrohttpd gets.  *more: there may be others behind them. */
static ssize_t read_part(struct http_conn *conn, char *buffer, size_t length, bool *more) {
    struct framing *framing = &conn->framing;
    const ssize_t n = receive(conn, buffer, length, MSG_PEEK);
    if (n <= 0) return n;
    const bool begins = framing->state == FRAMING_START;
    size_t kept;
    const size_t taken = framing_scan(framing, buffer, (size_t)n, &kept);
    if (begins) conn_request_begun(conn);
    if (framing->state == FRAMING_REFUSED) return refuse(conn);
    *more = framing->state != FRAMING_WHOLE && (size_t)n == length;
    if (taken < (size_t)n && *more) {
        /* White space may end a value, and there is no place for the byte behind it, which
         * decides. */
        framing_refuse(framing, 431, "the request's headers are too large");
        return refuse(conn);
    }
    if (taken == 0) return fail_with(EAGAIN);
    /* This returns the same bytes again: only this thread reads the socket. */
    if (kept == taken) return receive(conn, buffer, taken, 0);
    return drop(conn, taken) ? fail_with(ECONNRESET) : (ssize_t)kept;
}

/* Reads on where bytes were dropped: a buffer that is not full tells libmicrohttpd that it has read
 * everything, and an edge-triggered epoll does not report the rest again. */
static ssize_t read_rest(struct http_conn *conn, char *buffer, size_t length) {
    size_t n_read = 0;
    bool more = true;
    while (more && n_read < length) {
        const ssize_t n = read_part(conn, buffer + n_read, length - n_read, &more);
        if (n <= 0 && (n_read == 0 || conn->killed)) return n;
        if (n <= 0) break;
        n_read += (size_t)n;
    }
    return (ssize_t)n_read;
}

static ssize_t read_request(struct http_conn *conn, char *buffer, size_t length) {
    struct framing *framing = &conn->framing;
    if (conn->killed) return 0;
    if (framing->state == FRAMING_WHOLE) return fail_with(EAGAIN); /* the answer comes first */
    const ssize_t n =
        framing_left(framing) ? read_body(conn, buffer, length) : read_rest(conn, buffer, length);
    if (n <= 0) return n;
    if (framing->state == FRAMING_WHOLE) conn_request_whole(conn);
    else if ((size_t)n < length && has_ended(conn)) return 0;
    return n;
}

__attribute__((visibility("default"))) ssize_t recv(int fd, void *buffer, size_t length,
                                                    int flags) {
    struct http_conn *conn =
        running && fd >= 0 && (size_t)fd < running->n_fds ? running->by_fd[fd] : NULL;
    if (!conn) return recvfrom(fd, buffer, length, flags, NULL, NULL);
    return read_request(conn, buffer, length);
}
