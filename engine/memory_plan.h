/* memory_plan.h - plans how much KV cache, host pool and layer-major workspace an engine gets.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_MEMORY_PLAN_H
#define ENGINE_MEMORY_PLAN_H

#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/engine.h"

struct host_pool;

/* Where ranks share the model (collective.h), all sizes of pools here are those of one rank's part,
 * and model is what that rank has.  Settings are sizes of all parts together, but for the share of
 * a device. */

/* Returns the pool's shape, from the settings and the model; n_pages and base are 0.  It is tracked
 * if bounded caches are asked for and the backend can evict. */
struct kv_pool memory_plan_pages(const struct engine_config *config,
                                 const struct model_config *model);

/* Returns how many layers keep only the pages of their window.  It is 0 if a request takes all of
 * its pages when it is admitted. */
uint32_t memory_plan_n_windowed(const struct engine_config *config,
                                const struct model_config *model);

/* Tells whether sequences may select: there are groups of layers, and the backend supports it. */
bool memory_plan_selections(const struct engine_config *config);
/* Fills in the host pool's shape, from the settings and the groups; n_blocks 0: there is no host
 * pool.  base is NULL.  Without groups a host block holds a page of every layer.  ERR_INVALID if a
 * host pool is asked for but not one block fits. */
int memory_plan_host_pool(struct host_pool *store, const struct engine_config *config,
                          const struct model_config *model, struct error *err);

/* Returns how many rows get logits at a time: a prompt's log-probabilities need one row per token,
 * and a row is large.  One pass is enough for the samples of up to 256 sequences in a step. */
uint32_t memory_plan_logit_rows(const struct engine_config *config,
                                const struct model_config *model);

/* Tells whether prompts may be computed sparsely: it is asked for, the backend supports it, and
 * some layer has full attention. */
bool memory_plan_sparse(const struct engine_config *config, const struct model_config *model);
/* Returns the rows of the layer-major workspace, in whole tiles: config->max_long_rows, or what
 * engine.h says for 0; never more than max_model_len needs.  Returns 0 if no prompt is ever
 * layer-major: such prompts are sparse, or their tokens move to the host pool.
 * `available` as for memory_plan_kv(). */
uint32_t memory_plan_long_rows(const struct engine_config *config, const struct model_config *model,
                               uint32_t max_model_len, struct device_memory device,
                               uint64_t available);

/* Tokens of KV cache that are useful in a system's memory, however short the context is. */
enum { MEMORY_PLAN_TOKENS = 131072 };

/* The longest text that must fit, and where its tokens may be. */
struct longest_text {
    uint32_t n_layers, n_tokens; /* n_tokens: max_model_len */
    /* Layers that keep only the pages of their window, and how many rows a step may append. */
    uint32_t n_windowed, window, step_rows;
    uint32_t long_rows;            /* memory_plan_long_rows() */
    uint32_t n_ranks;              /* that share the model; 0: it is not shared */
    const struct host_pool *store; /* memory_plan_host_pool(); NULL: no sequence selects */
};

/* Returns the pages of the longest text when all of it is on the device. */
uint64_t memory_plan_text_pages(const struct longest_text *text);

/* Returns what of the available memory of a system is left beside weights that are mapped from
 * their files.  Cached files count as available, but these will be needed.  Where they are more
 * than there is, an eighth is left: they are then read from the disk again and again. */
uint64_t memory_plan_beside(uint64_t available, uint64_t mapped);

/* Returns the longest text, up to longest->n_tokens, that the pool can hold in a system's memory:
 * what --max-model-len is where it is not given.  A pool of less than a page of every layer is left
 * for memory_plan_kv() to refuse.  `available`: a rank's part. */
uint32_t memory_plan_context(const struct kv_pool *pool, const struct longest_text *longest,
                             uint64_t available);

/* Returns how many recurrent states the pool gets.  It is planned before the pages, from the memory
 * that these get: kv_cache_bytes, what is left of the device's share, or a quarter of `available`.
 * States take at most a third of that, or the memory of MEMORY_PLAN_STATES if that is more.  There
 * are two for each sequence at most, and MEMORY_PLAN_CHECKPOINTS beside them. */
enum { MEMORY_PLAN_STATES = 2, MEMORY_PLAN_CHECKPOINTS = 1024 };
uint32_t memory_plan_states(const struct engine_config *config, size_t state_bytes,
                            struct device_memory device, uint64_t available);

/* What experts are offloaded for, if it is left to the plan. */
struct offload_needs {
    uint64_t weight_bytes, layer_bytes; /* of all weights; of the experts of the largest layer */
    uint64_t kv_bytes, workspace_bytes; /* of the longest text, and of the decoder's buffers */
};

/* Returns the bytes of experts that a device has no memory for, beside what else it needs: 0 if all
 * weights fit.  Those that do not fit are copied to two slots, which take memory, too. */
uint64_t memory_plan_offload(const struct offload_needs *needs, struct device_memory device,
                             double share);

/* Sets pool->n_pages.  The pool gets kv_cache_bytes or, if that is 0, what is left of the device's
 * share.  In the system's memory (device.total 0) it gets at most a quarter of `available` (0:
 * unknown).  There it also gets no more than four longest sequences, or MEMORY_PLAN_TOKENS tokens
 * if that is more, can use.
 *
 * ERR_NOMEM if no policy could hold one longest sequence or, with only_bounded, if not one page of
 * every layer fits.  The text names numbers and settings. */
int memory_plan_kv(struct kv_pool *pool, const struct engine_config *config,
                   const struct longest_text *longest, struct device_memory device,
                   uint64_t available, struct error *err);

#endif
