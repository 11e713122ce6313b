/* loop_memory.c - see loop_memory.h. */
#include "server/loop_memory.h"

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "engine/base/error.h"

/* What libuv takes for the loop itself, with a margin: 1.44 takes less than 1 KB. */
enum { LOOP_BYTES = 16 << 10 };

struct loop_piece {
    alignas(max_align_t) size_t size;
    char bytes[];
};

/* libuv's allocation functions are one set for the process and have no context.  Only the thread of
 * the loop calls them. */
static struct {
    char *bytes;
    size_t used, size;
} block;

static bool is_in_block(const void *bytes) {
    const char *at = bytes;
    return block.bytes && at >= block.bytes && at < block.bytes + block.size;
}

/* Allocates from the block; beyond its bound, from the system. */
static void *allocate(size_t size) {
    const size_t unit = alignof(max_align_t);
    if (size > block.size - block.used) return malloc(size);
    const size_t needed = sizeof(struct loop_piece) + (size + unit - 1) / unit * unit;
    if (needed > block.size - block.used) return malloc(size);
    struct loop_piece *piece = (struct loop_piece *)(block.bytes + block.used);
    block.used += needed;
    piece->size = size;
    return piece->bytes;
}

static void *allocate_zeroed(size_t n, size_t size) {
    size_t total;
    if (__builtin_mul_overflow(n, size, &total)) return NULL;
    void *bytes = allocate(total);
    if (bytes) memset(bytes, 0, total);
    return bytes;
}

static void *reallocate(void *old, size_t size) {
    if (old && !is_in_block(old)) return realloc(old, size);
    void *bytes = allocate(size);
    if (!bytes || !old) return bytes;
    const struct loop_piece *piece =
        (const struct loop_piece *)((const char *)old - offsetof(struct loop_piece, bytes));
    memcpy(bytes, old, piece->size < size ? piece->size : size);
    return bytes;
}

static void release(void *bytes) {
    if (!is_in_block(bytes)) free(bytes); /* a piece is freed with the block */
}

int loop_memory_reserve(uint32_t n_descriptors, struct error *err) {
    /* The table doubles: all its sizes together are less than four times the descriptors. */
    const size_t size = LOOP_BYTES + 4 * sizeof(void *) * (size_t)n_descriptors;
    char *bytes = malloc(size);
    if (!bytes) return error_set(err, ERR_NOMEM, "no memory for the event loop");
    block.bytes = bytes;
    block.used = 0;
    block.size = size;
    uv_replace_allocator(allocate, reallocate, allocate_zeroed, release);
    return 0;
}

void loop_memory_release(void) {
    free(block.bytes);
    block.bytes = NULL;
    block.used = block.size = 0;
}
