/* sparse.c - sparse prefill on the host: memory for one layer's index, and the operations.
 *
 *   index         scores, select, lists, pages, rule: cuda/attention/sparse/sparse_index.h
 *   choose        token scores by all of a chunk's rows (kv/token_scores.cu), select
 *   attn_prefill  reads the index until the next index() or choose(): attention.cu
 *   totals        what has been added up on the device since the last call
 *
 * Memory: one block (layout.c), laid out anew by every index().  It is reserved for the longest
 * prompt with the largest patterns that a request may ask for: growing later could fail,
 * because the rest of the device's memory is in use.  It grows only without a reservation. */
#include "cuda/attention/sparse/sparse_index.h"
#include "cuda/host/internal.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/attention/sparse/sparse_test.h"
#include "cuda/kv/observe.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/layer_group.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"
#include "engine/device/step.h"

static int account_open(struct cuda_backend *cuda, struct error *err) {
    if (cuda->sparse.account) return 0;
    int rc = device_alloc(cuda, sizeof(struct sparse_account), (void **)&cuda->sparse.account, err);
    return rc ? rc
              : cuda_check(cuda,
                           cudaMemsetAsync(cuda->sparse.account, 0, sizeof(struct sparse_account),
                                           cuda->stream),
                           "clearing totals", err);
}

int sparse_memory_reserve(struct cuda_backend *cuda, const struct step_limits *limits,
                          struct error *err) {
    if (!limits->sparse) return 0;
    const uint32_t n_slots = limits->sparse->max_slots;
    const struct sparse_shape shape = {.n_heads = limits->n_heads,
                                       .n_kv_heads = limits->n_kv_heads,
                                       .head_dim = limits->head_dim,
                                       .n_rows = limits->sparse->max_rows,
                                       .n_slots = n_slots,
                                       .max_columns = min_u32(SPARSE_MAX_COLUMNS, n_slots),
                                       .max_pages = SPARSE_MAX_PAGES};
    struct sparse_build build = {0};
    int rc = account_open(cuda, err);
    return rc ? rc
              : device_reserve(cuda, &cuda->sparse.memory, &cuda->sparse.bytes,
                               sparse_lay_out(&build, &shape, NULL), err);
}

void sparse_memory_free(struct cuda_backend *cuda) {
    cudaFree(cuda->sparse.memory);
    cudaFree(cuda->sparse.account);
}

uint32_t sparse_first_dense_tile(const struct attn_sparse *sparse) {
    if (sparse->dense_from >= sparse->first_slot + sparse->n_rows)
        return (uint32_t)div_up(sparse->n_rows, SPARSE_TILE);
    if (sparse->dense_from < sparse->first_slot) return 0;
    return (sparse->dense_from - sparse->first_slot) / SPARSE_TILE;
}

/* Returns the patterns [n_heads], on the host, of the layer that is indexed. */
static const struct attn_pattern *layer_patterns(const struct sparse_index_args *args,
                                                 const struct attn_sparse *sparse) {
    return sparse->patterns + (size_t)args->layer * args->n_heads;
}

static bool has_kind(const struct attn_pattern *patterns, uint32_t n_heads,
                     enum attn_pattern_kind kind) {
    for (uint32_t i = 0; i < n_heads; i++)
        if (patterns[i].kind == kind) return true;
    return false;
}

/* ---- the operations ---- */

/* Returns the largest p1 that heads of a kind ask for. */
static uint32_t most_p1(const struct attn_pattern *patterns, uint32_t n_heads,
                        enum attn_pattern_kind kind) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < n_heads; i++)
        if (patterns[i].kind == kind && patterns[i].p1 > most) most = patterns[i].p1;
    return most;
}

static int shape_of(const struct sparse_index_args *args, const struct step_seq *seq,
                    struct sparse_shape *out, struct error *err) {
    const struct attn_sparse *sparse = seq->sparse;
    const struct attn_pattern *patterns = layer_patterns(args, sparse);
    const uint32_t n_columns = most_p1(patterns, args->n_heads, PATTERN_VERTICAL_SLASH),
                   n_pages = most_p1(patterns, args->n_heads, PATTERN_BLOCK_SPARSE);
    const uint64_t n_slots = (uint64_t)sparse->first_slot + sparse->n_rows;
    if (n_columns > SPARSE_MAX_COLUMNS || n_pages > SPARSE_MAX_PAGES)
        return error_set(err, ERR_UNSUPPORTED,
                         "cuda: a pattern asks for %u vertical lines and %u pages; at most %d and "
                         "%d are supported",
                         n_columns, n_pages, SPARSE_MAX_COLUMNS, SPARSE_MAX_PAGES);
    if (sparse->n_rows == 0 || sparse->first_slot % PAGE_TOKENS != 0 ||
        n_slots > seq->layers[args->layer].n_slots)
        return error_set(err, ERR_INVALID, "cuda: %u rows from slot %u on cannot be indexed",
                         sparse->n_rows, sparse->first_slot);
    *out = (struct sparse_shape){
        .n_heads = args->n_heads,
        .n_kv_heads = args->kv->n_kv_heads,
        .head_dim = args->kv->head_dim,
        .n_rows = sparse->n_rows,
        .n_slots = (uint32_t)n_slots,
        .max_columns = min_u32(max_u32(n_columns, SPARSE_MIN_COLUMNS), (uint32_t)n_slots),
        .max_pages = n_pages};
    return 0;
}

static size_t patterns_bytes(const struct sparse_index_args *args) {
    return round_up(args->n_heads * sizeof(struct attn_pattern), ARGS_ALIGNMENT);
}

/* Returns the densities' space, after the patterns. */
static struct args densities_of(const struct sparse_index_args *args, const struct args *room) {
    return args_behind(room, patterns_bytes(args));
}

/* Sends the patterns, and takes space after them for the densities. */
static int send_patterns(struct cuda_backend *cuda, const struct sparse_index_args *args,
                         const struct attn_sparse *sparse, struct args *room, struct error *err) {
    const size_t bytes = patterns_bytes(args);
    int rc = args_take(cuda, bytes + args->n_heads * sizeof(float), room, err);
    if (rc) return rc;
    memcpy(room->host, layer_patterns(args, sparse), args->n_heads * sizeof(*sparse->patterns));
    return args_send(cuda, room, room->device, bytes, err);
}

static cudaError_t launch_all(const struct sparse_build *b, const struct attn_pattern *patterns,
                              struct launch launch) {
    const uint32_t n = b->view.n_heads;
    cudaError_t code = launch_sparse_stamp(b->account, SPARSE_BEGINS, launch);
    if (has_kind(patterns, n, PATTERN_VERTICAL_SLASH)) {
        if (code == cudaSuccess && !b->synthetic) code = launch_sparse_scores(b, launch);
        if (code == cudaSuccess) code = launch_sparse_select(b, launch);
    }
    if (code == cudaSuccess) code = launch_sparse_lists(b, launch);
    if (code == cudaSuccess && has_kind(patterns, n, PATTERN_BLOCK_SPARSE))
        code = launch_sparse_pages(b, launch);
    if (code == cudaSuccess) code = launch_sparse_rule(b, launch);
    if (code == cudaSuccess) code = launch_sparse_stamp(b->account, SPARSE_INDEX_ENDS, launch);
    return code;
}

static int find_seq(const struct step *step, uint32_t *seq, struct error *err) {
    for (uint32_t i = step->n_decode; i < step->n_seqs; i++) {
        *seq = i;
        if (step->seqs[i].sparse) return 0;
    }
    return error_set(err, ERR_INVALID, "cuda: no sequence of the step is sparse");
}

static int prepare(struct cuda_backend *cuda, const struct sparse_index_args *args,
                   struct sparse_build *b, struct args *room, struct error *err) {
    struct prompt_view view;
    const struct step_seq *seq = &cuda->host_step->seqs[b->seq];
    const struct attn_sparse *sparse = seq->sparse;
    struct sparse_shape shape;
    int rc = shape_of(args, seq, &shape, err);
    if (!rc) rc = account_open(cuda, err);
    if (!rc)
        rc = device_reserve(cuda, &cuda->sparse.memory, &cuda->sparse.bytes,
                            sparse_lay_out(b, &shape, NULL), err);
    if (!rc) rc = send_patterns(cuda, args, sparse, room, err);
    if (!rc) rc = prompt_copies_open(cuda, args->kv, args->layer, NULL, &view, err);
    if (rc) return rc;
    b->patterns = (const struct attn_pattern *)room->device;
    if (args->density) b->density = (float *)densities_of(args, room).device;
    sparse_lay_out(b, &shape, cuda->sparse.memory);
    b->view.first_slot = sparse->first_slot;
    b->view.first_dense_tile = sparse_first_dense_tile(sparse);
    b->account = cuda->sparse.account;
    b->kv = view.stored.kv;
    b->step = view.stored.step;
    b->dense_above = sparse->dense_above;
    b->synthetic = sparse->synthetic;
    return 0;
}

static int index_layer(struct backend *be, const struct sparse_index_args *args,
                       struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    struct sparse_build build = {.layer = args->layer,
                                 .q = args->q,
                                 .q_stride = args->q_stride,
                                 .scale = score_scale_of(args->scale, args->softcap),
                                 .sinks = head_sinks_of(args->sinks)};
    struct args room;
    int rc = find_seq(cuda->host_step, &build.seq, err);
    if (!rc) rc = slopes_send(cuda, args->slopes, args->n_heads, err);
    if (args->slopes) build.slopes = cuda->slopes.device;
    build.product_scale = args->scale;
    if (!rc) rc = prepare(cuda, args, &build, &room, err);
    if (rc) return rc;
    cuda->sparse.view = build.view;
    cuda->sparse.group = NULL;
    cuda->sparse.layer = args->layer;
    const struct attn_sparse *sparse = cuda->host_step->seqs[build.seq].sparse;
    rc = cuda_check(cuda, launch_all(&build, layer_patterns(args, sparse), launch_of(cuda)),
                    "indexing a sparse prompt", err);
    if (rc || !args->density) return rc;
    const struct args densities = densities_of(args, &room);
    return results_fetch(cuda, &densities, args->density, args->n_heads * sizeof(float), err);
}

/* ---- what filters choose ---- */

const struct layer_group *filter_group_of(const struct step *step, const struct attn_sparse *sparse,
                                          uint32_t layer) {
    for (uint32_t i = 0; i < sparse->n_groups; i++)
        if (group_has(&sparse->groups[i], step->windows, layer)) return &sparse->groups[i];
    return NULL;
}

bool sparse_has_index(const struct cuda_backend *cuda, const struct step_seq *seq, uint32_t layer) {
    const struct sparse_memory *s = &cuda->sparse;
    const struct attn_sparse *sparse = seq->sparse;
    const bool is_of_layer =
        sparse->groups ? s->group && s->group == filter_group_of(cuda->host_step, sparse, layer)
                       : !s->group && s->layer == layer;
    return s->account && is_of_layer && s->view.first_slot == sparse->first_slot &&
           s->view.n_rows == sparse->n_rows;
}

static const struct layer_group *group_behind(const struct attn_sparse *sparse, uint32_t filter) {
    for (uint32_t i = 0; i < sparse->n_groups; i++)
        if (sparse->groups[i].filter == filter) return &sparse->groups[i];
    return NULL;
}

/* Describes the index of a chunk, before its memory is laid out. */
static int describe_chunk(const struct step_seq *seq, const struct attn_args *filter,
                          struct sparse_build *b, struct sparse_shape *shape, struct error *err) {
    const struct attn_sparse *sparse = seq->sparse;
    const uint32_t n_slots = seq->layers[filter->layer].n_slots;
    if (!group_behind(sparse, filter->layer))
        return error_set(err, ERR_INVALID, "cuda: layer %u is no filter", filter->layer);
    if (sparse->patterns[0].p1 == 0 || sparse->patterns[0].p1 > SPARSE_MAX_COLUMNS)
        return error_set(err, ERR_UNSUPPORTED, "cuda: filters may choose 1 to %d tokens, not %u",
                         SPARSE_MAX_COLUMNS, sparse->patterns[0].p1);
    if (sparse->n_rows != seq->n_rows || sparse->first_slot % PAGE_TOKENS != 0 ||
        sparse->first_slot + sparse->n_rows != n_slots)
        return error_set(err, ERR_INVALID, "cuda: %u rows from slot %u on are not a chunk",
                         sparse->n_rows, sparse->first_slot);
    b->n_chosen = min_u32(sparse->patterns[0].p1, sparse->first_slot);
    *shape = (struct sparse_shape){.n_heads = filter->n_heads,
                                   .n_kv_heads = filter->kv->n_kv_heads,
                                   .head_dim = filter->kv->head_dim,
                                   .n_rows = sparse->n_rows,
                                   .n_slots = n_slots,
                                   .max_columns = max_u32(b->n_chosen, 1)};
    return 0;
}

static cudaError_t launch_choice(const struct cuda_backend *cuda, const struct sparse_build *b,
                                 struct token_score_params *scores) {
    const struct launch launch = launch_of(cuda);
    cudaError_t code = launch_sparse_stamp(b->account, SPARSE_BEGINS, launch);
    scores->seq = b->seq;
    scores->sums = b->columns;
    scores->n_sums = b->view.first_slot;
    if (code == cudaSuccess) code = launch_token_scores(scores, 1, scores->n_sums, launch);
    if (code == cudaSuccess && b->n_chosen > 0) code = launch_sparse_choose(b, launch);
    if (code == cudaSuccess) code = launch_sparse_filtered(&b->view, b->n_chosen, launch);
    return code == cudaSuccess ? launch_sparse_stamp(b->account, SPARSE_INDEX_ENDS, launch) : code;
}

static int choose(struct backend *be, const struct attn_args *filter, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    struct sparse_memory *s = &cuda->sparse;
    struct sparse_build b = {0};
    struct sparse_shape shape;
    struct token_score_params scores;
    int rc = find_seq(cuda->host_step, &b.seq, err);
    if (rc) return rc;
    const struct step_seq *seq = &cuda->host_step->seqs[b.seq];
    rc = describe_chunk(seq, filter, &b, &shape, err);
    if (!rc) rc = account_open(cuda, err);
    if (!rc)
        rc = device_reserve(cuda, &s->memory, &s->bytes, sparse_lay_out(&b, &shape, NULL), err);
    if (!rc) rc = token_score_params_of(cuda, filter, &scores, err);
    if (rc) return rc;
    sparse_lay_out(&b, &shape, s->memory);
    b.account = s->account;
    b.view.first_slot = seq->sparse->first_slot;
    b.view.first_dense_tile = sparse_first_dense_tile(seq->sparse);
    b.view.column_stride = 0;
    s->view = b.view;
    s->group = group_behind(seq->sparse, filter->layer);
    return cuda_check(cuda, launch_choice(cuda, &b, &scores), "choosing slots of a prompt", err);
}

/* Returns the pairs of n rows and the slots before and among them. */
static double causal_pairs(uint64_t n_before, uint64_t n) {
    return (double)(n * n_before + n * (n + 1) / 2);
}

void sparse_count_pairs(struct cuda_backend *cuda, const struct step_seq *seq,
                        const struct attn_args *args) {
    const struct attn_sparse *sparse = seq->sparse;
    const uint32_t n = seq->n_rows, n_before = seq->layers[args->layer].n_slots - n;
    uint32_t n_sparse = 0;
    if (filter_group_of(cuda->host_step, sparse, args->layer))
        n_sparse = min_u32(sparse_first_dense_tile(sparse) * SPARSE_TILE, n);
    const uint32_t n_chosen = min_u32(sparse->patterns[0].p1, sparse->first_slot);
    const double visited =
        causal_pairs(n_chosen, n_sparse) + causal_pairs(n_before + n_sparse, n - n_sparse);
    cuda->sparse.visited += visited * args->n_heads;
    cuda->sparse.causal += causal_pairs(n_before, n) * args->n_heads;
}

/* Moves the pairs that were counted on the host to the account. */
static int post_pairs(struct cuda_backend *cuda, struct error *err) {
    struct sparse_memory *s = &cuda->sparse;
    const struct sparse_pairs pairs = {s->visited, s->causal};
    s->visited = s->causal = 0;
    if (pairs.causal == 0) return 0;
    return cuda_check(cuda, launch_sparse_count(s->account, pairs, launch_of(cuda)),
                      "sparse totals", err);
}

/* ---- totals ---- */

static int sparse_totals(struct backend *be, struct sparse_totals *out, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    struct args room;
    if (!cuda->sparse.account) { /* nothing was ever indexed */
        *out = (struct sparse_totals){0};
        return 0;
    }
    struct sparse_totals *totals = &cuda->sparse.account->totals;
    int rc = post_pairs(cuda, err);
    if (!rc) rc = args_take(cuda, sizeof(*totals), &room, err);
    if (!rc)
        rc = cuda_check(cuda,
                        cudaMemcpyAsync(room.device, totals, sizeof(*totals),
                                        cudaMemcpyDeviceToDevice, cuda->stream),
                        "sparse totals", err);
    if (!rc)
        rc = cuda_check(cuda, cudaMemsetAsync(totals, 0, sizeof(*totals), cuda->stream),
                        "sparse totals", err);
    return rc ? rc : results_fetch(cuda, &room, out, sizeof(*totals), err);
}

const struct sparse_ops cuda_sparse_ops = {
    .index = index_layer,
    .choose = choose,
    .totals = sparse_totals,
};

int cuda_sparse_visited(struct backend *be, uint32_t head, uint32_t half, uint32_t *slots,
                        uint32_t *n, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const struct sparse_view *view = &cuda->sparse.view;
    const uint32_t end = view->first_slot + min_u32((half + 1) * SPARSE_HALF, view->n_rows);
    bool *host = malloc(view->n_slots), *device = NULL;
    if (!host) return error_set(err, ERR_NOMEM, "cuda: no memory");
    int rc = device_alloc(cuda, view->n_slots, (void **)&device, err);
    if (!rc)
        rc = cuda_check(cuda, launch_sparse_visited(view, head, half, device, launch_of(cuda)),
                        "visited slots", err);
    if (!rc)
        rc = cuda_check(
            cuda,
            cudaMemcpyAsync(host, device, view->n_slots, cudaMemcpyDeviceToHost, cuda->stream),
            "visited slots", err);
    if (!rc) rc = cuda_sync(be, err);
    *n = 0;
    for (uint32_t slot = 0; !rc && slot < end; slot++)
        if (host[slot]) slots[(*n)++] = slot;
    cudaFree(device);
    free(host);
    return rc;
}
