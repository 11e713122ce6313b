/* engine.h - the engine as the server sees it: requests in, events out.
 *
 *   server thread                            engine thread
 *   engine_submit      ──► command queue ──► schedule, step, sample
 *   engine_take_events ◄── event queue   ◄── text, log-probabilities, one final event
 *
 * Thread: engine_create, engine_stop and engine_destroy from one thread at a time; submit, cancel,
 * take_events and stats from any.
 * Memory: the engine owns a request's arrays from a successful submit on.  The caller that takes
 * events owns them and frees each (event.h).  Every submitted request gets exactly one final
 * event. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/device/collective.h"
#include "engine/device/pages.h"
#include "engine/request/event.h"
#include "engine/request/request.h"
#include "engine/schedule/stats.h"

struct attn_pattern;
struct backend;
struct engine;
struct error;
struct grammar_cache;
struct kv_feed;
struct layer_group;
struct model_config;
struct tokenizer;
struct weight_tally;

struct engine_config {
    const char *model_dir;
    struct backend *backend;      /* borrowed; used only by the engine thread after create */
    enum ranks_share ranks_share; /* what the backend's ranks share, if it has several */
    uint32_t max_model_len;       /* prompt + generated tokens; 0: the model's trained context */
    uint32_t max_num_seqs;        /* sequences in one step */
    uint32_t max_batched_tokens;  /* rows in one step */
    uint32_t max_queued;          /* requests waiting beyond the running ones; more get ERR_FULL */
    double device_share;          /* of a device's memory that the engine may use, (0, 1] */
    uint32_t n_replicas;     /* engines that share the system's memory, this one among them; 0: 1 */
    uint64_t kv_cache_bytes; /* 0: what is left of the device's share; of a system's memory, what
                                memory_plan_kv() says */
    enum page_format kv_format;
    bool prefix_caching;
    bool bounded_caches; /* requests may have a bounded KV cache, which makes pages larger */
    bool only_bounded;   /* every request has one, so no whole text needs to fit the KV cache */
    /* Host [n_groups], ascending, borrowed until engine_destroy(): requests may have a policy
     * that selects.  n_groups 0: they may not. */
    const struct layer_group *groups;
    uint32_t n_groups;
    /* For tokens that selecting requests move there, pages of suspended sequences and cached pages;
     * 0: there is no host pool. */
    uint64_t host_pool_bytes;
    /* The host pool keeps 8 bits an element, as it does in any case if page_is_scaled():
     * struct host_pool. */
    bool host_pool_fp8;
    uint32_t max_selected; /* the largest n_selected that requests may ask for */
    /* Experts of at least so many bytes lie in the machine's memory, where the device reads them.
     * EXPERT_OFFLOAD_AUTO: as many as the device has no memory for.  0: none do. */
    uint64_t expert_offload_bytes;
    bool sparse_prefill; /* prompts may be computed sparsely: workspace is planned for it */
    /* Host [n_layers][n_heads] of the model, borrowed until engine_destroy(), for requests without
     * their own.  NULL: such requests are dense. */
    const struct attn_pattern *patterns;
    uint32_t min_sparse_tokens; /* the break-even: under PREFILL_AUTO shorter prompts are dense */
    /* Rows of the longest layer-major prompt, whose activations have a workspace of their own.
     * Longer sparse prompts are computed in chunks.  Longer prompts whose tokens would move and
     * that do not fit the KV cache are refused.  0: enough for max_model_len, but at most a tenth
     * of the device's share, or of the system's available memory.  If this or max_batched_tokens is
     * less than SPARSE_TILE, no prompt is layer-major. */
    uint32_t max_long_rows;
    /* While a sequence generates, prefill chunks are cut so that a step takes no longer, as far as
     * earlier steps allow a forecast.  0: chunks are as large as max_batched_tokens allows. */
    uint32_t max_itl_ms;
    /* A request's tokens and log-probabilities have the same bits whatever else is in the batch.  A
     * backend that has such a mode must have been created in it. */
    bool batch_invariant;
    /* Folder of the tier on disk (kv/disk/disk.h) for what leaves the caches in memory, and the
     * most bytes of its files; NULL: there is none.  It needs prefix_caching. */
    const char *disk_path;
    uint64_t disk_bytes;
    /* Is told of the prefix cache's blocks (kv/kv_feed.h); borrowed until engine_destroy().  NULL:
     * there is no feed.  It needs prefix_caching. */
    struct kv_feed *kv_feed;
    const char *version, *build; /* of the program: another may compute other bits; or NULL */
    bool random_weights;         /* made up, for measurements: the model's config.json is enough */
    const struct weight_format *random_format; /* of these; NULL: bf16 */
    bool unpacks_exactly;                      /* as in struct model_source */
    bool tokens_only; /* no tokenizer is loaded, and events have tokens but no text */
    /* Called by engine_create() while the weights go to the backend, from 0 to total; or NULL.
     * Where it returns false, engine_create() ends with ERR_STOPPED. */
    bool (*load_progress)(void *ctx, uint64_t done, uint64_t total);
    void *load_ctx;
    /* Called on the engine thread when the event queue turns non-empty (uv_async_send). */
    void (*wake)(void *ctx);
    void *wake_ctx;
};

/* The memory plan and the names the server reports; fixed at create. */
struct engine_info {
    uint32_t max_model_len, n_pages;
    uint64_t weight_bytes, kv_bytes, workspace_bytes;
    /* Of the weights, what a decode step reads: all but an embedding that is not also the head. */
    uint64_t step_weight_bytes;
    uint64_t expert_bytes; /* of these, matrices of experts: a step reads those that are used */
    /* Of the weights, experts that lie in the machine's memory, and their layers. */
    uint64_t offloaded_bytes;
    uint32_t n_offloaded_layers;
    uint64_t device_bytes; /* the device's memory; 0: the backend uses the system's */
    /* Of the system's memory, that may be had beside the weights; 0: unknown. */
    uint64_t available_bytes;
    uint64_t other_bytes; /* of the device's memory, used by other processes and the driver */
    uint64_t kv_tokens;   /* tokens that the pool holds over all layers */
    /* Tokens that the pool holds over the layers that may have a budget; UINT64_MAX: there are
     * none. */
    uint64_t budget_tokens;
    uint64_t text_pages; /* pages of a text of max_model_len tokens that is kept whole */
    bool bounded_caches; /* asked for, and the backend supports it */
    bool selections;     /* there are groups, and the backend supports it */
    uint64_t host_pool_bytes, host_pool_tokens; /* 0: there is no host pool */
    uint32_t n_states;        /* slots of recurrent states (kv/checkpoints.h); 0: there are none */
    uint64_t state_bytes;     /* of all of them */
    uint32_t n_stored_states; /* that the host pool's memory has space for, beside its blocks */
    bool sparse_prefill;      /* asked for, and the backend supports it */
    uint32_t long_rows;       /* engine_config.max_long_rows, as planned; 0: none is layer-major */
    uint64_t long_bytes;      /* of the layer-major workspace; part of workspace_bytes */
    const struct weight_tally *weights; /* formats in the files, and what was unpacked */
    const struct model_config *model;
    const struct tokenizer *tokenizer; /* NULL: tokens_only */
    /* A random key for what clients choose and the cache is named by.  With a tier on disk it stays
     * the same. */
    uint64_t salt_key[2];
    struct grammar_cache *grammars; /* NULL: this build, or this model, has none */
    /* The setting of ranks of the server that left files on disk, and this one's, if it finds none
     * of them.  NULL: it may find them. */
    const char *disk_former_ranks, *disk_ranks;
    const char *speculation_excluded; /* what speculation does not go with here; NULL: nothing */
};

/* What one of the ranks that share the model has, and what its thread has spent. */
struct engine_rank {
    uint64_t weight_bytes, kv_bytes, state_bytes, host_pool_bytes;
    /* Seconds in which its thread computed or submitted steps; of these, how many it has waited for
     * other ranks (NAN: not known). */
    double busy_s, waited_s;
};

/* Loads model and tokenizer, plans memory, starts the engine thread.  *out is untouched on failure.
 *
 * ERR_INVALID if
 *   - max_num_seqs is 0, or more than max_batched_tokens;
 *   - max_model_len is more than the model's context;
 *   - there is a disk_path or a kv_feed, but no prefix_caching;
 *   - a pattern of `patterns` is of no known kind, has more columns or pages than sparse.h allows,
 *   or
 *     is PATTERN_FILTERS beside one that is not;
 *   - host_pool_bytes is not 0, but too little for one block;
 *   - a group has layers that the model lacks, that a group before it has, or whose outermost ones
 *     have a window; or there are more than MAX_LAYER_GROUPS.
 * ERR_NOMEM if the memory is too small for what is planned.  Files have errors of their own. */
int engine_create(struct engine **out, const struct engine_config *config, struct error *err);
const struct engine_info *engine_info(const struct engine *engine);

/* Returns ERR_FULL while the queue has no place for so many requests, so that none need be prepared
 * in vain; else 0.  No place is taken by it. */
int engine_check_room(struct engine *engine, uint32_t n_requests, struct error *err);

/* Checks the requests and plans them, as engine_submit() does with those that have no plan: looking
 * at each token of a long prompt need not take the time of the thread that submits.  What a plan
 * was made of must not change after that.  The caller frees plans that are not submitted.  Same
 * errors.  Thread: any. */
int engine_admit(struct engine *engine, struct engine_request *requests, uint32_t n_requests,
                 struct error *err);
/* Submits n_requests requests, all or none.  On success takes ownership of the arrays and writes
 * ids[i]; on failure the caller keeps ownership, but for the plans, which are gone.
 *
 * ERR_FULL: the queue has no place for them.  The other codes say that a request can never run, and
 * err->param names the parameter; of sampling parameters only the text does.
 *
 * ERR_INVALID if
 *   - the prompt is empty, or has a token that the vocabulary lacks;
 *   - a sampling parameter is outside its bounds (sampling.h);
 *   - its KV policy contradicts itself, or needs what the engine lacks (kv/plan.h);
 *   - prefill.dense_above is not in [0, 1];
 *   - it has patterns like those that engine_create() refuses;
 *   - it is PREFILL_SPARSE, and the engine has no sparse_prefill, or neither has patterns;
 *   - it is PREFILL_SPARSE with a KV policy that needs all pairs of row and key (dense_rule).
 *     Others may have a sparse prompt: a budget that is cut after the whole prompt, for one;
 *   - its patterns are PATTERN_FILTERS, and there are no groups, a layer evicts, or it has
 *   no_reuse; - it wants to be told what is kept, a layer evicts or selects, and the device runs
 *   ahead; - it asks for speculation, and has what speculation does not go with
 *   (speculation_rules.h).
 * ERR_TOO_LONG if
 *   - it keeps all tokens, and prompt and max_tokens exceed max_model_len or the KV cache;
 *   - it is PREFILL_SPARSE, and its prompt exceeds max_model_len, whatever it keeps;
 *   - it is PREFILL_SPARSE with no_reuse, and the workspace of layer-major prompts is too small. */
int engine_submit(struct engine *engine, struct engine_request *requests, uint32_t n_requests,
                  uint64_t *ids, struct error *err);
/* Cancels a request; ignores unknown ids.  Its final event follows, with FINISH_CANCELLED unless
 * the request ended first. */
void engine_cancel(struct engine *engine, uint64_t request_id);

/* Takes all events, oldest first; NULL when there are none. */
struct engine_event *engine_take_events(struct engine *engine);

void engine_stats(struct engine *engine, struct engine_stats *out);
/* Returns how many ranks share the model, at least 1, and tells of one.  Thread: any. */
uint32_t engine_n_ranks(const struct engine *engine);
void engine_rank(const struct engine *engine, uint32_t rank, struct engine_rank *out);
bool engine_healthy(struct engine *engine); /* false after a sticky backend error */
/* Returns the seconds that the step at hand has taken so far; 0 while no step runs. */
double engine_step_seconds(struct engine *engine);
/* Returns the code of the sticky backend error and copies it to *out; 0 while there is none. */
int engine_failure(struct engine *engine, struct error *out);

/* Returns how many reads and writes of the tier on disk the system has refused so far, and copies
 * the newest reason to *out.  They cost only hits. */
uint64_t engine_disk_failure(struct engine *engine, struct error *out);

/* Makes engine_stop() save nothing to the tier on disk, for an end at once.  Thread: any. */
void engine_skip_saving(struct engine *engine);
/* Cancels every request, saves what is cached to the tier on disk (for a few seconds at most), and
 * joins the engine thread; final events can still be taken. */
void engine_stop(struct engine *engine);
void engine_destroy(struct engine *engine); /* NULL is allowed; stops first */

#endif
