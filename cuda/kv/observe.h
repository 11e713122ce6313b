/* observe.h - the launchers of the kernels by which a prompt's rows give tokens scores.
 *
 * A row's score of a token is the largest softmax weight that any head gives it.  Filters choose by
 * these (engine/device/sparse.h), and sequences that select keep those of their last queries
 * (engine/device/select.h).
 *
 * Thread: engine.  Memory: the caller's. */
#ifndef CUDA_KV_OBSERVE_H
#define CUDA_KV_OBSERVE_H

#include "cuda/host/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

struct token_score_params {
    const struct device_step *step; /* with the observations */
    const void *q;                  /* bf16, row i of the step at q + i * q_stride elements */
    size_t q_stride;
    struct prompt_pages keys;
    struct kv_pool kv; /* the pool that has the observations' pages */
    uint32_t n_heads, layer, group_index;
    struct score_scale scale;
    struct score_bias bias;
    struct head_sinks sinks;
    float *lse; /* f32 [n_rows of the step][n_heads], base 2, with sinks */
    /* NULL: the observed rows of the sequences from n_decode on keep their scores.  Otherwise f32
     * [n_sums], a multiple of PAGE_TOKENS: the sums over all rows of sequence `seq`, row after row.
     * Each row sees these tokens. */
    float *sums;
    uint32_t seq, n_sums;
};

/* Launches the kernel for n_seqs sequences with at most n_tokens tokens that get scores.  It reads
 * the log-sum-exp that attention left in p->lse. */
cudaError_t launch_token_scores(const struct token_score_params *p, uint32_t n_seqs,
                                uint32_t n_tokens, struct launch launch);
/* Writes to p->lse the log-sum-exp over all slots of the last KV_OBSERVED rows of one sequence,
 * whatever its attention visited. */
cudaError_t launch_observed_lse(const struct token_score_params *p, uint32_t seq,
                                struct launch launch);

#ifdef __cplusplus
}
#endif

#endif
