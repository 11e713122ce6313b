/* sequence_prefix.c - see sequence_prefix.h.
 *
 * A sequence that comes back from the host pool has its own pages in layers with a window.  It
 * needs no window pages of the blocks that it finds. */
#include "engine/kv/sequence_prefix.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/host_pool.h"
#include "engine/kv/checkpoints.h"
#include "engine/kv/kind.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/lists.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_cache.h"

enum { MOST_TOKEN_BLOCKS = 64 }; /* that are copied together */

/* Tells whether the sequence needs token blocks of its blocks, and no sparse pages. */
static bool uses_token_blocks(const struct kv_sequence *kv) {
    return kv_plan_moves(&kv->plan);
}

/* Returns how many of the text's first tokens may be shared.  A prompt's last token that is
 * computed like a generated one is not what others would have.  What the host pool has is shared
 * only if nothing was lost on the way there. */
static uint32_t n_shareable(const struct kv_sequence *kv) {
    enum kv_sharing least = kv->space->batch_invariant ? KV_SHARES_PROMPT : KV_SHARES_TEXT;
    for (const struct kv_kind *const *kind = kv->plan.kinds->all; *kind; kind++)
        if ((*kind)->sharing > least) least = (*kind)->sharing;
    if (!kv->space->cache || least >= KV_SHARES_STATES) return 0;
    if (uses_token_blocks(kv) && !host_pool_is_exact(kv->space->io.host)) return 0;
    return least == KV_SHARES_PROMPT ? kv_plan_together(&kv->plan) : UINT32_MAX;
}

int sequence_prefix_grow(struct kv_sequence *kv, uint32_t n_tokens) {
    const uint32_t n_blocks = (uint32_t)kv_n_pages(n_tokens);
    if (n_blocks <= kv->prefix.capacity || n_shareable(kv) == 0) return 0;
    uint32_t capacity = kv_grown(kv->prefix.capacity, n_blocks);
    uint32_t *blocks = realloc(kv->prefix.blocks, capacity * sizeof(*blocks));
    if (blocks) kv->prefix.blocks = blocks;
    uint64_t *hashes = realloc(kv->prefix.hashes, capacity * sizeof(*hashes));
    if (hashes) kv->prefix.hashes = hashes;
    if (!blocks || !hashes) return ERR_NOMEM;
    kv->prefix.capacity = capacity;
    return 0;
}

static void hash_blocks(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_blocks) {
    for (uint32_t i = kv->prefix.n_hashes; i < n_blocks; i++) {
        uint64_t chain = i ? kv->prefix.hashes[i - 1] : kv->salt;
        kv->prefix.hashes[i] =
            prefix_cache_hash(kv->space->cache, chain, tokens + (size_t)i * PAGE_TOKENS);
    }
    if (n_blocks > kv->prefix.n_hashes) kv->prefix.n_hashes = n_blocks;
}

int sequence_prefix_prepare(struct kv_sequence *kv, const uint32_t *prompt) {
    const uint32_t n_tokens = kv->plan.n_prompt;
    const int code = sequence_prefix_grow(kv, n_tokens);
    if (!code) hash_blocks(kv, prompt, min_u32(n_tokens, n_shareable(kv)) / PAGE_TOKENS);
    return code;
}

/* Compares the hashes of the first block that `other` has not inserted.  They are chained, so if
 * they are equal, all blocks up to it are. */
bool sequence_prefix_is_coming(const struct kv_sequence *kv, const struct kv_sequence *other) {
    uint32_t next = other->prefix.n_blocks;
    if (next >= other->prefix.n_hashes || next >= kv->prefix.n_hashes) return false;
    return kv->prefix.hashes[next] == other->prefix.hashes[next];
}

static uint32_t last_block(const struct kv_sequence *kv) {
    return kv->prefix.n_blocks ? kv->prefix.blocks[kv->prefix.n_blocks - 1] : PREFIX_NONE;
}

static uint32_t needs_of(const struct kv_sequence *kv, uint32_t block) {
    return (block >= kv->prefix.n_without_window ? PREFIX_WINDOW : 0) |
           (uses_token_blocks(kv) ? 0 : PREFIX_SPARSE);
}

/* Tells whether the block has its tokens of sparse layers where the sequence can use them.  A
 * layer-major prompt has no pages for them in its lists, nor for the window of a prefix. */
static bool has_sparse(const struct kv_sequence *kv, uint32_t block) {
    const struct prefix_cache *cache = kv->space->cache;
    const bool has_token_block = prefix_cache_token_block(cache, block) != KV_NO_PAGE;
    if (kv->plan.layer_major) return has_token_block && kv->space->window == 0;
    return has_token_block || !prefix_cache_sparse_dropped(cache, block);
}

/* Tells whether a sequence can begin behind the block: recurrent layers need their state there. */
static bool has_state(const struct kv_sequence *kv, uint32_t block) {
    return !kv->space->state_slots ||
           prefix_cache_checkpoint(kv->space->cache, block) != CHECKPOINT_NONE;
}

/* Blocks of the text that are in the cache; how many of them have what is needed in sparse layers,
 * and how many have all that the next row needs. */
struct found {
    uint32_t n_named, n_sparse, n_enough;
};

static struct found find_blocks(const struct kv_sequence *kv, const uint32_t *tokens,
                                uint32_t n_max, uint32_t *blocks) {
    const struct prefix_cache *cache = kv->space->cache;
    struct found found = {0};
    uint32_t dropped_end = 0, parent = PREFIX_NONE;
    for (uint32_t i = 0; i < n_max / PAGE_TOKENS && i < kv->prefix.n_hashes; i++) {
        const uint32_t *block_tokens = tokens + (size_t)i * PAGE_TOKENS;
        parent = prefix_cache_find(cache, parent, kv->salt, kv->prefix.hashes[i], block_tokens);
        if (parent == PREFIX_NONE) break;
        if (blocks) blocks[i] = parent;
        found.n_named = i + 1;
        if (found.n_sparse == i && has_sparse(kv, parent)) found.n_sparse = i + 1;
        if (prefix_cache_window_dropped(cache, parent)) dropped_end = i + 1;
        if (found.n_sparse > i && has_state(kv, parent) &&
            dropped_end <= kv_window_n_behind(kv->space, (i + 1) * PAGE_TOKENS))
            found.n_enough = i + 1;
    }
    return found;
}

/* Prefers swapped data if they have more than the cache alone.  A swapped sequence gets its window
 * pages from the host pool, and the rest from blocks.  One that moves tokens has kept its own host
 * blocks, and needs no token blocks. */
static struct prefix_match find(const struct kv_sequence *kv, const uint32_t *tokens,
                                uint32_t n_max, uint32_t *blocks) {
    const struct found found = find_blocks(kv, tokens, n_max, blocks);
    const uint32_t n_tokens = found.n_enough * PAGE_TOKENS, n_swapped = kv_swap_n_tokens(kv),
                   n_usable = uses_token_blocks(kv) ? found.n_named : found.n_sparse;
    if (n_swapped <= n_tokens || n_usable < kv_swap_n_shared(kv))
        return (struct prefix_match){.n_blocks = found.n_enough,
                                     .n_tokens = n_tokens,
                                     .n_cached = found.n_named * PAGE_TOKENS};
    return (struct prefix_match){.n_blocks = min_u32(n_usable, n_swapped / PAGE_TOKENS),
                                 .n_tokens = n_swapped,
                                 .is_swapped = true};
}

struct prefix_match sequence_prefix_find(const struct kv_sequence *kv, const uint32_t *tokens,
                                         uint32_t n_max) {
    return find(kv, tokens, n_max, NULL);
}

struct prefix_match sequence_prefix_match(struct kv_sequence *kv, const uint32_t *tokens,
                                          uint32_t n_max) {
    assert(kv->prefix.n_blocks == 0);
    return find(kv, tokens, n_max, kv->prefix.blocks);
}

/* Tells whether the block's sparse pages, as far as it has any, become the sequence's, too.  Those
 * that another sequence needs cannot: a sequence that moves tokens will write to its pages. */
static bool shares_sparse(const struct kv_sequence *kv, uint32_t block) {
    const struct prefix_cache *cache = kv->space->cache;
    return !prefix_cache_sparse_dropped(cache, block) &&
           (!uses_token_blocks(kv) || prefix_cache_n_sparse_users(cache, block) == 0);
}

static void share_page(const struct kv_space *space, struct page_list *list, uint32_t page) {
    if (page != KV_NO_PAGE) page_pool_share(space->pool, &page, 1);
    list->pages[list->n++] = page;
}

static void use_block(struct kv_sequence *kv, uint32_t i) {
    const struct kv_space *space = kv->space;
    struct prefix_cache *cache = space->cache;
    const uint32_t *pages = prefix_cache_pages(cache, kv->prefix.blocks[i]),
                   needs = needs_of(kv, i);
    prefix_cache_use(cache, kv->prefix.blocks[i], needs);
    if (prefix_cache_is_offloaded(cache, kv->prefix.blocks[i]))
        return; /* and so are all behind it */
    const bool shares = shares_sparse(kv, kv->prefix.blocks[i]);
    if (!shares && !selection_left_text(kv) && space->n_groups > 0) kv->n_holes++;
    for (uint32_t l = 0; l < space->n_layers; l++) {
        const enum kv_role role = kv_role_of(space, &kv->plan, l);
        if (role == KV_WINDOWED && !(needs & PREFIX_WINDOW)) continue;
        if (role == KV_SPARSE && selection_left_text(kv)) continue;
        const bool is_hole = role == KV_SPARSE && !shares;
        share_page(space, &kv->layers[l], is_hole ? KV_NO_PAGE : pages[l]);
    }
}

void sequence_prefix_use(struct kv_sequence *kv, const struct prefix_match *match) {
    const uint32_t n = match->n_blocks,
                   n_expired =
                       match->is_swapped
                           ? kv_swap_n_expired(kv)
                           : max_u32(kv->n_expired, kv_window_n_behind(kv->space, match->n_tokens));
    kv_lists_begin(kv, n_expired);
    kv->prefix.n_without_window = match->is_swapped ? max_u32(n, n_expired) : n_expired;
    for (uint32_t i = 0; i < n; i++) use_block(kv, i);
    kv->prefix.n_blocks = n;
}

static uint32_t token_block_of(const struct kv_sequence *kv, uint32_t block) {
    return uses_token_blocks(kv) ? selection_token_block(kv, block) : KV_NO_PAGE;
}

void sequence_prefix_insert(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_tokens) {
    struct prefix_cache *cache = kv->space->cache;
    const uint32_t n_blocks = min_u32(n_tokens, n_shareable(kv)) / PAGE_TOKENS;
    if (n_blocks <= kv->prefix.n_blocks) return;
    hash_blocks(kv, tokens, n_blocks);
    for (uint32_t i = kv->prefix.n_blocks; i < n_blocks; i++) {
        const uint32_t block = prefix_cache_insert(
            cache, last_block(kv), kv->salt, kv->prefix.hashes[i], tokens + (size_t)i * PAGE_TOKENS,
            kv->layers, i, needs_of(kv, i), token_block_of(kv, i));
        if (block == PREFIX_NONE) return;
        kv->prefix.blocks[i] = block;
        kv->prefix.n_blocks = i + 1;
    }
}

bool sequence_prefix_is_shared(const struct kv_sequence *kv) {
    return n_shareable(kv) > 0;
}

bool sequence_prefix_is_growing(const struct kv_sequence *kv) {
    return kv->prefix.n_blocks < n_shareable(kv) / PAGE_TOKENS;
}

void sequence_prefix_expire(struct kv_sequence *kv, uint32_t n) {
    for (uint32_t i = kv->prefix.n_without_window; i < n && i < kv->prefix.n_blocks; i++)
        prefix_cache_expire(kv->space->cache, kv->prefix.blocks[i]);
    kv->prefix.n_without_window = max_u32(kv->prefix.n_without_window, n);
}

/* Brings blocks back from their places in the host pool.  A sequence with pages of its own for
 * sparse layers lends these to the block. */
static int bring_back(struct kv_sequence *kv, struct error *err) {
    struct prefix_cache *cache = kv->space->cache;
    int code = 0;
    for (uint32_t i = 0; i < kv->prefix.n_blocks && !code; i++) {
        const uint32_t needs = needs_of(kv, i) | (selection_left_text(kv) ? 0 : PREFIX_SPARSE);
        if (prefix_cache_is_offloaded(cache, kv->prefix.blocks[i]))
            code = prefix_cache_reload(cache, kv->prefix.blocks[i], kv->layers, i, needs, err);
    }
    return code;
}

/* Tells whether block i has no sparse pages yet, but its token block. */
static bool has_only_token_block(const struct kv_sequence *kv, uint32_t i) {
    return i < kv->prefix.n_blocks &&
           prefix_cache_sparse_dropped(kv->space->cache, kv->prefix.blocks[i]);
}

/* Copies the token blocks of n blocks from block `first` on into the pages of sparse layers. */
static int copy_token_blocks(const struct kv_sequence *kv, uint32_t first, uint32_t n,
                             struct error *err) {
    const struct kv_space *space = kv->space;
    uint32_t token_blocks[MOST_TOKEN_BLOCKS], host_layer = 0;
    int code = 0;
    for (uint32_t i = 0; i < n; i++)
        token_blocks[i] = prefix_cache_token_block(space->cache, kv->prefix.blocks[first + i]);
    for (uint32_t l = 0; (l = kv_next_sparse(space, l)) < space->n_layers && !code; l++)
        code = page_io_reload(&space->io, host_layer++, kv->layers[l].pages + first, token_blocks,
                              n, err);
    return code;
}

/* Reloads blocks that have a token block only, as far as their sparse pages are needed. */
static int fill_sparse_pages(struct kv_sequence *kv, struct error *err) {
    int code = 0;
    for (uint32_t i = 0, n; i < kv->prefix.n_blocks && !code; i += n) {
        for (n = 0; n < MOST_TOKEN_BLOCKS && has_only_token_block(kv, i + n);) n++;
        if (n > 0) code = copy_token_blocks(kv, i, n, err);
        for (uint32_t k = i; k < i + n; k++)
            prefix_cache_hold_sparse(kv->space->cache, kv->prefix.blocks[k], kv->layers, k);
        n = max_u32(n, 1);
    }
    return code;
}

int sequence_prefix_resume(struct kv_sequence *kv, struct error *err) {
    const int code = bring_back(kv, err);
    return code || uses_token_blocks(kv) ? code : fill_sparse_pages(kv, err);
}

/* Begins with children, so that they grow old before their parents (prefix_cache.h). */
void sequence_prefix_release(struct kv_sequence *kv) {
    while (kv->prefix.n_blocks > 0) {
        const uint32_t i = --kv->prefix.n_blocks;
        prefix_cache_unuse(kv->space->cache, kv->prefix.blocks[i], needs_of(kv, i));
    }
    kv->prefix.n_without_window = 0;
}

void sequence_prefix_fini(struct kv_sequence *kv) {
    free(kv->prefix.hashes);
    free(kv->prefix.blocks);
}

uint32_t sequence_prefix_n_blocks(const struct kv_sequence *kv) {
    return kv->prefix.n_blocks;
}

uint32_t sequence_prefix_block(const struct kv_sequence *kv, uint32_t i) {
    assert(i < kv->prefix.n_blocks);
    return kv->prefix.blocks[i];
}

uint32_t sequence_prefix_n_shared(const struct kv_sequence *kv) {
    const struct sequence_prefix *prefix = &kv->prefix;
    uint32_t n = 0;
    while (n < prefix->n_blocks && prefix_cache_n_users(kv->space->cache, prefix->blocks[n]) > 1)
        n++;
    return n;
}

uint32_t sequence_prefix_n_hashes(const struct kv_sequence *kv) {
    return kv->prefix.n_hashes;
}

uint64_t sequence_prefix_hash(const struct kv_sequence *kv, uint32_t i) {
    return kv->prefix.hashes[i];
}
