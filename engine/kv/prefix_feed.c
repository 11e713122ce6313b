/* prefix_feed.c - what readers of the feed believe of the prefix cache's blocks: see
 * prefix_block.h. */
#include <string.h>

#include "engine/kv/prefix_block.h"

/* Returns where the feed's reader believes the block to be. */
static enum kv_place told_place(const struct prefix_cache *cache, uint32_t block) {
    const struct block *b = &cache->blocks[block];
    return b->told_epoch == kv_feed_epoch(cache->space->feed) ? (enum kv_place)b->told : KV_NOWHERE;
}

static bool put_event(struct prefix_cache *cache, uint32_t block, bool is_added,
                      enum kv_place place) {
    const struct block *b = &cache->blocks[block];
    struct kv_feed_event event = {.is_added = is_added,
                                  .has_parent = b->parent != PREFIX_NONE,
                                  .place = place,
                                  .hash = b->hash};
    if (event.has_parent) event.parent = cache->blocks[b->parent].hash;
    memcpy(event.tokens, prefix_block_tokens(cache, block), sizeof(event.tokens));
    return kv_feed_put(cache->space->feed, &event);
}

/* Tells of the new place first, so that the reader never believes that a block that moves is
 * gone. */
void prefix_feed_tell_place(struct prefix_cache *cache, uint32_t block, enum kv_place place) {
    struct block *b = &cache->blocks[block];
    const enum kv_place before = told_place(cache, block);
    if (place == before) return;
    if (place != KV_NOWHERE && !put_event(cache, block, true, place)) return;
    if (before != KV_NOWHERE && !put_event(cache, block, false, before)) return;
    b->told = (uint8_t)place;
    b->told_epoch = kv_feed_epoch(cache->space->feed);
}

void prefix_feed_tell(struct prefix_cache *cache, uint32_t block) {
    if (!cache->space->feed) return;
    const struct block *b = &cache->blocks[block];
    const bool is_known = b->parent == PREFIX_NONE || told_place(cache, b->parent) != KV_NOWHERE;
    enum kv_place place = b->is_offloaded ? KV_ON_HOST : KV_ON_DEVICE;
    if (b->salt != 0 || !prefix_block_has_sparse(b) || !is_known) place = KV_NOWHERE;
    prefix_feed_tell_place(cache, block, place);
}
