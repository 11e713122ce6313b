/* fake_http.h - exchanges without sockets: a test makes one, a handler answers, the test reads.
 *
 * Thread: the test's.  Memory: the test owns its exchanges. */
#ifndef TESTS_SERVER_FAKE_HTTP_H
#define TESTS_SERVER_FAKE_HTTP_H

#include <stdbool.h>
#include <stddef.h>

#include "server/http/http.h"
#include "server/json/buffer.h"

struct http_exchange {
    const char *method, *path, *authorization, *api_key, *body;
    const char *arguments[4][2]; /* names and values; NULL after the last one */
    char *content_type;
    struct buffer headers; /* "Name: value\n" */
    struct buffer out;
    unsigned status;
    bool begun, completed, gone, kept;
    http_gone on_gone;
    void *user;
};

void fake_http_leave(struct http_exchange *exchange); /* the client goes */
void fake_http_fini(struct http_exchange *exchange);

#endif
