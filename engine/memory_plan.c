/* memory_plan.c - see memory_plan.h.
 *
 * Thread: any.  Memory: none. */
#include "engine/memory_plan.h"

#include <inttypes.h>
#include <stdio.h>

#include "engine/error.h"
#include "engine/model/model.h"

static uint64_t meminfo_available(void) {
    FILE *file = fopen("/proc/meminfo", "r");
    uint64_t kib = 0;
    char line[128];
    if (!file) return 0;
    while (fgets(line, sizeof(line), file))
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1) break;
    fclose(file);
    return kib * 1024;
}

/* One number from a file of the control group; UINT64_MAX when there is none ("max"). */
static uint64_t read_number(const char *path) {
    FILE *file = fopen(path, "r");
    uint64_t value;
    if (!file) return UINT64_MAX;
    if (fscanf(file, "%" SCNu64, &value) != 1) value = UINT64_MAX;
    fclose(file);
    return value;
}

uint64_t memory_available(void) {
    uint64_t available = meminfo_available();
    uint64_t limit = read_number("/sys/fs/cgroup/memory.max");
    uint64_t used = read_number("/sys/fs/cgroup/memory.current");
    if (limit == UINT64_MAX || used == UINT64_MAX) return available;
    uint64_t left = limit > used ? limit - used : 0;
    return available == 0 || left < available ? left : available;
}

static uint64_t min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

int memory_plan_kv(struct kv_pool *pool, const struct engine_config *config,
                   const struct model_config *model, uint32_t max_model_len,
                   struct memory_budget budget, struct error *err) {
    *pool = (struct kv_pool){
        .dtype = config->kv_dtype, .n_kv_heads = model->n_kv_heads, .head_dim = model->head_dim};
    pool->page_bytes = (size_t)2 * model->n_kv_heads * PAGE_TOKENS * model->head_dim *
                       dtype_size(config->kv_dtype);
    uint64_t block_bytes = (uint64_t)pool->page_bytes * model->n_layers;
    uint64_t useful = 4 * (uint64_t)max_model_len;
    if (useful < MEMORY_PLAN_TOKENS) useful = MEMORY_PLAN_TOKENS;
    uint64_t n_blocks = (useful + PAGE_TOKENS - 1) / PAGE_TOKENS;
    if (config->kv_cache_bytes) n_blocks = config->kv_cache_bytes / block_bytes;
    else if (budget.exclusive) n_blocks = budget.bytes / block_bytes;
    else if (budget.bytes) n_blocks = min_u64(n_blocks, budget.bytes / 4 / block_bytes);
    n_blocks = min_u64(n_blocks, UINT32_MAX / model->n_layers);
    uint64_t need = ((uint64_t)max_model_len + PAGE_TOKENS - 1) / PAGE_TOKENS;
    pool->n_pages = (uint32_t)(n_blocks * model->n_layers);
    if (n_blocks >= need) return 0;
    return error_set(err, ERR_NOMEM,
                     "the KV cache has room for %" PRIu64 " tokens, but --max-model-len is %" PRIu32
                     ": lower it, or give --kv-cache-memory at least %" PRIu64,
                     n_blocks * PAGE_TOKENS, max_model_len, need * block_bytes);
}
