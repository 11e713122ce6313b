/* request.h - the body of POST /v1/chat/completions: a completion whose prompt the model's template
 * renders.
 *
 * Thread: any one.  Memory: the completion request owns the rendered prompt. */
#ifndef SERVER_API_CHAT_REQUEST_H
#define SERVER_API_CHAT_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct api_error;
struct completion_request;
struct request_limits;
struct tool_format;

/* What a chat asks for beside its completion. */
struct chat_request {
    bool splits_reasoning;           /* the answer's reasoning is a member of its own */
    bool begins_reasoning;           /* the prompt ends inside reasoning */
    const struct tool_format *tools; /* how the answer calls tools; NULL: it has none */
    uint32_t max_calls;
};

/* Reads and checks a body, and renders its prompt.  On failure neither struct holds anything to free
 * and err names the cause. */
int chat_request_parse(struct completion_request *out, struct chat_request *chat, const char *body,
                       size_t length, const struct request_limits *limits, struct api_error *err);

#endif
