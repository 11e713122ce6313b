/* sparse_index.h - from the queries and keys of a layer to the index of a sparse prompt: the
 * launchers, in the order of their work, and what they share.
 *
 *   scores   of vertical-slash heads: columns [N], diagonals [N] in two parts
 *   select   the best of both: columns as a list, diagonals as a bitmap of groups of distances
 *   lists    distances, marks, first groups of A-shape and vertical-slash; single columns per tile
 *   pages    of block-sparse heads: means, products, the best pages of every tile
 *   rule     heads that visit too much become dense; what is visited is added to the totals
 *
 * Lines and pages are computed one after the other, so they share their scratch memory.
 *
 * Thread: engine.  Memory: the caller's (cuda/attention/sparse/sparse.c,
 * cuda/attention/sparse/layout.c). */
#ifndef CUDA_ATTENTION_SPARSE_SPARSE_INDEX_H
#define CUDA_ATTENTION_SPARSE_SPARSE_INDEX_H

#include "cuda/attention/sparse/sparse_view.h"
#include "cuda/host/kernels.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Selection and products of means read whole vectors: array lengths are multiples of this. */
enum { SPARSE_UNIT = 128 };
/* The number of tiles whose products with all pages are held at once is a multiple of this. */
enum { SPARSE_PAGE_BATCH = 64 };
/* The fewest pages in a chunk of the keys, and the most chunks. */
enum { SPARSE_MIN_CHUNK = 8, SPARSE_MAX_CHUNKS = 128 };

/* Totals on the device, which grow until totals() reads them. */
struct sparse_account {
    struct sparse_totals totals;
    uint64_t begun; /* ns: when the part that is being timed began */
};

/* A row's largest score and sum of weights over a chunk of the keys, base 2. */
struct sparse_row_part {
    float max, sum;
};

struct sparse_build {
    const struct device_step *step;
    uint32_t seq, layer; /* the step's sequence and layer whose pages are read */
    const void *q;       /* bf16, [view.n_rows] rows of q_stride: [n_heads, head_dim] */
    size_t q_stride;
    struct kv_pool kv;
    struct score_scale scale;
    const float *slopes; /* [n_heads], or NULL: keys stand where their slots do */
    float product_scale; /* with slopes: that of products of means */
    struct head_sinks sinks;
    float dense_above;
    uint32_t synthetic;
    /* How many columns a filter chooses, by the scores of head 0; 0: each head has its pattern. */
    uint32_t n_chosen;
    const struct attn_pattern *patterns; /* device [n_heads]: the layer's */
    struct sparse_view view;
    struct sparse_account *account;
    float *density;              /* [n_heads], or NULL: visited / causal, of the same tiles */
    unsigned long long *visited; /* [n_heads]: pairs of row and slot, of tiles that may be sparse */

    /* Lines.  stride: n_slots rounded up to SPARSE_UNIT. */
    size_t stride;
    float *columns, *lower, *upper;    /* [n_heads][stride]; a diagonal's score is lower + upper */
    uint32_t n_chunks, chunk_pages;    /* how passes 1 and 2 divide the pages */
    struct sparse_row_part *row_parts; /* [n_chunks][n_heads][SPARSE_QUERIES] */
    float *lse;                        /* [n_heads][SPARSE_QUERIES], base 2 */
    uint8_t *near_diagonals; /* [n_heads][stride / SPARSE_UNIT]: bit o / SPARSE_GROUP is set
                                       iff a diagonal of that group was chosen */

    /* Pages.  page_stride: pages of n_slots, rounded up to SPARSE_UNIT. */
    size_t page_stride;
    uint32_t batch;      /* tiles at a time */
    float *mean_queries; /* [n_heads][n_tiles][head_dim] */
    float *mean_keys;    /* [n_kv_heads][page_stride][head_dim] */
    float *products;     /* [n_heads][batch][page_stride] */
};

/* The numbers that decide the lengths of the arrays. */
struct sparse_shape {
    uint32_t n_heads, n_kv_heads, head_dim, n_rows, n_slots;
    uint32_t max_columns, max_pages; /* the largest k of any head */
};

/* Sets b's pointers and lengths; returns how many bytes there have to be at `base`, which may be
 * NULL to learn just that. */
size_t sparse_lay_out(struct sparse_build *b, const struct sparse_shape *s, char *base);

cudaError_t launch_sparse_scores(const struct sparse_build *b, struct launch launch);
cudaError_t launch_sparse_select(const struct sparse_build *b, struct launch launch);
/* Launches the choice of a filter's columns; n_chosen > 0. */
cudaError_t launch_sparse_choose(const struct sparse_build *b, struct launch launch);
cudaError_t launch_sparse_lists(const struct sparse_build *b, struct launch launch);
cudaError_t launch_sparse_pages(const struct sparse_build *b, struct launch launch);
cudaError_t launch_sparse_rule(const struct sparse_build *b, struct launch launch);

/* Writes to out [view->n_slots] which slots half a tile visits.  Slots after the half are not
 * visited.  Within the half causality is ignored: all of its own slots are. */
cudaError_t launch_sparse_visited(const struct sparse_view *view, uint32_t head, uint32_t half,
                                  bool *out, struct launch launch);

/* Pairs of row and slot of prompts whose filters choose. */
struct sparse_pairs {
    double visited, causal;
};

/* Makes every head one whose n_columns columns a filter chose. */
cudaError_t launch_sparse_filtered(const struct sparse_view *view, uint32_t n_columns,
                                   struct launch launch);
/* Adds the pairs to the totals of PATTERN_FILTERS. */
cudaError_t launch_sparse_count(struct sparse_account *account, struct sparse_pairs pairs,
                                struct launch launch);

enum sparse_stamp { SPARSE_BEGINS, SPARSE_INDEX_ENDS, SPARSE_ATTENTION_ENDS };
/* Reads the device's clock: the time between two stamps is added to the totals. */
cudaError_t launch_sparse_stamp(struct sparse_account *account, enum sparse_stamp stamp,
                                struct launch launch);

#ifdef __cplusplus
}
#endif

#endif
