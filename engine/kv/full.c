/* full.c - the policy that keeps everything: slot = position.
 *
 *   blocks:  [ 0 ][ 1 ][ 2 ]              used blocks of the prefix cache: a page in every layer
 *   pages:   [ 7 ][ 4 ][ 9 ][ 3 ][ 8 ]    of a layer: 3 is full, not inserted yet, 8 is filling
 *
 * The sequence holds a reference to each of its pages.  It also uses the blocks that name its
 * tokens.  When two sequences computed the same block, the second keeps its own pages but uses the
 * first one's block.  So the chain of blocks has no gaps and its next blocks have a parent.
 *
 * A layer with a window has pages from the first one that the next row sees to those of the next
 * step.  These are at most the window and a step's rows.  The sequence needs the window pages of
 * its blocks from that page on.  If layers' windows differ, the largest counts.
 *
 *   a window:  [ . ][ . ][ 9 ][ 3 ][ 8 ]    n_expired is 2
 *
 * A sequence that comes back from the host pool has its own pages in these layers.  It needs no
 * window pages of the blocks that it finds.
 *
 * Window pages that expire before their block is inserted cannot be shared.  While there are pages
 * for another sequence like this one they are kept until then; later the cache keeps them.
 *
 * Thread: engine.  Memory: see policy.h. */
#include "engine/kv/full.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/kv/lists.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/policy.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/swap.h"

/* Returns how many of the tokens before a row layers with a window keep: so many that their first
 * page is whole.  That page stands for the expired ones.  A kernel that reads pages in pairs gives
 * unseen slots the weight 0, so it must find no NaN in slots that were never written. */
static uint32_t n_kept(uint32_t window) {
    return window == 0 ? UINT32_MAX : max_u32(window - 1, PAGE_TOKENS);
}

uint32_t kv_full_n_behind(const struct kv_space *space, uint32_t n_tokens) {
    const uint32_t n = n_kept(space->window);
    return n_tokens > n ? (n_tokens - n) / PAGE_TOKENS : 0;
}

uint64_t kv_windowed_pages(uint32_t window, uint32_t step_rows, uint32_t n_tokens) {
    const uint64_t n_slots = (uint64_t)n_kept(window) + step_rows;
    return min_u64(kv_n_pages(n_tokens), kv_n_pages(n_slots) + 1);
}

struct kv_amount kv_full_most(const struct kv_space *space, const struct kv_plan *plan) {
    const uint64_t n_pages = kv_n_pages(plan->n_most),
                   n_in_window = kv_windowed_pages(space->window, plan->step_rows, plan->n_most);
    struct kv_amount most = {0};
    for (uint32_t l = 0; l < space->n_layers; l++)
        most.pages += kv_has_window(space, l) ? n_in_window : n_pages;
    return most;
}

/* Gives layers with a window pages for another step beyond their rows, and at the text's beginning
 * for a whole window. */
struct kv_lengths kv_full_lengths(const struct kv_sequence *kv, uint32_t n_before,
                                  uint64_t n_tokens) {
    const uint64_t end = (uint64_t)max_u32(n_before, kv->space->window) + kv->plan.step_rows;
    return (struct kv_lengths){.windowed = (uint32_t)kv_n_pages(min_u64(n_tokens, end)),
                               .others = (uint32_t)kv_n_pages(n_tokens)};
}

struct kv_amount kv_full_missing(const struct kv_sequence *kv, uint64_t n_tokens) {
    const struct kv_lengths lengths = kv_full_lengths(kv, kv->n_tokens, n_tokens);
    return (struct kv_amount){.pages = kv_lists_missing(kv, lengths)};
}

/* Makes capacity for n_pages pages in every list and as many blocks. */
static int grow_lists(struct kv_sequence *kv, uint32_t n_pages) {
    int code = kv_lists_grow(kv, n_pages);
    if (code || !kv->space->cache || n_pages <= kv->block_capacity) return code;
    uint32_t capacity = kv_grown(kv->block_capacity, n_pages);
    uint32_t *blocks = realloc(kv->blocks, capacity * sizeof(*blocks));
    if (blocks) kv->blocks = blocks;
    uint64_t *hashes = realloc(kv->hashes, capacity * sizeof(*hashes));
    if (hashes) kv->hashes = hashes;
    if (!blocks || !hashes) return ERR_NOMEM;
    kv->block_capacity = capacity;
    return 0;
}

static void hash_blocks(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_blocks) {
    for (uint32_t i = kv->n_hashes; i < n_blocks; i++) {
        uint64_t chain = i ? kv->hashes[i - 1] : kv->salt;
        kv->hashes[i] =
            prefix_cache_hash(kv->space->cache, chain, tokens + (size_t)i * PAGE_TOKENS);
    }
    if (n_blocks > kv->n_hashes) kv->n_hashes = n_blocks;
}

int kv_full_prepare(struct kv_sequence *kv, const uint32_t *prompt) {
    const uint32_t n_tokens = kv->plan.n_prompt;
    int code = grow_lists(kv, (uint32_t)kv_n_pages(n_tokens));
    if (code) return code;
    if (kv->space->cache) hash_blocks(kv, prompt, n_tokens / PAGE_TOKENS);
    return 0;
}

/* Compares the hashes of the first block that `other` has not inserted.  They are chained, so if
 * they are equal, all blocks up to it are. */
bool kv_full_worth_waiting(const struct kv_sequence *kv, const struct kv_sequence *other) {
    uint32_t next = other->n_blocks;
    if (next >= other->n_hashes || next >= kv->n_hashes) return false;
    return kv->hashes[next] == other->hashes[next];
}

static uint32_t last_block(const struct kv_sequence *kv) {
    return kv->n_blocks ? kv->blocks[kv->n_blocks - 1] : PREFIX_NONE;
}

static bool needs_window(const struct kv_sequence *kv, uint32_t block) {
    return block >= kv->n_far;
}

/* Blocks of the text that are in the cache, and how many of them have all that the next row
 * needs. */
struct found {
    uint32_t n_named, n_enough;
};

static struct found find_blocks(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_max) {
    const struct prefix_cache *cache = kv->space->cache;
    struct found found = {0};
    uint32_t dropped_end = 0, parent = PREFIX_NONE;
    if (!cache) return found;
    for (uint32_t i = 0; i < n_max / PAGE_TOKENS && i < kv->n_hashes; i++) {
        const uint32_t *block_tokens = tokens + (size_t)i * PAGE_TOKENS;
        parent = prefix_cache_find(cache, parent, kv->salt, kv->hashes[i], block_tokens);
        if (parent == PREFIX_NONE) break;
        kv->blocks[i] = parent;
        found.n_named = i + 1;
        if (prefix_cache_window_dropped(cache, parent)) dropped_end = i + 1;
        if (dropped_end <= kv_full_n_behind(kv->space, (i + 1) * PAGE_TOKENS))
            found.n_enough = i + 1;
    }
    return found;
}

static void match_block(struct kv_sequence *kv, uint32_t i) {
    struct prefix_cache *cache = kv->space->cache;
    const uint32_t *pages = prefix_cache_pages(cache, kv->blocks[i]);
    prefix_cache_use(cache, kv->blocks[i], needs_window(kv, i));
    if (prefix_cache_is_stored(cache, kv->blocks[i])) return; /* and so are all behind it */
    for (uint32_t l = 0; l < kv->space->n_layers; l++) {
        if (!needs_window(kv, i) && kv_has_window(kv->space, l)) continue;
        page_pool_share(kv->space->pool, &pages[l], 1);
        kv->layers[l].pages[kv->layers[l].n++] = pages[l];
    }
}

uint32_t kv_full_match(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_max) {
    assert(kv->n_tokens == 0 && kv->n_blocks == 0);
    const struct found found = find_blocks(kv, tokens, n_max);
    const bool swapped = kv_swap_match(kv, found.n_named, found.n_enough * PAGE_TOKENS);
    /* A swapped sequence gets its window pages from the host pool, and the rest from blocks. */
    const uint32_t n_tokens = swapped ? kv->swap.n_tokens : found.n_enough * PAGE_TOKENS,
                   n_expired = swapped ? kv->swap.n_expired : kv_full_n_behind(kv->space, n_tokens);
    const uint32_t n = swapped ? min_u32(found.n_named, n_tokens / PAGE_TOKENS) : found.n_enough;
    kv_lists_begin(kv, n_expired);
    kv->n_far = swapped ? max_u32(n, n_expired) : n_expired;
    for (uint32_t i = 0; i < n; i++) match_block(kv, i);
    kv->n_blocks = n;
    kv->n_tokens = kv->n_found = n_tokens;
    return n_tokens;
}

int kv_full_reserve(struct kv_sequence *kv, uint32_t n_tokens) {
    const struct kv_lengths lengths = kv_full_lengths(kv, kv->n_tokens, n_tokens);
    int code = grow_lists(kv, lengths.others);
    return code ? code : kv_lists_take(kv, lengths);
}

uint32_t kv_full_max_rows(const struct kv_sequence *kv) {
    (void)kv;
    return UINT32_MAX;
}

void kv_full_view(struct kv_sequence *kv, uint32_t n_rows, struct step_seq *seq) {
    assert(kv_n_pages((uint64_t)kv->n_tokens + n_rows) <= kv->layers[0].n);
    *seq = (struct step_seq){.n_rows = n_rows, .layers = kv->views, .n_before = kv->n_tokens};
    for (uint32_t l = 0; l < kv->space->n_layers; l++)
        kv->views[l] = (struct kv_view){kv->layers[l].pages, kv->n_tokens + n_rows, kv->n_tokens};
}

void kv_full_commit(struct kv_sequence *kv, uint32_t n_rows) {
    kv->n_tokens += n_rows;
}

int kv_full_submitted(struct kv_sequence *kv, const struct layer_slice *slice, struct error *err) {
    (void)kv, (void)slice, (void)err;
    return 0;
}

/* Returns how many of the first n_tokens tokens other sequences may use. */
static uint32_t n_shareable(const struct kv_sequence *kv, uint32_t n_tokens) {
    const uint32_t n_prompt = kv->plan.n_prompt;
    return kv->space->batch_invariant && n_tokens > n_prompt ? n_prompt : n_tokens;
}

void kv_full_insert(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_tokens) {
    struct prefix_cache *cache = kv->space->cache;
    uint32_t n_blocks = n_shareable(kv, n_tokens) / PAGE_TOKENS;
    if (!cache || n_blocks <= kv->n_blocks) return;
    hash_blocks(kv, tokens, n_blocks);
    struct page_list *layers = kv->layers;
    for (uint32_t i = kv->n_blocks; i < n_blocks; i++) {
        const uint32_t block =
            prefix_cache_insert(cache, last_block(kv), kv->salt, kv->hashes[i],
                                tokens + (size_t)i * PAGE_TOKENS, layers, i, needs_window(kv, i));
        if (block == PREFIX_NONE) return;
        kv->blocks[i] = block;
        kv->n_blocks = i + 1;
    }
}

void kv_full_give_back(struct kv_sequence *kv, uint32_t n_tokens, uint32_t n_inserted) {
    uint32_t n = kv_full_n_behind(kv->space, n_tokens);
    if (n <= kv->n_expired) return;
    if (kv->space->cache && kv->n_blocks < n_inserted / PAGE_TOKENS &&
        kv_n_available(kv->space) >= kv_full_most(kv->space, &kv->plan).pages)
        n = min_u32(n, kv->n_blocks);
    for (uint32_t i = kv->n_far; i < n && i < kv->n_blocks; i++)
        prefix_cache_expire(kv->space->cache, kv->blocks[i]);
    if (n > kv->n_expired) kv_lists_expire(kv, n);
    kv->n_far = max_u32(kv->n_far, kv->n_expired);
}

void kv_full_on_done(struct kv_sequence *kv, uint32_t n_tokens) {
    kv_full_give_back(kv, n_tokens, UINT32_MAX);
}

uint32_t kv_full_n_resident(const struct kv_sequence *kv, uint32_t n_tokens) {
    (void)kv;
    return n_tokens;
}

/* Stops using the blocks, children first, so that they grow old before their parents
 * (prefix_cache.h).  Gives all pages back. */
void kv_full_let_go(struct kv_sequence *kv) {
    while (kv->n_blocks > 0) {
        const uint32_t i = --kv->n_blocks;
        prefix_cache_unuse(kv->space->cache, kv->blocks[i], needs_window(kv, i));
    }
    kv_lists_trim(kv, 0);
    kv->n_tokens = kv->n_found = kv->n_far = 0;
}

void kv_full_release(struct kv_sequence *kv) {
    kv_full_let_go(kv);
    kv_swap_drop(kv->space, &kv->swap);
}

/* Suspends the sequence; what is neither in the host pool nor in the cache can be computed
 * again. */
static int kv_full_suspend(struct kv_sequence *kv, struct error *err) {
    const int code = kv_swap_out(kv, err);
    kv_full_let_go(kv);
    return code;
}

int kv_full_resume(struct kv_sequence *kv, struct error *err) {
    int code = 0;
    for (uint32_t i = 0; i < kv->n_blocks && !code; i++)
        if (prefix_cache_is_stored(kv->space->cache, kv->blocks[i]))
            code = prefix_cache_bring_back(kv->space->cache, kv->blocks[i], kv->layers, i,
                                           needs_window(kv, i), err);
    kv_lists_cover(kv);
    return code ? code : kv_swap_in(kv, err);
}

const struct kv_policy_ops kv_policy_full = {
    .name = "full",
    .grows = true,
    .most = kv_full_most,
    .missing = kv_full_missing,
    .prepare = kv_full_prepare,
    .worth_waiting = kv_full_worth_waiting,
    .match = kv_full_match,
    .reserve = kv_full_reserve,
    .max_rows = kv_full_max_rows,
    .view = kv_full_view,
    .commit = kv_full_commit,
    .submitted = kv_full_submitted,
    .insert = kv_full_insert,
    .on_done = kv_full_on_done,
    .n_resident = kv_full_n_resident,
    .suspend = kv_full_suspend,
    .resume = kv_full_resume,
    .release = kv_full_release,
};
