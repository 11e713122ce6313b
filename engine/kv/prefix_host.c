/* prefix_host.c - how blocks of the prefix cache move to the host pool, and back: see
 * prefix_block.h. */
#include <assert.h>
#include <string.h>

#include "engine/kv/page_io.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_block.h"

/* Transfers a block's pages in layers of this role to or from its host blocks, from *place on. */
static int move_role(const struct prefix_cache *cache, uint32_t block, enum kv_role role,
                     page_io_blocks move, uint32_t *place, struct error *err) {
    const uint32_t *pages = prefix_block_pages(cache, block),
                   *blocks = prefix_block_host_blocks(cache, block);
    int code = 0;
    for (uint32_t l = 0; l < cache->n_layers && !code; l++)
        if (cache->roles[l] == role)
            code = move(&cache->space->io, &pages[l], 1, blocks, (*place)++, err);
    return code;
}

/* Transfers a block to its host blocks. */
static int move_out(const struct prefix_cache *cache, uint32_t block, struct error *err) {
    uint32_t place = 0;
    int code = 0;
    for (unsigned i = 0; i < KV_N_PLACED && !code; i++)
        if (!cache->blocks[block].dropped[kv_place_order[i]])
            code = move_role(cache, block, kv_place_order[i], page_io_write_blocks, &place, err);
    return code;
}

/* Transfers a block back from its host blocks, which hold what had not been dropped then. */
static int move_in(const struct prefix_cache *cache, uint32_t block, const bool *was_dropped,
                   struct error *err) {
    uint32_t place = 0;
    int code = 0;
    for (unsigned i = 0; i < KV_N_PLACED && !code; i++) {
        const enum kv_role role = kv_place_order[i];
        if (was_dropped[role]) continue;
        if (cache->blocks[block].dropped[role]) place += cache->n_of[role];
        else code = move_role(cache, block, role, page_io_read_blocks, &place, err);
    }
    return code;
}

/* Keeps the block if the copy fails: a device that fails does not read it again. */
void prefix_host_move_out(struct prefix_cache *cache, uint32_t block) {
    const struct kv_space *space = cache->space;
    struct block *b = &cache->blocks[block];
    (void)move_out(cache, block, NULL);
    space->swaps->n_out += prefix_block_n_pages(cache, b);
    prefix_block_unlist(cache, block);
    prefix_block_release(cache, block);
    b->is_offloaded = true;
    b->written_at = space->disk ? kv_disk_n_submitted(space->disk) : 0;
    prefix_block_list(cache, block);
    prefix_feed_tell(cache, block);
}

bool prefix_cache_is_offloaded(const struct prefix_cache *cache, uint32_t block) {
    return cache->blocks[block].is_offloaded;
}

void prefix_host_hold_again(struct prefix_cache *cache, uint32_t block,
                            const struct page_list *layers, uint32_t index, uint32_t needs) {
    struct block *b = &cache->blocks[block];
    prefix_block_unlist(cache, block);
    prefix_block_release_host_blocks(cache, block);
    prefix_block_hold(cache, block, KV_PLAIN, layers, index);
    for (enum kv_role role = 0; role < KV_N_ROLES; role++) {
        if (role == KV_PLAIN || cache->n_of[role] == 0) continue;
        if (needs & 1u << role) prefix_block_hold(cache, block, role, layers, index);
        else b->dropped[role] = true;
    }
    prefix_block_list(cache, block);
    prefix_feed_tell(cache, block);
}

int prefix_cache_reload(struct prefix_cache *cache, uint32_t block, const struct page_list *layers,
                        uint32_t index, uint32_t needs, struct error *err) {
    const struct block *b = &cache->blocks[block];
    bool was_dropped[KV_N_ROLES];
    assert(b->is_offloaded && b->n_users > 0);
    memcpy(was_dropped, b->dropped, sizeof(was_dropped));
    for (enum kv_role role = 0; role < KV_N_ROLES; role++)
        if (was_dropped[role]) needs &= ~(1u << role);
    prefix_host_hold_again(cache, block, layers, index, needs);
    cache->space->swaps->n_in += prefix_block_n_pages(cache, b);
    /* No sequence has taken its host blocks yet, and any later writes to them come after this
     * copy. */
    const int code = move_in(cache, block, was_dropped, err);
    prefix_block_drop_unneeded(cache, block);
    return code;
}
