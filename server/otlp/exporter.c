/* exporter.c - a thread with one connection for each post, which may block: see exporter.h. */
#include "server/otlp/exporter.h"

#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/mailbox.h"
#include "engine/base/thread.h"
#include "server/json/buffer.h"

/* How long spans are gathered for one post, and how long a collector may take for anything. */
static const double gather_s = 1;
enum { TIMEOUT_S = 1, HOST_BYTES = 256, PORT_BYTES = 8, PATH_BYTES = 256, REPLY_BYTES = 64 };

struct span {
    struct span *next;
    char *text;
    size_t n;
};

struct otlp {
    const char *service;
    char host[HOST_BYTES], port[PORT_BYTES], path[PATH_BYTES];
    struct mailbox spans;
    atomic_uint n_queued;
    atomic_uint_least64_t n_lost;
    atomic_bool stops;
    bool has_box, started;
    pthread_t thread;
};

/* ---- the thread ---- */

static int connect_to(const struct otlp *otlp) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    const struct timeval limit = {.tv_sec = TIMEOUT_S};
    struct addrinfo *found = NULL;
    int fd = -1;
    if (getaddrinfo(otlp->host, otlp->port, &hints, &found)) return -1;
    for (const struct addrinfo *at = found; at && fd < 0; at = at->ai_next) {
        fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
        if (fd < 0) continue;
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)); /* connect() heeds it */
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
        if (connect(fd, at->ai_addr, at->ai_addrlen) == 0) break;
        close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    return fd;
}

static bool send_all(int fd, const char *data, size_t n) {
    while (n > 0) {
        const ssize_t sent = send(fd, data, n, MSG_NOSIGNAL);
        if (sent <= 0) return false;
        data += sent;
        n -= (size_t)sent;
    }
    return true;
}

/* Tells whether the collector's answer begins with a status 2xx. */
static bool is_accepted(int fd) {
    char reply[REPLY_BYTES] = "";
    size_t n = 0;
    while (n < sizeof("HTTP/1.1 200") - 1) {
        const ssize_t got = recv(fd, reply + n, sizeof(reply) - 1 - n, 0);
        if (got <= 0) return false;
        n += (size_t)got;
    }
    return strncmp(reply, "HTTP/1.", 7) == 0 && reply[8] == ' ' && reply[9] == '2';
}

static bool post(const struct otlp *otlp, const struct buffer *body) {
    struct buffer head = {0};
    buffer_printf(&head,
                  "POST %s HTTP/1.1\r\nHost: %s:%s\r\nContent-Type: application/json\r\n"
                  "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                  otlp->path, otlp->host, otlp->port, body->length);
    const int fd = head.failed || body->failed ? -1 : connect_to(otlp);
    const bool accepted = fd >= 0 && send_all(fd, head.data, head.length) &&
                          send_all(fd, body->data, body->length) && is_accepted(fd);
    if (fd >= 0) close(fd);
    buffer_fini(&head);
    return accepted;
}

static void write_body(const struct otlp *otlp, const struct span *spans, struct buffer *out) {
    buffer_puts(out, "{\"resourceSpans\":[{\"resource\":{\"attributes\":[{\"key\":\"service.name\","
                     "\"value\":{\"stringValue\":");
    buffer_json_string(out, otlp->service, strlen(otlp->service));
    buffer_puts(out, "}}]},\"scopeSpans\":[{\"scope\":{\"name\":\"quire\"},\"spans\":[");
    for (const struct span *span = spans; span; span = span->next) {
        if (span != spans) buffer_puts(out, ",");
        buffer_append(out, span->text, span->n);
    }
    buffer_puts(out, "]}]}]}");
}

static void export(struct otlp *otlp, struct span *spans) {
    struct buffer body = {0};
    unsigned n = 0;
    write_body(otlp, spans, &body);
    const bool accepted = post(otlp, &body);
    buffer_fini(&body);
    for (struct span *next; spans; spans = next, n++) {
        next = spans->next;
        free(spans->text);
        free(spans);
    }
    atomic_fetch_sub(&otlp->n_queued, n);
    if (!accepted) atomic_fetch_add(&otlp->n_lost, n);
}

static void *run(void *arg) {
    struct otlp *otlp = arg;
    while (!atomic_load(&otlp->stops)) {
        struct span *spans = mailbox_wait(&otlp->spans);
        if (spans) export(otlp, spans);
        /* Later spans gather meanwhile; stopping ends the pause. */
        const double until_s = clock_seconds() + gather_s;
        while (!atomic_load(&otlp->stops) && clock_seconds() < until_s) usleep(20000);
    }
    struct span *rest = mailbox_close(&otlp->spans);
    if (rest) export(otlp, rest);
    return NULL;
}

/* ---- any thread ---- */

void otlp_push(struct otlp *otlp, char *text, size_t n) {
    struct span *span = NULL;
    if (atomic_fetch_add(&otlp->n_queued, 1) < OTLP_MAX_QUEUED) span = calloc(1, sizeof(*span));
    if (span) {
        *span = (struct span){.text = text, .n = n};
        if (mailbox_push(&otlp->spans, span, span, NULL) == 0) return;
    }
    atomic_fetch_sub(&otlp->n_queued, 1);
    atomic_fetch_add(&otlp->n_lost, 1);
    free(text);
    free(span);
}

uint64_t otlp_n_lost(const struct otlp *otlp) {
    return atomic_load(&otlp->n_lost);
}

static int refuse(const char *endpoint, struct error *err) {
    return error_set(err, ERR_INVALID,
                     "--otlp-endpoint: '%.200s' is not http://HOST:PORT, such as "
                     "http://localhost:4318",
                     endpoint);
}

/* Reads http://HOST[:PORT][/PATH]; an address of version 6 stands in brackets. */
static int read_endpoint(struct otlp *otlp, const char *endpoint, struct error *err) {
    static const char scheme[] = "http://";
    if (strncmp(endpoint, scheme, sizeof(scheme) - 1) != 0) return refuse(endpoint, err);
    const char *host = endpoint + sizeof(scheme) - 1;
    const bool is_v6 = host[0] == '[';
    if (is_v6) host++;
    const size_t n_host = strcspn(host, is_v6 ? "]" : ":/");
    const char *rest = host + n_host + (is_v6 && host[n_host]);
    const char *port = *rest == ':' ? rest + 1 : "4318";
    const size_t n_port = strspn(port, "0123456789");
    if (*rest == ':') rest = port + n_port;
    const bool has_path = rest[0] == '/' && rest[1];
    if (n_host == 0 || n_host >= HOST_BYTES || n_port == 0 || n_port >= PORT_BYTES ||
        (*rest && *rest != '/') || strlen(rest) >= PATH_BYTES || strpbrk(endpoint, " \r\n\t"))
        return refuse(endpoint, err);
    memcpy(otlp->host, host, n_host);
    memcpy(otlp->port, port, n_port);
    snprintf(otlp->path, PATH_BYTES, "%s", has_path ? rest : "/v1/traces");
    return 0;
}

static int start_thread(struct otlp *otlp, struct error *err) {
    otlp->started = thread_start(&otlp->thread, run, otlp) == 0;
    if (otlp->started) return 0;
    return error_set(err, ERR_NOMEM, "cannot start the thread of --otlp-endpoint");
}

int otlp_start(struct otlp **out, const char *endpoint, const char *service, struct error *err) {
    struct otlp *otlp = calloc(1, sizeof(*otlp));
    if (!otlp) return error_set(err, ERR_NOMEM, "no memory for --otlp-endpoint");
    otlp->service = service;
    int rc = read_endpoint(otlp, endpoint, err);
    otlp->has_box = !rc && mailbox_init(&otlp->spans) == 0;
    if (!rc && !otlp->has_box) rc = error_set(err, ERR_NOMEM, "no memory for --otlp-endpoint");
    if (!rc) rc = start_thread(otlp, err);
    if (rc) otlp_stop(otlp);
    else *out = otlp;
    return rc;
}

void otlp_stop(struct otlp *otlp) {
    if (!otlp) return;
    atomic_store(&otlp->stops, true);
    if (otlp->started) {
        mailbox_poke(&otlp->spans);
        pthread_join(otlp->thread, NULL);
    }
    if (otlp->has_box) mailbox_fini(&otlp->spans);
    free(otlp);
}
