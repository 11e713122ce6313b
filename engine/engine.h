/* engine.h - the engine as the server sees it: requests in, events out.
 *
 *   server thread                       engine thread
 *   engine_submit ──► command queue ──► schedule, step, sample
 *   engine_events ◄── event queue  ◄── text, log-probabilities, one final event
 *
 * Thread: engine_create, engine_stop and engine_destroy from one thread; submit, cancel, events and
 * stats from any.
 * Memory: a request's arrays are owned by the engine from a successful submit on; events are owned
 * by whoever took them, who frees each (event.h).  Every submitted request gets exactly one
 * final event. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/device/backend.h"
#include "engine/request/event.h"
#include "engine/request/request.h"
#include "engine/schedule/stats.h"

struct engine;
struct error;
struct tokenizer;
struct model_config;

struct engine_config {
    const char *model_dir;
    struct backend *backend;     /* borrowed; used only by the engine thread after create */
    uint32_t max_model_len;      /* prompt + generated tokens; 0: the model's trained context */
    uint32_t max_num_seqs;       /* sequences in one step */
    uint32_t max_batched_tokens; /* rows in one step */
    uint32_t max_queued;         /* requests waiting beyond the running ones; more get ERR_FULL */
    double device_share; /* of a device's memory that the engine may use, (0, 1] */
    uint64_t kv_cache_bytes; /* 0: what is left of the device's share; of a system's memory a stated
                                share, bounded by use */
    enum dtype kv_dtype;
    bool prefix_caching;
    bool bounded_caches; /* requests may have a bounded KV cache: pages are larger for it */
    bool only_bounded;   /* and have no other, so that no whole text needs to fit the KV cache */
    /* Host [n_groups], ascending, borrowed until engine_destroy(): requests may have the policy
     * KV_OFFLOAD.  n_groups 0: they may not. */
    const struct layer_group *groups;
    uint32_t n_groups;
    uint64_t host_pool_bytes; /* of the system's memory, for what KV_OFFLOAD moves there, for the
                                pages of sequences that wait, and for cached ones; 0: nothing goes
                                there */
    bool host_pool_fp8;       /* KV_OFFLOAD's tokens are kept in 8 bits an element, as they are in
                                any case where kv_dtype has no more: struct host_pool */
    uint32_t max_selected;   /* of KV_OFFLOAD: the largest n_selected that requests may ask for */
    bool sparse_prefill; /* prompts may be computed sparsely: room is planned for it */
    /* Host [n_layers][n_heads] of the model, borrowed until engine_destroy(), for requests without
     * their own.  NULL: those are dense. */
    const struct attn_pattern *patterns;
    uint32_t min_sparse_tokens; /* under PREFILL_AUTO shorter prompts are dense: the break-even */
    /* Rows of the longest prompt that is computed layer by layer, its activations in a room of
     * their own; sparse prompts with more rows are computed in chunks, and of KV_OFFLOAD those that
     * do not fit the KV cache are refused.  0: enough for
     * max_model_len, but at most a tenth of the device's share (of a system's memory, of what is
     * available).  Less than SPARSE_TILE, as of max_batched_tokens: no such room. */
    uint32_t max_long_rows;
    /* While anybody generates, pieces of prompts are cut so that a step takes no longer, as far as
     * earlier ones tell.  0: they are as large as max_batched_tokens allows. */
    uint32_t max_itl_ms;
    /* A request's tokens and log-probabilities have the same bits whatever runs beside it; the
     * backend must have been created for it, too, where it can be told. */
    bool batch_invariant;
    bool random_weights; /* made up, for measurements: the model's config.json is enough */
    bool tokens_only;    /* no tokenizer is loaded, and events have tokens but no text */
    /* Called by engine_create() while the weights go to the backend, from 0 to total; or NULL. */
    void (*load_progress)(void *ctx, uint64_t done, uint64_t total);
    void *load_ctx;
    /* Called on the engine thread when the event queue turns non-empty (uv_async_send). */
    void (*wake)(void *ctx);
    void *wake_ctx;
};

/* The memory plan and the names the server reports; fixed at create. */
struct engine_info {
    uint32_t max_model_len, n_pages;
    uint64_t weight_bytes, kv_bytes, workspace_bytes;
    uint64_t device_bytes; /* 0: the system's memory */
    uint64_t other_bytes;  /* of the device, in use besides: other processes', the driver's */
    uint64_t kv_tokens;     /* tokens that the pool holds over all layers */
    uint64_t text_pages;    /* that a text of max_model_len tokens takes, which is kept whole */
    bool bounded_caches;    /* asked for, and the backend can */
    bool selections;        /* KV_OFFLOAD: there are groups, and the backend can */
    uint64_t host_pool_bytes, host_pool_tokens; /* of the store in the system's memory; 0: there is none */
    bool sparse_prefill;    /* asked for, and the backend can */
    uint32_t long_rows;     /* engine_config.max_long_rows, as planned; 0: no such room */
    uint64_t long_bytes;    /* of that room; part of workspace_bytes */
    const struct model_config *model;
    const struct tokenizer *tokenizer; /* NULL: tokens_only */
};

/* Loads model and tokenizer, plans memory, starts the engine thread. */
int engine_create(struct engine **out, const struct engine_config *config, struct error *err);
const struct engine_info *engine_info(const struct engine *engine);

/* ERR_FULL: the queue is full (n_requests are accepted all or none).  ERR_TOO_LONG and ERR_INVALID:
 * the request can never run (text says why); max_model_len is for requests that keep everything.
 * PREFILL_SPARSE is ERR_INVALID where it cannot be had: without sparse_prefill or patterns, with a
 * bounded cache, with log-probabilities of the prompt; with no_reuse a prompt is ERR_TOO_LONG that
 * cannot go layer by layer.  On success takes the arrays and writes ids[i]; on failure ownership
 * stays with the caller. */
int engine_submit(struct engine *engine, struct engine_request *requests, uint32_t n_requests,
                  uint64_t *ids, struct error *err);
/* The request's final event follows (FINISH_CANCELLED unless it ended first).  Unknown ids are
 * ignored. */
void engine_cancel(struct engine *engine, uint64_t request_id);

/* Takes all events, oldest first; NULL when there are none. */
struct engine_event *engine_take_events(struct engine *engine);

void engine_stats(struct engine *engine, struct engine_stats *out);
bool engine_healthy(struct engine *engine); /* false after a sticky backend error */
/* Copies that error, and returns its code; 0 before. */
int engine_failure(struct engine *engine, struct error *out);

/* Cancels everything, joins the engine thread (final events stay to be taken). */
void engine_stop(struct engine *engine);
void engine_destroy(struct engine *engine); /* NULL is allowed; stops first */

#endif
