/* backend.c - see cuda.h and internal.h: creation, the table of operations, and the operations that
 * move memory. */
#include "cuda/host/internal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/experts/fetch.h"
#include "cuda/experts/fetch_state.h"
#include "cuda/host/numa.h"
#include "cuda/ranks/group.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/backend.h"
#include "engine/device/dtype.h"
#include "engine/device/pages.h"
#include "engine/device/step.h"

enum { FIRST_BLOCK_BYTES = 1 << 20, MIN_MAJOR = 8, MAX_COPIERS = 8 };

static struct device_memory cuda_memory(struct backend *be) {
    cuda_use_device(be);
    size_t n_free = 0, n_total = 0;
    if (cudaMemGetInfo(&n_free, &n_total) != cudaSuccess)
        return (struct device_memory){0, 1}; /* too little for anything: alloc will say why */
    return (struct device_memory){n_free, n_total};
}

/* Reserves every module's memory for the largest step; create has allocated cuBLASLt's workspace.
 * Some memory is not reserved, and comes from what --gpu-memory-utilization leaves free: modules
 * that load when first used, CUDA graphs, and what grows with the tokens that a step attends to.
 * The last happens when sequences share pages and together attend to more tokens than the pool
 * holds.  What grows is attention's partial results (--batch-invariant), and selections' scores and
 * candidates. */
static int cuda_reserve(struct backend *be, const struct step_limits *limits, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    cuda_use_device(be);
    int rc = select_reserve(cuda, limits, err); /* first: step_reserve() needs its select.shape */
    if (!rc) rc = step_reserve(cuda, limits, err);
    if (!rc) rc = angles_reserve(cuda, limits, err);
    if (!rc) rc = prompt_copies_reserve(cuda, limits, err);
    if (!rc) rc = sparse_memory_reserve(cuda, limits, err);
    if (!rc) rc = rounded_reserve(cuda, limits, err);
    if (!rc) rc = expert_fetches_reserve(cuda, err);
    return rc ? rc : sample_reserve(cuda, limits, err);
}

static int cuda_alloc(struct backend *be, size_t bytes, void **out, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    void *memory = NULL;
    cuda_use_device(be);
    int rc = device_alloc(cuda, bytes, &memory, err);
    if (rc) return rc;
    rc = cuda_check(cuda, cudaMemsetAsync(memory, 0, bytes, cuda->stream), "clearing memory", err);
    if (rc) cudaFree(memory);
    else *out = memory;
    return rc;
}

static void cuda_free(struct backend *be, void *memory) {
    CUDA_BACKEND(be)->n_moves++;
    cudaFree(memory);
}

static int copy(struct cuda_backend *cuda, void *to, const void *from, size_t bytes,
                enum cudaMemcpyKind kind, struct error *err) {
    const int rc = host_pool_await(cuda, err);
    if (rc || bytes == 0) return rc;
    return cuda_check(cuda, cudaMemcpyAsync(to, from, bytes, kind, cuda->stream),
                      kind == cudaMemcpyHostToDevice ? "upload" : "download", err);
}

static int cuda_upload(struct backend *be, void *to, const void *host, size_t bytes,
                       struct error *err) {
    return copy(CUDA_BACKEND(be), to, host, bytes, cudaMemcpyHostToDevice, err);
}

static int cuda_download(struct backend *be, void *host, const void *from, size_t bytes,
                         struct error *err) {
    return copy(CUDA_BACKEND(be), host, from, bytes, cudaMemcpyDeviceToHost, err);
}

static int cuda_copy_pages(struct backend *be, const struct kv_pool *kv, const uint32_t *from,
                           const uint32_t *to, uint32_t n, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    struct page_copies copies;
    cuda_use_device(be);
    int rc = host_pool_await(cuda, err);
    for (uint32_t at = 0; at < n && !rc; at += copies.n) {
        copies.n = min_u32(n - at, MOST_PAGE_COPIES);
        memcpy(copies.from, from + at, copies.n * sizeof(*from));
        memcpy(copies.to, to + at, copies.n * sizeof(*to));
        rc =
            cuda_check(cuda, launch_copy_pages(kv, &copies, launch_of(cuda)), "copying pages", err);
    }
    return rc;
}

/* ---- creation ---- */

static void cuda_destroy(struct backend *be) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    if (be->rank == 0) cuda_group_destroy(be);
    cuda_use_device(be);
    if (cuda->stream) cudaStreamSynchronize(cuda->stream);
    host_pool_close(cuda);
    select_close(cuda);
    graphs_close(cuda);
    attention_close(cuda);
    sparse_memory_free(cuda);
    prompt_copies_close(cuda);
    linear_close(cuda);
    expert_fetches_close(cuda);
    weights_free(cuda);
    mirror_free(&cuda->step_block);
    inflight_close(cuda);
    rotary_close(cuda);
    slopes_close(cuda);
    cudaFree(cuda->attn_stats.lse);
    cudaFree(cuda->attn_stats.scores);
    cudaFree(cuda->changed);
    cudaFree(cuda->partials);
    cudaFree(cuda->exchange);
    if (cuda->step_copied) cudaEventDestroy(cuda->step_copied);
    if (cuda->stream) cudaStreamDestroy(cuda->stream);
    free(cuda);
}

static const struct backend_ops cuda_ops = {
    .destroy = cuda_destroy,
    .memory = cuda_memory,
    .reserve = cuda_reserve,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .takes = cuda_takes,
    .rounds = cuda_rounds,
    .weight_load = cuda_weight_load,
    .weight_release = cuda_weight_release,
    .upload = cuda_upload,
    .download = cuda_download,
    .copy_pages = cuda_copy_pages,
    .step_begin = cuda_step_begin,
    .embed = cuda_embed,
    .add_positions = cuda_add_positions,
    .rmsnorm = cuda_rmsnorm,
    .layernorm = cuda_layernorm,
    .linear = cuda_linear,
    .gated = cuda_gated,
    .activate = cuda_activate,
    .gate = cuda_gate,
    .rope_append = cuda_rope_append,
    .attn_decode = cuda_attn_decode,
    .attn_prefill = cuda_attn_prefill,
    .gather_rows = cuda_gather_rows,
    .soft_cap = cuda_soft_cap,
    .sample = cuda_sample,
    .run_graph = cuda_run_graph,
    .collect = cuda_collect,
    .sync = cuda_sync,
    .measure = cuda_measure,
    .host_pool = &cuda_host_pool_ops,
    .evict = &cuda_evict_ops,
    .sparse = &cuda_sparse_ops,
    .select = &cuda_select_ops,
    .experts = &cuda_expert_ops,
    .collective = &cuda_collective_ops,
    .recurrent = &cuda_recurrent_ops,
};

static int find_device(struct cudaDeviceProp *properties, uint32_t device, struct error *err) {
    int n = 0, driver = 0;
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
        return error_set(err, ERR_UNSUPPORTED, "there is no NVIDIA driver");
    cudaError_t code = cudaGetDeviceCount(&n);
    if (code != cudaSuccess || n == 0)
        return error_set(err, ERR_UNSUPPORTED, "there is no CUDA device (%s)",
                         code == cudaSuccess ? "none is visible" : cudaGetErrorString(code));
    if (device >= (uint32_t)n)
        return error_set(err, ERR_UNSUPPORTED, "there is no CUDA device %u: %d are visible", device,
                         n);
    code = cudaGetDeviceProperties(properties, (int)device);
    if (code != cudaSuccess)
        return error_set(err, ERR_UNSUPPORTED, "CUDA device %u cannot be used: %s", device,
                         cudaGetErrorString(code));
    if (properties->major < MIN_MAJOR)
        return error_set(err, ERR_UNSUPPORTED,
                         "%s has compute capability %d.%d; 8.0 is the oldest that is supported",
                         properties->name, properties->major, properties->minor);
    return 0;
}

static void describe(struct cuda_backend *cuda, const struct cudaDeviceProp *properties) {
    static const char *const roundings[] = {[ROUND_AS_DECLARED] = "inputs rounded as declared",
                                            [ROUND_NEVER] = "inputs never rounded",
                                            [ROUND_ALWAYS] = "inputs always rounded"};
    snprintf(cuda->base.description, sizeof(cuda->base.description),
             "%.64s, %.1f GiB, compute capability %d.%d, %d multiprocessors", properties->name,
             (double)properties->totalGlobalMem / (1 << 30), properties->major, properties->minor,
             properties->multiProcessorCount);
    snprintf(cuda->base.arithmetic, sizeof(cuda->base.arithmetic),
             "%.64s, compute capability %d.%d, %d multiprocessors, %s", properties->name,
             properties->major, properties->minor, properties->multiProcessorCount,
             roundings[cuda->base.input_rounding]);
}

/* Finds the device's NUMA node, and whether memory may be requested there. */
static void find_node(struct cuda_backend *cuda) {
    char bus[32] = "", path[96], *text = cuda->base.description;
    const size_t size = sizeof(cuda->base.description);
    cuda->node = NUMA_ANY;
    if (cudaDeviceGetPCIBusId(bus, sizeof(bus), cuda->device) != cudaSuccess) return;
    for (char *c = bus; *c; c++) *c = (char)tolower((unsigned char)*c);
    snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", bus);
    const int node = numa_read_node(path);
    if (node == NUMA_ANY) return;
    if (numa_try(node)) cuda->node = node;
    snprintf(text + strlen(text), size - strlen(text), ", NUMA node %d%s", node,
             cuda->node == NUMA_ANY ? " refused" : "");
}

static int open_device(struct cuda_backend *cuda, struct error *err) {
    int rc = cuda_check(cuda, cudaSetDevice(cuda->device), "choosing the device", err);
    if (!rc)
        rc = cuda_check(cuda, cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking),
                        "a stream", err);
    if (!rc)
        rc = cuda_check(cuda, cudaEventCreateWithFlags(&cuda->step_copied, cudaEventDisableTiming),
                        "an event", err);
    if (!rc) rc = mirror_reserve(cuda, &cuda->step_block, FIRST_BLOCK_BYTES, err);
    if (!rc) rc = inflight_open(cuda, err);
    if (!rc) rc = rotary_open(cuda, err);
    if (!rc) rc = stream_open(cuda, err);
    return rc ? rc : linear_open(cuda, err);
}

int cuda_backend_create(struct backend **out, const struct cuda_config *config, struct error *err) {
    struct cudaDeviceProp properties;
    int rc = find_device(&properties, config->device, err);
    if (rc) return rc;
    struct cuda_backend *cuda = calloc(1, sizeof(struct fetching_backend));
    if (!cuda) return error_set(err, ERR_NOMEM, "cuda: no memory");
    const long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
    cuda->base = (struct backend){
        .ops = &cuda_ops,
        .name = "cuda",
        .act_dtype = DTYPE_BF16,
        .repeats = true,
        .runs_ahead = true,
        .input_rounding = config->batch_invariant ? ROUND_NEVER : config->input_rounding};
    cuda->device = (int)config->device;
    cuda->overlap = properties.major == 9; /* others run the code for 8.0, which does not wait */
    cuda->n_multiprocessors = (uint32_t)properties.multiProcessorCount;
    cuda->batch_invariant = config->batch_invariant;
    cuda->n_copiers = config->n_copiers      ? config->n_copiers
                      : n_cpus > MAX_COPIERS ? MAX_COPIERS
                                             : (uint32_t)n_cpus;
    describe(cuda, &properties);
    find_node(cuda);
    rc = open_device(cuda, err);
    if (rc) cuda_destroy(&cuda->base);
    else *out = &cuda->base;
    return rc;
}
