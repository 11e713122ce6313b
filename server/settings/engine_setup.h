/* engine_setup.h - makes an engine from the options.
 *
 * Thread: main.  Memory: borrows the options. */
#ifndef SERVER_SETTINGS_ENGINE_SETUP_H
#define SERVER_SETTINGS_ENGINE_SETUP_H

#include "engine/engine.h"

struct backend;
struct load_progress;
struct options;

/* Returns the configuration that the options ask for; the caller sets wake. */
struct engine_config engine_setup_config(const struct options *options, const char *model_dir,
                                         struct backend *backend);

/* Makes the loading of weights by this configuration tell the log; progress must live until
 * then. */
void engine_setup_tell(struct engine_config *config, struct load_progress *progress);

/* Calls engine_create() and logs how far the weights are loaded. */
int engine_setup_create(struct engine **out, const struct engine_config *config, struct error *err);

#endif
