/* grouped_cut.h - which products of experts grouped.cuh computes, and with which plan.
 *
 * Both functions only calculate.  Thread: any.  Memory: none. */
#ifndef CUDA_EXPERTS_GROUPED_CUT_H
#define CUDA_EXPERTS_GROUPED_CUT_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/experts/expert_product.h"
#include "cuda/linear/packed_wide_cut.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GROUPED_MAX_EXPERTS = 512 };

/* Formats: those of packed_wide_cut.h, and bf16. */
enum { GROUPED_BF16 = N_PACKED_WIDE_FORMATS, N_GROUPED_FORMATS };

/* Plans, by the rows that a tile has at most. */
enum grouped_plan { GROUPED_16, GROUPED_64, GROUPED_256, N_GROUPED_PLANS };

/* Says whether the kernels take the product; *format is set then. */
bool grouped_takes(const struct expert_product *p, uint32_t *format);

/* Returns the plan for the pairs that an expert has on average. */
enum grouped_plan grouped_choose_plan(const struct expert_order *order);

#ifdef __cplusplus
}
#endif

#endif
