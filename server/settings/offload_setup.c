/* offload_setup.c - see offload_setup.h. */
#include "server/settings/offload_setup.h"

#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/device/host_pool.h"
#include "engine/engine.h"
#include "engine/sparsity/filters.h"
#include "server/settings/model_file.h"
#include "server/settings/offload_rules.h"
#include "server/settings/options.h"

static int load_groups(struct offload_setup *setup, struct error *err) {
    struct filters filters;
    struct error why = {0};
    const int rc = filters_read(&filters, setup->path, err);
    if (rc) return rc;
    const int n = filters_groups(&filters, setup->model.windows, setup->model.n_attention,
                                 setup->groups, &why);
    if (n < 0) return error_set(err, n, "%s: %.400s", setup->path, why.text);
    setup->n_groups = (uint32_t)n;
    return 0;
}

int offload_setup_load(struct offload_setup *out, const struct options *options,
                       const struct engine_config *config, struct error *err) {
    struct offload_setup setup = {0};
    const struct model_config *model = &setup.model;
    int rc = model_config_load(&setup.model, config->model_dir, config->max_model_len, err);
    if (rc) return rc;
    rc = model_file_choose(&setup.path, options->filters_file, "filters", config->model_dir, err);
    if (!rc && setup.path) rc = load_groups(&setup, err);
    struct host_pool store = {.format = config->kv_format,
                              .fp8 = page_is_scaled(config->kv_format),
                              .n_kv_heads = model->n_kv_heads,
                              .head_dim = model->head_dim};
    setup.page_bytes = host_pool_token_bytes(&store);
    store.fp8 |= options->kv_offload_dtype == OFFLOAD_DTYPE_FP8;
    setup.is_fp8 = store.fp8;
    setup.moved_bytes = host_pool_token_bytes(&store);
    if (rc) offload_setup_fini(&setup);
    else *out = setup;
    return rc;
}

void offload_setup_fini(struct offload_setup *setup) {
    model_config_fini(&setup->model);
    free(setup->path);
    *setup = (struct offload_setup){0};
}

static const char *why_not(const struct offload_setup *setup) {
    if (!model_has_full_attention(&setup->model)) return "every layer of this model has a window";
    if (!setup->path) return "no filter layers are known for this model (--filters-file)";
    return setup->n_groups ? NULL : "the model's filter layers leave no layer to follow them";
}

void offload_setup_configure(const struct offload_setup *setup, const struct options *options,
                             struct engine_config *config) {
    config->host_pool_bytes = options->kv_offload_size;
    if (!kv_rules_allow(&options->kv_rules, KV_SELECTING) || why_not(setup)) return;
    config->groups = setup->groups;
    config->n_groups = setup->n_groups;
    config->host_pool_fp8 = setup->is_fp8;
    config->max_selected = (uint32_t)options->max_selected;
}

void offload_setup_rules(struct offload_rules *out, const struct offload_setup *setup,
                         const struct options *options) {
    *out = (struct offload_rules){.why_not = why_not(setup),
                                  .filters_file = model_file_name(setup->path),
                                  .groups = setup->groups,
                                  .n_groups = setup->n_groups,
                                  .n_layers = setup->model.n_attention,
                                  .windows = setup->model.windows,
                                  .max_selected = (uint32_t)options->max_selected,
                                  .host_pool_bytes = options->kv_offload_size,
                                  .host_pool_fp8 = setup->is_fp8,
                                  .page_bytes = setup->page_bytes,
                                  .moved_bytes = setup->moved_bytes};
}
