/* text.h - operations on strings that methods and filters share.
 *
 * Thread: a render's own.  Memory: the render's arena. */
#ifndef ENGINE_TEMPLATE_TEXT_H
#define ENGINE_TEMPLATE_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/template/value.h"

struct render;

enum side { SIDE_LEFT = 1, SIDE_RIGHT = 2, SIDE_BOTH = 3 };

/* Strips the characters of a set, or whitespace where it is NULL. */
const struct string *text_strip(struct render *r, const struct string *s, const struct string *set,
                                enum side sides);
/* Replaces the first n occurrences, all if n is negative. */
const struct string *text_replace(struct render *r, const struct string *s,
                                  const struct string *old, const struct string *with, int64_t n);
/* Splits at a separator, or at whitespace where it is NULL, n times at most unless n is
 * negative. */
struct list *text_split(struct render *r, const struct string *s, const struct string *separator,
                        int64_t n, bool from_right);
struct list *text_split_lines(struct render *r, const struct string *s, bool keeps_ends);
/* Joins what iterating over a value yields; the items must be strings unless they are converted. */
const struct string *text_join(struct render *r, const struct string *separator, struct value items,
                               bool converts);

const struct string *text_upper(struct render *r, const struct string *s);
const struct string *text_lower(struct render *r, const struct string *s);
const struct string *text_capitalize(struct render *r, const struct string *s);
const struct string *text_title(struct render *r, const struct string *s);    /* str.title() */
const struct string *text_headline(struct render *r, const struct string *s); /* jinja2's filter */
const struct string *text_center(struct render *r, const struct string *s, int64_t width);

bool text_is_lower(const struct string *s);
bool text_is_upper(const struct string *s);

#endif
