/* test_fetch.c - how experts are copied to slots ahead of the layers that need them.  Streams are
 * simulated, so no device is needed.
 *
 * Each stream counts its operations, and knows which of the other one have ended before its next
 * one.  So a copy is seen that a kernel may read too early, or that may overwrite what a kernel
 * still reads. */
#include "cuda/experts/fetch.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/experts/fetch_count.h"
#include "cuda/experts/fetch_state.h"
#include "cuda/kv/host_pool_memory.h"
#include "engine/base/error.h"
#include "engine/device/offloaded.h"
#include "tests/test.h"

/* ---- streams ---- */

enum { MAIN, COPIES, N_STREAMS };
struct moment {
    uint32_t ended[N_STREAMS]; /* operations of each stream */
};
static struct moment now[N_STREAMS];
static uint32_t n_copies;

/* What is known of a matrix in a slot. */
static struct place {
    const void *at, *holds;
    uint32_t written, read; /* the newest copy to it, and the newest kernel that reads it */
} places[6];

static cudaStream_t stream_of(int i) {
    return (cudaStream_t)&now[i];
}
static int number_of(cudaStream_t stream) {
    return stream == stream_of(COPIES) ? COPIES : MAIN;
}
static uint32_t tick(int stream) {
    return ++now[stream].ended[stream];
}

static struct place *place_at(const void *at) {
    for (size_t i = 0; i < COUNT(places); i++) {
        if (!places[i].at) places[i].at = at;
        if (places[i].at == at) return &places[i];
    }
    fail_msg("there are more places than matrices of two layers");
    return NULL;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    (void)flags;
    *stream = stream_of(COPIES);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    (void)stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    (void)stream;
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof(struct moment));
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    free(event);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    *(struct moment *)event = now[number_of(stream)];
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    const struct moment *moment = (const struct moment *)event;
    struct moment *own = &now[number_of(stream)];
    (void)flags;
    for (int i = 0; i < N_STREAMS; i++)
        if (own->ended[i] < moment->ended[i]) own->ended[i] = moment->ended[i];
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    struct place *place = place_at(to);
    assert_int_equal(number_of(stream), COPIES);
    assert_int_equal(kind, cudaMemcpyHostToDevice);
    if (place->read > now[COPIES].ended[MAIN]) fail_msg("a copy overwrites what is still read");
    place->written = tick(COPIES);
    place->holds = from;
    memcpy(to, from, bytes);
    n_copies++;
    return cudaSuccess;
}
cudaError_t cudaFree(void *memory) {
    free(memory);
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *memory) {
    free(memory);
    return cudaSuccess;
}

/* ---- what fetch.c needs of the backend ---- */

static struct offloaded_layer *layers[8];
static uint32_t n_layers;

int cuda_check(struct cuda_backend *cuda, cudaError_t code, const char *what, struct error *err) {
    (void)cuda, (void)what, (void)err;
    return code == cudaSuccess ? 0 : ERR_DEVICE;
}
int device_reserve(struct cuda_backend *cuda, void **memory, size_t *capacity, size_t bytes,
                   struct error *err) {
    (void)cuda, (void)err;
    free(*memory);
    *memory = malloc(bytes);
    *capacity = bytes;
    return 0;
}
void *host_pool_find(struct cuda_backend *cuda, const void *at) {
    (void)cuda;
    for (uint32_t i = 0; i < n_layers; i++)
        if (layers[i]->gate.data == at) return layers[i];
    return NULL;
}
uint64_t host_pool_most_offloaded(struct cuda_backend *cuda) {
    uint64_t most = 0;
    (void)cuda;
    for (uint32_t i = 0; i < n_layers; i++) most = max_u64(most, offloaded_matrix_bytes(layers[i]));
    return most;
}
cudaError_t launch_count_fetched(const struct count_params *p, struct launch launch) {
    (void)launch;
    *p->sum += p->bytes * (p->is_whole ? p->n_experts : 1);
    return cudaSuccess;
}

/* ---- layers ---- */

enum { N_EXPERTS = 4, N_USED = 2, MANY = 40 };

static struct weight make_matrix(uint32_t rows, uint32_t cols, int value) {
    struct weight w = weight_plain(NULL, ELEMENT_BF16, rows, cols);
    w.n_stacked = N_EXPERTS;
    void *memory = malloc(weight_copy_bytes(&w));
    memset(memory, value, weight_copy_bytes(&w));
    return weight_copy_at(&w, memory);
}

/* Adds a layer before those that are there. */
static struct offloaded_layer *add_layer(const struct offloaded_layer *next, int value) {
    struct offloaded_layer *layer = malloc(sizeof(*layer));
    *layer = (struct offloaded_layer){.mark = OFFLOADED_MARK,
                                      .gate = make_matrix(48, 32, value),
                                      .up = make_matrix(48, 32, value + 1),
                                      .down = make_matrix(32, 48, value + 2),
                                      .next = next};
    layers[n_layers++] = layer;
    return layer;
}

static struct fetching_backend *backend;

static int begin(void **state) {
    (void)state;
    backend = calloc(1, sizeof(*backend));
    backend->cuda.stream = stream_of(MAIN);
    memset(now, 0, sizeof(now));
    memset(places, 0, sizeof(places));
    n_copies = n_layers = 0;
    return 0;
}
static int end(void **state) {
    (void)state;
    expert_fetches_close(&backend->cuda);
    for (uint32_t i = 0; i < n_layers; i++) {
        free((void *)layers[i]->gate.data), free((void *)layers[i]->up.data);
        free((void *)layers[i]->down.data), free(layers[i]);
    }
    free(backend);
    return 0;
}

/* Lets a kernel read a matrix, which must be what the layer has. */
static void read_matrix(const struct weight *got, const struct weight *expected) {
    const uint64_t bytes = weight_bytes(expected);
    if (got->data != expected->data) {
        struct place *place = place_at(got->data);
        if (place->written > now[MAIN].ended[COPIES]) fail_msg("it is read before it is copied");
        assert_ptr_equal(place->holds, expected->data);
        place->read = now[MAIN].ended[MAIN];
    }
    assert_memory_equal(got->data, expected->data, bytes);
}

/* Runs a layer for so many rows.  Returns whether all of its experts were copied. */
static bool run(struct offloaded_layer *layer, uint32_t n_rows) {
    struct error err = {0};
    struct experts_args args = {
        .n_rows = n_rows,
        .n_used = N_USED,
        .routed = {.gate = &layer->gate, .up = &layer->up, .down = &layer->down}};
    struct fetched_experts fetched;
    assert_int_equal(expert_fetch(&backend->cuda, &args, &fetched, &err), 0);
    tick(MAIN);
    read_matrix(args.routed.gate, &layer->gate);
    read_matrix(args.routed.up, &layer->up);
    read_matrix(args.routed.down, &layer->down);
    assert_int_equal(expert_fetch_count(&backend->cuda, &args, &fetched, &err), 0);
    return fetched.is_whole;
}

/* ---- tests ---- */

TEST_WITH(a_row_reads_in_place, begin, end) {
    struct offloaded_layer *layer = add_layer(NULL, 1);
    assert_false(run(layer, 1));
    assert_int_equal(n_copies, 0);
    assert_int_equal(layer->fetched_bytes, offloaded_layer_bytes(layer) / N_EXPERTS);
}

TEST_WITH(each_layer_is_copied_once_a_step, begin, end) {
    struct offloaded_layer *chain[5], *next = NULL;
    for (int i = 5; i-- > 0; next = chain[i]) chain[i] = add_layer(next, 10 * i);
    for (int step = 1; step <= 3; step++) {
        for (int i = 0; i < 5; i++) assert_true(run(chain[i], MANY));
        /* The last layer of a step may be there still. */
        assert_int_equal(n_copies, step * 5 * 3);
    }
    assert_int_equal(chain[2]->fetched_bytes, 3 * offloaded_layer_bytes(chain[2]));
}

TEST_WITH(the_next_layer_is_copied_while_one_is_computed, begin, end) {
    struct offloaded_layer *second = add_layer(NULL, 20), *first = add_layer(second, 10);
    run(first, MANY);
    assert_int_equal(n_copies, 6);
    run(second, MANY);
    assert_int_equal(n_copies, 6);
}

/* Slices of a prompt run a layer several times. */
TEST_WITH(a_layer_that_runs_again_is_not_copied_again, begin, end) {
    struct offloaded_layer *second = add_layer(NULL, 20), *first = add_layer(second, 10);
    for (int i = 0; i < 4; i++) run(first, MANY);
    for (int i = 0; i < 4; i++) run(second, MANY);
    assert_int_equal(n_copies, 6);
}

TEST_WITH(a_graph_copies_by_itself_what_it_reads, begin, end) {
    struct error err = {0};
    struct offloaded_layer *second = add_layer(NULL, 20), *first = add_layer(second, 10);
    run(first, MANY), run(second, MANY);
    for (int i = 0; i < 2; i++) { /* recorded as it is launched each time */
        const uint32_t before = n_copies;
        assert_int_equal(expert_fetches_join(&backend->cuda, &err), 0);
        run(first, MANY), run(second, MANY);
        assert_int_equal(expert_fetches_join(&backend->cuda, &err), 0);
        assert_int_equal(n_copies - before, 6);
        assert_int_equal(now[MAIN].ended[COPIES], now[COPIES].ended[COPIES]);
    }
}

/* A step may end before the layer that was copied for it. */
TEST_WITH(other_steps_may_come_between, begin, end) {
    struct error err = {0};
    struct offloaded_layer *chain[3], *next = NULL;
    for (int i = 3; i-- > 0; next = chain[i]) chain[i] = add_layer(next, 10 * i);
    static const int order[] = {0, 0, 1, 0, 2, 2, 1, 0, 1, 2, 0, 2};
    for (size_t i = 0; i < COUNT(order); i++) {
        run(chain[order[i]], i % 5 == 3 ? 1 : MANY);
        if (i % 4 == 3) assert_int_equal(expert_fetches_join(&backend->cuda, &err), 0);
    }
}

TEST_WITH(a_layer_that_is_freed_is_forgotten, begin, end) {
    struct offloaded_layer *layer = add_layer(NULL, 10);
    run(layer, MANY);
    expert_fetches_forget(&backend->cuda, layer);
    memset((void *)layer->gate.data, 77, weight_bytes(&layer->gate));
    run(layer, MANY);
}
