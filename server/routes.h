/* routes.h - which function answers which path: one table, with who may ask.
 *
 * Thread: loop.  Memory: none. */
#ifndef SERVER_ROUTES_H
#define SERVER_ROUTES_H

#include <stdbool.h>

struct http_exchange;

/* The transport's callbacks; ctx is the struct server.  Path, method and API key are judged before
 * a body is taken: a stranger makes nobody hold 64 MB. */
bool routes_admit(struct http_exchange *exchange, void *ctx);
void routes_handle(struct http_exchange *exchange, void *ctx);

#endif
