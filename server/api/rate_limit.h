/* rate_limit.h - how many tokens a minute an API key may use: a token bucket.
 *
 * The bucket holds what one minute allows, and fills at that rate.  A request is accepted while
 * anything is left, and takes what it turned out to use: its prompt when it starts, and what it
 * generated when it ends.  So the bucket may go below zero, and later requests wait for that.
 *
 * Thread: loop.  Memory: none beyond the struct; zeroed is a full bucket. */
#ifndef SERVER_API_RATE_LIMIT_H
#define SERVER_API_RATE_LIMIT_H

#include <stdint.h>

struct rate_limit {
    double used; /* tokens that are missing from a full bucket */
    uint64_t at_ms;
};

/* Returns how many seconds remain until the bucket has a token, rounded up; 0: it has one.
 * per_minute: 0 is no limit. */
uint32_t rate_limit_wait(struct rate_limit *rate, uint64_t per_minute, uint64_t now_ms);
void rate_limit_take(struct rate_limit *rate, uint64_t n_tokens);

#endif
