/* trace.c - see trace.h. */
#include "server/api/trace.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "server/api/completion.h"
#include "server/api/server.h"
#include "server/http/http.h"
#include "server/otlp/exporter.h"

enum { SPAN_KIND_SERVER = 2 };

void trace_begin(struct completion *c, const struct http_exchange *exchange) {
    struct timespec now;
    if (!c->job.server->otlp) return;
    clock_gettime(CLOCK_REALTIME, &now);
    c->started_unix_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    trace_context_begin(&c->trace, http_header(exchange, "traceparent"));
}

static void write_key(struct buffer *out, const char *key) {
    buffer_printf(out, "{\"key\":\"%s\",\"value\":", key);
}

static void write_string(struct buffer *out, const char *key, const char *value) {
    write_key(out, key);
    buffer_puts(out, "{\"stringValue\":");
    buffer_json_string(out, value, strlen(value));
    buffer_puts(out, "}},");
}

/* Writes a whole number, which OTLP's JSON has as a string. */
static void write_int(struct buffer *out, const char *key, uint64_t value) {
    write_key(out, key);
    buffer_printf(out, "{\"intValue\":\"%" PRIu64 "\"}},", value);
}

static void write_double(struct buffer *out, const char *key, double value) {
    write_key(out, key);
    buffer_puts(out, "{\"doubleValue\":");
    buffer_json_double(out, value);
    buffer_puts(out, "}},");
}

static const char *reason_of(const struct choice *choice) {
    static const char *const names[] = {[FINISH_STOP] = "stop",
                                        [FINISH_LENGTH] = "length",
                                        [FINISH_CANCELLED] = "abort",
                                        [FINISH_ERROR] = "error"};
    return choice->finished ? names[choice->reason] : "abort";
}

static void write_reasons(struct buffer *out, const struct completion *c) {
    write_key(out, "gen_ai.response.finish_reasons");
    buffer_puts(out, "{\"arrayValue\":{\"values\":[");
    for (uint32_t i = 0; i < c->n_choices; i++)
        buffer_printf(out, "%s{\"stringValue\":\"%s\"}", i ? "," : "", reason_of(&c->choices[i]));
    buffer_puts(out, "]}}},");
}

static void write_request(struct buffer *out, const struct completion *c) {
    const struct sampling_params *params = &c->request.params;
    write_int(out, "gen_ai.request.max_tokens", c->request.max_tokens);
    write_double(out, "gen_ai.request.temperature", params->sampler.temperature);
    write_double(out, "gen_ai.request.top_p", params->sampler.top_p);
    if (params->has_seed) write_int(out, "gen_ai.request.seed", params->seed);
    write_int(out, "gen_ai.usage.input_tokens", c->n_prompt);
    write_int(out, "gen_ai.usage.output_tokens", completion_n_generated(c));
    write_int(out, "gen_ai.usage.cache_read.input_tokens", c->n_cached);
    write_reasons(out, c);
}

static void write_attributes(struct buffer *out, const struct completion *c,
                             const char *operation) {
    const char *model = c->job.server->model_name;
    char id[REQUEST_ID_MAX + 32];
    snprintf(id, sizeof(id), "%s%s", c->api->id_prefix, c->request_id);
    write_string(out, "gen_ai.operation.name", operation);
    write_string(out, "gen_ai.provider.name", "quire");
    write_string(out, "gen_ai.request.model", model);
    write_string(out, "gen_ai.response.model", model);
    write_string(out, "gen_ai.response.id", id);
    if (c->accepted) write_request(out, c);
    if (c->status == 0) write_string(out, "error.type", "client_gone");
    else if (c->status >= 400) {
        snprintf(id, sizeof(id), "%u", c->status);
        write_string(out, "error.type", id);
    }
    write_string(out, "http.route", c->api->path);
    out->length -= !out->failed; /* without the last comma */
}

static void write_span(struct buffer *out, const struct completion *c) {
    const bool is_text = strcmp(c->api->path, "/v1/completions") == 0, is_good = c->status == 200;
    const char *operation = is_text ? "text_completion" : "chat";
    const struct trace_context *trace = &c->trace;
    const uint64_t end = c->started_unix_ns + (uv_hrtime() - c->started_ns);
    buffer_printf(out, "{\"traceId\":\"%s\",\"spanId\":\"%s\",", trace->trace_id, trace->span_id);
    if (trace->parent_id[0]) buffer_printf(out, "\"parentSpanId\":\"%s\",", trace->parent_id);
    char name[512];
    snprintf(name, sizeof(name), "%s %s", operation, c->job.server->model_name);
    buffer_puts(out, "\"name\":");
    buffer_json_string(out, name, strlen(name));
    buffer_printf(out,
                  ",\"kind\":%d,\"startTimeUnixNano\":\"%" PRIu64
                  "\",\"endTimeUnixNano\":\"%" PRIu64 "\",\"attributes\":[",
                  SPAN_KIND_SERVER, c->started_unix_ns, end);
    write_attributes(out, c, operation);
    buffer_printf(out, "],\"status\":{%s}}", is_good ? "" : "\"code\":2");
}

void trace_end(const struct completion *c) {
    struct otlp *otlp = c->job.server->otlp;
    struct buffer span = {0};
    if (!otlp || !c->trace.sampled) return;
    write_span(&span, c);
    if (span.failed) buffer_fini(&span);
    else otlp_push(otlp, span.data, span.length);
}
