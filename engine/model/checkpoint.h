/* checkpoint.h - the tensors of a model directory: one safetensors file, or shards behind an index.
 *
 *   dir/model.safetensors                     or
 *   dir/model.safetensors.index.json          {"weight_map": {"tensor name": "file name", ...}}
 *
 * Thread: open on any one, then read-only.  Memory: maps the files read-only until close, so a
 * weight found here is valid exactly that long. */
#ifndef ENGINE_MODEL_CHECKPOINT_H
#define ENGINE_MODEL_CHECKPOINT_H

#include <stdbool.h>

#include "engine/model/safetensors.h"

struct checkpoint;
struct digest;
struct weight;

/* Opens the directory's files.  On failure *out is untouched. */
int checkpoint_open(struct checkpoint **out, const char *dir, struct error *err);
void checkpoint_close(struct checkpoint *checkpoint); /* NULL is allowed */

/* Returns ERR_IO, naming the file, once a missing part of one was touched: what was computed since
 * may be wrong (mapped_file.h). */
int checkpoint_check(const struct checkpoint *checkpoint, struct error *err);

/* Absorbs every byte of the files, in the order in which they were opened; reads all of them. */
void checkpoint_digest(const struct checkpoint *checkpoint, struct digest *digest);

bool checkpoint_has(const struct checkpoint *checkpoint, const char *name);

/* Does what safetensors_get() does, in the file that holds the tensor. */
int checkpoint_get(const struct checkpoint *checkpoint, const char *name,
                   const struct tensor_shape *shape, struct weight *out, struct error *err);

#endif
