/* fuzz_json_arena.c - whatever the bytes, what was reserved is enough (the arena asserts it), and
 * the document is the one that the parser makes in ordinary memory.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined -I. tests/engine/fuzz_json_arena.c \
 *         engine/base/json_arena.c -ljansson -o fuzz && ./fuzz CORPUS
 *
 * Thread: one.  Memory: freed for every input. */
#include <stdint.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int truth) {
    if (!truth) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const size_t flags[] = {0, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, JSON_DECODE_ANY};
    for (size_t i = 0; i < sizeof(flags) / sizeof(*flags); i++) {
        json_error_t why;
        json_t *reserved = NULL;
        json_t *plain = json_loadb((const char *)data, size, flags[i], &why);
        const int rc = json_arena_load(&reserved, (const char *)data, size, flags[i], &why);
        require(rc == (plain ? 0 : ERR_INVALID));
        require(!plain || json_equal(plain, reserved));
        json_decref(plain);
        json_decref(reserved);
    }
    return 0;
}
