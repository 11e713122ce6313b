/* models.h - GET /v1/models and /v1/models/{id}: the one model that is served, in OpenAI's shape,
 * or in Anthropic's if the request has the header anthropic-version.
 *
 * Thread: loop.  Memory: none. */
#ifndef SERVER_OPS_MODELS_H
#define SERVER_OPS_MODELS_H

struct http_exchange;
struct server;

void models_list(struct server *server, struct http_exchange *exchange);
void models_show(struct server *server, struct http_exchange *exchange);

#endif
