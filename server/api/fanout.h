/* fanout.h - one completion request as the engine's requests: prompts times best_of.
 *
 * Thread: any one.  Memory: the array and all in it are the caller's, until the engine takes
 * them. */
#ifndef SERVER_API_FANOUT_H
#define SERVER_API_FANOUT_H

#include <stdint.h>

struct completion_request;
struct engine_request;
struct error;
struct request_limits;

/* *out has prompts * best_of requests, those of one prompt side by side. */
int fanout_create(struct engine_request **out, const struct completion_request *request,
                  const struct request_limits *limits, struct error *err);
void fanout_destroy(struct engine_request *requests, uint32_t n); /* NULL is allowed */

#endif
