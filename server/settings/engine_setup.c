/* engine_setup.c - see engine_setup.h. */
#include "server/settings/engine_setup.h"

#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/model/random_weights.h"
#include "server/settings/build_info.h"
#include "server/settings/load_progress.h"
#include "server/settings/options.h"

static enum page_format format_of(const struct options *options, const struct backend *backend) {
    return options->kv_cache_dtype == KV_CACHE_DTYPE_AUTO
               ? (enum page_format)backend->act_dtype
               : (enum page_format)(options->kv_cache_dtype - KV_CACHE_DTYPE_FIRST);
}

struct engine_config engine_setup_config(const struct options *options, const char *model_dir,
                                         struct backend *backend) {
    return (struct engine_config){
        .model_dir = model_dir,
        .backend = backend,
        .ranks_share = options->context_parallel_size > 1 ? RANKS_SHARE_ROWS : RANKS_SHARE_WEIGHTS,
        .max_model_len = (uint32_t)options->max_model_len,
        .max_num_seqs = (uint32_t)options->max_num_seqs,
        .max_batched_tokens = (uint32_t)options->max_num_batched_tokens,
        .max_queued = (uint32_t)options->max_num_queued_reqs,
        .device_share = options->gpu_memory_utilization,
        .kv_cache_bytes = options->kv_cache_memory,
        .kv_format = format_of(options, backend),
        .expert_offload_bytes = options->moe_offload_size,
        .prefix_caching = options->enable_prefix_caching,
        .max_long_rows = (uint32_t)options->max_long_tokens,
        .max_itl_ms = (uint32_t)options->max_itl,
        .batch_invariant = options->batch_invariant,
        .disk_path = options->kv_disk_path,
        .disk_bytes = options->kv_disk_size,
        .version = build_info.version,
        .build = build_info.commit,
        .random_weights = options->load_format == LOAD_DUMMY,
        .random_format = &random_formats[options->random_format],
        .unpacks_exactly = options->dtype == PRODUCTS_F32,
    };
}

void engine_setup_tell(struct engine_config *config, struct load_progress *progress) {
    *progress = (struct load_progress){0};
    config->load_progress = load_progress_tell;
    config->load_ctx = progress;
}

int engine_setup_create(struct engine **out, const struct engine_config *config,
                        struct error *err) {
    struct load_progress progress;
    struct engine_config telling = *config;
    engine_setup_tell(&telling, &progress);
    return engine_create(out, &telling, err);
}
