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
    if (!best) return NULL;
    return best->shown ? best->shown : best->path;
}
