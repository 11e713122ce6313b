/* json_guard.h - parses JSON from model files, at a cost bounded before the parser sees a byte.
 *
 * A parsed array or object costs about a hundred times its two bytes, and nesting costs stack, so a
 * scan counts both first.  Duplicate keys are refused, because their meaning is undefined.
 *
 * Thread: any.  Memory: the caller owns *out and releases it with json_decref(). */
#ifndef ENGINE_BASE_JSON_GUARD_H
#define ENGINE_BASE_JSON_GUARD_H

#include <stddef.h>

#include <jansson.h>

struct error;

/* The largest tokenizer.json (a quarter of a million tokens, half a million merges, each a pair)
 * has 1.8 million values; four million cost half a gigabyte at most. */
enum { JSON_GUARD_MAX_DEPTH = 256, JSON_GUARD_MAX_VALUES = 1 << 22 };

/* Parses a text whose root must be an object.  `label` names the file.  On failure *out is
 * untouched. */
int json_guard_parse(json_t **out, const char *bytes, size_t size, const char *label,
                     struct error *err);

/* Parses a text whose root may be an array, too.  flags: jansson's, in addition to
 * JSON_REJECT_DUPLICATES. */
int json_guard_parse_any(json_t **out, const char *bytes, size_t size, size_t flags,
                         const char *label, struct error *err);

/* Reads and parses a whole file of at most max_bytes.  ERR_NOT_FOUND if it does not exist. */
int json_guard_read(json_t **out, const char *path, size_t max_bytes, struct error *err);
int json_guard_read_any(json_t **out, const char *path, size_t max_bytes, struct error *err);

#endif
