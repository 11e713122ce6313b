/* format.h - "%s %d" % values, and "{} {name:>10}".format(values).
 *
 * Thread: a render's own.  Memory: the render's arena. */
#ifndef ENGINE_TEMPLATE_FORMAT_H
#define ENGINE_TEMPLATE_FORMAT_H

#include "engine/template/value.h"

struct args;
struct render;

/* Formats as the operator % does: values is a tuple, a dict for %(name)s, or one value. */
struct value format_percent(struct render *r, const struct string *format, struct value values);
/* Formats as str.format() does. */
struct value format_braces(struct render *r, const struct string *format, const struct args *args);

#endif
