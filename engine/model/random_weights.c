/* random_weights.c - see random_weights.h.
 *
 *   block    BLOCK random numbers, made once; a prime, so that the rows of a matrix differ
 *   tensor   the block repeated, from another start for each
 *
 * A reused tensor is not filled again: it starts a few elements further on instead. */
#include "engine/model/random_weights.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/weight.h"

enum { BLOCK = 4194301, SHIFTS = 1024, SHIFT_STEP = 32 };
/* The sum of four uniform 16-bit numbers has a deviation of 65536 / sqrt(3). */
static const float SUM_MEAN = 4 * 32767.5f, SUM_SCALE = 0.02f * 1.7320508f / 65536;

/* A tensor's memory, as large as the tensor and every shift of it. */
struct memory {
    struct memory *next;
    size_t capacity; /* elements */
    uint16_t *data;
};

struct random_weights {
    uint64_t state;
    uint16_t *block;
    struct memory *kept;  /* aliased by the backend */
    struct memory *last;  /* handed out, and not known yet to be aliased */
    struct memory *spare; /* was taken back, and is filled */
    bool last_is_norm;
};

static uint64_t next_random(struct random_weights *r) {
    uint64_t z = r->state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return (uint16_t)(bits >> 16);
}

static void fill_block(struct random_weights *r) {
    for (size_t i = 0; i < BLOCK; i++) {
        const uint64_t z = next_random(r);
        const uint32_t sum =
            (uint32_t)((z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48));
        r->block[i] = to_bf16(((float)sum - SUM_MEAN) * SUM_SCALE);
    }
}

int random_weights_create(struct random_weights **out, struct error *err) {
    struct random_weights *r = calloc(1, sizeof(*r));
    if (r) r->block = malloc(BLOCK * sizeof(*r->block));
    if (!r || !r->block) {
        random_weights_destroy(r);
        return error_set(err, ERR_NOMEM, "no memory for random weights");
    }
    r->state = 42;
    fill_block(r);
    *out = r;
    return 0;
}

static void free_memory(struct memory *memory) {
    if (!memory) return;
    free(memory->data);
    free(memory);
}

void random_weights_destroy(struct random_weights *r) {
    if (!r) return;
    free_memory(r->last);
    free_memory(r->spare);
    for (struct memory *memory = r->kept, *next; memory; memory = next) {
        next = memory->next;
        free_memory(memory);
    }
    free(r->block);
    free(r);
}

/* Allocates memory, aligned as a backend's own is. */
static struct memory *new_memory(size_t capacity, struct error *err) {
    struct memory *memory = calloc(1, sizeof(*memory));
    void *data = NULL;
    if (!memory || posix_memalign(&data, 64, capacity * sizeof(*memory->data))) {
        free(memory);
        error_set(err, ERR_NOMEM, "no memory for %zu bytes of random weights",
                  capacity * sizeof(*memory->data));
        return NULL;
    }
    memory->capacity = capacity;
    memory->data = data;
    return memory;
}

static void fill_random(struct random_weights *r, struct memory *memory) {
    size_t from = next_random(r) % BLOCK;
    for (size_t at = 0, n; at < memory->capacity; at += n, from = 0) {
        n = BLOCK - from < memory->capacity - at ? BLOCK - from : memory->capacity - at;
        memcpy(memory->data + at, r->block + from, n * sizeof(*memory->data));
    }
}

static struct memory *norm_memory(size_t n, struct error *err) {
    struct memory *memory = new_memory(n, err);
    for (size_t i = 0; memory && i < n; i++) memory->data[i] = to_bf16(1);
    return memory;
}

static struct memory *matrix_memory(struct random_weights *r, size_t n, struct error *err) {
    const size_t capacity = n + (size_t)SHIFTS * SHIFT_STEP;
    struct memory *memory = r->spare;
    r->spare = NULL;
    if (memory && memory->capacity >= capacity) return memory;
    free_memory(memory);
    memory = new_memory(capacity, err);
    if (memory) fill_random(r, memory);
    return memory;
}

int random_weights_get(struct random_weights *r, bool is_norm, struct weight *weight,
                       struct error *err) {
    const size_t n = (size_t)weight->n_stacked * weight->rows * weight->cols;
    if (r->last) {
        r->last->next = r->kept;
        r->kept = r->last;
    }
    r->last = is_norm ? norm_memory(n, err) : matrix_memory(r, n, err);
    r->last_is_norm = is_norm;
    if (!r->last) return ERR_NOMEM;
    weight->format = (struct weight_format){.element = ELEMENT_BF16};
    weight->data = r->last->data + (is_norm ? 0 : next_random(r) % SHIFTS * SHIFT_STEP);
    return 0;
}

void random_weights_take_back(struct random_weights *r) {
    if (r->last_is_norm) free_memory(r->last);
    else r->spare = r->last;
    r->last = NULL;
}
