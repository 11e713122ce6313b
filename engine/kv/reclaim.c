/* reclaim.c - see reclaim.h. */
#include "engine/kv/reclaim.h"

#include "engine/base/error.h"
#include "engine/kv/checkpoints.h"
#include "engine/kv/disk/disk.h"
#include "engine/kv/kv_space.h"
#include "engine/kv/offer.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/state_cache.h"

uint32_t kv_n_idle(const struct kv_space *space) {
    return (space->cache ? prefix_cache_n_idle_pages(space->cache) : 0) +
           (space->states ? state_cache_n_idle_pages(space->states) : 0);
}

uint64_t kv_n_available(const struct kv_space *space) {
    return (uint64_t)page_pool_n_free(space->pool) + kv_n_idle(space);
}

/* Evicts what was used least recently; something must be idle.  What moves to the host pool takes
 * the place of what has been there longest. */
static void evict_oldest(const struct kv_space *space) {
    const bool is_state =
        space->states && state_cache_oldest(space->states) < prefix_cache_oldest(space->cache);
    const struct kv_demotion demotion =
        is_state ? state_cache_demotion(space->states) : prefix_cache_demotion(space->cache);
    if (demotion.to_host) kv_drop_offloaded(space, demotion.n_blocks);
    if (is_state) state_cache_evict_oldest(space->states, demotion);
    else prefix_cache_evict_oldest(space->cache, demotion);
}

int kv_make_free(const struct kv_space *space, uint64_t n_pages) {
    if (n_pages > kv_n_available(space)) return ERR_FULL;
    while (page_pool_n_free(space->pool) < n_pages) evict_oldest(space);
    return 0;
}

uint64_t kv_n_available_states(const struct kv_space *space) {
    if (!space->state_slots) return 0;
    return (uint64_t)page_pool_n_free(space->state_slots) + checkpoints_n_idle(space->checkpoints);
}

int kv_make_states_free(const struct kv_space *space, uint32_t n) {
    if (n > kv_n_available_states(space)) return ERR_FULL;
    while (page_pool_n_free(space->state_slots) < n)
        prefix_cache_evict_checkpoint(space->cache, checkpoints_oldest(space->checkpoints));
    return 0;
}

uint32_t kv_n_offloaded(const struct kv_space *space) {
    return (space->cache ? prefix_cache_n_offloaded_pages(space->cache) : 0) +
           (space->states ? state_cache_n_offloaded_pages(space->states) : 0);
}

uint32_t kv_n_offloaded_blocks(const struct kv_space *space) {
    return (space->cache ? prefix_cache_n_offloaded_blocks(space->cache) : 0) +
           (space->states ? state_cache_n_offloaded_blocks(space->states) : 0);
}

void kv_drop_offloaded(const struct kv_space *space, uint64_t n_blocks) {
    while (page_pool_n_free(space->blocks) < n_blocks && kv_n_offloaded_blocks(space) > 0) {
        if (space->states && state_cache_oldest_offloaded(space->states) <
                                 prefix_cache_oldest_offloaded(space->cache))
            state_cache_drop_oldest_offloaded(space->states);
        else prefix_cache_drop_oldest_offloaded(space->cache);
    }
}

bool kv_save_cached(const struct kv_space *space, uint32_t n_most) {
    if (!space->disk) return false;
    struct kv_saving saving = {.n_items = n_most, .bytes = kv_disk_max_bytes(space->disk)};
    enum kv_save_result saved = SAVE_ON;
    if (space->states) saved = state_cache_save(space->states, &saving);
    if (saved == SAVE_ON) saved = prefix_cache_save(space->cache, &saving);
    return saved == SAVE_LATER;
}
