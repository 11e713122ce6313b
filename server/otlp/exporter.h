/* exporter.h - posts finished spans to a collector as OTLP/HTTP JSON.
 *
 *   loop ──otlp_push──► queue, OTLP_MAX_QUEUED ──► exporter thread ──POST /v1/traces──► collector
 *                         └► full: dropped, counted
 *
 * A collector that is slow or gone, or whose certificate is not trusted, costs spans and delays no
 * request.  Why spans are lost is logged, once a minute at most.
 *
 * Thread: started and stopped by one thread; otlp_push() from any.  Memory: the queue's spans. */
#ifndef SERVER_OTLP_EXPORTER_H
#define SERVER_OTLP_EXPORTER_H

#include <stddef.h>
#include <stdint.h>

struct error;
struct otlp; /* opaque: the fields live in exporter.c */

enum { OTLP_MAX_QUEUED = 4096 };

struct otlp_settings {
    /* http://HOST[:PORT][/PATH] or https://…; without a path it is /v1/traces, as collectors have
     * it, and without a port 4318. */
    const char *endpoint;
    const char *ca_file; /* the authorities that a certificate must be of; NULL: the system's */
    const char *service; /* the resource's service.name, borrowed by the exporter */
};

/* Starts the thread.  ERR_INVALID: the endpoint is none, or there is no authority to trust. */
int otlp_start(struct otlp **out, const struct otlp_settings *settings, struct error *err);
/* Takes ownership of a span, a JSON object of n bytes that malloc() gave. */
void otlp_push(struct otlp *otlp, char *span, size_t n);
uint64_t otlp_n_lost(const struct otlp *otlp); /* dropped, or not taken by the collector */
/* Posts what is queued, for a second at most, and joins the thread. */
void otlp_stop(struct otlp *otlp); /* NULL is allowed */

#endif
