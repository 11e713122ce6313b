/* lists.c - see lists.h.
 *
 * Thread: engine.  Memory: see lists.h. */
#include "engine/kv/lists.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/error.h"
#include "engine/kv/policy.h"
#include "engine/kv/pool.h"
#include "engine/kv/prefix_cache.h"
#include "engine/sizes.h"

uint32_t kv_grown(uint32_t capacity, uint32_t need) {
    return max_u32(capacity < UINT32_MAX / 2 ? 2 * capacity : UINT32_MAX, need);
}

int kv_lists_grow(struct kv_sequence *kv, uint32_t n_pages) {
    for (uint32_t i = 0; i < kv->space->n_layers; i++) {
        struct page_list *list = &kv->layers[i];
        if (n_pages <= list->capacity) continue;
        uint32_t capacity = kv_grown(list->capacity, n_pages);
        uint32_t *pages = realloc(list->pages, capacity * sizeof(*pages));
        if (!pages) return ERR_NOMEM;
        list->pages = pages;
        list->capacity = capacity;
    }
    return 0;
}

int kv_lists_take(struct kv_sequence *kv, uint32_t n_pages) {
    const uint32_t n_layers = kv->space->n_layers, have = kv->layers[0].n;
    if (n_pages <= have) return 0;
    int code = kv_lists_grow(kv, n_pages);
    if (code) return code;
    struct page_pool *pool = kv->space->pool;
    uint64_t need = (uint64_t)(n_pages - have) * n_layers;
    uint64_t n_idle = kv->space->cache ? prefix_cache_n_idle_pages(kv->space->cache) : 0;
    if (need > page_pool_n_free(pool) + n_idle) return ERR_FULL; /* nothing is evicted in vain */
    if (need > page_pool_n_free(pool)) prefix_cache_evict(kv->space->cache, (uint32_t)need);
    for (uint32_t l = 0; l < n_layers; l++) {
        code = page_pool_take(pool, kv->layers[l].pages + have, n_pages - have);
        assert(code == 0); /* counted above, and nobody else takes pages */
        kv->layers[l].n = n_pages;
    }
    return 0;
}

void kv_lists_trim(struct kv_sequence *kv, uint32_t n_pages) {
    for (uint32_t l = 0; l < kv->space->n_layers; l++) {
        struct page_list *list = &kv->layers[l];
        if (list->n <= n_pages) continue;
        page_pool_release(kv->space->pool, list->pages + n_pages, list->n - n_pages);
        list->n = n_pages;
    }
}
