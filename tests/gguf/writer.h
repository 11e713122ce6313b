/* writer.h - GGUF files for tests, piece by piece.
 *
 * Thread: any one.  Memory: a fixed buffer. */
#ifndef TESTS_GGUF_WRITER_H
#define TESTS_GGUF_WRITER_H

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "engine/gguf/gguf.h"

enum { WRITER_BYTES = 1 << 16 };

struct writer {
    _Alignas(64) uint8_t bytes[WRITER_BYTES];
    size_t n;
};

static inline void write_number(struct writer *w, uint64_t value, size_t n_bytes) {
    assert(w->n + n_bytes <= WRITER_BYTES);
    for (size_t i = 0; i < n_bytes; i++) w->bytes[w->n++] = (uint8_t)(value >> 8 * i);
}

static inline void write_text(struct writer *w, const char *text) {
    write_number(w, strlen(text), 8);
    for (; *text; text++) write_number(w, (uint8_t)*text, 1);
}

static inline void write_start(struct writer *w, uint32_t version, uint64_t n_tensors,
                               uint64_t n_keys) {
    w->n = 0;
    for (const char *c = "GGUF"; *c; c++) write_number(w, (uint8_t)*c, 1);
    write_number(w, version, 4);
    write_number(w, n_tensors, 8);
    write_number(w, n_keys, 8);
}

static inline void write_key(struct writer *w, const char *name, enum gguf_type type) {
    write_text(w, name);
    write_number(w, type, 4);
}

static inline void write_string_key(struct writer *w, const char *name, const char *text) {
    write_key(w, name, GGUF_STRING);
    write_text(w, text);
}

static inline void write_whole_key(struct writer *w, const char *name, uint32_t value) {
    write_key(w, name, GGUF_U32);
    write_number(w, value, 4);
}

static inline void write_float(struct writer *w, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    write_number(w, bits, 4);
}

static inline void write_array_key(struct writer *w, const char *name, enum gguf_type element,
                                   uint64_t n) {
    write_key(w, name, GGUF_ARRAY);
    write_number(w, element, 4);
    write_number(w, n, 8);
}

/* Writes what a header says of a matrix, or of a vector if there are no rows. */
static inline void write_tensor(struct writer *w, const char *name, uint32_t type, uint64_t rows,
                                uint64_t cols, uint64_t offset) {
    write_text(w, name);
    write_number(w, rows ? 2 : 1, 4);
    write_number(w, cols, 8);
    if (rows) write_number(w, rows, 8);
    write_number(w, type, 4);
    write_number(w, offset, 8);
}

static inline void write_padding(struct writer *w, size_t alignment) {
    while (w->n % alignment) write_number(w, 0, 1);
}

static inline void write_zeros(struct writer *w, size_t n) {
    while (n--) write_number(w, 0, 1);
}

#endif
