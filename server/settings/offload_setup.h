/* offload_setup.h - loads the settings and the model's filters file for KV policies that select.
 *
 * The file is --filters-file, or the one that model_file.h finds in config/filters.
 *
 * Thread: main, at start-up.  Memory: the setup owns the groups and the model's windows, which the
 * engine and the rules borrow.  It must outlive both. */
#ifndef SERVER_SETTINGS_OFFLOAD_SETUP_H
#define SERVER_SETTINGS_OFFLOAD_SETUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/device/layer_group.h"
#include "engine/model/model.h"

struct engine_config;
struct error;
struct offload_rules;
struct options;

struct offload_setup {
    struct layer_group groups[MAX_LAYER_GROUPS];
    uint32_t n_groups;
    struct model_config model;
    size_t page_bytes, moved_bytes; /* as in struct offload_rules */
    bool is_fp8;                    /* what requests move has 8 bits in the host pool */
    char *path;                     /* of the file; NULL: none was found */
};

/* Loads the setup for the configuration's model and KV pages. */
int offload_setup_load(struct offload_setup *out, const struct options *options,
                       const struct engine_config *config, struct error *err);
void offload_setup_fini(struct offload_setup *setup);

/* Sets the host pool's size, and the layer groups if requests may have the policy.  Otherwise the
 * engine reserves nothing for selections. */
void offload_setup_configure(const struct offload_setup *setup, const struct options *options,
                             struct engine_config *config);
/* Fills in the rules as far as they are known without an engine. */
void offload_setup_rules(struct offload_rules *out, const struct offload_setup *setup,
                         const struct options *options);

#endif
