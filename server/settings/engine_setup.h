/* engine_setup.h - from the options to an engine.
 *
 * Thread: main.  Memory: borrows the options. */
#ifndef SERVER_SETTINGS_ENGINE_SETUP_H
#define SERVER_SETTINGS_ENGINE_SETUP_H

#include "engine/engine.h"

struct options;

/* What the options ask of an engine; wake is the caller's to set. */
struct engine_config engine_setup_config(const struct options *options, const char *model_dir,
                                         struct backend *backend);

/* engine_create(), telling the log how the weights come along. */
int engine_setup_create(struct engine **out, const struct engine_config *config,
                        struct error *err);

#endif
