/* schema.h - a client's JSON Schema becomes one that the library follows in full, or is refused.
 *
 * The library leaves out much of JSON Schema without a word.  So each schema is looked at first:
 * what would be left out is refused by its name and place.  What comes out allows nothing that the
 * schema does not allow; but less, where that keeps answers to the point:
 *
 *   - an object with `properties` has these alone, in their order; others only if they are
 *   required; - where `type` is missing, it is that of the other keywords.
 *
 * What is no keyword of JSON Schema says nothing, as the standard has it; but OpenAPI's `nullable`
 * is known.
 *
 * Thread: any.  Memory: the result is the caller's. */
#ifndef ENGINE_GRAMMAR_SCHEMA_H
#define ENGINE_GRAMMAR_SCHEMA_H

#include <jansson.h>

struct error;

enum {
    SCHEMA_MAX_DEPTH = 256,
    SCHEMA_MAX_NODES = 4096, /* schemas in a schema, and values of its enums */
    SCHEMA_MAX_COUNT = 4096, /* of maxItems and its like */
    SCHEMA_MAX_LENGTH = 128, /* of minLength and maxLength: each is a state for each length */
};

/* Writes the schema that the library gets.  ERR_INVALID names the keyword and where it stands. */
int schema_prepare(json_t **out, const json_t *schema, struct error *err);

/* Writes what schema_prepare() does, but refuses nothing in an object: the least part that the
 * library cannot follow allows all values of its types.  The error then names one such part, and
 * the result is 0. */
int schema_prepare_loosely(json_t **out, const json_t *schema, struct error *err);

#endif
