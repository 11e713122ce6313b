/* tool_calls.h - finds the tool calls in generated text, piece by piece.
 *
 *   text ─► answer          <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>
 *        └► calls: f, {"x": 1}
 *
 * Each family writes calls in a format of its own (tool_formats.h).  Text that seems to be a call
 * and is none is answer.  A call is known when its end has come, or the text's.  The marks are
 * found in the text, whether a tokenizer has them as special tokens, as other added ones, or in
 * pieces.
 *
 * Thread: the owner's.  Memory: the split owns its calls. */
#ifndef SERVER_API_CONVERSATION_TOOL_CALLS_H
#define SERVER_API_CONVERSATION_TOOL_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>

#include "server/api/conversation/tool_bare.h"
#include "server/api/conversation/tool_formats.h"
#include "server/api/conversation/tool_piece.h"
#include "server/json/buffer.h"

enum { TOOL_MAX_CALLS = 128 }; /* of one answer; further ones are text */

/* A call; the arguments are JSON as the model wrote it, and can be sent back (arguments.h). */
struct tool_call {
    struct buffer name, arguments;
    size_t at; /* bytes of the answer when it came: it stands behind them */
};

/* Zero-initialise but for the format; NULL: all text is answer. */
struct tool_split {
    const struct tool_format *format;
    const json_t *strings; /* of the tools (tool_strings.h), borrowed; NULL: nothing is known, and
                              calls need their marks */
    uint32_t max_calls;
    bool must_call;    /* nothing but calls can come */
    bool is_inside;    /* behind `begin` */
    bool is_answer;    /* no call can come any more */
    bool follows_call; /* nothing but white space has come since the last call */
    bool has_text;     /* something else has come, or comes now */
    struct tool_bare bare;
    const char
        *closing;       /* of the call before, without marks; NULL: it has come, or there is none */
    struct buffer held; /* what may be a mark, or is a call so far */
    size_t n_seen;      /* bytes of `held` that have been searched for `end` */
    uint32_t n_misses;  /* ends so far that were part of an argument */
    struct tool_call *calls;
    uint32_t n_calls;
    bool failed; /* there was no memory */
};

void tool_split_fini(struct tool_split *split);
/* Appends what is no call to `answer`. */
void tool_split_add(struct tool_split *split, const char *text, size_t n, struct buffer *answer);
/* Ends the text.  cut: NULL, or what has cut it off: the stop string, "" where there is none.  A
 * call that is cut off is dropped: no client can use a part of one. */
void tool_split_end(struct tool_split *split, struct buffer *answer, const char *cut);
/* Returns how many bytes of the text so far may be part of a call. */
size_t tool_split_held(const struct tool_split *split);

/* Adds a call without arguments, for the reader of a format; NULL: there are too many, or there is
 * no memory. */
struct tool_call *tool_split_add_call(struct tool_split *split, struct piece name);
/* Drops a call whose arguments are none, or for which there was no memory. */
void tool_split_drop_last(struct tool_split *split);

#endif
