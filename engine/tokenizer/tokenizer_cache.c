/* tokenizer_cache.c - see tokenizer_cache.h.
 *
 *   buckets [hash] ─► entry ─► entry          oldest ⇄ … ⇄ newest: by last use
 *
 * An entry never changes.  It is one block: the struct, the tokens, the text. */
#include "engine/tokenizer/tokenizer_cache.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/siphash.h"
#include "engine/tokenizer/internal.h"

enum {
    /* A chunk is long beside the piece or so that is cut twice at its end, and short beside the
     * texts for which encoding takes noticeable time: of a text that has grown, its last chunk is
     * encoded again. */
    CHUNK_BYTES = 4096,
    LEAST_SHARE = 16, /* of a chunk is the shortest text that is looked up */
    BLOCK_BYTES = 16, /* that an allocator needs for a block */
    FEWEST_BUCKETS = 64,
};

struct entry {
    struct entry *next; /* in its bucket */
    struct entry *older, *newer;
    struct tokenizer_cache_key key; /* its bytes are in the entry */
    struct tokenizer_cache_hit value;
    uint32_t ids[];
};

struct tokenizer_cache {
    struct tokenizer_cache_config config;
    pthread_mutex_t lock;
    struct entry **buckets;
    size_t mask;
    struct entry *oldest, *newest;
    struct tokenizer_cache_stats stats;
};

int tokenizer_cache_create(struct tokenizer_cache **out,
                           const struct tokenizer_cache_config *config, struct error *err) {
    struct tokenizer_cache *cache = calloc(1, sizeof(*cache));
    if (!cache) goto fail;
    cache->config = *config;
    if (config->chunk_bytes == 0) cache->config.chunk_bytes = CHUNK_BYTES;
    size_t n_buckets = FEWEST_BUCKETS;
    while (n_buckets < config->max_bytes / CHUNK_BYTES) n_buckets *= 2;
    cache->mask = n_buckets - 1;
    cache->stats.bytes = n_buckets * sizeof(*cache->buckets);
    cache->buckets = calloc(n_buckets, sizeof(*cache->buckets));
    if (!cache->buckets || pthread_mutex_init(&cache->lock, NULL)) goto fail;
    *out = cache;
    return 0;

fail:
    if (cache) free(cache->buckets);
    free(cache);
    return error_set(err, ERR_NOMEM, "no memory for the tokenizer's cache");
}

void tokenizer_cache_destroy(struct tokenizer_cache *cache) {
    if (!cache) return;
    for (struct entry *entry = cache->oldest, *newer; entry; entry = newer) {
        newer = entry->newer;
        free(entry);
    }
    pthread_mutex_destroy(&cache->lock);
    free(cache->buckets);
    free(cache);
}

size_t tokenizer_cache_chunk(const struct tokenizer_cache *cache) {
    return cache->config.chunk_bytes;
}

size_t tokenizer_cache_least(const struct tokenizer_cache *cache) {
    const size_t least = cache->config.chunk_bytes / LEAST_SHARE;
    return least > 0 ? least : 1;
}

struct tokenizer_cache_key tokenizer_cache_key(const struct tokenizer_cache *cache, uint64_t scope,
                                               size_t step, bool ends, const char *bytes,
                                               size_t n) {
    struct siphash hash;
    siphash_init(&hash, cache->config.key);
    siphash_absorb(&hash, scope);
    siphash_absorb(&hash, n << 8 | step << 1 | ends);
    siphash_absorb_bytes(&hash, bytes, n);
    return (struct tokenizer_cache_key){.hash = siphash_end(&hash),
                                        .scope = scope,
                                        .bytes = bytes,
                                        .n = (uint32_t)n,
                                        .step = (uint32_t)step,
                                        .ends = ends};
}

static struct entry **bucket_of(struct tokenizer_cache *cache, uint64_t hash) {
    return &cache->buckets[hash & cache->mask];
}

static size_t entry_size(const struct entry *entry) {
    return sizeof(*entry) + entry->value.n_ids * sizeof(*entry->ids) + entry->key.n;
}

static struct entry *find(struct tokenizer_cache *cache, const struct tokenizer_cache_key *key) {
    for (struct entry *entry = *bucket_of(cache, key->hash); entry; entry = entry->next) {
        const struct tokenizer_cache_key *own = &entry->key;
        if (own->hash == key->hash && own->scope == key->scope && own->step == key->step &&
            own->ends == key->ends && own->n == key->n &&
            memcmp(own->bytes, key->bytes, key->n) == 0)
            return entry;
    }
    return NULL;
}

static void unlink_use(struct tokenizer_cache *cache, struct entry *entry) {
    *(entry->older ? &entry->older->newer : &cache->oldest) = entry->newer;
    *(entry->newer ? &entry->newer->older : &cache->newest) = entry->older;
}

static void link_newest(struct tokenizer_cache *cache, struct entry *entry) {
    entry->older = cache->newest;
    entry->newer = NULL;
    *(cache->newest ? &cache->newest->newer : &cache->oldest) = entry;
    cache->newest = entry;
}

static void evict_oldest(struct tokenizer_cache *cache) {
    struct entry *entry = cache->oldest, **link = bucket_of(cache, entry->key.hash);
    while (*link != entry) link = &(*link)->next;
    *link = entry->next;
    unlink_use(cache, entry);
    cache->stats.bytes -= entry_size(entry) + BLOCK_BYTES;
    cache->stats.n_entries--;
    free(entry);
}

int tokenizer_cache_find(struct tokenizer_cache *cache, const struct tokenizer_cache_key *key,
                         struct token_list *list, struct tokenizer_cache_hit *hit) {
    int rc = 0;
    *hit = (struct tokenizer_cache_hit){0};
    pthread_mutex_lock(&cache->lock);
    struct entry *entry = find(cache, key);
    if (entry) rc = token_list_reserve(list, entry->value.n_ids);
    if (entry && !rc) {
        *hit = entry->value;
        if (hit->n_ids > 0)
            memcpy(list->ids + list->n, entry->ids, hit->n_ids * sizeof(*entry->ids));
        unlink_use(cache, entry);
        link_newest(cache, entry);
        cache->stats.hit_bytes += hit->n_done;
    }
    pthread_mutex_unlock(&cache->lock);
    return rc;
}

static struct entry *make_entry(const struct tokenizer_cache_key *key, const uint32_t *ids,
                                const struct tokenizer_cache_hit *value) {
    const struct entry head = {.key = *key, .value = *value};
    struct entry *entry = malloc(entry_size(&head));
    if (!entry) return NULL;
    *entry = head;
    char *bytes = (char *)(entry->ids + value->n_ids);
    if (value->n_ids > 0) memcpy(entry->ids, ids, value->n_ids * sizeof(*ids));
    memcpy(bytes, key->bytes, key->n);
    entry->key.bytes = bytes;
    return entry;
}

void tokenizer_cache_insert(struct tokenizer_cache *cache, const struct tokenizer_cache_key *key,
                            const uint32_t *ids, const struct tokenizer_cache_hit *value) {
    assert(value->n_done > 0 && value->n_done <= key->n);
    struct entry *entry = make_entry(key, ids, value);
    if (!entry) return;
    const size_t size = entry_size(entry) + BLOCK_BYTES;
    pthread_mutex_lock(&cache->lock);
    if (!find(cache, key)) { /* another thread may have encoded the same text */
        while (cache->oldest && cache->stats.bytes + size > cache->config.max_bytes)
            evict_oldest(cache);
        if (cache->stats.bytes + size <= cache->config.max_bytes) {
            struct entry **bucket = bucket_of(cache, key->hash);
            entry->next = *bucket;
            *bucket = entry;
            link_newest(cache, entry);
            cache->stats.bytes += size;
            cache->stats.n_entries++;
            entry = NULL;
        }
    }
    pthread_mutex_unlock(&cache->lock);
    free(entry);
}

void tokenizer_cache_count_missed(struct tokenizer_cache *cache, size_t n) {
    pthread_mutex_lock(&cache->lock);
    cache->stats.missed_bytes += n;
    pthread_mutex_unlock(&cache->lock);
}

struct tokenizer_cache_stats tokenizer_cache_stats(struct tokenizer_cache *cache) {
    pthread_mutex_lock(&cache->lock);
    const struct tokenizer_cache_stats stats = cache->stats;
    pthread_mutex_unlock(&cache->lock);
    return stats;
}
