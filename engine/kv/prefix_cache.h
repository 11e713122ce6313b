/* prefix_cache.h - finished blocks of KV cache, found by the tokens that they were computed from.
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
 * With a host pool (page_io.h) an evicted block moves there if there is space; the blocks that
 * have been there longest are dropped for it.  It is found as before, without window pages if it
 * had none.  The sequence that uses it next brings it back.  The parent of a block with pages has
 * pages, too.
 *
 * What a block has for sparse layers is in pages (its sparse pages), or token by token in one host
 * block (its token block; host_pool.h).  A sequence that moves tokens needs token blocks, and any
 * other one needs the pages.  A block has both only while both sorts of sequences use it.  Token
 * blocks are shared with the sequences that select from them, and are only read.
 *
 *   blocks        [     ][     ][     ][     ]
 *   not sparse    [  7  ][  4  ][  9  ][  3  ]
 *   sparse        [     ][     ][  5  ][  8  ]    the first two are used by a sequence that moves
 *   token block   [  2  ][  1  ]                  tokens, and by no other
 *
 * An unused block may lose its token block to a sequence that needs host blocks.  It is then
 * useless until a sequence computes it again, and grows old like others.
 *
 * With a tier on disk (disk/disk.h) a block is offered to it when it leaves the host pool, or the
 * device where there is none.  So is its checkpoint.  A block is not offered if all that it has for
 * sparse layers is a token block.
 *
 * A feed (kv_feed.h) is told where blocks without a salt are that a sequence with the usual policy
 * could use: on the device or in the host pool.  A block is told only while its parent is.
 *
 * Thread: engine.  Memory: allocates at create, never afterwards; the cache holds one reference to
 * each page. */
#ifndef ENGINE_KV_PREFIX_CACHE_H
#define ENGINE_KV_PREFIX_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/kv/kv_space.h"
#include "engine/kv/offer.h"

struct disk_id;
struct error;
struct page_list;
struct prefix_cache; /* opaque: the fields live in prefix_cache.c */

#define PREFIX_NONE UINT32_MAX /* no block: a root's parent, or not found */

/* The pages of a block that some sequences need and others do not, by the role of their layer. */
enum { PREFIX_WINDOW = 1u << KV_WINDOWED, PREFIX_SPARSE = 1u << KV_SPARSE };

/* Creates an empty cache, which the caller owns, for the space.  The space is borrowed, and
 * complete but for its `cache` and `states`.  ERR_NOMEM. */
int prefix_cache_create(struct prefix_cache **out, const struct kv_space *space, struct error *err);
/* Frees the cache, but releases no pages: the pool ends, too.  NULL is allowed. */
void prefix_cache_destroy(struct prefix_cache *cache);

/* Returns the hash of a block of PAGE_TOKENS tokens and all before it.  chain: its parent's hash,
 * or the salt for a text's first block. */
uint64_t prefix_cache_hash(const struct prefix_cache *cache, uint64_t chain,
                           const uint32_t *tokens);

/* Returns the block with this parent, salt, hash and PAGE_TOKENS tokens, or PREFIX_NONE.  parent
 * PREFIX_NONE: a text's first block.  Does not use it. */
uint32_t prefix_cache_find(const struct prefix_cache *cache, uint32_t parent, uint64_t salt,
                           uint64_t hash, const uint32_t *tokens);
/* Inserts page number `index` of every layer's list as a block.  If there is one of this name,
 * it gets only needed pages that it lacks.  Returns the block, with the caller as a user; a
 * parent must be in use.  Layers whose pages are not needed may have no such page.  token_block:
 * the host block with its tokens where needs is without PREFIX_SPARSE, or KV_NO_PAGE.  Returns
 * PREFIX_NONE if there is no entry left, only where all layers have windows. */
uint32_t prefix_cache_insert(struct prefix_cache *cache, uint32_t parent, uint64_t salt,
                             uint64_t hash, const uint32_t *tokens, const struct page_list *layers,
                             uint32_t index, uint32_t needs, uint32_t token_block);

/* Adds a user.  A block in use is never evicted, and keeps the pages that a user needs.  needs:
 * PREFIX_WINDOW, PREFIX_SPARSE, both or 0.  Use parents first, stop using them last. */
void prefix_cache_use(struct prefix_cache *cache, uint32_t block, uint32_t needs);
/* Removes a user that was added with these needs.  Without users a block stays until evicted. */
void prefix_cache_unuse(struct prefix_cache *cache, uint32_t block, uint32_t needs);
/* Returns how many users the block has. */
uint32_t prefix_cache_n_users(const struct prefix_cache *cache, uint32_t block);
/* Ends one user's need for the block's window pages.  It remains a user, and no longer names
 * PREFIX_WINDOW in prefix_cache_unuse(). */
void prefix_cache_expire(struct prefix_cache *cache, uint32_t block);
/* Returns the block's page in every layer, [n_layers], borrowed.  Those that the block has dropped
 * are meaningless, as are all if it is offloaded. */
const uint32_t *prefix_cache_pages(const struct prefix_cache *cache, uint32_t block);
/* Returns true if the block has no window pages any more. */
bool prefix_cache_window_dropped(const struct prefix_cache *cache, uint32_t block);
/* Returns true if the block has no sparse pages, in the pool or, if offloaded, in the host pool. */
bool prefix_cache_sparse_dropped(const struct prefix_cache *cache, uint32_t block);
/* Returns how many users need the block's sparse pages. */
uint32_t prefix_cache_n_sparse_users(const struct prefix_cache *cache, uint32_t block);
/* Returns the host block that is the block's token block; KV_NO_PAGE: it has none. */
uint32_t prefix_cache_token_block(const struct prefix_cache *cache, uint32_t block);
/* Makes this host block, to which its tokens have been copied, the token block of a block in use.
 * Adds a holder to it.  Changes nothing if the block has one already. */
void prefix_cache_set_token_block(struct prefix_cache *cache, uint32_t block, uint32_t token_block);
/* Returns true if the block's pages are in host blocks, byte for byte, and none in the pool. */
bool prefix_cache_is_offloaded(const struct prefix_cache *cache, uint32_t block);
/* Copies an offloaded block in use back into page number `index` of every layer's list, and frees
 * its host blocks.  Layers whose pages are not needed get nothing, and the block drops these.
 * ERR_DEVICE. */
int prefix_cache_reload(struct prefix_cache *cache, uint32_t block, const struct page_list *layers,
                        uint32_t index, uint32_t needs, struct error *err);
/* Makes page number `index` of the lists of sparse layers the block's sparse pages, if it has none.
 * A user that needs them has copied its token block there. */
void prefix_cache_hold_sparse(struct prefix_cache *cache, uint32_t block,
                              const struct page_list *layers, uint32_t index);

/* Returns the recurrent state after the block (checkpoints.h), or CHECKPOINT_NONE. */
uint32_t prefix_cache_checkpoint(const struct prefix_cache *cache, uint32_t block);
/* Gives a block, which has none, its checkpoint, with a reference to the slot. */
void prefix_cache_set_checkpoint(struct prefix_cache *cache, uint32_t block, uint32_t slot);
/* Releases the block's checkpoint, if it has one.  The block stays. */
void prefix_cache_drop_checkpoint(struct prefix_cache *cache, uint32_t block);
/* Makes the slot of the block's checkpoint free, which no sequence may hold.  The checkpoint moves
 * to the store, if there is one, or else is dropped.  What is dropped is offered to the tier on
 * disk. */
void prefix_cache_evict_checkpoint(struct prefix_cache *cache, uint32_t block);

/* Returns when the pages that are evicted next were needed last, as a value of prefix_cache_tick();
 * UINT64_MAX: nothing can be evicted. */
uint64_t prefix_cache_oldest(const struct prefix_cache *cache);
/* Returns whether what prefix_cache_evict_oldest() evicts next should move to the host pool, and
 * how many host blocks that takes.  There must be something to evict. */
struct kv_demotion prefix_cache_demotion(const struct prefix_cache *cache);
/* Gives the pages back to the pool that were needed least recently; there must be some.  An unused
 * block is evicted whole; a used one drops window pages that no user needs.  The block moves to the
 * host pool if the demotion says so and that many host blocks are free; else it is dropped. */
void prefix_cache_evict_oldest(struct prefix_cache *cache, struct kv_demotion demotion);
/* Returns the clock that orders blocks and states by age, and advances it.  It counts uses. */
uint64_t prefix_cache_tick(struct prefix_cache *cache);
/* Offers the unused blocks that have all pages to the tier on disk, as far as the pass goes
 * (offer.h).  Those in the pool come first, then offloaded ones; of each the newest, so parents
 * before children. */
enum kv_save_result prefix_cache_save(struct prefix_cache *cache, struct kv_saving *saving);
/* Returns how many blocks can be found, offloaded ones among them. */
uint32_t prefix_cache_n_blocks(const struct prefix_cache *cache);
/* Returns how many pages of the pool all calls of prefix_cache_evict_oldest() could free. */
uint32_t prefix_cache_n_idle_pages(const struct prefix_cache *cache);

/* Drops the least recently used of the unused offloaded blocks; there must be one.  It is offered
 * to the tier on disk first. */
void prefix_cache_drop_oldest_offloaded(struct prefix_cache *cache);
/* Returns when that block was used last, by prefix_cache_tick(); UINT64_MAX: there is none. */
uint64_t prefix_cache_oldest_offloaded(const struct prefix_cache *cache);
/* Returns how many pages the unused offloaded blocks have in host blocks. */
uint32_t prefix_cache_n_offloaded_pages(const struct prefix_cache *cache);
/* Returns how many host blocks the pages of unused offloaded blocks take. */
uint32_t prefix_cache_n_offloaded_blocks(const struct prefix_cache *cache);

/* Drops token blocks of unused blocks that have pages, the least recently used first, until
 * n_blocks host blocks are free or there are no more.  They are offered as PAGE_CACHED. */
void prefix_cache_drop_token_blocks(struct prefix_cache *cache, uint64_t n_blocks);

#endif
