/* build_info.c - see build_info.h.  Meson passes version and kernels, and for each part that may be
 * missing, whether it is there (1), was not found (0) or was switched off (-1). */
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

#define SWITCHED_OFF(option) "meson configure BUILD -D" option "=auto, it is disabled there"

static const struct build_gap gaps[] = {
#if QUIRE_HAS_GRAMMAR < 1
    {"xgrammar", "answers cannot be constrained to schemas, grammars and strict tools",
     QUIRE_HAS_GRAMMAR ? SWITCHED_OFF("grammar")
                       : "a C++ compiler, and scripts/build with access to the network: it fetches "
                         "subprojects/xgrammar.wrap"},
#endif
#if QUIRE_HAS_HUB < 1
    {"libcurl", "models are not fetched by their names",
     QUIRE_HAS_HUB ? SWITCHED_OFF("hub") : "the package libcurl4-gnutls-dev, and scripts/build"},
#endif
#if QUIRE_HAS_KV_EVENTS < 1
    {"ZeroMQ", "--kv-events is refused",
     QUIRE_HAS_KV_EVENTS ? SWITCHED_OFF("kv_events")
                         : "the package libzmq3-dev, and scripts/build"},
#endif
#if QUIRE_HAS_CUDA < 1
    {"CUDA", "no GPU is used",
     QUIRE_HAS_CUDA
         ? SWITCHED_OFF("cuda")
         : "nvcc of the CUDA toolkit, in the path or in /usr/local/cuda, and scripts/build"},
#endif
    {NULL, NULL, NULL},
};

const struct build_info build_info = {
    .version = QUIRE_VERSION,
    .commit = build_commit,
    .backends = backends,
    .gaps = gaps,
};
