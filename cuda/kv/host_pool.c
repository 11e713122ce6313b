/* host_pool.c - the host pool's memory in the system's memory, and copying pages to it and back.
 *
 * The memory is mapped, preferably near the device, touched by several threads, and then registered
 * with the driver.  Most of the time goes into the system's clearing of pages.  On memory that the
 * machine has not used before, this order is a seventh faster than letting each thread pin what it
 * has touched.  On used memory the other order is faster, but both are short (94 GiB: 4 s, and 3).
 * The device reads and writes the memory where it lies (unified addresses).
 *
 * Copies run on a stream of their own.  A step waits for them only in two cases: it may write a
 * page that is still being copied, or it selects and may read any host block.  So a prompt's chunk
 * is copied while the next one is computed.  What comes back is needed at once, so it comes on the
 * stream of the steps, once all copies have ended.
 *
 *   stream   step n        │ step n + 1          │ …
 *   copies       └─────────► pages of step n │   ▲
 *                                            └───┘ only where they meet */
#include "cuda/experts/fetch.h"
#include "cuda/host/internal.h"
#include "cuda/ranks/group.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda/host/numa.h"
#include "cuda/kv/host_pool_memory.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/base/thread.h"
#include "engine/device/backend.h"
#include "engine/device/host_pool.h"
#include "engine/device/offloaded.h"
#include "engine/device/pages.h"
#include "engine/device/step.h"

enum { SYSTEM_PAGE = 4096 };
static const size_t PART_BYTES = (size_t)64 << 20; /* what a thread takes at a time */

/* ---- memory ---- */

struct host_pool_memory {
    struct host_pool_memory *next;
    char *base;
    size_t bytes;
};

/* The state shared by the threads that touch memory. */
struct touching {
    char *base;
    size_t bytes;
    atomic_size_t next; /* the first byte that no thread has taken */
};

static void *touch_parts(void *arg) {
    struct touching *touching = arg;
    size_t at;
    while ((at = atomic_fetch_add(&touching->next, PART_BYTES)) < touching->bytes) {
        const size_t end = at + min_u64(PART_BYTES, touching->bytes - at);
        for (; at < end; at += SYSTEM_PAGE) *(volatile char *)(touching->base + at) = 0;
    }
    return NULL;
}

static void touch(char *base, size_t bytes, uint32_t n_threads) {
    struct touching touching = {.base = base, .bytes = bytes};
    const uint64_t n = min_u64(min_u64(n_threads, THREADS_MOST), div_up(bytes, PART_BYTES));
    threads_run((uint32_t)n, touch_parts, &touching, 0);
}

static int pin(char *base, size_t bytes, struct error *err) {
    void *device = NULL;
    cudaError_t code =
        cudaHostRegister(base, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (code == cudaSuccess) {
        code = cudaHostGetDevicePointer(&device, base, 0);
        if (code == cudaSuccess && device != base) code = cudaErrorNotSupported;
        if (code != cudaSuccess) cudaHostUnregister(base);
    }
    if (code == cudaSuccess) return 0;
    (void)cudaGetLastError(); /* the device still works */
    return error_set(err, ERR_NOMEM, "cuda: cannot pin %.1f GiB of the machine's memory: %s",
                     (double)bytes / (1 << 30), cudaGetErrorString(code));
}

static int host_pool_alloc(struct backend *be, size_t bytes, void **out, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    struct host_pool_memory *memory = malloc(sizeof(*memory));
    if (!memory) return error_set(err, ERR_NOMEM, "cuda: no memory");
    if (bytes == 0) bytes = 1;
    char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        free(memory);
        return error_set(err, ERR_NOMEM, "cuda: the machine has no memory for %.1f GiB",
                         (double)bytes / (1 << 30));
    }
    if (cuda->node != NUMA_ANY)
        (void)numa_prefer(base, bytes, cuda->node); /* find_node() tried
                                                                               it */
    (void)madvise(base, bytes, MADV_HUGEPAGE);      /* faster to clear and to pin; may fail */
    touch(base, bytes, cuda->n_copiers);
    const int rc = pin(base, bytes, err);
    if (rc) {
        munmap(base, bytes);
        free(memory);
        return rc;
    }
    *memory = (struct host_pool_memory){cuda->store.memories, base, bytes};
    cuda->store.memories = memory;
    *out = base;
    return 0;
}

static void host_pool_free(struct backend *be, void *base) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    struct host_pool_memory **link = &cuda->store.memories;
    while (*link && (*link)->base != base) link = &(*link)->next;
    struct host_pool_memory *memory = *link;
    if (!memory) return;
    cudaStreamSynchronize(cuda->stream); /* nothing reads or writes it any more */
    if (cuda->store.stream) cudaStreamSynchronize(cuda->store.stream);
    expert_fetches_forget(cuda, memory->base);
    cuda->n_moves++;
    *link = memory->next;
    cudaHostUnregister(memory->base);
    munmap(memory->base, memory->bytes);
    free(memory);
}

void *host_pool_find(struct cuda_backend *cuda, const void *at) {
    const struct host_pool_memory *memory = cuda->store.memories;
    while (memory &&
           ((const char *)at < memory->base || (const char *)at >= memory->base + memory->bytes))
        memory = memory->next;
    return memory ? memory->base : NULL;
}

uint64_t host_pool_most_offloaded(struct cuda_backend *cuda) {
    uint64_t most = 0;
    for (const struct host_pool_memory *m = cuda->store.memories; m; m = m->next) {
        const struct offloaded_layer *layer = (const struct offloaded_layer *)m->base;
        if (m->bytes < OFFLOADED_BYTES || layer->mark != OFFLOADED_MARK) continue;
        most = max_u64(most, offloaded_matrix_bytes(layer));
    }
    return most;
}

/* ---- copies ---- */

static int open_copies(struct cuda_backend *cuda, uint32_t n_pages, struct error *err) {
    struct host_pool_copies *s = &cuda->store;
    int rc = 0;
    if (s->n_pages >= n_pages) return 0;
    if (!s->stream)
        rc = cuda_check(cuda, cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking),
                        "a stream", err);
    if (!rc && !s->submitted)
        rc = cuda_check(cuda, cudaEventCreateWithFlags(&s->submitted, cudaEventDisableTiming),
                        "an event", err);
    if (!rc && !s->copied)
        rc = cuda_check(cuda, cudaEventCreateWithFlags(&s->copied, cudaEventDisableTiming),
                        "an event", err);
    if (!rc) rc = host_pool_await(cuda, err);
    if (rc) return rc;
    uint32_t *pages = calloc(n_pages / 32 + 1, sizeof(*pages));
    if (!pages) return error_set(err, ERR_NOMEM, "cuda: no memory");
    free(s->pages);
    s->pages = pages;
    s->n_pages = n_pages;
    return 0;
}

static cudaError_t copy_pages(struct host_pool_copies *s, const struct offload_args *args) {
    struct offload_params params = {
        .kv = *args->kv, .store = *args->store, .host_layer = args->host_layer};
    const struct launch launch = {.stream = s->stream, .overlap = false};
    cudaError_t code = cudaSuccess;
    for (uint32_t i = 0; i < args->n && code == cudaSuccess; i++) {
        s->pages[args->pages[i] / 32] |= 1u << args->pages[i] % 32;
        params.copies[params.n].page = args->pages[i];
        params.copies[params.n++].block = args->blocks[i];
        if (params.n < STORE_MOST_PAGES && i + 1 < args->n) continue;
        code = launch_offload_pages(&params, launch);
        params.n = 0;
    }
    return code;
}

static int offload(struct backend *be, const struct offload_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    struct host_pool_copies *s = &cuda->store;
    if (args->n == 0) return 0;
    cuda_use_device(be);
    int rc = open_copies(cuda, args->kv->n_pages, err);
    if (rc) return rc;
    s->under_way = true;
    cudaError_t code = cudaEventRecord(s->submitted, cuda->stream);
    if (code == cudaSuccess) code = cudaStreamWaitEvent(s->stream, s->submitted, 0);
    if (code == cudaSuccess) code = copy_pages(s, args);
    if (code == cudaSuccess) code = cudaEventRecord(s->copied, s->stream);
    return cuda_check(cuda, code, "copying pages to the host pool", err);
}

static int reload(struct backend *be, const struct offload_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    struct offload_params params = {
        .kv = *args->kv, .store = *args->store, .host_layer = args->host_layer};
    const struct launch launch = {.stream = cuda->stream, .overlap = false};
    cuda_use_device(be);
    const int rc = host_pool_await(cuda, err);
    if (rc) return rc;
    cudaError_t code = cudaSuccess;
    for (uint32_t i = 0; i < args->n && code == cudaSuccess; i++) {
        params.copies[params.n].page = args->pages[i];
        params.copies[params.n++].block = args->blocks[i];
        if (params.n < STORE_MOST_PAGES && i + 1 < args->n) continue;
        code = launch_reload_pages(&params, launch);
        params.n = 0;
    }
    return cuda_check(cuda, code, "copying pages from the host pool", err);
}

/* ---- waiting ---- */

static void forget_pages(struct host_pool_copies *s) {
    s->under_way = false;
    if (s->pages) memset(s->pages, 0, (s->n_pages / 32 + 1) * sizeof(*s->pages));
}

int host_pool_await(struct cuda_backend *cuda, struct error *err) {
    struct host_pool_copies *s = &cuda->store;
    if (!s->under_way) return 0;
    forget_pages(s);
    return cuda_check(cuda, cudaStreamWaitEvent(cuda->stream, s->copied, 0), "awaiting copies",
                      err);
}

/* Says whether the step may write a page that is being copied.  With a budget it may write any
 * page: a KV head's free slot, or what a compression moves. */
static bool may_write(const struct host_pool_copies *s, const struct step_seq *seq,
                      const struct kv_view *view) {
    const uint32_t first = seq->budget ? 0 : view->append_slot / PAGE_TOKENS;
    for (uint32_t i = first; i * PAGE_TOKENS < view->n_slots; i++)
        if (s->pages[view->pages[i] / 32] >> view->pages[i] % 32 & 1) return true;
    return false;
}

static bool meets_copies(const struct host_pool_copies *s, const struct step *step) {
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        if (step->seqs[i].select) return true;
        for (uint32_t l = 0; l < step->n_layers; l++)
            if (may_write(s, &step->seqs[i], &step->seqs[i].layers[l])) return true;
    }
    return false;
}

int host_pool_await_step(struct cuda_backend *cuda, const struct step *step, struct error *err) {
    const struct host_pool_copies *s = &cuda->store;
    return s->under_way && meets_copies(s, step) ? host_pool_await(cuda, err) : 0;
}

int host_pool_sync(struct cuda_backend *cuda, struct error *err) {
    struct host_pool_copies *s = &cuda->store;
    if (!s->under_way) return 0;
    forget_pages(s);
    return cuda_check(cuda, cudaStreamSynchronize(s->stream), "copying pages to the host pool",
                      err);
}

void host_pool_close(struct cuda_backend *cuda) {
    struct host_pool_copies *s = &cuda->store;
    if (s->stream) cudaStreamSynchronize(s->stream);
    while (s->memories) host_pool_free(&cuda->base, s->memories->base);
    if (s->submitted) cudaEventDestroy(s->submitted);
    if (s->copied) cudaEventDestroy(s->copied);
    if (s->stream) cudaStreamDestroy(s->stream);
    free(s->pages);
}

const struct host_pool_ops cuda_host_pool_ops = {
    .alloc = host_pool_alloc,
    .free = host_pool_free,
    .offload = offload,
    .reload = reload,
};
