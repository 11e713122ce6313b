/* kv_space.c - see kv_space.h. */
#include "engine/kv/kv_space.h"

#include "engine/base/sizes.h"
#include "engine/device/pages.h"
#include "engine/kv/plan.h"

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

/* Returns how many of the tokens before a row layers with a window keep: so many that their first
 * page is whole.  That page stands for the expired ones.  A kernel that reads pages in pairs gives
 * unseen slots the weight 0, so it must find no NaN in slots that were never written. */
static uint32_t n_kept(uint32_t window) {
    return window == 0 ? UINT32_MAX : max_u32(window - 1, PAGE_TOKENS);
}

uint32_t kv_window_n_behind(const struct kv_space *space, uint32_t n_tokens) {
    const uint32_t n = n_kept(space->window);
    return n_tokens > n ? (n_tokens - n) / PAGE_TOKENS : 0;
}

struct kv_range kv_window_range(const struct kv_space *space, uint32_t n_tokens) {
    const uint32_t n_behind = kv_window_n_behind(space, n_tokens);
    return (struct kv_range){n_behind, (uint32_t)kv_n_pages(n_tokens) - n_behind};
}

uint64_t kv_window_n_pages(uint32_t window, uint32_t step_rows, uint32_t n_tokens) {
    const uint64_t n_slots = (uint64_t)n_kept(window) + step_rows;
    return min_u64(kv_n_pages(n_tokens), kv_n_pages(n_slots) + 1);
}
