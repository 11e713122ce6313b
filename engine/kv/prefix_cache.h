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
 * Thread: engine.  Memory: allocates at create, never afterwards; the cache holds one reference to
 * each page. */
#ifndef ENGINE_KV_PREFIX_CACHE_H
#define ENGINE_KV_PREFIX_CACHE_H

#include <stdint.h>

struct error;
struct page_list;
struct page_pool;
struct prefix_cache; /* opaque: the fields live in prefix_cache.c */

#define PREFIX_NONE UINT32_MAX /* no block: a root's parent, or not found */

/* The pool is borrowed. */
int prefix_cache_create(struct prefix_cache **out, struct page_pool *pool, uint32_t n_layers,
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
 * block that is now the one to find, used once by the caller.  A parent must be in use. */
uint32_t prefix_cache_publish(struct prefix_cache *cache, uint32_t parent, uint64_t salt,
                              uint64_t hash, const uint32_t *tokens, const struct page_list *layers,
                              uint32_t index);

/* A block in use is never evicted.  Use parents first, stop using them last. */
void prefix_cache_use(struct prefix_cache *cache, uint32_t block);
void prefix_cache_unuse(struct prefix_cache *cache, uint32_t block);
/* The block's page in every layer, [n_layers]. */
const uint32_t *prefix_cache_pages(const struct prefix_cache *cache, uint32_t block);

/* Gives pages of unused blocks back to the pool, least recently used first, until at least n_pages
 * are free there or nothing more can go. */
void prefix_cache_evict(struct prefix_cache *cache, uint32_t n_pages);
uint32_t prefix_cache_n_blocks(const struct prefix_cache *cache);
uint32_t prefix_cache_n_idle_pages(const struct prefix_cache *cache); /* what evict could give */

#endif
