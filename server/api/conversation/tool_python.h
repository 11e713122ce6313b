/* tool_python.h - calls as LFM2 and OLMo 3 write them: as in a program of Python's.
 *
 *   [get_weather(city="Paris", days=3), plan(deep={'list': [1, True, None]})]
 *
 * Values are literals of Python, or JSON: a string stands between quotes of either kind, one each
 * or three.
 *
 * Thread: any.  Memory: none of its own. */
#ifndef SERVER_API_CONVERSATION_TOOL_PYTHON_H
#define SERVER_API_CONVERSATION_TOOL_PYTHON_H

#include <stdbool.h>

#include "server/api/conversation/tool_piece.h"
#include "server/json/buffer.h"

/* Writes the name of the call that the text begins with, up to its bracket, and cuts both off the
 * text.  Returns false if it begins with none. */
bool tool_python_name(struct piece *text, struct piece *name);
/* Appends the arguments behind that bracket, as an object of JSON, and cuts them off the text, with
 * the bracket behind them.  Returns false if they are none. */
bool tool_python_arguments(struct buffer *out, struct piece *text);

#endif
