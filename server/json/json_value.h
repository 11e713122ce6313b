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

/* Reads an integer.  5.0 is one, as JSON Schema has it, up to 2^53: clients whose numbers are all
 * doubles write it so. */
static inline bool json_read_integer(const json_t *value, json_int_t *out) {
    const double x = json_number_value(value);
    if (json_is_real(value) && !(x >= -0x1p53 && x <= 0x1p53 && (double)(json_int_t)x == x))
        return false;
    *out = json_is_real(value) ? (json_int_t)x : json_integer_value(value);
    return json_is_number(value);
}

#endif
