/* expert_product.h - products of rows with the matrices of the experts that they use, and the list
 * of the kernels that compute them.
 *
 *   experts.c   the operations route and run; the list of kernels
 *   route.cu    which experts a row uses, and their shares
 *   sort.cu     puts the pairs of a row and a rank in the order of their experts
 *   grouped.*   products of many rows on Hopper
 *   direct.cu   all of one row on Hopper: both products and the sum
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

#include "engine/device/experts.h"
#include "engine/device/weight.h"

struct cuda_backend;
struct error;

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
    /* first and pair are not there: the kernel finds its pairs by itself, and if it gathers, it
     * writes place. */
    bool finds_order;
    /* The kernel before this one was not released before the pairs' order was known.  So the order
     * may be read before the wait for that kernel. */
    bool order_is_old;
};

static inline uint32_t expert_n_pairs(const struct expert_order *order) {
    return order->n_rows * order->n_used;
}

/* Launches a kernel on cuda's stream for a product that fits it, with at least one row. */
typedef int expert_launch(struct cuda_backend *cuda, const struct expert_product *p,
                          struct error *err);

/* A row of the list.  What a kernel makes of a row depends on nothing but the row and the
 * weights. */
struct expert_kernel {
    const char *name;
    bool (*fits)(const struct cuda_backend *cuda, const struct expert_product *p);
    expert_launch *launch;
    uint32_t most_rows; /* of a step, with which it is preferred to the kernels below; 0: any */
    /* It can do without an order of up to so many pairs (finds_order).  0: it cannot.  Then it lets
     * the next kernel start only when the order is known. */
    uint32_t finds_pairs;
    bool writes_f32; /* it writes y in f32 where it is not gated; else bf16 */
};

#ifdef __cplusplus
}
#endif

#endif
