/* prefix_block.c - see prefix_block.h. */
#include "engine/kv/prefix_block.h"

#include "engine/kv/page_io.h"
#include "engine/kv/page_pool.h"

/* Returns the list that the block belongs in, NULL if it has nothing to give. */
static struct age_list *list_of(struct prefix_cache *cache, const struct block *b) {
    if (b->is_offloaded) return b->n_users == 0 ? &cache->offloaded : NULL;
    if (b->n_users == 0) return &cache->idle;
    const bool may_drop =
        b->n_needing[KV_WINDOWED] == 0 && !b->dropped[KV_WINDOWED] && cache->n_of[KV_WINDOWED] > 0;
    return may_drop ? &cache->passed : NULL;
}

uint32_t prefix_block_n_pages(const struct prefix_cache *cache, const struct block *b) {
    uint32_t n = 0;
    for (unsigned role = 0; role < KV_N_ROLES; role++)
        if (!b->dropped[role]) n += cache->n_of[role];
    return n;
}

uint32_t prefix_block_n_host_blocks(const struct prefix_cache *cache, const struct block *b) {
    return (uint32_t)page_io_n_blocks(&cache->space->io, prefix_block_n_pages(cache, b));
}

/* Returns how many pages the block, in its list, could give. */
static uint32_t n_idle_pages(const struct prefix_cache *cache, const struct block *b) {
    if (b->is_offloaded) return 0;
    return b->n_users == 0 ? prefix_block_n_pages(cache, b) : cache->n_of[KV_WINDOWED];
}

/* Counts what an unused block has in the host pool, when it enters its list (1) or leaves it (-1).
 * Meanwhile its token block is offered. */
static void count_offloaded(struct prefix_cache *cache, const struct block *b, int sign) {
    if (b->n_users > 0) return;
    struct page_pool *blocks = cache->space->blocks;
    if (b->token_block != KV_NO_PAGE && sign > 0)
        page_pool_offer(blocks, PAGE_CACHED, &b->token_block, 1);
    else if (b->token_block != KV_NO_PAGE)
        page_pool_withdraw(blocks, PAGE_CACHED, &b->token_block, 1);
    if (b->is_offloaded) {
        cache->n_offloaded_pages += (uint32_t)sign * prefix_block_n_pages(cache, b);
        cache->n_offloaded_blocks += (uint32_t)sign * prefix_block_n_host_blocks(cache, b);
    } else if (b->token_block != KV_NO_PAGE) cache->n_token_blocks += (uint32_t)sign;
}

void prefix_block_unlist(struct prefix_cache *cache, uint32_t block) {
    const struct block *b = &cache->blocks[block];
    struct age_list *list = list_of(cache, b);
    if (!list) return;
    age_list_remove(list, cache->ages, block);
    cache->n_idle_pages -= n_idle_pages(cache, b);
    count_offloaded(cache, b, -1);
}

void prefix_block_list(struct prefix_cache *cache, uint32_t block) {
    struct block *b = &cache->blocks[block];
    struct age_list *list = list_of(cache, b);
    if (!list) return;
    age_list_append(list, cache->ages, block);
    b->since = cache->clock++;
    cache->n_idle_pages += n_idle_pages(cache, b);
    count_offloaded(cache, b, 1);
}

void prefix_block_hold(struct prefix_cache *cache, uint32_t block, enum kv_role role,
                       const struct page_list *layers, uint32_t index) {
    uint32_t *pages = prefix_block_pages(cache, block);
    for (uint32_t l = 0; l < cache->n_layers; l++) {
        if (cache->roles[l] != role) continue;
        pages[l] = layers[l].pages[index];
        page_pool_share(cache->pool, &pages[l], 1);
    }
    cache->blocks[block].dropped[role] = false;
}

static void release_pages(struct prefix_cache *cache, uint32_t block, enum kv_role role) {
    const uint32_t *pages = prefix_block_pages(cache, block);
    for (uint32_t l = 0; l < cache->n_layers; l++)
        if (cache->roles[l] == role) page_pool_release(cache->pool, &pages[l], 1);
}

void prefix_block_drop(struct prefix_cache *cache, uint32_t block, enum kv_role role) {
    release_pages(cache, block, role);
    cache->blocks[block].dropped[role] = true;
}

void prefix_block_release(struct prefix_cache *cache, uint32_t block) {
    for (enum kv_role role = 0; role < KV_N_ROLES; role++)
        if (!cache->blocks[block].dropped[role]) release_pages(cache, block, role);
}

void prefix_block_release_token_block(struct prefix_cache *cache, struct block *b) {
    if (b->token_block != KV_NO_PAGE) page_pool_release(cache->space->blocks, &b->token_block, 1);
    b->token_block = KV_NO_PAGE;
}

void prefix_block_drop_unneeded(struct prefix_cache *cache, uint32_t block) {
    struct block *b = &cache->blocks[block];
    const uint32_t n_needing = b->n_needing[KV_SPARSE];
    if (b->n_users == 0 || b->is_offloaded || b->token_block == KV_NO_PAGE || b->dropped[KV_SPARSE])
        return;
    if (n_needing == 0) prefix_block_drop(cache, block, KV_SPARSE);
    else if (n_needing == b->n_users) prefix_block_release_token_block(cache, b);
}

void prefix_block_release_host_blocks(struct prefix_cache *cache, uint32_t block) {
    struct block *b = &cache->blocks[block];
    page_pool_release(cache->space->blocks, prefix_block_host_blocks(cache, block),
                      prefix_block_n_host_blocks(cache, b));
    b->is_offloaded = false;
}

bool prefix_block_has_sparse(const struct block *b) {
    return !b->dropped[KV_SPARSE] || b->token_block != KV_NO_PAGE;
}
