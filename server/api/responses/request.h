/* request.h - the body of POST /v1/responses, translated into a chat (conversation/request.h).
 *
 * Nothing is stored: each body has its whole conversation.
 *
 * Thread: any one.  Memory: the caller frees what responses_echo has with responses_echo_fini(). */
#ifndef SERVER_API_RESPONSES_REQUEST_H
#define SERVER_API_RESPONSES_REQUEST_H

#include <stdbool.h>
#include <stddef.h>

#include "server/json/buffer.h"

struct api_error;
struct chat_request;
struct completion_request;
struct request_limits;
struct request_table;

/* The members of a body; NULL ends the list. */
extern const struct request_table *const responses_tables[];

/* What an answer repeats of its request.  Zero-initialise. */
struct responses_echo {
    struct buffer members; /* ,"instructions":…,"tools":… and so on */
};

void responses_echo_fini(struct responses_echo *echo);

/* Reads and checks a body, and renders its prompt.  On failure the structs hold nothing to free. */
int responses_request_parse(struct completion_request *out, struct chat_request *chat,
                            struct responses_echo *echo, const char *body, size_t length,
                            const struct request_limits *limits, struct api_error *err);

#endif
