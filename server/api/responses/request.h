/* request.h - the body of POST /v1/responses, translated into a chat (conversation/request.h).
 *
 * Thread: any one.  Memory: the caller frees what responses_asked has with
 * responses_asked_fini(). */
#ifndef SERVER_API_RESPONSES_REQUEST_H
#define SERVER_API_RESPONSES_REQUEST_H

#include <stdbool.h>
#include <stddef.h>

#include "server/api/responses/history.h"
#include "server/json/buffer.h"

struct api_error;
struct chat_request;
struct completion_request;
struct request_limits;
struct request_table;

/* The members of a body; NULL ends the list. */
extern const struct request_table *const responses_tables[];

/* What an answer needs of its request beside the prompt.  Zero-initialise. */
struct responses_asked {
    struct buffer members; /* that the answer repeats: ,"instructions":…,"tools":… and so on */
    struct history history;
    bool stores; /* the answer is to be stored */
};

void responses_asked_fini(struct responses_asked *asked, struct responses_store *store);

/* Reads and checks a body, and renders its prompt.  On failure the structs hold nothing to free.
 * ERR_FULL: as history_read() says. */
int responses_request_parse(struct completion_request *out, struct chat_request *chat,
                            struct responses_asked *asked, const char *body, size_t length,
                            const struct history_source *source,
                            const struct request_limits *limits, struct api_error *err);

#endif
