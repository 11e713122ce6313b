/* utf8.h - UTF-8: checks, counts, reads and writes characters.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_BASE_UTF8_H
#define ENGINE_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { UTF8_MAX_BYTES = 4 /* of one character */ };

/* Returns the length of the legal character that starts at text, or 0 when there is none within
 * length. */
size_t utf8_character(const char *text, size_t length);
bool utf8_is_valid(const char *text, size_t length);
/* Counts the characters of legal UTF-8. */
size_t utf8_count(const char *text, size_t length);

/* Returns the character at p, and in *after the byte after it.  The text must be valid and p before
 * its end. */
uint32_t utf8_next(const char *p, const char **after);
/* Returns the beginning of the character that ends just before p. */
const char *utf8_before(const char *p);

/* Writes a character and returns how many bytes it took, at most UTF8_MAX_BYTES. */
size_t utf8_write(char *out, uint32_t c);

#endif
