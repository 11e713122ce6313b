/* chat.h - POST /v1/chat/completions: the OpenAI shape of chats.
 *
 * Thread: loop (but for the job).  Memory: see completion.h. */
#ifndef SERVER_API_CHAT_CHAT_H
#define SERVER_API_CHAT_CHAT_H

struct http_exchange;
struct server;

void chat_completions(struct server *server, struct http_exchange *exchange);
/* Handles the same route with /render: writes the ids of the prompt's tokens, which are not run. */
void chat_render(struct server *server, struct http_exchange *exchange);

#endif
