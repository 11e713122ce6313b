/* prefill_setup.c - see prefill_setup.h. */
#include "server/prefill_setup.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "engine/engine.h"
#include "engine/error.h"
#include "engine/model/model.h"
#include "server/options.h"
#include "server/prefill_rules.h"

/* Puts the path into `path` when such a file can be read. */
static bool found(char *path, const char *dir, const char *beside, const char *name) {
    const int length = snprintf(path, PATH_MAX, "%s%s/%s.json", dir, beside, name);
    return length > 0 && length < PATH_MAX && access(path, R_OK) == 0;
}

/* path: [PATH_MAX]. */
static bool find_file(char *path, const char *model_dir) {
    char exe[PATH_MAX], model[PATH_MAX];
    size_t length = sizeof(exe);
    const char *whole = realpath(model_dir, model) ? model : model_dir;
    const char *slash = strrchr(whole, '/');
    const char *name = slash ? slash + 1 : whole;
    if (uv_exepath(exe, &length) == 0) {
        char *end = strrchr(exe, '/');
        if (end) *end = 0;
        if (found(path, exe, "/../config/patterns", name)) return true;
    }
    return found(path, QUIRE_PATTERN_DIR, "", name);
}

static int load_patterns(struct prefill_setup *setup, const struct options *options,
                         const char *model_dir, const struct model_config *model,
                         struct error *err) {
    char path[PATH_MAX];
    const char *file = options->pattern_file;
    if (!file && find_file(path, model_dir)) file = path;
    if (!file) return patterns_default(&setup->patterns, model->n_layers, model->n_heads, err);
    const int rc = patterns_load(&setup->patterns, file, model->n_layers, model->n_heads, err);
    if (rc) return rc;
    setup->path = strdup(file);
    return setup->path ? 0 : error_set(err, ERR_NOMEM, "no memory for the pattern file's name");
}

static void settle_break_even(struct prefill_setup *setup, const struct options *options,
                              const char *backend) {
    const uint32_t asked = (uint32_t)options->min_sparse_tokens;
    const uint32_t tuned = patterns_min_sparse_tokens(&setup->patterns, backend);
    setup->min_sparse_tokens = asked ? asked : tuned ? tuned : PREFILL_MIN_SPARSE_TOKENS;
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
    settle_break_even(&setup, options, config->backend->name);
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
    return info->sparse_prefill ? NULL : "the backend computes prompts densely only";
}

int prefill_setup_rules(struct prefill_rules *out, const struct prefill_setup *setup,
                        const struct options *options, const struct engine_info *info,
                        struct error *err) {
    const char *slash = setup->path ? strrchr(setup->path, '/') : NULL;
    const struct patterns *patterns = &setup->patterns;
    *out = (struct prefill_rules){
        .initial = (enum prefill_mode)options->prefill,
        .why_dense = why_dense(options, info),
        .pattern_file = slash ? slash + 1 : setup->path,
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
