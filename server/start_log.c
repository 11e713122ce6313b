/* start_log.c - see start_log.h. */
#include "server/start_log.h"

#include <inttypes.h>

#include "engine/engine.h"
#include "engine/model/model.h"
#include "server/api/server.h"
#include "server/model_load.h"
#include "server/model_summary.h"
#include "server/replicas/replicas.h"
#include "server/settings/log.h"
#include "server/settings/options.h"

/* Describes the source of the least length that is sparse under auto, for the log. */
static const char *break_even_source(const struct options *options, const struct model_load *load) {
    if (options->min_sparse_tokens) return "--min-sparse-tokens";
    return load->prefill.measured_on
               ? "measured on this backend"
               : "the default: the pattern file has no measurement on this backend";
}

static void log_prefill(const struct server *server, const struct options *options,
                        const struct model_load *load) {
    const struct prefill_rules *rules = &server->limits.prefill;
    const struct prefill_setup *setup = &load->prefill;
    if (!rules->sparse) {
        log_event(LOG_INFO, "prefill: dense: %s", rules->why_dense);
    } else if (setup->path && setup->loses) {
        log_event(LOG_WARN,
                  "prefill: %s, dense under auto: the patterns of %s lose %.2f of perplexity on "
                  "held-out text, and %.1f is allowed; --min-sparse-tokens takes them all the same",
                  prefill_mode_name(rules->initial), setup->path, patterns_loss(&setup->patterns),
                  PATTERNS_MOST_LOSS);
    } else if (setup->path) {
        log_event(LOG_INFO, "prefill: %s, patterns of %s, sparse from %u tokens on under auto (%s)",
                  prefill_mode_name(rules->initial), setup->path, rules->min_sparse_tokens,
                  break_even_source(options, load));
    } else {
        log_event(LOG_INFO, "prefill: %s, dense under auto: no pattern file for this model",
                  prefill_mode_name(rules->initial));
    }
}

static void log_offload(const struct server *server, const struct options *options,
                        const struct model_load *load) {
    const struct offload_rules *rules = &server->limits.kv.offload;
    const struct engine_info *info = server->info;
    if (!kv_rules_allow(&options->kv_rules, KV_SELECTING)) return;
    if (rules->why_not) {
        log_event(LOG_INFO, "offload: not available: %s", rules->why_not);
        return;
    }
    log_event(LOG_INFO, "offload: filter layers of %s, host pool of %" PRIu64 " tokens%s",
              load->offload.path, info->host_pool_tokens,
              rules->host_pool_fp8 ? ", in 8 bits" : "");
}

static void log_disk_plan(const struct server *server, const struct options *options) {
    struct engine_stats stats;
    const double mib = 1 << 20;
    if (!options->kv_disk_path) return;
    replicas_stats(server->replicas, &stats);
    log_event(LOG_INFO, "cache on disk: %s has %" PRIu64 " items, %.1f of at most %.1f MiB",
              options->kv_disk_path, stats.disk.n_items, (double)stats.disk.bytes / mib,
              (double)stats.disk.max_bytes / mib);
    if (server->info->disk_former_ranks)
        log_event(LOG_WARN,
                  "the cache on disk: its files are of a server with %s, and this one, with %s, "
                  "finds none of them",
                  server->info->disk_former_ranks, server->info->disk_ranks);
}

static void log_head(const struct server *server) {
    static const char *const texts[] = {
        [HEAD_OWN] = "lm_head.weight",
        [HEAD_TIED] = "the embedding, tied",
        [HEAD_EQUAL] = "the embedding, tied: the file's lm_head.weight is the same",
        [HEAD_FOUND] = "the file's lm_head.weight, which is not the embedding, although "
                       "'tie_word_embeddings' is true",
    };
    log_event(LOG_INFO, "logits come from %s", texts[server->info->model->head_source]);
}

static void log_left_out(const struct server *server) {
    const struct weight_tally *tally = server->info->weights;
    if (tally->n_left_out > 0)
        log_event(LOG_INFO, "%s: %" PRIu32 " tensors are not loaded, of %s",
                  server->info->model->is_text_half ? "only text is served"
                                                    : "parts that guess tokens are not served",
                  tally->n_left_out, tally->left_out);
}

/* Warns of what the system's memory does not hold.  Pages are taken as they are first used, so the
 * kernel ends the process later, in the middle of requests. */
static void warn_of_memory(const struct server *server, const struct options *options) {
    const struct engine_info *info = server->info;
    const double mib = 1 << 20;
    const uint64_t planned =
        info->kv_bytes + info->state_bytes + info->host_pool_bytes + info->workspace_bytes;
    if (info->device_bytes || info->available_bytes == 0) return;
    if (planned > info->available_bytes)
        log_event(
            LOG_WARN,
            "memory plan: KV pool, host pool and workspace may take %.1f MiB, but %.1f MiB can "
            "be had beside the weights: lower --kv-cache-memory, --kv-offload-size or "
            "--max-num-batched-tokens, or raise the limit of the container",
            (double)planned / mib, (double)info->available_bytes / mib);
    if (!options->max_model_len && info->max_model_len < info->model->max_position)
        log_event(LOG_WARN,
                  "memory plan: texts of up to %" PRIu32 " tokens, not the model's %" PRIu32
                  ": no more fit into a quarter of the %.1f MiB that can be had; --kv-cache-memory "
                  "sets the KV pool",
                  info->max_model_len, info->model->max_position,
                  (double)info->available_bytes / mib);
}

static void log_plan(const struct server *server, const struct options *options,
                     const struct model_load *load) {
    const struct engine_info *info = server->info;
    const double mib = 1 << 20;
    /* Without a pattern file auto is dense, but a request for sparse gets the default patterns. */
    const bool only_if_asked = !load->prefill.path && options->prefill == PREFILL_AUTO &&
                               !(info->selections && info->host_pool_bytes > 0);
    log_event(LOG_INFO, "model %s: context %u tokens", server->model_name, info->max_model_len);
    if (info->device_bytes)
        log_event(LOG_INFO,
                  "memory plan: %.1f MiB of the device's %.1f MiB; other programs use %.1f MiB",
                  (double)info->device_bytes * options->gpu_memory_utilization / mib,
                  (double)info->device_bytes / mib, (double)info->other_bytes / mib);
    log_event(LOG_INFO,
              "memory plan: weights %.1f MiB, KV pool %.1f MiB (%" PRIu64
              " tokens in %u pages), workspace %.1f MiB",
              (double)info->weight_bytes / mib, (double)info->kv_bytes / mib, info->kv_tokens,
              info->n_pages, (double)info->workspace_bytes / mib);
    if (info->offloaded_bytes > 0)
        log_event(LOG_INFO,
                  "memory plan: of the weights, %.1f MiB lie in the machine's memory: the experts "
                  "of %" PRIu32 " layers",
                  (double)info->offloaded_bytes / mib, info->n_offloaded_layers);
    if (info->n_states > 0)
        log_event(LOG_INFO,
                  "memory plan: %u recurrent states and checkpoints, %.1f MiB; %u more checkpoints "
                  "in the host's memory",
                  info->n_states, (double)info->state_bytes / mib, info->n_stored_states);
    if (info->host_pool_bytes > 0)
        log_event(LOG_INFO, "memory plan: host pool %.1f MiB", (double)info->host_pool_bytes / mib);
    if (info->long_rows > 0)
        log_event(LOG_INFO,
                  "memory plan: %.1f MiB of the workspace for prompts of up to %u tokens that are "
                  "computed layer by layer%s",
                  (double)info->long_bytes / mib, info->long_rows,
                  only_if_asked ? ", for requests that ask for sparse prefill" : "");
    if (kv_rules_allow_whole_texts(&server->limits.kv))
        log_event(LOG_INFO,
                  "memory plan: %.1f sequences of the maximum length (%u tokens) fit into the KV "
                  "pool",
                  (double)info->n_pages / (double)info->text_pages, info->max_model_len);
    if (replicas_n(server->replicas) > 1)
        log_event(LOG_INFO, "memory plan: that is one of %" PRIu32 " replicas, which are alike",
                  replicas_n(server->replicas));
    warn_of_memory(server, options);
}

void start_log_model(const struct server *server, const struct options *options,
                     const struct model_load *load) {
    log_head(server);
    log_left_out(server);
    log_plan(server, options, load);
    log_disk_plan(server, options);
    log_prefill(server, options, load);
    log_offload(server, options, load);
    model_summary_log(load, server->info);
}
