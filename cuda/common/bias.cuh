/* bias.cuh - positions of queries and keys, for what distances take from scores (ALiBi).
 *
 *   a bounded cache            its states say where each KV head's keys stand, by text or by rank
 *   slots of chosen tokens     the selection's lists name them; the tail follows the candidates
 *   all others                 a key stands where its slot does
 *
 * Thread: device code.  Memory: none. */
#ifndef CUDA_COMMON_BIAS_CUH
#define CUDA_COMMON_BIAS_CUH

#include "cuda/common/pages.cuh"
#include "cuda/common/step.cuh"
#include "engine/device/attention.h"

/* The positions of slots that follow each other: listed, or counted. */
struct key_places {
    const uint32_t *listed; /* NULL: `first` and on */
    uint32_t first;
    __device__ __forceinline__ uint32_t of(uint32_t i) const {
        return listed ? listed[i] : first + i;
    }
};

/* Returns the positions of a layer's slots that hold chosen tokens, and the tail behind them. */
static __device__ __forceinline__ struct key_places chosen_places(
    const struct score_bias &bias, const struct device_select &select, uint32_t slot) {
    if (slot >= select.n_selected) return {nullptr, select.n_candidates + slot - select.n_selected};
    const int32_t *pages =
        bias.step->select_lists + select.states +
        bias.group * ((select.n_selected + bias.state_slots - 1) / bias.state_slots);
    const uint32_t *tokens = page_at<const uint32_t>(bias.kv, pages[slot / bias.state_slots]);
    return {tokens + slot % bias.state_slots, 0};
}

/* Returns the positions of the slots from `slot` on.  They reach to the end of the page, or among
 * chosen tokens to the next multiple of 32. */
static __device__ __forceinline__ struct key_places places_of(const struct score_bias &bias,
                                                              uint32_t seq, uint32_t kv_head,
                                                              uint32_t slot) {
    const struct device_step &step = *bias.step;
    const struct device_budget *budget = budget_of(step, seq, bias.layer);
    if (budget) {
        const struct kv_page_state *state =
            page_state(bias.kv, pages_of(step, bias.layer, seq)[slot / PAGE_TOKENS], kv_head);
        return {(budget->cache_positions ? state->rank : state->position) + slot % PAGE_TOKENS, 0};
    }
    const bool chosen = bias.group != NO_GROUP && seq < step.n_decode && step.selects &&
                        step.selects[seq].n_selected > 0;
    return chosen ? chosen_places(bias, step.selects[seq], slot) : key_places{nullptr, slot};
}

/* Returns the position of a sequence's row of the step; that of each later row is one more. */
static __device__ __forceinline__ uint32_t query_place(const struct score_bias &bias, uint32_t seq,
                                                       uint32_t row) {
    return row_position(*bias.step, seq, bias.layer, row);
}

/* Returns what a score gets less. */
static __device__ __forceinline__ float distance_cost(float slope, uint32_t query, uint32_t key) {
    return slope * (float)(int32_t)(query - key);
}

#endif
