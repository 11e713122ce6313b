/* expert_memory.c - see expert_memory.h. */
#include "engine/expert_memory.h"

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/backend.h"
#include "engine/engine.h"
#include "engine/memory_plan.h"
#include "engine/model/decoder.h"
#include "engine/model/expert_offload.h"
#include "engine/model/model.h"
#include "engine/system_memory.h"

static uint32_t longest_of(const struct engine_config *c, const struct model_config *model) {
    return c->max_model_len ? c->max_model_len : model->max_position;
}

/* Returns the bytes of the pages that the rank needs at least, and of recurrent states: these take
 * a third of the memory at most. */
static uint64_t kv_bytes(const struct engine_config *c, const struct model_config *model) {
    const struct kv_pool pool = memory_plan_pages(c, model);
    const struct longest_text text = {.n_layers = model->n_attention,
                                      .n_tokens = longest_of(c, model),
                                      .n_windowed = memory_plan_n_windowed(c, model),
                                      .window = model->window,
                                      .step_rows = c->max_batched_tokens};
    const uint64_t n_pages = c->only_bounded ? model->n_attention : memory_plan_text_pages(&text),
                   bytes = n_pages * pool.page_bytes;
    if (c->kv_cache_bytes) return c->kv_cache_bytes / max_u32(c->backend->n_ranks, 1);
    return model->recurrent.n_layers > 0 ? bytes + bytes / 2 : bytes;
}

static uint64_t workspace_bytes(const struct engine_config *c, const struct model_config *model,
                                struct device_memory device) {
    const struct decoder_limits limits = {
        .max_rows = c->max_batched_tokens,
        .max_logit_rows = memory_plan_logit_rows(c, model),
        .max_long_rows = memory_plan_long_rows(c, model, longest_of(c, model), device, 0)};
    return decoder_workspace_bytes(model, c->backend, &limits);
}

uint64_t expert_memory_choose(const struct engine_config *c, const struct model *model,
                              uint64_t layer_bytes) {
    const struct device_memory device = c->backend->ops->memory(c->backend);
    if (!expert_offload_is_possible(c->backend)) return 0;
    const struct offload_needs needs = {
        .weight_bytes = model->tally.bytes,
        .layer_bytes = layer_bytes,
        .kv_bytes = kv_bytes(c, &model->config),
        .workspace_bytes = workspace_bytes(c, &model->config, device)};
    return memory_plan_offload(&needs, device, c->device_share);
}

int expert_memory_check(uint64_t bytes, struct error *err) {
    struct system_memory memory;
    const double gib = 1 << 30;
    if (bytes == 0) return 0;
    system_memory_read(&memory);
    if (memory.available == 0 || bytes <= memory.available) return 0;
    return error_set(
        err, ERR_NOMEM,
        "--moe-offload-size: %.2f GiB of experts would lie in the machine's memory, of "
        "which %.2f GiB can be had (%s)",
        (double)bytes / gib, (double)memory.available / gib,
        *memory.limit ? memory.limit : "MemAvailable of /proc/meminfo");
}
