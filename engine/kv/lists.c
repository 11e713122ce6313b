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

int kv_list_grow(struct page_list *list, uint32_t n_pages) {
    if (n_pages <= list->capacity) return 0;
    const uint32_t capacity = kv_grown(list->capacity, n_pages);
    uint32_t *pages = realloc(list->pages, capacity * sizeof(*pages));
    if (!pages) return ERR_NOMEM;
    list->pages = pages;
    list->capacity = capacity;
    return 0;
}

void kv_list_trim(struct page_list *list, const struct kv_space *space, uint32_t n_pages) {
    if (list->n <= n_pages) return;
    page_pool_release(space->pool, list->pages + n_pages, list->n - n_pages);
    list->n = n_pages;
}

int kv_make_room(const struct kv_space *space, uint64_t n_pages) {
    const uint64_t n_idle = space->cache ? prefix_cache_n_idle_pages(space->cache) : 0;
    if (n_pages > page_pool_n_free(space->pool) + n_idle) return ERR_FULL;
    if (n_pages > page_pool_n_free(space->pool))
        prefix_cache_evict(space->cache, (uint32_t)n_pages);
    return 0;
}

uint32_t kv_n_sparse(const struct kv_space *space) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < space->n_groups; i++)
        n += space->groups[i].end - space->groups[i].first;
    return n;
}

uint32_t kv_layer_of(const struct kv_space *space, uint32_t plane) {
    const struct layer_group *group = space->groups;
    for (; plane >= group->end - group->first; group++) plane -= group->end - group->first;
    return group->first + plane;
}

uint32_t kv_plane_of(const struct kv_space *space, uint32_t layer) {
    uint32_t plane = 0;
    while (plane < kv_n_sparse(space) && kv_layer_of(space, plane) != layer) plane++;
    return plane;
}

static bool grows(const struct kv_sequence *kv, uint32_t layer) {
    return !kv->selection.has_left || kv_plane_of(kv->space, layer) == kv_n_sparse(kv->space);
}

int kv_lists_grow(struct kv_sequence *kv, uint32_t n_pages) {
    int code = 0;
    for (uint32_t l = 0; l < kv->space->n_layers && !code; l++)
        if (grows(kv, l)) code = kv_list_grow(&kv->layers[l], n_pages);
    return code;
}

uint64_t kv_lists_missing(const struct kv_sequence *kv, uint64_t n_pages) {
    const uint32_t have = kv->layers[0].n;
    if (n_pages <= have) return 0;
    const uint32_t n_fixed = kv->selection.has_left ? kv_n_sparse(kv->space) : 0;
    return (n_pages - have) * (kv->space->n_layers - n_fixed);
}

int kv_lists_take(struct kv_sequence *kv, uint32_t n_pages) {
    const uint32_t have = kv->layers[0].n;
    if (n_pages <= have) return 0;
    int code = kv_lists_grow(kv, n_pages);
    if (!code) code = kv_make_room(kv->space, kv_lists_missing(kv, n_pages));
    if (code) return code;
    for (uint32_t l = 0; l < kv->space->n_layers; l++) {
        if (!grows(kv, l)) continue;
        code = page_pool_take(kv->space->pool, kv->layers[l].pages + have, n_pages - have);
        assert(code == 0); /* counted above, and nobody else takes pages */
        kv->layers[l].n = n_pages;
    }
    return 0;
}

void kv_lists_trim(struct kv_sequence *kv, uint32_t n_pages) {
    for (uint32_t l = 0; l < kv->space->n_layers; l++)
        kv_list_trim(&kv->layers[l], kv->space, n_pages);
}
