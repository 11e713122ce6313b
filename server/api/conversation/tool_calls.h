/* tool_calls.h - finds the tool calls in generated text, piece by piece.
 *
 *   text ─► answer          <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>
 *        └► calls: f, {"x": 1}
 *
 * Each family writes calls in a format of its own; a format is one row of a table.  Text that seems
 * to be a call and is none is answer.  A call is known when its end has come, or the text's.  The
 * marks are found in the text, whether a tokenizer has them as special tokens, as other added ones,
 * or in pieces.
 *
 * Thread: the owner's.  Memory: the split owns its calls. */
#ifndef SERVER_API_CONVERSATION_TOOL_CALLS_H
#define SERVER_API_CONVERSATION_TOOL_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>

#include "server/api/conversation/tool_elements.h"
#include "server/json/buffer.h"

enum { TOOL_MAX_CALLS = 128 }; /* of one answer; further ones are text */

/* A call; the arguments are JSON as the model wrote it, and can be sent back (arguments.h). */
struct tool_call {
    struct buffer name, arguments;
    size_t at; /* bytes of the answer when it came: it stands behind them */
};

struct tool_split;

/* How a call is written, around the name and the arguments. */
struct tool_writing {
    const char *open, *close; /* around all calls */
    const char *before_name, *before_arguments, *behind, *between;
    const char *text; /* an expression of what no call begins; NULL: a mark begins calls */
};

/* What the first characters of a text say. */
enum tool_beginning { TOOL_BEGINS, TOOL_BEGINS_NOT, TOOL_MAY_BEGIN };

struct tool_format {
    const char *name;
    const char *sign;  /* what a template says that makes its model write this format */
    const char *begin; /* stands before calls; "": they begin the text, as `look` says */
    const char *end;   /* stands behind them; NULL: the text's end */
    enum tool_beginning (*look)(const char *text, size_t n);
    bool is_special; /* `begin` is one token, special or not; its text stands in the answer's */
    /* Reads what stands between.  Returns false if it is no call: then none has been added. */
    bool (*read)(struct tool_split *split, const char *text, size_t n);
    const struct tool_writing *writing;
    const struct tool_elements *elements; /* of arguments; NULL: these are a JSON object */
    const char *first;                    /* characters that calls begin with behind `begin` */
    bool names_first;                     /* or with a name */
};

/* The marks of all formats; NULL ends the list.  A tokenizer may have them as special tokens, which
 * are then shown in the text all the same. */
extern const char *const tool_marks[];

/* Returns the first format whose sign the template has; NULL: none. */
const struct tool_format *tool_format_of(const char *template_source);

/* Zero-initialise but for the format; NULL: all text is answer. */
struct tool_split {
    const struct tool_format *format;
    const json_t *strings; /* of the tools (tool_strings.h), borrowed; NULL: nothing is known */
    uint32_t max_calls;
    bool must_call;     /* nothing but calls can come */
    bool is_inside;     /* behind `begin` */
    bool is_answer;     /* no call can come any more */
    bool follows_call;  /* nothing but white space has come since the last call */
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

#endif
