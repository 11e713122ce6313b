/* small_copy.cu - copies between pinned memory of the host and the device's, by a kernel.
 *
 * A step needs at least two small ones between kernels: its description, and what it samples with.
 * The copy engine waits for the kernel before, and the kernel after waits for the copy engine.  So
 * several times as long would pass between two steps (docs/benchmarks/gpu-kernels.md, "What stands
 * between two steps").
 *
 * Grid: a block for COPY_BYTES.     Bound: the bus. */
#include "cuda/common/device.cuh"
#include "cuda/host/kernels.h"
#include "engine/base/sizes.h"

enum { N_THREADS = 128, WORDS = 2, COPY_BYTES = N_THREADS * WORDS * 16 };

/* Reads before the wait what comes from the host: it was written before the launch. */
static __global__ void __launch_bounds__(N_THREADS)
    small_copy_kernel(uint4 *to, const uint4 *from, size_t n, bool from_host) {
    const size_t first = blockIdx.x * (size_t)(N_THREADS * WORDS) + threadIdx.x;
    uint4 words[WORDS];
    let_next_start();
    if (!from_host) wait_for_previous();
#pragma unroll
    for (int i = 0; i < WORDS; i++)
        if (first + i * N_THREADS < n) words[i] = load_volatile(from + first + i * N_THREADS);
    if (from_host) wait_for_previous();
#pragma unroll
    for (int i = 0; i < WORDS; i++)
        if (first + i * N_THREADS < n) to[first + i * N_THREADS] = words[i];
}

cudaError_t launch_small_copy(void *to, const void *from, size_t bytes, bool from_host,
                              struct launch launch) {
    if (bytes == 0) return cudaSuccess;
    return launch_kernel(launch, small_copy_kernel, (unsigned)div_up(bytes, COPY_BYTES), N_THREADS,
                         0, static_cast<uint4 *>(to), static_cast<const uint4 *>(from),
                         (size_t)div_up(bytes, sizeof(uint4)), from_host);
}

static __global__ void boundary_kernel() {
    let_next_start();
    wait_for_previous();
}

cudaError_t launch_boundary(struct launch launch) {
    launch.overlap = false;
    return launch_kernel(launch, boundary_kernel, 1, 32, 0);
}
