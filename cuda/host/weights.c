/* weights.c - copies weights from a file mapping to the device, at the speed of its bus.
 *
 *   mapping ──copiers (threads)──► pinned buffer 0 ──copy engine──► device
 *                                  pinned buffer 1      while one is filled, the other is copied
 *
 * Weights lie one after the other in large chunks of device memory, in the order of loading, and
 * without gaps where their sizes allow.  Scales do so in chunks of their own, and mins in others.
 * So q, k, v of a layer are one matrix, and gate, up are one (linear.c).  A pinned buffer is used
 * again once its event says that its copy has completed; nothing waits at the end of a weight. */
#include "cuda/host/internal.h"
#include "cuda/ranks/group.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/linear/slab.h"
#include "cuda/linear/strips.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/base/thread.h"
#include "engine/device/backend.h"

enum { WEIGHT_ALIGN = 256 };
static const size_t STAGING_BYTES = (size_t)32 << 20, THREAD_BYTES = (size_t)1 << 20;
static const size_t MIN_CHUNK = (size_t)64 << 20, MIN_SCALES_CHUNK = (size_t)4 << 20,
                    MAX_CHUNK = (size_t)1 << 30;

struct copy_share {
    char *to;
    const char *from;
    size_t bytes;
};

static void *copy_share(void *arg) {
    const struct copy_share *share = arg;
    memcpy(share->to, share->from, share->bytes);
    return NULL;
}

/* Fills `to` with several threads: one cannot read a mapping as fast as the bus takes it, because
 * of page faults and a single core's bandwidth. */
static void copy_parallel(char *to, const char *from, size_t bytes, uint32_t n_threads) {
    struct copy_share shares[THREADS_MOST];
    uint32_t n = bytes / THREAD_BYTES < n_threads ? (uint32_t)(bytes / THREAD_BYTES) : n_threads;
    if (n > THREADS_MOST) n = THREADS_MOST;
    if (n == 0) n = 1;
    for (uint32_t i = 0; i < n; i++) {
        const size_t begin = bytes / n * i, end = i + 1 == n ? bytes : bytes / n * (i + 1);
        shares[i] = (struct copy_share){to + begin, from + begin, end - begin};
    }
    threads_run(n, copy_share, shares, sizeof(*shares));
}

static int open_staging(struct cuda_backend *cuda, struct error *err) {
    int rc = 0;
    for (uint32_t i = 0; i < N_STAGING && !rc; i++) {
        struct staging *s = &cuda->staging[i];
        if (!s->host)
            rc = cuda_check(cuda, cudaMallocHost((void **)&s->host, STAGING_BYTES), "pinned memory",
                            err);
        if (!rc && !s->copied)
            rc = cuda_check(cuda, cudaEventCreateWithFlags(&s->copied, cudaEventDisableTiming),
                            "an event", err);
    }
    return rc;
}

static int copy_to_device(struct cuda_backend *cuda, char *to, const char *host, size_t bytes,
                          struct error *err) {
    int rc = open_staging(cuda, err);
    for (size_t at = 0, n; at < bytes && !rc; at += n) {
        struct staging *s = &cuda->staging[cuda->next_staging++ % N_STAGING];
        n = bytes - at < STAGING_BYTES ? bytes - at : STAGING_BYTES;
        rc = cuda_check(cuda, cudaEventSynchronize(s->copied), "loading weights", err);
        if (rc) return rc;
        copy_parallel(s->host, host + at, n, cuda->n_copiers);
        rc = cuda_check(cuda,
                        cudaMemcpyAsync(to + at, s->host, n, cudaMemcpyHostToDevice, cuda->stream),
                        "loading weights", err);
        if (!rc)
            rc = cuda_check(cuda, cudaEventRecord(s->copied, cuda->stream), "loading weights", err);
    }
    return rc;
}

/* Adds a chunk.  Larger models get larger chunks: less than a quarter of the weights is ever left
 * over. */
static int add_chunk(struct cuda_backend *cuda, struct weight_chunks *chunks, size_t bytes,
                     size_t least, struct error *err) {
    size_t capacity = chunks->bytes / 4;
    if (capacity < least) capacity = least;
    if (capacity > MAX_CHUNK) capacity = MAX_CHUNK;
    if (capacity < bytes) capacity = bytes;
    struct weight_chunk *chunk = calloc(1, sizeof(*chunk));
    if (!chunk) return error_set(err, ERR_NOMEM, "cuda: no memory");
    int rc = device_alloc(cuda, capacity, (void **)&chunk->base, err);
    if (rc) {
        free(chunk);
        return rc;
    }
    chunk->capacity = capacity;
    chunk->next = chunks->newest;
    chunks->newest = chunk;
    return 0;
}

/* Takes every format for products: linear/unpacked.cu reads what no other kernel does.  Tables and
 * vectors are read as they are. */
bool cuda_takes(const struct backend *be, const struct weight_format *format, unsigned uses) {
    (void)be;
    return weight_is_plain(format) ||
           (uses == WEIGHT_PRODUCT && !element_is_packed(format->element));
}

/* Copies rows of an array to the slab, and from there into strips, as many at a time as fit. */
static int copy_to_strips(struct cuda_backend *cuda, struct strips strips, const char *host,
                          struct error *err) {
    const uint32_t n_rows = strips.n_rows,
                   most = (uint32_t)(SLAB_BYTES / strips.row_bytes / STRIP_ROWS * STRIP_ROWS);
    char *to = strips.to;
    int rc = 0;
    strips.from = cuda->products.slab;
    for (uint32_t first = 0; first < n_rows && !rc; first += most) {
        const size_t at = (size_t)first * strips.row_bytes;
        strips.n_rows = min_u32(most, n_rows - first);
        strips.to = to + at;
        rc = copy_to_device(cuda, cuda->products.slab, host + at,
                            (size_t)strips.n_rows * strips.row_bytes, err);
        if (!rc)
            rc = cuda_check(cuda, launch_strips(&strips, launch_of(cuda)), "loading weights", err);
    }
    return rc;
}

/* An array of a weight: how it comes, and how it is to lie. */
struct array {
    int which;
    const void *host;
    size_t bytes;
    struct strips strips; /* row_bytes 0: as it comes */
};

/* Returns the bytes that an array takes of a chunk. */
static size_t room_of(const struct array *a) {
    const struct strips *s = &a->strips;
    const size_t bytes = s->row_bytes ? round_up(s->n_rows, STRIP_ROWS) * s->row_bytes : a->bytes;
    return round_up(bytes, WEIGHT_ALIGN);
}

/* Copies an array of a weight behind the array of the weight before, and makes *out its place. */
static int load_array(struct cuda_backend *cuda, const struct array *a, const void **out,
                      struct error *err) {
    struct weight_chunks *chunks = &cuda->weights[a->which];
    const struct strips *s = &a->strips;
    const size_t room = room_of(a);
    int rc = 0;
    if (!chunks->newest || chunks->newest->capacity - chunks->newest->used < room)
        rc = add_chunk(cuda, chunks, room, a->which == WEIGHT_DATA ? MIN_CHUNK : MIN_SCALES_CHUNK,
                       err);
    if (rc) return rc;
    struct weight_chunk *chunk = chunks->newest;
    struct strips strips = *s;
    strips.to = chunk->base + chunk->used;
    rc = s->row_bytes ? copy_to_strips(cuda, strips, a->host, err)
                      : copy_to_device(cuda, strips.to, a->host, a->bytes, err);
    if (rc) return rc;
    chunk->used += room;
    chunk->n_live++;
    chunks->bytes += room;
    *out = strips.to;
    return 0;
}

/* Returns the strips of the weight's scales, or of its mins. */
static struct strips scale_strips(const struct weight *w) {
    struct strips strips = {.n_rows = w->n_stacked * w->rows, .are_scales = true};
    const uint32_t n_blocks = w->format.block_cols ? div_up(w->cols, w->format.block_cols) : 1;
    if (!w->in_strips || !strips_hold_scales(&w->format)) return strips;
    strips.row_bytes = (uint32_t)(weight_scale_bytes(w) / strips.n_rows);
    strips.bits = strips.row_bytes / n_blocks * 8;
    return strips;
}

/* Lists the arrays of a weight, which lies in strips or does not. */
static void list_arrays(const struct weight *w, struct array arrays[WEIGHT_ARRAYS]) {
    const size_t n_scales = weight_scale_bytes(w), n_mins = w->format.has_min ? n_scales : 0,
                 n_data = weight_bytes(w) - n_scales - n_mins;
    const struct strips scales = scale_strips(w);
    arrays[0] = (struct array){WEIGHT_DATA, w->data, n_data, {.n_rows = scales.n_rows}};
    arrays[1] = (struct array){WEIGHT_SCALES, w->scales, n_scales, scales};
    arrays[2] = (struct array){WEIGHT_MINS, w->mins, n_mins, scales};
    if (!w->in_strips) return;
    arrays[0].strips.row_bytes = (uint32_t)weight_row_bytes(w);
    arrays[0].strips.bits = element_bits(w->format.element);
}

static int load_arrays(struct backend *be, const struct weight *host, struct weight *out,
                       struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const bool is_plain = weight_is_plain(&host->format);
    struct weight copy = *host;
    struct array arrays[WEIGHT_ARRAYS];
    copy.in_strips = strips_take(host);
    list_arrays(&copy, arrays);
    copy.data = copy.scales = copy.mins = NULL;
    const void **places[WEIGHT_ARRAYS] = {&copy.data, &copy.scales, &copy.mins};
    int rc = is_plain ? 0 : unpacked_reserve(cuda, err);
    for (int i = 0; i < WEIGHT_ARRAYS && !rc; i++)
        if (arrays[i].bytes) rc = load_array(cuda, &arrays[i], places[i], err);
    if (!rc && !is_plain) rc = unpacked_check(cuda, &copy, err);
    if (rc) cuda_weight_release(be, &copy);
    else *out = copy;
    return rc;
}

/* Says whether kernels read the weight's scales in f32 only: if its inputs are rounded, and if
 * blocks of several rows have them. */
static bool has_f32_scales(const struct weight *host) {
    const struct weight_format *f = &host->format;
    return host->rounds_input || (strips_take(host) && f->block_rows > 1 && !f->has_min);
}

int cuda_weight_load(struct backend *be, const struct weight *host, struct weight *out,
                     struct error *err) {
    struct rounded_memory *rounded = &CUDA_BACKEND(be)->rounded;
    struct weight prepared;
    cuda_use_device(be);
    if (!has_f32_scales(host)) return load_arrays(be, host, out, err);
    int rc = weight_widen_scales(host, &prepared, err);
    if (rc) return rc;
    rc = load_arrays(be, &prepared, out, err);
    free((void *)prepared.scales);
    if (host->rounds_input) rounded->most_columns = max_u32(rounded->most_columns, host->cols);
    return rc;
}

/* Releases an array; its chunk is freed with the last of its arrays.  The newest array of a chunk
 * leaves its place to the next one: weights that go on to the machine's memory take none. */
static void release_array(struct cuda_backend *cuda, const struct array *array) {
    struct weight_chunks *chunks = &cuda->weights[array->which];
    struct weight_chunk **link = &chunks->newest, *chunk;
    const char *at = array->host;
    const size_t room = room_of(array);
    while ((chunk = *link) && (at < chunk->base || at >= chunk->base + chunk->capacity))
        link = &chunk->next;
    if (!chunk) return;
    if (at + room == chunk->base + chunk->used) {
        chunk->used -= room;
        chunks->bytes -= room;
    }
    if (--chunk->n_live > 0) return;
    *link = chunk->next;
    cuda->n_moves++;
    cudaFree(chunk->base);
    free(chunk);
}

void cuda_weight_release(struct backend *be, const struct weight *weight) {
    struct array arrays[WEIGHT_ARRAYS];
    list_arrays(weight, arrays);
    for (int i = 0; i < WEIGHT_ARRAYS; i++) release_array(CUDA_BACKEND(be), &arrays[i]);
}

static void free_chunks(struct weight_chunk *newest) {
    for (struct weight_chunk *chunk = newest, *next; chunk; chunk = next) {
        next = chunk->next;
        cudaFree(chunk->base);
        free(chunk);
    }
}

void weights_free(struct cuda_backend *cuda) {
    for (int i = 0; i < WEIGHT_ARRAYS; i++) free_chunks(cuda->weights[i].newest);
    for (uint32_t i = 0; i < N_STAGING; i++) {
        cudaFreeHost(cuda->staging[i].host);
        if (cuda->staging[i].copied) cudaEventDestroy(cuda->staging[i].copied);
    }
}
