/* select.c - selections on the host: their workspace, and the operation.
 *
 *   stream    filter's attention │ rest of the layer │ next layer … │ sparse │ sparse …
 *   fetcher                 └──► choose │ pages │ layer │ layer │ layer … ▲        ▲
 *                                            └──────┼───────────────┘        │
 *                                                   └────────────────────────┘
 *
 * Choosing and fetching run on a stream of their own.  The filter layer's other products and the
 * layer that waits hide their time.  Each layer fetched over the bus has an event, for which the
 * layer's attention waits; tokens copied from pool pages have one event for all layers.  Attention
 * that writes attention statistics waits until the filter's have been read.  A group's fetches are
 * all awaited before the next group is selected, and so before the capture of a CUDA graph ends.
 *
 * Memory: the part by row is reserved; the part by candidate is reserved, and grows, like the
 * scores of attention (evict.c). */
#include "cuda/host/internal.h"

#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/device/host_pool.h"
#include "engine/device/layer_group.h"
#include "engine/device/pages.h"
#include "engine/device/select.h"
#include "engine/device/step.h"

/* ---- workspace ---- */

/* Returns the next `bytes` of memory and adds them to *used; only counts when memory is NULL. */
static void *carve(char *memory, size_t *used, size_t bytes) {
    void *at = memory ? memory + *used : NULL;
    *used += (bytes + PAGE_ALIGN - 1) / PAGE_ALIGN * PAGE_ALIGN;
    return at;
}

static size_t lay_out_rows(struct select_memory *s, char *memory) {
    struct select_workspace *room = &s->room;
    const size_t n = s->max_rows, word = sizeof(uint32_t);
    size_t used = 0;
    room->histograms = carve(memory, &used, n * SELECT_DIGITS * SELECT_BINS * word);
    room->found = carve(memory, &used, n * SELECT_DIGITS * 2 * word);
    room->free_slots = carve(memory, &used, n * room->max_selected * word);
    room->totals = carve(memory, &used, n * sizeof(*room->totals));
    for (uint32_t i = 0; i < FETCH_KINDS; i++)
        room->fetches[i] = carve(memory, &used, s->max_fetches * sizeof(struct fetch));
    room->n_fetches = carve(memory, &used, FETCH_KINDS * word);
    return used;
}

static int reserve_candidates(struct cuda_backend *cuda, size_t n, struct error *err) {
    struct select_memory *s = &cuda->select;
    const size_t bits = n / 8, keys = n * sizeof(uint32_t);
    size_t used = 0;
    int rc = device_reserve(cuda, &s->bits, &s->bits_bytes, keys + 2 * bits + 3 * PAGE_ALIGN, err);
    if (rc) return rc;
    s->room.keys = carve(s->bits, &used, keys);
    s->room.chosen = carve(s->bits, &used, bits);
    s->room.equal = carve(s->bits, &used, bits);
    return 0;
}

static int create_event(struct cuda_backend *cuda, cudaEvent_t *event, struct error *err) {
    return cuda_check(cuda, cudaEventCreateWithFlags(event, cudaEventDisableTiming), "an event",
                      err);
}

static int open_fetcher(struct cuda_backend *cuda, uint32_t max_layers, struct error *err) {
    struct select_memory *s = &cuda->select;
    int rc = cuda_check(cuda, cudaStreamCreateWithFlags(&s->fetcher, cudaStreamNonBlocking),
                        "a stream", err);
    if (!rc) rc = create_event(cuda, &s->attended, err);
    if (!rc) rc = create_event(cuda, &s->chosen, err);
    s->fetched = calloc(max_layers, sizeof(*s->fetched));
    if (!rc && !s->fetched) rc = error_set(err, ERR_NOMEM, "cuda: no memory");
    for (; s->max_layers < max_layers && !rc; s->max_layers++)
        rc = create_event(cuda, &s->fetched[s->max_layers], err);
    return rc;
}

static int count_blocks(struct cuda_backend *cuda, struct error *err) {
    enum { BLOCKS_EACH = 2 }; /* blocks of 512 threads with 8 loads in flight each */
    int n = 0;
    const int rc =
        cuda_check(cuda, cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, cuda->device),
                   "counting multiprocessors", err);
    cuda->select.n_blocks = (uint32_t)n * BLOCKS_EACH;
    return rc;
}

int select_reserve(struct cuda_backend *cuda, const struct step_limits *limits, struct error *err) {
    struct select_memory *s = &cuda->select;
    struct kv_pool kv = {.format = limits->kv_format,
                         .n_kv_heads = limits->n_kv_heads,
                         .head_dim = limits->head_dim,
                         .tracked = limits->tracked};
    const struct select_limits *largest = limits->select;
    if (!largest) return 0;
    select_close(cuda);
    kv.page_bytes = kv_page_bytes(&kv);
    s->shape = (struct select_shape){largest->n_groups, kv_state_slots(&kv)};
    s->max_rows = limits->max_seqs;
    s->room.max_selected = largest->max_selected;
    s->max_fetches = limits->max_seqs * largest->max_selected;
    int rc = open_fetcher(cuda, largest->max_group_layers, err);
    if (!rc) rc = count_blocks(cuda, err);
    if (!rc) rc = device_reserve(cuda, &s->memory, &s->bytes, lay_out_rows(s, NULL), err);
    if (!rc) lay_out_rows(s, s->memory);
    if (!rc)
        rc = cuda_check(cuda, cudaMemsetAsync(s->memory, 0, s->bytes, cuda->stream),
                        "clearing memory", err);
    return rc ? rc : reserve_candidates(cuda, limits->max_slots, err);
}

void select_close(struct cuda_backend *cuda) {
    struct select_memory *s = &cuda->select;
    for (uint32_t i = 0; i < s->max_layers; i++) cudaEventDestroy(s->fetched[i]);
    free(s->fetched);
    if (s->attended) cudaEventDestroy(s->attended);
    if (s->chosen) cudaEventDestroy(s->chosen);
    if (s->fetcher) cudaStreamDestroy(s->fetcher);
    if (s->memory) cuda->n_moves++;
    cudaFree(s->memory);
    cudaFree(s->bits);
    *s = (struct select_memory){0};
}

/* Reserves the candidates' workspace, which grows by doubling, as the scores do. */
int select_workspace(struct cuda_backend *cuda, const struct step *step, struct error *err) {
    const struct select_memory *s = &cuda->select;
    const size_t room = s->bits_bytes / 17 * 4; /* candidates: 4 bytes and 2 bits each */
    size_t n = 0;
    for (uint32_t i = 0; i < step->n_decode; i++) {
        const struct kv_select *select = step->seqs[i].select;
        if (!select) continue;
        if (i >= s->max_rows || select->n_selected > s->room.max_selected)
            return error_set(
                err, ERR_INVALID,
                "cuda: row %u selects %u tokens, but memory was reserved for %u rows and %u tokens",
                i, select->n_selected, s->max_rows, s->room.max_selected);
        n += select->n_candidates;
    }
    if (n * 17 / 4 + 3 * PAGE_ALIGN <= s->bits_bytes) return 0;
    return n == 0 ? 0 : reserve_candidates(cuda, n > 2 * room ? n : 2 * room, err);
}

/* ---- waiting ---- */

static int await(struct cuda_backend *cuda, cudaEvent_t event, struct error *err) {
    cuda->select.choosing = false; /* `chosen` precedes every other event of the fetcher */
    return cuda_check(cuda, cudaStreamWaitEvent(cuda->stream, event, 0), "awaiting tokens", err);
}

static int await_choice(struct cuda_backend *cuda, struct error *err) {
    return await(cuda, cuda->select.chosen, err);
}

static const uint32_t *windows_of(const struct cuda_backend *cuda) {
    return cuda->host_step->windows;
}

/* Waits for the group's sparse layers before `end`; layer end - 1 is one of them. */
static int await_layers(struct cuda_backend *cuda, uint32_t end, struct error *err) {
    struct select_memory *s = &cuda->select;
    const uint32_t n = s->by_layer ? group_n_before(&s->group, windows_of(cuda), end) : 1;
    s->next = s->by_layer ? end : s->group.end;
    return await(cuda, s->fetched[n - 1], err);
}

int select_await(struct cuda_backend *cuda, uint32_t layer, bool leaves_attn_stats, bool *awaited,
                 struct error *err) {
    const struct select_memory *s = &cuda->select;
    const bool fetched = layer >= s->next && group_has(&s->group, windows_of(cuda), layer);
    *awaited = fetched || (leaves_attn_stats && s->choosing);
    if (fetched) return await_layers(cuda, layer + 1, err);
    return *awaited ? await_choice(cuda, err) : 0;
}

/* ---- the operations ---- */

static int check(const struct cuda_backend *cuda, const struct select_args *args,
                 struct error *err) {
    const struct select_memory *s = &cuda->select;
    const struct kv_pool *kv = args->attn.kv;
    const struct host_pool *store = args->store;
    /* Rows are counted in the units that a thread moves; an fp8 host pool's are 16 elements, or
     * one. */
    const uint64_t row_bytes = page_row_bytes(kv->format, kv->head_dim),
                   unit = row_bytes % 16 || (store && store->fp8 && kv->head_dim % 16) ? 2 : 16;
    if (args->group_index >= s->shape.n_groups ||
        group_n_layers(args->group, windows_of(cuda)) > s->max_layers)
        return error_set(err, ERR_INVALID, "cuda: no memory was reserved for group %u",
                         args->group_index);
    if (kv_state_slots(kv) != s->shape.state_slots ||
        (store && (store->format != kv->format || store->n_kv_heads != kv->n_kv_heads ||
                   store->head_dim != kv->head_dim)))
        return error_set(
            err, ERR_INVALID,
            "cuda: the shape of the pages or of the host pool is not the reserved one");
    if (s->max_fetches * 2 * kv->n_kv_heads * (row_bytes / unit) > INT32_MAX)
        return error_set(err, ERR_UNSUPPORTED,
                         "cuda: %u tokens of %u KV heads are more than a selection can fetch",
                         s->max_fetches, kv->n_kv_heads);
    return 0;
}

struct select_params select_params_of(const struct cuda_backend *cuda,
                                      const struct select_args *args) {
    return (struct select_params){.step = cuda->device_step,
                                  .attn_stats = cuda->attn_stats,
                                  .kv = *args->attn.kv,
                                  .n_heads = args->attn.n_heads,
                                  .group_index = args->group_index,
                                  .group = *args->group,
                                  .n_layers = group_n_layers(args->group, windows_of(cuda)),
                                  .state_slots = cuda->select.shape.state_slots,
                                  .n_blocks = cuda->select.n_blocks,
                                  .room = cuda->select.room,
                                  .token_scores = args->token_scores};
}

static cudaError_t choose(const struct cuda_backend *cuda, const struct select_args *args,
                          uint32_t n_rows, struct launch launch) {
    const struct select_params params = select_params_of(cuda, args);
    const cudaError_t code = launch_select_keys(&params, n_rows, launch);
    return code != cudaSuccess ? code : launch_select_slots(&params, n_rows, launch);
}

static struct fetch_params fetch_params(const struct cuda_backend *cuda,
                                        const struct select_args *args, enum fetch_kind kind) {
    return (struct fetch_params){.step = cuda->device_step,
                                 .kv = *args->attn.kv,
                                 .fetches = cuda->select.room.fetches[kind],
                                 .n_fetches = cuda->select.room.n_fetches + kind,
                                 .first_layer = args->group->first,
                                 .first_host_layer = args->first_host_layer};
}

/* Moves tokens between pool pages; one launch covers all layers between two that have a window. */
static cudaError_t fetch_pages(const struct cuda_backend *cuda, const struct select_args *args,
                               struct launch launch) {
    const struct layer_group *group = args->group;
    struct fetch_params params = fetch_params(cuda, args, FETCH_PAGES);
    cudaError_t code = cudaSuccess;
    for (uint32_t l = group->first, n; l < group->end && code == cudaSuccess; l += n + 1) {
        for (n = 0; group_has(group, windows_of(cuda), l + n);) n++;
        params.first_layer = l;
        code = launch_fetch(&params, n, launch);
    }
    return code;
}

/* Fetches tokens from the host pool over the bus, layer after layer. */
static cudaError_t fetch_blocks(struct cuda_backend *cuda, const struct select_args *args) {
    struct select_memory *s = &cuda->select;
    const struct layer_group *group = args->group;
    struct fetch_params params = fetch_params(cuda, args, FETCH_BLOCKS);
    cudaError_t code = cudaSuccess;
    uint32_t n = 0;
    params.store = *args->store;
    for (uint32_t l = group->first; l < group->end && code == cudaSuccess; l++) {
        if (!group_has(group, windows_of(cuda), l)) continue;
        params.first_layer = l;
        params.first_host_layer = args->first_host_layer + n;
        code = launch_fetch(&params, 1, (struct launch){.stream = s->fetcher, .overlap = false});
        if (code == cudaSuccess) code = cudaEventRecord(s->fetched[n++], s->fetcher);
    }
    return code;
}

static cudaError_t select_on_fetcher(struct cuda_backend *cuda, const struct select_args *args,
                                     uint32_t n_rows) {
    struct select_memory *s = &cuda->select;
    const struct launch launch = {.stream = s->fetcher, .overlap = cuda->overlap};
    cudaError_t code = cudaEventRecord(s->attended, cuda->stream);
    if (code == cudaSuccess) code = cudaStreamWaitEvent(s->fetcher, s->attended, 0);
    if (code == cudaSuccess) code = choose(cuda, args, n_rows, launch);
    if (code == cudaSuccess) code = cudaEventRecord(s->chosen, s->fetcher);
    if (code != cudaSuccess || args->group->first == args->group->end) return code;
    code = fetch_pages(cuda, args, launch);
    if (code == cudaSuccess && args->store) return fetch_blocks(cuda, args);
    return code == cudaSuccess ? cudaEventRecord(s->fetched[0], s->fetcher) : code;
}

static int select_tokens(struct backend *be, const struct select_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    struct select_memory *s = &cuda->select;
    const uint32_t n_rows = cuda->in_graph ? cuda->launch_rows : cuda->step.n_decode;
    if (!cuda->in_graph && !cuda->step.selects) return 0;
    int rc = check(cuda, args, err);
    if (!rc && s->next < s->group.end) rc = await_layers(cuda, s->group.end, err);
    if (!rc) rc = cuda_check(cuda, select_on_fetcher(cuda, args, n_rows), "selecting tokens", err);
    if (rc) return rc;
    s->group = *args->group;
    s->next = s->group.first;
    s->by_layer = args->store != NULL;
    s->choosing = true;
    return s->next < s->group.end ? 0 : await_choice(cuda, err);
}

static int select_totals(struct backend *be, struct select_total *totals, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const size_t bytes = cuda->step.n_decode * sizeof(*totals);
    struct args room;
    if (!step_has_selects(cuda->host_step)) return 0;
    int rc = args_take(cuda, bytes, &room, err);
    if (!rc)
        rc = cuda_check(cuda,
                        cudaMemcpyAsync(room.device, cuda->select.room.totals, bytes,
                                        cudaMemcpyDeviceToDevice, cuda->stream),
                        "totals of selections", err);
    return rc ? rc : results_fetch(cuda, &room, totals, bytes, err);
}

const struct select_ops cuda_select_ops = {
    .select = select_tokens,
    .observe = cuda_observe,
    .totals = select_totals,
};
