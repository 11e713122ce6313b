/* observe.c - the token scores of a sequence's last queries, on the host (engine/device/select.h).
 *
 *   decoding rows   attention has left their scores.  select() keeps those of all rows; where no
 *                   sequence selects, its first kernel does so here (select_keys.cu)
 *   prompts' rows   token_scores.cu multiplies queries and keys again.  Attention has left the sums
 *                   of the rows; those of a sparse prompt, which visit only part of the tokens, are
 *                   computed first
 *
 * Memory: the attention statistics' (evict.c). */
#include "cuda/kv/observe.h"

#include "cuda/host/internal.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/select.h"
#include "engine/device/step.h"

static int observe_decoding(struct cuda_backend *cuda, const struct select_args *args,
                            struct error *err) {
    const struct select_params params = select_params_of(cuda, args);
    const uint32_t n_rows = cuda->in_graph ? cuda->launch_rows : cuda->step.n_decode;
    if (step_has_selects(cuda->host_step)) return 0;
    return cuda_check(cuda, launch_select_observe(&params, n_rows, launch_of(cuda)),
                      "observing queries", err);
}

/* Returns how many tokens the sequence's rows of this step give scores. */
static uint32_t n_scored(const struct step_seq *seq) {
    const struct kv_observation *o = seq->observed;
    return o && o->first < seq->n_before + seq->n_rows ? o->n_scored : 0;
}

/* Sets *most to the most tokens that a prompt's rows give scores. */
static cudaError_t sum_sparse_rows(struct cuda_backend *cuda,
                                   const struct token_score_params *params, uint32_t *most) {
    const struct step *step = cuda->host_step;
    cudaError_t code = cudaSuccess;
    *most = 0;
    for (uint32_t i = step->n_decode; i < step->n_seqs && code == cudaSuccess; i++) {
        const uint32_t n = n_scored(&step->seqs[i]);
        *most = max_u32(*most, n);
        if (n > 0 && step->seqs[i].sparse) code = launch_observed_lse(params, i, launch_of(cuda));
    }
    return code;
}

static bool observes_prompts(const struct step *step) {
    for (uint32_t i = step->n_decode; i < step->n_seqs; i++)
        if (n_scored(&step->seqs[i]) > 0) return true;
    return false;
}

int token_score_params_of(struct cuda_backend *cuda, const struct attn_args *args,
                          struct token_score_params *out, struct error *err) {
    const struct key_rotations rotations = key_rotations_of(cuda, args);
    struct prompt_view view;
    const int rc = prompt_copies_open(cuda, args->kv, args->layer, &rotations, &view, err);
    if (rc) return rc;
    *out = (struct token_score_params){.step = cuda->device_step,
                                       .q = args->q,
                                       .q_stride = args->q_stride,
                                       .keys = view.stored,
                                       .kv = *args->kv,
                                       .n_heads = args->n_heads,
                                       .layer = args->layer,
                                       .scale = score_scale_of(args->scale, args->softcap),
                                       .bias = score_bias_of(cuda, args),
                                       .sinks = head_sinks_of(args->sinks),
                                       .lse = cuda->attn_stats.lse};
    return 0;
}

static int observe_prompts(struct cuda_backend *cuda, const struct select_args *args,
                           struct error *err) {
    const uint32_t n_seqs = cuda->step.n_seqs - cuda->step.n_decode;
    struct token_score_params params;
    uint32_t most;
    if (!observes_prompts(cuda->host_step)) return 0;
    const int rc = token_score_params_of(cuda, &args->attn, &params, err);
    if (rc) return rc;
    params.group_index = args->group_index;
    cudaError_t code = sum_sparse_rows(cuda, &params, &most);
    if (code == cudaSuccess) code = launch_token_scores(&params, n_seqs, most, launch_of(cuda));
    return cuda_check(cuda, code, "observing queries", err);
}

int cuda_observe(struct backend *be, const struct select_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    if (args->group_index >= cuda->select.shape.n_groups)
        return error_set(err, ERR_INVALID, "cuda: no memory was reserved for group %u",
                         args->group_index);
    const int rc = cuda->step.n_decode > 0 ? observe_decoding(cuda, args, err) : 0;
    return rc ? rc : observe_prompts(cuda, args, err);
}
