/* checkpoint.h - writes safetensors files: first all tensors are named, then their bytes are
 * written in any order.
 *
 *   add() ... ──► begin(): shards, headers ──► write() ... ──► end(): the index of shards
 *
 * Within a file tensors of larger elements come first, so that each is aligned without gaps.
 *
 * Thread: any one.  Memory: the names and shapes, until fini(). */
#ifndef ENGINE_QUANTISE_CHECKPOINT_H
#define ENGINE_QUANTISE_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;

enum { CHECKPOINT_NAME = 256, CHECKPOINT_DIMS = 8 };

struct checkpoint_tensor {
    char name[CHECKPOINT_NAME];
    char dtype[16]; /* as files spell it */
    uint32_t n_dims, element_bytes;
    uint64_t dims[CHECKPOINT_DIMS], bytes;
    uint32_t shard;  /* set by begin() */
    uint64_t offset; /* in its file, likewise */
};

struct checkpoint {
    const char *dir;      /* borrowed */
    uint64_t shard_bytes; /* a file ends once it has as many; a tensor is never divided */
    struct checkpoint_tensor *tensors; /* [n], owned */
    uint32_t n, capacity, n_shards;
    int *files; /* [n_shards], owned */
};

/* Adds a tensor, whose number is checkpoint->n before.  ERR_NOMEM. */
int checkpoint_add(struct checkpoint *checkpoint, const struct checkpoint_tensor *tensor,
                   struct error *err);
/* Returns the bytes of all tensors. */
uint64_t checkpoint_bytes(const struct checkpoint *checkpoint);
/* Creates the files, with their headers.  ERR_IO, ERR_NOMEM. */
int checkpoint_begin(struct checkpoint *checkpoint, struct error *err);
/* Writes n bytes of a tensor, from `at` on.  ERR_IO. */
int checkpoint_write(const struct checkpoint *checkpoint, uint32_t tensor, uint64_t at,
                     const void *bytes, size_t n, struct error *err);
/* Writes model.safetensors.index.json where there are several files, and closes them all.
 * ERR_IO, ERR_NOMEM. */
int checkpoint_end(struct checkpoint *checkpoint, struct error *err);
void checkpoint_fini(struct checkpoint *checkpoint); /* a zeroed one is allowed */

/* Writes a JSON document to a file of the directory.  ERR_IO. */
struct json_t;
int checkpoint_document(const char *dir, const char *name, const struct json_t *document,
                        struct error *err);

#endif
