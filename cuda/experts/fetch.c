/* fetch.c - see fetch.h. */
#include "cuda/experts/fetch.h"

#include "cuda/experts/fetch_count.h"
#include "cuda/experts/fetch_state.h"
#include "cuda/kv/host_pool_memory.h"
#include "engine/base/count.h"
#include "engine/base/sizes.h"
#include "engine/device/offloaded.h"

enum { N_MATRICES = 3, ALIGN = 256 };

/* Returns the layer whose gate this is; NULL: it lies on the device. */
static struct offloaded_layer *find_layer(struct cuda_backend *cuda, const struct weight *gate) {
    struct offloaded_layer *layer = host_pool_find(cuda, gate->data);
    return layer && layer->mark == OFFLOADED_MARK ? layer : NULL;
}

/* ---- memory ---- */

static int open_event(struct cuda_backend *cuda, cudaEvent_t *event, struct error *err) {
    if (*event) return 0;
    return cuda_check(cuda, cudaEventCreateWithFlags(event, cudaEventDisableTiming), "an event",
                      err);
}

int expert_fetches_reserve(struct cuda_backend *cuda, struct error *err) {
    struct expert_fetches *f = fetches_of(cuda);
    const size_t bytes = round_up(host_pool_most_offloaded(cuda), ALIGN);
    int rc = 0;
    if (bytes <= f->matrix_bytes) return 0;
    if (!f->stream)
        rc = cuda_check(cuda, cudaStreamCreateWithFlags(&f->stream, cudaStreamNonBlocking),
                        "a stream", err);
    if (!rc) rc = open_event(cuda, &f->begun, err);
    for (size_t i = 0; i < COUNT(f->slots) && !rc; i++)
        rc = open_event(cuda, &f->slots[i].copied, err);
    if (!rc) rc = expert_fetches_join(cuda, err);
    if (!rc)
        rc = device_reserve(cuda, &f->memory, &f->bytes, COUNT(f->slots) * N_MATRICES * bytes, err);
    if (!rc) f->matrix_bytes = bytes;
    return rc;
}

void expert_fetches_forget(struct cuda_backend *cuda, const void *layer) {
    struct expert_fetches *f = fetches_of(cuda);
    if (f->stream) cudaStreamSynchronize(f->stream);
    for (size_t i = 0; i < COUNT(f->slots); i++)
        if (f->slots[i].of == layer) f->slots[i].of = NULL;
}

void expert_fetches_close(struct cuda_backend *cuda) {
    struct expert_fetches *f = fetches_of(cuda);
    if (f->stream) cudaStreamSynchronize(f->stream);
    for (size_t i = 0; i < COUNT(f->slots); i++)
        if (f->slots[i].copied) cudaEventDestroy(f->slots[i].copied);
    if (f->begun) cudaEventDestroy(f->begun);
    if (f->stream) cudaStreamDestroy(f->stream);
    cudaFree(f->memory);
}

/* ---- copies ---- */

/* Returns where a slot has a matrix: gate, up or down. */
static struct weight place_of(const struct expert_fetches *f, const struct fetch_slot *slot,
                              const struct weight *w, int which) {
    const size_t i = (size_t)(slot - f->slots) * N_MATRICES + (size_t)which;
    return weight_copy_at(w, (char *)f->memory + i * f->matrix_bytes);
}

static cudaError_t copy_matrix(const struct expert_fetches *f, const struct weight *w,
                               const struct weight *to) {
    const size_t n_scales = weight_scale_bytes(w), n_mins = w->format.has_min ? n_scales : 0,
                 sizes[] = {weight_bytes(w) - n_scales - n_mins, n_scales, n_mins};
    const void *const from[] = {w->data, w->scales, w->mins}, *const places[] = {
                                                                  to->data, to->scales, to->mins};
    cudaError_t code = cudaSuccess;
    for (size_t i = 0; i < COUNT(sizes) && code == cudaSuccess; i++)
        if (sizes[i] > 0)
            code = cudaMemcpyAsync((void *)places[i], from[i], sizes[i], cudaMemcpyHostToDevice,
                                   f->stream);
    return code;
}

/* Begins to copy a layer to a slot, behind what the stream has read of it. */
static int begin_copies(struct cuda_backend *cuda, struct fetch_slot *slot,
                        const struct offloaded_layer *layer, struct error *err) {
    struct expert_fetches *f = fetches_of(cuda);
    const struct weight *const all[N_MATRICES] = {&layer->gate, &layer->up, &layer->down};
    cudaError_t code = cudaEventRecord(f->begun, cuda->stream);
    if (code == cudaSuccess) code = cudaStreamWaitEvent(f->stream, f->begun, 0);
    for (int i = 0; i < N_MATRICES && code == cudaSuccess; i++) {
        const struct weight to = place_of(f, slot, all[i], i);
        code = copy_matrix(f, all[i], &to);
    }
    if (code == cudaSuccess) code = cudaEventRecord(slot->copied, f->stream);
    slot->of = layer;
    return cuda_check(cuda, code, "copying experts to the device", err);
}

/* Returns the slot that has a layer, or is to get it; NULL: none has. */
static struct fetch_slot *find_slot(struct expert_fetches *f, const struct offloaded_layer *layer) {
    for (size_t i = 0; i < COUNT(f->slots); i++)
        if (f->slots[i].of == layer) return &f->slots[i];
    return NULL;
}

static bool is_whole(const struct experts_args *args, const struct offloaded_layer *layer) {
    return expert_fetch_is_whole(args->n_rows, args->n_used, layer->gate.n_stacked);
}

/* Makes the stream wait for the layer's experts, which then lie in *slot. */
static int take_whole(struct cuda_backend *cuda, struct experts_args *args,
                      struct fetched_experts *out, struct fetch_slot **slot, struct error *err) {
    struct expert_fetches *f = fetches_of(cuda);
    int rc = 0;
    *slot = find_slot(f, out->layer);
    if (!*slot) {
        *slot = &f->slots[f->slots[0].of != NULL];
        rc = begin_copies(cuda, *slot, out->layer, err);
    }
    if (!rc)
        rc = cuda_check(cuda, cudaStreamWaitEvent(cuda->stream, (*slot)->copied, 0),
                        "awaiting experts", err);
    out->gate = place_of(f, *slot, &out->layer->gate, 0);
    out->up = place_of(f, *slot, &out->layer->up, 1);
    out->down = place_of(f, *slot, &out->layer->down, 2);
    out->is_whole = true;
    args->routed.gate = &out->gate;
    args->routed.up = &out->up;
    args->routed.down = &out->down;
    return rc;
}

int expert_fetch(struct cuda_backend *cuda, struct experts_args *args, struct fetched_experts *out,
                 struct error *err) {
    struct expert_fetches *f = fetches_of(cuda);
    struct fetch_slot *slot;
    *out = (struct fetched_experts){.layer = find_layer(cuda, args->routed.gate)};
    if (!out->layer || !is_whole(args, out->layer)) return 0;
    int rc = 0;
    if (offloaded_matrix_bytes(out->layer) > f->matrix_bytes)
        rc = expert_fetches_reserve(cuda, err);
    if (!rc) rc = take_whole(cuda, args, out, &slot, err);
    const struct offloaded_layer *next = out->layer->next;
    if (rc || !next || !is_whole(args, next) || find_slot(f, next)) return rc;
    if (offloaded_matrix_bytes(next) > f->matrix_bytes) return 0;
    /* The stream has read all that the other slot has. */
    return begin_copies(cuda, &f->slots[slot == f->slots], next, err);
}

int expert_fetches_join(struct cuda_backend *cuda, struct error *err) {
    struct expert_fetches *f = fetches_of(cuda);
    int rc = 0;
    for (size_t i = 0; i < COUNT(f->slots) && !rc; i++) {
        if (f->slots[i].of)
            rc = cuda_check(cuda, cudaStreamWaitEvent(cuda->stream, f->slots[i].copied, 0),
                            "awaiting experts", err);
        f->slots[i].of = NULL;
    }
    return rc;
}

int expert_fetch_count(struct cuda_backend *cuda, const struct experts_args *args,
                       const struct fetched_experts *fetched, struct error *err) {
    struct offloaded_layer *layer = fetched->layer;
    if (!layer) return 0;
    const uint32_t n_experts = layer->gate.n_stacked;
    const struct count_params count = {.experts = args->experts,
                                       .n_pairs = args->n_rows * args->n_used,
                                       .n_experts = n_experts,
                                       .bytes = offloaded_layer_bytes(layer) / n_experts,
                                       .is_whole = fetched->is_whole,
                                       .sum = &layer->fetched_bytes};
    return cuda_check(cuda, launch_count_fetched(&count, launch_of(cuda)),
                      "counting fetched experts", err);
}
