/* messages.h - POST /v1/messages and /v1/messages/count_tokens: Anthropic's shape of chats.
 *
 * Thread: loop (but for the job).  Memory: see completion.h. */
#ifndef SERVER_API_MESSAGES_MESSAGES_H
#define SERVER_API_MESSAGES_MESSAGES_H

struct api_error;
struct buffer;
struct http_exchange;
struct server;

void messages_create(struct server *server, struct http_exchange *exchange);
void messages_count(struct server *server, struct http_exchange *exchange);

/* Writes {"type":"error","error":{…}}; an api_error_writer. */
void messages_write_error(const struct api_error *err, struct buffer *out);

#endif
