/* backend.h - the table of operations that a device implements.
 *
 *   decoder (engine/model/) --> struct backend --> engine/cpu/ or cuda/
 *
 * A step is one pass of the model over the rows (tokens) of many sequences.  The engine describes
 * it once (struct step), step_begin() makes the description known to the device, and every
 * operation up to the next step_begin() refers to it.  Sequences that generate come first (n_decode
 * of them, one row each) and are the business of attn_decode; those that compute a prompt, any
 * number of rows of it, follow and are attn_prefill's.  All are in the order of their rows.
 *
 * KV pages.  A page holds the keys (after RoPE) and values of PAGE_TOKENS slots of one layer, and
 * is named by its number in one pool.  How they lie inside is the backend's business: only
 * operations look there.  Each layer of each sequence has its own list of pages.
 *
 * Bounded caches (struct kv_budget; H2O section 3, StreamingLLM section 3).  Between steps every KV
 * head of every layer keeps at most `capacity` tokens, its own choice.  A new token attends to all
 * of them and to itself, and only then one goes, so there is a slot more than that; the slot of the
 * one that went is free, and the next token is written there.  Nothing is ever moved:
 *
 *   slots    0  1  2  3 … capacity         the free slot is each KV head's own: after the step, by
 *   before   A  S  .  B … T                evict_decode; the next rope_append writes there
 *   step     A  S  U  B … T                all capacity + 1 slots are attended to
 *   after    A  S  U  . … T                B had the lowest score
 *
 * Prompts are computed in chunks behind what is kept, in order of their slots; after a chunk
 * (step_seq.compress) evict_chunk moves what stays to the first `capacity` slots, in the order of
 * the text.  What a head must know of its tokens lies in their pages, behind keys and values.
 *
 * Sparse prefill (struct attn_sparse; MInference section 3).  Of a long prompt each query head
 * visits only part of the keys, which attn_index chooses for one layer, and attn_prefill follows
 * until the next attn_index.  Slots are chosen by groups of SPARSE_GROUP, for tiles of SPARSE_TILE
 * rows, and where diagonals choose, for each half of a tile: a diagonal meets fewer groups of it.
 *
 *   rows    first_slot + SPARSE_TILE t …       tile t; the last may be shorter
 *           first_slot + SPARSE_HALF h …       half h, of tile h / 2
 *   groups  SPARSE_GROUP g … + SPARSE_GROUP - 1
 *
 *   a half visits   the groups that hold rows of its tile
 *                   groups 0 … n_first - 1
 *                   groups at the head's distances: (first slot of the half) / SPARSE_GROUP - g
 *                   single slots before the tile (vertical lines) in groups that it does not visit
 *   or, block-sparse, whole pages of its tile's choice, those of the tile's rows and slot 0's
 *   or, dense, everything
 *
 * each slot once, and of those every row sees the ones that are not behind it.  A distance d is the
 * head's if a group at that distance meets any of its diagonals in some row of a half, so a half
 * visits a superset of what the lines say, and never less.
 *
 * Selections (struct kv_select; OmniKV section 4).  What matters to one layer matters to the next
 * ones, too.  So of a long text only some layers look at everything while tokens are generated; the
 * *filters* among these also choose tokens, and the *sparse* layers behind a filter, its group, see
 * what it chose and the newest tokens, the tail.  Nothing is dropped: the next step chooses anew.
 * Layers with a window take no part: they see the newest tokens as ever, also between a filter and
 * its group, or in the midst of it.
 *
 *   a filter's slots       [ token 0, 1, 2 …                    n_candidates …            newest ]
 *   a sparse layer's slots [ the n_selected chosen, any order ] [ the tail: n_candidates … newest ]
 *   the store              [ token 0, 1, 2 … n_candidates - 1   … ]   of every sparse layer
 *
 * select() follows the filter's attention: it chooses, and brings keys and values of what was not
 * there yet from the store into the slots of those that were not chosen again.  The store is in the
 * system's memory (struct host_pool), or pages of the same pool.
 *
 * Matrices are row-major.  `void *` is device memory, to be touched only through operations.
 * Activations are in `act_dtype` (f32 on the CPU); logits are f32 everywhere.
 *
 * Operations may run asynchronously, in the order of their submission.  Host memory that arguments
 * point to is read before the operation returns, a step's before its last operation does: the
 * engine describes step n + 1 while the device works on step n.  What is written to host memory
 * (sample results) is there after collect() or sync().  Only the store is the device's, too: it is
 * read and written when the operation runs.
 *
 * Thread: engine.  Memory: alloc() and reserve() are for start-up; then no operation allocates
 * device memory.  All operations return 0 or a negative ERR_*. */
#ifndef ENGINE_DEVICE_BACKEND_H
#define ENGINE_DEVICE_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/sizes.h"

struct backend;
struct error;

enum { PAGE_TOKENS = 64, PAGE_ALIGN = 128, LINEAR_MAX_PARTS = 3, SAMPLE_MAX_TOP = 20 };

/* Layers of a model have no more different rotary frequencies. */
enum { MAX_ROPES = 2 };

/* In step.tokens, STEP_SAMPLED | i is the token that row i of the step before drew, counting the
 * rows of all its sample operations: the device knows it already, the host does not.  A row whose
 * result is invalid may give any token of the vocabulary. */
#define STEP_SAMPLED 0x80000000u

/* DTYPE_FP8 is for pages only: struct kv_pool. */
enum dtype { DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_FP8 };

static inline size_t dtype_size(enum dtype dtype) {
    return dtype == DTYPE_F32 ? 4 : dtype == DTYPE_FP8 ? 1 : 2;
}

/* A weight on the device: rows x cols, row-major, rows = output features.  A vector is
 * one row. */
struct weight {
    const void *data; /* NULL: absent (an optional bias) */
    enum dtype dtype;
    uint32_t rows, cols;
};

static inline const struct weight *weight_if_present(const struct weight *weight) {
    return weight->data ? weight : NULL;
}

/* The KV pool and the shape of its pages: keys and values, 2 * n_kv_heads * PAGE_TOKENS * head_dim
 * elements; with DTYPE_FP8 a byte for each row, that is each head's key or value of a slot: the
 * scale of its elements, u8 [K, V][n_kv_heads][PAGE_TOKENS], both as in struct host_pool; then, if
 * the pool is `tracked`, a struct kv_page_state for each KV head.
 *
 * Whoever reads an FP8 row reads element * 2^(scale - 127): the step's own tokens are seen as they
 * are stored, too, so that nothing depends on which step a token came in. */
struct kv_pool {
    void *base; /* [n_pages][page_bytes] */
    enum dtype dtype;
    uint32_t n_pages;
    uint32_t n_kv_heads, head_dim;
    size_t page_bytes; /* kv_page_bytes() */
    bool tracked;      /* sequences may have budgets */
};

/* Attention that evicted tokens would still get, by the rate at which it fades: kv_page_state. */
enum { KV_LOST_TERMS = 21 };

/* What a KV head knows of a page's slots.  The last four are of the whole list of pages and stand
 * in its first page; the first token of a text (position 0) sets them to capacity and 0.
 *
 * What is lost is counted in units of what is kept: a token that leaves at age a (in tokens of the
 * text) with the share r of what the newest query gave to those that stay, would get r * a / A at
 * age A.  Attention of trained models fades about like that, and 1 / A is a sum of exponentials,
 * each of which one number can remember for all tokens that have left:
 *
 *   rate(k) = 2^-k        1 / A ~ ln 2 * sum over k of rate(k) * exp(-rate(k) * A)
 *   lost[k] = sum over evicted tokens of r * a * exp(-rate(k) * A)
 *   loss    = ln 2 * sum over k of rate(k) * lost[k]
 *
 * and of what a query would give to the whole text, the share 1 / (1 + loss) is still kept. */
struct kv_page_state {
    uint32_t position[PAGE_TOKENS]; /* in the text */
    uint32_t rank[PAGE_TOKENS];     /* how many of the kept tokens are older */
    float score[PAGE_TOKENS];       /* attention received, as kv_budget.score says */
    uint32_t free_slot;             /* where the next token goes, once the cache is full */
    uint32_t n_evictions;           /* a compression that drops tokens is one */
    uint32_t lost_at;               /* tokens of the text at the last of them */
    float lost[KV_LOST_TERMS];
};

/* The least share of the newest query that kept tokens count with: what is lost is divided by
 * it. */
#define KV_LEAST_KEPT 0x1p-10f

/* Slots whose tokens one page of kv_select.state_pages names. */
static inline uint32_t kv_state_slots(const struct kv_pool *kv) {
    return (uint32_t)(kv->page_bytes / sizeof(uint32_t));
}

/* Of all elements of a page: the scales follow. */
static inline size_t kv_elements_bytes(const struct kv_pool *kv) {
    return kv->n_kv_heads * 2 * PAGE_TOKENS * kv->head_dim * dtype_size(kv->dtype);
}

/* Where in a page of a tracked pool the state of a KV head begins. */
static inline size_t kv_state_offset(const struct kv_pool *kv, uint32_t kv_head) {
    const size_t n_scales = kv->dtype == DTYPE_FP8 ? kv->n_kv_heads * 2 * PAGE_TOKENS : 0;
    return kv_elements_bytes(kv) + n_scales + kv_head * sizeof(struct kv_page_state);
}

/* Rounded up, so that every page begins a cache line of any device. */
static inline size_t kv_page_bytes(const struct kv_pool *kv) {
    const size_t bytes = kv_state_offset(kv, kv->tracked ? kv->n_kv_heads : 0);
    return round_up(bytes, PAGE_ALIGN);
}

/* That a layer needs for so many slots. */
static inline uint64_t kv_n_pages(uint64_t n_slots) {
    return div_up(n_slots, PAGE_TOKENS);
}

/* How tokens between the sinks and the recent ones are judged: by the attention probabilities they
 * received, summed over the query heads of their KV head's group, in f32. */
enum kv_score {
    KV_SCORE_NONE,  /* not at all: the oldest goes; capacity = n_sink + n_recent */
    KV_SCORE_SUM,   /* of all queries */
    KV_SCORE_MEAN,  /* the same, divided by the number of queries that could see the token */
    KV_SCORE_DECAY, /* score = decay * score + p, query after query */
    KV_SCORE_WINDOW /* of a chunk of the prompt only its last `window` queries count, and what
                       earlier chunks gave is forgotten; generated tokens add to it like SUM */
};

/* What a prompt's tokens before its last `window` are judged by, when it is compressed (SnapKV
 * section 4): of the scores of `kernel` of them, the one in the middle its own, the largest or the
 * sum, added up in the order of the text.  There are fewer at both ends.  Scores stay as they are.
 */
enum kv_pooling { KV_POOLING_NONE, KV_POOLING_MAX, KV_POOLING_AVERAGE };

/* What the sequence keeps between steps: of the tokens of its text the first n_sink, the n_recent
 * newest, and of the others those with the highest score; the older goes first when scores are
 * equal.  NaN counts as the lowest score. */
struct kv_budget {
    uint32_t capacity; /* >= n_sink + n_recent; n_recent >= 1 */
    uint32_t n_sink, n_recent;
    enum kv_score score;
    float decay; /* (0, 1) */
    uint32_t window; /* of KV_SCORE_WINDOW, >= 1; else 0 */
    enum kv_pooling pooling; /* of KV_SCORE_WINDOW, of a prompt in one chunk; window <= n_recent */
    uint32_t kernel; /* odd; where nothing is pooled 0 */
    /* Keys are stored before RoPE and rotated when they are read: a token's position is its rank.
     * Otherwise positions are those of the text. */
    bool cache_positions;
};

#define KV_FREE_SLOT UINT32_MAX /* as append_slot: each KV head's own free slot */

enum { SPARSE_GROUP = 16, SPARSE_TILE = 128, SPARSE_HALF = SPARSE_TILE / 2, SPARSE_QUERIES = 64,
       SPARSE_MIN_DIAGONALS = 100, SPARSE_MIN_COLUMNS = 30 };

/* A larger p1 of vertical lines, or of pages, is refused.  The largest published is 22,032. */
enum { SPARSE_MAX_COLUMNS = 24576, SPARSE_MAX_PAGES = 1024 };

/* How a query head chooses keys (MInference section 3.2). */
enum attn_pattern_kind {
    PATTERN_DENSE,          /* it does not */
    PATTERN_A_SHAPE, /* the first p1 slots and of every row the p2 newest, its own among them */
    PATTERN_VERTICAL_SLASH, /* the p1 slots and the p2 diagonals with the most attention of the last
                               SPARSE_QUERIES rows; the first SPARSE_MIN_COLUMNS slots and the
                               nearest SPARSE_MIN_DIAGONALS diagonals are always among them */
    PATTERN_BLOCK_SPARSE,   /* of every tile the p1 pages whose mean key has the largest product
                               with the tile's mean query */
    PATTERN_N_KINDS
};

struct attn_pattern {
    enum attn_pattern_kind kind;
    uint32_t p1, p2;
};

/* A filter layer and the sparse layers that follow its choice: those of [first, end) that have no
 * window.  The filter has none, and if there are any, neither have the first and the last of these.
 * windows, here and below: as in struct step. */
struct layer_group {
    uint32_t filter, first, end;
};

enum { MAX_LAYER_GROUPS = 8 };

static inline bool layer_has_window(const uint32_t *windows, uint32_t layer) {
    return windows && windows[layer] > 0;
}

static inline bool group_has(const struct layer_group *group, const uint32_t *windows,
                             uint32_t layer) {
    return layer >= group->first && layer < group->end && !layer_has_window(windows, layer);
}

/* Sparse layers of the group that come before this one: the layer's place among them. */
static inline uint32_t group_n_before(const struct layer_group *group, const uint32_t *windows,
                                      uint32_t layer) {
    uint32_t n = 0;
    for (uint32_t l = group->first; l < group->end && l < layer; l++)
        n += !layer_has_window(windows, l);
    return n;
}

static inline uint32_t group_n_layers(const struct layer_group *group, const uint32_t *windows) {
    return group_n_before(group, windows, group->end);
}

/* Of n groups together. */
static inline uint32_t groups_n_layers(const struct layer_group *groups, uint32_t n,
                                       const uint32_t *windows) {
    uint32_t n_layers = 0;
    for (uint32_t i = 0; i < n; i++) n_layers += group_n_layers(&groups[i], windows);
    return n_layers;
}

/* Where tokens of sparse layers lie that are not in the pool, in the system's memory:
 * [n_blocks][n_host_layers][PAGE_TOKENS] tokens, each [K, V][n_kv_heads][head_dim] and one
 * contiguous read.  A block is PAGE_TOKENS tokens of one sequence; a plane is a sparse layer, in
 * the order of the layers.
 *
 * With fp8 each element is a byte, and behind them a byte for each head's keys and values is their
 * scale: powers of two, so that scaling costs no bit, and what 4 bits can hold returns unchanged.
 *
 *   token     u8 [K, V][n_kv_heads][head_dim], u8 [K, V][n_kv_heads], up to a multiple of 16
 *   element   (e4m3) * 2^(scale - 127), rounded to nearest even: finite elements are off by at most
 *             a 16th, or those below 2^(scale - 133) by 2^(scale - 137); NaN stays NaN
 *   scale     of 1 … FP8_MOST_SCALE the least with which 448, e4m3's largest, covers every element;
 *             what the largest scale does not cover, infinity too, becomes 448 times it */
struct host_pool {
    void *base; /* of host_pool_alloc() */
    enum dtype dtype; /* of the pool */
    uint32_t n_blocks, n_host_layers, n_kv_heads, head_dim;
    bool fp8; /* always, where the pool's elements are: then nothing is converted */
};

/* 448 times the largest scale is finite in f32 and bf16, and in f16. */
enum { FP8_MOST_SCALE = 246, FP8_MOST_SCALE_F16 = 134 };

static inline size_t host_pool_token_bytes(const struct host_pool *store) {
    const size_t n_rows = 2 * (size_t)store->n_kv_heads;
    return store->fp8 ? round_up(n_rows * (store->head_dim + 1), 16)
                      : n_rows * store->head_dim * dtype_size(store->dtype);
}

static inline size_t host_pool_block_bytes(const struct host_pool *store) {
    return store->n_host_layers * PAGE_TOKENS * host_pool_token_bytes(store);
}

/* Which tokens the sparse layers of a sequence that generates see, or whose prompt's last token is
 * computed like that. */
struct kv_select {
    uint32_t n_selected;   /* slots for chosen tokens; a multiple of PAGE_TOKENS */
    uint32_t n_candidates; /* of which they are chosen; a multiple of PAGE_TOKENS, > n_selected */
    uint32_t n_sink;       /* the first tokens, always chosen; <= n_selected */
    bool fresh;            /* the slots hold nothing yet: all that is chosen is fetched */
    /* Host [n_groups][n_state_pages]: of each group, uint32_t [n_selected]: the token in each slot,
     * kv_state_slots() of them in a page. */
    const uint32_t *state_pages;
    /* The store, host [n_candidates / PAGE_TOKENS]: blocks; or, where it is NULL, pages of each
     * layer [n_layers], those of layers that are not sparse unused. */
    const uint32_t *blocks;
    const uint32_t *const *pool_pages;
};

/* Which keys a prompt's rows visit. */
struct attn_sparse {
    const struct attn_pattern *patterns; /* host [n_layers][n_heads] */
    uint32_t first_slot;  /* of the rows that are indexed together; a multiple of PAGE_TOKENS */
    uint32_t n_rows;      /* of them: rows from first_slot on */
    uint32_t dense_from;  /* slot: a tile with a row there or behind it is dense */
    /* A head that would visit more than this share of what is causal visits everything. */
    float dense_above;
    /* For benchmarks on random weights, whose attention has no lines; 0: by attention.  Otherwise
     * a vertical-slash head's lines are scored without it, half of p2 next to the rows and the
     * others in runs of 64 at random, the same on every backend (all integers are 32-bit):
     *
     *   diagonal o   2 if o < p2 / 2, otherwise 1 + h(o / 64)
     *   column j     h(0x80000000 | j)
     *   h(x)         v = x * 0x9e3779b9 + head * 0x85ebca6b + synthetic
     *                v ^= v >> 16, v *= 0x7feb352d, v ^= v >> 15, v *= 0x846ca68b, v ^= v >> 16
     *                (v >> 9) / 2^23, in [0, 1) and exact in f32, as 1 + h is */
    uint32_t synthetic;
};

/* One layer of one sequence as a step sees it. */
struct kv_view {
    const uint32_t *pages; /* host, in slot order: slot s is in pages[s / PAGE_TOKENS] */
    uint32_t n_slots;      /* slots in use once this step's rows have been appended */
    uint32_t append_slot;  /* slot of the sequence's first row; the next rows follow.  Of a full
                              bounded cache KV_FREE_SLOT: one row, n_slots = capacity + 1 */
};

struct step_seq {
    uint32_t first_row;           /* in [0, n_rows) */
    uint32_t n_rows;              /* >= 1; exactly 1 for the first n_decode sequences */
    const struct kv_view *layers; /* [step.n_layers] */
    const struct kv_budget *budget; /* NULL: it keeps everything.  Not NULL: all layers have the
                                       same n_slots and append_slot */
    uint32_t n_before;              /* tokens of the text before the first row */
    /* With a budget: */
    bool begins_chunk;  /* prompts: the first row does.  With KV_SCORE_WINDOW, what earlier chunks
                           gave is forgotten before this step's rows count */
    uint32_t score_row; /* prompts: the sequence's rows from this one on count for scores */
    bool compress;      /* prompts: the last row ends a chunk.  After this step the first
                           min(n_slots, capacity) slots are kept */
    /* NULL: attention is dense.  At most one sequence of a step has this, a prompt's without a
     * budget, whose rows are some of those that are indexed together.  Those that attn_prefill
     * computes begin at a multiple of SPARSE_TILE from first_slot. */
    const struct attn_sparse *sparse;
    /* NULL: the slots of all layers are those of the text.  Only of sequences that decode, without
     * a budget. */
    const struct kv_select *select;
};

/* Query row i of a sequence sees slots [0, n_slots - n_rows + i]: the rows are the newest tokens,
 * causal among themselves.  In a layer with a window it sees only the newest of these. */
struct step {
    uint32_t n_rows, n_seqs, n_decode, n_layers;
    /* Host [n_layers]: how many slots a row sees at most, its own among them; 0: all.  NULL: all
     * everywhere.  In layers with a window sequences with a budget have no more slots than it, the
     * slots of those that select are those of the text, and a sparse sequence is dense. */
    const uint32_t *windows;
    const uint32_t *tokens;    /* host [n_rows]; or STEP_SAMPLED | i */
    const uint32_t *positions; /* host [n_rows], RoPE positions; with cache_positions, ranks */
    const struct step_seq *seqs;
};

static inline uint32_t step_window(const struct step *step, uint32_t layer) {
    return step->windows ? step->windows[layer] : 0;
}

struct embed_args {
    const struct weight *table; /* [vocab, dim] */
    void *out;                  /* act [n_rows, dim]: the step's tokens, */
    float scale;                /* times this */
};

/* Norms n_heads vectors of each row, one behind the other, each by itself. */
struct rmsnorm_args {
    const void *x;               /* act, row i at x + i * x_stride elements: [n_heads, dim] */
    const struct weight *weight; /* [dim] */
    void *out;                   /* act, row i at out + i * out_stride elements; may be x */
    uint32_t n_rows, dim;
    size_t x_stride, out_stride;
    float eps;
    uint32_t n_heads; /* >= 1 */
    bool accumulate;  /* out += the norm; out is not x */
};

/* A product's input that is RMSNorm(x), not x: a device may norm while it multiplies, or first. */
struct rmsnorm_input {
    const struct weight *weight; /* [n_in] */
    float eps;
    void *normed; /* act [n_rows, n_in]: room, not x; what it holds afterwards is undefined */
};

/* One of up to LINEAR_MAX_PARTS products that share their input (q, k, v or gate, up). */
struct linear_part {
    const struct weight *w;    /* [n_out, n_in] */
    const struct weight *bias; /* [n_out] or NULL */
    void *y;                   /* row i at y + i * y_stride elements */
    size_t y_stride;
};

/* y = x W^T (+ b), or y += x W^T (+ b) when accumulate is set (the residual stream). */
struct linear_args {
    const void *x;                    /* act [n_rows, n_in], packed */
    const struct rmsnorm_input *norm; /* NULL: x as it is */
    uint32_t n_rows, n_in, n_parts;
    struct linear_part parts[LINEAR_MAX_PARTS];
    bool accumulate;
    bool y_f32; /* y is f32 whatever act_dtype is (logits) */
};

/* The norm of a product's input as an operation of its own, into norm->normed. */
static inline struct rmsnorm_args linear_norm(const struct linear_args *args) {
    const struct rmsnorm_args norm = {args->x,      args->norm->weight, args->norm->normed,
                                      args->n_rows, args->n_in,         args->n_in,
                                      args->n_in,   args->norm->eps,    1,
                                      false};
    return norm;
}

/* What the gate goes through: g * sigmoid(g), or the tanh approximation of GELU, which is
 * g * sigmoid(GELU_1 g + GELU_3 g^3). */
enum gate_kind { GATE_SILU, GATE_GELU };
#define GELU_1 1.5957691216f /* 2 sqrt(2 / pi) */
#define GELU_3 0.0713548163f /* 0.044715 of that */

/* The gated half of a feed-forward layer: out = kind(x Wg^T + bg) * (x Wu^T + bu). */
struct gated_args {
    const void *x;                    /* act [n_rows, n_in], packed */
    const struct rmsnorm_input *norm; /* NULL: x as it is */
    uint32_t n_rows, n_in;
    const struct weight *gate, *up;           /* [n_out, n_in] */
    const struct weight *gate_bias, *up_bias; /* [n_out] or NULL */
    void *gate_up; /* act [n_rows, 2 * n_out]: room; what it holds afterwards is undefined */
    void *out;     /* act [n_rows, n_out], packed */
    enum gate_kind kind;
};

/* Rotates q and k of the step's rows in place (half-split pairs (i, i + dim/2) of the first
 * 2 * n_freqs elements) and writes k, v into the sequences' pages of `layer`.
 * qkv act [n_rows, (n_heads + 2 * n_kv_heads) * head_dim]: q heads, k heads, v heads.
 * With a budget it also writes the rows' position, rank and score (0) into their slots' state, and
 * with cache_positions leaves k as it is (q is rotated). */
struct rope_append_args {
    void *qkv;
    const struct kv_pool *kv;
    const double *inv_freq; /* host [n_freqs], radians per position */
    /* Multiplies cos and sin (attention factor); 1 unless the model says so. */
    float rope_scale;
    uint32_t n_freqs, layer, n_heads;
    uint32_t rope; /* < MAX_ROPES: which of the model's frequencies these are */
};

/* Attention of the step's rows over the pages of `layer`.  attn_decode handles sequences
 * [0, n_decode), attn_prefill the rest; an empty range is a no-op.  q rows are the q heads inside
 * qkv. */
struct attn_args {
    const void *q;   /* act, row i at q + i * q_stride elements: [n_heads, head_dim] */
    size_t q_stride;
    void *out;       /* act [n_rows, n_heads * head_dim] */
    const struct kv_pool *kv;
    uint32_t layer, n_heads;
    float scale;     /* 1 / sqrt(head_dim) unless the model says otherwise */
    /* 0, or scores, which are scale * q . k, become softcap * tanh(score / softcap), wherever they
     * are made, before anything is hidden. */
    float softcap;
    /* For keys that are rotated when they are read, as in rope_append_args. */
    const double *inv_freq;
    float rope_scale;
    uint32_t n_freqs, rope;
    /* f32 [n_rows, n_heads], or NULL: base-2 logarithm of the sum of exp over the visited keys, of
     * the rows that attn_prefill computes.  Not with keys that are rotated when they are read. */
    float *lse;
    /* select() follows, with the same arguments: attn_decode leaves behind what it needs. */
    bool selects;
};

/* What select() does for the sequences that have a kv_select: a candidate is worth the largest
 * softmax weight that any query head of `attn`'s layer gives it (among all that the row sees; f32).
 * The n_selected best are chosen, the first n_sink in any case; ties go to the lower token, NaN
 * counts as the lowest.  The sparse layers of the group have them in their slots before their
 * attention. */
struct select_args {
    struct attn_args attn; /* of the filter's attn_decode */
    const struct layer_group *group;
    uint32_t group_index;  /* among all groups: whose state_pages */
    uint32_t first_host_layer;  /* of group->first in the store */
    const struct host_pool *store; /* NULL: no sequence has blocks */
    /* f32 [n_candidates], or NULL: what each candidate of the step's first sequence, which has a
     * kv_select, is worth; NaN: -1.  The search of filters asks for it, with a group that has no
     * sparse layers. */
    float *worth;
};

/* Copies n pages of a layer of the pool to its plane of n blocks, once everything submitted before
 * is done; the pages may be overwritten by what is submitted after the next step_begin(), the
 * blocks be read by it. */
struct offload_args {
    const struct kv_pool *kv;
    const struct host_pool *store;
    uint32_t plane, n;
    const uint32_t *pages, *blocks; /* host [n] */
};

/* Lines are scored by the attention of the last min(SPARSE_QUERIES, sparse->n_rows) rows over slots
 * [0, first_slot + n_rows), softmax in f32, summed by slot and by diagonal; ties go to the lower
 * slot and the shorter distance. */
struct attn_index_args {
    const void *q; /* act, sparse->n_rows rows as in attn_args */
    size_t q_stride;
    const struct kv_pool *kv;
    uint32_t layer, n_heads;
    float scale, softcap; /* as in attn_args */
    /* Host [n_heads], valid after collect() or sync(), or NULL: the share of causal pairs that each
     * head's choice visits, which dense_above judges.  The search of patterns asks for it. */
    float *density;
};

/* What attn_prefill visited since the last call, over layers, heads and rows, for each kind of
 * pattern that attn_sparse names. */
struct sparse_totals {
    double visited[PATTERN_N_KINDS], causal[PATTERN_N_KINDS]; /* pairs of row and slot */
    uint64_t n_dense; /* heads of one layer that were dense because they were above dense_above */
    double index_s, attention_s; /* the device was busy with */
};

/* What the evictions of one sequence have cost so far, over its layers and KV heads. */
struct evict_total {
    float retained_attention;      /* the share of attention that falls on kept tokens (kv_page_state), mean
                             over layers and heads; NAN: no scores, or nothing was evicted */
    uint32_t n_evictions; /* of one KV head of one layer */
};

/* What select() did for one sequence in one step, summed over the groups: tokens, of one layer. */
struct select_total {
    uint32_t n_chosen, n_fetched;
    uint32_t n_copies; /* n_fetched, each once for every sparse layer of its group */
};

/* out[i] = x[rows[i]]: picks the rows that need logits. */
struct gather_rows_args {
    const void *x; /* act [*, dim] */
    void *out;     /* act [n, dim] */
    const uint32_t *rows; /* host [n] */
    uint32_t n, dim;
};

/* x = cap * tanh(x / cap), where linear has left logits; NaN stays NaN. */
struct soft_cap_args {
    void *x; /* f32 [n_rows, dim] */
    uint32_t n_rows, dim;
    float cap;
};

struct logit_bias {
    uint32_t token;
    float bias;
};

/* A token the sequence has seen, once per distinct token. */
struct token_count {
    uint32_t token;
    uint32_t n_output; /* times generated */
    bool in_prompt;
};

enum sample_kind {
    SAMPLE_DRAW, /* choose a token */
    SAMPLE_SCORE /* report the log-probability of `target` (prompt log-probabilities) */
};

/* What to do with one row of logits.  Order: bias and bans, repetition, frequency and presence
 * penalties, temperature, top_k, min_p, top_p (kept tokens' mass >= top_p), draw: the first kept
 * token, in the order of their ids, at which the sum of the probabilities exceeds `uniform`.
 * Ties go to the lower token id.  Log-probabilities are of the unmodified logits (log-softmax). */
struct sample_row {
    uint32_t logit_row; /* row of the logits matrix */
    enum sample_kind kind;
    uint32_t target; /* SAMPLE_SCORE */
    float temperature; /* 0: greedy */
    float top_p;       /* (0, 1]; 1: off */
    float min_p;       /* [0, 1]; 0: off */
    uint32_t top_k;    /* 0: off */
    float repetition_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0: off */
    double uniform;    /* [0, 1): the draw, made by the engine from the request's seed */
    const struct token_count *counts; /* host [n_counts], for the penalties */
    uint32_t n_counts;
    const struct logit_bias *bias; /* host [n_bias] */
    uint32_t n_bias;
    const uint32_t *banned; /* host [n_banned]: logit -inf (end tokens before min_tokens) */
    uint32_t n_banned;
    uint32_t n_top; /* top log-probabilities wanted, <= SAMPLE_MAX_TOP */
};

struct token_logprob {
    uint32_t token;
    float logprob;
};

struct sample_result {
    uint32_t token;   /* drawn, or the target */
    float logprob;    /* of token */
    uint32_t rank;    /* 1: token has the highest logit */
    bool invalid;     /* the row holds NaN or +inf, or nothing finite: only this request fails */
    uint32_t n_top;
    struct token_logprob top[SAMPLE_MAX_TOP]; /* best first */
};

struct sample_args {
    const void *logits; /* f32 [*, vocab] */
    uint32_t n_vocab, n;
    const struct sample_row *rows;  /* host [n] */
    struct sample_result *results;  /* host [n], valid after collect() or sync() */
};

/* Operations of a step of n_rows rows, for repeat(). */
typedef int (*graph_body)(void *ctx, uint32_t n_rows, struct error *err);

/* The largest step that will come, and the shape of its model. */
struct step_limits {
    uint32_t max_rows, max_seqs;
    uint32_t max_seq_pages;  /* of a sequence, in each layer */
    uint64_t max_slots;      /* of all sequences, in a layer, shared ones once */
    uint64_t max_prompt_slots; /* with DTYPE_FP8: of those that attn_prefill computes, in a layer */
    enum dtype kv_dtype;
    uint32_t max_logit_rows; /* of one sample op */
    uint32_t n_layers, n_heads, n_kv_heads, head_dim, n_freqs, n_vocab;
    bool tracked; /* sequences may have budgets, */
    uint32_t max_positions; /* and then ranks are smaller than this */
    uint32_t max_sparse_rows, max_sparse_slots; /* of attn_index; 0: there is none */
    uint32_t max_select_slots; /* of a sequence with a kv_select, in a filter layer; 0: there is
                                  none, */
    uint32_t max_selected;     /* its n_selected, */
    uint32_t n_groups, max_group_layers; /* sparse ones of the largest group */
};

struct device_memory {
    uint64_t free, total; /* bytes; what is not free may be anybody's */
};

/* What the device can do at most: the bounds beside every benchmark, measured in the same run. */
struct ceilings {
    double copy_bytes_per_s; /* memory far larger than the caches: bytes read + bytes written */
    double read_bytes_per_s; /* the same, read only */
    double flops_per_s;      /* multiply-adds of products, two operations each */
};

struct backend_ops {
    void (*destroy)(struct backend *be);

    /* The device's memory.  total 0: it is the operating system's to say. */
    struct device_memory (*memory)(struct backend *be);
    /* Allocates whatever operations need of the device beside their arguments, for steps within the
     * limits: from then on none of them allocates there.  Room in the system's memory may grow to
     * the largest step seen. */
    int (*reserve)(struct backend *be, const struct step_limits *limits, struct error *err);
    /* Memory.  alloc is zero-filled and 64-byte aligned. */
    int (*alloc)(struct backend *be, size_t bytes, void **out, struct error *err);
    void (*free)(struct backend *be, void *memory);
    /* Makes host bytes readable by the device.  *out is host itself (an alias, on the CPU): then
     * they must outlive it; or a copy: then they may change as soon as this returns.  Give the
     * result to weight_release. */
    int (*weight_upload)(struct backend *be, const void *host, size_t bytes, const void **out,
                         struct error *err);
    void (*weight_release)(struct backend *be, const void *weight);
    int (*upload)(struct backend *be, void *to, const void *host, size_t bytes, struct error *err);
    int (*download)(struct backend *be, void *host, const void *from, size_t bytes,
                    struct error *err);
    /* The system's memory that the device reads and writes, for host_pool.base; not cleared. */
    int (*host_pool_alloc)(struct backend *be, size_t bytes, void **out, struct error *err);
    void (*host_pool_free)(struct backend *be, void *memory);
    int (*copy_pages)(struct backend *be, const struct kv_pool *kv, const uint32_t *from,
                      const uint32_t *to, uint32_t n, struct error *err);

    /* A step. */
    int (*step_begin)(struct backend *be, const struct step *step, struct error *err);
    int (*embed)(struct backend *be, const struct embed_args *args, struct error *err);
    int (*rmsnorm)(struct backend *be, const struct rmsnorm_args *args, struct error *err);
    int (*linear)(struct backend *be, const struct linear_args *args, struct error *err);
    int (*gated)(struct backend *be, const struct gated_args *args, struct error *err);
    int (*rope_append)(struct backend *be, const struct rope_append_args *args, struct error *err);
    int (*attn_decode)(struct backend *be, const struct attn_args *args, struct error *err);
    int (*attn_prefill)(struct backend *be, const struct attn_args *args, struct error *err);
    /* Chooses the keys of every head for one layer of the step's sparse sequence, whose step this
     * is that has the last of the rows indexed together: all of them and their keys are there.
     * NULL: this backend has only dense attention. */
    int (*attn_index)(struct backend *be, const struct attn_index_args *args, struct error *err);
    /* Adds up what sparse sequences visited since the last call; out is valid after collect() or
     * sync(). */
    int (*sparse_totals)(struct backend *be, struct sparse_totals *out, struct error *err);
    /* What follows the attention of a layer, with the same arguments, for the sequences that have a
     * budget: evict_decode for [0, n_decode), evict_chunk for the rest.  Scores are brought up to
     * date from the queries and the keys, then whoever must go goes. */
    int (*evict_decode)(struct backend *be, const struct attn_args *args, struct error *err);
    int (*evict_chunk)(struct backend *be, const struct attn_args *args, struct error *err);
    /* After the last layer: totals host [step.n_seqs], of those with a budget, valid after
     * collect() or sync(). */
    int (*evict_totals)(struct backend *be, const struct kv_pool *kv, struct evict_total *totals,
                       struct error *err);
    /* Behind attn_decode of a filter layer; before that of the group's first sparse layer.  NULL:
     * this backend cannot select. */
    int (*select)(struct backend *be, const struct select_args *args, struct error *err);
    /* After the last layer: totals host [step.n_decode], of those with a kv_select, valid after
     * collect() or sync(). */
    int (*select_totals)(struct backend *be, struct select_total *totals, struct error *err);
    /* Between steps. */
    int (*offload_pages)(struct backend *be, const struct offload_args *args, struct error *err);
    int (*gather_rows)(struct backend *be, const struct gather_rows_args *args, struct error *err);
    int (*soft_cap)(struct backend *be, const struct soft_cap_args *args, struct error *err);
    int (*sample)(struct backend *be, const struct sample_args *args, struct error *err);
    /* Runs the operations of `body`, or launches again what it launched for the same ctx and n_rows
     * before.  For steps whose sequences all decode, and bodies whose arguments depend on ctx and
     * n_rows only: everything that changes between two calls is in the step.  n_rows may exceed
     * step.n_rows where the backend `repeats`: what is computed in the rows past the step's end
     * depends on nothing and reaches nobody, and no page is written for them. */
    int (*run_graph)(struct backend *be, uint32_t n_rows, graph_body body, void *ctx,
                  struct error *err);
    /* Waits until all steps but the newest n_newer (counted by step_begin) are done, and their
     * results are in place; results of newer steps may be, too.  A failure of what was awaited is
     * reported here at the latest. */
    int (*collect)(struct backend *be, uint32_t n_newer, struct error *err);
    /* Waits until everything submitted is done; reports failures like collect(). */
    int (*sync)(struct backend *be, struct error *err);

    /* For benchmarks.  Takes about a second, and memory that it gives back; be is idle. */
    int (*measure)(struct backend *be, struct ceilings *out, struct error *err);
};

/* Implementations embed this as their first member. */
struct backend {
    const struct backend_ops *ops;
    const char *name; /* "cpu", "cuda" */
    enum dtype act_dtype;
    /* repeat() records what a body launches, for each n_rows: the caller rounds up to few sizes. */
    bool repeats;
    /* It works while the host does, so a step is better submitted before the results of the last
     * one are known. */
    bool runs_ahead;
    char description[128]; /* one line for the log: instruction set or device name, threads */
};

#endif
