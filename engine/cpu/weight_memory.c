/* weight_memory.c - see weight_memory.h. */
#define _GNU_SOURCE /* MADV_HUGEPAGE */
#include "engine/cpu/weight_memory.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/cpu/buffer.h"

enum { HUGE_PAGE = 2 << 20, MAPPING_BYTES = 64 << 20 };

struct weight_mapping {
    struct weight_mapping *next;
    void *mapped;
    size_t mapped_bytes;
    uint8_t *begin; /* a multiple of HUGE_PAGE */
    size_t bytes, used;
    uint32_t n_taken;
};

/* Maps memory of at least `bytes`. */
static struct weight_mapping *mapping_create(size_t bytes) {
    struct weight_mapping *m = calloc(1, sizeof(*m));
    if (!m) return NULL;
    m->bytes = round_up(bytes > MAPPING_BYTES ? bytes : MAPPING_BYTES, HUGE_PAGE);
    m->mapped_bytes = m->bytes + HUGE_PAGE;
    m->mapped = mmap(NULL, m->mapped_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m->mapped == MAP_FAILED) {
        free(m);
        return NULL;
    }
    m->begin = (uint8_t *)round_up((uintptr_t)m->mapped, HUGE_PAGE);
    (void)madvise(m->begin, m->bytes, MADV_HUGEPAGE); /* only advice */
    return m;
}

static void mapping_destroy(struct weight_mapping *m) {
    munmap(m->mapped, m->mapped_bytes);
    free(m);
}

int weight_memory_take(struct weight_memory *memory, size_t bytes, void **out, struct error *err) {
    struct weight_mapping *m = memory->mappings;
    if (bytes > SIZE_MAX / 2)
        return error_set(err, ERR_NOMEM, "cpu: %zu bytes cannot be allocated", bytes);
    const size_t size = round_up(bytes, CPU_BUFFER_ALIGN);
    if (!m || size > m->bytes - m->used) {
        m = mapping_create(size);
        if (!m) return error_set(err, ERR_NOMEM, "cpu: no memory for %zu bytes of weights", bytes);
        m->next = memory->mappings;
        memory->mappings = m;
    }
    *out = m->begin + m->used;
    m->used += size;
    m->n_taken++;
    return 0;
}

static bool holds(const struct weight_mapping *m, const void *taken) {
    return (uintptr_t)taken >= (uintptr_t)m->begin &&
           (uintptr_t)taken < (uintptr_t)m->begin + m->used;
}

void weight_memory_give(struct weight_memory *memory, const void *taken) {
    struct weight_mapping **at = &memory->mappings;
    if (!taken) return;
    while (*at && !holds(*at, taken)) at = &(*at)->next;
    assert(*at);
    struct weight_mapping *m = *at;
    if (--m->n_taken > 0) return;
    *at = m->next;
    mapping_destroy(m);
}
