/* json_value.h - what readers of bodies ask of a value.
 *
 * Thread: any.  Memory: none. */
#ifndef SERVER_JSON_JSON_VALUE_H
#define SERVER_JSON_JSON_VALUE_H

#include <stdbool.h>
#include <string.h>
#include <jansson.h>

/* Returns whether a member is there and not null. */
static inline bool json_is_given(const json_t *value) {
    return value && !json_is_null(value);
}

/* Returns whether a value is this string. */
static inline bool json_is_word(const json_t *value, const char *word) {
    return json_is_string(value) && strcmp(json_string_value(value), word) == 0;
}

#endif
