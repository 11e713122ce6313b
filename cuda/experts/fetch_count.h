/* fetch_count.h - counts the bytes of offloaded experts that a step fetches.
 *
 * Thread: engine.  Memory: none of its own. */
#ifndef CUDA_EXPERTS_FETCH_COUNT_H
#define CUDA_EXPERTS_FETCH_COUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/host/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The experts that pairs use count, each once; if is_whole, all do. */
struct count_params {
    const uint32_t *experts; /* [n_pairs] */
    uint32_t n_pairs, n_experts;
    uint64_t bytes; /* of an expert */
    bool is_whole;
    uint64_t *sum; /* in pinned memory */
};

cudaError_t launch_count_fetched(const struct count_params *p, struct launch launch);

#ifdef __cplusplus
}
#endif

#endif
