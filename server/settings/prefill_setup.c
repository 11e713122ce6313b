/* prefill_setup.c - see prefill_setup.h. */
#include "server/settings/prefill_setup.h"

#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/engine.h"
#include "engine/model/model.h"
#include "server/settings/model_file.h"
#include "server/settings/options.h"
#include "server/settings/prefill_rules.h"

static int load_patterns(struct prefill_setup *setup, const struct options *options,
                         const char *model_dir, const struct model_config *model,
                         struct error *err) {
    const int rc =
        model_file_choose(&setup->path, options->pattern_file, "patterns", model_dir, err);
    if (rc) return rc;
    if (!setup->path)
        return patterns_default(&setup->patterns, model->n_attention, model->n_heads, err);
    return patterns_load(&setup->patterns, setup->path, model->n_attention, model->n_heads, err);
}

static void choose_break_even(struct prefill_setup *setup, const struct options *options,
                              const char *backend) {
    const uint32_t asked = (uint32_t)options->min_sparse_tokens;
    const uint32_t tuned = patterns_min_sparse_tokens(&setup->patterns, backend);
    setup->min_sparse_tokens = asked ? asked : tuned ? tuned : PREFILL_MIN_SPARSE_TOKENS;
    setup->loses = !asked && patterns_loss(&setup->patterns) > PATTERNS_MOST_LOSS;
    if (setup->loses) setup->min_sparse_tokens = UINT32_MAX;
    setup->measured_on = tuned && !asked ? backend : NULL;
}

int prefill_setup_load(struct prefill_setup *out, const struct options *options,
                       const struct engine_config *config, struct error *err) {
    struct model_config model;
    struct prefill_setup setup = {0};
    int rc = model_config_load(&model, config->model_dir, 0, err);
    if (rc) return rc;
    rc = load_patterns(&setup, options, config->model_dir, &model, err);
    model_config_fini(&model);
    choose_break_even(&setup, options, config->backend->name);
    if (rc) prefill_setup_fini(&setup);
    else *out = setup;
    return rc;
}

void prefill_setup_fini(struct prefill_setup *setup) {
    patterns_fini(&setup->patterns);
    free(setup->path);
    *setup = (struct prefill_setup){0};
}

void prefill_setup_configure(const struct prefill_setup *setup, const struct options *options,
                             struct engine_config *config) {
    config->sparse_prefill = options->prefill != PREFILL_DENSE;
    config->patterns = setup->path ? setup->patterns.heads : NULL;
    config->min_sparse_tokens = setup->min_sparse_tokens;
}

static const char *why_dense(const struct options *options, const struct engine_info *info) {
    if (options->prefill == PREFILL_DENSE) return "the server was started with --prefill dense";
    if (!model_has_full_attention(info->model)) return "every layer of this model has a window";
    if (model_without_slices(info->model)) return model_without_slices(info->model);
    return info->sparse_prefill ? NULL : "the backend computes prompts densely only";
}

int prefill_setup_rules(struct prefill_rules *out, const struct prefill_setup *setup,
                        const struct options *options, const struct engine_info *info,
                        struct error *err) {
    const struct patterns *patterns = &setup->patterns;
    *out = (struct prefill_rules){
        .initial = (enum prefill_mode)options->prefill,
        .why_dense = why_dense(options, info),
        .pattern_file = model_file_name(setup->path),
        .fallback = setup->path ? NULL : patterns->heads,
        .n_heads = patterns->n_layers * patterns->n_heads,
        .min_sparse_tokens = setup->min_sparse_tokens,
        .measured_on = setup->measured_on,
        .dense_tail = (uint32_t)options->dense_tail,
        .synthetic = (uint32_t)options->synthetic_lines,
    };
    out->sparse = !out->why_dense;
    if (options->prefill == PREFILL_SPARSE && !out->sparse)
        return error_set(err, ERR_UNSUPPORTED, "--prefill sparse: %s", out->why_dense);
    return 0;
}
