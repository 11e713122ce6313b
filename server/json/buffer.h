/* buffer.h - growing text for bodies, chunks and pages, with the few JSON parts that are written by
 * hand.
 *
 * A failed allocation is remembered instead of reported at each step: append everything, then test
 * buffer.failed once before the text is used.
 *
 * Thread: the owner's.  Memory: the owner frees with buffer_fini(). */
#ifndef SERVER_JSON_BUFFER_H
#define SERVER_JSON_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <jansson.h>

/* Zero-initialise.  data is NUL-terminated whenever it is not NULL. */
struct buffer {
    char *data;
    size_t length, capacity;
    bool failed;
};

void buffer_fini(struct buffer *buffer);
void buffer_clear(struct buffer *buffer); /* keeps the memory */
void buffer_append(struct buffer *buffer, const void *data, size_t length);
/* Appends a string.  This is inline, so that the compiler counts the bytes of a literal. */
static inline void buffer_puts(struct buffer *buffer, const char *text) {
    buffer_append(buffer, text, strlen(text));
}
void buffer_printf(struct buffer *buffer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Appends a JSON string with its quotes.  Bytes that are not UTF-8 become U+FFFD, so the output is
 * always legal. */
void buffer_json_string(struct buffer *buffer, const char *text, size_t length);
/* Appends a value as JSON in the fewest bytes, its numbers as they were written. */
void buffer_json_value(struct buffer *buffer, const json_t *value);
/* Appends a JSON number, or null for NaN.  JSON has no infinities: minus infinity is written as the
 * customary -9999.0. */
void buffer_json_double(struct buffer *buffer, double value);

#endif
