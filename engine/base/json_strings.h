/* json_strings.h - decodes the long strings of a JSON text, which jansson does byte by byte.
 *
 *   text    {"role": "user", "content": "a document of 300 KB"}
 *   short   {"role": "user", "content": "\u000129,300000"}          what jansson parses
 *   tree    content: U+0001 "29,300000"  ->  content: the string that is there in the text
 *
 * A text in which some string begins with U+0001 is left to jansson, and so is one with a long string
 * that is not right or has a NUL: what jansson takes and refuses, and why, stays as it is.
 *
 * Thread: any.  Memory: the short text is the struct's; strings come from jansson's allocator. */
#ifndef ENGINE_BASE_JSON_STRINGS_H
#define ENGINE_BASE_JSON_STRINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <jansson.h>

/* Returns the quote that ends the string whose text begins at `at`, NULL if none does before `end`. */
const char *json_string_end(const char *at, const char *end);

struct json_strings {
    const char *text; /* borrowed: the whole text */
    char *rest;       /* the short one */
    size_t n_rest;
    size_t n, n_bytes, longest; /* of the strings that were cut out: bytes in the text */
};

/* Cuts out the long strings.  false: there are none, or the text is to be parsed as it is. */
bool json_strings_cut(struct json_strings *cut, const char *text, size_t length);
void json_strings_fini(struct json_strings *cut);

/* Puts them into the tree of the short text.  ERR_INVALID: the whole text is to be parsed.
 * ERR_NOMEM. */
int json_strings_restore(const struct json_strings *cut, json_t **root);

#endif
