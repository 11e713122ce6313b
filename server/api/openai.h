/* openai.h - POST /v1/completions: the OpenAI shape of answers and event streams.
 *
 * Thread: loop (but for the job).  Memory: see completion.h. */
#ifndef SERVER_API_OPENAI_H
#define SERVER_API_OPENAI_H

struct http_exchange;
struct server;

void openai_completions(struct server *server, struct http_exchange *exchange);
/* Handles the same route with /render: writes the ids of the prompt's tokens, which are not run. */
void openai_render(struct server *server, struct http_exchange *exchange);

#endif
