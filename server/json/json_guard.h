/* json_guard.h - one linear scan of a body before a JSON library builds objects from it.
 *
 * jansson takes up to a hundred bytes of memory for each byte of `{}{}{}...`, so the number and the
 * nesting of values are bounded first.  One member may be large: a prompt of a million token ids.
 * The guard finds that array and does not count it; its reader (prompts.c) needs no objects.
 *
 * A body that passes is not proven legal JSON: the guard checks UTF-8, brackets, depth and width;
 * the parser that follows checks the rest.  Replacing the array by `null` keeps an illegal body
 * illegal, because one value replaces one value.
 *
 * Thread: any.  Memory: none; spans point into the text. */
#ifndef SERVER_JSON_JSON_GUARD_H
#define SERVER_JSON_JSON_GUARD_H

#include <stddef.h>
#include <stdint.h>
#include <jansson.h>

struct error;

/* At worst some 35 MB of objects.  A long conversation with tools has some ten thousand
 * containers. */
enum { JSON_MAX_DEPTH = 256, JSON_MAX_CONTAINERS = 32768, JSON_MAX_VALUES = 262144 };

struct json_span {
    const char *start; /* NULL: not found */
    size_t length;
};

/* Checks a body and finds the bulk array.  bulk_key: name of the top-level member that is cut out
 * when it is an array (NULL: none). */
int json_guard_scan(const char *text, size_t length, const char *bulk_key, struct json_span *bulk,
                    struct error *err);

/* Scans, cuts and parses: *out is the top-level object with the bulk array as null. */
int json_guard_load(json_t **out, const char *text, size_t length, const char *bulk_key,
                    struct json_span *bulk, struct error *err);

#endif
