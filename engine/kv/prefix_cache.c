/* prefix_cache.c - blocks in fixed arrays, a chained hash table over them, their users, and which
 * is evicted next.  prefix_block.h says what a block holds.
 *
 * Every block owns a page in each layer that is plain, or sparse where no tokens can move.  So
 * entries for the pool's pages divided by these layers are always enough, and no operation
 * allocates.  Where all layers have windows there is one entry for every page; as blocks without
 * window pages own none, entries may run out.  For the host pool there are as many more as it can
 * hold blocks that have dropped what they can.  The hash is SipHash-2-4 under a random key.
 * Clients choose the tokens, and must not be able to choose collisions that turn the table into one
 * long list. */
#include "engine/kv/prefix_cache.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/error.h"
#include "engine/base/siphash.h"
#include "engine/base/sizes.h"
#include "engine/kv/checkpoints.h"
#include "engine/kv/page_io.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_block.h"

static int make_key(uint64_t key[2]) {
    size_t n = 2 * sizeof(key[0]);
    return getrandom(key, n, 0) == (ssize_t)n ? 0 : ERR_IO;
}

static int alloc_tables(struct prefix_cache *cache) {
    size_t n = (size_t)cache->n_entries + 1, n_buckets = 16;
    while (n_buckets < n) n_buckets *= 2;
    cache->bucket_mask = (uint32_t)(n_buckets - 1);
    cache->buckets = malloc(n_buckets * sizeof(*cache->buckets));
    cache->blocks = calloc(n, sizeof(*cache->blocks));
    cache->ages = calloc(n, sizeof(*cache->ages));
    cache->tokens = malloc(n * PAGE_TOKENS * sizeof(*cache->tokens));
    cache->pages = malloc(n * cache->n_layers * sizeof(*cache->pages));
    cache->host_blocks = malloc((n * cache->max_host_blocks + 1) * sizeof(*cache->host_blocks));
    if (!cache->buckets || !cache->blocks || !cache->ages || !cache->tokens || !cache->pages ||
        !cache->host_blocks)
        return ERR_NOMEM;
    if (cache->space->disk) {
        cache->ids = calloc(n, sizeof(*cache->ids));
        cache->offered = calloc(cache->n_layers, sizeof(*cache->offered));
        if (!cache->ids || !cache->offered) return ERR_NOMEM;
    }
    memset(cache->buckets, 0xff, n_buckets * sizeof(*cache->buckets));
    return 0;
}

/* Sets the numbers of layers, of entries, and of host blocks for each block (see above). */
static void count_entries(struct prefix_cache *cache) {
    const struct kv_space *space = cache->space;
    for (uint32_t l = 0; l < cache->n_layers; l++) {
        cache->roles[l] = (uint8_t)kv_usual_role_of(space, l);
        cache->n_of[cache->roles[l]]++;
    }
    const uint32_t n_least = cache->n_of[KV_PLAIN] + (space->blocks ? 0 : cache->n_of[KV_SPARSE]);
    cache->n_entries = page_pool_n_pages(cache->pool) / max_u32(n_least, 1);
    if (!space->swaps) return;
    cache->max_host_blocks = (uint32_t)page_io_n_blocks(&space->io, cache->n_layers);
    cache->n_entries += page_pool_n_pages(space->blocks) /
                        max_u32((uint32_t)page_io_n_blocks(&space->io, n_least), 1);
}

int prefix_cache_create(struct prefix_cache **out, const struct kv_space *space,
                        struct error *err) {
    assert(space->n_layers > 0);
    struct prefix_cache *cache = calloc(1, sizeof(*cache));
    if (!cache) goto fail;
    cache->space = space;
    cache->pool = space->pool;
    cache->n_layers = space->n_layers;
    cache->roles = calloc(cache->n_layers, sizeof(*cache->roles));
    if (!cache->roles) goto fail;
    count_entries(cache);
    cache->idle = cache->passed = cache->offloaded = age_list_empty();
    if (alloc_tables(cache) || make_key(cache->key)) goto fail;
    cache->vacant = PREFIX_NONE;
    for (uint32_t i = cache->n_entries; i-- > 0;) {
        cache->blocks[i].next = cache->vacant;
        cache->vacant = i;
    }
    *out = cache;
    return 0;

fail:
    prefix_cache_destroy(cache);
    return error_set(err, ERR_NOMEM, "no memory for the prefix cache's tables");
}

void prefix_cache_destroy(struct prefix_cache *cache) {
    if (!cache) return;
    free(cache->roles);
    free(cache->buckets);
    free(cache->blocks);
    free(cache->ages);
    free(cache->tokens);
    free(cache->pages);
    free(cache->host_blocks);
    free(cache->ids);
    free(cache->offered);
    free(cache);
}

uint64_t prefix_cache_hash(const struct prefix_cache *cache, uint64_t chain,
                           const uint32_t *tokens) {
    struct siphash hash;
    siphash_init(&hash, cache->key);
    siphash_absorb(&hash, chain);
    siphash_absorb_tokens(&hash, tokens, PAGE_TOKENS);
    return siphash_end(&hash);
}

uint32_t prefix_cache_find(const struct prefix_cache *cache, uint32_t parent, uint64_t salt,
                           uint64_t hash, const uint32_t *tokens) {
    uint32_t i = cache->buckets[hash & cache->bucket_mask];
    for (; i != PREFIX_NONE; i = cache->blocks[i].next) {
        const struct block *b = &cache->blocks[i];
        if (b->hash != hash || b->parent != parent || b->salt != salt) continue;
        if (memcmp(prefix_block_tokens(cache, i), tokens, PAGE_TOKENS * sizeof(*tokens)) == 0)
            return i;
    }
    return PREFIX_NONE;
}

const uint32_t *prefix_cache_pages(const struct prefix_cache *cache, uint32_t block) {
    return prefix_block_pages(cache, block);
}

static void count_needs(struct block *b, uint32_t needs, int sign) {
    for (unsigned role = 0; role < KV_N_ROLES; role++)
        if (needs & 1u << role) b->n_needing[role] += (uint32_t)sign;
}

void prefix_cache_use(struct prefix_cache *cache, uint32_t block, uint32_t needs) {
    struct block *b = &cache->blocks[block];
    assert(!(needs & PREFIX_WINDOW) || !b->dropped[KV_WINDOWED]);
    prefix_block_unlist(cache, block);
    b->n_users++;
    count_needs(b, needs, 1);
    prefix_block_list(cache, block);
    prefix_feed_tell(cache, block);
}

void prefix_cache_expire(struct prefix_cache *cache, uint32_t block) {
    struct block *b = &cache->blocks[block];
    assert(b->n_needing[KV_WINDOWED] > 0);
    if (--b->n_needing[KV_WINDOWED] == 0) prefix_block_list(cache, block);
}

void prefix_cache_unuse(struct prefix_cache *cache, uint32_t block, uint32_t needs) {
    struct block *b = &cache->blocks[block];
    assert(b->n_users > 0);
    prefix_block_unlist(cache, block);
    b->n_users--;
    count_needs(b, needs, -1);
    prefix_block_drop_unneeded(cache, block);
    prefix_block_list(cache, block);
}

bool prefix_cache_window_dropped(const struct prefix_cache *cache, uint32_t block) {
    return cache->blocks[block].dropped[KV_WINDOWED];
}

bool prefix_cache_sparse_dropped(const struct prefix_cache *cache, uint32_t block) {
    return cache->blocks[block].dropped[KV_SPARSE];
}

uint32_t prefix_cache_token_block(const struct prefix_cache *cache, uint32_t block) {
    return cache->blocks[block].token_block;
}

uint32_t prefix_cache_n_users(const struct prefix_cache *cache, uint32_t block) {
    return cache->blocks[block].n_users;
}

uint32_t prefix_cache_n_sparse_users(const struct prefix_cache *cache, uint32_t block) {
    return cache->blocks[block].n_needing[KV_SPARSE];
}

static void drop_oldest_window(struct prefix_cache *cache) {
    const uint32_t block = cache->passed.oldest;
    prefix_block_unlist(cache, block);
    prefix_block_drop(cache, block, KV_WINDOWED);
}

/* Removes a block that is in its list from the cache. */
static void drop(struct prefix_cache *cache, uint32_t block) {
    struct block *b = &cache->blocks[block];
    assert(b->n_users == 0 && b->n_children == 0);
    if (cache->space->feed) prefix_feed_tell_place(cache, block, KV_NOWHERE);
    prefix_block_unlist(cache, block);
    uint32_t *link = &cache->buckets[b->hash & cache->bucket_mask];
    while (*link != block) link = &cache->blocks[*link].next;
    *link = b->next;
    if (b->parent != PREFIX_NONE) cache->blocks[b->parent].n_children--;
    if (b->is_offloaded) prefix_block_release_host_blocks(cache, block);
    else prefix_block_release(cache, block);
    prefix_block_release_token_block(cache, b);
    prefix_cache_drop_checkpoint(cache, block);
    b->next = cache->vacant;
    cache->vacant = block;
    cache->n_blocks--;
}

static void offer_and_drop(struct prefix_cache *cache, uint32_t block) {
    prefix_disk_offer(cache, block);
    drop(cache, block);
}

void prefix_cache_drop_oldest_offloaded(struct prefix_cache *cache) {
    offer_and_drop(cache, cache->offloaded.oldest);
}

/* Gives the block its pages in layers of this role, which it had dropped. */
static void hold_dropped(struct prefix_cache *cache, uint32_t block, enum kv_role role,
                         const struct page_list *layers, uint32_t index) {
    prefix_block_unlist(cache, block);
    prefix_block_hold(cache, block, role, layers, index);
    prefix_block_list(cache, block);
}

void prefix_cache_hold_sparse(struct prefix_cache *cache, uint32_t block,
                              const struct page_list *layers, uint32_t index) {
    if (cache->blocks[block].dropped[KV_SPARSE])
        hold_dropped(cache, block, KV_SPARSE, layers, index);
    prefix_block_drop_unneeded(cache, block);
    prefix_feed_tell(cache, block);
}

void prefix_cache_set_token_block(struct prefix_cache *cache, uint32_t block,
                                  uint32_t token_block) {
    struct block *b = &cache->blocks[block];
    assert(b->n_users > 0);
    if (b->token_block == KV_NO_PAGE) {
        page_pool_share(cache->space->blocks, &token_block, 1);
        b->token_block = token_block;
    }
    prefix_block_drop_unneeded(cache, block);
    prefix_feed_tell(cache, block);
}

static uint64_t oldest_of(const struct prefix_cache *cache, const struct age_list *list) {
    return list->oldest == AGE_NONE ? UINT64_MAX : cache->blocks[list->oldest].since;
}

uint64_t prefix_cache_oldest(const struct prefix_cache *cache) {
    return min_u64(oldest_of(cache, &cache->idle), oldest_of(cache, &cache->passed));
}

uint64_t prefix_cache_oldest_offloaded(const struct prefix_cache *cache) {
    return oldest_of(cache, &cache->offloaded);
}

uint64_t prefix_cache_tick(struct prefix_cache *cache) {
    return cache->clock++;
}

/* Tells whether used blocks' window pages were needed less recently than any unused block. */
static bool window_is_oldest(const struct prefix_cache *cache) {
    return oldest_of(cache, &cache->passed) < oldest_of(cache, &cache->idle);
}

/* Lets only blocks move that are of use in the host pool: those that have their sparse layers'
 * tokens, or children there.  A block that has children there always finds space: at least
 * theirs, or they have been dropped. */
struct kv_demotion prefix_cache_demotion(const struct prefix_cache *cache) {
    if (window_is_oldest(cache) || cache->max_host_blocks == 0) return (struct kv_demotion){0};
    const struct block *b = &cache->blocks[cache->idle.oldest];
    if (!prefix_block_has_sparse(b) && b->n_children == 0) return (struct kv_demotion){0};
    return (struct kv_demotion){.to_host = true, .n_blocks = prefix_block_n_host_blocks(cache, b)};
}

void prefix_cache_evict_oldest(struct prefix_cache *cache, struct kv_demotion demotion) {
    const uint32_t block = cache->idle.oldest;
    if (window_is_oldest(cache)) drop_oldest_window(cache);
    else if (demotion.to_host &&
             !page_pool_take(cache->space->blocks, prefix_block_host_blocks(cache, block),
                             demotion.n_blocks))
        prefix_host_move_out(cache, block);
    else offer_and_drop(cache, block);
}

/* Takes the token block from an unused block, which stays where it is in its list: its children,
 * which are older, stay behind it. */
static void drop_token_block(struct prefix_cache *cache, struct block *b) {
    page_pool_withdraw(cache->space->blocks, PAGE_CACHED, &b->token_block, 1);
    prefix_block_release_token_block(cache, b);
    cache->n_token_blocks--;
}

void prefix_cache_drop_token_blocks(struct prefix_cache *cache, uint64_t n_blocks) {
    for (uint32_t i = cache->idle.oldest; cache->n_token_blocks > 0; i = cache->ages[i].newer) {
        if (page_pool_n_free(cache->space->blocks) >= n_blocks) return;
        if (cache->blocks[i].token_block == KV_NO_PAGE) continue;
        drop_token_block(cache, &cache->blocks[i]);
        prefix_feed_tell(cache, i);
    }
}

/* Adds an entry with this name, a parent in use, and no users.  Drops the oldest unused block if no
 * entry is vacant.  PREFIX_NONE: all are in use. */
static uint32_t add_block(struct prefix_cache *cache, uint32_t parent, uint64_t salt, uint64_t hash,
                          const uint32_t *tokens) {
    const uint32_t oldest =
        cache->offloaded.oldest != AGE_NONE ? cache->offloaded.oldest : cache->idle.oldest;
    if (cache->vacant == PREFIX_NONE && oldest != AGE_NONE) offer_and_drop(cache, oldest);
    const uint32_t block = cache->vacant;
    if (block == PREFIX_NONE) return PREFIX_NONE;
    struct block *b = &cache->blocks[block];
    cache->vacant = b->next;
    uint32_t *bucket = &cache->buckets[hash & cache->bucket_mask];
    *b = (struct block){.hash = hash,
                        .salt = salt,
                        .parent = parent,
                        .next = *bucket,
                        .token_block = KV_NO_PAGE,
                        .checkpoint = CHECKPOINT_NONE};
    for (unsigned role = 0; role < KV_N_ROLES; role++) b->dropped[role] = cache->n_of[role] > 0;
    *bucket = block;
    if (parent != PREFIX_NONE) {
        assert(cache->blocks[parent].n_users > 0);
        cache->blocks[parent].n_children++;
    }
    memcpy(prefix_block_tokens(cache, block), tokens, PAGE_TOKENS * sizeof(*tokens));
    if (cache->ids) {
        const struct disk_key key = prefix_disk_key(cache, block);
        cache->ids[block] = kv_disk_id(cache->space->disk, &key);
    }
    cache->n_blocks++;
    return block;
}

uint32_t prefix_cache_insert(struct prefix_cache *cache, uint32_t parent, uint64_t salt,
                             uint64_t hash, const uint32_t *tokens, const struct page_list *layers,
                             uint32_t index, uint32_t needs, uint32_t token_block) {
    uint32_t block = prefix_cache_find(cache, parent, salt, hash, tokens);
    if (block == PREFIX_NONE) {
        block = add_block(cache, parent, salt, hash, tokens);
        if (block == PREFIX_NONE) return PREFIX_NONE;
        if (cache->n_of[KV_PLAIN] > 0) prefix_block_hold(cache, block, KV_PLAIN, layers, index);
        prefix_block_list(cache, block);
    }
    const struct block *b = &cache->blocks[block];
    if (b->is_offloaded) prefix_host_hold_again(cache, block, layers, index, needs);
    for (enum kv_role role = 0; role < KV_N_ROLES; role++)
        if (needs & 1u << role && b->dropped[role]) hold_dropped(cache, block, role, layers, index);
    prefix_cache_use(cache, block, needs);
    if (token_block != KV_NO_PAGE) prefix_cache_set_token_block(cache, block, token_block);
    prefix_block_drop_unneeded(cache, block);
    prefix_feed_tell(cache, block);
    return block;
}

uint32_t prefix_cache_checkpoint(const struct prefix_cache *cache, uint32_t block) {
    return cache->blocks[block].checkpoint;
}

void prefix_cache_set_checkpoint(struct prefix_cache *cache, uint32_t block, uint32_t slot) {
    assert(cache->blocks[block].checkpoint == CHECKPOINT_NONE);
    cache->blocks[block].checkpoint = slot;
    checkpoints_add(cache->space->checkpoints, slot, block);
}

void prefix_cache_drop_checkpoint(struct prefix_cache *cache, uint32_t block) {
    struct block *b = &cache->blocks[block];
    if (b->checkpoint == CHECKPOINT_NONE) return;
    checkpoints_remove(cache->space->checkpoints, b->checkpoint);
    b->checkpoint = CHECKPOINT_NONE;
}

static void offer_and_drop_checkpoint(struct prefix_cache *cache, uint32_t block) {
    prefix_disk_offer_checkpoint(cache, block);
    prefix_cache_drop_checkpoint(cache, block);
}

void prefix_cache_evict_checkpoint(struct prefix_cache *cache, uint32_t block) {
    struct checkpoints *list = cache->space->checkpoints;
    struct kv_disk *disk = cache->space->disk;
    struct block *b = &cache->blocks[block];
    if (!checkpoints_has_store(list)) {
        offer_and_drop_checkpoint(cache, block);
        return;
    }
    if (checkpoints_store_is_full(list))
        offer_and_drop_checkpoint(cache, checkpoints_oldest_stored(list));
    b->checkpoint = checkpoints_store(list, b->checkpoint);
    checkpoints_set_written_at(list, b->checkpoint, disk ? kv_disk_n_submitted(disk) : 0);
}

uint32_t prefix_cache_n_blocks(const struct prefix_cache *cache) {
    return cache->n_blocks;
}

uint32_t prefix_cache_n_idle_pages(const struct prefix_cache *cache) {
    return cache->n_idle_pages;
}

uint32_t prefix_cache_n_offloaded_pages(const struct prefix_cache *cache) {
    return cache->n_offloaded_pages;
}

uint32_t prefix_cache_n_offloaded_blocks(const struct prefix_cache *cache) {
    return cache->n_offloaded_blocks;
}
