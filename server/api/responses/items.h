/* items.h - the items of POST /v1/responses as messages of OpenAI's chats.
 *
 *   message                           a message of its role
 *   reasoning, an assistant's         one message of the assistant, as long as they follow each
 *   message, a call of a tool that    other
 *   the client runs
 *   an output of such a call          a message of the role tool
 *   a call that another service ran   what it says of its result, as the assistant's
 *   an unknown one with text          a message of its role, or else of the user
 *   an unknown one without            nothing; its type is named once in the log
 *
 * Items may bring tools, too.
 *
 * Thread: any.  Memory: results are new; they share strings with the body. */
#ifndef SERVER_API_RESPONSES_ITEMS_H
#define SERVER_API_RESPONSES_ITEMS_H

#include <stddef.h>
#include <jansson.h>

struct api_error;
struct skipped_types;
struct tool_list;

/* Appends the messages of an array of items, and adds the tools that items have.  The first
 * n_before items are no part of the request's input, by which errors name an item. */
int items_read(json_t *messages, struct tool_list *tools, const json_t *items, size_t n_before,
               struct skipped_types *skipped, struct api_error *err);

#endif
