/* expert_memory.h - how many experts are offloaded, and whether the machine has the memory.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_EXPERT_MEMORY_H
#define ENGINE_EXPERT_MEMORY_H

#include <stdint.h>

struct engine_config;
struct error;
struct model;

/* Returns the bytes of a rank's experts that its device has no memory for, beside a text of
 * max_model_len tokens.  It is 0 if all weights fit, or the device cannot offload any.  model is
 * measured; layer_bytes: of the experts of its largest layer. */
uint64_t expert_memory_choose(const struct engine_config *config, const struct model *model,
                              uint64_t layer_bytes);
/* Refuses offloaded experts that the machine has no memory for: ERR_NOMEM. */
int expert_memory_check(uint64_t bytes, struct error *err);

#endif
