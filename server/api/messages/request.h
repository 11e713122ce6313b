/* request.h - the body of POST /v1/messages and of its count_tokens: Anthropic's shape of a chat,
 * translated into OpenAI's (conversation/request.h).
 *
 *   system                    a message of the role system
 *   text blocks               parts of the message's content
 *   thinking, tool_use        reasoning_content and tool_calls of the assistant's message
 *   tool_result               a message of the role tool
 *   a last assistant message  is continued
 *
 * Thread: any one.  Memory: see conversation/request.h. */
#ifndef SERVER_API_MESSAGES_REQUEST_H
#define SERVER_API_MESSAGES_REQUEST_H

#include <stdbool.h>
#include <stddef.h>

struct api_error;
struct chat_request;
struct completion_request;
struct request_limits;
struct request_table;

/* The members of a body; NULL ends the list. */
extern const struct request_table *const messages_tables[];

/* Reads and checks a body, and renders its prompt.  counts: the tokens of the prompt are counted,
 * so max_tokens need not be there. */
int messages_request_parse(struct completion_request *out, struct chat_request *chat, bool counts,
                           const char *body, size_t length, const struct request_limits *limits,
                           struct api_error *err);

#endif
