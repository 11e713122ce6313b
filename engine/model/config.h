/* config.h - fill a model_config from the text of config.json and generation_config.json.
 *
 * Thread: any.  Memory: what the config owns is freed by model_config_fini(). */
#ifndef ENGINE_MODEL_CONFIG_H
#define ENGINE_MODEL_CONFIG_H

#include <jansson.h>

#include "engine/model/model.h"

/* Fills in a config from both roots, which are borrowed; generation may be NULL.  `label` names the
 * directory in messages, `context` is as in model_config_load().  On failure *out is untouched. */
int model_config_parse(struct model_config *out, const json_t *config, const json_t *generation,
                       const char *label, uint32_t context, struct error *err);

#endif
