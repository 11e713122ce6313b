/* ui.c - GET /, /inspect, /docs and /ui/...: the pages of the server, and what they load.
 *
 * The first is to chat on, the second shows what the server does, the third describes its routes.
 *
 * They need no key: they are the same for everyone and know nothing.  What they ask the server for
 * needs one, as ever. */
#define _GNU_SOURCE /* strcasestr */

#include "server/api/handlers.h"

#include <stdbool.h>
#include <string.h>

#include "server/api/reply.h"
#include "server/api/server.h"
#include "server/http/http.h"
#include "server/json/buffer.h"
#include "server/ui/files.h"

/* Allows the server's own files and nothing else.  A string never becomes markup or a script's
 * address: the pages have no Trusted Types policy but the one for their own libraries. */
static const char policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; worker-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types libraries";

static void refuse(struct server *server, struct http_exchange *exchange, int status,
                   const char *what) {
    struct api_error err;
    api_error_set(&err, status, status == 404 ? "not_found" : "not_acceptable", NULL, "%.200s %s",
                  http_path(exchange), what);
    reply_error(server, exchange, &err);
}

static const struct ui_file *find_file(const char *path) {
    for (size_t i = 0; i < ui_n_files; i++)
        if (strcmp(path, ui_files[i].path) == 0) return &ui_files[i];
    return NULL;
}

/* Tells whether the browser has this file.  It sends a list of tags, which may be weak, or a
 * star. */
static bool has_file(const struct http_exchange *exchange, const struct ui_file *file) {
    const char *tags = http_header(exchange, "If-None-Match");
    return tags && (strstr(tags, file->etag) || strcmp(tags, "*") == 0);
}

/* Tells whether the client reads the form in which the file is embedded.  A client that names no
 * encodings reads any. */
static bool reads(const struct http_exchange *exchange, const struct ui_file *file) {
    const char *encodings = http_header(exchange, "Accept-Encoding");
    return !file->is_gzip || !encodings || strcasestr(encodings, "gzip") || strchr(encodings, '*');
}

static void set_headers(struct http_exchange *exchange, const struct ui_file *file) {
    http_set_header(exchange, "ETag", file->etag);
    http_set_header(exchange, "Cache-Control", "no-cache"); /* kept, but asked for each time */
    http_set_header(exchange, "Content-Security-Policy", policy);
    http_set_header(exchange, "X-Content-Type-Options", "nosniff");
    http_set_header(exchange, "Referrer-Policy", "no-referrer");
    http_set_header(exchange, "Cross-Origin-Opener-Policy", "same-origin");
    http_set_header(exchange, "Cross-Origin-Resource-Policy", "same-origin");
}

void ui_handle(struct server *server, struct http_exchange *exchange) {
    const struct ui_file *file = server->has_ui ? find_file(http_path(exchange)) : NULL;
    struct buffer body = {0};
    if (!file) {
        refuse(server, exchange, 404, "does not exist");
        return;
    }
    if (!reads(exchange, file)) {
        refuse(server, exchange, 406, "has the encoding gzip only: Accept-Encoding must allow it");
        return;
    }
    set_headers(exchange, file);
    if (has_file(exchange, file)) {
        reply_text(server, exchange, 304, NULL, &body);
        return;
    }
    if (file->is_gzip) http_set_header(exchange, "Content-Encoding", "gzip");
    buffer_append(&body, file->data, file->size);
    reply_text(server, exchange, 200, file->type, &body);
}
