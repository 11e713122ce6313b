/* reclaim.h - makes pages and host blocks free: takes them from what is only cached, the least
 * recently used first.
 *
 *   pages of the pool    blocks of the prefix cache and states, in one order of age
 *        │ evicted
 *        ▼
 *   host blocks          the same, in the order in which they came here
 *        │ dropped
 *        ▼
 *   files                the tier on disk, if there is one (offer.h)
 *
 * The caches say what is oldest and where it would move; the order between them, and the space that
 * it moves to, are decided here.  So no cache calls another one, or asks for space itself.
 *
 * Thread: engine.  Memory: none. */
#ifndef ENGINE_KV_RECLAIM_H
#define ENGINE_KV_RECLAIM_H

#include <stdbool.h>
#include <stdint.h>

struct kv_space;

/* Returns how many pages of the pool are only cached, so that evictions could free them. */
uint32_t kv_n_idle(const struct kv_space *space);
/* Returns how many pages of the pool could be taken: free ones, and those that are only cached. */
uint64_t kv_n_available(const struct kv_space *space);
/* Evicts what is cached until n_pages pages of the pool are free; the caller takes them.  ERR_FULL:
 * fewer could be free, and nothing has been evicted. */
int kv_make_free(const struct kv_space *space, uint64_t n_pages);

/* Returns how many slots of recurrent states could be taken: free ones, and checkpoints that no
 * sequence holds.  0: there are none. */
uint64_t kv_n_available_states(const struct kv_space *space);
/* Evicts checkpoints, the least recently used first, until n slots are free.  ERR_FULL: fewer could
 * be free, and nothing has been evicted. */
int kv_make_states_free(const struct kv_space *space, uint32_t n);

/* Returns how many pages of unused cached blocks and of cached states are in the host pool. */
uint32_t kv_n_offloaded(const struct kv_space *space);
/* Returns how many host blocks those pages in the host pool take, without token blocks
 * (prefix_cache.h). */
uint32_t kv_n_offloaded_blocks(const struct kv_space *space);
/* Drops cached blocks and states from the host pool, which there must be, the least recently used
 * first.  Stops when n_blocks host blocks are free, or there are no more to drop.  Token blocks of
 * cached blocks that have pages stay (prefix_cache_drop_token_blocks()). */
void kv_drop_offloaded(const struct kv_space *space, uint64_t n_blocks);

/* Offers cached states and then blocks to the tier on disk, each the newest first.  Returns true
 * once it has taken n_most of them, at least 1, or its queue is full: call again when that has
 * drained.  False: all was offered, or as much as the disk holds, or there is no disk. */
bool kv_save_cached(const struct kv_space *space, uint32_t n_most);

#endif
