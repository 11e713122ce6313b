/* ranks.h - creates CUDA backends that compute one model together (engine/device/collective.h).
 *
 * Thread: as in cuda.h.  Memory: rank 0 owns the others.  This header is plain C, as cuda.h is. */
#ifndef CUDA_RANKS_RANKS_H
#define CUDA_RANKS_RANKS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct backend;
struct cuda_config;
struct error;

enum { CUDA_MOST_RANKS = 64 };

/* Creates n_ranks backends, 2 to CUDA_MOST_RANKS, each as config says but for its device: devices
 * [n_ranks], of which some may be the same.  *out is that of rank 0.  ERR_UNSUPPORTED as in
 * cuda_backend_create(), for rank 0; or two devices cannot read each other's memory.  ERR_INVALID:
 * another rank's device cannot be used. */
int cuda_ranks_create(struct backend **out, const struct cuda_config *config,
                      const uint32_t *devices, uint32_t n_ranks, struct error *err);

#ifdef __cplusplus
}
#endif

#endif
