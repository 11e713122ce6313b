/* weight_source.h - the tensors of a model directory, whatever format its files have.
 *
 *   safetensors_source   model.safetensors, or shards behind model.safetensors.index.json
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
struct weight;
struct weight_source;

/* The shape that a reader asks for, of 1 to 3 dimensions: [cols], [rows, cols], or
 * [n_stacked, rows, cols]. */
struct tensor_shape {
    uint32_t n_dims, dims[3];
};

struct weight_source_ops {
    /* Opens the directory's files.  On failure *out is untouched. */
    int (*open)(struct weight_source **out, const char *dir, struct error *err);
    void (*close)(struct weight_source *source);
    bool (*has)(const struct weight_source *source, const char *name);
    /* Describes the tensor that has this name, and exactly this shape; reads none of its data.
     * All dimensions but the last are rows of *out, which is no stack.
     * ERR_NOT_FOUND: there is none; ERR_INVALID: its shape is another, or the file is malformed;
     * ERR_UNSUPPORTED: no format of weight.h is what it holds. */
    int (*get)(const struct weight_source *source, const char *name,
               const struct tensor_shape *shape, struct weight *out, struct error *err);
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

extern const struct weight_source_ops safetensors_source;

#endif
