/* lists.c - see lists.h.
 *
 * Thread: engine.  Memory: see lists.h. */
#include "engine/kv/lists.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/policy.h"
#include "engine/kv/prefix_cache.h"

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

uint64_t kv_n_available(const struct kv_space *space) {
    const uint64_t n_idle = space->cache ? prefix_cache_n_idle_pages(space->cache) : 0;
    return page_pool_n_free(space->pool) + n_idle;
}

int kv_make_free(const struct kv_space *space, uint64_t n_pages) {
    if (n_pages > kv_n_available(space)) return ERR_FULL;
    if (n_pages > page_pool_n_free(space->pool))
        prefix_cache_evict(space->cache, (uint32_t)n_pages);
    return 0;
}

uint32_t kv_n_sparse(const struct kv_space *space) {
    return groups_n_layers(space->groups, space->n_groups, space->windows);
}

bool kv_is_sparse(const struct kv_space *space, uint32_t layer) {
    for (uint32_t i = 0; i < space->n_groups; i++)
        if (group_has(&space->groups[i], space->windows, layer)) return true;
    return false;
}

uint32_t kv_host_layer_of(const struct kv_space *space, uint32_t layer) {
    uint32_t plane = 0;
    for (uint32_t i = 0; i < space->n_groups; i++)
        plane += group_n_before(&space->groups[i], space->windows, layer);
    return plane;
}

uint32_t kv_next_sparse(const struct kv_space *space, uint32_t layer) {
    while (layer < space->n_layers && !kv_is_sparse(space, layer)) layer++;
    return layer;
}

bool kv_list_is_text(const struct kv_sequence *kv, uint32_t layer) {
    return !kv->selection.has_left || !kv_is_sparse(kv->space, layer);
}

int kv_lists_grow(struct kv_sequence *kv, uint32_t n_pages) {
    int code = 0;
    for (uint32_t l = 0; l < kv->space->n_layers && !code; l++)
        if (kv_list_is_text(kv, l)) code = kv_list_grow(&kv->layers[l], n_pages);
    return code;
}

/* Returns how many pages the layer's list lacks. */
static uint32_t missing(const struct kv_sequence *kv, uint32_t layer, struct kv_lengths lengths) {
    const uint32_t have = kv->layers[layer].n,
                   want = kv_has_window(kv->space, layer) ? lengths.windowed : lengths.others;
    return want > have && kv_list_is_text(kv, layer) ? want - have : 0;
}

uint64_t kv_lists_missing(const struct kv_sequence *kv, struct kv_lengths lengths) {
    uint64_t n = 0;
    /* Most steps need no new page: without windows the first layer shows that, since its list
     * always grows. */
    if (kv->space->window == 0 && lengths.others <= kv->layers[0].n) return 0;
    for (uint32_t l = 0; l < kv->space->n_layers; l++) n += missing(kv, l, lengths);
    return n;
}

int kv_lists_take(struct kv_sequence *kv, struct kv_lengths lengths) {
    const uint64_t n_missing = kv_lists_missing(kv, lengths);
    if (n_missing == 0) return 0;
    int code = kv_lists_grow(kv, max_u32(lengths.windowed, lengths.others));
    if (!code) code = kv_make_free(kv->space, n_missing);
    if (code) return code;
    for (uint32_t l = 0; l < kv->space->n_layers; l++) {
        struct page_list *list = &kv->layers[l];
        const uint32_t n = missing(kv, l, lengths);
        code = page_pool_take(kv->space->pool, list->pages + list->n, n);
        assert(code == 0); /* counted above, and no other code takes pages */
        list->n += n;
    }
    return 0;
}

void kv_lists_trim(struct kv_sequence *kv, uint32_t n_pages) {
    for (uint32_t l = 0; l < kv->space->n_layers; l++) {
        struct page_list *list = &kv->layers[l];
        const uint32_t n_gone = kv_has_window(kv->space, l) ? kv->n_expired : 0;
        kv_list_trim(list, kv->space, max_u32(n_pages, n_gone));
        list->n = min_u32(list->n, n_pages);
    }
    kv->n_expired = min_u32(kv->n_expired, n_pages);
}

void kv_lists_expire(struct kv_sequence *kv, uint32_t n_pages) {
    for (uint32_t l = 0; l < kv->space->n_layers; l++) {
        if (!kv_has_window(kv->space, l)) continue;
        uint32_t *pages = kv->layers[l].pages;
        assert(n_pages < kv->layers[l].n);
        page_pool_release(kv->space->pool, pages + kv->n_expired, n_pages - kv->n_expired);
        for (uint32_t i = kv->n_expired; i < n_pages; i++) pages[i] = pages[n_pages];
    }
    kv->n_expired = n_pages;
}

void kv_lists_begin(struct kv_sequence *kv, uint32_t n_pages) {
    for (uint32_t l = 0; l < kv->space->n_layers; l++)
        if (kv_has_window(kv->space, l)) kv->layers[l].n = n_pages;
    kv->n_expired = n_pages;
}

void kv_lists_cover(struct kv_sequence *kv) {
    for (uint32_t l = 0; l < kv->space->n_layers; l++) {
        const struct page_list *list = &kv->layers[l];
        if (!kv_has_window(kv->space, l) || kv->n_expired == 0) continue;
        assert(kv->n_expired < list->n);
        for (uint32_t i = 0; i < kv->n_expired; i++) list->pages[i] = list->pages[kv->n_expired];
    }
}
