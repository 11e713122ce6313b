/* memory_plan.h - how much KV cache an engine gets.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_MEMORY_PLAN_H
#define ENGINE_MEMORY_PLAN_H

#include "engine/engine.h"

/* Bytes that could be allocated now: what the system calls available, within the control group's
 * limit.  0: unknown. */
uint64_t memory_available(void);

/* Fills pool's shape and n_pages (not base) from the settings.  Without kv_cache_bytes the pool
 * gets at most a quarter of `available`, and no more than four longest sequences or
 * MEMORY_PLAN_TOKENS tokens can use.  ERR_NOMEM when one sequence of max_model_len tokens would not
 * fit: the text names the settings. */
enum { MEMORY_PLAN_TOKENS = 131072 };
int memory_plan_kv(struct kv_pool *pool, const struct engine_config *config,
                   const struct model_config *model, uint32_t max_model_len, uint64_t available,
                   struct error *err);

#endif
