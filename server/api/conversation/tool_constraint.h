/* tool_constraint.h - which answers a chat may have whose tools must be called, or called by their
 * schemas.
 *
 * Thread: any one.  Memory: the result is the caller's. */
#ifndef SERVER_API_CONVERSATION_TOOL_CONSTRAINT_H
#define SERVER_API_CONVERSATION_TOOL_CONSTRAINT_H

#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>

struct api_error;
struct skipped_types;
struct tool_format;

struct tool_demand {
    const json_t *tools; /* checked: each has type function and a name */
    const char *named;   /* the one that must be called; NULL: any */
    bool must_call;      /* else text may come instead, and tools that are not strict are free */
    bool one_call;
    const struct tool_format *format; /* of the model's calls */
    const char
        *mark; /* which the tokenizer has as no token, so that it is text before them; "": none */
    const json_t *strings;         /* of the tools (tool_strings.h) */
    const json_t *said;            /* the form of an answer that calls none; NULL: any text */
    struct skipped_types *skipped; /* gets what schemas have that is not followed */
};

/* Tells whether calls must be constrained: one must be made, a tool is strict, or another answer
 * has a form. */
bool tool_demand_constrains(const struct tool_demand *demand);

/* Writes a structural tag's format (engine/grammar/grammar.h) of all allowed answers, behind the
 * format's token if it has one that is none of the text. */
int tool_constraint_make(json_t **out, const struct tool_demand *demand, struct api_error *err);

#endif
