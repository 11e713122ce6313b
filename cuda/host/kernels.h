/* kernels.h - the launchers of this room's own kernels: one parameter struct and one function each.
 *
 * Every pointer is device memory.  A launcher validates nothing, allocates nothing and never waits;
 * it returns what the launch returned.  Empty grids are no launches.
 *
 * Overlap (programmatic dependent launch, compute capability 9.0): with `overlap` set a kernel may
 * be started before its predecessor in the stream has ended.  Each kernel here lets its successor
 * start at once, touches only weights first, and waits for its predecessor before it reads or
 * writes anything else; since all of them wait, a kernel that has ended implies that all before it
 * have.
 *
 * Thread: engine.  Memory: none of its own. */
#ifndef CUDA_HOST_KERNELS_H
#define CUDA_HOST_KERNELS_H

#include <cuda_runtime_api.h>

#include "cuda/attention/sparse/sparse_view.h"
#include "engine/device/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

struct launch {
    cudaStream_t stream;
    bool overlap;
};

/* A sequence's budget and its rows' part in it, as kernels read it (kv_budget, step_seq). */
struct device_budget {
    uint32_t capacity; /* 0: it has none */
    uint32_t n_sink, n_recent;
    uint32_t score; /* enum kv_score */
    float decay;
    uint32_t window, pooling, kernel; /* pooling: enum kv_pooling */
    uint32_t cache_positions;
    uint32_t n_before, score_row, begins_chunk, compress;
    int32_t scores_at; /* where its slots begin in each KV head's scores; -1: it needs none */
};

/* What a sequence that decodes selects, as kernels read it (kv_select).  Lists are named by where
 * they begin in device_step.select_lists; see select_pack.h. */
struct device_select {
    uint32_t n_selected; /* 0: it selects nothing */
    uint32_t n_candidates, n_sink, fresh;
    int32_t scores_at; /* where its slots begin in each KV head's scores: struct attn_stats */
    int32_t keys_at;   /* where its candidates begin in struct select_workspace; a multiple of 64 */
    int32_t states;    /* pages [n_groups][n_state_pages] */
    int32_t blocks;    /* [n_candidates / PAGE_TOKENS]; -1: the store is pages, */
    int32_t pages;     /* [n_layers]: where each sparse layer's list begins */
};

/* What a step looks like on the device, all layers at once: see step.c.  The struct itself lies
 * there, too, at the same address in every step: kernels that are launched again with the same
 * arguments (graph.c) learn everything that changes from there.  It is complete when the first
 * kernel of the step starts, so it may be read before the wait for the kernel before. */
struct device_step {
    uint32_t n_rows, n_seqs, n_decode, n_layers;
    const int32_t *tokens, *positions, *row_seq; /* [n_rows]; row_seq: the sequence of a row */
    const int32_t *sampled; /* by the step before: tokens[row] may be STEP_SAMPLED | an index here */
    const int32_t *first_row, *seq_rows;         /* [n_seqs] */
    const int32_t *n_slots, *append_slot;        /* [n_layers][n_seqs] */
    const int32_t *table;    /* [n_layers][layer_pages]: pages in slot order, list after list */
    const int32_t *table_at; /* [n_layers][n_seqs]: where a sequence's list begins in its layer */
    uint32_t layer_pages;
    const struct device_budget *budgets; /* [n_seqs]; NULL: no sequence has one */
    const struct device_select *selects; /* [n_decode]; NULL: no sequence selects */
    const int32_t *select_lists;
};

/* How keys that are stored before RoPE turn when they are read: by their slot's rank. */
struct key_rotations {
    const float *per_rank; /* [n_freqs][2]: inv_freq / 2 pi, rounded, and what that lost */
    uint32_t n_freqs;
    float scale; /* of cosines and sines */
};

/* What kernels that turn eight pairs at a time ask of a shape; others turn element by element. */
static inline bool rotates_in_vectors(uint32_t n_freqs) {
    return n_freqs % 8 == 0;
}

/* What attention leaves for those who judge tokens by it. */
struct attn_stats {
    float *lse;    /* [n_rows of the step][n_heads], base 2; or NULL */
    float *scores; /* [n_kv_heads][score_stride][group]: scores of the decoding sequences whose
                      budget has scores, from slot budget.scores_at on, and, where a selection
                      follows, of those that select, from select.scores_at on; or NULL */
    size_t score_stride; /* slots */
};

/* How a product q . k becomes a score: outer * product or, where there is a soft cap (inner > 0),
 * outer * tanh2(inner * product), of device.cuh. */
struct score_scale {
    float outer, inner;
};

#define TANH2_UNIT 2.885390082f /* 2 log2(e): tanh(x) = tanh2(TANH2_UNIT * x) */

static inline struct score_scale score_scale_of(float scale, float softcap) {
    const bool capped = softcap > 0;
    const struct score_scale s = {capped ? softcap : scale,
                                  capped ? TANH2_UNIT * scale / softcap : 0.0f};
    return s;
}

/* n_rows, here and below where there is a step: of the launch; rows past the step's do nothing. */
struct embed_params {
    const struct device_step *step;
    const void *table; /* dtype [n_vocab, dim] */
    enum dtype dtype;
    void *out; /* bf16 [n_rows, dim] */
    uint32_t n_rows, dim;
    float scale;
};

struct rmsnorm_params {
    const void *x;      /* bf16, row i at x + i * x_stride elements: [n_heads, dim] */
    const void *weight; /* dtype [dim] */
    enum dtype dtype;
    void *out; /* bf16, row i at out + i * out_stride; may be x unless it accumulates */
    uint32_t n_rows, dim;
    size_t x_stride, out_stride;
    float eps;
    uint32_t n_heads;
    bool accumulate;
};

struct angles_params {
    const struct device_step *step;
    const double *inv_freq;   /* [n_freqs] */
    float *angles;            /* [n_rows][2][n_freqs]: cos, then sin */
    uint32_t n_rows, n_freqs;
    float scale;
};

struct rope_append_params {
    const struct device_step *step;
    void *qkv;           /* bf16 [n_rows, (n_heads + 2 * n_kv_heads) * head_dim] */
    const float *angles; /* of angles_params */
    struct kv_pool kv;   /* page: dtype [K,V][n_kv_heads][PAGE_TOKENS][head_dim], then the states */
    uint32_t n_rows, n_heads, n_freqs, layer;
};

/* Attention of the step's first n_decode rows, or of those behind them. */
struct attn_simple_params {
    const struct device_step *step;
    const void *q; /* bf16, row i at q + i * q_stride elements: [n_heads, head_dim] */
    size_t q_stride;
    void *out;        /* bf16 [n_rows of the step, n_heads * head_dim] */
    struct kv_pool kv; /* as in rope_append_params */
    uint32_t n_heads, layer;
    uint32_t n_rows; /* of the launch */
    bool decode;
    struct score_scale scale;
    struct attn_stats attn_stats;
    bool selects; /* as in attn_args */
    uint32_t window; /* a row sees only so many slots, the newest; 0: all */
    struct key_rotations rotations;
    int32_t sparse_seq; /* of the step: its rows visit what `sparse` says; -1: nobody's */
    struct sparse_view sparse;
};

/* Who stays in a bounded cache: evict_decode.cu, evict_scores.cu, evict_chunk.cu. */
struct evict_params {
    const struct device_step *step;
    const void *q; /* bf16, row i at q + i * q_stride elements: [n_heads, head_dim] */
    size_t q_stride;
    struct kv_pool kv;
    uint32_t n_heads, layer;
    struct score_scale scale;
    struct attn_stats attn_stats; /* of the same layer's attention */
    struct key_rotations rotations;
    /* Where launch_evict_scores() finds keys: the same, or copies of them that are wide (widen). */
    struct kv_pool keys;
    const struct device_step *keys_step;
};

/* Copies of the pages that the step's prompts have of a layer, in 16 bits (bf16, exact) where the
 * pool has 8; states go with them.  Those of a prompt lie one after the other, and the prompts'
 * too, in the order of the step. */
struct dequant_params {
    const struct device_step *step;
    struct kv_pool from, to; /* to: [pages of the layer] */
    uint32_t layer, window;  /* window: of the layer; 0: none */
};

struct gate_mul_params {
    const void *gate_up; /* bf16 [n_rows, 2 * dim] */
    void *out;           /* bf16 [n_rows, dim] */
    uint32_t n_rows, dim;
    enum gate_kind kind;
};

struct gather_params {
    const void *x;        /* bf16 [*, dim] */
    void *out;            /* bf16 [n, dim] */
    const uint32_t *rows; /* [n] */
    uint32_t n, dim;
};

struct soft_cap_params {
    float *x; /* [n] */
    size_t n;
    struct score_scale scale;
};

struct skinny_part {
    const void *w;    /* [n_out, n_in] */
    const void *bias; /* [n_out] or NULL */
    enum dtype bias_dtype;
    void *y; /* bf16 or f32, row i at y + i * y_stride elements */
    size_t y_stride;
    uint32_t n_out;
};

/* y = x W^T (+ b) or y += x W^T (+ b) for all parts in one launch.  launch_skinny() only: of
 * RMSNorm(x) where there is a norm_weight; and gated: the parts are gate and up, and parts[0].y is
 * kind(gate) * up. */
struct skinny_params {
    const void *x; /* bf16 [n_rows, n_in] */
    uint32_t n_rows, n_in, n_parts;
    struct skinny_part parts[LINEAR_MAX_PARTS];
    enum dtype w_dtype; /* of every part */
    const void *norm_weight; /* bf16 [n_in], 16-byte aligned, or NULL */
    float eps;
    bool gated, accumulate, y_f32;
    enum gate_kind kind;
};

/* A row of a sample op with its lists, which lie in device memory. */
struct device_sample {
    uint32_t logit_row, kind, target, top_k, n_counts, n_bias, n_banned, n_top;
    float temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    double uniform;
    const struct token_count *counts;
    const struct logit_bias *bias;
    const uint32_t *banned;
    float *changed; /* [n_vocab] scratch of a row whose logits are changed; else NULL */
};

struct sample_params {
    const float *logits;              /* [*, n_vocab] */
    const struct device_sample *rows; /* [n] */
    struct sample_result *results;    /* [n] */
    int32_t *sampled;                   /* [n]: the tokens again, for the next step */
    uint32_t n, n_vocab;
};

cudaError_t launch_embed(const struct embed_params *p, struct launch launch);
cudaError_t launch_rmsnorm(const struct rmsnorm_params *p, struct launch launch);
cudaError_t launch_angles(const struct angles_params *p, struct launch launch);
cudaError_t launch_rope_append(const struct rope_append_params *p, struct launch launch);
cudaError_t launch_attn_simple(const struct attn_simple_params *p, struct launch launch);
/* For the sequences with a budget: of n_rows rows that decode, or of n_seqs that do not and hold at
 * most max_slots slots each. */
cudaError_t launch_evict_decode(const struct evict_params *p, uint32_t n_rows, struct launch launch);
cudaError_t launch_evict_scores(const struct evict_params *p, uint32_t n_seqs, uint32_t max_slots,
                               struct launch launch);
cudaError_t launch_evict_chunk(const struct evict_params *p, uint32_t n_seqs,
                                 struct launch launch);
/* totals [n_seqs] */
cudaError_t launch_evict_totals(const struct device_step *step, const struct kv_pool *kv,
                               struct evict_total *totals, uint32_t n_seqs, struct launch launch);
/* Of the n_seqs sequences behind those that decode, of at most max_pages each. */
cudaError_t launch_dequant(const struct dequant_params *p, uint32_t n_seqs, uint32_t max_pages,
                         struct launch launch);
cudaError_t launch_gate_mul(const struct gate_mul_params *p, struct launch launch);
cudaError_t launch_gather(const struct gather_params *p, struct launch launch);
cudaError_t launch_soft_cap(const struct soft_cap_params *p, struct launch launch);
/* bf16 weights, n_in % 8 == 0, x and w 16-byte aligned, at most SKINNY_MAX_ROWS rows. */
enum { SKINNY_MAX_ROWS = 16 };
cudaError_t launch_skinny(const struct skinny_params *p, struct launch launch);
/* The same conditions but for the rows, of which there may be any number.  A row's bits depend on
 * nothing but the row and the weights. */
cudaError_t launch_linear_invariant(const struct skinny_params *p, struct launch launch);
/* Any shape, alignment and weight dtype; slow.  Bits as in launch_linear_invariant. */
cudaError_t launch_linear_any(const struct skinny_params *p, struct launch launch);
enum { SAMPLE_MAX_VOCAB = 1 << 20 };
cudaError_t launch_sample(const struct sample_params *p, struct launch launch);

#ifdef __cplusplus
}
#endif

#endif
