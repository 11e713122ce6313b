/* prefill_setup.h - what the settings and the model's pattern file say of sparse prefill.
 *
 * The file is --pattern-file, or what model_file.h finds in config/patterns.
 *
 * Thread: main, at start-up.  Memory: the setup owns the patterns, which the engine and the rules
 * borrow: it goes after both. */
#ifndef SERVER_SETTINGS_PREFILL_SETUP_H
#define SERVER_SETTINGS_PREFILL_SETUP_H

#include "engine/sparsity/patterns.h"

struct engine_config;
struct engine_info;
struct error;
struct options;
struct prefill_rules;

struct prefill_setup {
    struct patterns patterns;   /* without a file every head has the default */
    char *path;                 /* of the file; NULL: none was found */
    uint32_t min_sparse_tokens; /* of the settings, else of the file, else the default */
    const char *measured_on;    /* the backend's name when it is the file's, else NULL */
};

/* For the model and backend of the configuration, whose `name` is borrowed. */
int prefill_setup_load(struct prefill_setup *out, const struct options *options,
                       const struct engine_config *config, struct error *err);
void prefill_setup_fini(struct prefill_setup *setup);

void prefill_setup_configure(const struct prefill_setup *setup, const struct options *options,
                             struct engine_config *config);
/* What requests may ask of this engine.  Fails when --prefill asks for what it cannot. */
int prefill_setup_rules(struct prefill_rules *out, const struct prefill_setup *setup,
                        const struct options *options, const struct engine_info *info,
                        struct error *err);

#endif
