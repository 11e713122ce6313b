/* json_arena.h - parses JSON in memory that was reserved before the parser sees a byte.
 *
 * A scan of the text bounds the memory that any parse of it can take (json_reader.h).  That much is
 * reserved at once, or the document is refused before it costs anything.  So no allocation can fail
 * while a document is half built.
 *
 *   text ──► bound ──► one block:  [ arena | head, bytes | head, bytes | ...        ]
 *                                            └ each head names its arena ┘
 *
 * The block is freed with the last of the document's objects, so json_decref() frees it like any
 * other document.  Objects that jansson makes elsewhere (json_object() and so on) are in ordinary
 * memory.
 *
 * Thread: any; a document belongs to one thread at a time.  Memory: one block a document. */
#ifndef ENGINE_BASE_JSON_ARENA_H
#define ENGINE_BASE_JSON_ARENA_H

#include <stddef.h>
#include <jansson.h>

struct json_oddities;

/* Parses a text, with the flags of json_reader.h.  ERR_NOMEM: nothing was parsed, and *why is not
 * written.  ERR_INVALID: *why says what is wrong.  The caller releases *out with json_decref(). */
int json_arena_load(json_t **out, const char *text, size_t length, size_t flags, json_error_t *why);
/* Does the same, and tells what is odd about a text that was parsed. */
int json_arena_read(json_t **out, const char *text, size_t length, size_t flags,
                    struct json_oddities *odd, json_error_t *why);

/* Returns how a number was written, if its value does not tell: see json_reader.h.  NULL for
 * others.  The text lives as long as the number. */
const char *json_number_text(const json_t *value);

/* Returns the digits of an integer beyond int64, whose type is JSON_REAL; NULL: it is none. */
const char *json_number_digits(const json_t *value);

/* Makes a number of n bytes of JSON: JSON_REAL, or JSON_INTEGER for 0.  NULL: there is no
 * memory. */
json_t *json_number_create(const char *text, size_t n, json_type type);

/* Frees a text that json_dumps() returned; free() must not be used for jansson's memory. */
void json_arena_free(char *text);

#endif
