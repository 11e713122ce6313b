/* quantised_source.c - see quantised_source.h. */
#include "engine/model/quantised_source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/model/quantisation.h"
#include "engine/model/quantised_tensor.h"
#include "engine/model/weight_source.h"

#define WEIGHT_SUFFIX ".weight"

struct quantised_source {
    struct weight_source base;
    struct weight_source *files;
    struct quantisation how;
};

static const struct quantised_source *source_of(const struct weight_source *source) {
    return (const struct quantised_source *)source;
}

/* Makes *out the module that has a weight, if it is quantised.  name [WEIGHT_SOURCE_NAME]: memory
 * for the module's.  Without a suffix, the weight has it itself. */
static bool find_module(const struct weight_source *source, const char *weight, char *name,
                        struct quantised_module *out) {
    const struct quantised_source *s = source_of(source);
    const size_t n_suffix = strlen(WEIGHT_SUFFIX);
    size_t n = strlen(weight);
    if (n >= WEIGHT_SOURCE_NAME) return false;
    if (n > n_suffix && strcmp(weight + n - n_suffix, WEIGHT_SUFFIX) == 0) n -= n_suffix;
    snprintf(name, WEIGHT_SOURCE_NAME, "%.*s", (int)n, weight);
    *out = (struct quantised_module){.files = s->files, .how = &s->how, .name = name};
    return quantised_module_exists(s->files, name);
}

static bool has_weight(const struct weight_source *source, const char *name) {
    const struct quantised_source *s = source_of(source);
    struct quantised_module module;
    char memory[WEIGHT_SOURCE_NAME];
    return find_module(source, name, memory, &module) || s->files->ops->has(s->files, name);
}

/* Notes the shape that a reader asks for; only matrices are quantised, or stacks of them. */
static int take_shape(struct quantised_module *module, const struct tensor_shape *shape,
                      struct error *err) {
    module->err = err;
    if (shape->n_dims < 2)
        return error_set(err, ERR_UNSUPPORTED,
                         "tensor '%.160s" WEIGHT_SUFFIX
                         "': only matrices may be quantised, and this has %u dimensions",
                         module->name, shape->n_dims);
    module->n_stacked = shape->n_dims == 2 ? 1 : shape->dims[0];
    module->rows = module->n_stacked * shape->dims[shape->n_dims - 2];
    module->cols = shape->dims[shape->n_dims - 1];
    return 0;
}

static int get_weight(const struct weight_source *source, const char *name,
                      const struct tensor_shape *shape, struct weight *out, struct error *err) {
    const struct quantised_source *s = source_of(source);
    struct quantised_module module;
    char memory[WEIGHT_SOURCE_NAME];
    if (!find_module(source, name, memory, &module))
        return s->files->ops->get(s->files, name, shape, out, err);
    const int rc = take_shape(&module, shape, err);
    return rc ? rc : quantised_module_get(&module, out);
}

static int read_rows(const struct weight_source *source, const char *name,
                     const struct tensor_shape *shape, uint32_t first, const struct weight *to,
                     struct error *err) {
    struct quantised_module module;
    char memory[WEIGHT_SOURCE_NAME];
    if (!find_module(source, name, memory, &module))
        return error_set(err, ERR_NOT_FOUND, "no quantised tensor '%.160s'", name);
    const int rc = take_shape(&module, shape, err);
    return rc ? rc : quantised_module_read(&module, first, to);
}

static int view_tensor(const struct weight_source *source, const char *name,
                       struct safetensors_view *out, struct error *err) {
    const struct quantised_source *s = source_of(source);
    return s->files->ops->view(s->files, name, out, err);
}

static bool name_of(const struct weight_source *source, uint32_t i, char out[WEIGHT_SOURCE_NAME]) {
    const struct quantised_source *s = source_of(source);
    char name[WEIGHT_SOURCE_NAME];
    if (!s->files->ops->name(s->files, i, name)) return false;
    quantised_name(s->files, name, out, WEIGHT_SOURCE_NAME);
    return true;
}

static void digest_files(const struct weight_source *source, struct digest *digest) {
    const struct quantised_source *s = source_of(source);
    s->files->ops->digest(s->files, digest);
}

static int check_files(const struct weight_source *source, struct error *err) {
    const struct quantised_source *s = source_of(source);
    return s->files->ops->check(s->files, err);
}

static void close_source(struct weight_source *source) {
    struct quantised_source *s = (struct quantised_source *)source;
    s->files->ops->close(s->files);
    free(s);
}

/* It has no open(): a directory alone does not say how its weights are quantised. */
static const struct weight_source_ops quantised_source = {.close = close_source,
                                                          .has = has_weight,
                                                          .get = get_weight,
                                                          .read = read_rows,
                                                          .view = view_tensor,
                                                          .name = name_of,
                                                          .digest = digest_files,
                                                          .check = check_files};

int quantised_source_open(struct weight_source **out, const char *dir,
                          const struct quantisation *how, struct error *err) {
    struct quantised_source *s = calloc(1, sizeof(*s));
    if (!s) return error_set(err, ERR_NOMEM, "%.200s: no memory for its files", dir);
    s->base.ops = &quantised_source;
    s->how = *how;
    const int rc = safetensors_source.open(&s->files, dir, err);
    if (rc) free(s);
    else *out = &s->base;
    return rc;
}
