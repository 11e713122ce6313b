/* rank_kills.c - see rank_kills.h. */
#include "tests/engine/rank_kills.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "engine/base/error.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/collective.h"
#include "engine/device/evict.h"
#include "engine/device/host_pool.h"
#include "engine/device/sample.h"
#include "engine/device/select.h"
#include "engine/device/sparse.h"

const char *const rank_kill_names[N_KILLS] = {"a weight is loaded",
                                              "a step begins",
                                              "a product",
                                              "keys are appended",
                                              "a prompt's attention",
                                              "decode attention",
                                              "a sum",
                                              "an exchange",
                                              "logits",
                                              "sampling",
                                              "a graph",
                                              "an eviction",
                                              "a compression",
                                              "a selection",
                                              "the index of a prompt",
                                              "a copy to the host pool",
                                              "results"};

static struct backend *taken;
static const struct backend_ops *sound; /* the backend's own */
static struct backend_ops failing;
static struct collective_ops failing_collective;
static struct evict_ops failing_evict;
static struct select_ops failing_select;
static struct sparse_ops failing_sparse;
static struct host_pool_ops failing_host_pool;
static atomic_uint n_calls[N_KILLS];
static atomic_uint failing_from[N_KILLS]; /* UINT_MAX: never */

/* Counts a call, and says whether it fails. */
static bool fails(const struct backend *be, enum rank_kill kind, struct error *err) {
    const uint32_t number = atomic_fetch_add(&n_calls[kind], 1) + 1;
    if (number < atomic_load(&failing_from[kind])) return false;
    error_set(err, ERR_DEVICE, "rank %u breaks: %s", be->rank, rank_kill_names[kind]);
    return true;
}

static int step_begin(struct backend *be, const struct step *step, struct error *err) {
    return fails(be, KILL_STEP, err) ? ERR_DEVICE : sound->step_begin(be, step, err);
}

static int load_weight(struct backend *be, const struct weight *host, struct weight *out,
                       struct error *err) {
    return fails(be, KILL_LOAD, err) ? ERR_DEVICE : sound->weight_load(be, host, out, err);
}

static int multiply(struct backend *be, const struct linear_args *args, struct error *err) {
    return fails(be, KILL_PRODUCT, err) ? ERR_DEVICE : sound->linear(be, args, err);
}

static int rope_append(struct backend *be, const struct rope_append_args *args, struct error *err) {
    return fails(be, KILL_APPEND, err) ? ERR_DEVICE : sound->rope_append(be, args, err);
}

static int attn_prefill(struct backend *be, const struct attn_args *args, struct error *err) {
    return fails(be, KILL_PROMPT, err) ? ERR_DEVICE : sound->attn_prefill(be, args, err);
}

static int attn_decode(struct backend *be, const struct attn_args *args, struct error *err) {
    return fails(be, KILL_DECODE, err) ? ERR_DEVICE : sound->attn_decode(be, args, err);
}

static int sample_rows(struct backend *be, const struct sample_args *args, struct error *err) {
    return fails(be, KILL_SAMPLE, err) ? ERR_DEVICE : sound->sample(be, args, err);
}

static int collect_results(struct backend *be, uint32_t n_newer, struct error *err) {
    return fails(be, KILL_COLLECT, err) ? ERR_DEVICE : sound->collect(be, n_newer, err);
}

static int add_parts(struct backend *be, const struct sum_args *args, struct error *err) {
    return fails(be, KILL_SUM, err) ? ERR_DEVICE : sound->collective->sum(be, args, err);
}

static int exchange(struct backend *be, const struct exchange_args *args, struct error *err) {
    return fails(be, KILL_EXCHANGE, err) ? ERR_DEVICE : sound->collective->exchange(be, args, err);
}

static int gather_columns(struct backend *be, const struct gather_columns_args *args,
                          struct error *err) {
    return fails(be, KILL_COLUMNS, err) ? ERR_DEVICE
                                        : sound->collective->gather_columns(be, args, err);
}

static int evict_decode(struct backend *be, const struct attn_args *args, struct error *err) {
    return fails(be, KILL_EVICT, err) ? ERR_DEVICE : sound->evict->decode(be, args, err);
}

static int evict_chunk(struct backend *be, const struct attn_args *args, struct error *err) {
    return fails(be, KILL_COMPRESS, err) ? ERR_DEVICE : sound->evict->chunk(be, args, err);
}

static int select_tokens(struct backend *be, const struct select_args *args, struct error *err) {
    return fails(be, KILL_SELECT, err) ? ERR_DEVICE : sound->select->select(be, args, err);
}

static int index_prompt(struct backend *be, const struct sparse_index_args *args,
                        struct error *err) {
    return fails(be, KILL_INDEX, err) ? ERR_DEVICE : sound->sparse->index(be, args, err);
}

static int offload_pages(struct backend *be, const struct offload_args *args, struct error *err) {
    return fails(be, KILL_OFFLOAD, err) ? ERR_DEVICE : sound->host_pool->offload(be, args, err);
}

/* A CUDA graph that is launched again calls no operations. */
static int run_graph(struct backend *be, uint32_t n_rows, graph_body body, void *ctx,
                     struct error *err) {
    if (fails(be, KILL_GRAPH, err)) return ERR_DEVICE;
    return sound->run_graph(be, n_rows, body, ctx, err);
}

void rank_kills_begin(struct backend *be) {
    taken = be;
    sound = be->ops;
    failing = *sound;
    failing_collective = *sound->collective;
    failing_evict = *sound->evict;
    failing_select = *sound->select;
    failing_sparse = *sound->sparse;
    failing_host_pool = *sound->host_pool;
    failing.step_begin = step_begin;
    failing.linear = multiply;
    failing.rope_append = rope_append;
    failing.attn_prefill = attn_prefill;
    failing.attn_decode = attn_decode;
    failing.sample = sample_rows;
    failing.collect = collect_results;
    failing_collective.sum = add_parts;
    failing_collective.exchange = exchange;
    failing_collective.gather_columns = gather_columns;
    failing_evict.decode = evict_decode;
    failing_evict.chunk = evict_chunk;
    failing_select.select = select_tokens;
    failing_sparse.index = index_prompt;
    failing_host_pool.offload = offload_pages;
    failing.weight_load = load_weight;
    failing.run_graph = run_graph;
    failing.collective = &failing_collective;
    failing.evict = &failing_evict;
    failing.select = &failing_select;
    failing.sparse = &failing_sparse;
    failing.host_pool = &failing_host_pool;
    for (int i = 0; i < N_KILLS; i++) {
        atomic_store(&n_calls[i], 0);
        atomic_store(&failing_from[i], UINT_MAX);
    }
    be->ops = &failing;
}

void rank_kills_at(enum rank_kill kind, uint32_t n) {
    atomic_store(&failing_from[kind], atomic_load(&n_calls[kind]) + n);
}

uint32_t rank_kills_calls(enum rank_kill kind) {
    return atomic_load(&n_calls[kind]);
}

void rank_kills_end(void) {
    taken->ops = sound;
}
