/* gguf_json.h - values of a GGUF file as JSON.
 *
 * Thread: any.  Memory: the caller owns the value. */
#ifndef ENGINE_GGUF_GGUF_JSON_H
#define ENGINE_GGUF_GGUF_JSON_H

#include <jansson.h>

struct gguf_value;

/* Returns a number, a truth value or a string.  Null: it is a list, not UTF-8 or not finite.  NULL:
 * there is no memory. */
json_t *gguf_to_json(const struct gguf_value *value);

#endif
