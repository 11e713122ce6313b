/* gguf_writer.h - writes a GGUF file (gguf.h), version 3: first all keys and tensors are named,
 * then the tensors' bytes are written in any order.
 *
 *   keys, add() ... ──► begin(): the header ──► write() ... ──► end()
 *
 * The file has a name of its own until it is complete.
 *
 * Thread: any one.  Memory: keys, names and shapes, until fini(). */
#ifndef ENGINE_QUANTISE_GGUF_WRITER_H
#define ENGINE_QUANTISE_GGUF_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "engine/gguf/gguf.h"

struct error;

struct gguf_writer {
    FILE *keys; /* into key_bytes */
    char *key_bytes, *path, *partial;
    size_t n_key_bytes;
    uint64_t n_keys;
    struct gguf_tensor *tensors; /* [n], owned; data: its offset in the file's data */
    uint64_t *offsets;
    uint32_t n, capacity;
    uint64_t data_at, data_bytes;
    int file;
};

/* Prepares a file.  fini() frees what it has, and removes what is not complete.  ERR_NOMEM;
 * ERR_INVALID: the path is too long. */
int gguf_writer_init(struct gguf_writer *w, const char *path, struct error *err);
void gguf_writer_fini(struct gguf_writer *w); /* a zeroed one is allowed */

/* Adds a key.  Without memory begin() fails. */
void gguf_put_u32(struct gguf_writer *w, const char *key, uint32_t value);
void gguf_put_f32(struct gguf_writer *w, const char *key, float value);
void gguf_put_bool(struct gguf_writer *w, const char *key, bool value);
void gguf_put_string(struct gguf_writer *w, const char *key, const char *text, size_t n);
/* Begins a key that is an array of n elements, which are then put one by one. */
void gguf_put_array(struct gguf_writer *w, const char *key, enum gguf_type element, uint64_t n);
void gguf_put_element_i32(struct gguf_writer *w, int32_t value);
void gguf_put_element_f32(struct gguf_writer *w, float value);
void gguf_put_element_bool(struct gguf_writer *w, bool value);
void gguf_put_element_string(struct gguf_writer *w, const char *text, size_t n);

/* Adds a tensor, whose number is w->n before; n_bytes is set here.  ERR_NOMEM. */
int gguf_writer_add(struct gguf_writer *w, const struct gguf_tensor *tensor, struct error *err);
/* Creates the file with its header, and its whole length.  ERR_IO, ERR_NOMEM. */
int gguf_writer_begin(struct gguf_writer *w, struct error *err);
/* Writes n bytes of a tensor, from `at` on.  ERR_IO. */
int gguf_writer_write(const struct gguf_writer *w, uint32_t tensor, uint64_t at, const void *bytes,
                      size_t n, struct error *err);
/* Makes sure that the file is on the disk, and gives it its name.  ERR_IO. */
int gguf_writer_end(struct gguf_writer *w, struct error *err);

#endif
