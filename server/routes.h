/* routes.h - which function answers which path, and which paths need the API key: one table.
 *
 * Thread: loop.  Memory: none. */
#ifndef SERVER_ROUTES_H
#define SERVER_ROUTES_H

#include <stdbool.h>

struct http_exchange;

/* Decides on path, method and API key before a body is read, so a client without the key cannot
 * make the server hold 64 MB.  This and routes_handle() are the transport's callbacks; ctx is the
 * struct server. */
bool routes_admit(struct http_exchange *exchange, void *ctx);
void routes_handle(struct http_exchange *exchange, void *ctx);

#endif
