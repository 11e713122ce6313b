/* prefix_cache.h - finished blocks of KV cache, found again by the tokens that made them.
 *
 *   salt 7: root ── "You are a helpful…" ── "…assistant. Today" ── …   a block = PAGE_TOKENS tokens
 *                └─ "Translate this…"                                   and one page in every layer
 *
 * Blocks form trees: a block's name is its parent and its own tokens, and, at a root, the salt.  A
 * keyed hash finds the candidates, but tokens and parent are compared on every hit.  So a collision
 * costs time and cannot show one request another's cache.
 *
 * A sequence that uses a block uses its parents, too, and stops using them after it.  So among
 * unused blocks a child is always older than its parent.  Evicting the least recently used one
 * never leaves a child without its parent.
 *
 * Where layers have windows, a sequence soon needs only the names of its oldest blocks, and their
 * pages in the other layers.  When pages are short a block drops those in layers with a window (its
 * window pages) if no sequence needs them.  It is still found by its name, but only a sequence that
 * does not need these pages can use it.
 *
 *   blocks      [  d  ][  d  ][  d  ][  .  ][  .  ]   next token; d: window dropped
 *   no window   [  7  ][  4  ][  9  ][  3  ][  8  ]
 *   a window                         [  1  ][  6  ]   all that the next token sees
 *
 * With a host pool (host_copy.h) an evicted block moves there if there is space; the blocks that
 * have been there longest are dropped for it.  It is found as before, without window pages if it
 * had none.  The sequence that uses it next brings it back.  The parent of a block with pages has
 * pages, too.
 *
 * Thread: engine.  Memory: allocates at create, never afterwards; the cache holds one reference to
 * each page. */
#ifndef ENGINE_KV_PREFIX_CACHE_H
#define ENGINE_KV_PREFIX_CACHE_H

#include <stdbool.h>
#include <stdint.h>

struct error;
struct kv_space;
struct page_list;
struct prefix_cache; /* opaque: the fields live in prefix_cache.c */

#define PREFIX_NONE UINT32_MAX /* no block: a root's parent, or not found */

/* Creates an empty cache for the space, which is borrowed and complete but for its `cache`. */
int prefix_cache_create(struct prefix_cache **out, const struct kv_space *space, struct error *err);
void prefix_cache_destroy(struct prefix_cache *cache); /* NULL is allowed */

/* Returns the hash of a block of PAGE_TOKENS tokens: chain is its parent's hash, or the salt for a
 * first block. */
uint64_t prefix_cache_hash(const struct prefix_cache *cache, uint64_t chain,
                           const uint32_t *tokens);

/* Returns the block with this parent and these tokens, or PREFIX_NONE. */
uint32_t prefix_cache_find(const struct prefix_cache *cache, uint32_t parent, uint64_t salt,
                           uint64_t hash, const uint32_t *tokens);
/* Inserts page number `index` of every layer's list as a block, unless it exists already.  Returns
 * the block that is found by this name from now on, used once by the caller.  A parent must be in
 * use.  Without needs_window, lists of layers with a window have no such page.  PREFIX_NONE: there
 * is no entry left, which can happen only where all layers have windows. */
uint32_t prefix_cache_insert(struct prefix_cache *cache, uint32_t parent, uint64_t salt,
                             uint64_t hash, const uint32_t *tokens, const struct page_list *layers,
                             uint32_t index, bool needs_window);

/* Adds a user.  A block in use is never evicted, and keeps its window pages while a user needs them
 * (needs_window).  Use parents first, stop using them last. */
void prefix_cache_use(struct prefix_cache *cache, uint32_t block, bool needs_window);
void prefix_cache_unuse(struct prefix_cache *cache, uint32_t block, bool needs_window);
uint32_t prefix_cache_n_users(const struct prefix_cache *cache, uint32_t block);
/* Ends a user's need for the block's window pages; it still uses the block. */
void prefix_cache_expire(struct prefix_cache *cache, uint32_t block);
/* Returns the block's page in every layer, [n_layers].  Those of layers with a window are
 * meaningless if the block has dropped them. */
const uint32_t *prefix_cache_pages(const struct prefix_cache *cache, uint32_t block);
bool prefix_cache_window_dropped(const struct prefix_cache *cache, uint32_t block);
/* Returns true if the block has no pages, but is in the host pool. */
bool prefix_cache_is_stored(const struct prefix_cache *cache, uint32_t block);
/* Brings a stored block in use back into page number `index` of every layer's list.  Without
 * needs_window, layers with a window get nothing and the block's window is dropped.  ERR_DEVICE. */
int prefix_cache_bring_back(struct prefix_cache *cache, uint32_t block,
                            const struct page_list *layers, uint32_t index, bool needs_window,
                            struct error *err);

/* Gives pages back to the pool that were needed least recently; there must be some to give.  An
 * unused block is evicted whole; a used one drops window pages that no user needs.  prefix_cache_
 * oldest() returns when they were needed, UINT64_MAX if there are none. */
void prefix_cache_evict_oldest(struct prefix_cache *cache);
uint64_t prefix_cache_oldest(const struct prefix_cache *cache);
/* Returns the present moment, by which the age of blocks is told; it passes with every call. */
uint64_t prefix_cache_tick(struct prefix_cache *cache);
/* Evicts until at least n_pages are free in the pool or there are no more to give. */
void prefix_cache_evict(struct prefix_cache *cache, uint32_t n_pages);
uint32_t prefix_cache_n_blocks(const struct prefix_cache *cache);
uint32_t prefix_cache_n_idle_pages(const struct prefix_cache *cache); /* pages that evict could
                                                                         free */

/* Drops the least recently used of the unused blocks from the host pool; there must be one.
 * prefix_cache_oldest_stored() is as prefix_cache_oldest(). */
void prefix_cache_drop_oldest_stored(struct prefix_cache *cache);
uint64_t prefix_cache_oldest_stored(const struct prefix_cache *cache);
/* Returns how many pages unused blocks have in the host pool; the second, how many host blocks
 * these take. */
uint32_t prefix_cache_n_stored_pages(const struct prefix_cache *cache);
uint32_t prefix_cache_n_store_blocks(const struct prefix_cache *cache);

#endif
