/* ui.h - GET /: a page to try the server with, and to look at what it does.
 *
 * It needs no key: it is the same for everyone and knows nothing.  What it asks the server for
 * needs one, as ever.
 *
 * Thread: loop.  Memory: none. */
#ifndef SERVER_UI_UI_H
#define SERVER_UI_UI_H

struct http_exchange;
struct server;

/* Sends the page, 304 to a browser that has it, or 404 under --no-ui. */
void ui_handle(struct server *server, struct http_exchange *exchange);

#endif
