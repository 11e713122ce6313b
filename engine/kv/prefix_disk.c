/* prefix_disk.c - blocks of the prefix cache, and their checkpoints, as items of the tier on disk:
 * see prefix_block.h. */
#include "engine/base/sizes.h"
#include "engine/kv/checkpoints.h"
#include "engine/kv/offer.h"
#include "engine/kv/page_io.h"
#include "engine/kv/prefix_block.h"

struct disk_key prefix_disk_key(const struct prefix_cache *cache, uint32_t block) {
    const struct block *b = &cache->blocks[block];
    return kv_block_key(b->salt, b->parent == PREFIX_NONE ? NULL : &cache->ids[b->parent],
                        prefix_block_tokens(cache, block));
}

/* Puts the pages that the block has into the order of host blocks. */
static const uint32_t *pages_in_order(struct prefix_cache *cache, uint32_t block) {
    const uint32_t *pages = prefix_block_pages(cache, block);
    uint32_t n = 0;
    for (unsigned i = 0; i < KV_N_PLACED; i++)
        for (uint32_t l = 0; l < cache->n_layers; l++)
            if (cache->roles[l] == kv_place_order[i]) cache->offered[n++] = pages[l];
    return cache->offered;
}

/* Describes the block for the tier; the key must live as long. */
static struct kv_offer describe(struct prefix_cache *cache, uint32_t block, struct disk_key *key) {
    const struct block *b = &cache->blocks[block];
    *key = prefix_disk_key(cache, block);
    return (struct kv_offer){
        .key = key,
        .id = &cache->ids[block],
        .n_pages = prefix_block_n_pages(cache, b),
        .pages = b->is_offloaded ? NULL : pages_in_order(cache, block),
        .blocks = prefix_block_host_blocks(cache, block),
        .written_at = b->written_at,
    };
}

/* A checkpoint of the cache as an item of the tier: what kv_offer points to. */
struct checkpoint_item {
    struct disk_key key;
    struct disk_id id;
    struct kv_offer offer;
};

/* Describes the block's checkpoint for the tier; *item must live as long. */
static const struct kv_offer *describe_checkpoint(const struct prefix_cache *cache, uint32_t block,
                                                  struct checkpoint_item *item) {
    const struct kv_space *space = cache->space;
    const struct checkpoints *list = space->checkpoints;
    const uint32_t *checkpoint = &cache->blocks[block].checkpoint;
    item->key = prefix_disk_key(cache, block);
    item->key.kind = DISK_CHECKPOINT;
    item->id = kv_disk_id(space->disk, &item->key);
    item->offer = (struct kv_offer){
        .key = &item->key,
        .id = &item->id,
        .n_pages = (uint32_t)div_up(checkpoints_bytes(list), page_io_page_bytes(&space->io)),
        .checkpoint = checkpoint};
    if (checkpoints_is_stored(list, *checkpoint))
        item->offer.written_at = checkpoints_written_at(list, *checkpoint);
    return &item->offer;
}

void prefix_disk_offer_checkpoint(const struct prefix_cache *cache, uint32_t block) {
    struct checkpoint_item item;
    if (!cache->ids || cache->blocks[block].checkpoint == CHECKPOINT_NONE) return;
    describe_checkpoint(cache, block, &item);
    item.offer.is_last = true;
    (void)kv_offer(cache->space, &item.offer);
}

void prefix_disk_offer(struct prefix_cache *cache, uint32_t block) {
    struct disk_key key;
    if (!cache->ids || cache->blocks[block].dropped[KV_SPARSE]) return;
    struct kv_offer offer = describe(cache, block, &key);
    offer.is_last = true;
    (void)kv_offer(cache->space, &offer);
    prefix_disk_offer_checkpoint(cache, block);
}

/* Offers a block and its checkpoint. */
static enum kv_save_result save_block(struct prefix_cache *cache, uint32_t block,
                                      struct kv_saving *saving) {
    struct disk_key key;
    struct checkpoint_item item;
    const struct kv_offer offer = describe(cache, block, &key);
    const enum kv_save_result saved = kv_save_one(cache->space, &offer, saving);
    if (saved != SAVE_ON || cache->blocks[block].checkpoint == CHECKPOINT_NONE) return saved;
    return kv_save_one(cache->space, describe_checkpoint(cache, block, &item), saving);
}

enum kv_save_result prefix_cache_save(struct prefix_cache *cache, struct kv_saving *saving) {
    const uint32_t newest[] = {cache->idle.newest, cache->offloaded.newest};
    for (size_t i = 0; i < 2; i++)
        for (uint32_t b = newest[i]; b != AGE_NONE; b = cache->ages[b].older) {
            if (cache->blocks[b].dropped[KV_SPARSE]) continue;
            const enum kv_save_result saved = save_block(cache, b, saving);
            if (saved != SAVE_ON) return saved;
        }
    return SAVE_ON;
}
