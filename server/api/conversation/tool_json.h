/* tool_json.h - calls that are JSON objects: {"name": …, "arguments": {…}}.
 *
 * Cohere's models say "tool_name", and Llama's "parameters".  Arguments may also be JSON in a
 * string.
 *
 * Thread: any.  Memory: the split owns its calls. */
#ifndef SERVER_API_CONVERSATION_TOOL_JSON_H
#define SERVER_API_CONVERSATION_TOOL_JSON_H

#include <stdbool.h>

#include "server/api/conversation/tool_piece.h"

struct tool_split;

/* Tells whether a text is one JSON value. */
bool tool_json_is_value(struct piece text);
/* Tells whether an object, which may be no legal JSON, has the member of a call's arguments. */
bool tool_json_has_arguments(struct piece object);
/* Adds the call that an object is, all of the text.  Returns false if it is none: then none has
 * been added. */
bool tool_json_read(struct tool_split *split, struct piece text);
/* Adds those of objects with `between` and white space between them, all of the text.  Returns
 * false if it is something else; the calls before that have been added. */
bool tool_json_read_all(struct tool_split *split, struct piece text, char between);

#endif
