/* metrics.c - see metrics.h: what the engine counts, and the order of all.
 *
 * Every metric is one row here or in metrics_server.c, with all of its names. */
#include "server/ops/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "engine/base/count.h"
#include "engine/base/sizes.h"
#include "engine/device/pages.h"
#include "engine/engine.h"
#include "server/api/server.h"
#include "server/json/buffer.h"
#include "server/ops/metrics_server.h"
#include "server/ops/metrics_text.h"
#include "server/replicas/replicas.h"
#include "server/settings/kv_policy.h"
#include "server/settings/offload_rules.h"
#include "server/settings/prefill_rules.h"

static void write_queue(const struct metrics_text *text, const struct engine_stats *stats) {
    const struct metric_value values[] = {
        {{{"quire_requests_running", "vllm:num_requests_running"}, "Sequences that are running."},
         stats->n_running},
        {{{"quire_requests_waiting", "vllm:num_requests_waiting"}, "Sequences that are waiting."},
         stats->n_waiting},
        {{{"quire_requests_suspended", "vllm:num_requests_swapped"},
          "Waiting sequences that have run before and were preempted."},
         stats->n_suspended},
    };
    const uint32_t n_deferred =
        stats->n_deferred < stats->n_waiting ? stats->n_deferred : stats->n_waiting;
    const struct metric by_reason = {
        {"quire_requests_waiting_by_reason", "vllm:num_requests_waiting_by_reason"},
        "Sequences that are waiting for space (capacity), or for a shared prefix, the disk or "
        "another sparse prompt (deferred)."};
    const struct metric_point reasons[] = {{"capacity", stats->n_waiting - n_deferred},
                                           {"deferred", n_deferred}};
    metrics_text_values(text, values, COUNT(values));
    metrics_text_points(text, &by_reason, "reason", reasons, COUNT(reasons));
}

static void write_pages(const struct metrics_text *text, const struct engine_stats *stats) {
    const struct metric_value values[] = {
        {{{"quire_kv_use", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"},
          "Share of the KV pool's pages that sequences use, 0 to 1."},
         engine_stats_kv_use(stats)},
        {{{"quire_kv_pages_free"}, "Free pages of the KV pool."}, stats->pages_free},
        {{{"quire_kv_pages_cached"},
          "Pages of the KV pool that only cached prefixes and states use."},
         stats->pages_cached},
    };
    static const char total[] = "quire_kv_pages_total"; /* a gauge whatever its name says */
    metrics_text_values(text, values, COUNT(values));
    metrics_text_head(text, total, "gauge", "Pages of the KV pool.");
    metrics_text_sample(text, total, NULL, stats->pages_total);
}

static void write_endings(const struct metrics_text *text, const struct engine_stats *stats,
                          uint64_t n_queue_full) {
    const struct metric_value values[] = {
        {{{"quire_requests_submitted_total"}, "Sequences accepted."}, (double)stats->n_submitted},
        {{{"quire_requests_finished_total"}, "Sequences that finished."},
         (double)stats->n_finished},
        {{{"quire_requests_cancelled_total"},
          "Sequences that were cancelled, for example because the client disconnected."},
         (double)stats->n_cancelled},
        {{{"quire_requests_failed_total"}, "Sequences that failed."}, (double)stats->n_failed},
        {{{"quire_requests_not_numbers_total", "vllm:corrupted_requests_total"},
          "Sequences that failed because the model's output was not a number."},
         (double)stats->n_not_numbers},
        {{{"quire_preemptions_total", "vllm:num_preemptions_total"},
          "Preemptions of sequences because pages ran short."},
         (double)stats->n_preempted},
    };
    const struct metric success = {{"vllm:request_success_total"},
                                   "Sequences that ended, by reason."};
    const struct metric_point reasons[] = {
        {"stop", (double)(stats->n_finished - stats->n_finished_by_length)},
        {"length", (double)stats->n_finished_by_length},
        {"abort", (double)stats->n_cancelled},
        {"error", (double)stats->n_failed}};
    const struct metric refused = {
        {"quire_requests_refused_total", "vllm:admission_rejections_total"},
        "Requests that were refused, by the limit that they met."};
    const struct metric_point limits[] = {{"max_num_queued_reqs", (double)n_queue_full}};
    metrics_text_values(text, values, COUNT(values));
    metrics_text_points(text, &success, "finished_reason", reasons, COUNT(reasons));
    metrics_text_points(text, &refused, "reason", limits, COUNT(limits));
}

static void write_tokens(const struct metrics_text *text, const struct engine_stats *stats,
                         const struct throughput *throughput) {
    const double n_queried = (double)stats->queried_tokens, n_hit = (double)stats->cached_tokens;
    const struct metric_value values[] = {
        {{{"quire_prompt_tokens_total", "vllm:prompt_tokens_total"},
          "Prompt tokens of sequences that began to run."},
         (double)stats->prompt_tokens},
        {{{"quire_queried_tokens_total", "vllm:prefix_cache_queries_total",
           "vllm:gpu_prefix_cache_queries_total"},
          "Prompt tokens that were looked for in cached prefixes and states."},
         n_queried},
        {{{"quire_cached_tokens_total", "vllm:prompt_tokens_cached_total",
           "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"},
          "Prompt tokens found in cached prefixes and states."},
         n_hit},
        {{{"vllm:gpu_prefix_cache_hit_rate"},
          "Share of the prompt tokens looked for that were found, since the start."},
         n_queried > 0 ? n_hit / n_queried : 0},
        {{{"quire_generated_tokens_total", "vllm:generation_tokens_total"}, "Tokens generated."},
         (double)stats->generated_tokens},
        {{{"quire_steps_total"}, "Steps that the model computed."}, (double)stats->n_steps},
        {{{"quire_prompt_tokens_per_second", "vllm:avg_prompt_throughput_toks_per_s"},
          "Prompt tokens computed per second, over the last ten seconds that are complete."},
         throughput->prompt_per_s},
        {{{"quire_generated_tokens_per_second", "vllm:avg_generation_throughput_toks_per_s"},
          "Tokens generated per second, over the last ten seconds that are complete."},
         throughput->generated_per_s},
    };
    const struct metric by_source = {{"vllm:prompt_tokens_by_source_total"},
                                     "Prompt tokens by where they came from."};
    const struct metric_point sources[] = {{"local_compute", (double)stats->prompt_tokens - n_hit},
                                           {"local_cache_hit", n_hit}};
    metrics_text_values(text, values, COUNT(values));
    metrics_text_points(text, &by_source, "source", sources, COUNT(sources));
}

static void write_by_policy(const struct metrics_text *text, const struct metric *metric,
                            const double values[KV_MAX_POLICIES]) {
    struct metric_point points[KV_MAX_POLICIES];
    const unsigned n = kv_policies_count();
    for (unsigned i = 0; i < n; i++) points[i] = (struct metric_point){kv_type_name(i), values[i]};
    metrics_text_points(text, metric, "policy", points, n);
}

static void write_policies(const struct metrics_text *text, const struct engine_stats *stats) {
    static const struct metric metrics[] = {
        {{"quire_policy_requests_running"}, "Sequences that are running, by policy."},
        {{"quire_policy_requests_finished_total"}, "Sequences that finished, by policy."},
        {{"quire_policy_prompt_tokens_total"},
         "Prompt tokens of sequences that began to run, by policy."},
        {{"quire_policy_cached_tokens_total"},
         "Prompt tokens found in cached prefixes and states, by policy."},
        {{"quire_policy_generated_tokens_total"}, "Tokens generated, by policy."},
    };
    double values[COUNT(metrics)][KV_MAX_POLICIES];
    for (unsigned i = 0; i < KV_MAX_POLICIES; i++) {
        const struct engine_policy_stats *policy = &stats->policies[i];
        values[0][i] = policy->n_running;
        values[1][i] = (double)policy->n_finished;
        values[2][i] = (double)policy->prompt_tokens;
        values[3][i] = (double)policy->cached_tokens;
        values[4][i] = (double)policy->generated_tokens;
    }
    for (size_t i = 0; i < COUNT(metrics); i++) write_by_policy(text, &metrics[i], values[i]);
}

/* Writes the numbers of KV caches that have a metric: those by policy, or those for all. */
static void write_kv_numbers(const struct metrics_text *text, const struct engine_stats *stats) {
    for (unsigned i = 0; i < KV_N_NUMBERS; i++) {
        const struct kv_number_info *number = &kv_numbers[i];
        if (!number->metric) continue;
        const struct metric metric = {{number->metric}, number->help};
        double values[KV_MAX_POLICIES];
        for (unsigned k = 0; k < KV_MAX_POLICIES; k++) values[k] = (double)stats->kv[i][k];
        const struct metric_value sum = {metric, (double)engine_stats_kv(stats, i)};
        if (number->by_policy) write_by_policy(text, &metric, values);
        else metrics_text_values(text, &sum, 1);
    }
}

static void write_memory(const struct metrics_text *text, const struct engine_stats *stats,
                         const struct server *server) {
    const struct engine_info *info = server->info;
    const struct offload_rules *offload = &server->limits.kv.offload;
    const uint64_t fetched_bytes =
        offload_rules_copied_bytes(offload, engine_stats_kv(stats, KV_FETCHED_COPIES),
                                   engine_stats_kv(stats, KV_MOVED_COPIES));
    const struct metric_value values[] = {
        {{{"quire_weights_bytes", "vllm:model_weights_memory_bytes"},
          "Bytes of the model's weights."},
         (double)info->weight_bytes * replicas_n(server->replicas)},
        {{{"quire_weights_offloaded_bytes"},
          "Bytes of the weights that lie in the machine's memory: experts."},
         (double)info->offloaded_bytes * replicas_n(server->replicas)},
        {{{"quire_experts_fetched_bytes_total"},
          "Bytes of experts that the device has fetched from the machine's memory."},
         (double)stats->expert_fetched_bytes},
        {{{"quire_kv_fetched_bytes_total"}, "Bytes of the keys and values of fetched tokens."},
         (double)fetched_bytes},
        {{{"quire_kv_store_bytes"}, "Bytes of the host pool."}, (double)offload->host_pool_bytes},
        {{{"quire_kv_store_used_bytes"}, "Bytes of the host pool that are in use."},
         (double)stats->host_pool_used_bytes},
        {{{"quire_kv_pages_stored"},
          "Pages of the host pool that only cached prefixes and states use."},
         stats->pages_offloaded},
        {{{"quire_kv_pages_swapped_out_total"}, "Pages that were copied to the host pool."},
         (double)stats->n_swapped_out},
        {{{"quire_kv_pages_swapped_in_total"}, "Pages that were copied back from the host pool."},
         (double)stats->n_swapped_in},
        {{{"quire_kv_events_total"}, "Events of --kv-events: blocks that were stored or removed."},
         (double)stats->n_kv_events},
        {{{"quire_kv_events_overflows_total"},
          "How often events were lost because their thread was behind; readers were told to forget "
          "all blocks."},
         (double)stats->n_kv_feed_broken},
    };
    metrics_text_values(text, values, COUNT(values));
}

/* Writes the numbers of a model with recurrent layers. */
static void write_states(const struct metrics_text *text, const struct engine_stats *stats,
                         const struct server *server) {
    const struct engine_info *info = server->info;
    const uint32_t n = replicas_n(server->replicas);
    const struct metric_value values[] = {
        {{{"quire_recurrent_states"}, "Recurrent states that there is memory for."},
         (double)info->n_states * n},
        {{{"quire_recurrent_states_bytes"}, "Bytes of that memory."},
         (double)info->state_bytes * n},
        {{{"quire_recurrent_states_used"},
          "Recurrent states in use, by sequences and as checkpoints."},
         stats->n_states_used},
        {{{"quire_checkpoints"}, "Checkpoints that a prompt can begin from."},
         stats->checkpoints.n},
        {{{"quire_checkpoints_stored"}, "Checkpoints of these in the host's memory."},
         stats->checkpoints.n_stored},
        {{{"quire_checkpoints_left_total"}, "Checkpoints that sequences have left."},
         (double)stats->checkpoints.n_added},
        {{{"quire_checkpoints_hits_total"}, "Sequences that began from a checkpoint."},
         (double)stats->checkpoints.n_used},
    };
    if (info->n_states > 0) metrics_text_values(text, values, COUNT(values));
}

static void write_disk(const struct metrics_text *text, const struct kv_disk_stats *disk) {
    const struct metric_value values[] = {
        {{{"quire_kv_disk_items"}, "Cached blocks and states on disk."}, (double)disk->n_items},
        {{{"quire_kv_disk_bytes"}, "Bytes of their files."}, (double)disk->bytes},
        {{{"quire_kv_disk_max_bytes"}, "Most bytes that their files may have."},
         (double)disk->max_bytes},
        {{{"quire_kv_disk_written_total"}, "Blocks and states written to disk."},
         (double)disk->n_written},
        {{{"quire_kv_disk_written_bytes_total"}, "Bytes of these."}, (double)disk->written_bytes},
        {{{"quire_kv_disk_hits_total"}, "Blocks and states read from disk for requests."},
         (double)disk->n_read},
        {{{"quire_kv_disk_read_bytes_total"}, "Bytes of these."}, (double)disk->read_bytes},
        {{{"quire_kv_disk_dropped_total"},
          "Blocks and states that were evicted but not written, because the disk was behind."},
         (double)disk->n_dropped},
        {{{"quire_kv_disk_evicted_total"},
          "Files removed for newer ones, the least recently used first."},
         (double)disk->n_evicted},
        {{{"quire_kv_disk_refused_total"},
          "Files removed because they were damaged or not what their name said."},
         (double)disk->n_refused},
        {{{"quire_kv_disk_failed_total"}, "Reads and writes that the system refused."},
         (double)disk->n_failed},
    };
    metrics_text_values(text, values, COUNT(values));
}

static void write_by_pattern(const struct metrics_text *text, const struct metric *metric,
                             const double values[PATTERN_N_KINDS]) {
    struct metric_point points[PATTERN_N_KINDS];
    for (unsigned i = 0; i < PATTERN_N_KINDS; i++)
        points[i] =
            (struct metric_point){prefill_pattern_name((enum attn_pattern_kind)i), values[i]};
    metrics_text_points(text, metric, "pattern", points, PATTERN_N_KINDS);
}

static void write_prefill(const struct metrics_text *text, const struct counters *counters,
                          const struct sparse_totals *sparse) {
    static const struct metric prompts = {
        {"quire_prefill_prompts_total"}, "Sequences that ended, by how their prompt was computed."};
    static const struct metric visited = {
        {"quire_sparse_visited_pairs_total"},
        "Pairs of query row and key that sparse prompts visited, by pattern."};
    static const struct metric causal = {
        {"quire_sparse_causal_pairs_total"},
        "Pairs of query row and key that dense prompts would have visited, by pattern."};
    const struct metric_point modes[] = {{"dense", (double)counters->dense_prompts},
                                         {"sparse", (double)counters->sparse_prompts}};
    const struct metric_value values[] = {
        {{{"quire_sparse_dense_heads_total"},
          "Heads of a layer that visited every key because their index was too dense."},
         (double)sparse->n_dense},
        {{{"quire_sparse_index_seconds_total"}, "Device time that indices of sparse prompts took."},
         sparse->index_s},
        {{{"quire_sparse_attention_seconds_total"},
          "Device time that attention of sparse prompts took."},
         sparse->attention_s},
    };
    metrics_text_points(text, &prompts, "mode", modes, COUNT(modes));
    write_by_pattern(text, &visited, sparse->visited);
    write_by_pattern(text, &causal, sparse->causal);
    metrics_text_values(text, values, COUNT(values));
}

static void write_speculation(const struct metrics_text *text,
                              const struct speculation_usage *speculation) {
    const struct metric_value values[] = {
        {{{"quire_speculation_drafts_total", "vllm:spec_decode_num_drafts_total"},
          "Rows of steps that came with guesses of the tokens behind them."},
         (double)speculation->n_drafts},
        {{{"quire_speculation_drafted_tokens_total", "vllm:spec_decode_num_draft_tokens_total"},
          "Tokens that were guessed."},
         (double)speculation->n_drafted},
        {{{"quire_speculation_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"},
          "Guessed tokens that are in answers."},
         (double)speculation->n_accepted},
        {{{"quire_speculation_recent_drafted_tokens_total"},
          "Guessed tokens that were found in recent answers of other requests."},
         (double)speculation->n_recent_drafted},
        {{{"quire_speculation_recent_accepted_tokens_total"},
          "Of these, those that are in answers."},
         (double)speculation->n_recent_accepted},
    };
    metrics_text_values(text, values, COUNT(values));
}

/* The engine's histograms. */
static const struct metric histograms[ENGINE_N_HISTOGRAMS] = {
    [ENGINE_FIRST_TOKEN_S] = {{"quire_time_to_first_token_seconds",
                               "vllm:time_to_first_token_seconds"},
                              "Seconds from the request to the sequence's first token."},
    [ENGINE_BETWEEN_TOKENS_S] = {{"quire_inter_token_seconds", "vllm:inter_token_latency_seconds"},
                                 "Seconds between two tokens of a sequence."},
    [ENGINE_PER_TOKEN_S] = {{"quire_time_per_output_token_seconds",
                             "vllm:request_time_per_output_token_seconds",
                             "vllm:time_per_output_token_seconds"},
                            "Mean seconds for a token behind the first, of each sequence that "
                            "finished."},
    [ENGINE_WHOLE_S] = {{"quire_request_seconds", "vllm:e2e_request_latency_seconds"},
                        "Seconds from the request to the end of the sequence."},
    [ENGINE_QUEUED_S] = {{"quire_request_queue_seconds", "vllm:request_queue_time_seconds"},
                         "Seconds that a sequence waited until it first ran."},
    [ENGINE_RUNNING_S] = {{"quire_request_inference_seconds",
                           "vllm:request_inference_time_seconds"},
                          "Seconds from the first run of a sequence to its end."},
    [ENGINE_PREFILL_S] = {{"quire_request_prefill_seconds", "vllm:request_prefill_time_seconds"},
                          "Seconds from the first run of a sequence to its first token."},
    [ENGINE_DECODE_S] = {{"quire_request_decode_seconds", "vllm:request_decode_time_seconds"},
                         "Seconds from the first token of a sequence to its end."},
    [ENGINE_PROMPT_TOKENS] = {{"quire_request_prompt_tokens", "vllm:request_prompt_tokens"},
                              "Prompt tokens of each sequence that finished."},
    [ENGINE_GENERATED_TOKENS] = {{"quire_request_generated_tokens",
                                  "vllm:request_generation_tokens"},
                                 "Tokens that each sequence generated that finished."},
    [ENGINE_STEP_TOKENS] = {{"quire_step_tokens", "vllm:iteration_tokens_total"},
                            "Tokens that each step of the model computed."},
};

static void write_histograms(const struct metrics_text *text, const struct engine_stats *stats,
                             const struct counters *counters) {
    static const struct metric whole = {{"quire_completion_seconds"},
                                        "Seconds from the request to the end of its answer."};
    static const struct metric choices = {{"quire_request_choices", "vllm:request_params_n"},
                                          "Choices for each prompt, of each request."};
    static const struct metric most = {
        {"quire_request_max_tokens", "vllm:request_params_max_tokens"},
        "Most tokens that each request asked for."};
    static const struct metric longest = {
        {"quire_request_longest_tokens", "vllm:request_max_num_generation_tokens"},
        "Tokens of the longest choice of each request."};
    for (unsigned i = 0; i < ENGINE_N_HISTOGRAMS; i++)
        metrics_text_histogram(text, &histograms[i], engine_histogram_bounds[i],
                               &stats->histograms[i]);
    metrics_text_histogram(text, &whole, &histogram_request_s, &counters->whole);
    metrics_text_histogram(text, &choices, &histogram_choices, &counters->n_choices);
    metrics_text_histogram(text, &most, &histogram_tokens, &counters->max_tokens);
    metrics_text_histogram(text, &longest, &histogram_tokens, &counters->longest);
}

/* Writes the cache as vLLM describes it: in blocks, each a page in every layer. */
static void write_cache_config(const struct metrics_text *text, const struct server *server) {
    const struct engine_info *info = server->info;
    const uint32_t n = replicas_n(server->replicas);
    const struct cache_setting *cache = &server->cache;
    static const char name[] = "vllm:cache_config_info";
    char labels[256];
    snprintf(labels, sizeof(labels),
             "block_size=\"%u\",num_gpu_blocks=\"%" PRIu64 "\",num_cpu_blocks=\"%" PRIu64
             "\",cache_dtype=\"%s\",enable_prefix_caching=\"%s\",gpu_memory_utilization=\"%g\"",
             (unsigned)PAGE_TOKENS, n * info->kv_tokens / PAGE_TOKENS,
             n * info->host_pool_tokens / PAGE_TOKENS, cache->dtype ? cache->dtype : "auto",
             cache->has_prefixes ? "True" : "False", cache->device_share);
    metrics_text_head(text, name, "gauge",
                      "The KV cache: its size in blocks of all layers, and its settings.");
    metrics_text_sample(text, name, labels, 1);
}

/* The most replicas, and ranks, that have samples of their own. */
enum { MOST_SHOWN_REPLICAS = 64 };

/* Writes what each of the ranks has that share a model. */
static void write_ranks(const struct metrics_text *text, const struct replicas *replicas) {
    static const struct metric metrics[] = {
        {{"quire_rank_weights_bytes"}, "Bytes of the model's weights, by rank."},
        {{"quire_rank_kv_bytes"}, "Bytes of the KV pool, by rank."},
        {{"quire_rank_recurrent_states_bytes"}, "Bytes of recurrent states, by rank."},
        {{"quire_rank_host_pool_bytes"}, "Bytes of the host pool, by rank."},
        {{"quire_rank_busy_seconds_total"},
         "Seconds in which the rank's thread computed or submitted steps, by rank."},
        {{"quire_rank_waited_seconds_total"},
         "Of these, seconds in which it waited for other ranks."},
    };
    struct metric_point points[COUNT(metrics)][MOST_SHOWN_REPLICAS];
    char names[MOST_SHOWN_REPLICAS][11];
    const uint32_t n = min_u32(replicas_n_ranks(replicas), MOST_SHOWN_REPLICAS);
    for (uint32_t i = 0; i < n; i++) {
        struct engine_rank rank;
        replicas_rank(replicas, i, &rank);
        const double values[COUNT(metrics)] = {
            (double)rank.weight_bytes,    (double)rank.kv_bytes, (double)rank.state_bytes,
            (double)rank.host_pool_bytes, rank.busy_s,           rank.waited_s};
        snprintf(names[i], sizeof(names[i]), "%" PRIu32, i);
        for (size_t k = 0; k < COUNT(metrics); k++)
            points[k][i] = (struct metric_point){names[i], values[k]};
    }
    for (size_t k = 0; k < COUNT(metrics); k++)
        if (!isnan(points[k][0].value)) /* the device knows it */
            metrics_text_points(text, &metrics[k], "rank", points[k], n);
}

/* Writes what each replica does, where there are several. */
static void write_replicas(const struct metrics_text *text, struct replicas *replicas) {
    static const struct metric metrics[] = {
        {{"quire_replica_healthy"}, "1: the replica takes requests; 0: it has failed."},
        {{"quire_replica_requests_running"}, "Sequences that are running, by replica."},
        {{"quire_replica_requests_waiting"}, "Sequences that are waiting, by replica."},
        {{"quire_replica_kv_use"}, "Share of the KV pool's pages in use, by replica."},
        {{"quire_replica_requests_submitted_total"}, "Sequences accepted, by replica."},
        {{"quire_replica_prompt_tokens_total"},
         "Prompt tokens of sequences that began to run, by replica."},
        {{"quire_replica_cached_tokens_total"},
         "Prompt tokens found in cached prefixes and states, by replica."},
        {{"quire_replica_generated_tokens_total"}, "Tokens generated, by replica."},
        {{"quire_replica_steps_total"}, "Steps that the model computed, by replica."},
    };
    struct metric_point points[COUNT(metrics)][MOST_SHOWN_REPLICAS];
    char names[MOST_SHOWN_REPLICAS][11];
    const uint32_t n = min_u32(replicas_n(replicas), MOST_SHOWN_REPLICAS);
    for (uint32_t i = 0; i < n; i++) {
        struct engine_stats stats;
        replicas_stats_of(replicas, i, &stats);
        const double values[COUNT(metrics)] = {replicas_is_healthy(replicas, i),
                                               stats.n_running,
                                               stats.n_waiting,
                                               engine_stats_kv_use(&stats),
                                               (double)stats.n_submitted,
                                               (double)stats.prompt_tokens,
                                               (double)stats.cached_tokens,
                                               (double)stats.generated_tokens,
                                               (double)stats.n_steps};
        snprintf(names[i], sizeof(names[i]), "%" PRIu32, i);
        for (size_t k = 0; k < COUNT(metrics); k++)
            points[k][i] = (struct metric_point){names[i], values[k]};
    }
    /* Whether it is healthy is told of one replica, too: an alert must find the metric. */
    for (size_t k = 0; k < (n > 1 ? COUNT(metrics) : 1); k++)
        metrics_text_points(text, &metrics[k], "replica", points[k], n);
}

void metrics_write(const struct server *server, const struct engine_stats *stats,
                   struct buffer *out) {
    const struct metrics_text text = {out, server->model_name};
    const struct counters *counters = &server->counters;
    metrics_server_write(&text, server);
    if (!stats) return;
    write_queue(&text, stats);
    write_pages(&text, stats);
    write_endings(&text, stats, counters->n_queue_full);
    write_tokens(&text, stats, &server->throughput);
    write_policies(&text, stats);
    write_kv_numbers(&text, stats);
    write_states(&text, stats, server);
    write_memory(&text, stats, server);
    if (stats->disk.max_bytes > 0) write_disk(&text, &stats->disk);
    write_prefill(&text, counters, &stats->sparse);
    write_speculation(&text, &stats->speculation);
    metrics_server_write_caches(&text, server);
    write_histograms(&text, stats, counters);
    write_cache_config(&text, server);
    write_replicas(&text, server->replicas);
    if (replicas_n_ranks(server->replicas) > replicas_n(server->replicas))
        write_ranks(&text, server->replicas);
}
