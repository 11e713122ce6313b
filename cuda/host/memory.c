/* memory.c - the basics of the backend: checked calls, device memory, and memory that the host and
 * the device both have (struct mirror). */
#include "cuda/host/internal.h"

#include "engine/base/error.h"

static const size_t MIN_MIRROR_BYTES = (size_t)1 << 20;

int cuda_check(struct cuda_backend *cuda, cudaError_t code, const char *what, struct error *err) {
    if (cuda->failed)
        return error_set(err, ERR_DEVICE, "cuda: %s: the device failed earlier", what);
    if (code == cudaSuccess) return 0;
    cuda->failed = true;
    return error_set(err, ERR_DEVICE, "cuda: %s: %s", what, cudaGetErrorString(code));
}

int device_alloc(struct cuda_backend *cuda, size_t bytes, void **out, struct error *err) {
    const double mib = 1 << 20;
    size_t n_free = 0, n_total = 0;
    cudaError_t code = cudaMalloc(out, bytes ? bytes : 1);
    if (code != cudaErrorMemoryAllocation) return cuda_check(cuda, code, "cudaMalloc", err);
    (void)cudaGetLastError(); /* this error is not sticky: the device still works */
    (void)cudaMemGetInfo(&n_free, &n_total);
    return error_set(err, ERR_NOMEM,
                     "cuda: no memory for %.1f MiB: %.1f of the device's %.1f MiB are free.  Lower "
                     "--gpu-memory-utilization or --kv-cache-memory for a smaller KV cache, or "
                     "--max-num-batched-tokens or --max-num-seqs for a smaller workspace",
                     (double)bytes / mib, (double)n_free / mib, (double)n_total / mib);
}

int device_reserve(struct cuda_backend *cuda, void **memory, size_t *capacity, size_t bytes,
                   struct error *err) {
    if (bytes <= *capacity) return 0;
    int rc =
        cuda_check(cuda, cudaStreamSynchronize(cuda->stream), "waiting before memory grows", err);
    if (rc) return rc;
    cuda->n_moves++;
    cudaFree(*memory);
    *memory = NULL;
    *capacity = 0;
    rc = device_alloc(cuda, bytes, memory, err);
    if (!rc) *capacity = bytes;
    return rc;
}

int mirror_reserve(struct cuda_backend *cuda, struct mirror *mirror, size_t bytes,
                   struct error *err) {
    if (bytes <= mirror->capacity) return 0;
    const size_t capacity = bytes < MIN_MIRROR_BYTES ? MIN_MIRROR_BYTES : bytes;
    int rc =
        cuda_check(cuda, cudaStreamSynchronize(cuda->stream), "waiting before staging grows", err);
    if (rc) return rc;
    cuda->n_moves++;
    mirror_free(mirror);
    rc = cuda_check(cuda, cudaMallocHost((void **)&mirror->host, capacity), "pinned memory", err);
    if (rc) return rc;
    rc = device_alloc(cuda, capacity, (void **)&mirror->device, err);
    /* Results are fetched whole, with places that nothing has written: they must not hold an
     * earlier owner's data. */
    if (!rc)
        rc = cuda_check(cuda, cudaMemsetAsync(mirror->device, 0, capacity, cuda->stream),
                        "clearing memory", err);
    if (rc) return rc;
    mirror->capacity = capacity;
    return 0;
}

void mirror_free(struct mirror *mirror) {
    cudaFreeHost(mirror->host);
    cudaFree(mirror->device);
    *mirror = (struct mirror){0};
}
