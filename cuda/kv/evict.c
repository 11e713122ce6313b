/* evict.c - bounded caches on the host: room for what attention leaves behind, and the operations.
 *
 *   attn_decode, attn_prefill   log-sum-exp of every row; raw scores of the rows that decode
 *   keep_decode                 scores brought up to date, who goes, ranks: one kernel
 *   keep_prefill                scores brought up to date; after a chunk, who stays moves up
 *
 * All sequences with a budget share one block of scores, in the order of the step (step.c); prompts
 * use their place for the list of those who stay.
 *
 * Memory: reserved for the largest step; without that, grown to the largest seen. */
#include "cuda/host/internal.h"

#include "engine/base/error.h"

struct key_turns key_turns_of(const struct cuda_backend *cuda, const struct attn_args *args) {
    const struct rotary *rotary = &cuda->rotary[args->rope];
    return (struct key_turns){rotary->device_turns, args->n_freqs, args->rope_scale};
}

int traces_reserve(struct cuda_backend *cuda, size_t n_rows, size_t n_slots, uint32_t n_heads,
                   struct error *err) {
    int rc = device_reserve(cuda, (void **)&cuda->traces.lse, &cuda->lse_bytes,
                            n_rows * n_heads * sizeof(float), err);
    if (!rc)
        rc = device_reserve(cuda, (void **)&cuda->traces.scores, &cuda->scores_bytes,
                            n_slots * n_heads * sizeof(float), err);
    if (!rc) cuda->traces.score_stride = cuda->scores_bytes / sizeof(float) / n_heads;
    return rc;
}

/* Grows by doubling: a cache that is filling up is longer in every step. */
int traces_room(struct cuda_backend *cuda, const struct step *step, uint32_t n_heads,
                struct error *err) {
    size_t n_slots = 0, room = cuda->scores_bytes / sizeof(float) / n_heads;
    for (uint32_t i = 0; i < step->n_seqs; i++)
        if (step->seqs[i].budget || step->seqs[i].select)
            n_slots += step->seqs[i].layers[0].n_slots;
    if (n_slots > room) room = n_slots > 2 * room ? n_slots : 2 * room;
    return traces_reserve(cuda, step->n_rows, room, n_heads, err);
}

static struct keep_params keep_params(const struct cuda_backend *cuda,
                                      const struct attn_args *args) {
    return (struct keep_params){.step = cuda->device_step,
                                .q = args->q,
                                .q_stride = args->q_stride,
                                .kv = *args->kv,
                                .n_heads = args->n_heads,
                                .layer = args->layer,
                                .scale = score_scale_of(args->scale, args->softcap),
                                .traces = cuda->traces,
                                .turns = key_turns_of(cuda, args)};
}

/* max_slots: of those with scores. */
static cudaError_t launch_prefill(const struct cuda_backend *cuda, const struct keep_params *params,
                                  uint32_t max_slots, bool compress) {
    const uint32_t n_seqs = cuda->host_step->n_seqs - cuda->host_step->n_decode;
    cudaError_t code = cudaSuccess;
    if (max_slots > 0) code = launch_keep_scores(params, n_seqs, max_slots, launch_of(cuda));
    if (code == cudaSuccess && compress)
        code = launch_keep_compress(params, n_seqs, launch_of(cuda));
    return code;
}

int cuda_keep_decode(struct backend *be, const struct attn_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const uint32_t n_rows = cuda->repeating ? cuda->launch_rows : cuda->step.n_decode;
    const struct keep_params params = keep_params(cuda, args);
    return cuda_check(cuda, launch_keep_decode(&params, n_rows, launch_of(cuda)), "keep_decode",
                      err);
}

int cuda_keep_prefill(struct backend *be, const struct attn_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const struct step *step = cuda->host_step;
    struct keep_params params = keep_params(cuda, args);
    struct wide_view wide;
    uint32_t max_slots = 0;
    bool compress = false;
    for (uint32_t i = step->n_decode; i < step->n_seqs; i++) {
        const struct step_seq *seq = &step->seqs[i];
        if (!seq->budget) continue;
        const uint32_t n_slots = seq->layers[args->layer].n_slots;
        compress |= seq->compress && n_slots > seq->budget->capacity;
        if (seq->budget->score != KV_SCORE_NONE && n_slots > max_slots) max_slots = n_slots;
    }
    if (max_slots > 0) {
        const int rc = wide_open(cuda, args->kv, args->layer, &wide, err);
        if (rc) return rc;
        params.keys = wide.kv;
        params.keys_step = wide.step;
    }
    return cuda_check(cuda, launch_prefill(cuda, &params, max_slots, compress), "keep_prefill",
                      err);
}

int cuda_keep_totals(struct backend *be, const struct kv_pool *kv, struct keep_total *totals,
                     struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const size_t bytes = cuda->step.n_seqs * sizeof(*totals);
    struct args room;
    if (!cuda->step.budgets) return 0;
    int rc = args_take(cuda, bytes, &room, err);
    if (rc) return rc;
    rc = cuda_check(cuda,
                    launch_keep_totals(cuda->device_step, kv, (struct keep_total *)room.device,
                                       cuda->step.n_seqs, launch_of(cuda)),
                    "keep_totals", err);
    return rc ? rc : results_fetch(cuda, &room, totals, bytes, err);
}
