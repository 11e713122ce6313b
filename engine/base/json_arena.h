/* json_arena.h - JSON parsed out of memory that was reserved before the parser sees a byte.
 *
 * jansson does not survive a failed allocation: it looks at a freed buffer again, and frees it
 * twice.  So no allocation of its parser ever fails.  A scan of the text bounds what any parse of
 * it can take; that much is reserved at once, or the document is refused while it costs nothing.
 *
 *   text ──► bound ──► one block:  [ arena | head, bytes | head, bytes | ...        ]
 *                                            └ each head names its arena ┘
 *
 * The block goes with the last of the document's objects, so json_decref() drops it like any other
 * document.  What jansson makes elsewhere (json_object() and so on) is the system's ordinary
 * memory.
 *
 * Thread: any; a document belongs to one thread at a time.  Memory: one block a document. */
#ifndef ENGINE_BASE_JSON_ARENA_H
#define ENGINE_BASE_JSON_ARENA_H

#include <jansson.h>
#include <stddef.h>

/* Returns how many bytes jansson allocates for the text at the worst, whatever it holds. */
size_t json_arena_bound(const char *text, size_t length);

/* Parses as json_loadb() does.  ERR_NOMEM: nothing was parsed, and *why is not written.
 * ERR_INVALID: *why says what is wrong.  The caller drops *out with json_decref(). */
int json_arena_load(json_t **out, const char *text, size_t length, size_t flags,
                    json_error_t *why);

/* Frees what json_dumps() returned; free() does not know jansson's memory. */
void json_arena_free(char *text);

#endif
