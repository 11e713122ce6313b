/* routes.c - see routes.h. */
#include "server/routes.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "server/api/auth.h"
#include "server/api/browsers.h"
#include "server/api/conversation/request.h"
#include "server/api/handlers.h"
#include "server/api/messages/request.h"
#include "server/api/reply.h"
#include "server/api/responses/request.h"
#include "server/api/server.h"
#include "server/http/http.h"
#include "server/json/buffer.h"
#include "server/openapi.h"
#include "server/ops/health.h"
#include "server/route_hint.h"

static void openapi_handle(struct server *server, struct http_exchange *exchange);

static const struct route routes[] = {
    {.path = "/v1/completions",
     .method = "POST",
     .handle = openai_completions,
     .tables = completion_tables,
     .required = {"prompt"},
     .answer = "completion",
     .event = "completion_event",
     .about = "A completion."},
    {.path = "/v1/completions/render",
     .method = "POST",
     .handle = openai_render,
     .tables = completion_tables,
     .required = {"prompt"},
     .answer = "rendered_prompts",
     .about = "The token ids of each prompt."},
    {.path = "/v1/chat/completions",
     .method = "POST",
     .handle = chat_completions,
     .tables = chat_tables,
     .required = {"messages"},
     .answer = "chat_completion",
     .event = "chat_completion_event",
     .about = "A chat completion."},
    {.path = "/v1/chat/completions/render",
     .method = "POST",
     .handle = chat_render,
     .tables = chat_tables,
     .required = {"messages"},
     .answer = "rendered_prompt",
     .about = "The token ids of the prompt."},
    {.path = "/v1/messages",
     .method = "POST",
     .handle = messages_create,
     .write_error = messages_write_error,
     .tables = messages_tables,
     .required = {"messages", "max_tokens"},
     .answer = "message",
     .event = "message_event",
     .about = "A message."},
    {.path = "/v1/messages/count_tokens",
     .method = "POST",
     .handle = messages_count,
     .write_error = messages_write_error,
     .tables = messages_tables,
     .required = {"messages"},
     .answer = "message_tokens",
     .about = "The number of the prompt's tokens."},
    {.path = "/v1/responses",
     .method = "POST",
     .handle = responses_create,
     .write_error = responses_write_error,
     .tables = responses_tables,
     .required = {"input"},
     .answer = "response",
     .event = "response_event",
     .about = "A response."},
    {.path = "/v1/responses/",
     .method = "GET",
     .prefix = true,
     .suffix = "/input_items",
     .shown = "/v1/responses/{id}/input_items",
     .handle = responses_items,
     .arguments = &responses_item_arguments,
     .answer = "response_items",
     .about = "The input items of a stored response."},
    {.path = "/v1/responses/",
     .method = "POST",
     .prefix = true,
     .suffix = "/cancel",
     .shown = "/v1/responses/{id}/cancel",
     .handle = responses_cancel,
     .answer = "response",
     .about = "Always an error: no response runs in the background."},
    {.path = "/v1/responses/",
     .method = "GET",
     .prefix = true,
     .shown = "/v1/responses/{id}",
     .handle = responses_show,
     .answer = "response",
     .about = "A stored response."},
    {.path = "/v1/responses/",
     .method = "DELETE",
     .prefix = true,
     .shown = "/v1/responses/{id}",
     .handle = responses_delete,
     .answer = "response_deleted",
     .about = "The response is not stored any more."},
    {.path = "/v1/requests/",
     .method = "POST",
     .prefix = true,
     .shown = "/v1/requests/{id}/cancel",
     .handle = cancel_handle,
     .answer = "cancelled",
     .about = "The request ends with what it has generated."},
    {.path = "/v1/models",
     .method = "GET",
     .handle = models_list,
     .answer = "models",
     .about = "The served model."},
    {.path = "/v1/models/",
     .method = "GET",
     .prefix = true,
     .shown = "/v1/models/{id}",
     .handle = models_show,
     .answer = "model",
     .about = "The served model."},
    {.path = "/tokenize",
     .method = "POST",
     .handle = tokenize_handle,
     .tables = tokenize_tables,
     .answer = "tokens",
     .about = "The token ids of a text or chat."},
    {.path = "/detokenize",
     .method = "POST",
     .handle = detokenize_handle,
     .tables = detokenize_tables,
     .required = {"tokens"},
     .answer = "text",
     .about = "The text of token ids."},
    {.path = "/tokenizer_info",
     .method = "GET",
     .handle = tokenizer_info_handle,
     .answer = "tokenizer_info",
     .about = "Special tokens and the size of the vocabulary."},
    {.path = "/metrics",
     .method = "GET",
     .early = true,
     .scraped = true,
     .handle = health_metrics,
     .content = "text/plain",
     .about = "Metrics for Prometheus."},
    {.path = "/state",
     .method = "GET",
     .early = true,
     .handle = state_handle,
     .answer = "state",
     .about = "What the engine does now."},
    {.path = "/version",
     .method = "GET",
     .early = true,
     .handle = health_version,
     .answer = "version",
     .about = "The version, the commit and the backends."},
    {.path = "/openapi.json",
     .method = "GET",
     .early = true,
     .handle = openapi_handle,
     .answer = "openapi",
     .about = "This description."},
    {.path = "/",
     .method = "GET",
     .early = true,
     .open = true,
     .handle = ui_handle,
     .content = "text/html",
     .about = "A page to chat on."},
    {.path = "/inspect",
     .method = "GET",
     .early = true,
     .open = true,
     .handle = ui_handle,
     .content = "text/html",
     .about = "A page that shows what the server does and keeps."},
    {.path = "/docs",
     .method = "GET",
     .early = true,
     .open = true,
     .handle = ui_handle,
     .content = "text/html",
     .about = "A page that shows this description."},
    {.path = "/ui/",
     .method = "GET",
     .prefix = true,
     .shown = "/ui/{file}",
     .early = true,
     .open = true,
     .handle = ui_handle,
     .content = "*/*",
     .about = "A file of these pages."},
    {.path = "/health",
     .method = "GET",
     .early = true,
     .open = true,
     .handle = health_health,
     .answer = "status",
     .about = "The engine works."},
    {.path = "/live",
     .method = "GET",
     .early = true,
     .open = true,
     .handle = health_live,
     .answer = "status",
     .about = "The process answers."},
    {.path = "/ready",
     .method = "GET",
     .early = true,
     .open = true,
     .handle = health_ready,
     .answer = "status",
     .about = "The server takes requests."},
};
enum { N_ROUTES = sizeof(routes) / sizeof(*routes) };

static void openapi_handle(struct server *server, struct http_exchange *exchange) {
    struct buffer body = {0};
    openapi_write(routes, N_ROUTES, &body);
    reply_json(server, exchange, 200, &body);
}

static bool ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

static bool path_fits(const struct route *route, const char *path) {
    const size_t n = strlen(route->path);
    if (!route->prefix) return strcmp(path, route->path) == 0;
    return strncmp(path, route->path, n) == 0 &&
           (!route->suffix || ends_with(path + n, route->suffix));
}

/* Returns the first route of a path; NULL: there is none. */
static const struct route *find_path(const char *path) {
    for (size_t i = 0; i < N_ROUTES; i++)
        if (path_fits(&routes[i], path)) return &routes[i];
    return NULL;
}

/* Returns the next route of the same path, with another method; NULL: there is none. */
static const struct route *next_method(const struct route *route) {
    const struct route *next = route + 1;
    const bool same = route->shown && next < routes + N_ROUTES && next->shown &&
                      strcmp(next->shown, route->shown) == 0;
    return same ? next : NULL;
}

static bool method_fits(const struct route *route, const char *method) {
    return strcmp(method, route->method) == 0 ||
           (strcmp(method, "HEAD") == 0 && strcmp(route->method, "GET") == 0);
}

/* Returns the route of a path that has the method, else the first one of the path. */
static const struct route *find_route(const struct http_exchange *exchange) {
    const struct route *first = find_path(http_path(exchange)), *route = first;
    while (route && !method_fits(route, http_method(exchange))) route = next_method(route);
    return route ? route : first;
}

/* A path has its methods, HEAD and others; without a route it has those that counters.c knows. */
_Static_assert(3 * N_ROUTES + 8 <= COUNTERS_MAX_HANDLERS, "answers of all routes are counted");

const char *routes_name(const char *path, const char **method) {
    const struct route *first = find_path(path), *route = first;
    if (!first) return NULL;
    while (route && !method_fits(route, *method)) route = next_method(route);
    if (!route) *method = "other";
    return first->shown ? first->shown : first->path;
}

static bool is_open(const struct server *server, const struct route *route) {
    return route && (route->open || (route->scraped && server->open_metrics));
}

/* Refuses a method that the route does not have. */
static int check_method(const struct route *route, struct http_exchange *exchange,
                        struct api_error *err) {
    const char *method = http_method(exchange);
    char allowed[64] = "";
    if (method_fits(route, method)) return 0;
    for (; route; route = next_method(route)) {
        if (*allowed) strcat(allowed, ", ");
        strcat(allowed, strcmp(route->method, "GET") == 0 ? "GET, HEAD" : route->method);
    }
    http_set_header(exchange, "Allow", allowed);
    return api_error_set(err, 405, "method_not_allowed", NULL, "%.32s is not allowed on %.200s",
                         method, http_path(exchange));
}

/* Tells what base URL leads to a route's path: most wrong paths come from a wrong one. */
static const char *base_url_of(const char *path) {
    if (strncmp(path, "/v1/messages", 12) == 0)
        return "; the base URL of Anthropic's clients ends without /v1/";
    return strncmp(path, "/v1/", 4) == 0 ? "; the base URL of OpenAI's clients ends in /v1/" : "";
}

/* Refuses a path without a route, and names the one that is likely meant. */
static int refuse_path(struct http_exchange *exchange, struct api_error *err) {
    const char *path = http_path(exchange);
    const char *what = route_absent(path),
               *meant = what ? NULL : route_hint(routes, N_ROUTES, path);
    if (what)
        return api_error_set(err, 404, "not_found", NULL,
                             "%.200s does not exist: quire has no %s; /openapi.json has the routes",
                             path, what);
    if (meant)
        return api_error_set(err, 404, "not_found", NULL,
                             "%.200s does not exist: %s may be meant%s", path, meant,
                             base_url_of(meant));
    return api_error_set(err, 404, "not_found", NULL,
                         "%.200s does not exist: /openapi.json has the routes", path);
}

/* Refuses a body that is compressed: it would have to be bounded once more, and where clients of
 * this server are, bytes on the wire are cheap. */
static int check_encoding(struct http_exchange *exchange, struct api_error *err) {
    if (!http_body_is_encoded(exchange)) return 0;
    http_set_header(exchange, "Accept-Encoding", "identity");
    return api_error_set(
        err, 415, "unsupported_encoding", NULL,
        "Content-Encoding must be identity or absent: compressed bodies are not read");
}

static int check(const struct server *server, const struct route *route,
                 struct http_exchange *exchange, struct api_error *err) {
    int rc = is_open(server, route) ? 0 : auth_check(server->keys, exchange, err);
    if (!rc && !route) rc = refuse_path(exchange, err);
    if (!rc) rc = check_method(route, exchange, err);
    if (!rc) rc = check_encoding(exchange, err);
    if (!rc && !server->replicas && !route->early) rc = health_refuse_loading(err);
    return rc;
}

bool routes_admit(struct http_exchange *exchange, void *ctx) {
    struct server *server = ctx;
    const struct route *route = find_route(exchange);
    struct api_error err;
    int rc = browsers_check(&server->browsers, exchange, &err);
    if (!rc && browsers_is_preflight(&server->browsers, exchange)) {
        struct buffer nothing = {0};
        reply_text(server, exchange, 204, NULL, &nothing);
        return false;
    }
    if (!rc) rc = check(server, route, exchange, &err);
    if (rc) reply_error_as(server, exchange, &err, route ? route->write_error : NULL);
    return !rc;
}

void routes_handle(struct http_exchange *exchange, void *ctx) {
    find_route(exchange)->handle(ctx, exchange);
}
