/* items.h - the items of POST /v1/responses as messages of OpenAI's chats.
 *
 *   message                           a message of its role
 *   reasoning, an assistant's         one message of the assistant, as long as they follow each
 *   message, function_call,           other
 *   custom_tool_call
 *   *_call_output                     a message of the role tool
 *
 * Thread: any.  Memory: results are new; they share strings with the body. */
#ifndef SERVER_API_RESPONSES_ITEMS_H
#define SERVER_API_RESPONSES_ITEMS_H

#include <jansson.h>

struct api_error;

/* Appends the messages of `input`, a string or an array of items. */
int items_read(json_t *messages, const json_t *input, struct api_error *err);

#endif
