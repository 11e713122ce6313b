/* json_arena.c - see json_arena.h. */
#include "engine/base/json_arena.h"

#include <assert.h>
#include <float.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/base/json_reader.h"
#include "engine/base/json_strings.h"

struct json_arena {
    size_t used, size; /* bytes after this struct */
    size_t n_live;     /* allocations not yet freed, and one for the parser while it runs */
    alignas(max_align_t) char bytes[];
};

/* Precedes every allocation of jansson's. */
struct arena_head {
    alignas(max_align_t) struct json_arena *arena; /* NULL: the system's memory */
    size_t size; /* of the allocation, and HAS_TEXT if a number's text lies behind it */
};

#define HAS_TEXT (SIZE_MAX / 2 + 1)

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
    /* A number's text, not counting its length: the zero behind it, and rounding. */
    TEXT_BYTES = 1 + ALIGNMENT,
    /* The least size of a freed block whose pages are returned to the system at once, such as a
     * long string's outgrown buffer. */
    RETURNED_BYTES = 1 << 18,
};

/* The arena of this thread's current parse.  It cannot be an argument, because jansson's allocation
 * functions have no context. */
static _Thread_local struct json_arena *current;

/* The text that belongs behind the number that this thread allocates; bytes NULL: none does. */
static _Thread_local struct {
    const char *bytes;
    size_t n;
} number_text;

/* Allocates from the current arena, or the system's memory where there is none. */
static void *reserve(size_t size) {
    struct json_arena *arena = current;
    struct arena_head *head;
    if (arena) {
        const size_t needed = HEAD + (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        assert(needed <= arena->size - arena->used); /* survey() bounds it */
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

static void *allocate(size_t size) {
    if (!number_text.bytes) return reserve(size);
    char *bytes = reserve(size + number_text.n + 1);
    if (!bytes) return NULL;
    memcpy(bytes + size, number_text.bytes, number_text.n);
    bytes[size + number_text.n] = 0;
    ((struct arena_head *)(void *)bytes - 1)->size = size | HAS_TEXT;
    return bytes;
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
    const size_t size = head->size & ~HAS_TEXT;
    if (size >= RETURNED_BYTES) return_pages(bytes, size);
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

/* ---- numbers ---- */

/* Returns the double that is nearest to the number; JSON has no infinity, and jansson neither. */
static double nearest(const char *text) {
    const double x = strtod(text, NULL);
    return x > DBL_MAX ? DBL_MAX : x < -DBL_MAX ? -DBL_MAX : x;
}

json_t *json_number_create(const char *text, size_t n, json_type type) {
    number_text.bytes = text;
    number_text.n = n;
    json_t *made = type == JSON_INTEGER ? json_integer(0) : json_real(0);
    number_text.bytes = NULL;
    if (json_is_real(made)) json_real_set(made, nearest(json_number_text(made)));
    return made;
}

const char *json_number_text(const json_t *value) {
    if (!json_is_number(value)) return NULL;
    const struct arena_head *head = (const struct arena_head *)(const void *)value - 1;
    return head->size & HAS_TEXT ? (const char *)value + (head->size & ~HAS_TEXT) : NULL;
}

const char *json_number_digits(const json_t *value) {
    const char *text = json_is_real(value) ? json_number_text(value) : NULL;
    return text && !strpbrk(text, ".eE") ? text : NULL;
}

/* ---- documents ---- */

/* Returns the byte after the string that begins at the quote. */
static const char *skip_string(const char *at, const char *end) {
    const char *quote = json_string_end(at + 1, end);
    return quote ? quote + 1 : end;
}

static bool is_mark(char c) {
    return c == '{' || c == '}' || c == '[' || c == ']' || c == ',' || c == ':' || c == '"';
}

static const char *skip_word(const char *at, const char *end) {
    while (at < end && !json_is_space(*at) && !is_mark(*at)) at++;
    return at;
}

/* What a document takes at most. */
struct needs {
    size_t bytes, longest; /* of its objects, and of its longest string */
};

/* Counts values by brackets and commas, one of which precedes every value but the first; a string
 * before a colon is a key.  The parser stops at the first byte that is not JSON, so the bytes after
 * it only add to the bound. */
static struct needs survey(const char *text, size_t length) {
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
            if (last_string > longest) longest = last_string;
        } else if (is_mark(*at)) {
            if (*at == '{' || *at == '[') n_containers++, n_values++;
            if (*at == ',') n_values++;
            if (*at == ':') n_keys++, copied += last_string;
            last_string = 0;
            at++;
        } else if (json_is_space(*at)) {
            at++;
        } else {
            at = skip_word(at, end);
            copied += (size_t)(at - start) + TEXT_BYTES;
        }
    }
    return (struct needs){n_containers * CONTAINER_BYTES + n_values * VALUE_BYTES +
                              n_strings * STRING_BYTES + n_keys * KEY_BYTES + copied,
                          longest};
}

/* Puts the scratch behind the objects, and returns it to the system before the document. */
int json_arena_read(json_t **out, const char *text, size_t length, size_t flags,
                    struct json_oddities *odd, json_error_t *why) {
    const struct needs needs = survey(text, length);
    struct json_arena *arena = malloc(sizeof(*arena) + needs.bytes + needs.longest);
    if (!arena) return ERR_NOMEM;
    *arena = (struct json_arena){.size = needs.bytes, .n_live = 1};
    assert(!current);
    char *scratch = arena->bytes + needs.bytes;
    current = arena;
    json_t *root = json_reader_read(text, length, flags, scratch, odd, why);
    current = NULL;
    if (needs.longest >= RETURNED_BYTES) return_pages(scratch, needs.longest);
    let_go(arena); /* where nothing was read, it was the last */
    if (!root) return ERR_INVALID;
    *out = root;
    return 0;
}

int json_arena_load(json_t **out, const char *text, size_t length, size_t flags,
                    json_error_t *why) {
    struct json_oddities odd;
    return json_arena_read(out, text, length, flags, &odd, why);
}
