/* fuzz_json_guard.c - whatever the bytes: the guard accepts no less than the parser alone, but for
 * its stated limits and NUL bytes, and what it lets through is the same object with the bulk array
 * as null. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "server/json/json_guard.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int truth) {
    if (!truth) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct json_span bulk;
    struct error err = {0};
    json_t *guarded = NULL;
    json_t *whole = NULL;
    json_error_t why;
    json_arena_load(&whole, (const char *)data, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL,
                    &why);
    const int rc = json_guard_load(&guarded, (const char *)data, size, "prompt", &bulk, &err);
    if (rc == 0 && bulk.start) {
        require(bulk.start >= (const char *)data &&
                bulk.start + bulk.length <= (const char *)data + size);
        require(bulk.start[0] == '[' && bulk.start[bulk.length - 1] == ']');
        require(json_is_null(json_object_get(guarded, "prompt")));
        if (whole) { /* the array itself is not judged here, so the whole may be illegal */
            require(json_is_array(json_object_get(whole, "prompt")));
            json_object_set_new(whole, "prompt", json_null());
        }
    }
    if (rc == 0 && !bulk.start) require(whole != NULL);
    if (rc == 0 && whole) require(json_equal(whole, guarded));
    if (rc != 0 && json_is_object(whole)) {
        require(strstr(err.text, "deeper") || strstr(err.text, "more than") ||
                memchr(data, 0, size));
    }
    json_decref(whole);
    json_decref(guarded);
    return 0;
}
