/* prefill_setup.h - loads the settings and the model's pattern file for sparse prefill.
 *
 * The file is --pattern-file, or the one that model_file.h finds in config/patterns.
 *
 * Thread: main, at start-up.  Memory: the setup owns the patterns, which the engine and the rules
 * borrow.  It must outlive both. */
#ifndef SERVER_SETTINGS_PREFILL_SETUP_H
#define SERVER_SETTINGS_PREFILL_SETUP_H

#include <stdbool.h>

#include "engine/sparsity/patterns.h"

struct engine_config;
struct engine_info;
struct error;
struct options;
struct prefill_rules;

struct prefill_setup {
    struct patterns patterns;   /* without a file every head has the default */
    char *path;                 /* of the file; NULL: none was found */
    uint32_t min_sparse_tokens; /* from the settings, else the file, else the default */
    bool loses;                 /* auto does not take the patterns: they lose too much */
    const char *measured_on;    /* the backend's name if the file has measured it, else NULL */
};

/* Loads the setup for the configuration's model and backend, whose `name` is borrowed. */
int prefill_setup_load(struct prefill_setup *out, const struct options *options,
                       const struct engine_config *config, struct error *err);
void prefill_setup_fini(struct prefill_setup *setup);

void prefill_setup_configure(const struct prefill_setup *setup, const struct options *options,
                             struct engine_config *config);
/* Fills in the rules for requests to this engine.  Fails when --prefill asks for what the engine
 * cannot do. */
int prefill_setup_rules(struct prefill_rules *out, const struct prefill_setup *setup,
                        const struct options *options, const struct engine_info *info,
                        struct error *err);

#endif
