/* state.h - GET /state: what the engine does now, in one small JSON object, for the page at / and
 * for people to look at.  Dashboards read /metrics, which has more.
 *
 * Thread: loop.  Memory: none. */
#ifndef SERVER_OPS_STATE_H
#define SERVER_OPS_STATE_H

struct http_exchange;
struct server;

void state_handle(struct server *server, struct http_exchange *exchange);

#endif
