/* strings.h - strings whose bytes know their origin: building, slicing, adding.
 *
 * After a failure these functions return the empty string.  No function here returns NULL.
 *
 * Thread: a render's own.  Memory: the render's arena. */
#ifndef ENGINE_TEMPLATE_STRINGS_H
#define ENGINE_TEMPLATE_STRINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/template/value.h"

struct render;

extern const struct string STRING_EMPTY;

/* Appends pieces, each with its origin.  Marks are made when the second origin appears. */
struct builder {
    struct render *render;
    char *bytes;
    unsigned char *marks;
    size_t n, capacity;
    bool trusted; /* of all bytes, while there are no marks */
    bool markup;  /* of the string that it ends in */
};

void builder_init(struct builder *b, struct render *r);
void builder_put(struct builder *b, const char *bytes, size_t n, bool trusted);
void builder_text(struct builder *b, const char *text, bool trusted); /* ends at a zero */
void builder_char(struct builder *b, uint32_t c, bool trusted);
void builder_repeat(struct builder *b, char c, size_t n, bool trusted);
void builder_slice(struct builder *b, const struct string *s, size_t begin, size_t end);
void builder_string(struct builder *b, const struct string *s);
const struct string *builder_end(struct builder *b);

/* Wraps bytes that outlive the render's values. */
const struct string *string_wrap(struct render *r, const char *bytes, size_t n, bool trusted);
const struct string *string_of(struct render *r, const char *text, bool trusted); /* copies */

size_t string_chars(const struct string *s);
/* Returns the byte at which character number i begins; i is at most the number of characters. */
size_t string_offset(const struct string *s, size_t i);
/* Returns bytes begin to end - 1, which must be whole characters. */
const struct string *string_slice(struct render *r, const struct string *s, size_t begin,
                                  size_t end);
/* Returns whether the bytes at `at` are of a trusted origin. */
bool string_trusted_at(const struct string *s, size_t at);
bool string_is_trusted(const struct string *s);

/* Adds two strings.  A string that was itself made by adding has room behind it, which only the
 * first addition to it can use: so building a text piece by piece takes linear time. */
const struct string *string_add(struct render *r, const struct string *a, const struct string *b);
/* Escapes &, <, >, ' and " as HTML, unless it is marked safe; the result is. */
const struct string *string_escape(struct render *r, const struct string *s);
/* Returns the string with another mark of being safe. */
const struct string *string_as(struct render *r, const struct string *s, bool markup);

int string_compare(const struct string *a, const struct string *b);
bool string_equals(const struct string *a, const struct string *b);
bool string_is(const struct string *s, const char *text);
/* Returns where `what` first is at or after `from`, SIZE_MAX: nowhere. */
size_t string_find(const struct string *s, const struct string *what, size_t from);
/* Returns where `what` last is before `end`, SIZE_MAX: nowhere. */
size_t string_find_last(const struct string *s, const struct string *what, size_t end);

#endif
