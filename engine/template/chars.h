/* chars.h - the characters of strings, and what Python's strings know of them.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_TEMPLATE_CHARS_H
#define ENGINE_TEMPLATE_CHARS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns how many bytes the first n_chars characters take, at most n. */
size_t chars_bytes(const char *bytes, size_t n, size_t n_chars);

/* Returns the character at `at` and moves *at behind it; U+FFFD and one byte where there is
 * none. */
uint32_t chars_next(const char *bytes, size_t n, size_t *at);
/* Returns the character that ends before *at, which it moves to the character's beginning. */
uint32_t chars_before(const char *bytes, size_t *at);

/* Says of one character what str.isspace(), isalpha() and so on say of a string. */
bool chars_is_space(uint32_t c);
bool chars_is_line_end(uint32_t c); /* of str.splitlines() */
bool chars_is_alpha(uint32_t c);
bool chars_is_decimal(uint32_t c);
bool chars_is_digit(uint32_t c);
bool chars_is_printable(uint32_t c);
bool chars_is_upper(uint32_t c);
bool chars_is_lower(uint32_t c);
bool chars_is_title(uint32_t c);
bool chars_is_word(uint32_t c); /* \w of Python's re, but numbers of other kinds than digits */

/* Write what one character becomes, up to CHARS_MAX_CASE characters, and return how many. */
enum { CHARS_MAX_CASE = 3 };
size_t chars_upper(uint32_t c, uint32_t out[CHARS_MAX_CASE]);
size_t chars_lower(uint32_t c, uint32_t out[CHARS_MAX_CASE]);
size_t chars_title(uint32_t c, uint32_t out[CHARS_MAX_CASE]);

#endif
