/* admit.h - decides whether the engine can run a request, and makes the plan that it runs by.
 *
 * Each rule about what a request may ask for stands here or in what this calls: kv_choice_check(),
 * sampling_check(), request_plan_check().  The plan is made once and handed on.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_ADMIT_H
#define ENGINE_ADMIT_H

#include <stdbool.h>

#include "engine/kv/plan.h"

struct attn_pattern;
struct engine_request;
struct error;
struct model_config;
struct request_plan;
struct sequence_shared;

/* What an engine admits requests by; everything is borrowed. */
struct admission {
    const struct model_config *model;
    const struct sequence_shared *shared;
    struct kv_limits kv;
    bool runs_ahead; /* as in struct backend */
};

/* Checks the request and writes its plan.  ERR_INVALID or ERR_TOO_LONG: err says what is wrong, and
 * err->param which parameter that is about. */
int admit(const struct admission *admission, const struct engine_request *request,
          struct request_plan *plan, struct error *err);

/* Checks that a backend's index holds every one of the patterns, host [n_layers][n_heads]; a larger
 * one would fail the step of all requests.  ERR_INVALID. */
int admit_patterns(const struct model_config *model, const struct attn_pattern *patterns,
                   struct error *err);

#endif
