/* strings.c - see strings.h. */
#define _GNU_SOURCE /* memmem */
#include "engine/template/strings.h"

#include <string.h>

#include "engine/base/utf8.h"
#include "engine/template/chars.h"
#include "engine/template/render.h"

const struct string STRING_EMPTY = {.bytes = "", .trusted = true};

/* The bytes of a string that was made by adding, and room for more.  A string that ends at `used`
 * may be extended in place: no other string has the bytes behind it. */
struct string_buffer {
    size_t used, capacity;
    char *bytes;
    unsigned char *marks; /* NULL while all bytes have one origin */
};

enum {
    MIN_BUFFER = 128 /* shorter sums are copied: most are printed at once */
};

void builder_init(struct builder *b, struct render *r) {
    *b = (struct builder){.render = r};
}

static bool reserve(struct builder *b, size_t n) {
    if (n > SIZE_MAX / 4 - b->n) n = SIZE_MAX / 4; /* more than any arena has */
    if (b->n + n <= b->capacity) return true;
    size_t capacity = b->capacity < 32 ? 64 : 2 * b->capacity;
    if (capacity < b->n + n) capacity = b->n + n;
    char *bytes = render_grow(b->render, b->bytes, b->capacity, capacity);
    if (!bytes) return false;
    b->bytes = bytes;
    if (b->marks) {
        unsigned char *marks = render_grow(b->render, b->marks, b->capacity, capacity);
        if (!marks) return false;
        b->marks = marks;
    }
    b->capacity = capacity;
    return true;
}

/* Makes marks for what is there, so that bytes of another origin can follow. */
static bool mark(struct builder *b) {
    b->marks = render_take(b->render, b->capacity);
    if (b->marks) memset(b->marks, b->trusted, b->n);
    return b->marks != NULL;
}

/* Reserves n bytes of one origin and returns them, or NULL. */
static char *extend(struct builder *b, size_t n, bool trusted) {
    if (!n || !render_move(b->render, n) || !reserve(b, n)) return NULL;
    if (!b->n) b->trusted = trusted, b->marks = NULL;
    if (!b->marks && b->trusted != trusted && !mark(b)) return NULL;
    if (b->marks) memset(b->marks + b->n, trusted, n);
    b->n += n;
    return b->bytes + b->n - n;
}

void builder_put(struct builder *b, const char *bytes, size_t n, bool trusted) {
    char *at = extend(b, n, trusted);
    if (at) memcpy(at, bytes, n);
}

void builder_text(struct builder *b, const char *text, bool trusted) {
    builder_put(b, text, strlen(text), trusted);
}

void builder_char(struct builder *b, uint32_t c, bool trusted) {
    char bytes[4];
    builder_put(b, bytes, utf8_write(bytes, c), trusted);
}

void builder_repeat(struct builder *b, char c, size_t n, bool trusted) {
    char *at = extend(b, n, trusted);
    if (at) memset(at, c, n);
}

void builder_slice(struct builder *b, const struct string *s, size_t begin, size_t end) {
    if (begin >= end) return;
    const bool trusted = s->marks ? s->marks[begin] : s->trusted;
    char *at = extend(b, end - begin, trusted);
    if (!at) return;
    memcpy(at, s->bytes + begin, end - begin);
    if (!s->marks) return;
    if (!b->marks && !mark(b)) return;
    memcpy(b->marks + b->n - (end - begin), s->marks + begin, end - begin);
}

void builder_string(struct builder *b, const struct string *s) {
    builder_slice(b, s, 0, s->n);
}

const struct string *builder_end(struct builder *b) {
    if (b->render->rc || (!b->n && !b->markup)) return &STRING_EMPTY;
    struct string *s = render_take(b->render, sizeof(*s));
    if (!s) return &STRING_EMPTY;
    *s = (struct string){.bytes = b->n ? b->bytes : "",
                         .marks = b->marks,
                         .n = b->n,
                         .n_chars = SIZE_MAX,
                         .trusted = b->n ? b->trusted : true,
                         .markup = b->markup};
    return s;
}

const struct string *string_wrap(struct render *r, const char *bytes, size_t n, bool trusted) {
    struct string *s = render_take(r, sizeof(*s));
    if (!s) return &STRING_EMPTY;
    *s = (struct string){.bytes = bytes, .n = n, .n_chars = SIZE_MAX, .trusted = trusted};
    return s;
}

const struct string *string_of(struct render *r, const char *text, bool trusted) {
    struct builder b;
    builder_init(&b, r);
    builder_text(&b, text, trusted);
    return builder_end(&b);
}

size_t string_chars(const struct string *s) {
    /* Only a render's own strings are not counted yet: those of a template were, when it was
     * compiled, so no two threads write here. */
    if (s->n_chars == SIZE_MAX) ((struct string *)s)->n_chars = utf8_count(s->bytes, s->n);
    return s->n_chars;
}

size_t string_offset(const struct string *s, size_t i) {
    return string_chars(s) == s->n ? i : chars_bytes(s->bytes, s->n, i);
}

const struct string *string_slice(struct render *r, const struct string *s, size_t begin,
                                  size_t end) {
    if (begin == 0 && end == s->n) return s;
    if (begin >= end && !s->markup) return &STRING_EMPTY;
    struct string *slice = render_take(r, sizeof(*slice));
    if (!slice) return &STRING_EMPTY;
    *slice = (struct string){.bytes = s->bytes + begin,
                             .marks = s->marks ? s->marks + begin : NULL,
                             .n = begin < end ? end - begin : 0,
                             .n_chars = SIZE_MAX,
                             .trusted = s->trusted,
                             .markup = s->markup};
    if (s->n_chars == s->n) slice->n_chars = slice->n; /* all are single bytes */
    return slice;
}

bool string_trusted_at(const struct string *s, size_t at) {
    return s->marks ? s->marks[at] : s->trusted;
}

bool string_is_trusted(const struct string *s) {
    return s->marks ? !memchr(s->marks, 0, s->n) : s->trusted;
}

/* Makes a buffer that begins with `a` and has room for n bytes more. */
static struct string_buffer *new_buffer(struct render *r, const struct string *a, size_t n,
                                        bool is_mixed) {
    struct string_buffer *buffer = render_take(r, sizeof(*buffer));
    const size_t capacity = 2 * (a->n + n);
    char *bytes = buffer ? render_take(r, capacity) : NULL;
    unsigned char *marks = bytes && is_mixed ? render_take(r, capacity) : NULL;
    if (!bytes || (is_mixed && !marks) || !render_move(r, a->n)) return NULL;
    *buffer = (struct string_buffer){a->n, capacity, bytes, marks};
    memcpy(bytes, a->bytes, a->n);
    if (marks && a->marks) memcpy(marks, a->marks, a->n);
    else if (marks) memset(marks, a->trusted, a->n);
    return buffer;
}

static const struct string *append(struct render *r, const struct string *a,
                                   const struct string *b) {
    const bool is_mixed = a->marks || b->marks || a->trusted != b->trusted;
    struct string_buffer *buffer = a->buffer;
    if (!buffer || a->bytes + a->n != buffer->bytes + buffer->used ||
        b->n > buffer->capacity - buffer->used || (is_mixed && !buffer->marks))
        buffer = new_buffer(r, a, b->n, is_mixed);
    struct string *sum = buffer ? render_take(r, sizeof(*sum)) : NULL;
    if (!sum || !render_move(r, b->n)) return &STRING_EMPTY;
    memcpy(buffer->bytes + buffer->used, b->bytes, b->n);
    if (buffer->marks && b->marks) memcpy(buffer->marks + buffer->used, b->marks, b->n);
    else if (buffer->marks) memset(buffer->marks + buffer->used, b->trusted, b->n);
    buffer->used += b->n;
    *sum = (struct string){.bytes = buffer->bytes,
                           .marks = buffer->marks,
                           .n = buffer->used,
                           .n_chars = SIZE_MAX,
                           .buffer = buffer,
                           .trusted = a->trusted};
    return sum;
}

const struct string *string_add(struct render *r, const struct string *a, const struct string *b) {
    if (a->markup || b->markup) {
        struct builder sum;
        builder_init(&sum, r);
        sum.markup = true;
        builder_string(&sum, string_escape(r, a));
        builder_string(&sum, string_escape(r, b));
        return builder_end(&sum);
    }
    if (!b->n) return a;
    if (!a->n) return b;
    if (a->n + b->n >= MIN_BUFFER) return append(r, a, b);
    struct builder sum;
    builder_init(&sum, r);
    builder_string(&sum, a);
    builder_string(&sum, b);
    return builder_end(&sum);
}

const struct string *string_escape(struct render *r, const struct string *s) {
    if (s->markup) return s;
    struct builder b;
    builder_init(&b, r);
    b.markup = true;
    size_t from = 0;
    for (size_t i = 0; i < s->n; i++) {
        const char c = s->bytes[i];
        const char *with = c == '&'    ? "&amp;"
                           : c == '<'  ? "&lt;"
                           : c == '>'  ? "&gt;"
                           : c == '\'' ? "&#39;"
                           : c == '"'  ? "&#34;"
                                       : NULL;
        if (!with) continue;
        builder_slice(&b, s, from, i);
        builder_text(&b, with, string_trusted_at(s, i));
        from = i + 1;
    }
    builder_slice(&b, s, from, s->n);
    return builder_end(&b);
}

const struct string *string_as(struct render *r, const struct string *s, bool markup) {
    if (s->markup == markup) return s;
    struct string *copy = render_take(r, sizeof(*copy));
    if (!copy) return &STRING_EMPTY;
    *copy = *s;
    copy->markup = markup;
    return copy;
}

int string_compare(const struct string *a, const struct string *b) {
    const int order = memcmp(a->bytes, b->bytes, a->n < b->n ? a->n : b->n);
    return order ? order : (a->n > b->n) - (a->n < b->n);
}

bool string_equals(const struct string *a, const struct string *b) {
    return a->n == b->n && !memcmp(a->bytes, b->bytes, a->n);
}

bool string_is(const struct string *s, const char *text) {
    const size_t n = strlen(text);
    return s->n == n && !memcmp(s->bytes, text, n);
}

size_t string_find(const struct string *s, const struct string *what, size_t from) {
    if (from > s->n) return SIZE_MAX;
    if (!what->n) return from;
    const char *at = memmem(s->bytes + from, s->n - from, what->bytes, what->n);
    return at ? (size_t)(at - s->bytes) : SIZE_MAX;
}

size_t string_find_last(const struct string *s, const struct string *what, size_t end) {
    if (end > s->n || what->n > end) return SIZE_MAX;
    for (size_t at = end - what->n + 1; at-- > 0;)
        if (!memcmp(s->bytes + at, what->bytes, what->n)) return at;
    return SIZE_MAX;
}
