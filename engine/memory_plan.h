/* memory_plan.h - how much KV cache an engine gets.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_MEMORY_PLAN_H
#define ENGINE_MEMORY_PLAN_H

#include "engine/engine.h"

/* Bytes that could be allocated now: what the system calls available, within the control group's
 * limit.  0: unknown. */
uint64_t memory_available(void);

/* The pool's shape, of the settings and the model; n_pages and base are 0.  Tracked if bounded
 * caches are asked for and the backend can keep budgets. */
struct kv_pool memory_plan_pages(const struct engine_config *config,
                                 const struct model_config *model);

/* True where sequences may select: there are groups of layers, and the backend can. */
bool memory_plan_selections(const struct engine_config *config);
/* The store, of the settings and the groups; n_blocks 0: there is none.  Without groups a block
 * holds a page of every layer.  base is NULL.  ERR_INVALID when there is to be a store, but not a
 * block fits. */
int memory_plan_host_pool(struct host_pool *store, const struct engine_config *config,
                      const struct model_config *model, struct error *err);

/* True where prompts may be computed sparsely: asked for, and the backend can. */
bool memory_plan_sparse(const struct engine_config *config, const struct model_config *model);
/* Rows of the room for prompts that go layer by layer, whole tiles: config->max_long_rows, or as
 * engine.h says; never more than max_model_len needs.  0 where none does: they are sparse, or leave
 * for the store.  `available` as for memory_plan_kv(). */
uint32_t memory_plan_long_rows(const struct engine_config *config, const struct model_config *model,
                               uint32_t max_model_len, struct device_memory device,
                               uint64_t available);

/* Tokens that are of use in a system's memory, however short the context. */
enum { MEMORY_PLAN_TOKENS = 131072 };

/* The longest text that is to fit, and where it may go. */
struct longest_text {
    uint32_t n_layers, n_tokens; /* max_model_len */
    /* Layers that keep the pages of their window only, and how many rows a step may append. */
    uint32_t n_windowed, window, step_rows;
    uint32_t long_rows;          /* memory_plan_long_rows() */
    const struct host_pool *store; /* memory_plan_host_pool(); NULL: no sequence selects */
};

/* Pages of the longest text, all of it on the device. */
uint64_t memory_plan_text_pages(const struct longest_text *text);

/* Sets pool's n_pages.  Without kv_cache_bytes the pool gets what is left of the device's share;
 * of the system's memory (device.total 0, `available` bytes or unknown) at most a quarter, and no
 * more than four longest sequences or MEMORY_PLAN_TOKENS tokens can use.  ERR_NOMEM when one
 * sequence of that length would not fit, whatever its policy, or nothing where all are bounded: the
 * text names numbers and settings. */
int memory_plan_kv(struct kv_pool *pool, const struct engine_config *config,
                   const struct longest_text *longest, struct device_memory device,
                   uint64_t available, struct error *err);

#endif
