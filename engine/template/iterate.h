/* iterate.h - going through values, and iterators that compute their items one at a time.
 *
 * As in Python an iterator can be gone through once: what `map`, `select`, `items`, `batch` and so
 * on return.
 *
 * Thread: a render's own.  Memory: the render's arena. */
#ifndef ENGINE_TEMPLATE_ITERATE_H
#define ENGINE_TEMPLATE_ITERATE_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/template/value.h"

struct render;

/* A place in a value. */
struct cursor {
    struct value source;
    size_t at; /* item, or byte of a string */
};

/* Computes the next item; returns false at the end, and when the render has failed. */
typedef bool (*iterator_next_fn)(struct render *r, struct iterator *self, struct value *out);

struct iterator {
    iterator_next_fn next;
    struct cursor source;
    void *state;
};

bool value_is_iterable(struct value v);
/* Begins to go through v.  The render fails if that is not possible. */
void cursor_init(struct cursor *cursor, struct render *r, struct value v);
/* Returns false at the end, and when the render has failed. */
bool cursor_next(struct cursor *cursor, struct render *r, struct value *out);

/* Returns all items as a new list. */
struct list *iterate_all(struct render *r, struct value v);
/* Returns item i of a value that has a length and an order. */
struct value iterate_item(struct render *r, struct value v, size_t i);

/* Makes an iterator over what `next` makes of the source's items. */
struct value iterator_make(struct render *r, iterator_next_fn next, struct value source,
                           void *state);
/* Makes one that begins with the last item; the render fails if the source has no length. */
struct value iterator_reverse(struct render *r, struct value source);

#endif
