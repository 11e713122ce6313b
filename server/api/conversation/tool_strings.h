/* tool_strings.h - which arguments of tools are strings, by the tools' schemas.
 *
 * Formats with an element for each argument write strings without quotes, so that 12 may be a
 * number or a string.  The schema tells which; where it does not, a value is JSON if it looks like
 * it.
 *
 *   schema of the argument                       how it is written     how it is read
 *   a string; strings of an enum      ─► BARE    a b                   as it is
 *   a string with pattern, format …   ─► QUOTED  "a b"                 without its quotes, if any
 *   anything else                     ─► NONE    12, "a b", {"x": 1}   as JSON, if it is some
 *
 * A model may write what it wants unless it is constrained.  Then a string with bounds of its own
 * is written as JSON, because it may hold the mark that ends a value.
 *
 * Thread: any; a table belongs to one thread at a time.  Memory: the caller owns tables. */
#ifndef SERVER_API_CONVERSATION_TOOL_STRINGS_H
#define SERVER_API_CONVERSATION_TOOL_STRINGS_H

#include <stddef.h>
#include <jansson.h>

enum tool_string { TOOL_STRING_NONE, TOOL_STRING_BARE, TOOL_STRING_QUOTED };

/* Makes a table of the strings among the arguments of `tools`, which have been checked.  NULL:
 * there is no memory. */
json_t *tool_strings_create(const json_t *tools);
/* Finds an argument of a tool in a table; NULL: all are NONE. */
enum tool_string tool_strings_find(const json_t *table, const char *tool, const char *key,
                                   size_t n_key);

#endif
