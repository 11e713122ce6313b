/* server.h - the state that the routes share: the engine, the transport, the names, the counters.
 *
 * Thread: loop.  Memory: embedded in the program that runs the server (serve.c, tests); strings are
 * borrowed. */
#ifndef SERVER_API_SERVER_H
#define SERVER_API_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "server/api/completion_request.h"
#include "server/api/counters.h"
#include "server/api/job.h"

struct completion;
struct engine;
struct engine_info;
struct http;

struct server {
    uv_loop_t *loop;
    struct http *http;
    struct engine *engine;
    const struct engine_info *info;
    const char *model_name, *api_key; /* api_key NULL: no key is needed */
    int64_t created;                  /* Unix time the model was loaded */
    bool draining;                    /* new completions are refused */
    bool stopped;                     /* the engine accepts no more requests */
    struct request_limits limits;
    struct counters counters;
    struct job_lanes jobs;
    struct completion *completions; /* accepted by the engine and not yet finished */
};

#endif
