/* expert_product.h - products of rows with the matrices of the experts that they use, and the list
 * of the kernels that compute them.
 *
 *   experts.c   the operations route and run; the list of kernels
 *   route.cu    which experts a row uses, and their shares
 *   sort.cu     puts the pairs of a row and a rank in the order of their experts
 *   any.cu      products of any format and any number of rows: the reference
 *   combine.cu  adds up what a row's experts give
 *
 * A pair is a row and a rank: number row * n_used + rank.  The pairs of an expert follow each other
 * in sorted order, and those of one expert are in the order of their numbers:
 *
 *   first  [n_experts + 1]  where an expert's pairs begin in sorted order
 *   pair   [n_pairs]        the number of the pair at a place in sorted order
 *   place  [n_pairs]        the place of a pair
 *
 *   x [n_rows, dim] ─ rows of pair ─► gate, up ─► h [n_pairs, ffn] ─► down ─► y [n_pairs, dim]
 *
 * h and y are in sorted order, which combine.cu undoes: it adds the ranks of each row.
 *
 * The host knows how many pairs there are, not which expert has how many.  So launches depend on
 * numbers of rows only, and a CUDA graph can have them.
 *
 * Thread: engine, and device code.  Memory: none of its own. */
#ifndef CUDA_EXPERTS_EXPERT_PRODUCT_H
#define CUDA_EXPERTS_EXPERT_PRODUCT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/host/kernels.h"
#include "engine/device/experts.h"
#include "engine/device/weight.h"

struct cuda_backend;

#ifdef __cplusplus
extern "C" {
#endif

/* Pairs in sorted order.  On the device. */
struct expert_order {
    const uint32_t *experts; /* [n_rows, n_used]: as route() made them */
    uint32_t *first, *pair, *place;
    uint32_t n_rows, n_used, n_experts;
};

/* A stack of matrices [n_out, n_in], one for each expert, on the device. */
struct expert_stack {
    const void *w, *scales, *mins; /* NULL where the format has none */
    const void *bias;              /* [n_experts, n_out] or NULL */
    enum element bias_dtype;
    struct weight_format format;
    bool in_strips; /* strips.h; n_out is a multiple of STRIP_ROWS then */
};

/* The parameters of every kernel: y = x W^T + b for each pair, with the matrix of its expert.  If
 * gated, the two stacks are gate and up, and y is the function `gate` of both. */
struct expert_product {
    struct expert_order order;
    const void *x; /* bf16 [*, n_in] */
    bool gathers;  /* the pair at place i has row pair[i] / n_used of x; else row i */
    uint32_t n_in, n_out;
    struct expert_stack stacks[2];
    bool gated;
    struct expert_gate gate;
    void *y; /* [n_pairs, n_out]: bf16 if gated, else as y_f32 says */
    bool y_f32;
};

static inline uint32_t expert_n_pairs(const struct expert_order *order) {
    return order->n_rows * order->n_used;
}

/* Launches a kernel on cuda's stream for a product that fits it, with at least one row. */
typedef int expert_launch(struct cuda_backend *cuda, const struct expert_product *p,
                          struct error *err);

/* A row of the list. */
struct expert_kernel {
    const char *name;
    bool (*fits)(const struct cuda_backend *cuda, const struct expert_product *p);
    expert_launch *launch;
    bool is_invariant; /* a row's bits depend on nothing but the row and the weights */
    bool writes_f32;   /* it writes y in f32 where it is not gated; else bf16 */
};

/* The list, in the order of preference; the last one takes everything. */
extern const struct expert_kernel expert_kernels[];

/* Logits become experts and shares. */
struct choose_params {
    const float *logits; /* [n_rows, n_experts] */
    const float *gates;  /* [n_rows]: products of the shared expert's gate, or NULL */
    const void *bias, *choice_bias;
    enum element bias_dtype, choice_bias_dtype;
    struct routing routing;
    uint32_t n_rows, n_experts, n_used;
    uint32_t *experts;
    float *shares;
};

/* out += the sum of y over a row's ranks, times their shares. */
struct combine_params {
    const uint32_t *place; /* [n_rows, n_used] */
    const float *shares;   /* [n_rows, n_used + 1] */
    const void *y;         /* [n_pairs, dim] */
    const void *shared;    /* [n_rows, dim]: what the shared expert gives, or NULL */
    bool is_f32;           /* y and shared are; else bf16 */
    void *out;             /* bf16 [n_rows, dim] */
    uint32_t n_rows, n_used, dim;
};

cudaError_t launch_choose(const struct choose_params *p, struct launch launch);
cudaError_t launch_sort(const struct expert_order *order, struct launch launch);
cudaError_t launch_combine(const struct combine_params *p, struct launch launch);

#ifdef __cplusplus
}
#endif

#endif
