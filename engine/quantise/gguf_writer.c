/* gguf_writer.c - see gguf_writer.h. */
#include "engine/quantise/gguf_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/sizes.h"
#include "engine/gguf/gguf_types.h"

enum { VERSION = 3, ALIGN = 32 };
static const char PARTIAL[] = ".partial";

static int refuse_write(const struct gguf_writer *w, struct error *err) {
    return error_set(err, ERR_IO, "--out: %.400s cannot be written: %s", w->partial,
                     strerror(errno));
}

int gguf_writer_init(struct gguf_writer *w, const char *path, struct error *err) {
    *w = (struct gguf_writer){.file = -1};
    w->keys = open_memstream(&w->key_bytes, &w->n_key_bytes);
    w->path = strdup(path);
    w->partial = malloc(strlen(path) + sizeof(PARTIAL));
    if (!w->keys || !w->path || !w->partial) {
        gguf_writer_fini(w);
        return error_set(err, ERR_NOMEM, "no memory for the keys of a GGUF file");
    }
    sprintf(w->partial, "%s%s", path, PARTIAL);
    return 0;
}

void gguf_writer_fini(struct gguf_writer *w) {
    if (w->keys) fclose(w->keys);
    if (w->partial && w->data_at > 0) unlink(w->partial); /* data_at: this one has created it */
    if (w->data_at > 0 && w->file >= 0) close(w->file);
    free(w->key_bytes);
    free(w->path);
    free(w->partial);
    free(w->tensors);
    free(w->offsets);
    *w = (struct gguf_writer){.file = -1};
}

/* ---- keys ---- */

static void put(struct gguf_writer *w, const void *bytes, size_t n) {
    fwrite(bytes, 1, n, w->keys); /* ferror() says in begin() whether one has failed */
}

static void put_u32(struct gguf_writer *w, uint32_t value) {
    put(w, &value, sizeof(value));
}

static void put_u64(struct gguf_writer *w, uint64_t value) {
    put(w, &value, sizeof(value));
}

void gguf_put_element_string(struct gguf_writer *w, const char *text, size_t n) {
    put_u64(w, n);
    put(w, text, n);
}

void gguf_put_element_i32(struct gguf_writer *w, int32_t value) {
    put(w, &value, sizeof(value));
}

void gguf_put_element_f32(struct gguf_writer *w, float value) {
    put(w, &value, sizeof(value));
}

void gguf_put_element_bool(struct gguf_writer *w, bool value) {
    const uint8_t byte = value;
    put(w, &byte, sizeof(byte));
}

static void begin_key(struct gguf_writer *w, const char *key, enum gguf_type type) {
    gguf_put_element_string(w, key, strlen(key));
    put_u32(w, type);
    w->n_keys++;
}

void gguf_put_u32(struct gguf_writer *w, const char *key, uint32_t value) {
    begin_key(w, key, GGUF_U32);
    put_u32(w, value);
}

void gguf_put_f32(struct gguf_writer *w, const char *key, float value) {
    begin_key(w, key, GGUF_F32);
    gguf_put_element_f32(w, value);
}

void gguf_put_bool(struct gguf_writer *w, const char *key, bool value) {
    begin_key(w, key, GGUF_BOOL);
    gguf_put_element_bool(w, value);
}

void gguf_put_string(struct gguf_writer *w, const char *key, const char *text, size_t n) {
    begin_key(w, key, GGUF_STRING);
    gguf_put_element_string(w, text, n);
}

void gguf_put_array(struct gguf_writer *w, const char *key, enum gguf_type element, uint64_t n) {
    begin_key(w, key, GGUF_ARRAY);
    put_u32(w, element);
    put_u64(w, n);
}

/* ---- tensors ---- */

int gguf_writer_add(struct gguf_writer *w, const struct gguf_tensor *tensor, struct error *err) {
    if (w->n == w->capacity) {
        const uint32_t capacity = w->capacity ? 2 * w->capacity : 64;
        struct gguf_tensor *tensors = realloc(w->tensors, capacity * sizeof(*tensors));
        if (tensors) w->tensors = tensors;
        uint64_t *offsets = realloc(w->offsets, capacity * sizeof(*offsets));
        if (offsets) w->offsets = offsets;
        if (!tensors || !offsets)
            return error_set(err, ERR_NOMEM, "no memory for the names of tensors");
        w->capacity = capacity;
    }
    struct gguf_tensor *own = &w->tensors[w->n];
    *own = *tensor;
    own->n_bytes = element_bytes(own->element, own->dims[own->n_dims - 1]);
    for (uint32_t i = 0; i + 1 < own->n_dims; i++) own->n_bytes *= own->dims[i];
    w->offsets[w->n++] = w->data_bytes;
    w->data_bytes = round_up(w->data_bytes + own->n_bytes, ALIGN);
    return 0;
}

static void put_tensor(struct gguf_writer *w, uint32_t i) {
    const struct gguf_tensor *t = &w->tensors[i];
    gguf_put_element_string(w, t->name, strlen(t->name));
    put_u32(w, t->n_dims);
    for (uint32_t k = t->n_dims; k > 0; k--) put_u64(w, t->dims[k - 1]);
    put_u32(w, gguf_type_of(t->element));
    put_u64(w, w->offsets[i]);
}

static int write_at(const struct gguf_writer *w, const void *bytes, size_t n, uint64_t at,
                    struct error *err) {
    const char *from = bytes;
    while (n > 0) {
        const ssize_t done = pwrite(w->file, from, n, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return refuse_write(w, err);
        from += done;
        at += (uint64_t)done;
        n -= (size_t)done;
    }
    return 0;
}

int gguf_writer_begin(struct gguf_writer *w, struct error *err) {
    uint8_t start[24] = "GGUF";
    const uint32_t version = VERSION;
    const uint64_t n_tensors = w->n;
    memcpy(start + 4, &version, sizeof(version));
    memcpy(start + 8, &n_tensors, sizeof(n_tensors));
    memcpy(start + 16, &w->n_keys, sizeof(w->n_keys));
    for (uint32_t i = 0; i < w->n; i++) put_tensor(w, i);
    if (ferror(w->keys) || fflush(w->keys))
        return error_set(err, ERR_NOMEM, "no memory for the keys of a GGUF file");
    int rc = file_open(&w->file, w->partial, O_RDWR | O_CREAT | O_EXCL, err);
    if (rc) return rc;
    w->data_at = round_up(sizeof(start) + w->n_key_bytes, ALIGN);
    rc = write_at(w, start, sizeof(start), 0, err);
    if (!rc) rc = write_at(w, w->key_bytes, w->n_key_bytes, sizeof(start), err);
    if (!rc && ftruncate(w->file, (off_t)(w->data_at + w->data_bytes))) rc = refuse_write(w, err);
    return rc;
}

int gguf_writer_write(const struct gguf_writer *w, uint32_t tensor, uint64_t at, const void *bytes,
                      size_t n, struct error *err) {
    return write_at(w, bytes, n, w->data_at + w->offsets[tensor] + at, err);
}

int gguf_writer_end(struct gguf_writer *w, struct error *err) {
    if (fsync(w->file) || rename(w->partial, w->path)) return refuse_write(w, err);
    close(w->file);
    w->file = -1;
    w->data_at = 0; /* it is complete: nothing is left to remove */
    return 0;
}
