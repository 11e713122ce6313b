/* containers.h - lists, dicts and ranges.
 *
 * After a failure a new list or dict is an empty one that takes nothing.  No function here that
 * makes one returns NULL.
 *
 * Thread: a render's own.  Memory: the render's arena. */
#ifndef ENGINE_TEMPLATE_CONTAINERS_H
#define ENGINE_TEMPLATE_CONTAINERS_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/template/value.h"

struct render;

struct list *list_new(struct render *r, size_t capacity);
void list_add(struct render *r, struct list *list, struct value item);
/* Returns a list of items that the caller has and does not change. */
const struct list *list_share(struct render *r, const struct value *items, size_t n);
struct value list_pair(struct render *r, struct value first, struct value second, bool trusted);

struct dict *dict_new(struct render *r, size_t capacity);
/* Returns the value of a key, NULL if it has none.  A key that cannot be one fails the render. */
const struct value *dict_find(struct render *r, const struct dict *dict, struct value key);
/* Sets a key: in its old place, or behind all others. */
void dict_set(struct render *r, struct dict *dict, struct value key, struct value value);
/* Returns whether a value can be a key: whether Python hashes it. */
bool value_is_hashable(struct value v);

/* Returns item i of a range. */
static inline int64_t range_item(const struct range *range, uint64_t i) {
    return (int64_t)((uint64_t)range->start + i * (uint64_t)range->step);
}

#endif
