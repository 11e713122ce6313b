/* swap.c - see swap.h. */
#include "engine/kv/swap.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/pages.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/lists.h"
#include "engine/kv/page_io.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/reclaim.h"

/* ---- waiting sequences, in the order in which they were preempted ---- */

static void offer(const struct kv_space *space, const struct kv_swap *swap) {
    page_pool_offer(space->blocks, PAGE_WAITING, swap->blocks.pages, swap->blocks.n);
    page_pool_offer(space->blocks, PAGE_WAITING, swap->token_blocks->pages, swap->token_blocks->n);
}

static void withdraw(const struct kv_space *space, const struct kv_swap *swap) {
    page_pool_withdraw(space->blocks, PAGE_WAITING, swap->blocks.pages, swap->blocks.n);
    page_pool_withdraw(space->blocks, PAGE_WAITING, swap->token_blocks->pages,
                       swap->token_blocks->n);
}

static void append(const struct kv_space *space, struct kv_swap *swap) {
    struct kv_swaps *swaps = space->swaps;
    swap->older = swaps->newest;
    swap->newer = NULL;
    if (swaps->newest) swaps->newest->newer = swap;
    else swaps->oldest = swap;
    swaps->newest = swap;
    offer(space, swap);
}

static void take_out(const struct kv_space *space, struct kv_swap *swap) {
    struct kv_swaps *swaps = space->swaps;
    if (swap->older) swap->older->newer = swap->newer;
    else swaps->oldest = swap->newer;
    if (swap->newer) swap->newer->older = swap->older;
    else swaps->newest = swap->older;
    if (!swap->is_claimed) withdraw(space, swap);
}

/* Frees the swap's blocks, but for the reused ones and the token blocks. */
static void forget(const struct kv_space *space, struct kv_swap *swap) {
    take_out(space, swap);
    page_pool_release(space->blocks, swap->blocks.pages, swap->blocks.n - swap->n_reused);
    swap->blocks.n = swap->n_tokens = swap->n_reused = 0;
    swap->is_claimed = false;
}

static void drop(const struct kv_space *space, struct kv_swap *swap) {
    forget(space, swap);
    page_pool_release(space->blocks, swap->token_blocks->pages, swap->token_blocks->n);
    swap->token_blocks->n = 0;
}

void kv_swap_drop(struct kv_sequence *kv) {
    if (kv->swap.n_tokens > 0) drop(kv->space, &kv->swap);
}

void kv_swap_fini(struct kv_sequence *kv) {
    free(kv->swap.blocks.pages);
}

uint32_t kv_swap_n_tokens(const struct kv_sequence *kv) {
    return kv->swap.n_tokens;
}

uint32_t kv_swap_n_shared(const struct kv_sequence *kv) {
    return kv->swap.n_shared;
}

uint32_t kv_swap_n_expired(const struct kv_sequence *kv) {
    return kv->swap.n_expired;
}

bool kv_swap_is_claimed(const struct kv_sequence *kv) {
    return kv->swap.is_claimed;
}

uint32_t kv_n_available_blocks(const struct kv_space *space) {
    if (!space->blocks) return 0;
    return page_pool_n_free(space->blocks) + kv_n_offloaded_blocks(space) +
           page_pool_n_offered(space->blocks, PAGE_WAITING);
}

/* Returns the oldest swap that is not claimed; at most one is claimed at a time. */
static struct kv_swap *oldest(const struct kv_swaps *swaps) {
    return swaps->oldest->is_claimed ? swaps->oldest->newer : swaps->oldest;
}

/* Drops what is cached in the host pool until n_blocks blocks are free or there is no more. */
static void drop_cached(const struct kv_space *space, uint64_t n_blocks) {
    kv_drop_offloaded(space, n_blocks);
    if (space->cache) prefix_cache_drop_token_blocks(space->cache, n_blocks);
}

int kv_make_blocks(const struct kv_space *space, uint32_t n_blocks) {
    if (n_blocks > kv_n_available_blocks(space)) return ERR_FULL;
    if (n_blocks > 0) drop_cached(space, n_blocks);
    while (n_blocks > 0 && page_pool_n_free(space->blocks) < n_blocks)
        drop(space, oldest(space->swaps));
    return 0;
}

void kv_swap_claim(struct kv_sequence *kv) {
    kv->swap.is_claimed = true;
    withdraw(kv->space, &kv->swap);
}

static void give_up(struct kv_sequence *kv) {
    kv->swap.is_claimed = false;
    offer(kv->space, &kv->swap);
}

uint32_t kv_swap_n_reusable(const struct kv_sequence *kv) {
    const struct kv_swap *swap = &kv->swap;
    return swap->is_claimed ? swap->blocks.n - swap->n_reused : 0;
}

void kv_swap_reuse(struct kv_sequence *kv, struct page_list *to, uint32_t n_blocks) {
    struct kv_swap *swap = &kv->swap;
    assert(n_blocks <= kv_swap_n_reusable(kv) && to->n + n_blocks <= to->capacity);
    for (uint32_t i = 0; i < n_blocks; i++)
        to->pages[to->n++] = swap->blocks.pages[swap->blocks.n - ++swap->n_reused];
}

/* ---- copies ---- */

/* Pages of a layer's list that are swapped. */
struct range {
    uint32_t from, end;
};

static struct range range_of(const struct kv_sequence *kv, uint32_t layer) {
    const struct kv_swap *swap = &kv->swap;
    if (!kv_list_is_text(kv, layer)) return (struct range){0, kv->layers[layer].n};
    return (struct range){kv_has_window(kv->space, layer) ? swap->n_expired : swap->n_shared,
                          (uint32_t)kv_n_pages(swap->n_tokens)};
}

static uint64_t n_swapped_pages(const struct kv_sequence *kv) {
    uint64_t n = selection_n_filled(kv);
    for (uint32_t l = 0; l < kv->space->n_layers; l++) {
        const struct range range = range_of(kv, l);
        n += range.end - range.from;
    }
    return n;
}

/* Transfers the swapped pages to or from their blocks.  Skips the first n_known pages of the text,
 * which are in place already; in layers with a window none are. */
static int copy(const struct kv_sequence *kv, page_io_blocks move, uint32_t n_known,
                uint64_t *n_moved, struct error *err) {
    const struct kv_space *space = kv->space;
    const uint32_t *blocks = kv->swap.blocks.pages, n_filled = selection_n_filled(kv);
    size_t place = 0;
    int code = 0;
    for (uint32_t l = 0; l < space->n_layers && !code; l++) {
        const struct range range = range_of(kv, l);
        const bool has_known = kv_list_is_text(kv, l) && !kv_has_window(space, l);
        const uint32_t known = has_known ? min_u32(n_known, range.end) : 0,
                       from = max_u32(range.from, known);
        code = move(&space->io, kv->layers[l].pages + from, range.end - from, blocks,
                    place + from - range.from, err);
        place += range.end - range.from;
        *n_moved += range.end - from;
    }
    *n_moved += n_filled;
    return code ? code : move(&space->io, selection_held(kv)->pages, n_filled, blocks, place, err);
}

/* Takes blocks for n_pages pages if they are free, or the prefix cache's. */
static bool take_blocks(struct kv_sequence *kv, uint64_t n_pages) {
    const struct kv_space *space = kv->space;
    struct page_list *blocks = &kv->swap.blocks;
    const uint64_t n = page_io_n_blocks(&space->io, n_pages),
                   n_cached = kv_n_offloaded_blocks(space) +
                              page_pool_n_offered(space->blocks, PAGE_CACHED);
    if (n == 0 || n > page_pool_n_free(space->blocks) + n_cached) return false;
    if (kv_list_grow(blocks, (uint32_t)n)) return false;
    drop_cached(space, n);
    page_pool_take_sure(space->blocks, blocks->pages, (uint32_t)n);
    blocks->n = (uint32_t)n;
    return true;
}

int kv_swap_out(struct kv_sequence *kv, struct error *err) {
    const struct kv_space *space = kv->space;
    struct kv_swap *swap = &kv->swap;
    if (swap->is_claimed) give_up(kv);
    /* Nothing has been computed since match(): the sequence failed to start, and its data stay. */
    if (!space->swaps || space->state_slots || kv->n_tokens == kv->n_found) return 0;
    swap->n_tokens = kv->n_tokens;
    swap->n_shared = sequence_prefix_n_shared(kv);
    swap->n_expired = kv->n_expired;
    swap->token_blocks = selection_token_blocks(kv);
    selection_suspend(kv);
    if (!take_blocks(kv, n_swapped_pages(kv))) {
        swap->n_tokens = 0;
        return 0;
    }
    append(space, swap);
    return copy(kv, page_io_write_blocks, 0, &space->swaps->n_out, err);
}

int kv_swap_in(struct kv_sequence *kv, struct error *err) {
    struct kv_swap *swap = &kv->swap;
    if (!swap->is_claimed) {
        kv_swap_drop(kv);
        return 0;
    }
    const int code =
        copy(kv, page_io_read_blocks, sequence_prefix_n_blocks(kv), &kv->space->swaps->n_in, err);
    selection_resume(kv);
    kv->n_found = 0; /* it could lose all of that again */
    forget(kv->space, swap);
    return code;
}
