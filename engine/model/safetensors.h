/* safetensors.h - the tensors inside the bytes of one safetensors file, which may be malformed.
 *
 *   u64 little-endian n | n bytes of JSON | data
 *   {"name": {"dtype": "BF16", "shape": [8, 4], "data_offsets": [begin, end]}, ...}
 *
 * Offsets count from the start of the data.  Everything is checked here, once, before any of it is
 * used.  The header lies within the file, and each tensor within the data.  A tensor's shape times
 * its dtype is its length, and no two tensors share a byte.  Messages name the file and the tensor.
 *
 * Thread: parse on any one, then read-only.  Memory: borrows the bytes; its own is freed by
 * destroy. */
#ifndef ENGINE_MODEL_SAFETENSORS_H
#define ENGINE_MODEL_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

struct error;
struct safetensors;
struct tensor_shape;
struct weight;

enum { SAFETENSORS_MAX_HEADER = 100 * 1000 * 1000, SAFETENSORS_MAX_DIMS = 8 };

/* Parses a file.  `label` names it in messages and is copied.  On failure *out is untouched. */
int safetensors_parse(struct safetensors **out, const void *bytes, size_t size, const char *label,
                      struct error *err);
void safetensors_destroy(struct safetensors *file); /* NULL is allowed */

uint32_t safetensors_count(const struct safetensors *file);

/* Returns in *out the data of a float tensor that has exactly this shape, as a matrix.  All
 * dimensions but the last are its rows.  out->data points into the bytes and is aligned for its
 * dtype.  ERR_NOT_FOUND when there is no such name. */
int safetensors_get(const struct safetensors *file, const char *name,
                    const struct tensor_shape *shape, struct weight *out, struct error *err);

/* A tensor as its file has it, whatever its dtype. */
struct safetensors_view {
    const char *dtype; /* as the file spells it, such as "F8_E4M3" */
    uint32_t n_dims;
    uint64_t dims[SAFETENSORS_MAX_DIMS];
    uint64_t size_bytes;
    const void *data; /* aligned for its dtype */
};

/* Describes a tensor.  ERR_NOT_FOUND: there is none; ERR_INVALID: it is not aligned. */
int safetensors_view(const struct safetensors *file, const char *name, struct safetensors_view *out,
                     struct error *err);
/* Returns the name of tensor number i of safetensors_count(). */
const char *safetensors_name(const struct safetensors *file, uint32_t i);

/* Returns 0, or ERR_NOT_FOUND naming tensor and file. */
int safetensors_has(const struct safetensors *file, const char *name, struct error *err);

#endif
