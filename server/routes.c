/* routes.c - see routes.h. */
#include "server/routes.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "server/api/auth.h"
#include "server/api/chat/chat.h"
#include "server/api/openai.h"
#include "server/api/reply.h"
#include "server/api/server.h"
#include "server/http/http.h"
#include "server/json/api_error.h"
#include "server/ops/health.h"
#include "server/ops/models.h"
#include "server/ops/tokenize.h"

typedef void (*route_handler)(struct server *server, struct http_exchange *exchange);

struct route {
    const char *path;
    const char *method; /* GET is also HEAD */
    bool prefix;        /* matches every path that begins with it */
    bool open;          /* needs no key */
    route_handler handle;
};

static const struct route routes[] = {
    {"/v1/completions", "POST", false, false, openai_completions},
    {"/v1/chat/completions", "POST", false, false, chat_completions},
    {"/v1/models", "GET", false, false, models_list},
    {"/v1/models/", "GET", true, false, models_show},
    {"/tokenize", "POST", false, false, tokenize_handle},
    {"/detokenize", "POST", false, false, detokenize_handle},
    {"/tokenizer_info", "GET", false, false, tokenizer_info_handle},
    {"/metrics", "GET", false, false, health_metrics},
    {"/version", "GET", false, false, health_version},
    {"/health", "GET", false, true, health_health},
    {"/live", "GET", false, true, health_live},
    {"/ready", "GET", false, true, health_ready},
};

static const struct route *find_route(const char *path) {
    for (size_t i = 0; i < sizeof(routes) / sizeof(*routes); i++) {
        const struct route *route = &routes[i];
        const bool same = route->prefix ? strncmp(path, route->path, strlen(route->path)) == 0
                                        : strcmp(path, route->path) == 0;
        if (same) return route;
    }
    return NULL;
}

static bool method_fits(const struct route *route, const char *method) {
    return strcmp(method, route->method) == 0 ||
           (strcmp(method, "HEAD") == 0 && strcmp(route->method, "GET") == 0);
}

bool routes_admit(struct http_exchange *exchange, void *ctx) {
    struct server *server = ctx;
    const char *method = http_method(exchange), *path = http_path(exchange);
    const struct route *route = find_route(path);
    struct api_error err;
    if ((!route || !route->open) &&
        auth_check(server->api_key, http_header(exchange, "Authorization"), &err)) {
        reply_error(server, exchange, &err);
    } else if (!route) {
        api_error_set(&err, 404, "not_found", NULL, "%.200s does not exist", path);
        reply_error(server, exchange, &err);
    } else if (!method_fits(route, method)) {
        api_error_set(&err, 405, "method_not_allowed", NULL, "%.32s is not allowed on %.200s",
                      method, path);
        http_set_header(exchange, "Allow",
                        strcmp(route->method, "GET") == 0 ? "GET, HEAD" : route->method);
        reply_error(server, exchange, &err);
    } else {
        return true;
    }
    return false;
}

void routes_handle(struct http_exchange *exchange, void *ctx) {
    find_route(http_path(exchange))->handle(ctx, exchange);
}
