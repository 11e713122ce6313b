/* measure.cu - measures the device's limits: memory bandwidth, and the rate of dense products.
 *
 *   copy, read   over far more bytes than the L2 holds, 16 bytes a thread and iteration
 *   product      bf16, 8192 x 8192 x 8192, by cuBLASLt: what the vendor's own library reaches, also
 *                where the backend itself is batch-invariant and may not use it
 *
 * The data are random bits: a device that multiplies zeros draws less power and runs faster than it
 * ever will with a model.  The best of a few tries counts, for nothing makes a device faster than
 * it is.
 *
 * Host code is C++ because the launches are.  Memory: freed on return. */
#include "cuda/host/internal.h"

#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/device/weight.h"

namespace {

enum { N_TRIES = 5, N_PRODUCTS = 10, SIDE = 8192, N_THREADS = 512, BLOCKS_PER_SM = 8, UNROLL = 8 };
const size_t MEMORY_BYTES = (size_t)2 << 30;

/* Fills memory with pairs of bf16, each of magnitude in [0.5, 1) with either sign. */
__global__ void fill_kernel(uint32_t *to, size_t n) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 2654435761u;
        h = (h ^ h >> 15) * 2246822519u;
        h ^= h >> 13;
        to[i] = (h & 0x807f807f) | 0x3f003f00;
    }
}

__global__ void copy_kernel(const uint4 *from, uint4 *to, size_t n) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        to[i] = from[i];
}

/* Reads all of `from`.  None of the tested bits is ever set, but the compiler cannot know. */
__global__ void read_kernel(const uint4 *from, size_t n, uint32_t *sink) {
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    uint32_t sum = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += UNROLL * stride) {
        uint4 x[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; k++)
            x[k] = i + k * stride < n ? __ldcs(from + i + k * stride) : uint4{};
#pragma unroll
        for (int k = 0; k < UNROLL; k++) sum |= (x[k].x | x[k].y | x[k].z | x[k].w) & 0x40004000;
    }
    if (sum != 0) *sink = sum;
}

/* One block of memory, used as the source and the target of copies, or as three matrices. */
struct measurement {
    struct cuda_backend *cuda;
    char *memory;
    cudaEvent_t begin, end;
    int n_blocks;
};

int run_copy(struct measurement *m, struct error *err) {
    const size_t n = MEMORY_BYTES / 2;
    copy_kernel<<<m->n_blocks, N_THREADS, 0, m->cuda->stream>>>(
        reinterpret_cast<const uint4 *>(m->memory), reinterpret_cast<uint4 *>(m->memory + n),
        n / sizeof(uint4));
    return cuda_check(m->cuda, cudaGetLastError(), "measuring a copy", err);
}

int run_read(struct measurement *m, struct error *err) {
    read_kernel<<<m->n_blocks, N_THREADS, 0, m->cuda->stream>>>(
        reinterpret_cast<const uint4 *>(m->memory), MEMORY_BYTES / sizeof(uint4),
        reinterpret_cast<uint32_t *>(m->memory));
    return cuda_check(m->cuda, cudaGetLastError(), "measuring a read", err);
}

int run_products(struct measurement *m, struct error *err) {
    const size_t bytes = (size_t)SIDE * SIDE * 2;
    struct weight w = {};
    w.data = m->memory;
    w.format.element = ELEMENT_BF16;
    w.rows = w.cols = SIDE;
    struct linear_args args = {};
    args.x = m->memory + bytes;
    args.n_rows = args.n_in = SIDE;
    args.n_parts = 1;
    args.parts[0].w = &w;
    args.parts[0].y = m->memory + 2 * bytes;
    args.parts[0].y_stride = SIDE;
    int rc = 0;
    for (int i = 0; i < N_PRODUCTS && !rc; i++) rc = linear_by(m->cuda, "cublaslt", &args, err);
    return rc;
}

/* Returns in *best the time of the fastest of several tries; the first one warms up and does not
 * count. */
int best_seconds(struct measurement *m, int (*run)(struct measurement *, struct error *),
                 double *best, struct error *err) {
    *best = 1e30;
    for (int i = 0; i <= N_TRIES; i++) {
        float ms = 0;
        int rc = cuda_check(m->cuda, cudaEventRecord(m->begin, m->cuda->stream), "an event", err);
        if (!rc) rc = run(m, err);
        if (!rc)
            rc = cuda_check(m->cuda, cudaEventRecord(m->end, m->cuda->stream), "an event", err);
        if (!rc) rc = cuda_check(m->cuda, cudaEventSynchronize(m->end), "measuring", err);
        if (!rc)
            rc = cuda_check(m->cuda, cudaEventElapsedTime(&ms, m->begin, m->end), "a time", err);
        if (rc) return rc;
        if (i > 0 && ms * 1e-3 < *best) *best = ms * 1e-3;
    }
    return 0;
}

int open_measurement(struct measurement *m, struct error *err) {
    int n_multiprocessors = 0;
    int rc = device_alloc(m->cuda, MEMORY_BYTES, reinterpret_cast<void **>(&m->memory), err);
    if (!rc) rc = cuda_check(m->cuda, cudaEventCreate(&m->begin), "an event", err);
    if (!rc) rc = cuda_check(m->cuda, cudaEventCreate(&m->end), "an event", err);
    if (!rc)
        rc = cuda_check(m->cuda,
                        cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount,
                                               m->cuda->device),
                        "the device's size", err);
    if (rc) return rc;
    m->n_blocks = n_multiprocessors * BLOCKS_PER_SM;
    fill_kernel<<<m->n_blocks, N_THREADS, 0, m->cuda->stream>>>(
        reinterpret_cast<uint32_t *>(m->memory), MEMORY_BYTES / sizeof(uint32_t));
    return cuda_check(m->cuda, cudaGetLastError(), "random bits", err);
}

} // namespace

int cuda_measure(struct backend *be, struct ceilings *out, struct error *err) {
    struct measurement m = {};
    double copy = 0, read = 0, products = 0;
    m.cuda = CUDA_BACKEND(be);
    int rc = cuda_check(m.cuda, cudaSetDevice(m.cuda->device), "choosing the device", err);
    if (!rc) rc = open_measurement(&m, err);
    if (!rc) rc = best_seconds(&m, run_copy, &copy, err);
    if (!rc) rc = best_seconds(&m, run_read, &read, err);
    if (!rc) rc = best_seconds(&m, run_products, &products, err);
    if (!rc) {
        out->copy_bytes_per_s = (double)MEMORY_BYTES / copy;
        out->read_bytes_per_s = (double)MEMORY_BYTES / read;
        out->flops_per_s = 2.0 * N_PRODUCTS * SIDE * SIDE * SIDE / products;
    }
    if (m.begin) cudaEventDestroy(m.begin);
    if (m.end) cudaEventDestroy(m.end);
    cudaFree(m.memory);
    return rc;
}
