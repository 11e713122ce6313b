/* state.c - GET /state: what the engine does now, in one small JSON object, for the page at / and
 * for people to look at.  Dashboards read /metrics, which has more. */
#include "server/api/handlers.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/engine.h"
#include "server/api/reply.h"
#include "server/api/server.h"
#include "server/http/http.h"
#include "server/json/buffer.h"
#include "server/replicas/replicas.h"
#include "server/settings/kv_policy.h"

static const char *condition(const struct server *server) {
    if (server->replicas && replicas_n_healthy(server->replicas) == 0) return "failed";
    if (server->draining) return "draining";
    return server->replicas ? "ready" : "loading";
}

static void write_requests(const struct engine_stats *stats, struct buffer *out) {
    buffer_printf(out,
                  ",\"requests\":{\"running\":%u,\"waiting\":%u,\"submitted\":%" PRIu64
                  ",\"finished\":%" PRIu64 ",\"cancelled\":%" PRIu64 ",\"failed\":%" PRIu64
                  ",\"preempted\":%" PRIu64 "}",
                  stats->n_running, stats->n_waiting, stats->n_submitted, stats->n_finished,
                  stats->n_cancelled, stats->n_failed, stats->n_preempted);
    buffer_printf(out,
                  ",\"tokens\":{\"prompt\":%" PRIu64 ",\"cached\":%" PRIu64
                  ",\"generated\":%" PRIu64 "},\"steps\":%" PRIu64,
                  stats->prompt_tokens, stats->cached_tokens, stats->generated_tokens,
                  stats->n_steps);
}

static void write_memory(const struct engine_info *info, const struct engine_stats *stats,
                         struct buffer *out) {
    buffer_printf(out, ",\"pages\":{\"total\":%u,\"free\":%u,\"cached\":%u}", stats->pages_total,
                  stats->pages_free, stats->pages_cached);
    buffer_printf(out, ",\"host_pool\":{\"bytes\":%" PRIu64 ",\"used_bytes\":%" PRIu64 "}",
                  info->host_pool_bytes, stats->host_pool_used_bytes);
}

static void write_policies(const struct engine_stats *stats, struct buffer *out) {
    buffer_puts(out, ",\"policies\":[");
    for (unsigned i = 0; i < kv_policies_count(); i++)
        buffer_printf(
            out,
            "%s{\"policy\":\"%s\",\"running\":%u,\"pages\":%u,\"resident_tokens\":%" PRIu64 "}",
            i ? "," : "", kv_type_name(i), stats->policies[i].n_running, stats->policies[i].n_pages,
            stats->kv[KV_RESIDENT_TOKENS][i]);
    buffer_puts(out, "]");
}

static void write_sequences(const struct engine_stats *stats, struct buffer *out) {
    buffer_puts(out, ",\"sequences\":[");
    for (uint32_t i = 0; i < stats->n_shown; i++) {
        const struct running_sequence *seq = &stats->shown[i];
        buffer_printf(out,
                      "%s{\"policy\":\"%s\",\"prompt_tokens\":%u,\"processed_tokens\":%u,"
                      "\"generated_tokens\":%u,\"pages\":%u,\"sparse\":%s}",
                      i ? "," : "", kv_type_name(seq->type), seq->n_prompt, seq->n_processed,
                      seq->n_generated, seq->n_pages, seq->was_sparse ? "true" : "false");
    }
    buffer_puts(out, "]");
}

static void write_times(const char *name, const struct histogram *times, struct buffer *out) {
    buffer_printf(out, ",\"%s\":{\"count\":%" PRIu64 ",\"seconds\":%.6f}", name, times->n,
                  times->sum);
}

static void write_engine(struct server *server, struct buffer *out) {
    struct engine_stats stats;
    replicas_stats(server->replicas, &stats);
    write_requests(&stats, out);
    write_memory(server->info, &stats, out);
    write_policies(&stats, out);
    write_sequences(&stats, out);
    write_times("first_token", &stats.histograms[ENGINE_FIRST_TOKEN_S], out);
    write_times("completion", &stats.histograms[ENGINE_WHOLE_S], out);
}

void state_handle(struct server *server, struct http_exchange *exchange) {
    struct buffer body = {0};
    buffer_puts(&body, "{\"model\":");
    buffer_json_string(&body, server->model_name, strlen(server->model_name));
    buffer_printf(&body, ",\"state\":\"%s\",\"time_s\":%.3f", condition(server), clock_seconds());
    if (server->replicas) write_engine(server, &body);
    buffer_puts(&body, "}");
    http_set_header(exchange, "Cache-Control", "no-store");
    reply_polled(server, exchange, "application/json", &body);
}
