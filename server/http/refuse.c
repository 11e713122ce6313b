/* refuse.c - answers written around libmicrohttpd, and closing so that they arrive.
 *
 * The transport's own refusals do not go through libmicrohttpd, which takes no response in the
 * middle of a body or a head, and none before it owns the connection.  Refusals are short enough
 * for any socket buffer and are written directly.
 *
 * Closing a socket with unread input sends a reset, and a reset overtakes the answer that was just
 * sent.  So a refused connection lingers: our sending side is shut, and input is read and dropped.
 * This ends when the peer closes or after a short time; when too many connections linger, further
 * ones are closed at once.
 *
 * Thread: loop.  Memory: one block per lingering socket, freed in its close callback. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/http/http_internal.h"
#include "server/http/loop_poll.h"

struct http_linger {
    struct http *http;
    struct http_linger *prev, *next;
    uv_poll_t poll;
    int fd;
    uint64_t deadline_ms;
};

static void write_body(unsigned status, const char *message, char *buffer, size_t size) {
    const bool ours = status >= 500 && status != MHD_HTTP_HTTP_VERSION_NOT_SUPPORTED;
    const char *type = ours ? "server_error" : "invalid_request_error";
    snprintf(buffer, size,
             "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,\"code\":null}}",
             message, type);
}

void refuse_raw(struct http *http, int fd, const char *id, unsigned status, const char *message) {
    const char *reason = MHD_get_reason_phrase_for(status);
    char body[512], answer[1024], made[HTTP_ID_MAX + 1];
    if (!*id) {
        exchange_id_make(made);
        id = made;
    }
    if (http->config.refused) http->config.refused(http->config.ctx, id, status, message);
    write_body(status, message, body, sizeof(body));
    const int n =
        snprintf(answer, sizeof(answer),
                 "HTTP/1.1 %u %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                 "X-Request-Id: %s\r\n%sConnection: close\r\n\r\n%s",
                 status, reason, strlen(body), id,
                 status == MHD_HTTP_SERVICE_UNAVAILABLE ? "Retry-After: 1\r\n" : "", body);
    /* A peer whose socket cannot take this at once does not read. */
    (void)!send(fd, answer, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(fd, SHUT_WR);
}

static void linger_closed(uv_handle_t *handle) {
    struct http_linger *linger = handle->data;
    struct http *http = linger->http;
    free(linger);
    http_handle_closed(http);
}

static void linger_end(struct http_linger *linger) {
    struct http *http = linger->http;
    if (linger->prev) linger->prev->next = linger->next;
    else http->lingering = linger->next;
    if (linger->next) linger->next->prev = linger->prev;
    http->n_lingering--;
    uv_close((uv_handle_t *)&linger->poll, linger_closed);
    close(linger->fd); /* uv_close has removed it from the loop's epoll set */
}

static void linger_readable(uv_poll_t *poll, int status, int events) {
    (void)events;
    struct http_linger *linger = poll->data;
    char sink[16384];
    if (status == 0) {
        const ssize_t n = recv(linger->fd, sink, sizeof(sink), MSG_DONTWAIT);
        if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return;
    }
    linger_end(linger);
}

void linger_start(struct http *http, int fd) {
    struct http_linger *linger = NULL;
    if (http->n_lingering >= HTTP_MAX_LINGERING || http->closed) goto cut;
    linger = calloc(1, sizeof(*linger));
    if (!linger || uv_poll_init(http->loop, &linger->poll, fd) != 0) goto cut;
    linger->poll.data = linger;
    linger->http = http;
    linger->fd = fd;
    linger->deadline_ms = uv_now(http->loop) + HTTP_LINGER_MS;
    linger->next = http->lingering;
    if (linger->next) linger->next->prev = linger;
    http->lingering = linger;
    http->n_lingering++;
    http->n_handles++;
    if (loop_poll_start(&linger->poll, UV_READABLE, linger_readable) != 0) linger_end(linger);
    return;

cut:
    free(linger);
    close(fd);
}

void linger_check(struct http *http, uint64_t now_ms) {
    for (struct http_linger *linger = http->lingering, *next; linger; linger = next) {
        next = linger->next;
        if (now_ms >= linger->deadline_ms) linger_end(linger);
    }
}

void linger_stop_all(struct http *http) {
    while (http->lingering) linger_end(http->lingering);
}
