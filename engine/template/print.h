/* print.h - values as text: str(), repr() and JSON.
 *
 * Thread: a render's own.  Memory: the render's arena. */
#ifndef ENGINE_TEMPLATE_PRINT_H
#define ENGINE_TEMPLATE_PRINT_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/template/value.h"

struct builder;
struct render;

void print_value(struct builder *b, struct value v); /* as str() */
void print_repr(struct builder *b, struct value v);
const struct string *print_string(struct render *r, struct value v); /* str() */

/* How the filter `tojson` writes: json.dumps()'s arguments. */
struct json_style {
    bool ascii_only, sort_keys, is_indented;
    const struct string *indent; /* of one level, or NULL: n_indent blanks */
    size_t n_indent;
    const struct string
        *separator;             /* between items, or NULL: a comma, and what is usual behind it */
    const struct string *colon; /* NULL: the usual one */
};
void print_json(struct builder *b, struct value v, const struct json_style *style);

#endif
