/* cancel.c - POST /v1/requests/{id}/cancel: ends a request with what it has generated.
 *
 * Only a client with the request's key can: ids that clients choose may be guessed. */
#include "server/api/handlers.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "server/api/auth.h"
#include "server/api/completion.h"
#include "server/api/completions.h"
#include "server/api/reply.h"
#include "server/api/server.h"
#include "server/http/http.h"

/* An id with the prefix that answers give it. */
enum { ID_MAX = REQUEST_ID_MAX + 32 };

/* Copies the id out of the path; returns false where the path has another form. */
static bool id_of(const char *path, char id[ID_MAX + 1]) {
    static const char before[] = "/v1/requests/", behind[] = "/cancel";
    const char *begin = path + sizeof(before) - 1;
    const size_t n = strlen(begin), n_behind = sizeof(behind) - 1;
    if (n <= n_behind || n - n_behind > ID_MAX) return false;
    if (strcmp(begin + n - n_behind, behind) != 0) return false;
    memcpy(id, begin, n - n_behind);
    id[n - n_behind] = 0;
    return true;
}

void cancel_handle(struct server *server, struct http_exchange *exchange) {
    char id[ID_MAX + 1];
    struct api_error err;
    struct buffer body = {0};
    if (!id_of(http_path(exchange), id)) {
        api_error_set(&err, 404, "not_found", NULL,
                      "%.200s does not exist: /v1/requests/{id}/cancel may be meant",
                      http_path(exchange));
        reply_error(server, exchange, &err);
        return;
    }
    const uint32_t n = completions_cancel(
        server, id, auth_client(server->keys, &server->limits.salt_key, exchange));
    if (n == 0) {
        api_error_set(&err, 404, "request_not_found", NULL, "no request has the id '%.200s'", id);
        reply_error(server, exchange, &err);
        return;
    }
    buffer_puts(&body, "{\"id\":");
    buffer_json_string(&body, id, strlen(id));
    buffer_printf(&body, ",\"cancelled\":%u}", n);
    reply_json(server, exchange, 200, &body);
}
