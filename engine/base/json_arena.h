/* json_arena.h - parses JSON in memory that was reserved before the parser sees a byte.
 *
 * jansson does not survive a failed allocation: it reads a freed buffer, and frees it twice.  So no
 * allocation of its parser may fail.  A scan of the text bounds the memory that any parse of it can
 * take.  That much is reserved at once, or the document is refused before it costs anything.
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

/* Returns the most bytes that jansson may allocate to parse the text, whatever it holds. */
size_t json_arena_bound(const char *text, size_t length);

/* Parses like json_loadb().  ERR_NOMEM: nothing was parsed, and *why is not written.  ERR_INVALID:
 * *why says what is wrong.  The caller releases *out with json_decref(). */
int json_arena_load(json_t **out, const char *text, size_t length, size_t flags, json_error_t *why);

/* Frees a text that json_dumps() returned; free() must not be used for jansson's memory. */
void json_arena_free(char *text);

#endif
