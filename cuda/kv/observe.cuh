/* observe.cuh - where the token scores of a sequence's last queries are kept (struct kv_observation
 * of engine/device/select.h).
 *
 * Thread: device code.  Memory: none. */
#ifndef CUDA_KV_OBSERVE_CUH
#define CUDA_KV_OBSERVE_CUH

#include "cuda/common/pages.cuh"
#include "cuda/host/kernels.h"
#include "engine/device/select.h"

/* The token scores of one sequence and one group. */
struct score_runs {
    const struct device_observation *o;
    const int32_t *pages;
    struct kv_pool kv;

    __device__ bool accumulates() const { return o->selector == KV_SELECTOR_ACCUMULATED; }
    /* Returns where the scores are that the query at this position gives a page of the text. */
    __device__ float *run(uint32_t page, uint32_t position) const {
        const uint32_t n_places = accumulates() ? 1 : KV_OBSERVED,
                       at = page * n_places + position % n_places,
                       n_runs = (uint32_t)(kv.page_bytes / KV_SCORE_RUN_BYTES);
        return page_at<float>(kv, pages[at / n_runs]) + at % n_runs * PAGE_TOKENS;
    }
    /* Returns the first query that gives the page scores, where they are accumulated. */
    static __device__ uint32_t first_query(uint32_t page) { return (page + 1) * PAGE_TOKENS - 1; }
};

static __device__ __forceinline__ struct score_runs score_runs_of(
    const struct device_step &step, const struct device_observation &o, const struct kv_pool &kv,
    uint32_t group_index) {
    return {&o, step.select_lists + o.pages + group_index * o.n_pages, kv};
}

/* Keeps the score that the query at this position gives a token.  Returns it or, where scores are
 * accumulated, the sum so far. */
static __device__ __forceinline__ float keep_score(const struct score_runs &runs, uint32_t token,
                                                   uint32_t position, float score) {
    const uint32_t page = token / PAGE_TOKENS;
    float *at = runs.run(page, position) + token % PAGE_TOKENS;
    if (runs.accumulates() && position > runs.first_query(page)) score += *at;
    *at = score;
    return score;
}

/* Returns the weighted sum of a token's scores by the last queries, beginning with the oldest.  The
 * one at this position gives it `score`. */
static __device__ __forceinline__ float sum_scores(const struct score_runs &runs, uint32_t token,
                                                   uint32_t position, float score) {
    if (runs.accumulates()) return score;
    const float ratio = runs.o->selector == KV_SELECTOR_EXPONENTIAL ? 0.5f : 1.0f;
    float sum = 0.0f, weight = 1.0f;
    for (uint32_t age = 1; age < KV_OBSERVED; age++) weight *= ratio;
    for (uint32_t age = KV_OBSERVED - 1; age > 0; age--, weight /= ratio)
        sum += weight * runs.run(token / PAGE_TOKENS, position - age)[token % PAGE_TOKENS];
    return sum + score;
}

#endif
