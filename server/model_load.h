/* model_load.h - loads what the server serves while its loop answers: the chat template, patterns,
 * filters, and an engine with the model for each replica.
 *
 *   loop: model_load_begin() ──► pool thread: files, weights, memory ──► loop: done()
 *
 * Thread: loop; only the load itself runs on a thread of the loop's pool.  Memory: the struct owns
 * what was loaded, until model_load_fini(). */
#ifndef SERVER_MODEL_LOAD_H
#define SERVER_MODEL_LOAD_H

#include <stdatomic.h>
#include <uv.h>

#include "engine/base/error.h"
#include "server/api/server.h"
#include "server/settings/chat_template.h"
#include "server/settings/generation.h"
#include "server/settings/offload_setup.h"
#include "server/settings/prefill_setup.h"

struct backend;
struct kv_publishers;
struct options;
struct replicas;

/* The caller sets the first part, and keeps off the rest until done() is called. */
struct model_load {
    const struct options *options;
    const char *model_dir;
    struct backend *const *backends;  /* [options->data_parallel_size] */
    struct kv_publishers *publishers; /* NULL: there are none */
    void (*wake)(void *ctx);          /* engine_config.wake */
    void (*done)(void *ctx);
    void *wake_ctx, *done_ctx;

    struct replicas *replicas; /* NULL: not loaded, and err says why */
    struct error err;
    struct prefill_setup prefill;
    struct offload_setup offload;
    struct chat_template chat;
    struct generation generation;
    struct cache_setting cache;
    atomic_bool stops;
    uv_work_t work;
};

/* Begins to load; the loop must run until done() was called. */
void model_load_begin(struct model_load *load, uv_loop_t *loop);
/* Makes a load that has not ended end early, with ERR_STOPPED, once the weight at hand is
 * loaded. */
void model_load_stop(struct model_load *load);
void model_load_fini(struct model_load *load); /* a zeroed one is allowed */

#endif
