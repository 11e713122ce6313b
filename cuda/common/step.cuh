/* step.cuh - what a step's description says of one sequence in one layer.
 *
 * That is where its pages are, its budget, and where its scores are.
 *
 * Thread: device code.  Memory: none. */
#ifndef CUDA_COMMON_STEP_CUH
#define CUDA_COMMON_STEP_CUH

#include "cuda/host/kernels.h"

/* Returns the pages of a sequence in a layer. */
static __device__ __forceinline__ const int32_t *pages_of(const struct device_step &step,
                                                          uint32_t layer, size_t seq) {
    return step.table + (size_t)layer * step.layer_pages +
           step.table_at[(size_t)layer * step.n_seqs + seq];
}

/* Tells whether the layer has the budget. */
static __device__ __forceinline__ bool has_layer(const struct device_budget &b, uint32_t layer) {
    return b.layers[layer / 32] >> layer % 32 & 1;
}

/* Returns the sequence's budget in the layer, or NULL if it has none there. */
static __device__ __forceinline__ const struct device_budget *budget_of(
    const struct device_step &step, size_t seq, uint32_t layer) {
    if (!step.budgets || step.budgets[seq].capacity == 0) return nullptr;
    return has_layer(step.budgets[seq], layer) ? step.budgets + seq : nullptr;
}

/* Returns the position of a sequence's row of the step in a layer: in the cache, where the layer
 * counts these, or in the text. */
static __device__ __forceinline__ uint32_t row_position(const struct device_step &step, size_t seq,
                                                        uint32_t layer, size_t row) {
    if (!step.budgets || step.budgets[seq].capacity == 0) return (uint32_t)step.positions[row];
    const struct device_budget &b = step.budgets[seq];
    if (has_layer(b, layer) && b.cache_positions) return (uint32_t)step.positions[row];
    return b.n_before + (uint32_t)row - (uint32_t)step.first_row[seq];
}

/* Returns the first slot of a decoding sequence's scores (struct attn_stats), or -1 if it needs
 * none of the layer. */
static __device__ __forceinline__ int32_t scores_place(const struct device_step &step, size_t seq,
                                                       uint32_t layer, bool selects) {
    if (selects && step.selects && step.selects[seq].scores_at >= 0)
        return step.selects[seq].scores_at;
    const struct device_budget *budget = budget_of(step, seq, layer);
    return budget ? budget->scores_at : -1;
}

#endif
