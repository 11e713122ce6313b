/* checkpoint.c - see checkpoint.h. */
#include "engine/quantise/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <jansson.h>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json_arena.h"
#include "engine/base/json_tree.h"
#include "engine/base/sizes.h"

enum { HEADER_ALIGN = 8 };

int checkpoint_add(struct checkpoint *c, const struct checkpoint_tensor *tensor,
                   struct error *err) {
    if (c->n == c->capacity) {
        const uint32_t capacity = c->capacity ? 2 * c->capacity : 64;
        struct checkpoint_tensor *more = realloc(c->tensors, capacity * sizeof(*more));
        if (!more) return error_set(err, ERR_NOMEM, "no memory for the names of tensors");
        c->tensors = more;
        c->capacity = capacity;
    }
    c->tensors[c->n++] = *tensor;
    return 0;
}

uint64_t checkpoint_bytes(const struct checkpoint *c) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < c->n; i++) bytes += c->tensors[i].bytes;
    return bytes;
}

/* Writes the name of a shard to out [64]. */
static void shard_name(const struct checkpoint *c, uint32_t shard, char *out) {
    if (c->n_shards == 1) snprintf(out, 64, "model.safetensors");
    else
        snprintf(out, 64, "model-%05" PRIu32 "-of-%05" PRIu32 ".safetensors", shard + 1,
                 c->n_shards);
}

static int refuse_write(const char *dir, const char *name, struct error *err) {
    return error_set(err, ERR_IO, "%.300s/%.100s cannot be written: %s", dir, name,
                     strerror(errno));
}

static void divide(struct checkpoint *c) {
    uint64_t filled = 0;
    c->n_shards = 1;
    for (uint32_t i = 0; i < c->n; i++) {
        if (filled > 0 && filled + c->tensors[i].bytes > c->shard_bytes) c->n_shards++, filled = 0;
        filled += c->tensors[i].bytes;
        c->tensors[i].shard = c->n_shards - 1;
    }
}

static json_t *describe(const struct checkpoint_tensor *t) {
    json_t *dims = json_array();
    for (uint32_t i = 0; i < t->n_dims; i++)
        json_array_append_new(dims, json_integer((json_int_t)t->dims[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", t->dtype, "shape", dims, "data_offsets",
                     (json_int_t)t->offset, (json_int_t)(t->offset + t->bytes));
}

/* Sets the offsets in a shard's data, and returns the text of its header; NULL: no memory. */
static char *make_header(struct checkpoint *c, uint32_t shard) {
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    uint64_t offset = 0;
    for (uint32_t size = 8; size > 0; size /= 2)
        for (uint32_t i = 0; i < c->n; i++) {
            struct checkpoint_tensor *t = &c->tensors[i];
            if (t->shard != shard || t->element_bytes != size) continue;
            t->offset = offset;
            offset += t->bytes;
            json_object_set_new(header, t->name, describe(t));
        }
    char *text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    return text;
}

static int write_at(const struct checkpoint *c, uint32_t shard, const void *bytes, size_t n,
                    uint64_t at, struct error *err) {
    const char *from = bytes;
    while (n > 0) {
        const ssize_t done = pwrite(c->files[shard], from, n, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) {
            char name[64];
            shard_name(c, shard, name);
            return refuse_write(c->dir, name, err);
        }
        from += done;
        at += (uint64_t)done;
        n -= (size_t)done;
    }
    return 0;
}

/* Writes a shard's header, filled up with spaces, and makes offsets those of the file. */
static int begin_shard(struct checkpoint *c, uint32_t shard, struct error *err) {
    char path[PATH_MAX], name[64];
    char *header = make_header(c, shard);
    if (!header) return error_set(err, ERR_NOMEM, "no memory for the header of a file");
    const size_t n = strlen(header), padded = round_up(n, HEADER_ALIGN);
    uint8_t size[8];
    for (int i = 0; i < 8; i++) size[i] = (uint8_t)((uint64_t)padded >> 8 * i);
    shard_name(c, shard, name);
    snprintf(path, sizeof(path), "%s/%s", c->dir, name);
    int rc = file_open(&c->files[shard], path, O_WRONLY | O_CREAT | O_EXCL, err);
    if (!rc) rc = write_at(c, shard, size, sizeof(size), 0, err);
    if (!rc) rc = write_at(c, shard, header, n, sizeof(size), err);
    if (!rc) rc = write_at(c, shard, "       ", padded - n, sizeof(size) + n, err);
    for (uint32_t i = 0; i < c->n; i++)
        if (c->tensors[i].shard == shard) c->tensors[i].offset += sizeof(size) + padded;
    json_arena_free(header);
    return rc;
}

int checkpoint_begin(struct checkpoint *c, struct error *err) {
    int rc = 0;
    divide(c);
    c->files = malloc(c->n_shards * sizeof(*c->files));
    if (!c->files) return error_set(err, ERR_NOMEM, "no memory for the files");
    for (uint32_t i = 0; i < c->n_shards; i++) c->files[i] = -1;
    for (uint32_t i = 0; i < c->n_shards && !rc; i++) rc = begin_shard(c, i, err);
    return rc;
}

int checkpoint_write(const struct checkpoint *c, uint32_t tensor, uint64_t at, const void *bytes,
                     size_t n, struct error *err) {
    const struct checkpoint_tensor *t = &c->tensors[tensor];
    return write_at(c, t->shard, bytes, n, t->offset + at, err);
}

static int append(const char *text, size_t n, void *file) {
    return fwrite(text, 1, n, file) == n ? 0 : -1;
}

int checkpoint_document(const char *dir, const char *name, const json_t *document,
                        struct error *err) {
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    const bool is_whole = file && json_tree_write(document, append, file) == 0;
    if ((file && fclose(file)) || !is_whole) return refuse_write(dir, name, err);
    return 0;
}

static int write_index(const struct checkpoint *c, struct error *err) {
    json_t *map = json_object(), *index;
    for (uint32_t i = 0; i < c->n; i++) {
        char name[64];
        shard_name(c, c->tensors[i].shard, name);
        json_object_set_new(map, c->tensors[i].name, json_string(name));
    }
    index = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)checkpoint_bytes(c),
                      "weight_map", map);
    if (!index) return error_set(err, ERR_NOMEM, "no memory for the index of the files");
    const int rc = checkpoint_document(c->dir, "model.safetensors.index.json", index, err);
    json_decref(index);
    return rc;
}

/* Closes a file; what it holds must be on the disk by then. */
static int close_shard(struct checkpoint *c, uint32_t shard, struct error *err) {
    char name[64];
    const int file = c->files[shard];
    c->files[shard] = -1;
    shard_name(c, shard, name);
    const bool failed = fsync(file) != 0;
    if (close(file) != 0 || failed) return refuse_write(c->dir, name, err);
    return 0;
}

int checkpoint_end(struct checkpoint *c, struct error *err) {
    int rc = 0;
    for (uint32_t i = 0; i < c->n_shards && !rc; i++) rc = close_shard(c, i, err);
    return rc || c->n_shards == 1 ? rc : write_index(c, err);
}

void checkpoint_fini(struct checkpoint *c) {
    for (uint32_t i = 0; c->files && i < c->n_shards; i++)
        if (c->files[i] >= 0) close(c->files[i]);
    free(c->files);
    free(c->tensors);
}
