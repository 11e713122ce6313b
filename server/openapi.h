/* openapi.h - GET /openapi.json: every route and every member of its body, as OpenAPI 3.1.
 *
 * It is written from the table of routes and from the tables by which bodies are read, so it cannot
 * tell of a member that no parser knows, or miss one.  What answers look like is in answers.json.
 *
 * Thread: loop.  Memory: the buffer's. */
#ifndef SERVER_OPENAPI_H
#define SERVER_OPENAPI_H

#include <stddef.h>

struct buffer;
struct route;

void openapi_write(const struct route *routes, size_t n, struct buffer *out);

#endif
