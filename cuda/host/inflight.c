/* inflight.c - what a step sends to the device beside its description, and the results that it
 * fetches.
 *
 *   host    step n:  args ──copy──►          results ◄── delivered by collect()  (small_copy.cu)
 *   device  ......... step n-1 ............. step n .............
 *
 * A step is submitted while the one before it runs, so there are two in-flight steps, which
 * alternate.  Each has its own memory for small host arrays (`args`) and its own list of pending
 * results.  These are collected as soon as they have come: what a step leaves to be done behind
 * them, such as copies of states, is waited for only with the step after it.  The tokens that a
 * step samples also stay on the device, for the step after it (STEP_SAMPLED).
 *
 * Memory: reserved for the largest step; without the reserve op, grown to the largest seen. */
#include "cuda/host/inflight.h"

#include <string.h>

#include "cuda/host/internal.h"
#include "cuda/ranks/group.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/backend.h"

enum { ALIGNMENT = 256, FIRST_SAMPLED = 1024, FIRST_ARGS_BYTES = 1 << 20 };

/* Returns the present step. */
static struct inflight_step *newest(struct cuda_backend *cuda) {
    return &cuda->inflight[cuda->n_steps % N_INFLIGHT];
}

static int create_event(struct cuda_backend *cuda, cudaEvent_t *event, struct error *err) {
    return cuda_check(cuda, cudaEventCreateWithFlags(event, cudaEventDisableTiming), "an event",
                      err);
}

int inflight_open(struct cuda_backend *cuda, struct error *err) {
    int rc = sampled_reserve(cuda, FIRST_SAMPLED, err);
    for (uint32_t i = 0; i < N_INFLIGHT && !rc; i++) {
        rc = create_event(cuda, &cuda->inflight[i].fetched, err);
        if (!rc) rc = create_event(cuda, &cuda->inflight[i].done, err);
    }
    return rc ? rc : inflight_reserve(cuda, FIRST_ARGS_BYTES, err);
}

int inflight_reserve(struct cuda_backend *cuda, size_t args_bytes, struct error *err) {
    int rc = 0;
    for (uint32_t i = 0; i < N_INFLIGHT && !rc; i++)
        rc = mirror_reserve(cuda, &cuda->inflight[i].args, args_bytes, err);
    return rc;
}

void inflight_close(struct cuda_backend *cuda) {
    for (uint32_t i = 0; i < N_INFLIGHT; i++) {
        mirror_free(&cuda->inflight[i].args);
        if (cuda->inflight[i].fetched) cudaEventDestroy(cuda->inflight[i].fetched);
        if (cuda->inflight[i].done) cudaEventDestroy(cuda->inflight[i].done);
    }
    cudaFree(cuda->sampled);
}

/* Delivers a step's results, which have come to pinned memory. */
static void hand_out(struct inflight_step *step) {
    for (uint32_t i = 0; i < step->n_pending; i++)
        memcpy(step->pending[i].to, step->pending[i].from, step->pending[i].bytes);
    step->n_pending = 0;
}

static void end(struct inflight_step *step) {
    hand_out(step);
    step->args.used = 0;
    step->under_way = false;
}

void inflight_forget(struct cuda_backend *cuda) {
    for (uint32_t i = 0; i < N_INFLIGHT; i++) {
        cuda->inflight[i].n_pending = 0;
        end(&cuda->inflight[i]);
    }
}

static int complete(struct cuda_backend *cuda, struct inflight_step *step, struct error *err) {
    if (!step->under_way) return 0;
    int rc = cuda_check(cuda, cudaEventSynchronize(step->done), "running a step", err);
    if (!rc) rc = cuda_group_check(&cuda->base, err);
    if (!rc) end(step);
    return rc;
}

/* Waits for a step's results alone, which what was submitted behind them does not delay. */
static int collect(struct cuda_backend *cuda, struct inflight_step *step, struct error *err) {
    int rc = cuda_check(cuda, cudaEventSynchronize(step->fetched), "running a step", err);
    if (!rc) rc = cuda_group_check(&cuda->base, err);
    if (!rc) hand_out(step);
    return rc;
}

int inflight_begin(struct cuda_backend *cuda, struct error *err) {
    int rc = cuda_check(cuda, cudaEventRecord(newest(cuda)->done, cuda->stream), "an event", err);
    cuda->n_steps++;
    cuda->n_sampled = 0;
    if (!rc) rc = complete(cuda, newest(cuda), err); /* the step before the last */
    newest(cuda)->under_way = !rc;
    return rc;
}

int cuda_collect(struct backend *be, uint32_t n_newer, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    if (n_newer >= N_INFLIGHT) return 0; /* a newer step has its place, so it has completed */
    struct inflight_step *step = &cuda->inflight[(cuda->n_steps - n_newer) % N_INFLIGHT];
    if (step->n_pending == 0) return n_newer == 0 ? cuda_sync(be, err) : complete(cuda, step, err);
    const int rc = collect(cuda, step, err);
    return rc || n_newer > 0 ? rc : host_pool_sync(cuda, err);
}

int cuda_sync(struct backend *be, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    int rc = cuda_check(cuda, cudaStreamSynchronize(cuda->stream), "running a step", err);
    if (!rc) rc = cuda_group_check(be, err);
    if (rc || (rc = host_pool_sync(cuda, err))) return rc;
    for (uint32_t i = 0; i < N_INFLIGHT; i++) end(&cuda->inflight[i]);
    return 0;
}

/* ---- small arrays ---- */

size_t args_capacity(struct cuda_backend *cuda) {
    return newest(cuda)->args.capacity;
}

int args_take(struct cuda_backend *cuda, size_t bytes, struct args *out, struct error *err) {
    struct mirror *room = &newest(cuda)->args;
    bytes = round_up(bytes, ALIGNMENT);
    if (room->used + bytes > room->capacity) {
        int rc = cuda_sync(&cuda->base, err); /* what was taken before is no longer in use */
        if (!rc) rc = mirror_reserve(cuda, room, bytes, err);
        if (rc) return rc;
    }
    *out = (struct args){room->host + room->used, room->device + room->used};
    room->used += bytes;
    return 0;
}

int args_send(struct cuda_backend *cuda, const struct args *args, void *to, size_t bytes,
              struct error *err) {
    cudaError_t code;
    if (to == args->device) code = launch_small_copy(to, args->host, bytes, true, launch_of(cuda));
    else code = cudaMemcpyAsync(to, args->host, bytes, cudaMemcpyHostToDevice, cuda->stream);
    return cuda_check(cuda, code, "arguments to the device", err);
}

/* ---- results ---- */

int results_await(struct cuda_backend *cuda, const void *host, void *to, size_t bytes,
                  struct error *err) {
    struct inflight_step *step = newest(cuda);
    step->pending[step->n_pending++] = (struct pending_results){host, to, bytes};
    step->under_way = true; /* again, if a sync in the middle of the step has ended it */
    const int rc = cuda_check(cuda, cudaEventRecord(step->fetched, cuda->stream), "an event", err);
    if (rc) return rc;
    return step->n_pending < MAX_PENDING ? 0 : cuda_sync(&cuda->base, err);
}

int results_fetch(struct cuda_backend *cuda, const struct args *from, void *to, size_t bytes,
                  struct error *err) {
    const int rc =
        cuda_check(cuda, launch_small_copy(from->host, from->device, bytes, false, launch_of(cuda)),
                   "results from the device", err);
    return rc ? rc : results_await(cuda, from->host, to, bytes, err);
}

int sampled_reserve(struct cuda_backend *cuda, uint32_t n, struct error *err) {
    int32_t *larger = NULL;
    if (n <= cuda->sampled_capacity) return 0;
    int rc = device_alloc(cuda, n * sizeof(*larger), (void **)&larger, err);
    if (rc) return rc;
    /* Where ranks have stopped, no tokens come; what is read in their place must be some. */
    rc = cuda_check(cuda, cudaMemsetAsync(larger, 0, n * sizeof(*larger), cuda->stream),
                    "sampled tokens", err);
    if (rc) return rc;
    rc = cuda_check(cuda,
                    cudaMemcpyAsync(larger, cuda->sampled, cuda->n_sampled * sizeof(*larger),
                                    cudaMemcpyDeviceToDevice, cuda->stream),
                    "sampled tokens", err);
    cudaFree(cuda->sampled); /* waits for the copy */
    cuda->sampled = larger;
    cuda->sampled_capacity = n;
    return rc;
}
