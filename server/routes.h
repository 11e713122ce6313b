/* routes.h - which function answers which path: one table, with who may ask.
 *
 * Thread: loop.  Memory: none. */
#ifndef SERVER_ROUTES_H
#define SERVER_ROUTES_H

struct http_exchange;

/* The transport's handler; ctx is the struct server. */
void routes_handle(struct http_exchange *exchange, void *ctx);

#endif
