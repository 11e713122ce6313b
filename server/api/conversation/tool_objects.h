/* tool_objects.h - objects as Gemma 4 and FunctionGemma write them: names stand without quotes, and
 * strings between marks in place of quotes, where nothing is escaped.
 *
 *   {city:<|"|>Paris<|"|>,days:3,deep:{list:[1,true,null]}}
 *
 * JSON is read, too: a model may fall into it, and constrained answers are written so.
 *
 * Thread: any.  Memory: none of its own. */
#ifndef SERVER_API_CONVERSATION_TOOL_OBJECTS_H
#define SERVER_API_CONVERSATION_TOOL_OBJECTS_H

#include <stdbool.h>

#include "server/api/conversation/tool_piece.h"
#include "server/json/buffer.h"

#define TOOL_STRING_MARK "<|\"|>"
#define TOOL_ESCAPE_MARK "<escape>" /* FunctionGemma's */

/* Appends the object that the text begins with, as JSON, and cuts it off the text.  Returns false
 * if it begins with none. */
bool tool_object_read(struct buffer *out, struct piece *text);
/* Appends a number, or what JSON or Python call true, false and nothing.  Returns false if the text
 * is none of these. */
bool tool_object_append_bare(struct buffer *out, struct piece text);

#endif
