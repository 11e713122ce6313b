/* random_weights.c - see random_weights.h.
 *
 *   block    random elements, made once for each format; their number is a prime, so that the rows
 *            of a matrix differ
 *   tensor   the block repeated, from another start for each
 *   scales   likewise, from a block of scales
 *
 * A reused tensor is not filled again: it starts a few elements further on instead. */
#include "engine/model/random_weights.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/weight.h"
#include "engine/model/random_elements.h"

/* Numbers of elements, of packed blocks and of scales in a block. */
enum { N_ELEMENTS = 4194301, N_BLOCKS = 65537, N_SCALES = 65537 };
enum { SHIFT_BYTES = 1 << 16, ALIGN = 64 };

const struct weight_format random_formats[] = {
    {.element = ELEMENT_BF16},
    {ELEMENT_E4M3, SCALE_BF16, 1, 0, false},
    {ELEMENT_E4M3, SCALE_F32, 128, 128, false},
    {ELEMENT_I8, SCALE_BF16, 1, 0, false},
    {ELEMENT_I4, SCALE_BF16, 1, 128, false},
    {ELEMENT_I4, SCALE_F32, 1, 128, true},
    {ELEMENT_E2M1, SCALE_E8M0, 1, 32, false},
    {.element = ELEMENT_Q4_0},
    {.element = ELEMENT_Q4_1},
    {.element = ELEMENT_Q5_0},
    {.element = ELEMENT_Q5_1},
    {.element = ELEMENT_Q8_0},
    {.element = ELEMENT_IQ4_NL},
    {.element = ELEMENT_MXFP4},
    {.element = ELEMENT_Q2_K},
    {.element = ELEMENT_Q3_K},
    {.element = ELEMENT_Q4_K},
    {.element = ELEMENT_Q5_K},
    {.element = ELEMENT_Q6_K},
    {.element = ELEMENT_IQ4_XS},
};

/* A tensor's memory, as large as the tensor and every shift of it. */
struct memory {
    struct memory *next;
    size_t capacity; /* bytes of data */
    uint8_t *data, *scales;
    struct pool *pool; /* NULL: it is a norm */
};

/* What tensors of a format are made of. */
struct pool {
    struct weight_format format;
    uint8_t *block, *scales, *mins;
    size_t block_bytes;
    size_t step;          /* bytes of a shift: whole elements, and a multiple of ALIGN */
    struct memory *spare; /* was taken back, and is filled */
};

enum { PLAIN, PACKED, N_POOLS };

struct random_weights {
    uint64_t state;
    struct pool pools[N_POOLS];
    struct memory *kept; /* aliased by the backend */
    struct memory *last; /* handed out, and not known yet to be aliased */
};

static int refuse_memory(size_t bytes, struct error *err) {
    return error_set(err, ERR_NOMEM, "no memory for %zu bytes of random weights", bytes);
}

/* ---- pools ---- */

static size_t scale_size(const struct weight_format *format) {
    const struct weight one = {.format = *format, .n_stacked = 1, .rows = 1, .cols = 1};
    return weight_scale_bytes(&one);
}

static int make_scales(struct random_weights *r, struct pool *pool, struct error *err) {
    const size_t bytes = N_SCALES * scale_size(&pool->format);
    if (!pool->format.scale) return 0;
    pool->scales = malloc(bytes);
    pool->mins = malloc(bytes);
    if (!pool->scales || !pool->mins) return refuse_memory(2 * bytes, err);
    random_scales_fill(&pool->format, &r->state, N_SCALES, pool->scales, pool->mins);
    return 0;
}

static int make_pool(struct random_weights *r, struct pool *pool,
                     const struct weight_format *format, struct error *err) {
    const size_t bytes = random_element_bytes(format->element),
                 n = element_is_packed(format->element) ? N_BLOCKS : N_ELEMENTS;
    pool->format = *format;
    pool->block_bytes = n * bytes;
    pool->step = bytes;
    while (pool->step % ALIGN != 0) pool->step += bytes;
    pool->block = malloc(pool->block_bytes);
    if (!pool->block) return refuse_memory(pool->block_bytes, err);
    random_elements_fill(format, &r->state, n, pool->block);
    return make_scales(r, pool, err);
}

int random_weights_create(struct random_weights **out, const struct weight_format *format,
                          struct error *err) {
    struct random_weights *r = calloc(1, sizeof(*r));
    if (!r) return refuse_memory(sizeof(*r), err);
    r->state = 42;
    int rc = make_pool(r, &r->pools[PLAIN], &random_formats[0], err);
    if (!rc && format && !weight_is_plain(format))
        rc = make_pool(r, &r->pools[PACKED], format, err);
    if (rc) random_weights_destroy(r);
    else *out = r;
    return rc;
}

static void free_memory(struct memory *memory) {
    if (!memory) return;
    free(memory->data);
    free(memory->scales);
    free(memory);
}

void random_weights_destroy(struct random_weights *r) {
    if (!r) return;
    free_memory(r->last);
    for (struct memory *memory = r->kept, *next; memory; memory = next) {
        next = memory->next;
        free_memory(memory);
    }
    for (int i = 0; i < N_POOLS; i++) {
        free_memory(r->pools[i].spare);
        free(r->pools[i].block);
        free(r->pools[i].scales);
        free(r->pools[i].mins);
    }
    free(r);
}

/* ---- tensors ---- */

/* Allocates bytes, aligned as a backend's own are. */
static uint8_t *allocate(size_t bytes) {
    void *data = NULL;
    return posix_memalign(&data, ALIGN, bytes) ? NULL : data;
}

static struct memory *new_memory(size_t capacity) {
    struct memory *memory = calloc(1, sizeof(*memory));
    if (!memory) return NULL;
    memory->capacity = capacity;
    memory->data = allocate(capacity);
    if (memory->data) return memory;
    free(memory);
    return NULL;
}

/* Fills bytes from a block that is repeated, from its byte `from` on. */
static void repeat(uint8_t *out, size_t bytes, const uint8_t *block, size_t block_bytes,
                   size_t from) {
    for (size_t at = 0, n; at < bytes; at += n, from = 0) {
        n = block_bytes - from < bytes - at ? block_bytes - from : bytes - at;
        memcpy(out + at, block + from, n);
    }
}

static struct memory *norm_memory(size_t n) {
    struct memory *memory = new_memory(n * sizeof(uint16_t));
    const float one = 1;
    for (size_t i = 0; memory && i < n; i++)
        weight_from_float(&one, 1, ELEMENT_BF16, memory->data + i * sizeof(uint16_t));
    return memory;
}

static struct memory *matrix_memory(struct random_weights *r, struct pool *pool, size_t bytes) {
    const size_t capacity = bytes + SHIFT_BYTES,
                 element_bytes = random_element_bytes(pool->format.element);
    struct memory *memory = pool->spare;
    pool->spare = NULL;
    if (memory && memory->capacity >= capacity) return memory;
    free_memory(memory);
    memory = new_memory(capacity);
    if (!memory) return NULL;
    memory->pool = pool;
    repeat(memory->data, capacity, pool->block, pool->block_bytes,
           random_next(&r->state) % (pool->block_bytes / element_bytes) * element_bytes);
    return memory;
}

/* Gives a weight of a format with scales its scales and minimums. */
static int add_scales(struct random_weights *r, struct memory *memory, struct weight *weight,
                      struct error *err) {
    const struct pool *pool = memory->pool;
    const size_t size = scale_size(&pool->format), n = weight_scale_bytes(weight),
                 mins_at = (n + ALIGN - 1) / ALIGN * ALIGN;
    const size_t from = random_next(&r->state) % N_SCALES * size;
    free(memory->scales);
    memory->scales = allocate(mins_at + n);
    if (!memory->scales) return refuse_memory(mins_at + n, err);
    repeat(memory->scales, n, pool->scales, N_SCALES * size, from);
    weight->scales = memory->scales;
    if (!pool->format.has_min) return 0;
    repeat(memory->scales + mins_at, n, pool->mins, N_SCALES * size, from);
    weight->mins = memory->scales + mins_at;
    return 0;
}

int random_weights_get(struct random_weights *r, bool is_norm, struct weight *weight,
                       struct error *err) {
    const size_t n_rows = (size_t)weight->n_stacked * weight->rows,
                 bytes = n_rows * weight_row_bytes(weight);
    struct pool *pool = &r->pools[weight_is_plain(&weight->format) ? PLAIN : PACKED];
    if (r->last) {
        r->last->next = r->kept;
        r->kept = r->last;
    }
    r->last = is_norm ? norm_memory(n_rows * weight->cols) : matrix_memory(r, pool, bytes);
    if (!r->last) return refuse_memory(bytes, err);
    weight->data = r->last->data;
    if (is_norm) return 0;
    weight->data = r->last->data + random_next(&r->state) % (SHIFT_BYTES / pool->step) * pool->step;
    return pool->scales ? add_scales(r, r->last, weight, err) : 0;
}

void random_weights_take_back(struct random_weights *r) {
    struct pool *pool = r->last ? r->last->pool : NULL;
    if (!pool) {
        free_memory(r->last);
    } else {
        free_memory(pool->spare);
        pool->spare = r->last;
    }
    r->last = NULL;
}
