/* inflight.c - what a step carries to the device beside its description, and what it brings back.
 *
 *   host    step n:  args ──copy──►          results ◄── handed out by collect()
 *   device  ......... step n-1 ............. step n .............
 *
 * A step is submitted while the one before it runs, so there are two flights, used in turn: each
 * has its own room for small host arrays (`args`) and its own list of results under way.  The
 * tokens a step draws also stay on the device, for the step after it (STEP_DRAWN).
 *
 * Memory: reserved for the largest step; without that, grown to the largest seen. */
#include "cuda/host/internal.h"

#include <string.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"

enum { ALIGNMENT = 256, FIRST_DRAWN = 1024, FIRST_ARGS_BYTES = 1 << 20 };

/* Of the present step. */
static struct flight *newest(struct cuda_backend *cuda) {
    return &cuda->flights[cuda->n_steps % N_FLIGHTS];
}

int flights_open(struct cuda_backend *cuda, struct error *err) {
    int rc = drawn_reserve(cuda, FIRST_DRAWN, err);
    for (uint32_t i = 0; i < N_FLIGHTS && !rc; i++)
        rc = cuda_check(
            cuda, cudaEventCreateWithFlags(&cuda->flights[i].done, cudaEventDisableTiming),
            "an event", err);
    return rc ? rc : flights_reserve(cuda, FIRST_ARGS_BYTES, err);
}

int flights_reserve(struct cuda_backend *cuda, size_t args_bytes, struct error *err) {
    int rc = 0;
    for (uint32_t i = 0; i < N_FLIGHTS && !rc; i++)
        rc = mirror_reserve(cuda, &cuda->flights[i].args, args_bytes, err);
    return rc;
}

void flights_close(struct cuda_backend *cuda) {
    for (uint32_t i = 0; i < N_FLIGHTS; i++) {
        mirror_free(&cuda->flights[i].args);
        if (cuda->flights[i].done) cudaEventDestroy(cuda->flights[i].done);
    }
    cudaFree(cuda->drawn);
}

/* Its results are in pinned memory. */
static void hand_out(struct flight *flight) {
    for (uint32_t i = 0; i < flight->n_pending; i++)
        memcpy(flight->pending[i].to, flight->pending[i].from, flight->pending[i].bytes);
    flight->n_pending = 0;
    flight->args.used = 0;
    flight->under_way = false;
}

static int land(struct cuda_backend *cuda, struct flight *flight, struct error *err) {
    if (!flight->under_way) return 0;
    const int rc =
        cuda_check(cuda, cudaEventSynchronize(flight->done), "running a step", err);
    if (!rc) hand_out(flight);
    return rc;
}

int flight_begin(struct cuda_backend *cuda, struct error *err) {
    int rc = cuda_check(cuda, cudaEventRecord(newest(cuda)->done, cuda->stream), "an event", err);
    cuda->n_steps++;
    cuda->n_drawn = 0;
    if (!rc) rc = land(cuda, newest(cuda), err); /* the step before the last */
    newest(cuda)->under_way = !rc;
    return rc;
}

int cuda_collect(struct backend *be, uint32_t n_newer, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    if (n_newer == 0) return cuda_sync(be, err);
    if (n_newer >= N_FLIGHTS) return 0; /* the step that long ago has lost its flight: it landed */
    return land(cuda, &cuda->flights[(cuda->n_steps - 1) % N_FLIGHTS], err);
}

int cuda_sync(struct backend *be, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    int rc = cuda_check(cuda, cudaStreamSynchronize(cuda->stream), "running a step", err);
    if (rc || (rc = store_sync(cuda, err))) return rc;
    for (uint32_t i = 0; i < N_FLIGHTS; i++) hand_out(&cuda->flights[i]);
    return 0;
}

/* ---- small arrays ---- */

size_t args_capacity(struct cuda_backend *cuda) {
    return newest(cuda)->args.capacity;
}

int args_take(struct cuda_backend *cuda, size_t bytes, struct args *out, struct error *err) {
    struct mirror *room = &newest(cuda)->args;
    if (room->used + bytes > room->capacity) {
        int rc = cuda_sync(&cuda->base, err); /* whoever took room before is done with it now */
        if (!rc) rc = mirror_reserve(cuda, room, bytes, err);
        if (rc) return rc;
    }
    *out = (struct args){room->host + room->used, room->device + room->used};
    room->used += round_up(bytes, ALIGNMENT);
    return 0;
}

int args_send(struct cuda_backend *cuda, const struct args *args, void *to, size_t bytes,
              struct error *err) {
    const cudaError_t code =
        cudaMemcpyAsync(to, args->host, bytes, cudaMemcpyHostToDevice, cuda->stream);
    return cuda_check(cuda, code, "arguments to the device", err);
}

/* ---- results ---- */

int results_fetch(struct cuda_backend *cuda, const struct args *from, void *to, size_t bytes,
                  struct error *err) {
    struct flight *flight = newest(cuda);
    const int rc = cuda_check(
        cuda,
        cudaMemcpyAsync(from->host, from->device, bytes, cudaMemcpyDeviceToHost, cuda->stream),
        "results from the device", err);
    if (rc) return rc;
    flight->pending[flight->n_pending++] = (struct pending_results){from->host, to, bytes};
    flight->under_way = true; /* again, where a sync in the middle of the step has ended it */
    return flight->n_pending < MAX_PENDING ? 0 : cuda_sync(&cuda->base, err);
}

int drawn_reserve(struct cuda_backend *cuda, uint32_t n, struct error *err) {
    int32_t *larger = NULL;
    if (n <= cuda->drawn_capacity) return 0;
    int rc = device_alloc(cuda, n * sizeof(*larger), (void **)&larger, err);
    if (rc) return rc;
    rc = cuda_check(cuda,
                    cudaMemcpyAsync(larger, cuda->drawn, cuda->n_drawn * sizeof(*larger),
                                    cudaMemcpyDeviceToDevice, cuda->stream),
                    "drawn tokens", err);
    cudaFree(cuda->drawn); /* waits for the copy */
    cuda->drawn = larger;
    cuda->drawn_capacity = n;
    return rc;
}
