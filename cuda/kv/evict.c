/* evict.c - bounded caches on the host: the attention statistics' memory, and the operations.
 *
 *   attn_decode, attn_prefill   log-sum-exp of every row; raw scores of the rows that decode
 *   decode                      one kernel: updates scores, evicts a token, renumbers ranks
 *   chunk                       updates scores; after a chunk, chooses tokens and moves them
 *   oldest                      both without scores, in many layers: there a launch a layer would
 *                               take longer than the work
 *   order                       one kernel: puts the tokens of a full cache in the text's order
 *
 * All sequences whose budget has scores, and those that select, share one block of these, in the
 * order of the step (step.c, select_pack.c).  A prompt's part of it holds the list of its retained
 * slots.
 *
 * Memory: reserved for the largest step; without reserve(), grown to the largest seen. */
#include "cuda/host/internal.h"
#include "cuda/ranks/group.h"

#include <string.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "engine/device/step.h"

struct key_rotations key_rotations_of(const struct cuda_backend *cuda,
                                      const struct attn_args *args) {
    const struct rotary *rotary = &cuda->rotary[args->rope];
    return (struct key_rotations){rotary->device_rotations, args->n_freqs, args->rope_scale};
}

int attn_stats_reserve(struct cuda_backend *cuda, size_t n_rows, size_t n_slots, uint32_t n_heads,
                       struct error *err) {
    int rc = device_reserve(cuda, (void **)&cuda->attn_stats.lse, &cuda->lse_bytes,
                            n_rows * n_heads * sizeof(float), err);
    if (!rc)
        rc = device_reserve(cuda, (void **)&cuda->attn_stats.scores, &cuda->scores_bytes,
                            n_slots * n_heads * sizeof(float), err);
    if (!rc) cuda->attn_stats.score_stride = cuda->scores_bytes / sizeof(float) / n_heads;
    return rc;
}

/* Reserves the attention statistics of a step.  The scores grow by doubling, because a cache that
 * is filling up is longer in every step. */
int attn_stats_budget(struct cuda_backend *cuda, const struct step *step, uint32_t n_heads,
                      struct error *err) {
    size_t n_slots = 0, room = cuda->scores_bytes / sizeof(float) / n_heads;
    for (uint32_t i = 0; i < step->n_seqs; i++) n_slots += score_slots(&step->seqs[i]);
    if (n_slots > room) room = n_slots > 2 * room ? n_slots : 2 * room;
    return attn_stats_reserve(cuda, step->n_rows, room, n_heads, err);
}

static struct evict_params evict_params(const struct cuda_backend *cuda,
                                        const struct attn_args *args) {
    return (struct evict_params){.step = cuda->device_step,
                                 .q = args->q,
                                 .q_stride = args->q_stride,
                                 .kv = *args->kv,
                                 .n_heads = args->n_heads,
                                 .layer = args->layer,
                                 .scale = score_scale_of(args->scale, args->softcap),
                                 .bias = score_bias_of(cuda, args),
                                 .sinks = head_sinks_of(args->sinks),
                                 .attn_stats = cuda->attn_stats,
                                 .rotations = key_rotations_of(cuda, args)};
}

static struct evict_layers evict_layers(const struct cuda_backend *cuda, const struct kv_pool *kv,
                                        uint32_t first_layer, uint32_t n_layers) {
    return (struct evict_layers){
        .step = cuda->device_step, .kv = *kv, .first_layer = first_layer, .n_layers = n_layers};
}

/* Tells whether a chunk ends with this step, and leaves more than the budget. */
static bool ends_above_budget(const struct step_seq *seq, uint32_t layer) {
    const struct kv_budget *budget = step_budget(seq, layer);
    return budget && seq->compress && seq->layers[layer].n_slots > budget->capacity;
}

/* Launches the kernels of chunk().  max_slots is the most slots of a prompt that has scores. */
static cudaError_t launch_chunk(const struct cuda_backend *cuda, const struct evict_params *params,
                                uint32_t max_slots, bool compress) {
    const uint32_t n_seqs = cuda->host_step->n_seqs - cuda->host_step->n_decode;
    struct evict_layers moves = evict_layers(cuda, &params->kv, params->layer, 1);
    moves.has_scores = true;
    moves.group = params->n_heads / params->kv.n_kv_heads;
    moves.attn_stats = params->attn_stats;
    cudaError_t code = launch_evict_scores(params, n_seqs, max_slots, launch_of(cuda));
    if (code == cudaSuccess && compress)
        code = launch_evict_select(params, n_seqs, launch_of(cuda));
    if (code == cudaSuccess && compress) code = launch_evict_move(&moves, n_seqs, launch_of(cuda));
    return code;
}

/* Returns how many rows decode, or as many as a graph is for. */
static uint32_t decode_rows(const struct cuda_backend *cuda) {
    return cuda->in_graph ? cuda->launch_rows : cuda->step.n_decode;
}

static int evict_decode(struct backend *be, const struct attn_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const struct evict_params params = evict_params(cuda, args);
    return cuda_check(cuda, launch_evict_decode(&params, decode_rows(cuda), launch_of(cuda)),
                      "evict_decode", err);
}

static int evict_chunk(struct backend *be, const struct attn_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const struct step *step = cuda->host_step;
    struct evict_params params = evict_params(cuda, args);
    struct prompt_view view;
    uint32_t max_slots = 0;
    bool compress = false;
    for (uint32_t i = step->n_decode; i < step->n_seqs; i++) {
        const struct step_seq *seq = &step->seqs[i];
        const struct kv_budget *budget = step_budget(seq, args->layer);
        if (!budget || !kv_has_scores(budget)) continue;
        compress |= ends_above_budget(seq, args->layer);
        max_slots = max_u32(max_slots, seq->layers[args->layer].n_slots);
    }
    if (max_slots == 0) return 0;
    const int rc = prompt_copies_open(cuda, args->kv, args->layer, &params.rotations, &view, err);
    if (rc) return rc;
    params.stored = view.stored;
    params.ranked = view.ranked;
    params.is_rotated = view.is_rotated;
    return cuda_check(cuda, launch_chunk(cuda, &params, max_slots, compress), "evict_chunk", err);
}

/* Launches no moves unless some prompt has any, which the host knows; no graph has prompts with
 * budgets. */
static int evict_oldest(struct backend *be, const struct kv_pool *kv, uint32_t first_layer,
                        uint32_t n_layers, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const struct step *step = cuda->host_step;
    const struct evict_layers params = evict_layers(cuda, kv, first_layer, n_layers);
    bool compress = false;
    cuda_use_device(be); /* as in cuda_gather_rows() */
    for (uint32_t i = step->n_decode; i < step->n_seqs; i++) {
        const struct step_seq *seq = &step->seqs[i];
        if (!seq->budget || kv_has_scores(seq->budget)) continue;
        for (uint32_t l = 0; l < n_layers; l++) compress |= ends_above_budget(seq, first_layer + l);
    }
    cudaError_t code = launch_evict_oldest(&params, decode_rows(cuda), launch_of(cuda));
    if (code == cudaSuccess && compress)
        code = launch_evict_move(&params, step->n_seqs - step->n_decode, launch_of(cuda));
    return cuda_check(cuda, code, "evict_oldest", err);
}

/* Sends the lists in the args of the step that began last. */
static int evict_order(struct backend *be, const struct kv_pool *kv, const struct kv_view *layers,
                       uint32_t n_layers, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const size_t n_pages = kv_n_pages(layers[0].n_slots), bytes = n_pages * sizeof(int32_t);
    struct args room;
    cuda_use_device(be);
    int rc = host_pool_await(cuda, err);
    if (!rc) rc = args_take(cuda, n_layers * bytes, &room, err);
    if (rc) return rc;
    for (uint32_t l = 0; l < n_layers; l++) memcpy(room.host + l * bytes, layers[l].pages, bytes);
    rc = args_send(cuda, &room, room.device, n_layers * bytes, err);
    if (rc) return rc;
    const struct order_params params = {.kv = *kv,
                                        .table = (const int32_t *)room.device,
                                        .layer_pages = (uint32_t)n_pages,
                                        .n_layers = n_layers,
                                        .capacity = layers[0].n_slots - 1};
    return cuda_check(cuda, launch_evict_order(&params, launch_of(cuda)), "evict_order", err);
}

static int evict_totals(struct backend *be, const struct kv_pool *kv, struct evict_total *totals,
                        struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const size_t bytes = cuda->step.n_seqs * sizeof(*totals);
    struct args room;
    if (!cuda->step.budgets) return 0;
    int rc = args_take(cuda, bytes, &room, err);
    if (rc) return rc;
    rc = cuda_check(cuda,
                    launch_evict_totals(cuda->device_step, kv, (struct evict_total *)room.device,
                                        cuda->step.n_seqs, launch_of(cuda)),
                    "evict_totals", err);
    return rc ? rc : results_fetch(cuda, &room, totals, bytes, err);
}

const struct evict_ops cuda_evict_ops = {
    .decode = evict_decode,
    .chunk = evict_chunk,
    .oldest = evict_oldest,
    .order = evict_order,
    .totals = evict_totals,
};
