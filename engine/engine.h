/* engine.h - the engine as the server sees it: requests in, events out.
 *
 *   server thread                       engine thread
 *   engine_submit ──► command queue ──► schedule, step, sample
 *   engine_events ◄── event queue  ◄── text, log-probabilities, one final event
 *
 * Thread: engine_create, engine_stop and engine_destroy from one thread; submit, cancel, events and
 * stats from any.
 * Memory: a request's arrays are owned by the engine from a successful submit on; events are owned
 * by whoever took them.  Every submitted request gets exactly one final event. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/backend.h"
#include "engine/kv_choice.h"
#include "engine/prefill_choice.h"

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
    uint64_t kv_store_bytes; /* of the system's memory, for what KV_OFFLOAD moves there, for the
                                pages of sequences that wait, and for cached ones; 0: nothing goes
                                there */
    bool kv_store_fp8;       /* KV_OFFLOAD's tokens are kept in 8 bits an element, as they are in
                                any case where kv_dtype has no more: struct kv_store */
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
    uint64_t store_bytes, store_tokens; /* of the store in the system's memory; 0: there is none */
    bool sparse_prefill;    /* asked for, and the backend can */
    uint32_t long_rows;     /* engine_config.max_long_rows, as planned; 0: no such room */
    uint64_t long_bytes;    /* of that room; part of workspace_bytes */
    const struct model_config *model;
    const struct tokenizer *tokenizer; /* NULL: tokens_only */
};

/* What became of a request's text, in each KV head of each layer. */
struct kv_usage {
    uint32_t n_resident; /* tokens in the cache at the end */
    uint64_t n_evicted;  /* tokens that left it */
    float kept_mass;     /* struct keep_total */
    uint32_t n_offloaded; /* of the resident ones, in sparse layers in the system's memory only */
    uint64_t n_chosen, n_fetched, n_copies; /* struct select_total, over all steps */
};

/* Everything that shapes a request's output.  sampling_defaults() gives the OpenAI defaults. */
struct sampling_params {
    float temperature, top_p, min_p; /* 1, 1, 0 */
    uint32_t top_k;                  /* 0: off */
    float repetition_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0 */
    struct logit_bias *bias; /* owned */
    uint32_t n_bias;
    bool has_seed;
    uint64_t seed;
    uint32_t max_tokens; /* >= 0; 0 only scores the prompt */
    uint32_t min_tokens;
    uint32_t *stop_tokens; /* owned */
    uint32_t n_stop_tokens;
    char **stop; /* owned array of owned strings */
    uint32_t n_stop;
    bool ignore_eos, include_stop, skip_special;
    int32_t n_logprobs;        /* -1: none; else top-n per generated token, <= SAMPLE_MAX_TOP */
    int32_t n_prompt_logprobs; /* -1: none; else per prompt token */
};

struct engine_request {
    uint32_t *prompt; /* owned, [n_prompt], n_prompt >= 1 */
    uint32_t n_prompt;
    struct sampling_params params;
    struct kv_choice kv;
    struct prefill_choice prefill;
    /* Sequences share cached prefixes only within one salt; 0: the common one. */
    uint64_t cache_salt;
    int32_t priority;    /* lower runs first; ties by arrival */
    void *user;          /* returned with every event */
};

enum finish_reason { FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_ERROR };

/* What is known of one token.  top points into the event. */
struct token_info {
    uint32_t token;
    float logprob; /* NAN: not asked for, or the first prompt token */
    uint32_t n_top;
    const struct token_logprob *top;
};

enum event_kind {
    /* Prompt log-probabilities: tokens = every prompt token, before any other event. */
    EVENT_PROMPT,
    EVENT_TEXT,   /* generated text and the tokens that completed since the last event */
    EVENT_FINISH  /* the one final event; may carry the last text and tokens, too */
};

struct engine_event {
    struct engine_event *next;
    uint64_t request_id;
    void *user;
    enum event_kind kind;
    char *text; /* UTF-8, whole characters, NUL-terminated; may be empty, never NULL */
    size_t text_length;
    struct token_info *tokens;
    uint32_t n_tokens;
    /* EVENT_FINISH */
    enum finish_reason reason;
    bool stopped_by_string;      /* FINISH_STOP because of stop[stop_index] */
    bool stopped_by_token;       /* FINISH_STOP because of an explicit stop_token_id (stop_token) */
    uint32_t stop_index, stop_token;
    uint32_t n_prompt, n_generated, n_cached; /* tokens; cached = found in the prefix cache */
    struct kv_usage kv;
    struct prefill_usage prefill;
    int error_code;              /* FINISH_ERROR */
    char error_text[256];
};

struct engine_stats {
    uint32_t n_running, n_waiting, pages_free, pages_cached, pages_total;
    uint64_t n_submitted, n_finished, n_cancelled, n_failed, n_preempted;
    uint64_t prompt_tokens, cached_tokens, generated_tokens, n_steps;
    /* By policy, as in struct kv_usage: of all requests so far, and of those that run now. */
    uint64_t kv_evicted[KV_N_TYPES], kv_resident[KV_N_TYPES];
    uint64_t n_chosen, n_fetched, n_copies; /* struct select_total, of all requests so far */
    uint64_t n_moved; /* of n_copies: from the store in the system's memory */
    uint64_t store_used_bytes;    /* of engine_info.store_bytes, but for what is only cached */
    uint32_t pages_stored;        /* that: pages of unused blocks of the prefix cache */
    uint64_t n_swapped_out, n_swapped_in; /* pages that went to the store whole, and came back */
    /* Prompts that began to be computed sparsely, and what such steps visited, by pattern. */
    uint64_t n_sparse;
    struct sparse_totals sparse;
};

struct sampling_params sampling_defaults(void);
void sampling_fini(struct sampling_params *params);

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
void engine_event_free(struct engine_event *event); /* one event, not the list */

void engine_stats(struct engine *engine, struct engine_stats *out);
bool engine_healthy(struct engine *engine); /* false after a sticky backend error */
/* Copies that error, and returns its code; 0 before. */
int engine_failure(struct engine *engine, struct error *out);

/* Cancels everything, joins the engine thread (final events stay to be taken). */
void engine_stop(struct engine *engine);
void engine_destroy(struct engine *engine); /* NULL is allowed; stops first */

#endif
