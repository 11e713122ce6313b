/* prefix_cache.h - finished blocks of KV cache, found again by the tokens that made them.
 *
 *   salt 7: root ── "You are a helpful…" ── "…assistant. Today" ── …   a block = PAGE_TOKENS tokens
 *                └─ "Translate this…"                                   and one page in every layer
 *
 * Blocks form trees: a block's name is its parent and its own tokens, and, at a root, the salt.  A
 * keyed hash finds the candidates, but tokens and parent are compared on every hit, so a collision
 * costs time and cannot show one request another's cache.
 *
 * Who uses a block uses its parents, too, and stops using them after it.  So among the blocks that
 * nobody uses, a child is always older than its parent, and evicting the least recently used one
 * never leaves a child without its parent.
 *
 * Where layers have windows, a sequence soon needs only the names of its oldest blocks, and their
 * pages in the other layers.  When pages are short a block gives up those in layers with a window
 * that nobody needs, and is slim from then on: its name is found, but whoever adopts it must not
 * need them either.
 *
 *   blocks      [ slim ][ slim ][ slim ][  .  ][  .  ]   next token
 *   no window   [  7   ][  4   ][  9   ][  3  ][  8  ]
 *   a window                            [  1  ][  6  ]   all that the next token sees
 *
 * Where the store keeps pages (host_copy.h), a block that is evicted goes there if it has room, at
 * the expense of those that have been there longest, and is found as before; slim, if it is. 
 * Whoever adopts it brings it back.  The parent of a block with pages has pages, too.
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

/* The space is borrowed, and has all but the cache. */
int prefix_cache_create(struct prefix_cache **out, const struct kv_space *space,
                        struct error *err);
void prefix_cache_destroy(struct prefix_cache *cache); /* NULL is allowed */

/* The hash of a block of PAGE_TOKENS tokens: chain is its parent's hash, or the salt for a first
 * block. */
uint64_t prefix_cache_hash(const struct prefix_cache *cache, uint64_t chain,
                           const uint32_t *tokens);

/* The block with this parent and these tokens, or PREFIX_NONE. */
uint32_t prefix_cache_find(const struct prefix_cache *cache, uint32_t parent, uint64_t salt,
                           uint64_t hash, const uint32_t *tokens);
/* Files page number `index` of every layer's list as a block, unless it exists already; returns the
 * block that is now the one to find, used once by the caller.  A parent must be in use.  Not near:
 * lists of layers with a window have no such page.  PREFIX_NONE: there is no room for more names,
 * which may be where all layers have windows. */
uint32_t prefix_cache_insert(struct prefix_cache *cache, uint32_t parent, uint64_t salt,
                              uint64_t hash, const uint32_t *tokens, const struct page_list *layers,
                              uint32_t index, bool needs_window);

/* A block in use is never evicted, and not slimmed while a user needs all of its pages: is `near`.
 * Use parents first, stop using them last. */
void prefix_cache_use(struct prefix_cache *cache, uint32_t block, bool needs_window);
void prefix_cache_unuse(struct prefix_cache *cache, uint32_t block, bool needs_window);
uint32_t prefix_cache_n_users(const struct prefix_cache *cache, uint32_t block);
/* A user is near no longer. */
void prefix_cache_expire(struct prefix_cache *cache, uint32_t block);
/* The block's page in every layer, [n_layers]; where it is slim, those of layers with a window are
 * meaningless. */
const uint32_t *prefix_cache_pages(const struct prefix_cache *cache, uint32_t block);
bool prefix_cache_window_dropped(const struct prefix_cache *cache, uint32_t block);
/* It has no pages, but is in the store. */
bool prefix_cache_is_stored(const struct prefix_cache *cache, uint32_t block);
/* The block, in use, gets page number `index` of every layer's list, and they what it held.  Not
 * near: but for layers with a window, so that it is slim from then on.  ERR_DEVICE. */
int prefix_cache_bring_back(struct prefix_cache *cache, uint32_t block,
                            const struct page_list *layers, uint32_t index, bool needs_window,
                            struct error *err);

/* Gives pages back to the pool, of what was needed least recently first, until at least n_pages are
 * free there or nothing more can go: unused blocks go whole, used ones that nobody is near become
 * slim. */
void prefix_cache_evict(struct prefix_cache *cache, uint32_t n_pages);
uint32_t prefix_cache_n_blocks(const struct prefix_cache *cache);
uint32_t prefix_cache_n_idle_pages(const struct prefix_cache *cache); /* what evict could give */

/* Drops unused blocks from the store, least recently used first, until at least n_blocks of the
 * store's blocks are free or nothing more can go. */
void prefix_cache_drop_stored(struct prefix_cache *cache, uint32_t n_blocks);
/* Of unused blocks: pages there, and what they take of it. */
uint32_t prefix_cache_n_stored_pages(const struct prefix_cache *cache);
uint32_t prefix_cache_n_store_blocks(const struct prefix_cache *cache);

#endif
