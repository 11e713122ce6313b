/* memory_plan.c - see memory_plan.h. */
#include "engine/memory_plan.h"

#include <inttypes.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/collective.h"
#include "engine/device/host_pool.h"
#include "engine/device/layer_group.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"
#include "engine/kv/kind.h"
#include "engine/model/decoder.h"

struct kv_pool memory_plan_pages(const struct engine_config *config,
                                 const struct model_config *model) {
    return model_pages(model, config->kv_format,
                       config->bounded_caches && config->backend->ops->evict);
}

uint32_t memory_plan_n_windowed(const struct engine_config *config,
                                const struct model_config *model) {
    const bool gives_back = model->window > 0 && !config->batch_invariant;
    uint32_t n = 0;
    for (uint32_t l = 0; l < model->n_attention && gives_back; l++) n += model->windows[l] > 0;
    return n;
}

bool memory_plan_selections(const struct engine_config *config) {
    const struct backend *be = config->backend;
    const bool agrees = be->n_ranks <= 1 || be->ops->collective->selects;
    return config->n_groups > 0 && be->ops->select && agrees;
}

/* Returns how many ranks share the model; each has its part of pages and host blocks. */
static uint32_t n_ranks(const struct engine_config *config) {
    return max_u32(config->backend->n_ranks, 1);
}

/* Returns the size of a rank's part of the host pool, 0 if the backend has none. */
static uint64_t host_pool_bytes(const struct engine_config *config) {
    return config->backend->ops->host_pool ? config->host_pool_bytes / n_ranks(config) : 0;
}

/* Returns how many host layers a block needs to hold a page of every layer. */
static uint32_t host_layers_of_pages(const struct host_pool *store,
                                     const struct engine_config *config,
                                     const struct model_config *model) {
    const uint64_t bytes =
        (uint64_t)memory_plan_pages(config, model).page_bytes * model->n_attention;
    return (uint32_t)div_up(bytes, PAGE_TOKENS * host_pool_token_bytes(store));
}

int memory_plan_host_pool(struct host_pool *store, const struct engine_config *config,
                          const struct model_config *model, struct error *err) {
    const bool selects = memory_plan_selections(config);
    *store = (struct host_pool){
        .format = config->kv_format,
        .fp8 = page_is_scaled(config->kv_format) || (selects && config->host_pool_fp8),
        .n_kv_heads = model->n_kv_heads,
        .head_dim = model->head_dim};
    if (host_pool_bytes(config) == 0) return 0;
    store->n_host_layers = selects
                               ? groups_n_layers(config->groups, config->n_groups, model->windows)
                               : host_layers_of_pages(store, config, model);
    const size_t block_bytes = host_pool_block_bytes(store);
    store->n_blocks = (uint32_t)min_u64(host_pool_bytes(config) / block_bytes, UINT32_MAX);
    if (store->n_blocks > 0) return 0;
    return error_set(err, ERR_INVALID,
                     "--kv-offload-size is %" PRIu64
                     " bytes, too few for %d tokens, which take %zu bytes",
                     config->host_pool_bytes, PAGE_TOKENS, n_ranks(config) * block_bytes);
}

uint32_t memory_plan_logit_rows(const struct engine_config *config,
                                const struct model_config *model) {
    const uint32_t slice_bytes = 64u << 20, n_draws = min_u32(config->max_num_seqs, 256),
                   rows = slice_bytes / (model->n_vocab * (uint32_t)sizeof(float));
    return min_u32(max_u32(rows, n_draws), config->max_batched_tokens);
}

bool memory_plan_sparse(const struct engine_config *config, const struct model_config *model) {
    return config->sparse_prefill && config->backend->ops->sparse && !model_without_slices(model) &&
           model_has_full_attention(model);
}

/* Returns how many long rows take a tenth of the memory that the engine may use: of the device's
 * share, or of what the system has available. */
static uint64_t affordable_rows(const struct engine_config *config,
                                const struct model_config *model, struct device_memory device,
                                uint64_t available) {
    const double share =
        device.total ? (double)device.total * config->device_share : (double)available;
    const size_t row_bytes = decoder_long_bytes(model, 1, config->backend->act_dtype) *
                             (device.total ? 1 : n_ranks(config));
    return (uint64_t)(share / 10) / row_bytes;
}

uint32_t memory_plan_long_rows(const struct engine_config *config, const struct model_config *model,
                               uint32_t max_model_len, struct device_memory device,
                               uint64_t available) {
    const bool some_leave = memory_plan_selections(config) && host_pool_bytes(config) > 0;
    if (!memory_plan_sparse(config, model) && !some_leave) return 0;
    if (model_without_slices(model)) return 0;
    /* Slices are whole tiles. */
    if (config->max_batched_tokens < SPARSE_TILE) return 0;
    const uint64_t enough = round_up(max_model_len, SPARSE_TILE);
    if (config->max_long_rows >= SPARSE_TILE)
        return (uint32_t)min_u64(enough, round_up(config->max_long_rows, SPARSE_TILE));
    const uint64_t n_rows =
        config->max_long_rows ? 0 : affordable_rows(config, model, device, available);
    return (uint32_t)min_u64(enough, n_rows / SPARSE_TILE * SPARSE_TILE);
}

/* Returns the bytes of the device's share that are not in use yet, by any process. */
static uint64_t left_of_share(struct device_memory device, double share) {
    const uint64_t allowed = (uint64_t)((double)device.total * share);
    const uint64_t used = device.total - device.free;
    return allowed > used ? allowed - used : 0;
}

static uint64_t system_bytes(uint64_t available, uint64_t block_bytes, uint32_t max_model_len) {
    uint64_t useful = 4 * (uint64_t)max_model_len;
    if (useful < MEMORY_PLAN_TOKENS) useful = MEMORY_PLAN_TOKENS;
    useful = kv_n_pages(useful) * block_bytes;
    return available ? min_u64(useful, available / 4) : useful;
}

uint64_t memory_plan_text_pages(const struct longest_text *text) {
    const uint64_t n_in_window = kv_window_n_pages(text->window, text->step_rows, text->n_tokens);
    return kv_n_pages(text->n_tokens) * (text->n_layers - text->n_windowed) +
           n_in_window * text->n_windowed;
}

uint64_t memory_plan_beside(uint64_t available, uint64_t mapped) {
    const uint64_t rest = available > mapped ? available - mapped : 0;
    return min_u64(available, 4 * max_u64(rest, available / 8));
}

uint32_t memory_plan_context(const struct kv_pool *pool, const struct longest_text *longest,
                             uint64_t available) {
    const uint64_t block_bytes = (uint64_t)pool->page_bytes * longest->n_layers,
                   n_blocks = system_bytes(available, block_bytes, longest->n_tokens) / block_bytes;
    if (memory_plan_text_pages(longest) <= n_blocks * longest->n_layers || n_blocks == 0)
        return longest->n_tokens;
    return (uint32_t)(n_blocks * PAGE_TOKENS);
}

uint32_t memory_plan_states(const struct engine_config *config, size_t state_bytes,
                            struct device_memory device, uint64_t available) {
    const uint32_t n = n_ranks(config);
    const uint64_t useful = 2 * (uint64_t)config->max_num_seqs + MEMORY_PLAN_CHECKPOINTS,
                   bytes = config->kv_cache_bytes ? config->kv_cache_bytes / n
                           : device.total         ? left_of_share(device, config->device_share)
                           : available            ? available / 4 / n
                                                  : 3 * useful * state_bytes;
    return (uint32_t)max_u64(MEMORY_PLAN_STATES, min_u64(useful, bytes / 3 / state_bytes));
}

/* What kernels, graphs and the driver take of a device beside all that is planned. */
enum { OFFLOAD_MARGIN = 768 << 20, OFFLOAD_SLOTS = 2 };

uint64_t memory_plan_offload(const struct offload_needs *needs, struct device_memory device,
                             double share) {
    const uint64_t left = left_of_share(device, share),
                   beside = needs->kv_bytes + needs->workspace_bytes + OFFLOAD_MARGIN,
                   all = needs->weight_bytes + beside;
    return all > left ? all - left + OFFLOAD_SLOTS * needs->layer_bytes : 0;
}

static int refuse_plan(uint64_t n_tokens, uint32_t max_model_len, uint64_t need,
                       const struct engine_config *config, struct device_memory device,
                       struct error *err) {
    const double gib = 1 << 30;
    if (device.total == 0 || config->kv_cache_bytes)
        return error_set(err, ERR_NOMEM,
                         "the KV cache holds %" PRIu64 " tokens, but --max-model-len is %" PRIu32
                         ": lower --max-model-len, or set --kv-cache-memory to at least %" PRIu64,
                         n_tokens, max_model_len, need);
    return error_set(
        err, ERR_NOMEM,
        "the KV cache holds %" PRIu64 " tokens, but --max-model-len is %" PRIu32
        ", which takes %.2f GiB.  --gpu-memory-utilization %.3g allows %.2f of the device's %.2f "
        "GiB; weights, workspace and other programs use %.2f GiB.  Raise --gpu-memory-utilization, "
        "or lower --max-model-len or --max-num-batched-tokens",
        n_tokens, max_model_len, (double)need / gib, config->device_share,
        (double)device.total * config->device_share / gib, (double)device.total / gib,
        (double)(device.total - device.free) / gib);
}

/* Refuses a pool for bounded caches only that cannot hold one page of every layer. */
static int refuse_empty(uint64_t block_bytes, const struct engine_config *config,
                        struct device_memory device, struct error *err) {
    const bool of_share = device.total > 0 && config->kv_cache_bytes == 0;
    return error_set(
        err, ERR_NOMEM,
        "the KV cache must hold at least %d tokens, which take %" PRIu64 " bytes: raise %s",
        PAGE_TOKENS, block_bytes, of_share ? "--gpu-memory-utilization" : "--kv-cache-memory");
}

/* Returns the pages that the longest text needs at least.  If the host pool can hold all of it, its
 * prompt may be layer-major.  Sparse layers and those with a window then share two lists of the
 * prompt's pages.  The few pages that sparse layers keep of their own are not counted. */
static uint64_t needed_pages(const struct longest_text *text) {
    const uint64_t n_pages = kv_n_pages(text->n_tokens), in_all = memory_plan_text_pages(text);
    const struct host_pool *store = text->store;
    if (!store || text->long_rows == 0 || store->n_blocks < text->n_tokens / PAGE_TOKENS)
        return in_all;
    const uint64_t n_long = min_u64(n_pages, kv_n_pages(text->long_rows));
    return min_u64(in_all, in_all - n_pages * store->n_host_layers + 2 * n_long);
}

int memory_plan_kv(struct kv_pool *pool, const struct engine_config *config,
                   const struct longest_text *longest, struct device_memory device,
                   uint64_t available, struct error *err) {
    const uint32_t n_layers = longest->n_layers, max_model_len = longest->n_tokens;
    /* The ranks that use the memory: each device has one, or the system all of them. */
    const bool of_share = device.total > 0 && config->kv_cache_bytes == 0;
    const uint64_t page_bytes =
        (uint64_t)pool->page_bytes * (of_share ? 1 : max_u32(longest->n_ranks, 1));
    /* A page of every layer: 64 tokens. */
    const uint64_t block_bytes = page_bytes * n_layers;
    const uint64_t bytes = config->kv_cache_bytes ? config->kv_cache_bytes
                           : device.total         ? left_of_share(device, config->device_share)
                                          : system_bytes(available, block_bytes, max_model_len);
    const uint64_t n_blocks = min_u64(bytes / block_bytes, UINT32_MAX / n_layers);
    const uint64_t need = config->only_bounded ? 0 : needed_pages(longest);
    if (n_blocks == 0 && config->only_bounded)
        return refuse_empty(block_bytes, config, device, err);
    if (n_blocks * n_layers < need)
        return refuse_plan(n_blocks * PAGE_TOKENS, max_model_len, need * page_bytes, config, device,
                           err);
    pool->n_pages = (uint32_t)(n_blocks * n_layers);
    return 0;
}
