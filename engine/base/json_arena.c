/* json_arena.c - see json_arena.h. */
#include "engine/base/json_arena.h"

#include <assert.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/base/json_strings.h"

struct json_arena {
    size_t used, size; /* bytes after this struct */
    size_t n_live;     /* allocations not yet freed, and one for the parser while it runs */
    alignas(max_align_t) char bytes[];
};

/* Precedes every allocation of jansson's. */
struct arena_head {
    alignas(max_align_t) struct json_arena *arena; /* NULL: the system's memory */
    size_t size;
};

enum { ALIGNMENT = alignof(max_align_t), HEAD = sizeof(struct arena_head) };

/* Bytes that the parser allocates, rounded up generously.  The numbers in brackets are those after
 * the heads, on x86-64. */
enum {
    /* A container: its object (80) and its first table (128). */
    CONTAINER_BYTES = 2 * HEAD + 256,
    /* A value: its object (32), and its share of the tables that its container outgrows, each twice
     * as large as the one before and none reused: 16 bytes an entry times four. */
    VALUE_BYTES = 2 * HEAD + 48 + 80,
    /* A string's copy, not counting its length. */
    STRING_BYTES = HEAD + 32,
    /* A key's entry in the table (56), not counting its length: the entry has its own copy. */
    KEY_BYTES = HEAD + 96,
    /* The first size of the buffer of the token being read, which doubles. */
    TOKEN_BYTES = 16,
    /* The least size of a freed block whose pages are returned to the system at once, such as a
     * long string's outgrown buffer. */
    RETURNED_BYTES = 1 << 18,
};

/* The arena of this thread's current parse.  It cannot be an argument, because jansson's allocation
 * functions have no context. */
static _Thread_local struct json_arena *current;

static void *allocate(size_t size) {
    struct json_arena *arena = current;
    struct arena_head *head;
    if (arena) {
        const size_t needed = HEAD + (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        assert(needed <= arena->size - arena->used); /* json_arena_bound() */
        head = (struct arena_head *)(arena->bytes + arena->used);
        arena->used += needed;
        arena->n_live++;
    } else {
        if (size > SIZE_MAX - HEAD) return NULL;
        head = malloc(HEAD + size);
        if (!head) return NULL;
    }
    head->arena = arena;
    head->size = size;
    return head + 1;
}

static void let_go(struct json_arena *arena) {
    if (--arena->n_live == 0) free(arena);
}

/* Returns the whole pages inside a freed block to the system; they read as zero from now on, and
 * the block's addresses stay reserved. */
static void return_pages(char *bytes, size_t size) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = ((uintptr_t)bytes + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)bytes + size) / page * page;
    if (end > first) (void)!madvise((void *)first, end - first, MADV_DONTNEED);
}

static void release(void *bytes) {
    if (!bytes) return;
    struct arena_head *head = (struct arena_head *)bytes - 1;
    if (!head->arena) {
        free(head);
        return;
    }
    if (head->size >= RETURNED_BYTES) return_pages(bytes, head->size);
    let_go(head->arena);
}

void json_arena_free(char *text) {
    release(text);
}

/* Runs before main(), so that all memory of jansson's is allocated and freed by the same functions,
 * however early it is made. */
__attribute__((constructor)) static void install(void) {
    json_set_alloc_funcs(allocate, release);
}

/* Returns the byte after the string that begins at the quote. */
static const char *skip_string(const char *at, const char *end) {
    const char *quote = json_string_end(at + 1, end);
    return quote ? quote + 1 : end;
}

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_mark(char c) {
    return c == '{' || c == '}' || c == '[' || c == ']' || c == ',' || c == ':' || c == '"';
}

static const char *skip_word(const char *at, const char *end) {
    while (at < end && !is_space(*at) && !is_mark(*at)) at++;
    return at;
}

static size_t token_buffers(size_t longest) {
    size_t size = TOKEN_BYTES, total = HEAD + size;
    while (size < longest + TOKEN_BYTES) {
        size *= 2;
        total += HEAD + size;
    }
    return total;
}

/* Counts values by brackets and commas, one of which precedes every value but the first; a string
 * before a colon is a key.  The parser stops at the first byte that is not JSON, so the bytes after
 * it only add to the bound. */
size_t json_arena_bound(const char *text, size_t length) {
    const char *at = text, *const end = text + length;
    size_t n_containers = 0, n_values = 1, n_strings = 0, n_keys = 0;
    size_t copied = 0, longest = 0, last_string = 0;
    while (at < end) {
        const char *const start = at;
        if (*at == '"') {
            at = skip_string(at, end);
            last_string = (size_t)(at - start);
            copied += last_string;
            n_strings++;
        } else if (is_mark(*at)) {
            if (*at == '{' || *at == '[') n_containers++, n_values++;
            if (*at == ',') n_values++;
            if (*at == ':') n_keys++, copied += last_string;
            last_string = 0;
            at++;
        } else if (is_space(*at)) {
            at++;
        } else {
            at = skip_word(at, end);
        }
        if ((size_t)(at - start) > longest) longest = (size_t)(at - start);
    }
    return n_containers * CONTAINER_BYTES + n_values * VALUE_BYTES + n_strings * STRING_BYTES +
           n_keys * KEY_BYTES + copied + token_buffers(longest);
}

/* Parses a text, or what is left of it when strings are cut out, which are put back. */
static int parse(json_t **out, const char *text, size_t length, const struct json_strings *cut,
                 size_t flags, json_error_t *why) {
    size_t size = json_arena_bound(text, length);
    if (cut) size += cut->n_bytes + cut->n * (VALUE_BYTES + STRING_BYTES);
    struct json_arena *arena = malloc(sizeof(*arena) + size);
    if (!arena) return ERR_NOMEM;
    *arena = (struct json_arena){.size = size, .n_live = 1};
    assert(!current);
    current = arena;
    json_t *root = json_loadb(text, length, flags, why);
    const int rc = root && cut ? json_strings_restore(cut, &root) : 0;
    current = NULL;
    if (!root) {
        free(arena); /* no object is left that refers to it */
        return ERR_INVALID;
    }
    let_go(arena);
    if (rc) json_decref(root);
    else *out = root;
    return rc;
}

int json_arena_load(json_t **out, const char *text, size_t length, size_t flags,
                    json_error_t *why) {
    struct json_strings cut;
    if (json_strings_cut(&cut, text, length)) {
        json_error_t unused;
        const int rc = parse(out, cut.rest, cut.n_rest, &cut, flags, &unused);
        json_strings_fini(&cut);
        if (rc == 0) return 0;
    }
    return parse(out, text, length, NULL, flags, why);
}
