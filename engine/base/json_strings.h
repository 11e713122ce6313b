/* json_strings.h - the strings of a JSON text: where each ends, and what it says.
 *
 * Long strings are most of a body.  So they are searched, checked and copied by loops that
 * compilers turn into vector instructions; only escapes are read byte by byte.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_BASE_JSON_STRINGS_H
#define ENGINE_BASE_JSON_STRINGS_H

#include <stdbool.h>
#include <stddef.h>

/* Returns whether a character is JSON's white space. */
static inline bool json_is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Returns the quote that ends the string whose text begins at `at`, NULL if none does before
 * `end`. */
const char *json_string_end(const char *at, const char *end);

/* A string's text, between its quotes. */
struct json_string {
    const char *bytes;
    size_t n;
    bool has_escapes, is_ascii;
};

/* Looks at the n bytes between a string's quotes.  Returns NULL, or the control character that JSON
 * does not allow there. */
const char *json_string_look(struct json_string *out, const char *bytes, size_t n);

/* What becomes of escapes that are no character, halves of surrogate pairs. */
enum json_halves { JSON_HALVES_REFUSED, JSON_HALVES_REPLACED /* by U+FFFD each */ };

/* Decodes a string that has escapes to `to`, which has space for string->n bytes.  Returns the end
 * of what was written, or NULL: *wrong is an escape that is none.  *n_halves counts those
 * replaced. */
char *json_string_decode(char *to, const struct json_string *string, enum json_halves halves,
                         size_t *n_halves, const char **wrong);

/* Writes the escape of U+FFFD in place of each half of a surrogate pair in a legal JSON text. */
void json_halves_replace(char *text, size_t n);

#endif
