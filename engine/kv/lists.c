/* lists.c - see lists.h. */
#include "engine/kv/lists.h"

#include <assert.h>

#include "engine/base/sizes.h"
#include "engine/device/layer_group.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/reclaim.h"

bool kv_list_is_text(const struct kv_sequence *kv, uint32_t layer) {
    return !selection_left_text(kv) || !kv_is_sparse(kv->space, layer);
}

bool kv_list_is_windowed(const struct kv_sequence *kv, uint32_t layer) {
    return kv_role_of(kv->space, &kv->plan, layer) == KV_WINDOWED;
}

struct kv_needs kv_needs(const struct kv_sequence *kv, uint64_t n_tokens) {
    const struct kv_kinds *kinds = kv->plan.kinds;
    struct kv_needs needs = {.n_rows = UINT32_MAX};
    for (const struct kv_kind *const *kind = kinds->all; *kind; kind++) {
        const struct kv_need one = (*kind)->ask(kv, n_tokens);
        needs.n_rows = min_u32(needs.n_rows, one.n_rows);
        needs.beside.pages += one.beside.pages;
        needs.beside.blocks += one.beside.blocks;
        for (unsigned role = 0; role < KV_N_ROLES; role++)
            if (kinds->of[role] == *kind) needs.lengths.of[role] = one.n_listed;
    }
    return needs;
}

int kv_lists_grow(struct kv_sequence *kv, uint32_t n_pages) {
    int code = 0;
    for (uint32_t l = 0; l < kv->space->n_layers && !code; l++)
        code = kv_list_grow(&kv->layers[l], n_pages);
    return code;
}

int kv_lists_grow_to(struct kv_sequence *kv, struct kv_lengths lengths) {
    int code = 0;
    for (uint32_t l = 0; l < kv->space->n_layers && !code; l++)
        code = kv_list_grow(&kv->layers[l], lengths.of[kv_role_of(kv->space, &kv->plan, l)]);
    return code;
}

/* Returns how many pages the layer's list lacks. */
static uint32_t missing(const struct kv_sequence *kv, uint32_t layer, struct kv_lengths lengths) {
    const uint32_t have = kv->layers[layer].n,
                   want = lengths.of[kv_role_of(kv->space, &kv->plan, layer)];
    return want > have ? want - have : 0;
}

/* Tells that no list lacks a page, in most steps and without a look at each.  Only
 * the first layer and the first sparse layer are looked at, because all others of their role have
 * the same length.  The first layer is never sparse: a filter comes before it.  Returns false with
 * windows, where pages are given back, and with layers that keep a budget of their own. */
static bool are_long_enough(const struct kv_sequence *kv, struct kv_lengths lengths) {
    const struct kv_space *space = kv->space;
    if (kv->n_holes > 0) return false;
    if (space->window > 0 || !layer_set_is_empty(&kv->plan.budgeted)) return false;
    if (lengths.of[KV_PLAIN] > kv->layers[0].n) return false;
    const uint32_t sparse = space->n_groups > 0 ? space->groups[0].first : 0;
    return sparse == 0 || lengths.of[KV_SPARSE] <= kv->layers[sparse].n;
}

uint64_t kv_lists_missing(const struct kv_sequence *kv, struct kv_lengths lengths) {
    uint64_t n = 0;
    if (are_long_enough(kv, lengths)) return 0;
    for (uint32_t l = 0; l < kv->space->n_layers; l++) n += missing(kv, l, lengths);
    return n + (kv->n_holes > 0 ? (uint64_t)kv->n_holes * kv_n_sparse(kv->space) : 0);
}

/* Takes pages for the places in lists of sparse layers that have none. */
static void fill_holes(struct kv_sequence *kv) {
    const struct kv_space *space = kv->space;
    if (kv->n_holes == 0) return;
    for (uint32_t l = 0; (l = kv_next_sparse(space, l)) < space->n_layers; l++)
        for (uint32_t i = 0; i < kv->layers[l].n; i++)
            if (kv->layers[l].pages[i] == KV_NO_PAGE)
                page_pool_take_sure(space->pool, &kv->layers[l].pages[i], 1);
    kv->n_holes = 0;
}

int kv_lists_take(struct kv_sequence *kv, struct kv_lengths lengths) {
    const uint64_t n_missing = kv_lists_missing(kv, lengths);
    if (n_missing == 0) return 0;
    int code = kv_lists_grow_to(kv, lengths);
    if (!code) code = kv_make_free(kv->space, n_missing);
    if (code) return code;
    fill_holes(kv);
    for (uint32_t l = 0; l < kv->space->n_layers; l++) {
        struct page_list *list = &kv->layers[l];
        const uint32_t n = missing(kv, l, lengths);
        page_pool_take_sure(kv->space->pool, list->pages + list->n, n);
        list->n += n;
    }
    return 0;
}

void kv_lists_trim(struct kv_sequence *kv, uint32_t n_pages) {
    for (uint32_t l = 0; l < kv->space->n_layers; l++) {
        struct page_list *list = &kv->layers[l];
        const uint32_t n_gone = kv_list_is_windowed(kv, l) ? kv->n_expired : 0;
        kv_list_trim(list, kv->space->pool, max_u32(n_pages, n_gone));
        list->n = min_u32(list->n, n_pages);
    }
    if (n_pages == 0) kv->n_holes = 0;
    kv->n_expired = min_u32(kv->n_expired, n_pages);
}

void kv_lists_expire(struct kv_sequence *kv, uint32_t n_pages) {
    for (uint32_t l = 0; l < kv->space->n_layers; l++) {
        if (!kv_list_is_windowed(kv, l)) continue;
        uint32_t *pages = kv->layers[l].pages;
        assert(n_pages < kv->layers[l].n);
        page_pool_release(kv->space->pool, pages + kv->n_expired, n_pages - kv->n_expired);
        for (uint32_t i = kv->n_expired; i < n_pages; i++) pages[i] = pages[n_pages];
    }
    kv->n_expired = n_pages;
}

void kv_lists_begin(struct kv_sequence *kv, uint32_t n_pages) {
    for (uint32_t l = 0; l < kv->space->n_layers; l++)
        if (kv_list_is_windowed(kv, l)) kv->layers[l].n = n_pages;
    kv->n_expired = n_pages;
}

void kv_lists_cover(struct kv_sequence *kv) {
    if (kv->buffers.n > 0) return; /* their pages are in these places */
    for (uint32_t l = 0; l < kv->space->n_layers; l++) {
        const struct page_list *list = &kv->layers[l];
        if (!kv_list_is_windowed(kv, l) || kv->n_expired == 0) continue;
        assert(kv->n_expired < list->n);
        for (uint32_t i = 0; i < kv->n_expired; i++) list->pages[i] = list->pages[kv->n_expired];
    }
}
