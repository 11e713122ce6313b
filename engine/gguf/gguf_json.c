/* gguf_json.c - see gguf_json.h. */
#include "engine/gguf/gguf_json.h"

#include <math.h>

#include "engine/gguf/gguf.h"

json_t *gguf_to_json(const struct gguf_value *value) {
    uint64_t whole;
    double number;
    if (value->type == GGUF_BOOL) return json_boolean(gguf_truth(value, false));
    if (value->type == GGUF_STRING) {
        json_t *text = json_stringn((const char *)value->bytes, value->n);
        return text ? text : json_null();
    }
    if (gguf_whole(value, &whole) && whole <= INT64_MAX) return json_integer((json_int_t)whole);
    if (!gguf_number(value, &number) || !isfinite(number)) return json_null();
    /* A whole number that is too large for JSON's is no integer, which its reader refuses. */
    const bool is_real = value->type == GGUF_F32 || value->type == GGUF_F64 || number >= 0x1p63;
    return is_real ? json_real(number) : json_integer((json_int_t)number);
}
