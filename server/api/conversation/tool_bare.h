/* tool_bare.h - finds calls that a model has written without the marks of its format.
 *
 *   {"name": "f", "arguments": {…}}                        alone, or in an array
 *   ```json ⏎ {"name": "f", "arguments": {…}} ⏎ ```       in a fence of Markdown
 *   <function=f><parameter=k>v</parameter></function>      where calls have elements
 *
 * Small models do so, and models of code.  Only what an answer begins with is a call, and what
 * follows another call.  It must name a tool of the request.  Elsewhere it may be an example.
 *
 * Thread: the owner's.  Memory: none. */
#ifndef SERVER_API_CONVERSATION_TOOL_BARE_H
#define SERVER_API_CONVERSATION_TOOL_BARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>

#include "server/api/conversation/tool_formats.h"
#include "server/api/conversation/tool_piece.h"

/* What is known of a text so far.  Zero-initialise, also when a part of the text has been cut. */
struct tool_bare {
    bool is_named;    /* it has begun like a call of a tool of the request, */
    bool is_element;  /* one with elements */
    bool in_string;   /* where the search is: */
    uint32_t depth;   /* braces that are open */
    size_t n_skipped; /* white space and the fence before the call */
    size_t n_seen;    /* bytes that have been searched */
};

/* Tells whether the text begins with a call.  TOOL_BEGINS: it is whole and ends behind *n bytes.
 * `tools` has the tools' names as keys.  The text grows from one look to the next. */
enum tool_beginning tool_bare_look(struct tool_bare *bare, const struct tool_format *format,
                                   const json_t *tools, struct piece text, size_t *n);
/* Adds the calls of a text that is whole, from n_skipped on.  Returns false if there are none. */
bool tool_bare_read(struct tool_split *split, const char *text, size_t n);
/* Returns what may follow such a call, once, and is no answer. */
const char *tool_bare_closing(const struct tool_bare *bare, const struct tool_format *format);

#endif
