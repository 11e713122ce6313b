/* request_plan.h - what a request comes to: what its sequence will hold, and how its prompt is
 * computed.  engine/admit.h makes it once, for each request that it admits, and hands it on.
 *
 * Thread: any.  Memory: none; patterns are borrowed from the request or the engine. */
#ifndef ENGINE_SCHEDULE_REQUEST_PLAN_H
#define ENGINE_SCHEDULE_REQUEST_PLAN_H

#include "engine/kv/kv_sequence.h"
#include "engine/request/request.h"
#include "engine/schedule/prefill_plan.h"

struct error;
struct sequence_shared;

/* A request's plan. */
struct request_plan {
    struct prefill_plan prefill;
    struct kv_plan kv;
    bool speculates;       /* its next tokens are guessed */
    struct kv_amount most; /* pages and host blocks that the sequence needs at most (kv_most()) */
};

/* Returns the plan of a request whose choices have been checked (admit.h). */
struct request_plan request_plan_make(const struct sequence_shared *shared,
                                      const struct engine_request *request);
/* Checks that the space has as many pages and host blocks in all as the plan's `most`.
 * ERR_TOO_LONG: it can never run. */
int request_plan_check(const struct request_plan *plan, const struct kv_space *space,
                       struct error *err);

#endif
