/* kv_space.c - see kv_space.h. */
#include "engine/kv/kv_space.h"

#include "engine/base/error.h"
#include "engine/kv/disk/disk.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/plan.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/state_cache.h"

const enum kv_role kv_place_order[KV_N_PLACED] = {KV_PLAIN, KV_SPARSE, KV_WINDOWED};

bool kv_is_sparse(const struct kv_space *space, uint32_t layer) {
    for (uint32_t i = 0; i < space->n_groups; i++)
        if (group_has(&space->groups[i], space->windows, layer)) return true;
    return false;
}

enum kv_role kv_role_of(const struct kv_space *space, const struct kv_plan *plan, uint32_t layer) {
    return layer_set_has(&plan->budgeted, layer) ? KV_BUDGETED : kv_usual_role_of(space, layer);
}

enum kv_role kv_usual_role_of(const struct kv_space *space, uint32_t layer) {
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

uint32_t kv_n_idle(const struct kv_space *space) {
    return (space->cache ? prefix_cache_n_idle_pages(space->cache) : 0) +
           (space->states ? state_cache_n_idle_pages(space->states) : 0);
}

uint64_t kv_n_available(const struct kv_space *space) {
    return (uint64_t)page_pool_n_free(space->pool) + kv_n_idle(space);
}

/* Evicts what was used least recently; something must be idle. */
static void evict_oldest(const struct kv_space *space) {
    if (space->states && state_cache_oldest(space->states) < prefix_cache_oldest(space->cache))
        state_cache_evict_oldest(space->states);
    else prefix_cache_evict_oldest(space->cache);
}

int kv_make_free(const struct kv_space *space, uint64_t n_pages) {
    if (n_pages > kv_n_available(space)) return ERR_FULL;
    while (page_pool_n_free(space->pool) < n_pages) evict_oldest(space);
    return 0;
}

bool kv_save_cached(const struct kv_space *space, uint32_t n_most) {
    if (!space->disk) return false;
    struct kv_saving saving = {.n_items = n_most, .bytes = kv_disk_max_bytes(space->disk)};
    enum kv_save_result saved = SAVE_ON;
    if (space->states) saved = state_cache_save(space->states, &saving);
    if (saved == SAVE_ON) saved = prefix_cache_save(space->cache, &saving);
    return saved == SAVE_LATER;
}

uint32_t kv_n_stored(const struct kv_space *space) {
    return (space->cache ? prefix_cache_n_stored_pages(space->cache) : 0) +
           (space->states ? state_cache_n_stored_pages(space->states) : 0);
}

uint32_t kv_n_stored_blocks(const struct kv_space *space) {
    return (space->cache ? prefix_cache_n_store_blocks(space->cache) : 0) +
           (space->states ? state_cache_n_store_blocks(space->states) : 0);
}

void kv_drop_stored(const struct kv_space *space, uint64_t n_blocks) {
    while (page_pool_n_free(space->blocks) < n_blocks && kv_n_stored_blocks(space) > 0) {
        if (space->states &&
            state_cache_oldest_stored(space->states) < prefix_cache_oldest_stored(space->cache))
            state_cache_drop_oldest_stored(space->states);
        else prefix_cache_drop_oldest_stored(space->cache);
    }
}
