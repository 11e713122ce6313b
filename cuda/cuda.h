/* cuda.h - creates the CUDA backend: one NVIDIA GPU of compute capability 8.0 or newer.
 *
 * Activations are bf16; sums, norms, softmax and logits are f32.
 *
 * Thread: the creator's (the engine thread).  Memory: device memory and pinned staging, owned by
 * the backend.  This header is plain C, so that server/main.c needs no CUDA to include it. */
#ifndef CUDA_CUDA_H
#define CUDA_CUDA_H

#include "engine/device/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_config {
    uint32_t device;      /* ordinal among the visible devices */
    uint32_t n_copiers;   /* threads that fill the staging buffers while weights load; 0: as many as
                           help */
    bool batch_invariant; /* a row's results have the same bits whatever rows are computed with
                             it */
    enum input_rounding input_rounding; /* has no effect if batch_invariant: nothing is rounded */
};

/* Creates the backend.  ERR_UNSUPPORTED, with a sentence, when there is no usable device: `--device
 * auto` then takes the CPU. */
int cuda_backend_create(struct backend **out, const struct cuda_config *config, struct error *err);

#ifdef __cplusplus
}
#endif

#endif
