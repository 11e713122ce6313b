/* expert_kernels.h - the launchers of experts' kernels that are no products (expert_product.h): one
 * parameter struct and one function each, as in host/kernels.h.
 *
 * Thread: engine.  Memory: none of its own. */
#ifndef CUDA_EXPERTS_EXPERT_KERNELS_H
#define CUDA_EXPERTS_EXPERT_KERNELS_H

#include "cuda/experts/expert_product.h"
#include "cuda/host/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Logits become experts and shares. */
struct choose_params {
    const float *logits; /* [n_rows, n_experts] */
    const float *gates;  /* [n_rows]: products of the shared expert's gate, or NULL */
    const void *bias, *choice_bias, *factors;
    enum element bias_dtype, choice_bias_dtype, factors_dtype;
    struct routing routing;
    uint32_t n_rows, n_experts, n_used;
    uint32_t *experts;
    float *shares;
};

/* Logits from x, for few rows. */
struct router_params {
    uint32_t n_rows, n_experts;
    float *logits;           /* [n_rows, n_experts] */
    float *gates;            /* [n_rows]: products of the shared gate */
    const void *x;           /* bf16 [n_rows, dim] */
    const void *norm;        /* bf16 [dim] or NULL: rows are normalised, and left in normed */
    void *normed;            /* bf16 [n_rows, dim], not x */
    const void *router;      /* bf16 [n_experts, dim] */
    const void *shared_gate; /* bf16 [dim] or NULL */
    uint32_t dim;
    float eps; /* of the norm */
};

/* out += the sum of y over a row's ranks, times their shares; or it is overwritten by that. */
struct combine_params {
    const uint32_t *place; /* [n_rows, n_used] */
    const float *shares;   /* [n_rows, n_used + 1] */
    const void *y;         /* [n_pairs, dim] */
    const void *shared;    /* [n_rows, dim]: what the shared expert gives, or NULL */
    bool is_f32;           /* y and shared are; else bf16 */
    void *out;             /* bf16 [n_rows, dim] */
    bool overwrites;
    uint32_t n_rows, n_used, dim;
};

/* Says whether launch_direct_experts() takes the products of a step. */
bool direct_experts_fit(const struct cuda_backend *cuda, const struct expert_product *gate_up,
                        const struct expert_product *down);
/* Computes the products of one row, and their sum, in two launches. */
cudaError_t launch_direct_experts(const struct expert_product *gate_up,
                                  const struct expert_product *down,
                                  const struct combine_params *sum, struct launch launch);
cudaError_t launch_choose(const struct choose_params *p, struct launch launch);
bool router_takes(const struct router_params *p, struct launch launch);
cudaError_t launch_router(const struct router_params *p, struct launch launch);
cudaError_t launch_sort(const struct expert_order *order, struct launch launch);
cudaError_t launch_combine(const struct combine_params *p, struct launch launch);

#ifdef __cplusplus
}
#endif

#endif
