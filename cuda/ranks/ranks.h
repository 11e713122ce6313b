/* ranks.h - creates CUDA backends that compute one model together (engine/device/collective.h).
 *
 * Thread: as in cuda.h.  Memory: rank 0 owns the others.  This header is plain C, as cuda.h is. */
#ifndef CUDA_RANKS_RANKS_H
#define CUDA_RANKS_RANKS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct backend;
struct cuda_config;
struct error;

enum { CUDA_MOST_RANKS = 64 };

/* How the ranks work together; all 0: as they do best. */
struct rank_options {
    uint32_t limit_ms; /* how long a rank waits for another one before all fail; 0: 30 s */
    /* They exchange all things through the host's memory.  They do so anyway where two devices
     * cannot write each other's. */
    bool through_host;
    /* The hosts of ranks that share a device do not meet (group.h). */
    bool hosts_apart;
};

/* Creates n_ranks backends, 2 to CUDA_MOST_RANKS, each as config says but for its device: devices
 * [n_ranks], of which some may be the same.  *out is that of rank 0.  ERR_UNSUPPORTED as in
 * cuda_backend_create(), for rank 0.  ERR_INVALID: another rank's device cannot be used, or two
 * ranks do not answer each other. */
int cuda_ranks_create(struct backend **out, const struct cuda_config *config,
                      const uint32_t *devices, uint32_t n_ranks, const struct rank_options *options,
                      struct error *err);

#ifdef __cplusplus
}
#endif

#endif
