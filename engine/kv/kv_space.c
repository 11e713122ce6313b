/* kv_space.c - see kv_space.h. */
#include "engine/kv/kv_space.h"

#include "engine/base/error.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_cache.h"

bool kv_is_sparse(const struct kv_space *space, uint32_t layer) {
    for (uint32_t i = 0; i < space->n_groups; i++)
        if (group_has(&space->groups[i], space->windows, layer)) return true;
    return false;
}

enum kv_role kv_role_of(const struct kv_space *space, uint32_t layer) {
    if (kv_has_window(space, layer)) return KV_WINDOWED;
    return kv_is_sparse(space, layer) ? KV_SPARSE : KV_PLAIN;
}

uint32_t kv_n_sparse(const struct kv_space *space) {
    return groups_n_layers(space->groups, space->n_groups, space->windows);
}

uint32_t kv_host_layer_of(const struct kv_space *space, uint32_t layer) {
    uint32_t host_layer = 0;
    for (uint32_t i = 0; i < space->n_groups; i++)
        host_layer += group_n_before(&space->groups[i], space->windows, layer);
    return host_layer;
}

uint32_t kv_next_sparse(const struct kv_space *space, uint32_t layer) {
    while (layer < space->n_layers && !kv_is_sparse(space, layer)) layer++;
    return layer;
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
