/* window_config.h - which layers see only the newest tokens, from config.json.
 *
 * Thread: any.  Memory: see model_config_parse(). */
#ifndef ENGINE_MODEL_WINDOW_CONFIG_H
#define ENGINE_MODEL_WINDOW_CONFIG_H

#include "engine/model/config_reader.h"
#include "engine/model/model.h"

/* Reads the layers' windows into window and windows, which are set also when it fails.  The config
 * must have its architecture, its shape and the context that the rotary settings leave. */
int window_config_read(const struct config_reader *r, struct model_config *c);

#endif
