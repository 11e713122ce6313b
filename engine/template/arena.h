/* arena.h - memory that is taken piece by piece, bounded, and freed at once.
 *
 * A compiled template has one, and each render another.  So no error path frees anything, and a
 * template that makes endless strings runs into the bound instead of the machine's memory.
 *
 * Thread: one at a time.  Memory: blocks of malloc(); arena_fini() frees them all. */
#ifndef ENGINE_TEMPLATE_ARENA_H
#define ENGINE_TEMPLATE_ARENA_H

#include <stddef.h>

struct arena_block;

struct arena {
    struct arena_block *blocks; /* newest first; pieces are taken from it */
    char *at, *end;             /* what is left of it */
    size_t taken, max;          /* bytes of all blocks */
    int rc;                     /* why the last piece was refused: ERR_NOMEM or ERR_TOO_LONG */
};

void arena_init(struct arena *arena, size_t max_bytes);
void arena_fini(struct arena *arena);

/* Returns n bytes aligned for any object, not initialised, or NULL; arena->rc then says why. */
void *arena_take(struct arena *arena, size_t n);
/* Returns a piece of n_new bytes with the first n_old of `piece`, which may be NULL.  It is
 * extended in place where it is the newest piece and its block has room. */
void *arena_grow(struct arena *arena, void *piece, size_t n_old, size_t n_new);

#endif
