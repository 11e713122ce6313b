/* buffer.c - see buffer.h. */
#include "server/json/buffer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json_tree.h"
#include "engine/base/utf8.h"

void buffer_fini(struct buffer *buffer) {
    free(buffer->data);
    *buffer = (struct buffer){0};
}

void buffer_clear(struct buffer *buffer) {
    buffer->length = 0;
    buffer->failed = false;
    if (buffer->data) buffer->data[0] = 0;
}

/* Reserves space for `extra` more bytes and a terminator. */
static bool buffer_reserve(struct buffer *buffer, size_t extra) {
    if (buffer->failed) return false;
    if (extra < buffer->capacity - buffer->length) return true;
    size_t capacity = buffer->capacity ? buffer->capacity : 128;
    while (capacity - buffer->length <= extra) capacity *= 2;
    char *data = realloc(buffer->data, capacity);
    if (!data) {
        buffer->failed = true;
        return false;
    }
    buffer->data = data;
    buffer->capacity = capacity;
    return true;
}

void buffer_append(struct buffer *buffer, const void *data, size_t length) {
    if (!buffer_reserve(buffer, length)) return;
    if (length) memcpy(buffer->data + buffer->length, data, length);
    buffer->length += length;
    buffer->data[buffer->length] = 0;
}

/* Formats into what is free, which mostly suffices, and otherwise again once it does. */
void buffer_printf(struct buffer *buffer, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    const size_t room = buffer->capacity - buffer->length;
    const int n = vsnprintf(room ? buffer->data + buffer->length : NULL, room, format, args);
    const size_t length = n > 0 ? (size_t)n : 0;
    if (!buffer_reserve(buffer, length)) {
        if (room) buffer->data[buffer->length] = 0;
    } else {
        if (length >= room) vsnprintf(buffer->data + buffer->length, length + 1, format, again);
        buffer->length += length;
    }
    va_end(again);
    va_end(args);
}

static void append_escaped(struct buffer *buffer, unsigned char c) {
    switch (c) {
    case '"': buffer_puts(buffer, "\\\""); break;
    case '\\': buffer_puts(buffer, "\\\\"); break;
    case '\n': buffer_puts(buffer, "\\n"); break;
    case '\r': buffer_puts(buffer, "\\r"); break;
    case '\t': buffer_puts(buffer, "\\t"); break;
    default: buffer_printf(buffer, "\\u%04x", c);
    }
}

void buffer_json_string(struct buffer *buffer, const char *text, size_t length) {
    buffer_append(buffer, "\"", 1);
    size_t start = 0, i = 0; /* [start, i) can be copied as it is */
    while (i < length) {
        const unsigned char c = (unsigned char)text[i];
        const size_t n = utf8_character(text + i, length - i);
        if (n > 0 && c >= 0x20 && c != '"' && c != '\\' && c != 0x7F) {
            i += n;
            continue;
        }
        buffer_append(buffer, text + start, i - start);
        if (n == 0) {
            buffer_puts(buffer, "\xEF\xBF\xBD");
        } else {
            append_escaped(buffer, c);
        }
        start = ++i;
    }
    buffer_append(buffer, text + start, length - start);
    buffer_append(buffer, "\"", 1);
}

static int put_json(const char *text, size_t n, void *buffer) {
    buffer_append(buffer, text, n);
    return 0;
}

void buffer_json_value(struct buffer *buffer, const json_t *value) {
    buffer->failed |= json_tree_write(value, put_json, buffer) != 0;
}

void buffer_json_double(struct buffer *buffer, double value) {
    if (isnan(value)) {
        buffer_puts(buffer, "null");
    } else if (isinf(value)) {
        buffer_puts(buffer, value < 0 ? "-9999.0" : "9999.0");
    } else {
        /* Nine digits are enough to read the same float back. */
        buffer_printf(buffer, "%.9g", value);
    }
}
