/* engine_check.h - which settings do not go with a model, by its configuration alone.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_ENGINE_CHECK_H
#define ENGINE_ENGINE_CHECK_H

#include <stdint.h>

struct engine_config;
struct error;
struct model_config;

/* Refuses settings that do not go with the model.  ERR_INVALID names the setting. */
int engine_check(const struct engine_config *config, const struct model_config *model,
                 struct error *err);
/* Returns the tokens of a prompt that no step may cut (kv_space.prompt_unit). */
uint32_t engine_prompt_unit(const struct engine_config *config, const struct model_config *model);

#endif
