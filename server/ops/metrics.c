/* metrics.c - see metrics.h. */
#include "server/ops/metrics.h"

#include <inttypes.h>

#include "engine/engine.h"
#include "server/api/counters.h"
#include "server/json/buffer.h"
#include "server/settings/kv_policy.h"
#include "server/settings/log.h"
#include "server/settings/offload_rules.h"
#include "server/settings/prefill_rules.h"

static void write_histogram(struct buffer *out, const char *name, const char *help,
                            const struct histogram *h) {
    buffer_printf(out, "# HELP %s %s\n# TYPE %s histogram\n", name, help, name);
    uint64_t n = 0;
    for (size_t i = 0; i < COUNTERS_N_BUCKETS; i++) {
        n += h->buckets[i];
        buffer_printf(out, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, counters_bounds[i], n);
    }
    buffer_printf(out, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n%s_sum %.6f\n%s_count %" PRIu64 "\n",
                  name, h->n, name, h->sum, name, h->n);
}

static void write_answers(struct buffer *out, const struct counters *counters) {
    buffer_puts(out, "# HELP quire_http_answers_total Answers by class of status; gone: the client "
                     "disconnected first.\n# TYPE quire_http_answers_total counter\n");
    for (unsigned i = 0; i < 6; i++) {
        if (i == 1) continue;
        if (i == 0) {
            buffer_printf(out, "quire_http_answers_total{status=\"gone\"} %" PRIu64 "\n",
                          counters->by_class[0]);
        } else {
            buffer_printf(out, "quire_http_answers_total{status=\"%uxx\"} %" PRIu64 "\n", i,
                          counters->by_class[i]);
        }
    }
}

static void write_number_by_policy(struct buffer *out, const char *name,
                                   const uint64_t values[KV_MAX_POLICIES]) {
    for (unsigned i = 0; i < kv_policies_count(); i++)
        buffer_printf(out, "%s{policy=\"%s\"} %" PRIu64 "\n", name, kv_type_name(i), values[i]);
}

/* Writes the numbers of KV caches that have a metric: those by policy, or those for all. */
static void write_numbers(struct buffer *out, const struct engine_stats *stats, bool by_policy) {
    for (unsigned i = 0; i < KV_N_NUMBERS; i++) {
        const struct kv_number_info *number = &kv_numbers[i];
        const char *name = number->metric;
        if (!name || number->by_policy != by_policy) continue;
        buffer_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, number->help, name,
                      number->adding == KV_ADD_LEVEL ? "gauge" : "counter");
        if (by_policy) write_number_by_policy(out, name, stats->kv[i]);
        else buffer_printf(out, "%s %" PRIu64 "\n", name, engine_stats_kv(stats, i));
    }
}

static void write_by_pattern(struct buffer *out, const char *name, const char *help,
                             const double values[PATTERN_N_KINDS]) {
    buffer_printf(out, "# HELP %s %s\n# TYPE %s counter\n", name, help, name);
    for (unsigned i = 0; i < PATTERN_N_KINDS; i++)
        buffer_printf(out, "%s{pattern=\"%s\"} %.0f\n", name,
                      prefill_pattern_name((enum attn_pattern_kind)i), values[i]);
}

static void write_seconds(struct buffer *out, const char *name, const char *help, double value) {
    buffer_printf(out, "# HELP %s %s\n# TYPE %s counter\n%s %.6f\n", name, help, name, name, value);
}

static void write_prefill(struct buffer *out, const struct counters *counters,
                          const struct sparse_totals *sparse) {
    buffer_printf(out,
                  "# HELP quire_prefill_prompts_total Sequences that ended, by how their prompt "
                  "was computed.\n# TYPE quire_prefill_prompts_total counter\n"
                  "quire_prefill_prompts_total{mode=\"dense\"} %" PRIu64 "\n"
                  "quire_prefill_prompts_total{mode=\"sparse\"} %" PRIu64 "\n",
                  counters->dense_prompts, counters->sparse_prompts);
    write_by_pattern(out, "quire_sparse_visited_pairs_total",
                     "Pairs of query row and key that sparse prompts visited, by pattern.",
                     sparse->visited);
    write_by_pattern(
        out, "quire_sparse_causal_pairs_total",
        "Pairs of query row and key that dense prompts would have visited, by pattern.",
        sparse->causal);
    buffer_printf(out,
                  "# HELP quire_sparse_dense_heads_total Heads of a layer that visited every key "
                  "because their index was too dense.\n# TYPE quire_sparse_dense_heads_total "
                  "counter\nquire_sparse_dense_heads_total %" PRIu64 "\n",
                  sparse->n_dense);
    write_seconds(out, "quire_sparse_index_seconds_total",
                  "Device time that indices of sparse prompts took.", sparse->index_s);
    write_seconds(out, "quire_sparse_attention_seconds_total",
                  "Device time that attention of sparse prompts took.", sparse->attention_s);
}

struct sample {
    const char *name, *type, *help;
    uint64_t value;
};

static void write_samples(struct buffer *out, const struct sample *samples, size_t n) {
    for (size_t i = 0; i < n; i++) {
        buffer_printf(out, "# HELP %s %s\n# TYPE %s %s\n%s %" PRIu64 "\n", samples[i].name,
                      samples[i].help, samples[i].name, samples[i].type, samples[i].name,
                      samples[i].value);
    }
}

static void write_requests(struct buffer *out, const struct engine_stats *stats) {
    const struct sample samples[] = {
        {"quire_requests_running", "gauge", "Sequences that are running.", stats->n_running},
        {"quire_requests_waiting", "gauge", "Sequences that are waiting.", stats->n_waiting},
        {"quire_kv_pages_total", "gauge", "Pages of the KV pool.", stats->pages_total},
        {"quire_kv_pages_free", "gauge", "Free pages of the KV pool.", stats->pages_free},
        {"quire_kv_pages_cached", "gauge",
         "Pages of the KV pool that only cached prefixes and states use.", stats->pages_cached},
        {"quire_requests_submitted_total", "counter", "Sequences accepted.", stats->n_submitted},
        {"quire_requests_finished_total", "counter", "Sequences that finished.", stats->n_finished},
        {"quire_requests_cancelled_total", "counter",
         "Sequences that were cancelled, for example because the client disconnected.",
         stats->n_cancelled},
        {"quire_requests_failed_total", "counter", "Sequences that failed.", stats->n_failed},
        {"quire_preemptions_total", "counter", "Preemptions of sequences because pages ran short.",
         stats->n_preempted},
        {"quire_prompt_tokens_total", "counter", "Prompt tokens of accepted sequences.",
         stats->prompt_tokens},
        {"quire_cached_tokens_total", "counter",
         "Prompt tokens found in cached prefixes and states.", stats->cached_tokens},
        {"quire_generated_tokens_total", "counter", "Tokens generated.", stats->generated_tokens},
        {"quire_steps_total", "counter", "Steps that the model computed.", stats->n_steps},
    };
    write_samples(out, samples, sizeof(samples) / sizeof(*samples));
}

static void write_memory(struct buffer *out, const struct engine_stats *stats,
                         const struct offload_rules *offload) {
    const struct sample samples[] = {
        {"quire_kv_fetched_bytes_total", "counter",
         "Bytes of the keys and values of fetched tokens.",
         offload_rules_copied_bytes(offload, engine_stats_kv(stats, KV_FETCHED_COPIES),
                                    engine_stats_kv(stats, KV_MOVED_COPIES))},
        {"quire_kv_store_bytes", "gauge", "Bytes of the host pool.", offload->host_pool_bytes},
        {"quire_kv_store_used_bytes", "gauge", "Bytes of the host pool that are in use.",
         stats->host_pool_used_bytes},
        {"quire_kv_pages_stored", "gauge",
         "Pages of the host pool that only cached prefixes and states use.", stats->pages_stored},
        {"quire_kv_pages_swapped_out_total", "counter", "Pages that were copied to the host pool.",
         stats->n_swapped_out},
        {"quire_kv_pages_swapped_in_total", "counter",
         "Pages that were copied back from the host pool.", stats->n_swapped_in},
        {"quire_log_dropped_lines_total", "counter",
         "Log lines that were dropped because stderr was blocked or failed.", log_n_lost()},
    };
    write_samples(out, samples, sizeof(samples) / sizeof(*samples));
}

static void write_disk(struct buffer *out, const struct kv_disk_stats *disk) {
    const struct sample samples[] = {
        {"quire_kv_disk_items", "gauge", "Cached blocks and states on disk.", disk->n_items},
        {"quire_kv_disk_bytes", "gauge", "Bytes of their files.", disk->bytes},
        {"quire_kv_disk_max_bytes", "gauge", "Most bytes that their files may have.",
         disk->max_bytes},
        {"quire_kv_disk_written_total", "counter", "Blocks and states written to disk.",
         disk->n_written},
        {"quire_kv_disk_written_bytes_total", "counter", "Bytes of these.", disk->written_bytes},
        {"quire_kv_disk_hits_total", "counter", "Blocks and states read from disk for requests.",
         disk->n_read},
        {"quire_kv_disk_read_bytes_total", "counter", "Bytes of these.", disk->read_bytes},
        {"quire_kv_disk_dropped_total", "counter",
         "Blocks and states that were evicted but not written, because the disk was behind.",
         disk->n_dropped},
        {"quire_kv_disk_evicted_total", "counter",
         "Files removed for newer ones, the least recently used first.", disk->n_evicted},
        {"quire_kv_disk_refused_total", "counter",
         "Files removed because they were damaged or not what their name said.", disk->n_refused},
        {"quire_kv_disk_failed_total", "counter", "Reads and writes that the system refused.",
         disk->n_failed},
    };
    write_samples(out, samples, sizeof(samples) / sizeof(*samples));
}

void metrics_write(const struct counters *counters, const struct engine_stats *stats,
                   const struct offload_rules *offload, struct buffer *out) {
    write_requests(out, stats);
    write_numbers(out, stats, false);
    write_memory(out, stats, offload);
    if (stats->disk.max_bytes > 0) write_disk(out, &stats->disk);
    write_numbers(out, stats, true);
    write_prefill(out, counters, &stats->sparse);
    write_answers(out, counters);
    write_histogram(out, "quire_time_to_first_token_seconds",
                    "Seconds from the request to its first event.", &counters->first_token);
    write_histogram(out, "quire_completion_seconds",
                    "Seconds from the request to the end of its answer.", &counters->whole);
}
