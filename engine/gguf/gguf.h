/* gguf.h - the keys and tensors inside the bytes of one GGUF file, which may be malformed.
 *
 *   "GGUF" | u32 version, 2 or 3 | u64 n tensors | u64 n keys | keys | tensors | padding | data
 *   key      string name, u32 type, value      array: u32 type, u64 n, n values; arrays may nest
 *   string   u64 n, n bytes
 *   tensor   string name, u32 n dims, u64 dims[], the fastest one first, u32 type, u64 offset
 *
 * Numbers are little-endian.  Offsets count from the data's begin, which is aligned as each tensor.
 * Everything is checked here, once, in 64 bits: names, types and lengths.  Each tensor lies within
 * the data and shares no byte with another one.  Strings need not be UTF-8.
 *
 * Thread: parse on any one, then read-only.  Memory: borrows the bytes, in which values lie; its
 * own is freed by destroy. */
#ifndef ENGINE_GGUF_GGUF_H
#define ENGINE_GGUF_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/device/weight.h"

struct error;
struct gguf;

enum { GGUF_MAX_DIMS = 4, GGUF_MAX_NAME = 128 };

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_N_TYPES
};

struct gguf_value {
    enum gguf_type type;
    const uint8_t *bytes;   /* a scalar, a string's bytes, or an array's first element */
    uint64_t n;             /* bytes of a string, elements of an array */
    enum gguf_type element; /* of an array */
};

struct gguf_tensor {
    char name[GGUF_MAX_NAME];
    enum element element;
    uint32_t n_dims;
    uint32_t dims[GGUF_MAX_DIMS]; /* the slowest one first, as in struct tensor_shape */
    const void *data;
    uint64_t n_bytes;
};

/* Parses a file.  `label` names it in messages and is copied.  On failure *out is untouched.
 * ERR_UNSUPPORTED: a version, a byte order, or a tensor's type that is not read. */
int gguf_parse(struct gguf **out, const void *bytes, size_t size, const char *label,
               struct error *err);
void gguf_destroy(struct gguf *file); /* NULL is allowed */

uint32_t gguf_n_tensors(const struct gguf *file);
/* Returns tensor i, in the order of their names. */
const struct gguf_tensor *gguf_tensor_at(const struct gguf *file, uint32_t i);
/* Returns the tensor of this name, or NULL. */
const struct gguf_tensor *gguf_find_tensor(const struct gguf *file, const char *name);

uint32_t gguf_n_keys(const struct gguf *file);
/* Returns the name of key i, in the order of names: n bytes. */
const char *gguf_key_at(const struct gguf *file, uint32_t i, size_t *n);
/* Returns the value of a key, or NULL. */
const struct gguf_value *gguf_find(const struct gguf *file, const char *key);

/* Reads a number; returns false if the value is none, or NULL.  gguf_whole: of integers that are
 * not negative. */
bool gguf_whole(const struct gguf_value *value, uint64_t *out);
bool gguf_number(const struct gguf_value *value, double *out);
/* Returns a truth value, `other` if the value is none. */
bool gguf_truth(const struct gguf_value *value, bool other);

/* Returns element i of an array whose elements have one size, in its own right. */
struct gguf_value gguf_element(const struct gguf_value *array, uint64_t i);

/* Walks over the strings of an array.  A zeroed one, with `array` set, stands before the first. */
struct gguf_strings {
    const struct gguf_value *array;
    uint64_t next;
    const uint8_t *at;
};
/* Returns the next string, of n bytes; NULL: there is no other one, or the array has none. */
const char *gguf_next_string(const struct gguf *file, struct gguf_strings *strings, size_t *n);

#endif
