/* arena.c - see arena.h. */
#include "engine/template/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"

struct arena_block {
    alignas(max_align_t) struct arena_block *next;
    char bytes[];
};

/* A render of a short conversation fits the first block. */
enum { FIRST_BLOCK = 16 << 10, LAST_BLOCK = 1 << 20, ALIGNMENT = alignof(max_align_t) };

void arena_init(struct arena *arena, size_t max_bytes) {
    *arena = (struct arena){.max = max_bytes};
}

void arena_fini(struct arena *arena) {
    while (arena->blocks) {
        struct arena_block *block = arena->blocks;
        arena->blocks = block->next;
        free(block);
    }
    *arena = (struct arena){0};
}

static size_t aligned(size_t n) {
    return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Adds a block.  Blocks double, up to a size whose unused rest is small beside what was taken. */
static int add_block(struct arena *arena, size_t n) {
    size_t size = arena->taken < FIRST_BLOCK ? FIRST_BLOCK : arena->taken;
    if (size > LAST_BLOCK) size = LAST_BLOCK;
    const size_t left = arena->max - arena->taken;
    if (n > left) return ERR_TOO_LONG;
    if (size > left) size = left;
    if (size < n) size = n;
    struct arena_block *block = malloc(sizeof(*block) + size);
    if (!block) return ERR_NOMEM;
    block->next = arena->blocks;
    arena->blocks = block;
    arena->at = block->bytes;
    arena->end = block->bytes + size;
    arena->taken += size;
    return 0;
}

void *arena_take(struct arena *arena, size_t n) {
    if (n > SIZE_MAX / 2) {
        arena->rc = ERR_TOO_LONG;
        return NULL;
    }
    n = aligned(n);
    if (n > (size_t)(arena->end - arena->at)) {
        arena->rc = add_block(arena, n);
        if (arena->rc) return NULL;
    }
    void *piece = arena->at;
    arena->at += n;
    return piece;
}

void *arena_grow(struct arena *arena, void *piece, size_t n_old, size_t n_new) {
    const size_t old = aligned(n_old);
    if (piece && n_new < SIZE_MAX / 2 && (char *)piece + old == arena->at &&
        aligned(n_new) - old <= (size_t)(arena->end - arena->at)) {
        arena->at += aligned(n_new) - old;
        return piece;
    }
    void *copy = arena_take(arena, n_new);
    if (copy && n_old) memcpy(copy, piece, n_old);
    return copy;
}
