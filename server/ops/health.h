/* health.h - routes for supervisors and load balancers: /health, /live, /ready, /version, /metrics.
 *
 *   /live    200 while the process answers at all
 *   /health  503 while the model is being loaded, and once the engine has failed for good
 *   /ready   503 also while the server drains: send it no new requests
 *
 * Thread: loop.  Memory: none. */
#ifndef SERVER_OPS_HEALTH_H
#define SERVER_OPS_HEALTH_H

#include <stdbool.h>

struct api_error;
struct server;

/* Describes the refusal of what needs the model, which is being loaded.  Returns ERR_INVALID. */
int health_refuse_loading(struct api_error *err);

/* Tells what /live does: no step has taken longer than --step-timeout. */
bool health_is_live(const struct server *server);

#endif
