/* tool_choice.h - which tools an answer may call, and whether it must call one, in the words of any
 * of the three APIs.
 *
 *   "auto"  "none"  "required"  "any"             or an object with one of these as its type
 *   {"type": "function", "function": {"name"}}    and custom: OpenAI's chats
 *   {"type": "function", "name"}                  and custom: its responses; tool: Anthropic's
 *   {"type": "allowed_tools", "mode", "tools"}    or with both in an object of the type's name
 *
 * Anthropic's have disable_parallel_tool_use, too.
 *
 * Thread: any.  Memory: what is read is borrowed from the body. */
#ifndef SERVER_API_CONVERSATION_TOOL_CHOICE_H
#define SERVER_API_CONVERSATION_TOOL_CHOICE_H

#include <stdbool.h>
#include <jansson.h>

struct api_error;

/* Zero-initialised: auto. */
struct tool_choice {
    const char *named;     /* the tool that must be called; NULL: any */
    const char *space;     /* the namespace of that; NULL: none is named */
    const json_t *allowed; /* the only tools that may be called; NULL: all */
    bool none, must_call, one_call;
};

int tool_choice_read(struct tool_choice *out, const json_t *value, struct api_error *err);

#endif
