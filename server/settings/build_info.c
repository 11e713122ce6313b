/* build_info.c - see build_info.h.  Meson passes version and kernels. */
#include "server/settings/build_info.h"

#include <stddef.h>

static const char *const cpu_kernels[] = {QUIRE_CPU_KERNELS, NULL};
#ifdef QUIRE_CUDA_KERNELS
/* compute_80 is PTX, which the driver compiles for GPUs that came later. */
static const char *const cuda_kernels[] = {QUIRE_CUDA_KERNELS, NULL};
#endif

static const struct build_backend backends[] = {
    {"cpu", cpu_kernels},
#ifdef QUIRE_CUDA_KERNELS
    {"cuda", cuda_kernels},
#endif
    {NULL, NULL},
};

const struct build_info build_info = {
    .version = QUIRE_VERSION,
    .commit = build_commit,
    .backends = backends,
};
