/* quantise.h - a model again, with the matrices of its layers in fewer bits: a folder, or a GGUF
 * file (quantise_gguf.h).
 *
 * A folder's layout is that of compressed-tensors, always symmetric.  FP8 is float-quantized and
 * int8 is pack-quantized, with a scale for each row; int4 is pack-quantized with groups.
 * Embeddings, norms, biases and the head stay as they are, byte by byte.
 *
 * Thread: any one.  Memory: a matrix's scales, and a row. */
#ifndef ENGINE_QUANTISE_QUANTISE_H
#define ENGINE_QUANTISE_QUANTISE_H

#include <stdint.h>

#include "engine/quantise/packing.h"
#include "engine/quantise/rounding.h"

struct error;

/* What rounding cost a layer. */
struct layer_loss {
    struct rounding_error sum;
    double worst;   /* relative error of its worst matrix */
    char name[256]; /* of that; "": the layer has none */
};

struct quantise_plan {
    const char *from, *to;           /* a folder; a folder or a file */
    const struct packing *packing;   /* NULL: a folder is written, */
    const struct rounding *rounding; /* rounded by this */
    uint32_t group;                  /* columns, of roundings that have groups */
    uint64_t shard_bytes;            /* a file ends once it has as many */
    /* Gets the bytes that are written, and all.  May be NULL. */
    void (*progress)(void *ctx, uint64_t done, uint64_t total);
    void *ctx;
};

/* Writes the folder or the file.  *losses: [*n_layers], which the caller frees; on failure it is
 * untouched.  A folder's config.json is written last, so what is not finished is no model.
 * ERR_UNSUPPORTED: the model is a GGUF file, or quantised already.  ERR_INVALID: plan->to is not
 * empty, or the file exists.  ERR_INVALID, too: a matrix does not go with the groups, or has a
 * value that is NaN or infinite.  ERR_NOMEM: or the disk has too little left.  ERR_IO. */
int quantise(const struct quantise_plan *plan, struct layer_loss **losses, uint32_t *n_layers,
             struct error *err);

/* Checks that a file system has so many bytes left.  ERR_NOMEM: it has not. */
int quantise_check_disk(const char *path, uint64_t bytes, struct error *err);

/* Returns the square root of what was rounded off, relative to the values. */
double rounding_loss(const struct rounding_error *sum);

#endif
