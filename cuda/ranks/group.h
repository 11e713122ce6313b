/* group.h - CUDA backends that compute one model together, in one process: collective.h.
 *
 * Each rank has a device, or several have the same one.  Host threads meet, and streams wait for
 * each other's events:
 *
 *   rank 0   … part ─ event ──┬─ wait ─ sum of all parts ─ event ─┬─ wait ─ next part …
 *   rank 1   … part ─ event ──┴─ wait ─ sum of all parts ─ event ─┴─ wait ─ next part …
 *
 * No kernel waits for another rank, so ranks of one device cannot block each other.  Kernels read
 * the other ranks' memory, which needs peer access between devices.
 *
 * Thread: each rank's own, but for create and destroy.  Memory: the group's. */
#ifndef CUDA_RANKS_GROUP_H
#define CUDA_RANKS_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#include "cuda/ranks/ranks.h"

#ifdef __cplusplus
extern "C" {
#endif

struct backend;
struct collective_ops;
struct error;

extern const struct collective_ops cuda_collective_ops;

/* Destroys the group of rank 0, and all of its backends but that one.  An ungrouped backend is
 * allowed. */
void cuda_group_destroy(struct backend *rank_0);

/* Makes the backend's device that of the calling thread, before its memory is allocated or a kernel
 * is launched between steps. */
void cuda_use_device(const struct backend *be);

struct sum_params {
    const void *parts[CUDA_MOST_RANKS]; /* bf16 [n] of each rank; 16-byte aligned if is_wide */
    void *x;                            /* bf16 [n] */
    size_t n;
    uint32_t n_ranks;
    bool accumulate; /* x += the sum; else x is the sum */
    bool is_wide;    /* n is a multiple of 8 */
};

/* Launches the sum of all parts, in the order of the ranks. */
cudaError_t launch_sum(const struct sum_params *params, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
