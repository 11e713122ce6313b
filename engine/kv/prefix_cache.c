/* prefix_cache.c - blocks in fixed arrays, a chained hash table over them, and a list of the idle
 * ones.
 *
 * Every block owns n_layers pages of the pool, so n_pages / n_layers entries are always enough and
 * no operation allocates.  The hash is SipHash-2-4 under a random key: clients choose the tokens,
 * and must not be able to choose collisions that turn the table into one long list.
 *
 * Thread: engine.  Memory: see prefix_cache.h. */
#include "engine/kv/prefix_cache.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/backend.h"
#include "engine/error.h"
#include "engine/kv/policy.h"
#include "engine/kv/pool.h"
#include "engine/siphash.h"

struct block {
    uint64_t hash, salt;
    uint32_t parent;
    uint32_t n_users, n_children;
    uint32_t older, newer; /* in the idle list, while n_users == 0 */
    uint32_t next;         /* in its bucket, or in the list of vacant entries */
};

struct prefix_cache {
    struct page_pool *pool;
    uint64_t key[2];
    uint32_t n_layers, n_entries, n_blocks, n_idle;
    uint32_t vacant;         /* head of the list of vacant entries */
    uint32_t oldest, newest; /* ends of the idle list */
    uint32_t bucket_mask;
    uint32_t *buckets;
    struct block *blocks; /* [n_entries] */
    uint32_t *tokens;     /* [n_entries][PAGE_TOKENS] */
    uint32_t *pages;      /* [n_entries][n_layers] */
};

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
    cache->tokens = malloc(n * PAGE_TOKENS * sizeof(*cache->tokens));
    cache->pages = malloc(n * cache->n_layers * sizeof(*cache->pages));
    if (!cache->buckets || !cache->blocks || !cache->tokens || !cache->pages) return ERR_NOMEM;
    memset(cache->buckets, 0xff, n_buckets * sizeof(*cache->buckets));
    return 0;
}

int prefix_cache_create(struct prefix_cache **out, struct page_pool *pool, uint32_t n_layers,
                        struct error *err) {
    assert(n_layers > 0);
    struct prefix_cache *cache = calloc(1, sizeof(*cache));
    if (!cache) goto fail;
    cache->pool = pool;
    cache->n_layers = n_layers;
    cache->n_entries = page_pool_n_pages(pool) / n_layers;
    cache->oldest = cache->newest = PREFIX_NONE;
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
    free(cache->buckets);
    free(cache->blocks);
    free(cache->tokens);
    free(cache->pages);
    free(cache);
}

uint64_t prefix_cache_hash(const struct prefix_cache *cache, uint64_t chain,
                           const uint32_t *tokens) {
    struct siphash hash;
    siphash_init(&hash, cache->key);
    siphash_absorb(&hash, chain);
    for (int i = 0; i < PAGE_TOKENS; i += 2)
        siphash_absorb(&hash, tokens[i] | (uint64_t)tokens[i + 1] << 32);
    return siphash_end(&hash);
}

static uint32_t *block_tokens(const struct prefix_cache *cache, uint32_t block) {
    return cache->tokens + (size_t)block * PAGE_TOKENS;
}

static uint32_t *block_pages(const struct prefix_cache *cache, uint32_t block) {
    return cache->pages + (size_t)block * cache->n_layers;
}

uint32_t prefix_cache_find(const struct prefix_cache *cache, uint32_t parent, uint64_t salt,
                           uint64_t hash, const uint32_t *tokens) {
    uint32_t i = cache->buckets[hash & cache->bucket_mask];
    for (; i != PREFIX_NONE; i = cache->blocks[i].next) {
        const struct block *b = &cache->blocks[i];
        if (b->hash != hash || b->parent != parent || b->salt != salt) continue;
        if (memcmp(block_tokens(cache, i), tokens, PAGE_TOKENS * sizeof(*tokens)) == 0) return i;
    }
    return PREFIX_NONE;
}

static void idle_remove(struct prefix_cache *cache, struct block *b) {
    if (b->older != PREFIX_NONE) cache->blocks[b->older].newer = b->newer;
    else cache->oldest = b->newer;
    if (b->newer != PREFIX_NONE) cache->blocks[b->newer].older = b->older;
    else cache->newest = b->older;
    cache->n_idle--;
}

static void idle_append(struct prefix_cache *cache, uint32_t block) {
    struct block *b = &cache->blocks[block];
    b->older = cache->newest;
    b->newer = PREFIX_NONE;
    if (cache->newest != PREFIX_NONE) cache->blocks[cache->newest].newer = block;
    else cache->oldest = block;
    cache->newest = block;
    cache->n_idle++;
}

void prefix_cache_use(struct prefix_cache *cache, uint32_t block) {
    struct block *b = &cache->blocks[block];
    if (b->n_users++ == 0) idle_remove(cache, b);
}

void prefix_cache_unuse(struct prefix_cache *cache, uint32_t block) {
    struct block *b = &cache->blocks[block];
    assert(b->n_users > 0);
    if (--b->n_users == 0) idle_append(cache, block);
}

const uint32_t *prefix_cache_pages(const struct prefix_cache *cache, uint32_t block) {
    return block_pages(cache, block);
}

uint32_t prefix_cache_publish(struct prefix_cache *cache, uint32_t parent, uint64_t salt,
                              uint64_t hash, const uint32_t *tokens, const struct page_list *layers,
                              uint32_t index) {
    uint32_t block = prefix_cache_find(cache, parent, salt, hash, tokens);
    if (block != PREFIX_NONE) {
        prefix_cache_use(cache, block);
        return block;
    }
    block = cache->vacant;
    assert(block != PREFIX_NONE); /* every other entry owns n_layers pages that are not these */
    struct block *b = &cache->blocks[block];
    cache->vacant = b->next;
    uint32_t *bucket = &cache->buckets[hash & cache->bucket_mask];
    *b =
        (struct block){.hash = hash, .salt = salt, .parent = parent, .n_users = 1, .next = *bucket};
    *bucket = block;
    if (parent != PREFIX_NONE) {
        assert(cache->blocks[parent].n_users > 0);
        cache->blocks[parent].n_children++;
    }
    memcpy(block_tokens(cache, block), tokens, PAGE_TOKENS * sizeof(*tokens));
    uint32_t *pages = block_pages(cache, block);
    for (uint32_t l = 0; l < cache->n_layers; l++) pages[l] = layers[l].pages[index];
    page_pool_share(cache->pool, pages, cache->n_layers);
    cache->n_blocks++;
    return block;
}

static void evict_oldest(struct prefix_cache *cache) {
    uint32_t block = cache->oldest;
    struct block *b = &cache->blocks[block];
    assert(b->n_users == 0 && b->n_children == 0);
    idle_remove(cache, b);
    uint32_t *link = &cache->buckets[b->hash & cache->bucket_mask];
    while (*link != block) link = &cache->blocks[*link].next;
    *link = b->next;
    if (b->parent != PREFIX_NONE) cache->blocks[b->parent].n_children--;
    page_pool_release(cache->pool, block_pages(cache, block), cache->n_layers);
    b->next = cache->vacant;
    cache->vacant = block;
    cache->n_blocks--;
}

void prefix_cache_evict(struct prefix_cache *cache, uint32_t n_pages) {
    while (cache->oldest != PREFIX_NONE && page_pool_n_free(cache->pool) < n_pages)
        evict_oldest(cache);
}

uint32_t prefix_cache_n_blocks(const struct prefix_cache *cache) {
    return cache->n_blocks;
}

uint32_t prefix_cache_n_idle_pages(const struct prefix_cache *cache) {
    return cache->n_idle * cache->n_layers;
}
