/* sequence_prefix.c - see sequence_prefix.h.
 *
 * A sequence that comes back from the host pool has its own pages in layers with a window.  It
 * needs no window pages of the blocks that it finds. */
#include "engine/kv/sequence_prefix.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/kv/kind.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/lists.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_cache.h"

/* Returns how many of the text's first tokens may be shared. */
static uint32_t n_shareable(const struct kv_sequence *kv) {
    enum kv_sharing least = kv->space->batch_invariant ? KV_SHARES_PROMPT : KV_SHARES_TEXT;
    for (const struct kv_kind *const *kind = kv->plan.kinds->all; *kind; kind++)
        if ((*kind)->sharing > least) least = (*kind)->sharing;
    if (!kv->space->cache || least >= KV_SHARES_STATES) return 0;
    return least == KV_SHARES_PROMPT ? kv->plan.n_prompt : UINT32_MAX;
}

int sequence_prefix_grow(struct kv_sequence *kv, uint32_t n_tokens) {
    const uint32_t n_blocks = (uint32_t)kv_n_pages(n_tokens);
    if (n_blocks <= kv->block_capacity || n_shareable(kv) == 0) return 0;
    uint32_t capacity = kv_grown(kv->block_capacity, n_blocks);
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

int sequence_prefix_prepare(struct kv_sequence *kv, const uint32_t *prompt) {
    const uint32_t n_tokens = kv->plan.n_prompt;
    const int code = sequence_prefix_grow(kv, n_tokens);
    if (!code && n_shareable(kv) > 0) hash_blocks(kv, prompt, n_tokens / PAGE_TOKENS);
    return code;
}

/* Compares the hashes of the first block that `other` has not inserted.  They are chained, so if
 * they are equal, all blocks up to it are. */
bool sequence_prefix_is_coming(const struct kv_sequence *kv, const struct kv_sequence *other) {
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

static struct found find_blocks(const struct kv_sequence *kv, const uint32_t *tokens,
                                uint32_t n_max, uint32_t *blocks) {
    const struct prefix_cache *cache = kv->space->cache;
    struct found found = {0};
    uint32_t dropped_end = 0, parent = PREFIX_NONE;
    for (uint32_t i = 0; i < n_max / PAGE_TOKENS && i < kv->n_hashes; i++) {
        const uint32_t *block_tokens = tokens + (size_t)i * PAGE_TOKENS;
        parent = prefix_cache_find(cache, parent, kv->salt, kv->hashes[i], block_tokens);
        if (parent == PREFIX_NONE) break;
        if (blocks) blocks[i] = parent;
        found.n_named = i + 1;
        if (prefix_cache_window_dropped(cache, parent)) dropped_end = i + 1;
        if (dropped_end <= kv_window_n_behind(kv->space, (i + 1) * PAGE_TOKENS))
            found.n_enough = i + 1;
    }
    return found;
}

/* Prefers swapped data if they have more than the cache alone.  A swapped sequence gets its window
 * pages from the host pool, and the rest from blocks. */
struct prefix_match sequence_prefix_find(const struct kv_sequence *kv, const uint32_t *tokens,
                                         uint32_t n_max, uint32_t *blocks) {
    const struct found found = find_blocks(kv, tokens, n_max, blocks);
    const uint32_t n_tokens = found.n_enough * PAGE_TOKENS, n_swapped = kv->swap.n_tokens;
    if (n_swapped <= n_tokens || found.n_named < kv->swap.n_shared)
        return (struct prefix_match){.n_blocks = found.n_enough, .n_tokens = n_tokens};
    return (struct prefix_match){.n_blocks = min_u32(found.n_named, n_swapped / PAGE_TOKENS),
                                 .n_tokens = n_swapped,
                                 .is_swapped = true};
}

static void use_block(struct kv_sequence *kv, uint32_t i) {
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

void sequence_prefix_use(struct kv_sequence *kv, const struct prefix_match *match) {
    const uint32_t n = match->n_blocks,
                   n_expired =
                       match->is_swapped
                           ? kv->swap.n_expired
                           : max_u32(kv->n_expired, kv_window_n_behind(kv->space, match->n_tokens));
    kv_lists_begin(kv, n_expired);
    kv->n_far = match->is_swapped ? max_u32(n, n_expired) : n_expired;
    for (uint32_t i = 0; i < n; i++) use_block(kv, i);
    kv->n_blocks = n;
}

void sequence_prefix_insert(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_tokens) {
    struct prefix_cache *cache = kv->space->cache;
    const uint32_t n_blocks = min_u32(n_tokens, n_shareable(kv)) / PAGE_TOKENS;
    if (n_blocks <= kv->n_blocks) return;
    hash_blocks(kv, tokens, n_blocks);
    for (uint32_t i = kv->n_blocks; i < n_blocks; i++) {
        const uint32_t block = prefix_cache_insert(cache, last_block(kv), kv->salt, kv->hashes[i],
                                                   tokens + (size_t)i * PAGE_TOKENS, kv->layers, i,
                                                   needs_window(kv, i));
        if (block == PREFIX_NONE) return;
        kv->blocks[i] = block;
        kv->n_blocks = i + 1;
    }
}

bool sequence_prefix_is_growing(const struct kv_sequence *kv) {
    return kv->n_blocks < n_shareable(kv) / PAGE_TOKENS;
}

void sequence_prefix_expire(struct kv_sequence *kv, uint32_t n) {
    for (uint32_t i = kv->n_far; i < n && i < kv->n_blocks; i++)
        prefix_cache_expire(kv->space->cache, kv->blocks[i]);
    kv->n_far = max_u32(kv->n_far, n);
}

int sequence_prefix_resume(struct kv_sequence *kv, struct error *err) {
    int code = 0;
    for (uint32_t i = 0; i < kv->n_blocks && !code; i++)
        if (prefix_cache_is_stored(kv->space->cache, kv->blocks[i]))
            code = prefix_cache_bring_back(kv->space->cache, kv->blocks[i], kv->layers, i,
                                           needs_window(kv, i), err);
    return code;
}

/* Begins with children, so that they grow old before their parents (prefix_cache.h). */
void sequence_prefix_release(struct kv_sequence *kv) {
    while (kv->n_blocks > 0) {
        const uint32_t i = --kv->n_blocks;
        prefix_cache_unuse(kv->space->cache, kv->blocks[i], needs_window(kv, i));
    }
    kv->n_far = 0;
}
