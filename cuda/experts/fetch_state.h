/* fetch_state.h - the state of fetch.c, which lies behind the backend's.
 *
 * It is no member of struct cuda_backend: what kernels' sources include need not change with it.
 *
 * Thread: engine.  Memory: the backend's. */
#ifndef CUDA_EXPERTS_FETCH_STATE_H
#define CUDA_EXPERTS_FETCH_STATE_H

#include "cuda/host/internal.h"

/* One layer's experts on the device. */
struct fetch_slot {
    const struct offloaded_layer *of; /* NULL: it is free */
    cudaEvent_t copied;               /* recorded behind the newest copies */
};

struct expert_fetches {
    size_t matrix_bytes; /* of the largest matrix; 0: no slots are reserved */
    void *memory;        /* device: the slots */
    size_t bytes;
    struct fetch_slot slots[2];
    cudaStream_t stream; /* of copies */
    cudaEvent_t begun;   /* what the main stream has read of slots is before it */
};

struct fetching_backend {
    struct cuda_backend cuda;
    struct expert_fetches fetches;
};

static inline struct expert_fetches *fetches_of(struct cuda_backend *cuda) {
    return &((struct fetching_backend *)cuda)->fetches;
}

#endif
