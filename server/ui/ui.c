/* ui.c - GET /: a page to try the server with, and to look at what it does.
 *
 * It needs no key: it is the same for everyone and knows nothing.  What it asks the server for
 * needs one, as ever. */
#include "server/api/handlers.h"

#include <stdbool.h>
#include <string.h>

#include "server/api/reply.h"
#include "server/api/server.h"
#include "server/http/http.h"
#include "server/json/buffer.h"
#include "server/ui/page.h"

static void refuse(struct server *server, struct http_exchange *exchange) {
    struct api_error err;
    api_error_set(&err, 404, "not_found", NULL, "/ does not exist");
    reply_error(server, exchange, &err);
}

/* Tells whether the browser has this page.  It sends a list of tags, which may be weak, or a
 * star. */
static bool has_page(const struct http_exchange *exchange) {
    const char *tags = http_header(exchange, "If-None-Match");
    return tags && (strstr(tags, page_etag) || strcmp(tags, "*") == 0);
}

static void set_headers(struct http_exchange *exchange) {
    http_set_header(exchange, "ETag", page_etag);
    http_set_header(exchange, "Cache-Control", "no-cache"); /* kept, but asked for each time */
    http_set_header(exchange, "Content-Security-Policy", page_policy);
    http_set_header(exchange, "X-Content-Type-Options", "nosniff");
    http_set_header(exchange, "Referrer-Policy", "no-referrer");
    http_set_header(exchange, "Cross-Origin-Opener-Policy", "same-origin");
}

void ui_handle(struct server *server, struct http_exchange *exchange) {
    struct buffer body = {0};
    if (!server->has_ui) {
        refuse(server, exchange);
        return;
    }
    set_headers(exchange);
    if (has_page(exchange)) {
        reply_text(server, exchange, 304, NULL, &body);
        return;
    }
    buffer_append(&body, page_data, page_size);
    reply_text(server, exchange, 200, "text/html; charset=utf-8", &body);
}
