/* backend.h - the table of operations that a device implements.
 *
 *   decoder (engine/model/) --> struct backend --> engine/cpu/ or cuda/
 *
 * A step is one pass of the model over the rows (tokens) of many sequences.  The engine describes
 * it once (struct step), and step_begin() gives the description to the device.  Every operation up
 * to the next step_begin() refers to it.  Sequences that generate come first, n_decode of them with
 * one row each; attn_decode computes them.  Sequences that compute any number of rows of a prompt
 * follow; attn_prefill computes them.  All are in the order of their rows.
 *
 * KV pages.  A page holds the keys (after RoPE) and values of PAGE_TOKENS slots of one layer, and
 * is named by its number in one pool.  Its layout is private to the backend: only operations read
 * or write it.  Each layer of each sequence has its own list of pages.
 *
 * Bounded caches (struct kv_budget; H2O section 3, StreamingLLM section 3).  Between steps every KV
 * head of every layer keeps at most `capacity` tokens, chosen by itself.  A new token attends to
 * all of them and to itself before one is evicted, so there are capacity + 1 slots.  The evicted
 * token's slot is free, and the next token is written there.  No token is moved while the sequence
 * generates:
 *
 *   slots    0  1  2  3 … capacity         each KV head has its own free slot: evict_decode
 *   before   A  S  .  B … T                chooses it, the next rope_append writes there
 *   step     A  S  U  B … T                all capacity + 1 slots are attended to
 *   after    A  S  U  . … T                B had the lowest score
 *
 * Prompts are computed in chunks, whose slots follow the kept tokens' in order of the text.  After
 * a chunk (step_seq.compress) evict_chunk moves the tokens it keeps to the first `capacity` slots,
 * in the order of the text.  Each head's state of its tokens (struct kv_page_state) is in their
 * pages, after keys and values.
 *
 * Sparse prefill (struct attn_sparse; MInference section 3).  Each query head visits only part of a
 * long prompt's keys.  attn_index chooses them for one layer, and attn_prefill uses that choice
 * until the next attn_index.  Slots are chosen by groups of SPARSE_GROUP, for tiles of SPARSE_TILE
 * rows.  Diagonals choose for each half of a tile, because a diagonal meets fewer groups of a half.
 *
 *   rows    first_slot + SPARSE_TILE t …       tile t; the last may be shorter
 *           first_slot + SPARSE_HALF h …       half h, of tile h / 2
 *   groups  SPARSE_GROUP g … + SPARSE_GROUP - 1
 *
 *   a half visits   the groups that hold rows of its tile
 *                   groups 0 … n_first - 1
 *                   groups at the head's distances: (first slot of the half) / SPARSE_GROUP - g
 *                   single slots before the tile (vertical lines) in groups that it does not visit
 *   or, block-sparse, the whole pages that its tile chose, those of the tile's rows and slot 0's
 *   or, dense, every slot
 *
 * Each slot is visited once, and every row attends to the visited slots up to its own.  A distance
 * d is the head's if a group at that distance meets any of its diagonals in some row of a half.  So
 * a half visits a superset of what the lines demand.
 *
 * Selections (struct kv_select; OmniKV section 4).  Tokens that matter to one layer matter to the
 * next ones, too.  So while tokens of a long text are generated, only some layers attend to all of
 * it.  The *filters* among these also choose tokens.  The *sparse* layers after a filter, its
 * group, attend to the chosen tokens and to the newest ones, the tail.  No token is lost: the next
 * step chooses anew.  Layers with a window do not take part.  They attend to the newest tokens as
 * always, wherever they are: between a filter and its group, or among the group.
 *
 *   a filter's slots       [ token 0, 1, 2 …                    n_candidates …            newest ]
 *   a sparse layer's slots [ the n_selected chosen, any order ] [ the tail: n_candidates … newest ]
 *   the source             [ token 0, 1, 2 … n_candidates - 1   … ]   of every sparse layer
 *
 * select() follows the filter's attention.  It chooses tokens, and copies the keys and values of
 * newly chosen ones from the source to slots of tokens that were not chosen again.  The source is
 * the host pool (struct host_pool), or pages of the same pool.
 *
 * Matrices are row-major.  `void *` is device memory, to be accessed only through operations.
 * Activations are in `act_dtype` (f32 on the CPU); logits are f32 everywhere.
 *
 * Operations may run asynchronously, in the order of their submission.  Host memory that arguments
 * point to is read before the operation returns; a step's, before its last operation returns.  So
 * the engine can describe step n + 1 while the device works on step n.  Results in host memory
 * (such as samples) are valid after collect() or sync().  The host pool is the exception: the
 * device reads and writes it when the operation runs.
 *
 * Thread: engine.  Memory: alloc() and reserve() are for start-up; afterwards no operation
 * allocates device memory.  All operations return 0 or a negative ERR_*. */
#ifndef ENGINE_DEVICE_BACKEND_H
#define ENGINE_DEVICE_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/sizes.h"

struct backend;
struct error;

enum { PAGE_TOKENS = 64, PAGE_ALIGN = 128, LINEAR_MAX_PARTS = 3, SAMPLE_MAX_TOP = 20 };

/* The most sets of rotary frequencies that the layers of a model may have. */
enum { MAX_ROPES = 2 };

/* In step.tokens, STEP_SAMPLED | i is the token that sample row i of the previous step gave,
 * counting the rows of all its sample operations.  The device knows it already, the host does not.
 * A row whose result is invalid may give any token of the vocabulary. */
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

/* The KV pool and the shape of its pages.  A page holds:
 *
 *   keys and values   2 * n_kv_heads * PAGE_TOKENS * head_dim elements
 *   scales            with DTYPE_FP8 only, u8 [K, V][n_kv_heads][PAGE_TOKENS]: one for each row,
 *                     that is each head's key or value of a slot
 *   states            if the pool is `tracked`, a struct kv_page_state for each KV head
 *
 * FP8 elements and scales are as in struct host_pool: an element's value is
 * element * 2^(scale - 127).  Attention reads the step's own tokens as they are stored, too, so no
 * result depends on the step in which a token was computed. */
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

/* A KV head's state of a page's slots.  The last four fields describe the whole list of pages, and
 * are valid in its first page; the first token of a text (position 0) sets them to capacity and 0.
 *
 * Lost attention is counted in units of the attention that kept tokens get.  Suppose a token is
 * evicted at age a (in tokens of the text).  The newest query gives it r times the attention that
 * all kept tokens get.  At age A it would get r * a / A: attention of trained models fades about
 * like that.  1 / A is a sum of exponentials, and one number for each of them serves all evicted
 * tokens:
 *
 *   rate(k) = 2^-k        1 / A ~ ln 2 * sum over k of rate(k) * exp(-rate(k) * A)
 *   lost[k] = sum over evicted tokens of r * a * exp(-rate(k) * A)
 *   loss    = ln 2 * sum over k of rate(k) * lost[k]
 *
 * The kept tokens then get the share 1 / (1 + loss) of a query's attention to the whole text. */
struct kv_page_state {
    uint32_t position[PAGE_TOKENS]; /* in the text */
    uint32_t rank[PAGE_TOKENS];     /* how many of the kept tokens are older */
    float score[PAGE_TOKENS];       /* attention received, as kv_budget.score says */
    uint32_t free_slot;             /* the next token's slot, once the cache is full */
    uint32_t n_evictions;           /* a compression that evicts tokens counts as one */
    uint32_t lost_at;               /* tokens of the text at the last eviction */
    float lost[KV_LOST_TERMS];
};

/* The least share of the newest query's attention that kept tokens are taken to get, since lost
 * attention is divided by it. */
#define KV_LEAST_KEPT 0x1p-10f

/* Returns how many slots' tokens one page of kv_select.state_pages names. */
static inline uint32_t kv_state_slots(const struct kv_pool *kv) {
    return (uint32_t)(kv->page_bytes / sizeof(uint32_t));
}

/* Returns the bytes of a page's elements, which the scales follow. */
static inline size_t kv_elements_bytes(const struct kv_pool *kv) {
    return kv->n_kv_heads * 2 * PAGE_TOKENS * kv->head_dim * dtype_size(kv->dtype);
}

/* Returns where a KV head's state begins in a page of a tracked pool. */
static inline size_t kv_state_offset(const struct kv_pool *kv, uint32_t kv_head) {
    const size_t n_scales = kv->dtype == DTYPE_FP8 ? kv->n_kv_heads * 2 * PAGE_TOKENS : 0;
    return kv_elements_bytes(kv) + n_scales + kv_head * sizeof(struct kv_page_state);
}

/* Returns the bytes of a page, rounded up so that every page begins a cache line of any device. */
static inline size_t kv_page_bytes(const struct kv_pool *kv) {
    const size_t bytes = kv_state_offset(kv, kv->tracked ? kv->n_kv_heads : 0);
    return round_up(bytes, PAGE_ALIGN);
}

/* Returns how many pages a layer needs for n_slots slots. */
static inline uint64_t kv_n_pages(uint64_t n_slots) {
    return div_up(n_slots, PAGE_TOKENS);
}

/* How tokens between the sinks and the recent ones are scored: by the attention probabilities they
 * received, summed over the query heads of their KV head's group, in f32. */
enum kv_score {
    KV_SCORE_NONE,  /* no scores: the oldest is evicted; capacity = n_sink + n_recent */
    KV_SCORE_SUM,   /* the sum over all queries */
    KV_SCORE_MEAN,  /* the same, divided by the number of queries that could see the token */
    KV_SCORE_DECAY, /* score = decay * score + p, query after query */
    KV_SCORE_WINDOW /* the sum over the last `window` queries of the newest chunk of the prompt,
                       without earlier chunks; queries of generated tokens add to it like SUM */
};

/* How the scores of a prompt's tokens before its last `window` are pooled when it is compressed
 * (SnapKV section 4).  A token is judged by the scores of `kernel` tokens, of which it is the
 * middle one; there are fewer at both ends.  Their largest counts, or their sum in the order of the
 * text.  The stored scores do not change. */
enum kv_pooling { KV_POOLING_NONE, KV_POOLING_MAX, KV_POOLING_AVERAGE };

/* Which tokens of its text a sequence keeps between steps: the first n_sink, the n_recent newest,
 * and the others with the highest scores.  When scores are equal the older token is evicted first.
 * NaN counts as the lowest score. */
struct kv_budget {
    uint32_t capacity; /* >= n_sink + n_recent; n_recent >= 1 */
    uint32_t n_sink, n_recent;
    enum kv_score score;
    float decay;             /* (0, 1) */
    uint32_t window;         /* of KV_SCORE_WINDOW, >= 1; else 0 */
    enum kv_pooling pooling; /* of KV_SCORE_WINDOW, for a prompt in one chunk; window <= n_recent */
    uint32_t kernel;         /* odd; 0 with KV_POOLING_NONE */
    /* Keys are stored before RoPE and rotated when they are read: a token's position is its rank.
     * Otherwise positions are those of the text. */
    bool cache_positions;
};

#define KV_FREE_SLOT UINT32_MAX /* as append_slot: each KV head's own free slot */

enum {
    SPARSE_GROUP = 16,
    SPARSE_TILE = 128,
    SPARSE_HALF = SPARSE_TILE / 2,
    SPARSE_QUERIES = 64,
    SPARSE_MIN_DIAGONALS = 100,
    SPARSE_MIN_COLUMNS = 30
};

/* The most vertical lines, and pages, that a pattern's p1 may ask for; the largest published p1 is
 * 22,032. */
enum { SPARSE_MAX_COLUMNS = 24576, SPARSE_MAX_PAGES = 1024 };

/* How a query head chooses keys (MInference section 3.2). */
enum attn_pattern_kind {
    PATTERN_DENSE,   /* it visits all keys */
    PATTERN_A_SHAPE, /* the first p1 slots, and for each row the p2 newest, including its own */
    PATTERN_VERTICAL_SLASH, /* the p1 slots and the p2 diagonals with the most attention of the last
                               SPARSE_QUERIES rows; the first SPARSE_MIN_COLUMNS slots and the
                               nearest SPARSE_MIN_DIAGONALS diagonals are always among them */
    PATTERN_BLOCK_SPARSE,   /* for each tile the p1 pages whose mean key has the largest product
                               with the tile's mean query */
    PATTERN_N_KINDS
};

struct attn_pattern {
    enum attn_pattern_kind kind;
    uint32_t p1, p2;
};

/* A filter layer and the sparse layers that follow its choice: those of [first, end) that have no
 * window.  The filter has no window either, nor have layers first and end - 1 if the range is not
 * empty.  windows, here and below: as in struct step. */
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

/* Returns how many sparse layers of the group come before `layer`. */
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

/* Returns the number of sparse layers of n groups together. */
static inline uint32_t groups_n_layers(const struct layer_group *groups, uint32_t n,
                                       const uint32_t *windows) {
    uint32_t n_layers = 0;
    for (uint32_t i = 0; i < n; i++) n_layers += group_n_layers(&groups[i], windows);
    return n_layers;
}

/* The host pool: system memory for tokens of sparse layers that are not in the KV pool.  It is
 * [n_blocks][n_host_layers][PAGE_TOKENS] tokens, each [K, V][n_kv_heads][head_dim] and one
 * contiguous read.  A host block is PAGE_TOKENS tokens of one sequence.  A host layer is a block's
 * part for one sparse layer, in the order of the layers.
 *
 * With fp8 each element is a byte.  The scales follow, a byte for each head's key and value: they
 * are powers of two, so that scaling loses no bit, and values that 4 bits can hold return
 * unchanged.
 *
 *   token     u8 [K, V][n_kv_heads][head_dim], u8 [K, V][n_kv_heads], up to a multiple of 16
 *   element   (e4m3) * 2^(scale - 127), rounded to nearest even: finite elements are off by at most
 *             a 16th, or those below 2^(scale - 133) by 2^(scale - 137); NaN stays NaN
 *   scale     the least of 1 … FP8_MOST_SCALE with which 448, e4m3's largest, covers every element;
 *             elements that the largest scale does not cover, and infinity, become 448 times it */
struct host_pool {
    void *base;       /* from host_pool_alloc() */
    enum dtype dtype; /* of the KV pool */
    uint32_t n_blocks, n_host_layers, n_kv_heads, head_dim;
    bool fp8; /* always if the KV pool is fp8, and then nothing is converted */
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

/* Which tokens the sparse layers see of a sequence that generates, or that computes its prompt's
 * last token in the same way. */
struct kv_select {
    uint32_t n_selected;   /* slots for chosen tokens; a multiple of PAGE_TOKENS */
    uint32_t n_candidates; /* tokens to choose from; a multiple of PAGE_TOKENS, > n_selected */
    uint32_t n_sink;       /* the first tokens, always chosen; <= n_selected */
    bool fresh;            /* the slots are empty, so all chosen tokens are fetched */
    /* Host [n_groups][n_state_pages]: pages with a uint32_t [n_selected] for each group, the token
     * in each slot, kv_state_slots() of them in a page. */
    const uint32_t *state_pages;
    /* The source: host blocks, host [n_candidates / PAGE_TOKENS].  If it is NULL, the source is the
     * pages of each layer [n_layers]; those of layers that are not sparse are unused. */
    const uint32_t *blocks;
    const uint32_t *const *pool_pages;
};

/* Which keys a prompt's rows visit. */
struct attn_sparse {
    const struct attn_pattern *patterns; /* host [n_layers][n_heads] */
    uint32_t first_slot; /* of the rows that are indexed together; a multiple of PAGE_TOKENS */
    uint32_t n_rows;     /* how many rows are indexed together, from first_slot on */
    uint32_t dense_from; /* slot: a tile with a row at or after it is dense */
    /* A head that would visit more than this share of the causal pairs is dense. */
    float dense_above;
    /* For benchmarks on random weights, whose attention has no lines.  0: lines are scored by
     * attention.  Otherwise a vertical-slash head's lines get made-up scores: half of p2 are next
     * to the rows, the others are in random runs of 64.  They are the same on every backend (all
     * integers are 32-bit):
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
    uint32_t append_slot;  /* slot of the sequence's first row; the next rows follow.  For a full
                              bounded cache KV_FREE_SLOT, with one row and n_slots = capacity + 1 */
};

struct step_seq {
    uint32_t first_row;             /* in [0, n_rows) */
    uint32_t n_rows;                /* >= 1; exactly 1 for the first n_decode sequences */
    const struct kv_view *layers;   /* [step.n_layers] */
    const struct kv_budget *budget; /* NULL: all tokens are kept.  Not NULL: all layers have the
                                       same n_slots and append_slot */
    uint32_t n_before;              /* tokens of the text before the first row */
    /* With a budget: */
    bool begins_chunk;  /* prompts: the first row begins a chunk.  With KV_SCORE_WINDOW, scores from
                           earlier chunks are reset before this step's rows count */
    uint32_t score_row; /* prompts: the sequence's rows from this one on count for scores */
    bool compress;      /* prompts: the last row ends a chunk.  After this step the first
                           min(n_slots, capacity) slots hold the kept tokens */
    /* NULL: attention is dense.  At most one sequence of a step has this.  It computes a prompt and
     * has no budget, and its rows are some of those that are indexed together.  Rows that
     * attn_prefill computes begin at a multiple of SPARSE_TILE from first_slot. */
    const struct attn_sparse *sparse;
    /* NULL: the slots of all layers are those of the text.  Only for sequences that decode, without
     * a budget. */
    const struct kv_select *select;
};

/* Query row i of a sequence sees slots [0, n_slots - n_rows + i]: the rows are the newest tokens,
 * causal among themselves.  In a layer with a window it sees only the newest of these. */
struct step {
    uint32_t n_rows, n_seqs, n_decode, n_layers;
    /* Host [n_layers]: the most slots that a row sees, including its own; 0: all.  NULL: all slots
     * in all layers.  In a layer with a window, a sequence with a budget has no more slots than the
     * window.  A sequence that selects has the slots of the text there, and a sparse one is
     * dense. */
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

/* Normalises n_heads adjacent vectors of each row, each by itself. */
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

/* A product's input that is RMSNorm(x), not x: a device may normalise while it multiplies, or
 * before. */
struct rmsnorm_input {
    const struct weight *weight; /* [n_in] */
    float eps;
    void *normed; /* act [n_rows, n_in]: workspace, not x; undefined afterwards */
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

/* Returns the arguments that normalise a product's input separately, into norm->normed. */
static inline struct rmsnorm_args linear_norm(const struct linear_args *args) {
    const struct rmsnorm_args norm = {args->x,      args->norm->weight, args->norm->normed,
                                      args->n_rows, args->n_in,         args->n_in,
                                      args->n_in,   args->norm->eps,    1,
                                      false};
    return norm;
}

/* The function of the gate g: g * sigmoid(g), or the tanh approximation of GELU, which is
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
    void *gate_up; /* act [n_rows, 2 * n_out]: workspace; undefined afterwards */
    void *out;     /* act [n_rows, n_out], packed */
    enum gate_kind kind;
};

/* Rotates q and k of the step's rows in place: half-split pairs (i, i + dim/2) of the first
 * 2 * n_freqs elements.  Then writes k and v into the sequences' pages of `layer`.
 * qkv act [n_rows, (n_heads + 2 * n_kv_heads) * head_dim]: q heads, k heads, v heads.
 * With a budget it also writes the rows' position, rank and score (0) into their slots' state.
 * With cache_positions it rotates only q. */
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
    const void *q; /* act, row i at q + i * q_stride elements: [n_heads, head_dim] */
    size_t q_stride;
    void *out; /* act [n_rows, n_heads * head_dim] */
    const struct kv_pool *kv;
    uint32_t layer, n_heads;
    float scale; /* 1 / sqrt(head_dim) unless the model says otherwise */
    /* Not 0: each score, scale * q . k, becomes softcap * tanh(score / softcap) wherever scores are
     * computed, before any mask. */
    float softcap;
    /* For keys that are rotated when they are read, as in rope_append_args. */
    const double *inv_freq;
    float rope_scale;
    uint32_t n_freqs, rope;
    /* f32 [n_rows, n_heads], or NULL: base-2 logarithm of the sum of exp over the visited keys, for
     * the rows that attn_prefill computes.  Not with keys that are rotated when they are read. */
    float *lse;
    /* select() follows, with the same arguments: attn_decode keeps the attention statistics that it
     * needs. */
    bool selects;
};

/* Arguments of select(), for the sequences that have a kv_select.  A candidate's token score is the
 * largest softmax weight (f32) that any query head of `attn`'s layer gives it.  The softmax is over
 * all slots that the row sees.  The first n_sink candidates are chosen, and the best others up to
 * n_selected.  Ties go to the lower token; NaN counts as the lowest score.  The chosen tokens are
 * in the slots of the group's sparse layers before their attention runs. */
struct select_args {
    struct attn_args attn; /* of the filter's attn_decode */
    const struct layer_group *group;
    uint32_t group_index;          /* among all groups: selects its state_pages */
    uint32_t first_host_layer;     /* the host layer of group->first */
    const struct host_pool *store; /* NULL: no sequence has host blocks */
    /* f32 [n_candidates], or NULL: the token scores of the candidates of the step's first sequence,
     * which has a kv_select; -1 for NaN.  The search of filters asks for them, with a group that
     * has no sparse layers. */
    float *worth;
};

/* Copies n pages of a layer of the pool to host layer `plane` of n host blocks, after all
 * operations submitted before.  Operations after the next step_begin() may overwrite the pages and
 * read the blocks. */
struct offload_args {
    const struct kv_pool *kv;
    const struct host_pool *store;
    uint32_t plane, n;
    const uint32_t *pages, *blocks; /* host [n] */
};

/* Arguments of attn_index().  Lines are scored by the attention of the last
 * min(SPARSE_QUERIES, sparse->n_rows) rows over slots [0, first_slot + n_rows): softmax in f32,
 * summed by slot and by diagonal.  Ties go to the lower slot and the shorter distance. */
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

/* Totals of attn_prefill since the last call, over layers, heads and rows, for each kind of pattern
 * that attn_sparse names. */
struct sparse_totals {
    double visited[PATTERN_N_KINDS], causal[PATTERN_N_KINDS]; /* pairs of row and slot */
    uint64_t n_dense;            /* heads, counted in each layer, that dense_above made dense */
    double index_s, attention_s; /* device time of indexes and of attention */
};

/* The cost of one sequence's evictions so far, over its layers and KV heads. */
struct evict_total {
    float retained_attention; /* the share of attention that kept tokens get (kv_page_state):
                             mean over layers and heads; NAN: no scores, or no eviction yet */
    uint32_t n_evictions;     /* of one KV head of one layer */
};

/* The work of select() for one sequence in one step: tokens of one layer, summed over the
 * groups. */
struct select_total {
    uint32_t n_chosen, n_fetched;
    uint32_t n_copies; /* n_fetched, each counted once for every sparse layer of its group */
};

/* out[i] = x[rows[i]]: picks the rows that need logits. */
struct gather_rows_args {
    const void *x;        /* act [*, dim] */
    void *out;            /* act [n, dim] */
    const uint32_t *rows; /* host [n] */
    uint32_t n, dim;
};

/* Logits in place: x = cap * tanh(x / cap); NaN stays NaN. */
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

/* What to do with one row of logits.  The order is: bias and bans, repetition, frequency and
 * presence penalties, temperature, top_k, min_p, top_p (kept tokens' mass >= top_p).  Then the
 * sampled token is the first kept one, in the order of token ids, at which the sum of the
 * probabilities exceeds `uniform`.  Ties go to the lower token id.  Log-probabilities are of the
 * unmodified logits (log-softmax). */
struct sample_row {
    uint32_t logit_row; /* row of the logits matrix */
    enum sample_kind kind;
    uint32_t target;                                               /* SAMPLE_SCORE */
    float temperature;                                             /* 0: greedy */
    float top_p;                                                   /* (0, 1]; 1: off */
    float min_p;                                                   /* [0, 1]; 0: off */
    uint32_t top_k;                                                /* 0: off */
    float repetition_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0: off */
    double uniform; /* [0, 1): a random number, made by the engine from the request's seed */
    const struct token_count *counts; /* host [n_counts], for the penalties */
    uint32_t n_counts;
    const struct logit_bias *bias; /* host [n_bias] */
    uint32_t n_bias;
    const uint32_t *banned; /* host [n_banned]: logit -inf (end tokens before min_tokens) */
    uint32_t n_banned;
    uint32_t n_top; /* how many top log-probabilities are wanted, <= SAMPLE_MAX_TOP */
};

struct token_logprob {
    uint32_t token;
    float logprob;
};

struct sample_result {
    uint32_t token; /* sampled, or the target */
    float logprob;  /* of token */
    uint32_t rank;  /* 1: token has the highest logit */
    bool invalid;   /* the row has a NaN or +inf, or no finite logit: only this request fails */
    uint32_t n_top;
    struct token_logprob top[SAMPLE_MAX_TOP]; /* best first */
};

struct sample_args {
    const void *logits; /* f32 [*, vocab] */
    uint32_t n_vocab, n;
    const struct sample_row *rows; /* host [n] */
    struct sample_result *results; /* host [n], valid after collect() or sync() */
};

/* Submits the operations of a step of n_rows rows, for run_graph(). */
typedef int (*graph_body)(void *ctx, uint32_t n_rows, struct error *err);

/* The largest step that will come, and the shape of its model. */
struct step_limits {
    uint32_t max_rows, max_seqs;
    uint32_t max_seq_pages;    /* of a sequence, in each layer */
    uint64_t max_slots;        /* of all sequences, in a layer; shared slots count once */
    uint64_t max_prompt_slots; /* with DTYPE_FP8: of attn_prefill's sequences, in a layer */
    enum dtype kv_dtype;
    uint32_t max_logit_rows; /* of one sample operation */
    uint32_t n_layers, n_heads, n_kv_heads, head_dim, n_freqs, n_vocab;
    bool tracked;                               /* sequences may have budgets */
    uint32_t max_positions;                     /* if tracked: ranks are smaller than this */
    uint32_t max_sparse_rows, max_sparse_slots; /* of attn_index; 0: it is not used */
    uint32_t max_select_slots; /* of a sequence with a kv_select, in a filter layer; 0: no sequence
                                  has one */
    uint32_t max_selected;     /* the largest n_selected of a kv_select */
    uint32_t n_groups, max_group_layers; /* sparse layers of the largest group */
};

struct device_memory {
    uint64_t free, total; /* bytes; any process may use what is not free */
};

/* The bounds of the device, printed with every benchmark and measured in the same run. */
struct ceilings {
    double copy_bytes_per_s; /* memory far larger than the caches: bytes read + bytes written */
    double read_bytes_per_s; /* the same, read only */
    double flops_per_s;      /* multiply-adds of products, two operations each */
};

struct backend_ops {
    void (*destroy)(struct backend *be);

    /* Reports the device's memory.  total 0: the backend uses the system's memory. */
    struct device_memory (*memory)(struct backend *be);
    /* Allocates all device memory that operations need besides their arguments, for steps within
     * the limits: from then on no operation allocates there.  Workspace in the system's memory may
     * grow to the largest step seen. */
    int (*reserve)(struct backend *be, const struct step_limits *limits, struct error *err);
    /* Allocates memory, zero-filled and 64-byte aligned. */
    int (*alloc)(struct backend *be, size_t bytes, void **out, struct error *err);
    void (*free)(struct backend *be, void *memory);
    /* Makes host bytes readable by the device.  *out may be `host` itself (on the CPU): then the
     * bytes must outlive it.  Or it is a copy: then they may change as soon as this returns.  The
     * caller gives *out to weight_release. */
    int (*weight_upload)(struct backend *be, const void *host, size_t bytes, const void **out,
                         struct error *err);
    void (*weight_release)(struct backend *be, const void *weight);
    int (*upload)(struct backend *be, void *to, const void *host, size_t bytes, struct error *err);
    int (*download)(struct backend *be, void *host, const void *from, size_t bytes,
                    struct error *err);
    /* Allocates system memory that the device can access, for host_pool.base; not cleared. */
    int (*host_pool_alloc)(struct backend *be, size_t bytes, void **out, struct error *err);
    void (*host_pool_free)(struct backend *be, void *memory);
    int (*copy_pages)(struct backend *be, const struct kv_pool *kv, const uint32_t *from,
                      const uint32_t *to, uint32_t n, struct error *err);

    /* Begins a step: operations up to the next step_begin() refer to it. */
    int (*step_begin)(struct backend *be, const struct step *step, struct error *err);
    int (*embed)(struct backend *be, const struct embed_args *args, struct error *err);
    int (*rmsnorm)(struct backend *be, const struct rmsnorm_args *args, struct error *err);
    int (*linear)(struct backend *be, const struct linear_args *args, struct error *err);
    int (*gated)(struct backend *be, const struct gated_args *args, struct error *err);
    int (*rope_append)(struct backend *be, const struct rope_append_args *args, struct error *err);
    int (*attn_decode)(struct backend *be, const struct attn_args *args, struct error *err);
    int (*attn_prefill)(struct backend *be, const struct attn_args *args, struct error *err);
    /* Chooses the keys of every head for one layer of the step's sparse sequence.  Called in the
     * step that has the last of the rows indexed together, when all of them and their keys are
     * present.  NULL: this backend has only dense attention. */
    int (*attn_index)(struct backend *be, const struct attn_index_args *args, struct error *err);
    /* Adds up what sparse sequences visited since the last call; out is valid after collect() or
     * sync(). */
    int (*sparse_totals)(struct backend *be, struct sparse_totals *out, struct error *err);
    /* Updates the scores from the queries and the keys, then evicts tokens, for the sequences that
     * have a budget: evict_decode for [0, n_decode), evict_chunk for the rest.  Called after the
     * attention of a layer, with the same arguments. */
    int (*evict_decode)(struct backend *be, const struct attn_args *args, struct error *err);
    int (*evict_chunk)(struct backend *be, const struct attn_args *args, struct error *err);
    /* Fills totals, host [step.n_seqs], for the sequences with a budget; called after the last
     * layer, and valid after collect() or sync(). */
    int (*evict_totals)(struct backend *be, const struct kv_pool *kv, struct evict_total *totals,
                        struct error *err);
    /* Selects as struct select_args says.  Called after attn_decode of a filter layer and before
     * that of the group's first sparse layer.  NULL: this backend cannot select. */
    int (*select)(struct backend *be, const struct select_args *args, struct error *err);
    /* Fills totals, host [step.n_decode], for the sequences with a kv_select; called after the last
     * layer, and valid after collect() or sync(). */
    int (*select_totals)(struct backend *be, struct select_total *totals, struct error *err);
    /* Copies pages to the host pool, as struct offload_args says; called between steps. */
    int (*offload_pages)(struct backend *be, const struct offload_args *args, struct error *err);
    int (*gather_rows)(struct backend *be, const struct gather_rows_args *args, struct error *err);
    int (*soft_cap)(struct backend *be, const struct soft_cap_args *args, struct error *err);
    int (*sample)(struct backend *be, const struct sample_args *args, struct error *err);
    /* Runs the operations of `body`, or the CUDA graph captured from them for the same ctx and
     * n_rows.  For steps whose sequences all decode, and bodies whose arguments depend only on ctx
     * and n_rows: all that changes between two calls is in the step.  n_rows may exceed step.n_rows
     * if the backend `repeats`.  The rows past the step's end are padding: no other row depends on
     * them, and no page is written for them. */
    int (*run_graph)(struct backend *be, uint32_t n_rows, graph_body body, void *ctx,
                     struct error *err);
    /* Waits until all steps but the newest n_newer (counted by step_begin) have completed and their
     * results are valid; results of newer steps may be, too.  Reports failures of the awaited
     * steps, if no earlier call did. */
    int (*collect)(struct backend *be, uint32_t n_newer, struct error *err);
    /* Waits until all submitted operations have completed; reports failures like collect(). */
    int (*sync)(struct backend *be, struct error *err);

    /* Measures the device's bounds, for benchmarks.  Takes about a second, and memory that it frees
     * again; the backend must be idle. */
    int (*measure)(struct backend *be, struct ceilings *out, struct error *err);
};

/* Implementations embed this as their first member. */
struct backend {
    const struct backend_ops *ops;
    const char *name; /* "cpu", "cuda" */
    enum dtype act_dtype;
    /* run_graph() captures a CUDA graph for each n_rows, so the caller rounds up to few sizes. */
    bool repeats;
    /* The device works while the host does, so a step is best submitted before the results of the
     * previous one are known. */
    bool runs_ahead;
    char description[128]; /* one line for the log: instruction set or device name, threads */
};

#endif
