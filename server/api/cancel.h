/* cancel.h - POST /v1/requests/{id}/cancel: ends a request with what it has generated.
 *
 * Only a client with the request's key can: ids that clients choose may be guessed.
 *
 * Thread: loop.  Memory: none. */
#ifndef SERVER_API_CANCEL_H
#define SERVER_API_CANCEL_H

struct http_exchange;
struct server;

void cancel_handle(struct server *server, struct http_exchange *exchange);

#endif
