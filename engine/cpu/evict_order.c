/* evict_order.c - puts the tokens of a full bounded cache into the order of the text, so that a
 * chunk of a prompt can follow generated tokens (engine/device/evict.h).
 *
 *   slots   0 1 2 3 4      a token belongs into the slot of its rank; what is in the free slot
 *   ranks   0 3 1 . 2      belongs nowhere
 *   sources 0 2 4 1        where each slot's token comes from
 *
 * Keys, then values, then states are gathered in scratch memory and copied back.  Every task has a
 * KV head of a layer to itself. */
#include "engine/cpu/evict_order.h"

#include <string.h>

#include "engine/base/sizes.h"
#include "engine/cpu/tile.h"
#include "engine/device/backend.h"
#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "engine/device/step.h"

struct order_job {
    struct cpu_backend *cpu;
    const struct kv_pool *kv;
    const struct kv_view *layers;
};

struct order_head {
    const struct kv_pool *kv;
    const uint32_t *pages;
    uint32_t kv_head, capacity;
    uint32_t *sources; /* [capacity] */
    char *gathered;    /* of all slots, each page rounded up to whole ones */
};

static uint32_t page_of(const struct order_head *h, uint32_t slot) {
    return h->pages[slot / PAGE_TOKENS];
}

static struct kv_page_state *state_of(const struct order_head *h, uint32_t slot) {
    return page_state(h->kv, page_of(h, slot), h->kv_head);
}

static void find_sources(const struct order_head *h) {
    struct kv_page_state *first = state_of(h, 0);
    for (uint32_t slot = 0; slot <= h->capacity; slot++)
        if (slot != first->free_slot)
            h->sources[state_of(h, slot)->rank[slot % PAGE_TOKENS]] = slot;
    first->free_slot = h->capacity;
}

/* Gathers `size` bytes of each slot, which lie `size` * slot bytes behind at(page), and copies them
 * back. */
static void order_words(const struct order_head *h,
                        char *(*at)(const struct order_head *, uint32_t), size_t size) {
    for (uint32_t slot = 0; slot < h->capacity; slot++) {
        const uint32_t from = h->sources[slot];
        memcpy(h->gathered + slot * size, at(h, page_of(h, from)) + from % PAGE_TOKENS * size,
               size);
    }
    for (uint32_t slot = 0; slot < h->capacity; slot += PAGE_TOKENS)
        memcpy(at(h, page_of(h, slot)), h->gathered + slot * size,
               min_u32(h->capacity - slot, PAGE_TOKENS) * size);
}

static char *values_at(const struct order_head *h, uint32_t page) {
    return page_of_head(h->kv, page, h->kv->n_kv_heads + h->kv_head);
}

static char *key_scales_at(const struct order_head *h, uint32_t page) {
    return (char *)page_scales(h->kv, page, h->kv_head);
}

static char *value_scales_at(const struct order_head *h, uint32_t page) {
    return (char *)page_scales(h->kv, page, h->kv->n_kv_heads + h->kv_head);
}

static char *positions_at(const struct order_head *h, uint32_t page) {
    return (char *)page_state(h->kv, page, h->kv_head)->position;
}

static char *scores_at(const struct order_head *h, uint32_t page) {
    return (char *)page_state(h->kv, page, h->kv_head)->score;
}

/* Gathers a page of keys, which are columns: one row of elements after the other, because sources
 * of neighbours are mostly neighbours. */
static void gather_keys(const struct order_head *h, uint32_t first, size_t page_bytes) {
    const uint32_t n = min_u32(h->capacity - first, PAGE_TOKENS);
    const size_t size = page_row_bytes(h->kv->format, 1);
    char *to = h->gathered + first / PAGE_TOKENS * page_bytes;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t from = h->sources[first + i];
        const struct page_row row =
            page_row(h->kv, page_of(h, from), h->kv_head, from % PAGE_TOKENS);
        copy_elements(to + i * size, PAGE_TOKENS, row.first, row.stride, h->kv->head_dim,
                      h->kv->format);
    }
}

static void order_keys(const struct order_head *h) {
    const size_t page_bytes = (size_t)PAGE_TOKENS * page_layout_of(h->kv).row_bytes;
    for (uint32_t slot = 0; slot < h->capacity; slot += PAGE_TOKENS)
        gather_keys(h, slot, page_bytes);
    for (uint32_t slot = 0; slot < h->capacity; slot += PAGE_TOKENS)
        memcpy(page_of_head(h->kv, page_of(h, slot), h->kv_head),
               h->gathered + slot / PAGE_TOKENS * page_bytes, page_bytes);
}

static void order_head(const struct order_head *h) {
    find_sources(h);
    order_keys(h);
    order_words(h, values_at, page_layout_of(h->kv).row_bytes);
    order_words(h, positions_at, sizeof(uint32_t));
    order_words(h, scores_at, sizeof(float));
    if (page_is_scaled(h->kv->format)) {
        order_words(h, key_scales_at, page_scale_bytes(h->kv->format));
        order_words(h, value_scales_at, page_scale_bytes(h->kv->format));
    }
    for (uint32_t slot = 0; slot < h->capacity; slot++)
        state_of(h, slot)->rank[slot % PAGE_TOKENS] = slot;
}

static void order_task(void *ctx, uint32_t task, uint32_t worker) {
    const struct order_job *job = ctx;
    const struct kv_view *layer = &job->layers[task / job->kv->n_kv_heads];
    const uint32_t capacity = layer->n_slots - 1;
    char *scratch = scratch_of(job->cpu, worker);
    const struct order_head h = {.kv = job->kv,
                                 .pages = layer->pages,
                                 .kv_head = task % job->kv->n_kv_heads,
                                 .capacity = capacity,
                                 .sources = (uint32_t *)scratch,
                                 .gathered = scratch + capacity * sizeof(uint32_t)};
    order_head(&h);
}

/* Returns the bytes of scratch memory that a head needs: a source for each slot, and its keys in
 * whole pages, which are the most that is gathered at a time. */
static size_t scratch_bytes(const struct kv_pool *kv, uint32_t capacity) {
    const size_t element = max_u32(page_layout_of(kv).row_bytes, 4);
    return capacity * sizeof(uint32_t) + round_up(capacity, PAGE_TOKENS) * element;
}

int cpu_evict_order(struct backend *be, const struct kv_pool *kv, const struct kv_view *layers,
                    uint32_t n_layers, struct error *err) {
    struct order_job job = {(struct cpu_backend *)be, kv, layers};
    const int rc = scratch_reserve(job.cpu, scratch_bytes(kv, layers[0].n_slots - 1), err);
    if (rc < 0) return rc;
    pool_run(job.cpu->pool, order_task, &job, n_layers * kv->n_kv_heads);
    return 0;
}
