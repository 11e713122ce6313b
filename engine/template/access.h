/* access.h - attributes, items and slices of values.
 *
 * Thread: a render's own.  Memory: the render's arena. */
#ifndef ENGINE_TEMPLATE_ACCESS_H
#define ENGINE_TEMPLATE_ACCESS_H

#include "engine/template/value.h"

struct render;

/* Returns v.name: a method or attribute of the type, else the item of that key, else undefined.
 * Methods that change a list or dict are undefined, as in the sandbox. */
struct value value_attribute(struct render *r, struct value v, const struct string *name);
/* Returns v[key]: the item, else the attribute, else undefined. */
struct value value_item(struct render *r, struct value v, struct value key);
/* Returns v[start:stop:step]; V_NONE or V_MISSING: the default. */
struct value value_slice(struct render *r, struct value v, struct value start, struct value stop,
                         struct value step);
/* Follows a path such as "function.name", as `map(attribute=...)` does; an integer is one item. */
struct value value_path(struct render *r, struct value v, struct value path,
                        struct value otherwise);
/* Returns only what is an attribute, and no item: the filter `attr`. */
struct value value_own_attribute(struct render *r, struct value v, const struct string *name);

#endif
