/* swap.c - see swap.h.
 *
 * Thread: engine.  Memory: see swap.h. */
#include "engine/kv/swap.h"

#include <assert.h>

#include "engine/error.h"
#include "engine/kv/lists.h"
#include "engine/kv/moves.h"
#include "engine/kv/pool.h"
#include "engine/kv/prefix_cache.h"
#include "engine/sizes.h"

/* ---- those that wait, in the order in which they lost their places ---- */

static void append(struct kv_swaps *swaps, struct kv_swap *swap) {
    swap->older = swaps->newest;
    swap->newer = NULL;
    if (swaps->newest) swaps->newest->newer = swap;
    else swaps->oldest = swap;
    swaps->newest = swap;
    swaps->n_blocks += swap->blocks.n;
}

static void take_out(struct kv_swaps *swaps, struct kv_swap *swap) {
    if (swap->older) swap->older->newer = swap->newer;
    else swaps->oldest = swap->newer;
    if (swap->newer) swap->newer->older = swap->older;
    else swaps->newest = swap->older;
    swaps->n_blocks -= swap->blocks.n;
}

void kv_swap_drop(const struct kv_space *space, struct kv_swap *swap) {
    if (swap->n_tokens == 0) return;
    take_out(space->swaps, swap);
    page_pool_release(space->blocks, swap->blocks.pages, swap->blocks.n);
    swap->blocks.n = swap->n_tokens = 0;
}

static uint32_t n_cached(const struct kv_space *space) {
    return space->cache ? prefix_cache_n_store_blocks(space->cache) : 0;
}

uint32_t kv_spare_blocks(const struct kv_space *space) {
    if (!space->blocks) return 0;
    return page_pool_n_free(space->blocks) + n_cached(space) + space->swaps->n_blocks;
}

int kv_make_blocks(const struct kv_space *space, uint32_t n_blocks) {
    if (n_blocks > kv_spare_blocks(space)) return ERR_FULL;
    if (n_blocks > 0 && space->cache) prefix_cache_drop_stored(space->cache, n_blocks);
    while (n_blocks > 0 && page_pool_n_free(space->blocks) < n_blocks)
        kv_swap_drop(space, space->swaps->oldest);
    return 0;
}

/* ---- copies ---- */

/* Pages that a selection has filled. */
static uint32_t n_chosen_pages(const struct kv_sequence *kv, const struct kv_select *select) {
    return select->n_candidates > 0 ? kv->selection.held.n : 0;
}

static size_t n_layer_pages(const struct kv_swap *swap) {
    return kv_n_pages(swap->n_tokens) - swap->first;
}

typedef int (*move_pages)(const struct kv_space *space, const uint32_t *pages, size_t n,
                          const uint32_t *blocks, size_t first, struct error *err);

/* Pages `from` and those behind it of every layer, then those of the selection. */
static int copy(const struct kv_sequence *kv, move_pages move, uint32_t from, struct error *err) {
    const struct kv_space *space = kv->space;
    const struct kv_swap *swap = &kv->swap;
    const uint32_t *blocks = swap->blocks.pages;
    const size_t n = n_layer_pages(swap), skipped = from - swap->first;
    int code = 0;
    for (uint32_t l = 0; l < space->n_layers && skipped < n && !code; l++)
        code = move(space, kv->layers[l].pages + from, n - skipped, blocks, l * n + skipped, err);
    if (code) return code;
    return move(space, kv->selection.held.pages, n_chosen_pages(kv, &swap->select), blocks,
                space->n_layers * n, err);
}

static uint32_t n_shared(const struct kv_sequence *kv) {
    uint32_t n = 0;
    while (n < kv->n_blocks && prefix_cache_n_users(kv->space->cache, kv->blocks[n]) > 1) n++;
    return n;
}

/* Blocks for so many pages, if they are free, or the prefix cache's. */
static bool take_blocks(struct kv_sequence *kv, uint64_t n_pages) {
    const struct kv_space *space = kv->space;
    struct page_list *blocks = &kv->swap.blocks;
    const uint64_t n = kv_blocks_for(space, n_pages);
    if (n == 0 || n > page_pool_n_free(space->blocks) + n_cached(space)) return false;
    if (kv_list_grow(blocks, (uint32_t)n)) return false;
    if (space->cache) prefix_cache_drop_stored(space->cache, (uint32_t)n);
    const int code = page_pool_take(space->blocks, blocks->pages, (uint32_t)n);
    assert(code == 0);
    (void)code;
    blocks->n = (uint32_t)n;
    return true;
}

int kv_swap_out(struct kv_sequence *kv, struct error *err) {
    const struct kv_space *space = kv->space;
    struct kv_swap *swap = &kv->swap;
    /* Who waits has tried to start, in vain. */
    if (!space->swaps || kv->n_tokens == kv->n_found) return 0;
    const struct kv_select *select = &kv->selection.select;
    const uint32_t first = n_shared(kv);
    const uint64_t n = kv_n_pages(kv->n_tokens) - first;
    const uint64_t n_pages = n * space->n_layers + n_chosen_pages(kv, select);
    if (!take_blocks(kv, n_pages)) return 0;
    swap->first = first;
    swap->n_tokens = kv->n_tokens;
    swap->select = *select;
    append(space->swaps, swap);
    space->swaps->n_out += n_pages;
    return copy(kv, kv_pages_out, first, err);
}

uint32_t kv_swap_tokens(const struct kv_sequence *kv) {
    return kv->n_blocks >= kv->swap.first ? kv->swap.n_tokens : 0;
}

int kv_swap_in(struct kv_sequence *kv, struct error *err) {
    const struct kv_space *space = kv->space;
    struct kv_swap *swap = &kv->swap;
    const uint32_t from = kv->n_blocks; /* those come first */
    int code = 0;
    if (swap->n_tokens > 0 && kv->n_tokens >= swap->n_tokens) {
        const uint64_t end = kv_n_pages(swap->n_tokens);
        code = copy(kv, kv_pages_in, from, err);
        space->swaps->n_in += (end > from ? end - from : 0) * space->n_layers +
                              n_chosen_pages(kv, &swap->select);
        kv->selection.select = swap->select;
    }
    kv_swap_drop(space, swap);
    return code;
}
