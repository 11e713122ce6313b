/* tool_elements.h - constrains arguments that are written as elements, one for each:
 *
 *   <parameter=city>              <arg_key>city</arg_key>
 *   Paris                         <arg_value>Paris</arg_value>
 *   </parameter>
 *
 * tool_strings.h tells how a value is written between its marks.
 *
 * Thread: any.  Memory: the result is the caller's. */
#ifndef SERVER_API_CONVERSATION_TOOL_ELEMENTS_H
#define SERVER_API_CONVERSATION_TOOL_ELEMENTS_H

#include <stdbool.h>
#include <jansson.h>

struct error;

/* The marks around a key and a value, and those of the element that a call is: the name stands
 * between call_begin and key_end.  call_begin NULL: it is none. */
struct tool_elements {
    const char *key_begin, *key_end, *value_begin, *value_end;
    bool on_lines; /* a value stands on lines of its own */
    const char *call_begin, *call_end;
};

/* Writes the format (engine/grammar/grammar.h) of a tool's arguments.  `schema` is what
 * schema_prepare() made of an object's; `strings` is what tool_strings_create() knows of the tool.
 * `end` ends a call, so that no string may hold it.  ERR_INVALID names what has no such form. */
int tool_elements_make(json_t **out, const struct tool_elements *elements, const json_t *schema,
                       const json_t *strings, const char *tool, const char *end, struct error *err);

#endif
