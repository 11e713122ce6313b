/* fuzz_schema.c - schemas from clients: each is refused by a text, or becomes one that stays as it
 * is. */
#include <stdint.h>
#include <stdlib.h>
#include <jansson.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/grammar/schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *schema = NULL, *out = NULL, *again = NULL;
    json_error_t wrong;
    struct error err = {0};
    if (json_arena_load(&schema, (const char *)data, size, JSON_DECODE_ANY, &wrong)) return 0;
    const int code = schema_prepare(&out, schema, &err);
    if (code && !err.text[0]) abort();
    if (!code && (schema_prepare(&again, out, &err) || !json_equal(out, again))) abort();
    json_decref(again);
    json_decref(out);
    out = again = NULL;
    /* What is loosened is followed whole. */
    if (schema_prepare_loosely(&out, schema, &err) == 0 &&
        (schema_prepare(&again, out, &err) || !json_equal(out, again)))
        abort();
    json_decref(again);
    json_decref(out);
    json_decref(schema);
    return 0;
}
