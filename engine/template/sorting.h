/* sorting.h - stable sorting by values that must have an order.
 *
 * Thread: a render's own.  Memory: the render's arena. */
#ifndef ENGINE_TEMPLATE_SORTING_H
#define ENGINE_TEMPLATE_SORTING_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/template/value.h"

struct render;

struct keyed {
    struct value key, item;
};

/* Sorts by key; equal ones keep their order, in reverse, too. */
void sort_keyed(struct render *r, struct keyed *rows, size_t n, bool in_reverse);
/* Returns a dict with the entries in the order of their keys. */
const struct dict *sort_dict(struct render *r, const struct dict *dict);

#endif
