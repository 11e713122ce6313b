/* server.h - the state that the routes share: the replicas, the transport, the names, the counters.
 *
 * Thread: loop.  Memory: embedded in the program that runs the server (serve.c, tests); strings are
 * borrowed. */
#ifndef SERVER_API_SERVER_H
#define SERVER_API_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "server/api/browsers.h"
#include "server/api/completion_request.h"
#include "server/api/conversation/skipped.h"
#include "server/api/counters.h"
#include "server/api/job.h"
#include "server/api/rate_limit.h"
#include "server/api/spare_ids.h"
#include "server/api/throughput.h"

struct api_keys;
struct completion;
struct engine_info;
struct http;
struct otlp;
struct replicas;
struct responses_store;

/* What metrics tell of the KV cache's settings. */
struct cache_setting {
    const char *dtype; /* NULL: not known */
    bool has_prefixes;
    double device_share;
};

struct server {
    uv_loop_t *loop;
    struct http *http;
    struct replicas *replicas; /* NULL: the model is being loaded; so is info */
    const struct engine_info *info;
    const char *model_name;
    const struct api_keys *keys; /* NULL, or none of them: no key is needed */
    struct browser_rules browsers;
    struct rate_limit rates[REQUEST_MAX_TENANTS];
    uint64_t deadline_s; /* that a completion may take; 0: any time */
    int64_t created;     /* Unix time the model was loaded */
    bool open_metrics;   /* /metrics needs no key, either */
    /* Returns the route that answers the path, a constant; NULL: none does.  *method: becomes
     * "other" if the route does not have it.  Itself NULL: answers are not counted by route. */
    const char *(*route_of)(const char *path, const char **method);
    struct cache_setting cache;
    struct throughput throughput;
    struct otlp *otlp; /* takes spans of completions; NULL: there is none */
    bool has_ui;       /* there is a page at / */
    bool draining;     /* new completions are refused */
    bool stopped;      /* the engine accepts no more requests */
    struct request_limits limits;
    struct counters counters;
    struct job_lanes jobs;
    struct spare_ids spare_ids;        /* limits.spare_ids */
    struct skipped_types skipped;      /* limits.skipped */
    struct responses_store *responses; /* NULL: none is stored */
    size_t max_body_bytes;
    uint64_t n_same_ids;            /* responses whose request id was taken */
    struct completion *completions; /* accepted by the engine and not yet finished */
    uint32_t n_preparing;           /* completions that have not come to the engine yet */
};

#endif
