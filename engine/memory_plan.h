/* memory_plan.h - how much KV cache an engine gets.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_MEMORY_PLAN_H
#define ENGINE_MEMORY_PLAN_H

#include "engine/engine.h"

/* Bytes that could be allocated now: what the system calls available, within the control group's
 * limit.  0: unknown. */
uint64_t memory_available(void);

/* Memory that a pool may come from. */
struct memory_budget {
    uint64_t bytes; /* 0: unknown */
    bool exclusive; /* a device's: nobody else needs it */
};

/* Fills pool's shape and n_pages (not base) from the settings.  Without kv_cache_bytes the pool
 * gets all of an exclusive budget; of the system's memory at most a quarter, and no more than four
 * longest sequences or MEMORY_PLAN_TOKENS tokens can use.  ERR_NOMEM when one sequence of
 * max_model_len tokens would not fit: the text names the settings. */
enum { MEMORY_PLAN_TOKENS = 131072 };
int memory_plan_kv(struct kv_pool *pool, const struct engine_config *config,
                   const struct model_config *model, uint32_t max_model_len,
                   struct memory_budget budget, struct error *err);

#endif
