/* json_reader.h - reads a JSON text into jansson's objects, and keeps its numbers as they are
 * written.
 *
 *   12            JSON_INTEGER 12
 *   2^64, 10^30   JSON_REAL, the nearest double          json_number_text(): the digits
 *   1.50, 1e400   JSON_REAL 1.5, the greatest double     json_number_text(): "1.50", "1e400"
 *   -0            JSON_INTEGER 0                         json_number_text(): "-0"
 *
 * jansson's own parser refuses what its two types of numbers cannot hold, and forgets how a number
 * was written.  Most numbers in a body are only passed on: in a schema, to a template, or back to
 * the client.  So here an integer is JSON_INTEGER only where that is all there is to say about it.
 * Any other number has its text behind it, in the memory of its object: no string can be taken for
 * one.  A reader that needs a number's value finds it as far as a double holds it, and checks its
 * bounds.
 *
 * Nothing here is recursive: what is open is a list of JSON_MAX_LEVELS containers.  jansson's
 * functions that free or write a value take some hundred bytes of the stack for each level.
 *
 * Thread: any.  Memory: objects come from jansson's allocator. */
#ifndef ENGINE_BASE_JSON_READER_H
#define ENGINE_BASE_JSON_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <jansson.h>

enum {
    JSON_MAX_LEVELS = 512,
    /* A flag beside jansson's: half of a surrogate pair is read as U+FFFD. */
    JSON_ALLOW_HALVES = 1 << 20,
};

/* What a text has that other parsers of JSON may refuse, or read otherwise. */
struct json_oddities {
    size_t n_halves, n_doubled; /* replaced, and members that a later one of their name replaced */
};

/* Reads a document.  flags: JSON_REJECT_DUPLICATES, JSON_ALLOW_NUL, JSON_DECODE_ANY,
 * JSON_ALLOW_HALVES.  scratch has space for the longest string.  NULL: *why says what is wrong. */
json_t *json_reader_read(const char *text, size_t length, size_t flags, char *scratch,
                         struct json_oddities *odd, json_error_t *why);

#endif
