/* tool_formats.h - how the families write tool calls.  A format is one row of a table.
 *
 * Thread: any.  Memory: constant. */
#ifndef SERVER_API_CONVERSATION_TOOL_FORMATS_H
#define SERVER_API_CONVERSATION_TOOL_FORMATS_H

#include <stdbool.h>
#include <stddef.h>

#include "server/api/conversation/tool_elements.h"

struct tool_split;

/* How a call is written, around the name and the arguments. */
struct tool_writing {
    const char *open, *close; /* around all calls */
    const char *before_name, *before_arguments, *behind, *between;
    const char *text; /* an expression of what no call begins; NULL: a mark begins calls */
    /* Each call is a message of its own (channels.h), and `text` heads one that is text. */
    bool is_message;
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

#endif
