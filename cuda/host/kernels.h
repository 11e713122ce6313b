/* kernels.h - the launchers of the backend's own kernels: one parameter struct and one function
 * each.
 *
 * Every pointer is device memory.  A launcher validates nothing, allocates nothing and never waits;
 * it returns what the launch returned.  It launches nothing when the grid would be empty.
 *
 * Overlap (programmatic dependent launch, compute capability 9.0): with `overlap` set a kernel may
 * be started before its predecessor in the stream has ended.  Each kernel here lets its successor
 * start at once, touches only weights first, and waits for its predecessor before it reads or
 * writes anything else.  Since all of them wait, a kernel that has ended implies that all before it
 * have.
 *
 * Thread: engine.  Memory: none of its own. */
#ifndef CUDA_HOST_KERNELS_H
#define CUDA_HOST_KERNELS_H

#include <cuda_runtime_api.h>

#include "cuda/attention/sparse/sparse_view.h"
#include "engine/device/backend.h"
#include "engine/device/layer_set.h"
#include "engine/device/pages.h"
#include "engine/device/sample.h"
#include "engine/device/weight.h"

struct evict_total;
struct strips;

#ifdef __cplusplus
extern "C" {
#endif

/* The kernels of a CUDA graph whose arguments and grids are not the same in every step (graph.c),
 * in the order of their launches.  While the graph is recorded they are noted here; later, a launch
 * sets what the next of them gets.  (common/step_nodes.cuh) */
struct step_nodes {
    cudaGraphNode_t *nodes; /* [room] */
    uint32_t n, room;
    cudaGraphExec_t graph; /* NULL: it is being recorded */
    uint32_t next;         /* whose arguments are set next */
};

struct launch {
    cudaStream_t stream;
    bool overlap;
    uint32_t n_multiprocessors; /* of the device; the stream kernel and launch_sample() ask */
    struct step_nodes *nodes;   /* NULL: no graph needs to know of the launch */
};

/* Returns the launch of kernels that do not ask for the device's multiprocessors. */
static inline struct launch launch_on(cudaStream_t stream, bool overlap) {
    const struct launch launch = {stream, overlap, 0, NULL};
    return launch;
}

/* Returns the launch without overlap, for kernels that do not wait for their predecessor. */
static inline struct launch without_overlap(struct launch launch) {
    launch.overlap = false;
    return launch;
}

/* The bytes of words that one block is to write and another one waits for, as long as they are
 * missing. */
enum { MISSING_BYTE = 0xff };

/* Pages to be copied, as a kernel's parameter: 4 KB are the most that any device takes. */
enum { MOST_PAGE_COPIES = 500 };
struct page_copies {
    uint32_t n, from[MOST_PAGE_COPIES], to[MOST_PAGE_COPIES];
};

/* A sequence's budget and its rows in the step, as kernels read them (kv_budget, step_seq). */
struct device_budget {
    uint32_t capacity; /* 0: the sequence has no budget */
    uint32_t n_sink, n_recent;
    uint32_t score; /* enum kv_score */
    float decay;
    uint32_t window, pooling, kernel; /* pooling: enum kv_pooling */
    uint32_t cache_positions;
    uint32_t n_before, score_row, begins_chunk, compress;
    int32_t scores_at; /* its first slot in each KV head's scores; -1: it needs none */
    uint32_t layers[LAYER_SET_MAX / 32]; /* bit layer % 32 of word layer / 32: the layer has it */
};

/* What a decoding sequence selects, as kernels read it (kv_select).  Lists are named by where they
 * begin in device_step.select_lists; see select_pack.h. */
struct device_select {
    uint32_t n_selected; /* 0: the sequence selects nothing */
    uint32_t n_candidates, n_sink, fresh;
    /* Its first slot in each KV head's scores (struct attn_stats); -1: it neither selects nor is
     * observed.  A budget's scores have the same place. */
    int32_t scores_at;
    int32_t keys_at; /* its first candidate in struct select_workspace; a multiple of 64 */
    int32_t states;  /* kv_select.state_pages */
    int32_t blocks;  /* host blocks [n_candidates / PAGE_TOKENS]; -1: there is no host pool, */
    int32_t pages;   /* but [n_layers]: where each sparse layer's list of pages begins */
};

/* Which queries of a sequence are observed, as kernels read it (kv_observation). */
struct device_observation {
    uint32_t n_scored; /* 0: no row of the step is observed */
    uint32_t selector; /* enum kv_selector */
    uint32_t n_before; /* the position of the sequence's first row */
    uint32_t first;    /* the first of its rows that is observed */
    int32_t pages;     /* kv_observation.pages, [n_groups][n_pages], in select_lists */
    uint32_t n_pages;
};

/* A step as the device sees it, all layers at once: see step.c.  The struct itself lies in device
 * memory, too, at the same address in every step.  Kernels that a CUDA graph launches again with
 * the same arguments (graph.c) read there everything that changes.  The struct is complete before
 * the step's first kernel starts, so a kernel may read it before it waits for its predecessor. */
struct device_step {
    uint32_t n_rows, n_seqs, n_decode, n_layers;
    const int32_t *tokens, *positions, *row_seq; /* [n_rows]; row_seq: the sequence of a row */
    /* Sampled by the step before: tokens[row] may be STEP_SAMPLED | an index here. */
    const int32_t *sampled;
    const int32_t *first_row, *seq_rows;  /* [n_seqs] */
    const int32_t *n_slots, *append_slot; /* [n_layers][n_seqs] */
    const int32_t *table;    /* [n_layers][layer_pages]: pages in slot order, list after list */
    const int32_t *table_at; /* [n_layers][n_seqs]: where a sequence's list begins in its layer */
    uint32_t layer_pages;
    const struct device_budget *budgets; /* [n_seqs]; NULL: no sequence has one */
    /* [n_decode]; NULL: no sequence selects or is observed */
    const struct device_select *selects;
    const struct device_observation *observations; /* [n_seqs]; NULL: none is observed */
    const int32_t *select_lists;
};

/* How keys that are stored before RoPE are rotated when they are read: by their slot's rank. */
struct key_rotations {
    const float *per_rank; /* [n_freqs][2]: inv_freq / 2 pi, rounded, and the rounding error */
    uint32_t n_freqs;
    float scale; /* factor of cosines and sines */
};

/* Says whether a shape suits the kernels that rotate eight pairs at a time; others rotate element
 * by element. */
static inline bool rotates_in_vectors(uint32_t n_freqs) {
    return n_freqs % 8 == 0;
}

/* Attention statistics: written by attention for evictions and selections. */
struct attn_stats {
    float *lse; /* [n_rows of the step][n_heads], base 2, with sinks; or NULL */
    /* [n_kv_heads][score_stride][group], or NULL: scores of decoding sequences.  A sequence whose
     * budget has scores begins at slot budget.scores_at; where a selection follows, one that
     * selects or is observed begins at slot select.scores_at. */
    float *scores;
    size_t score_stride; /* slots */
};

/* How a product q . k becomes a score: outer * product.  With a soft cap (inner > 0) it is outer *
 * tanh2(inner * product); tanh2 is in device.cuh. */
struct score_scale {
    float outer, inner;
};

/* What each query head's softmax has besides keys (attn_args.sinks). */
struct head_sinks {
    const void *logits; /* element [n_heads]; NULL: all are 0 */
    enum element element;
    bool are_there;
};

/* What a score gets less by the distance from its key to the query (attn_args.slopes).
 * common/bias.cuh finds distances. */
struct score_bias {
    const float *slopes;            /* [n_heads]; NULL: nothing, and the rest is unused */
    const struct device_step *step; /* names the pool's own pages, */
    struct kv_pool kv;              /* whose states say where the keys of bounded caches stand */
    uint32_t layer, group;          /* group: as in attn_args */
    uint32_t state_slots;           /* that a page of kv_select.state_pages names */
};

#define TANH2_UNIT 2.885390082f /* 2 log2(e): tanh(x) = tanh2(TANH2_UNIT * x) */

static inline struct score_scale score_scale_of(float scale, float softcap) {
    const bool capped = softcap > 0;
    const struct score_scale s = {capped ? softcap : scale,
                                  capped ? TANH2_UNIT * scale / softcap : 0.0f};
    return s;
}

/* n_rows, here and wherever there is a step: the launch's rows; rows past the step's do nothing. */
struct embed_params {
    const struct device_step *step;
    const void *table; /* element [n_vocab, dim] */
    enum element element;
    void *out; /* bf16 [n_rows, dim] */
    uint32_t n_rows, dim;
    float scale;
};

struct add_positions_params {
    const struct device_step *step;
    const void *table; /* element [n_positions, dim] */
    enum element element;
    void *x; /* bf16 [n_rows, dim] */
    uint32_t n_rows, dim, first;
};

struct rmsnorm_params {
    const void *x;      /* bf16, row i at x + i * x_stride elements: [n_heads, dim] */
    const void *weight; /* element [dim]; NULL: all are 1 */
    enum element element;
    void *out; /* bf16, row i at out + i * out_stride; may be x unless it accumulates */
    uint32_t n_rows, dim;
    size_t x_stride, out_stride;
    float eps;
    uint32_t n_heads;
    bool accumulate;
    float out_scale; /* what is stored is multiplied by it */
};

struct layernorm_params {
    const void *x;      /* bf16 [n_rows, dim] */
    const void *weight; /* element [dim] */
    const void *bias;   /* bias_element [dim], or NULL */
    enum element element, bias_element;
    void *out; /* bf16 [n_rows, dim]; may be x */
    uint32_t n_rows, dim;
    float eps;
};

struct activate_params {
    void *x; /* bf16 [n] */
    size_t n;
    enum act_kind kind;
};

struct angles_params {
    const struct device_step *step;
    const double *inv_freq; /* [n_freqs] */
    float *angles;          /* [n_rows][2][n_freqs]: cosines, then sines; with in_text twice */
    uint32_t n_rows, n_freqs;
    float scale;
    bool in_text; /* the same of positions in the text follow */
};

struct rope_append_params {
    const struct device_step *step;
    void *qkv; /* bf16, row i at qkv + i * qkv_stride: n_heads + 2 * n_kv_heads heads */
    size_t qkv_stride;
    const float *angles; /* from angles_params */
    struct kv_pool kv;   /* page: [K,V][n_kv_heads][PAGE_TOKENS][head_dim], then the states */
    uint32_t n_rows, n_heads, n_freqs, layer;
    /* Of rows whose sequence does not count positions in the cache in this layer; NULL:
     * `angles`. */
    const float *text_angles;
    float query_beta; /* as in rope_append_args, */
    uint32_t query_period;
    const void *q_norm, *k_norm; /* bf16 [head_dim]; or NULL */
    float norm_eps;
};

/* Attention of the step's first n_decode rows, or of the rows behind them. */
struct attn_simple_params {
    const struct device_step *step;
    const void *q; /* bf16, row i at q + i * q_stride elements: [n_heads, head_dim] */
    size_t q_stride;
    void *out;         /* bf16 [n_rows of the step, n_heads * head_dim] */
    struct kv_pool kv; /* as in rope_append_params */
    uint32_t n_heads, layer;
    uint32_t n_rows; /* the launch's rows */
    bool decode;
    struct score_scale scale;
    struct score_bias bias;
    struct head_sinks sinks;
    struct attn_stats attn_stats;
    bool selects;    /* as in attn_args */
    uint32_t window; /* a row sees only this many slots, the newest; 0: all */
    struct key_rotations rotations;
    int32_t sparse_seq; /* of the step: its rows visit what `sparse` says; -1: none */
    struct sparse_view sparse;
};

/* The pages that kernels read for a layer's prompts: the pool's own, or copies of them
 * (kv/prompt_copies.c). */
struct prompt_pages {
    struct kv_pool kv;
    const struct device_step *step; /* names the pages, */
    const int32_t *table;           /* as does this, the layer's block table */
};

/* Scores of bounded caches, and eviction by these: evict_decode.cu, evict_scores.cu,
 * evict_chunk.cu. */
struct evict_params {
    const struct device_step *step;
    const void *q; /* bf16, row i at q + i * q_stride elements: [n_heads, head_dim] */
    size_t q_stride;
    struct kv_pool kv;
    uint32_t n_heads, layer;
    struct score_scale scale;
    struct score_bias bias;
    struct head_sinks sinks;
    struct attn_stats attn_stats; /* of the same layer's attention */
    struct key_rotations rotations;
    /* The keys that launch_evict_scores() and launch_evict_select() read: those of prompts that
     * store them after RoPE, and the others'. */
    struct prompt_pages stored, ranked;
    bool is_rotated; /* the others' keys, in these pages */
};

/* Bounded caches in n_layers layers from first_layer on: evict_move.cu, evict_oldest.cu. */
struct evict_layers {
    const struct device_step *step;
    struct kv_pool kv;
    uint32_t first_layer, n_layers;
    /* Which of them move: those with scores, whose lists of launch_evict_select() are in
     * attn_stats, or the others.  group: query heads of a KV head. */
    bool has_scores;
    uint32_t group;
    struct attn_stats attn_stats;
};

/* Full bounded caches, one in each layer: evict_order.cu. */
struct order_params {
    struct kv_pool kv;
    const int32_t *table; /* [n_layers][layer_pages] */
    uint32_t layer_pages, n_layers, capacity;
};

/* Copies of the pages that prompts have in a layer: all of them, or only those with keys that are
 * stored before RoPE.  A prompt's copies lie one after the other, and so do the prompts. */
struct prompt_copies_params {
    const struct device_step *step;
    struct kv_pool from, to;   /* to: the copies */
    uint32_t layer, window;    /* window: the layer's; 0: none */
    bool ranked_only, rotates; /* rotates: keys that are stored before RoPE */
    struct key_rotations rotations;
};

struct gate_mul_params {
    const void *gate_up; /* bf16 [n_rows, 2 * dim] */
    void *out;           /* bf16 [n_rows, dim] */
    uint32_t n_rows, dim;
    enum gate_kind kind;
};

/* Rows as E4M3 with scales: quantise.cu.  dim is a multiple of 16, or of the group, and at most
 * 65,536.  codes and scales may not overlap x. */
enum { QUANTISE_GROUP = 128 };
struct quantise_params {
    const void *x;           /* bf16 [n_rows, dim]; if gated [n_rows, 2 * dim], gate before up */
    const void *norm_weight; /* norm_element [dim]: RMSNorm(x) is quantised; NULL: x is */
    enum element norm_element;
    float eps;
    bool gated; /* kind(gate) * up is quantised */
    enum gate_kind kind;
    uint8_t *codes; /* [n_rows, dim] */
    float *scales;  /* [n_rows], or if scale_stride > 0 [dim / QUANTISE_GROUP][scale_stride] */
    uint32_t n_rows, dim, scale_stride;
    float most; /* > 0: larger elements count, and become, as this */
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

/* A row of a sample op, with its lists in device memory. */
struct device_sample {
    uint32_t logit_row, kind, target, n_counts, n_bias, n_banned, n_top;
    struct sampler sampler;
    double uniform;
    const struct token_count *counts;
    const struct logit_bias *bias;
    const uint32_t *banned;
    const uint32_t *allowed; /* NULL: all are */
    float *changed;          /* [n_vocab] scratch if the row's logits are changed; else NULL */
};

struct sample_params {
    const float *logits;              /* [*, n_vocab] */
    const struct device_sample *rows; /* [n] */
    struct sample_result *results;    /* [n], zeroed; may be pinned memory of the host */
    int32_t *sampled;                 /* [n]: the sampled tokens again, for the next step */
    uint32_t n, n_vocab;
    bool fixed_teams; /* of one size, so that no log-probability's last bits depend on n */
};

cudaError_t launch_embed(const struct embed_params *p, struct launch launch);
cudaError_t launch_add_positions(const struct add_positions_params *p, struct launch launch);
cudaError_t launch_rmsnorm(const struct rmsnorm_params *p, struct launch launch);
cudaError_t launch_layernorm(const struct layernorm_params *p, struct launch launch);
cudaError_t launch_activate(const struct activate_params *p, struct launch launch);
cudaError_t launch_angles(const struct angles_params *p, struct launch launch);
/* Says whether the kernel that fits takes norms of heads. */
bool rope_append_takes_norms(const struct rope_append_params *p);
cudaError_t launch_rope_append(const struct rope_append_params *p, struct launch launch);
cudaError_t launch_attn_simple(const struct attn_simple_params *p, struct launch launch);
/* Copies `bytes`, up to the next multiple of 16, from pinned memory of the host to the device's, or
 * the other way.  Both addresses are multiples of 16. */
cudaError_t launch_small_copy(void *to, const void *from, size_t bytes, bool from_host,
                              struct launch launch);
/* Launches an empty kernel that begins when all before it have ended.  What these wrote, the
 * kernels after it may read before they wait. */
cudaError_t launch_boundary(struct launch launch);
/* Copies pages; none of them may be in both lists. */
cudaError_t launch_copy_pages(const struct kv_pool *kv, const struct page_copies *copies,
                              struct launch launch);
/* Launches an eviction kernel for the sequences with a budget: of n_rows rows that decode, or of
 * n_seqs sequences that do not and hold at most max_slots slots each.  With struct evict_params
 * only for budgets with scores, and launch_evict_oldest() only for those without. */
cudaError_t launch_evict_decode(const struct evict_params *p, uint32_t n_rows,
                                struct launch launch);
cudaError_t launch_evict_scores(const struct evict_params *p, uint32_t n_seqs, uint32_t max_slots,
                                struct launch launch);
cudaError_t launch_evict_select(const struct evict_params *p, uint32_t n_seqs,
                                struct launch launch);
cudaError_t launch_evict_move(const struct evict_layers *p, uint32_t n_seqs, struct launch launch);
cudaError_t launch_evict_oldest(const struct evict_layers *p, uint32_t n_rows,
                                struct launch launch);
cudaError_t launch_evict_order(const struct order_params *p, struct launch launch);
/* Computes totals [n_seqs]. */
cudaError_t launch_evict_totals(const struct device_step *step, const struct kv_pool *kv,
                                struct evict_total *totals, uint32_t n_seqs, struct launch launch);
/* Copies pages of the n_seqs sequences behind those that decode, at most max_pages each.  Rows that
 * are no multiple of eight elements are only dequantised. */
cudaError_t launch_prompt_copies(const struct prompt_copies_params *p, uint32_t n_seqs,
                                 uint32_t max_pages, struct launch launch);
/* Puts rows into strips (linear/strips.h). */
cudaError_t launch_strips(const struct strips *s, struct launch launch);
cudaError_t launch_gate_mul(const struct gate_mul_params *p, struct launch launch);
cudaError_t launch_quantise(const struct quantise_params *p, struct launch launch);
cudaError_t launch_gather(const struct gather_params *p, struct launch launch);
cudaError_t launch_soft_cap(const struct soft_cap_params *p, struct launch launch);
enum { SAMPLE_MAX_VOCAB = 1 << 20 };
cudaError_t launch_sample(const struct sample_params *p, struct launch launch);

#ifdef __cplusplus
}
#endif

#endif
