/* exporter.c - a thread with one connection for each post, which may block: see exporter.h. */
#include "server/otlp/exporter.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/mailbox.h"
#include "engine/base/thread.h"
#include "server/http/address.h"
#include "server/http/http_client.h"
#include "server/json/buffer.h"
#include "server/settings/log.h"

/* How long spans are gathered for one post, and how often lost ones are logged. */
static const double gather_s = 1, log_s = 60;
/* TIMEOUT_S: what a collector may take for each step of a post. */
enum { TIMEOUT_S = 1, DEFAULT_PORT = 4318 };

struct span {
    struct span *next;
    char *text;
    size_t n;
};

struct otlp {
    const char *service;
    struct http_address address;
    struct http_client_trust *trust; /* NULL: without TLS */
    double log_again_s;              /* the exporter thread's, of clock_seconds() */
    struct mailbox spans;
    atomic_uint n_queued;
    atomic_uint_least64_t n_lost;
    atomic_bool stops;
    bool has_box, started;
    pthread_t thread;
};

/* ---- the thread ---- */

static int post(const struct otlp *otlp, const struct buffer *body, struct error *err) {
    const struct http_client_request request = {.host = otlp->address.host,
                                                .port = otlp->address.port,
                                                .trust = otlp->trust,
                                                .wait_s = TIMEOUT_S,
                                                .authority = otlp->address.authority,
                                                .path = otlp->address.path,
                                                .body = body->data,
                                                .n_body = body->length};
    unsigned status;
    if (body->failed) return error_set(err, ERR_NOMEM, "no memory for a post");
    const int rc = http_client_ask(&status, &request, err);
    if (rc || (status >= 200 && status < 300)) return rc;
    return error_set(err, ERR_IO, "%s answers with %u", otlp->address.authority, status);
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

static void count_lost(struct otlp *otlp, unsigned n, const struct error *why) {
    const uint64_t n_lost = atomic_fetch_add(&otlp->n_lost, n) + n;
    const double now_s = clock_seconds();
    if (now_s < otlp->log_again_s) return;
    log_event(LOG_WARN, "--otlp-endpoint: %.400s (%" PRIu64 " spans lost so far)", why->text,
              n_lost);
    otlp->log_again_s = now_s + log_s;
}

static void export(struct otlp *otlp, struct span *spans) {
    struct buffer body = {0};
    struct error why = {0};
    unsigned n = 0;
    write_body(otlp, spans, &body);
    const bool accepted = post(otlp, &body, &why) == 0;
    buffer_fini(&body);
    for (struct span *next; spans; spans = next, n++) {
        next = spans->next;
        free(spans->text);
        free(spans);
    }
    atomic_fetch_sub(&otlp->n_queued, n);
    if (!accepted) count_lost(otlp, n, &why);
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
                     "--otlp-endpoint: '%.200s' is neither http://HOST:PORT nor https://HOST:PORT, "
                     "such as http://localhost:4318",
                     endpoint);
}

static int read_endpoint(struct otlp *otlp, const char *endpoint, struct error *err) {
    struct http_address *address = &otlp->address;
    if (!http_address_read(address, endpoint, DEFAULT_PORT)) return refuse(endpoint, err);
    if (!address->path[0] || !address->path[1])
        snprintf(address->path, sizeof(address->path), "/v1/traces");
    return 0;
}

/* Reads which collectors are trusted. */
static int read_trust(struct otlp *otlp, const char *ca_file, struct error *err) {
    const bool with_tls = otlp->address.with_tls;
    struct error why;
    if (!with_tls && !ca_file) return 0;
    if (!with_tls)
        return error_set(err, ERR_INVALID, "--otlp-ca-file needs an --otlp-endpoint of https://");
    const int rc = http_client_trust_create(&otlp->trust, ca_file, &why);
    if (!rc) return 0;
    return error_set(err, rc, "%s: %.300s", ca_file ? "--otlp-ca-file" : "--otlp-endpoint",
                     why.text);
}

static int start_thread(struct otlp *otlp, struct error *err) {
    otlp->started = thread_start(&otlp->thread, run, otlp) == 0;
    if (otlp->started) return 0;
    return error_set(err, ERR_NOMEM, "cannot start the thread of --otlp-endpoint");
}

int otlp_start(struct otlp **out, const struct otlp_settings *settings, struct error *err) {
    struct otlp *otlp = calloc(1, sizeof(*otlp));
    if (!otlp) return error_set(err, ERR_NOMEM, "no memory for --otlp-endpoint");
    otlp->service = settings->service;
    int rc = read_endpoint(otlp, settings->endpoint, err);
    if (!rc) rc = read_trust(otlp, settings->ca_file, err);
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
    http_client_trust_destroy(otlp->trust);
    free(otlp);
}
