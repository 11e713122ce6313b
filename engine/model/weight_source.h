/* weight_source.h - the tensors of a model, whatever format its files have.
 *
 *   safetensors_source   model.safetensors, or shards behind model.safetensors.index.json
 *   quantised_source.h   the same, with quantised modules
 *   gguf_source          a GGUF file, or the files of a split one
 *
 * A source converts what its files hold to the formats of weight.h; nothing behind it knows the
 * format of files.
 *
 * Thread: open on any one, then read-only.  Memory: maps the files read-only until close, so a
 * weight found here is valid exactly that long. */
#ifndef ENGINE_MODEL_WEIGHT_SOURCE_H
#define ENGINE_MODEL_WEIGHT_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

struct digest;
struct error;
struct safetensors_view;
struct weight;
struct weight_source;

/* The shape that a reader asks for, of 1 to 3 dimensions: [cols], [rows, cols], or
 * [n_stacked, rows, cols]. */
struct tensor_shape {
    uint32_t n_dims, dims[3];
};

enum { WEIGHT_SOURCE_NAME = 256 }; /* the most bytes of a tensor's name, with the 0 at its end */

struct weight_source_ops {
    /* Opens the model's files: those of a directory, or of a path.  On failure *out is
     * untouched. */
    int (*open)(struct weight_source **out, const char *model, struct error *err);
    void (*close)(struct weight_source *source);
    bool (*has)(const struct weight_source *source, const char *name);
    /* Describes the tensor that has this name, and exactly this shape; reads none of its data.
     * All dimensions but the last are rows of *out, which is no stack.  out->data NULL: the file
     * has another layout, and read() converts it.
     * ERR_NOT_FOUND: there is none; ERR_INVALID: its shape is another, or the file is malformed;
     * ERR_UNSUPPORTED: no format of weight.h is what it holds. */
    int (*get)(const struct weight_source *source, const char *name,
               const struct tensor_shape *shape, struct weight *out, struct error *err);
    /* Converts rows of a tensor that get() described without data.  It writes to->rows rows, from
     * `first` on, to to->data, to->scales and to->mins.  NULL: the source has no such tensors.
     * ERR_INVALID, ERR_UNSUPPORTED: what it holds is not what get() can see. */
    int (*read)(const struct weight_source *source, const char *name,
                const struct tensor_shape *shape, uint32_t first, const struct weight *to,
                struct error *err);
    /* Describes a tensor as its file has it (safetensors.h).  NULL: not a source of such files.
     * ERR_NOT_FOUND, ERR_INVALID. */
    int (*view)(const struct weight_source *source, const char *name, struct safetensors_view *out,
                struct error *err);
    /* Writes the name by which get() knows tensor number i of the files.  It is empty if the tensor
     * belongs to another, as scales do.  Returns false if there are no more than i. */
    bool (*name)(const struct weight_source *source, uint32_t i, char out[WEIGHT_SOURCE_NAME]);
    /* Absorbs every byte of the files, in the order in which they were opened; reads all of
     * them. */
    void (*digest)(const struct weight_source *source, struct digest *digest);
    /* Returns ERR_IO, naming the file, once a missing part of one was touched: what was computed
     * since may be wrong (mapped_file.h). */
    int (*check)(const struct weight_source *source, struct error *err);
};

/* Implementations embed this as their first member. */
struct weight_source {
    const struct weight_source_ops *ops;
};

extern const struct weight_source_ops safetensors_source, gguf_source;

/* Opens the files of a model with the source that reads them. */
int weight_source_open(struct weight_source **out, const char *model, struct error *err);

#endif
