/* json_tree.h - copies and writes JSON whose numbers are as they were written (json_reader.h).
 *
 * json_deep_copy() and json_dumps() know a number's value alone.  So they must not be used for what
 * clients and files say.
 *
 * Thread: any; a tree and its copies belong to one thread at a time.  Memory: the copy is the
 * caller's. */
#ifndef ENGINE_BASE_JSON_TREE_H
#define ENGINE_BASE_JSON_TREE_H

#include <stddef.h>
#include <jansson.h>

/* Copies arrays and objects.  Strings and numbers, which nothing changes, are shared.  NULL: there
 * is no memory. */
json_t *json_tree_copy(const json_t *value);

/* Writes a value in the fewest bytes.  Returns 0, or -1 if there is no memory, or put() returns
 * -1. */
int json_tree_write(const json_t *value, json_dump_callback_t put, void *data);

/* Returns how many bytes that would be, SIZE_MAX if there is no memory. */
size_t json_tree_size(const json_t *value);

#endif
