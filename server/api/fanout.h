/* fanout.h - turns one completion request into the engine's requests: prompts times best_of.
 *
 * Thread: any one.  Memory: the caller owns the array and all in it, until the engine takes
 * them. */
#ifndef SERVER_API_FANOUT_H
#define SERVER_API_FANOUT_H

#include <stdint.h>

struct completion_request;
struct engine_request;
struct error;
struct request_limits;

/* Creates prompts * best_of requests in *out; those of one prompt are adjacent.  Takes the prompts'
 * tokens, which are empty afterwards, unless the request returns token ids: then they are
 * copied. */
int fanout_create(struct engine_request **out, struct completion_request *request,
                  const struct request_limits *limits, struct error *err);
void fanout_destroy(struct engine_request *requests, uint32_t n); /* NULL is allowed */

#endif
