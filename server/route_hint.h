/* route_hint.h - the route that a path without one likely means.
 *
 * Base URLs are joined with paths in many ways: without /v1, with it twice, below another prefix.
 * Words are misspelt.  The route is named and not answered: one route has one address, in logs, in
 * metrics and for proxies that decide by it.
 *
 * Thread: any.  Memory: none. */
#ifndef SERVER_ROUTE_HINT_H
#define SERVER_ROUTE_HINT_H

#include <stddef.h>

struct route;

/* Returns the route's path as it is written for people, or NULL where none is likely. */
const char *route_hint(const struct route *routes, size_t n, const char *path);
/* Returns what a path of another server is for, if quire has nothing of the kind: "embeddings". */
const char *route_absent(const char *path);

#endif
