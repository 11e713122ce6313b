/* safetensors_source.c - one safetensors file, or shards behind an index (see weight_source.h).
 *
 *   dir/model.safetensors                     or
 *   dir/model.safetensors.index.json          {"weight_map": {"tensor name": "file name", ...}} */
#include "engine/model/weight_source.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/digest.h"
#include "engine/base/error.h"
#include "engine/base/json_guard.h"
#include "engine/base/mapped_file.h"
#include "engine/model/safetensors.h"

#define SINGLE_FILE "model.safetensors"
#define INDEX_FILE "model.safetensors.index.json"

enum { MAX_SHARDS = 1024, MAX_INDEX_BYTES = 64 << 20 };

struct shard {
    char *name; /* within the directory */
    struct mapped_file mapped;
    struct safetensors *file;
};

struct checkpoint {
    struct weight_source base;
    json_t *index; /* NULL: a single file */
    struct shard *shards;
    uint32_t n_shards;
};

static int join_path(char *out, const char *dir, const char *name, struct error *err) {
    int n = snprintf(out, PATH_MAX, "%s/%s", dir, name);
    if (n < 0 || n >= PATH_MAX)
        return error_set(err, ERR_INVALID, "%.200s: the path is too long", dir);
    return 0;
}

/* Appends a shard; a half-open one is closed with the checkpoint. */
static int open_shard(struct checkpoint *checkpoint, const char *dir, const char *name,
                      struct error *err) {
    char path[PATH_MAX];
    int rc = join_path(path, dir, name, err);
    if (rc) return rc;
    if (checkpoint->n_shards == MAX_SHARDS)
        return error_set(err, ERR_UNSUPPORTED, "%.200s: more than %d shards", dir, MAX_SHARDS);
    struct shard *shard = &checkpoint->shards[checkpoint->n_shards++];
    shard->name = strdup(name);
    if (!shard->name) return error_set(err, ERR_NOMEM, "%.200s: no memory for its name", path);
    rc = mapped_file_open(&shard->mapped, path, err);
    if (rc) return rc;
    return safetensors_parse(&shard->file, shard->mapped.bytes, shard->mapped.size, path, err);
}

static struct shard *find_shard(const struct checkpoint *checkpoint, const char *name) {
    for (uint32_t i = 0; i < checkpoint->n_shards; i++)
        if (strcmp(checkpoint->shards[i].name, name) == 0) return &checkpoint->shards[i];
    return NULL;
}

/* Returns true if the name is that of a file in the index's own directory: it may name no
 * others. */
static bool is_plain_name(const char *name) {
    return name && name[0] != '\0' && name[0] != '.' && !strchr(name, '/');
}

static int open_indexed(struct checkpoint *checkpoint, const char *dir, const char *path,
                        struct error *err) {
    const char *tensor;
    json_t *value;
    const json_t *map = json_object_get(checkpoint->index, "weight_map");
    if (!json_is_object(map))
        return error_set(err, ERR_INVALID, "%.200s: no 'weight_map' object", path);
    json_object_foreach((json_t *)map, tensor, value) {
        const char *name = json_string_value(value);
        if (!is_plain_name(name))
            return error_set(
                err, ERR_INVALID,
                "%.200s: tensor '%.100s': '%.100s' is not the name of a file in the same directory",
                path, tensor, name ? name : "");
        if (!find_shard(checkpoint, name)) {
            int rc = open_shard(checkpoint, dir, name, err);
            if (rc) return rc;
        }
        int rc = safetensors_has(find_shard(checkpoint, name)->file, tensor, err);
        if (rc) return rc;
    }
    return 0;
}

static int open_files(struct checkpoint *checkpoint, const char *dir, struct error *err) {
    char path[PATH_MAX];
    int rc = join_path(path, dir, SINGLE_FILE, err);
    if (rc) return rc;
    if (access(path, F_OK) == 0) return open_shard(checkpoint, dir, SINGLE_FILE, err);
    rc = join_path(path, dir, INDEX_FILE, err);
    if (rc) return rc;
    rc = json_guard_read(&checkpoint->index, path, MAX_INDEX_BYTES, err);
    if (rc == ERR_NOT_FOUND)
        return error_set(err, ERR_NOT_FOUND, "%.200s: neither " SINGLE_FILE " nor " INDEX_FILE,
                         dir);
    if (rc) return rc;
    return open_indexed(checkpoint, dir, path, err);
}

static const struct checkpoint *checkpoint_of(const struct weight_source *source) {
    return (const struct checkpoint *)source;
}

static int check_files(const struct weight_source *source, struct error *err) {
    const struct checkpoint *checkpoint = checkpoint_of(source);
    int rc = 0;
    for (uint32_t i = 0; i < checkpoint->n_shards && !rc; i++)
        rc = mapped_file_check(&checkpoint->shards[i].mapped, checkpoint->shards[i].name, err);
    return rc;
}

static void close_checkpoint(struct weight_source *source) {
    struct checkpoint *checkpoint = (struct checkpoint *)source;
    for (uint32_t i = 0; i < checkpoint->n_shards; i++) {
        struct shard *shard = &checkpoint->shards[i];
        safetensors_destroy(shard->file);
        mapped_file_close(&shard->mapped);
        free(shard->name);
    }
    free(checkpoint->shards);
    json_decref(checkpoint->index);
    free(checkpoint);
}

static int open_checkpoint(struct weight_source **out, const char *dir, struct error *err) {
    struct checkpoint *checkpoint = calloc(1, sizeof(*checkpoint));
    if (checkpoint) checkpoint->shards = calloc(MAX_SHARDS, sizeof(*checkpoint->shards));
    if (!checkpoint || !checkpoint->shards) {
        free(checkpoint);
        return error_set(err, ERR_NOMEM, "%.200s: no memory for its files", dir);
    }
    checkpoint->base.ops = &safetensors_source;
    int rc = open_files(checkpoint, dir, err);
    if (!rc) {
        *out = &checkpoint->base;
        return 0;
    }
    /* Zeros from a truncated file cause other errors, which would mislead: report the file's. */
    if (check_files(&checkpoint->base, err)) rc = ERR_IO;
    close_checkpoint(&checkpoint->base);
    return rc;
}

static void digest_files(const struct weight_source *source, struct digest *digest) {
    const struct checkpoint *checkpoint = checkpoint_of(source);
    digest_absorb(digest, checkpoint->n_shards);
    for (uint32_t i = 0; i < checkpoint->n_shards; i++) {
        const struct mapped_file *mapped = &checkpoint->shards[i].mapped;
        digest_absorb_checksums(digest, mapped->bytes, mapped->size);
    }
}

static bool has_tensor(const struct weight_source *source, const char *name) {
    const struct checkpoint *checkpoint = checkpoint_of(source);
    if (checkpoint->index)
        return json_object_get(json_object_get(checkpoint->index, "weight_map"), name) != NULL;
    return safetensors_has(checkpoint->shards[0].file, name, NULL) == 0;
}

/* Returns the shard that has a tensor, or NULL if the index has no such name. */
static const struct shard *shard_of(const struct checkpoint *checkpoint, const char *name,
                                    struct error *err) {
    if (!checkpoint->index) return &checkpoint->shards[0];
    const char *in =
        json_string_value(json_object_get(json_object_get(checkpoint->index, "weight_map"), name));
    if (in) return find_shard(checkpoint, in);
    error_set(err, ERR_NOT_FOUND, INDEX_FILE ": no tensor '%.160s'", name);
    return NULL;
}

static int get_tensor(const struct weight_source *source, const char *name,
                      const struct tensor_shape *shape, struct weight *out, struct error *err) {
    const struct shard *shard = shard_of(checkpoint_of(source), name, err);
    return shard ? safetensors_get(shard->file, name, shape, out, err) : ERR_NOT_FOUND;
}

static int view_tensor(const struct weight_source *source, const char *name,
                       struct safetensors_view *out, struct error *err) {
    const struct shard *shard = shard_of(checkpoint_of(source), name, err);
    return shard ? safetensors_view(shard->file, name, out, err) : ERR_NOT_FOUND;
}

static bool name_of(const struct weight_source *source, uint32_t i, char out[WEIGHT_SOURCE_NAME]) {
    const struct checkpoint *checkpoint = checkpoint_of(source);
    uint32_t k = 0;
    while (k < checkpoint->n_shards && i >= safetensors_count(checkpoint->shards[k].file))
        i -= safetensors_count(checkpoint->shards[k++].file);
    if (k == checkpoint->n_shards) return false;
    snprintf(out, WEIGHT_SOURCE_NAME, "%s", safetensors_name(checkpoint->shards[k].file, i));
    return true;
}

const struct weight_source_ops safetensors_source = {.open = open_checkpoint,
                                                     .close = close_checkpoint,
                                                     .has = has_tensor,
                                                     .get = get_tensor,
                                                     .view = view_tensor,
                                                     .name = name_of,
                                                     .digest = digest_files,
                                                     .check = check_files};
