/* gguf_source.c - the tensors of a GGUF file, or of all files of a split (see weight_source.h).
 *
 * Packed elements stay as the file has them, so a weight points into its mapping. */
#include "engine/model/weight_source.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/gguf/gguf.h"
#include "engine/gguf/gguf_config.h"
#include "engine/gguf/gguf_files.h"

struct gguf_checkpoint {
    struct weight_source base;
    struct gguf_files *files;
};

static const struct gguf_files *files_of(const struct weight_source *source) {
    return ((const struct gguf_checkpoint *)source)->files;
}

static int open_files(struct weight_source **out, const char *path, struct error *err) {
    struct gguf_checkpoint *checkpoint = calloc(1, sizeof(*checkpoint));
    if (!checkpoint) return error_set(err, ERR_NOMEM, "%.200s: no memory for its files", path);
    checkpoint->base.ops = &gguf_source;
    const int rc = gguf_files_open(&checkpoint->files, path, err);
    if (rc) free(checkpoint);
    else *out = &checkpoint->base;
    return rc;
}

static void close_files(struct weight_source *source) {
    struct gguf_checkpoint *checkpoint = (struct gguf_checkpoint *)source;
    gguf_files_close(checkpoint->files);
    free(checkpoint);
}

static bool has_tensor(const struct weight_source *source, const char *name) {
    return gguf_files_find(files_of(source), name) != NULL;
}

/* Returns true if the tensor has this shape.  The file may leave out dimensions of 1 before the
 * last one, and has vectors of Mamba-2 layers as matrices of as many elements. */
static bool has_shape(const struct gguf_tensor *t, const struct tensor_shape *shape) {
    uint32_t n = 0;
    if (shape->n_dims == 1 && t->n_dims == 2)
        return (uint64_t)t->dims[0] * t->dims[1] == shape->dims[0];
    for (uint32_t i = 0; i < shape->n_dims; i++) {
        if (n < t->n_dims && t->dims[n] == shape->dims[i]) n++;
        else if (shape->dims[i] != 1 || i + 1 == shape->n_dims) return false;
    }
    return n == t->n_dims;
}

static int get_tensor(const struct weight_source *source, const char *name,
                      const struct tensor_shape *shape, struct weight *out, struct error *err) {
    const struct gguf_tensor *t = gguf_files_find(files_of(source), name);
    if (!t) return error_set(err, ERR_NOT_FOUND, "the model has no tensor '%.160s'", name);
    if (!has_shape(t, shape))
        return error_set(err, ERR_INVALID,
                         "tensor '%.160s' has %u dimensions, the last of %u elements: its shape is "
                         "not the one that the model's keys give",
                         name, t->n_dims, t->dims[t->n_dims - 1]);
    if ((t->n_dims == 1 || shape->n_dims == 1) && element_is_packed(t->element))
        return error_set(err, ERR_UNSUPPORTED,
                         "tensor '%.160s' is a vector of packed elements: it must be F32, F16 or "
                         "BF16",
                         name);
    const uint32_t cols = t->dims[t->n_dims - 1];
    uint32_t rows = 1;
    for (uint32_t i = 0; i + 1 < t->n_dims; i++) rows *= t->dims[i];
    *out = weight_plain(t->data, t->element, rows, cols);
    return 0;
}

/* Tensors that are read with the keys (gguf_config.h) have no name here. */
static bool name_tensor(const struct weight_source *source, uint32_t i,
                        char out[WEIGHT_SOURCE_NAME]) {
    const struct gguf_tensor *t = gguf_files_tensor(files_of(source), i);
    if (!t) return false;
    snprintf(out, WEIGHT_SOURCE_NAME, "%s", gguf_config_reads(t->name) ? "" : t->name);
    return true;
}

static void digest_files(const struct weight_source *source, struct digest *digest) {
    gguf_files_digest(files_of(source), digest);
}

static int check_files(const struct weight_source *source, struct error *err) {
    return gguf_files_check(files_of(source), err);
}

const struct weight_source_ops gguf_source = {.open = open_files,
                                              .close = close_files,
                                              .has = has_tensor,
                                              .get = get_tensor,
                                              .name = name_tensor,
                                              .digest = digest_files,
                                              .check = check_files};
