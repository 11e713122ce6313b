/* metrics_server.c - see metrics_server.h. */
#include "server/ops/metrics_server.h"

#include <stdio.h>

#include "engine/base/count.h"
#include "engine/tokenizer/tokenizer_cache.h"
#include "server/api/responses/store.h"
#include "server/api/server.h"
#include "server/ops/metrics_text.h"
#include "server/otlp/exporter.h"
#include "server/settings/log.h"

static void write_tokenizer_cache(const struct metrics_text *text,
                                  const struct tokenizer_cache_stats *cache) {
    const struct metric_value values[] = {
        {{{"quire_tokenizer_cache_hit_bytes_total"},
          "Bytes of prompts that were found, with their tokens, in the tokenizer's cache."},
         (double)cache->hit_bytes},
        {{{"quire_tokenizer_cache_missed_bytes_total"},
          "Bytes of prompts that were looked up there and not found."},
         (double)cache->missed_bytes},
        {{{"quire_tokenizer_cache_bytes"}, "Memory that the tokenizer's cache takes."},
         (double)cache->bytes},
    };
    metrics_text_values(text, values, COUNT(values));
}

static void write_responses_store(const struct metrics_text *text,
                                  const struct responses_store_stats *store) {
    const struct metric_value values[] = {
        {{{"quire_responses_stored"}, "Responses that are stored."}, (double)store->n_responses},
        {{{"quire_responses_stored_bytes"}, "Memory that stored responses take."},
         (double)store->n_bytes},
        {{{"quire_responses_store_hits_total"}, "Stored responses that were asked for and found."},
         (double)store->n_hits},
    };
    static const struct metric dropped = {
        {"quire_responses_dropped_total"},
        "Stored responses that were dropped: for space, for age, or at once because they were too "
        "long; object: for space, but requests can still go on from them."};
    static const struct metric misses = {
        {"quire_responses_store_misses_total"},
        "Stored responses that were asked for and not found, by why they were dropped."};
    static const struct {
        const char *reason;
        enum response_fate fate;
    } reasons[] = {{"space", RESPONSE_EVICTED},   {"age", RESPONSE_EXPIRED},
                   {"length", RESPONSE_TOO_LONG}, {"object", RESPONSE_SHORTENED},
                   {"deleted", RESPONSE_DELETED}, {"unknown", RESPONSE_UNKNOWN}};
    enum { N_DROPPED = 4 }; /* the others are not dropped for a bound */
    struct metric_point n_dropped[N_DROPPED], n_misses[COUNT(reasons)];
    for (size_t i = 0; i < COUNT(reasons); i++) {
        const enum response_fate fate = reasons[i].fate;
        n_misses[i] = (struct metric_point){reasons[i].reason, (double)store->n_misses[fate]};
        if (i < N_DROPPED)
            n_dropped[i] = (struct metric_point){reasons[i].reason, (double)store->n_dropped[fate]};
    }
    metrics_text_values(text, values, COUNT(values));
    metrics_text_points(text, &dropped, "reason", n_dropped, COUNT(n_dropped));
    metrics_text_points(text, &misses, "reason", n_misses, COUNT(n_misses));
}

/* The classes of status, by the first digit; 0: the client disconnected first; 1 is never sent. */
static const char *const classes[COUNTERS_N_CLASSES] = {"gone", NULL, "2xx", "3xx", "4xx", "5xx"};

static void write_answers(const struct metrics_text *text, const struct counters *counters) {
    static const struct metric answers = {
        {"quire_http_answers_total"},
        "Answers by class of status; gone: the client disconnected first."};
    struct metric_point points[COUNTERS_N_CLASSES];
    size_t n = 0;
    for (unsigned i = 0; i < COUNTERS_N_CLASSES; i++)
        if (classes[i])
            points[n++] = (struct metric_point){classes[i], (double)counters->by_class[i]};
    metrics_text_points(text, &answers, "status", points, n);
}

/* Writes what servers made with FastAPI count. */
static void write_handlers(const struct metrics_text *text, const struct counters *counters) {
    char labels[256];
    metrics_text_head(text, "http_requests_total", "counter",
                      "Requests by method, class of status and route.");
    for (uint32_t i = 0; i < counters->n_handlers; i++) {
        const struct handler_counters *one = &counters->handlers[i];
        for (unsigned class = 0; class < COUNTERS_N_CLASSES; class ++) {
            if (one->by_class[class] == 0) continue;
            snprintf(labels, sizeof(labels), "method=\"%s\",status=\"%s\",handler=\"%s\"",
                     one->method, classes[class] ? classes[class] : "1xx", one->handler);
            metrics_text_sample(text, "http_requests_total", labels, (double)one->by_class[class]);
        }
    }
    metrics_text_head(text, "http_request_duration_seconds", "histogram",
                      "Seconds from the request to the end of its answer, by route; of routes that "
                      "generate.");
    for (uint32_t i = 0; i < counters->n_handlers; i++) {
        const struct handler_counters *one = &counters->handlers[i];
        if (one->seconds.n == 0) continue;
        snprintf(labels, sizeof(labels), "method=\"%s\",handler=\"%s\"", one->method, one->handler);
        metrics_text_buckets(text, "http_request_duration_seconds", labels, &histogram_request_s,
                             &one->seconds);
    }
}

void metrics_server_write(const struct metrics_text *text, const struct server *server) {
    const uint64_t n_spans_lost = server->otlp ? otlp_n_lost(server->otlp) : 0;
    const struct metric_value values[] = {
        {{{"quire_ready"},
          "1: the server takes requests; 0: its model is being loaded, or it shuts down."},
         server->replicas && !server->draining},
        {{{"quire_spans_lost_total"},
          "Spans of --otlp-endpoint that were dropped or that the collector did not take."},
         (double)n_spans_lost},
        {{{"quire_log_dropped_lines_total"},
          "Log lines that were dropped because stderr was blocked or failed."},
         (double)log_n_lost()},
    };
    metrics_text_values(text, values, COUNT(values));
    write_answers(text, &server->counters);
    write_handlers(text, &server->counters);
}

void metrics_server_write_caches(const struct metrics_text *text, const struct server *server) {
    if (server->limits.tokenizer_cache) {
        const struct tokenizer_cache_stats cache =
            tokenizer_cache_stats(server->limits.tokenizer_cache);
        write_tokenizer_cache(text, &cache);
    }
    if (server->responses) {
        const struct responses_store_stats stored = responses_store_stats(server->responses);
        write_responses_store(text, &stored);
    }
}
