/* reply.h - sends, counts and logs whole answers in one place.
 *
 * Thread: loop.  Memory: bodies are freed here; the exchange must not be touched afterwards. */
#ifndef SERVER_API_REPLY_H
#define SERVER_API_REPLY_H

#include "server/json/api_error.h"

struct buffer;
struct http_exchange;
struct server;

/* The body that is sent when there is no memory to write an error. */
#define REPLY_NO_MEMORY                                                                            \
    "{\"error\":{\"message\":\"no memory for the answer\",\"type\":\"server_error\","              \
    "\"param\":null,\"code\":null}}"

/* Sends the body and frees its memory.  A body that ran out of memory becomes a 500. */
void reply_text(struct server *server, struct http_exchange *exchange, unsigned status,
                const char *content_type, struct buffer *body);
void reply_json(struct server *server, struct http_exchange *exchange, unsigned status,
                struct buffer *body);
/* Sends with status 200 what programs ask for all the time: the log has it at the level debug
 * only. */
void reply_polled(struct server *server, struct http_exchange *exchange, const char *content_type,
                  struct buffer *body);
void reply_error(struct server *server, struct http_exchange *exchange,
                 const struct api_error *err);
/* Does the same in the shape of another API; write NULL: in OpenAI's. */
void reply_error_as(struct server *server, struct http_exchange *exchange,
                    const struct api_error *err, api_error_writer write);

/* Counts and logs an answer that is not sent here (a stream) in one line, which ends with the
 * fields `more`, each behind a space.  Status 0: the client has left. */
void reply_note(struct server *server, const char *request_id, const char *method, const char *path,
                unsigned status, double seconds, const char *more);

#endif
