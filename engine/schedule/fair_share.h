/* fair_share.h - whose request comes next among equals of priority: start-time fair queueing
 * (Goyal, Vin, Cheng: Start-time Fair Queueing, SIGCOMM 1996) over tenants.
 *
 * A tenant's clock runs ahead with each of its requests by what it is expected to cost, in tokens,
 * divided by the tenant's weight.  A request's tag is its tenant's clock before that, but no
 * earlier than the tag of the request that was admitted last.  Lower tags come first.  So tenants
 * that always have requests get tokens in proportion to their weights, however many requests each
 * of them sends.  A tenant that was idle saves nothing up.  With one tenant it is the order of
 * arrival.
 *
 *   cost = prompt tokens + min(max_tokens, tokens that this tenant's requests generated on average)
 *
 * Thread: engine.  Memory: none beyond the struct; zeroed is ready. */
#ifndef ENGINE_SCHEDULE_FAIR_SHARE_H
#define ENGINE_SCHEDULE_FAIR_SHARE_H

#include <stdint.h>

#include "engine/request/request.h"

/* One tenant. */
struct fair_tenant {
    double clock;      /* cost of its requests so far, in tokens divided by their weights */
    double n_expected; /* tokens that a request generates; 0: nothing is known yet */
};

/* All tenants of an engine. */
struct fair_share {
    double now; /* highest tag of the requests admitted so far */
    struct fair_tenant tenants[REQUEST_MAX_TENANTS];
};

/* Returns the tag of a request that arrives, and advances its tenant's clock by the expected cost.
 * tenant < REQUEST_MAX_TENANTS; weight 0 counts as 1. */
double fair_share_enter(struct fair_share *share, uint32_t tenant, uint32_t weight,
                        uint32_t n_prompt, uint32_t max_tokens);
/* Notes that the request of this tag has been admitted: no later tag is lower. */
void fair_share_admit(struct fair_share *share, double tag);
/* Adds how many tokens a request had generated when it ended to its tenant's average. */
void fair_share_end(struct fair_share *share, uint32_t tenant, uint32_t n_generated);

#endif
