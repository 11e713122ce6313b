/* sparse.h - prompts whose heads visit only part of the keys, and the operations for them.
 *
 * Sparse prefill (struct attn_sparse; MInference section 3).  Each query head visits only part of a
 * long prompt's keys.  index() chooses them for one layer, and attn_prefill uses that choice until
 * the next index().  Slots are chosen by groups of SPARSE_GROUP, for tiles of SPARSE_TILE rows.
 * Diagonals choose for each half of a tile, because a diagonal meets fewer groups of a half.
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
 *   or, chosen by a filter layer, the slots that it chose before the rows, and those of the rows
 *
 * Each slot is visited once, and every row attends to the visited slots up to its own.  A distance
 * d is the head's if a group at that distance meets any of its diagonals in some row of a half.  So
 * a half visits a superset of what the lines demand.
 *
 * Filters (PATTERN_FILTERS; OmniKV's variant for prompts) choose once for all heads of the layers
 * behind them.  A chunk of the prompt goes through all layers in one step.  Layers of no group are
 * dense.  After its attention, a filter adds up what the chunk's queries give each slot before the
 * chunk, and choose() takes the best ones for its group.
 *
 * Thread: engine.  Memory: none. */
#ifndef ENGINE_DEVICE_SPARSE_H
#define ENGINE_DEVICE_SPARSE_H

#include <stddef.h>
#include <stdint.h>

struct attn_args;
struct backend;
struct error;
struct layer_group;
struct kv_pool;
struct weight;

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
    PATTERN_FILTERS, /* all heads: the p1 slots that a filter layer chose; chunks of p2 rows */
    PATTERN_N_KINDS
};

struct attn_pattern {
    enum attn_pattern_kind kind;
    uint32_t p1, p2;
};

/* Which keys a prompt's rows visit. */
struct attn_sparse {
    const struct attn_pattern *patterns; /* host [n_layers][n_heads] */
    uint32_t first_slot; /* of the rows that are indexed together; a multiple of PAGE_TOKENS */
    uint32_t n_rows;     /* how many rows are indexed together, from first_slot on */
    uint32_t dense_from; /* slot: a tile with a row at or after it is dense */
    /* PATTERN_FILTERS, which then is the pattern of every head: host [n_groups]; else NULL. */
    const struct layer_group *groups;
    uint32_t n_groups;
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

/* Arguments of index().  Lines are scored by the attention of the last
 * min(SPARSE_QUERIES, sparse->n_rows) rows over slots [0, first_slot + n_rows): softmax in f32,
 * summed by slot and by diagonal.  Ties go to the lower slot and the shorter distance. */
struct sparse_index_args {
    const void *q; /* act, sparse->n_rows rows as in attn_args */
    size_t q_stride;
    const struct kv_pool *kv;
    uint32_t layer, n_heads;
    float scale, softcap;       /* as in attn_args, */
    const float *slopes;        /* and so are these, */
    const struct weight *sinks; /* and these */
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

/* The largest index that will come. */
struct sparse_limits {
    uint32_t max_rows;  /* that are indexed together */
    uint32_t max_slots; /* of their sequence, in a layer */
};

/* NULL in backend_ops: this backend has only dense attention. */
struct sparse_ops {
    /* Chooses the keys of every head for one layer of the step's sparse sequence.  Called in the
     * step that has the last of the rows indexed together, when all of them and their keys are
     * present. */
    int (*index)(struct backend *be, const struct sparse_index_args *args, struct error *err);
    /* Chooses the slots of the group whose filter is `filter`'s layer: the p1 of those before
     * first_slot with the largest sums of token scores over the sparse sequence's rows; all if
     * there are no more.  A query's token score of a slot is the largest softmax weight (f32) that
     * any of its heads gives it.  NaN counts as 0, ties go to the lower slot.  Called after the
     * filter's attn_prefill, with its arguments. */
    int (*choose)(struct backend *be, const struct attn_args *filter, struct error *err);
    /* Adds up what sparse sequences visited since the last call; out is valid after collect() or
     * sync(). */
    int (*totals)(struct backend *be, struct sparse_totals *out, struct error *err);
};

#endif
