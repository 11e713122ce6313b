/* responses.h - POST /v1/responses: OpenAI's shape of answers that are lists of items.
 *
 * Thread: loop (but for the job).  Memory: see completion.h. */
#ifndef SERVER_API_RESPONSES_RESPONSES_H
#define SERVER_API_RESPONSES_RESPONSES_H

struct api_error;
struct buffer;
struct http_exchange;
struct server;

void responses_create(struct server *server, struct http_exchange *exchange);

/* Writes OpenAI's error object, with this API's names of members; an api_error_writer. */
void responses_write_error(const struct api_error *err, struct buffer *out);

#endif
