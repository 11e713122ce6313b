/* route_hint.c - see route_hint.h. */
#define _GNU_SOURCE /* strcasestr */

#include "server/route_hint.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "engine/base/likeness.h"
#include "server/routes.h"

/* How likely a route is meant by a path; a path that fits in two ways counts as the more likely. */
enum { NOT_LIKELY, BEGINS, IS_LIKE, ENDS };

/* Routes of Ollama, TGI and SGLang that no likeness leads from, and ours. */
static const char *const others[][2] = {
    {"/api/chat", "/v1/chat/completions"},
    {"/api/generate", "/v1/completions"},
    {"/generate", "/v1/completions"},
    {"/generate_stream", "/v1/completions"},
    {"/api/tags", "/v1/models"},
    {"/api/ps", "/v1/models"},
    {"/api/version", "/version"},
    {"/info", "/v1/models"},
    {"/props", "/v1/models"},
    {"/slots", "/state"},
    {"/apply-template", "/v1/chat/completions/render"},
    {"/get_model_info", "/v1/models"},
    {"/server_info", "/v1/models"},
    {"/abort_request", "/v1/requests/{id}/cancel"},
};

/* How paths end of what quire has nothing of. */
static const char *const absent[][2] = {
    {"/embeddings", "embeddings"},
    {"/embedding", "embeddings"},
    {"/embed", "embeddings"},
    {"/pooling", "embeddings"},
    {"/rerank", "rankings"},
    {"/reranking", "rankings"},
    {"/score", "scores of pairs"},
    {"/classify", "classes"},
    {"/moderations", "moderation"},
    {"/audio/transcriptions", "speech"},
    {"/audio/speech", "speech"},
    {"/images/generations", "images"},
    {"/batches", "batches"},
    {"/files", "files"},
    {"/fine_tuning/jobs", "fine-tuning"},
    {"/infill", "filling in the middle"},
    {"/load_lora_adapter", "adapters"},
    {"/lora-adapters", "adapters"},
};

/* Returns the part of a path behind the versions in front of it. */
static const char *behind_version(const char *path) {
    while (strncasecmp(path, "/v1/", 4) == 0) path += 3;
    return path;
}

static bool ends_with(const char *path, const char *end) {
    const size_t n = strlen(path), n_end = strlen(end);
    return n >= n_end && strcasecmp(path + n - n_end, end) == 0;
}

static bool is_like(const char *a, const char *b) {
    return likeness_distance(a, b) <= likeness_most(b);
}

static int likelihood(const struct route *route, const char *path) {
    const char *name = behind_version(route->path), *given = behind_version(path);
    const size_t n = strlen(given);
    if (strcmp(name, "/") == 0) return NOT_LIKELY;
    if (route->prefix) return strcasestr(path, name) ? IS_LIKE : NOT_LIKELY;
    if (ends_with(path, name)) return ENDS;
    if (is_like(path, route->path) || is_like(given, name)) return IS_LIKE;
    return n > 1 && strncasecmp(name, given, n) == 0 && name[n] == '/' ? BEGINS : NOT_LIKELY;
}

const char *route_hint(const struct route *routes, size_t n, const char *path) {
    const struct route *best = NULL;
    int most = NOT_LIKELY;
    size_t length = 0;
    for (size_t i = 0; i < n; i++) {
        const int how = likelihood(&routes[i], path);
        /* Of two ends of the path the longer one; of others the first route. */
        const size_t as_long = how == ENDS ? strlen(routes[i].path) : 0;
        if (how < most || (how == most && (how != ENDS || as_long <= length))) continue;
        best = &routes[i];
        most = how;
        length = as_long;
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
        if (strcasecmp(path, others[i][0]) == 0) return others[i][1];
    if (!best) return NULL;
    return best->shown ? best->shown : best->path;
}

const char *route_absent(const char *path) {
    for (size_t i = 0; i < sizeof(absent) / sizeof(*absent); i++)
        if (ends_with(path, absent[i][0])) return absent[i][1];
    return NULL;
}
