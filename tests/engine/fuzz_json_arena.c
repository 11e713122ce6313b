/* fuzz_json_arena.c - whatever the bytes, what was reserved is enough (the arena asserts it), and
 * the document is the one that jansson makes, where jansson can hold its numbers.  What is written
 * of a document is read as the same.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined -I. tests/engine/fuzz_json_arena.c \
 *         engine/base/json_{arena,reader,strings,tree}.c engine/base/error.c -ljansson -o fuzz &&
 *     ./fuzz CORPUS
 *
 * Thread: one.  Memory: freed for every input. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/base/json_reader.h"
#include "engine/base/json_tree.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int truth) {
    if (!truth) abort();
}

struct text {
    char *bytes;
    size_t n;
};

static int append(const char *bytes, size_t n, void *data) {
    struct text *text = data;
    text->bytes = realloc(text->bytes, text->n + n + 1);
    require(text->bytes != NULL);
    memcpy(text->bytes + text->n, bytes, n);
    text->n += n;
    return 0;
}

static struct text write(const json_t *value) {
    struct text text = {0};
    require(json_tree_write(value, append, &text) == 0);
    require(json_tree_size(value) == text.n);
    return text;
}

static void check_rewritten(const json_t *value) {
    const size_t flags = JSON_ALLOW_NUL | JSON_DECODE_ANY | JSON_REJECT_DUPLICATES;
    json_error_t why;
    json_t *again = NULL, *copy = json_tree_copy(value);
    const struct text first = write(value), copied = write(copy);
    require(json_arena_load(&again, first.bytes, first.n, flags, &why) == 0);
    const struct text second = write(again);
    require(first.n == second.n && memcmp(first.bytes, second.bytes, first.n) == 0);
    require(first.n == copied.n && memcmp(first.bytes, copied.bytes, first.n) == 0);
    free(first.bytes);
    free(second.bytes);
    free(copied.bytes);
    json_decref(copy);
    json_decref(again);
}

/* Tells whether the reader may take what jansson does not, or not what jansson takes. */
static int may_differ(const json_t *plain, const json_error_t *plain_why, const json_error_t *why) {
    const enum json_error_code code = plain ? json_error_unknown : json_error_code(plain_why);
    if (plain) /* jansson overlooks a NUL behind a literal or a number */
        return strstr(why->text, "nested deeper") || strstr(why->text, "byte 0x00");
    return code == json_error_numeric_overflow || code == json_error_null_byte_in_key;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const size_t flags[] = {0, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, JSON_DECODE_ANY};
    for (size_t i = 0; i < sizeof(flags) / sizeof(*flags); i++) {
        json_error_t why = {0}, plain_why = {0};
        json_t *reserved = NULL;
        json_t *plain = json_loadb((const char *)data, size, flags[i], &plain_why);
        const int rc = json_arena_load(&reserved, (const char *)data, size, flags[i], &why);
        require(rc == 0 || rc == ERR_INVALID);
        require(!rc == (plain != NULL) || may_differ(plain, &plain_why, &why));
        require(!plain || !reserved || json_equal(plain, reserved));
        if (reserved) check_rewritten(reserved);
        json_decref(plain);
        json_decref(reserved);
    }
    return 0;
}
