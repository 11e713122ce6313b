/* prefix_cache.c - blocks in fixed arrays, a chained hash table over them, and lists of those that
 * have pages to give.
 *
 *   n_users          0: the block is in `idle`, and may be evicted
 *   n_window_users   users that need its pages in layers with a window; if 0, with n_users > 0 and
 *                    these pages there, the block is in `passed`, and may drop them
 *   is_stored        the block has no pages but host blocks (places) that hold what they had; with
 *                    n_users 0 it is in `stored`, and may be dropped
 *
 * A block moves to the host pool after its children, and is dropped from there after them.  In both
 * lists a child is older than its parent.
 *
 * Every block owns a page in each layer that has no window.  So entries for the pool's pages
 * divided by these layers are always enough, and no operation allocates.  Where all layers have
 * windows there is one entry for every page; as blocks without window pages own none, entries may
 * run out.  For the host pool there are as many more as it can hold blocks whose window is dropped.
 * The hash is SipHash-2-4 under a random key.  Clients choose the tokens, and must not be able to
 * choose collisions that turn the table into one long list.
 *
 * Thread: engine.  Memory: see prefix_cache.h. */
#include "engine/kv/prefix_cache.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/error.h"
#include "engine/base/siphash.h"
#include "engine/base/sizes.h"
#include "engine/device/pages.h"
#include "engine/kv/host_copy.h"
#include "engine/kv/kv_space.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/swap.h"

struct block {
    uint64_t hash, salt;
    uint64_t since; /* when it was appended to its list */
    uint32_t parent;
    uint32_t n_users, n_window_users, n_children;
    uint32_t older, newer; /* in its list */
    uint32_t next;         /* in its bucket, or in the list of vacant entries */
    bool window_dropped;   /* it has no pages in layers with a window */
    bool is_stored;
};

/* Blocks by age. */
struct block_list {
    uint32_t oldest, newest;
};

struct prefix_cache {
    const struct kv_space *space;
    struct page_pool *pool; /* the space's */
    uint64_t key[2];
    uint32_t n_layers, n_windowed, n_entries, n_blocks;
    uint32_t place_blocks;      /* host blocks that a stored block takes; 0: none are stored */
    uint32_t windowless_blocks; /* the same for one without window pages */
    uint32_t n_idle_pages;      /* pages that the blocks in lists could give */
    /* Pages of blocks in `stored`, and the host blocks that they take. */
    uint32_t n_stored_pages, n_store_blocks;
    uint64_t clock;
    uint32_t vacant; /* head of the list of vacant entries */
    struct block_list idle, passed, stored;
    uint32_t bucket_mask;
    uint32_t *buckets;
    struct block *blocks; /* [n_entries] */
    uint32_t *tokens;     /* [n_entries][PAGE_TOKENS] */
    uint32_t *pages;      /* [n_entries][n_layers] */
    uint32_t *places;     /* [n_entries][place_blocks] */
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
    cache->places = malloc((n * cache->place_blocks + 1) * sizeof(*cache->places));
    if (!cache->buckets || !cache->blocks || !cache->tokens || !cache->pages || !cache->places)
        return ERR_NOMEM;
    memset(cache->buckets, 0xff, n_buckets * sizeof(*cache->buckets));
    return 0;
}

static bool has_window(const struct prefix_cache *cache, uint32_t layer) {
    return kv_has_window(cache->space, layer);
}

/* Sets the numbers of entries and of host blocks for each block (see above). */
static void count_entries(struct prefix_cache *cache) {
    const struct kv_space *space = cache->space;
    for (uint32_t l = 0; l < cache->n_layers; l++) cache->n_windowed += has_window(cache, l);
    cache->n_entries =
        page_pool_n_pages(cache->pool) / max_u32(cache->n_layers - cache->n_windowed, 1);
    if (!space->swaps) return;
    cache->place_blocks = (uint32_t)kv_blocks_for(space, cache->n_layers);
    cache->windowless_blocks = (uint32_t)kv_blocks_for(space, cache->n_layers - cache->n_windowed);
    cache->n_entries += page_pool_n_pages(space->blocks) / max_u32(cache->windowless_blocks, 1);
}

int prefix_cache_create(struct prefix_cache **out, const struct kv_space *space,
                        struct error *err) {
    assert(space->n_layers > 0);
    struct prefix_cache *cache = calloc(1, sizeof(*cache));
    if (!cache) goto fail;
    cache->space = space;
    cache->pool = space->pool;
    cache->n_layers = space->n_layers;
    count_entries(cache);
    cache->idle = cache->passed = cache->stored = (struct block_list){PREFIX_NONE, PREFIX_NONE};
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
    free(cache->places);
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

static uint32_t *block_places(const struct prefix_cache *cache, uint32_t block) {
    return cache->places + (size_t)block * cache->place_blocks;
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

/* Returns the list that the block belongs in, NULL if it has nothing to give. */
static struct block_list *list_of(struct prefix_cache *cache, const struct block *b) {
    if (b->is_stored) return b->n_users == 0 ? &cache->stored : NULL;
    if (b->n_users == 0) return &cache->idle;
    return b->n_window_users == 0 && !b->window_dropped && cache->n_windowed > 0 ? &cache->passed
                                                                                 : NULL;
}

/* Returns how many host blocks the block takes, or would take. */
static uint32_t n_places(const struct prefix_cache *cache, const struct block *b) {
    return b->window_dropped ? cache->windowless_blocks : cache->place_blocks;
}

static uint32_t n_block_pages(const struct prefix_cache *cache, const struct block *b) {
    return cache->n_layers - (b->window_dropped ? cache->n_windowed : 0);
}

/* Returns how many pages the block, in its list, could give. */
static uint32_t n_idle_pages(const struct prefix_cache *cache, const struct block *b) {
    if (b->is_stored) return 0;
    return (b->n_users == 0 ? cache->n_layers - cache->n_windowed : 0) +
           (b->window_dropped ? 0 : cache->n_windowed);
}

static void count_stored(struct prefix_cache *cache, const struct block *b, int sign) {
    if (!b->is_stored) return;
    cache->n_stored_pages += (uint32_t)sign * n_block_pages(cache, b);
    cache->n_store_blocks += (uint32_t)sign * n_places(cache, b);
}

static void list_remove(struct prefix_cache *cache, const struct block *b) {
    struct block_list *list = list_of(cache, b);
    if (!list) return;
    if (b->older != PREFIX_NONE) cache->blocks[b->older].newer = b->newer;
    else list->oldest = b->newer;
    if (b->newer != PREFIX_NONE) cache->blocks[b->newer].older = b->older;
    else list->newest = b->older;
    cache->n_idle_pages -= n_idle_pages(cache, b);
    count_stored(cache, b, -1);
}

static void list_append(struct prefix_cache *cache, uint32_t block) {
    struct block *b = &cache->blocks[block];
    struct block_list *list = list_of(cache, b);
    if (!list) return;
    b->older = list->newest;
    b->newer = PREFIX_NONE;
    b->since = cache->clock++;
    if (list->newest != PREFIX_NONE) cache->blocks[list->newest].newer = block;
    else list->oldest = block;
    list->newest = block;
    cache->n_idle_pages += n_idle_pages(cache, b);
    count_stored(cache, b, 1);
}

void prefix_cache_use(struct prefix_cache *cache, uint32_t block, bool needs_window) {
    struct block *b = &cache->blocks[block];
    assert(!needs_window || !b->window_dropped);
    list_remove(cache, b);
    b->n_users++;
    b->n_window_users += needs_window;
    list_append(cache, block);
}

void prefix_cache_expire(struct prefix_cache *cache, uint32_t block) {
    struct block *b = &cache->blocks[block];
    assert(b->n_window_users > 0);
    if (--b->n_window_users == 0) list_append(cache, block);
}

void prefix_cache_unuse(struct prefix_cache *cache, uint32_t block, bool needs_window) {
    struct block *b = &cache->blocks[block];
    assert(b->n_users > 0 && b->n_window_users >= needs_window);
    list_remove(cache, b);
    b->n_users--;
    b->n_window_users -= needs_window;
    list_append(cache, block);
}

bool prefix_cache_window_dropped(const struct prefix_cache *cache, uint32_t block) {
    return cache->blocks[block].window_dropped;
}

uint32_t prefix_cache_n_users(const struct prefix_cache *cache, uint32_t block) {
    return cache->blocks[block].n_users;
}

const uint32_t *prefix_cache_pages(const struct prefix_cache *cache, uint32_t block) {
    return block_pages(cache, block);
}

/* Takes references to the block's pages in layers with a window, or in the others; release_pages()
 * gives them back. */
static void hold_pages(struct prefix_cache *cache, uint32_t block, bool windowed,
                       const struct page_list *layers, uint32_t index) {
    uint32_t *pages = block_pages(cache, block);
    for (uint32_t l = 0; l < cache->n_layers; l++) {
        if (has_window(cache, l) != windowed) continue;
        pages[l] = layers[l].pages[index];
        page_pool_share(cache->pool, &pages[l], 1);
    }
}

static void release_pages(struct prefix_cache *cache, uint32_t block, bool windowed) {
    const uint32_t *pages = block_pages(cache, block);
    for (uint32_t l = 0; l < cache->n_layers; l++)
        if (has_window(cache, l) == windowed) page_pool_release(cache->pool, &pages[l], 1);
}

static void set_windowed(struct prefix_cache *cache, uint32_t block, const struct page_list *layers,
                         uint32_t index) {
    list_remove(cache, &cache->blocks[block]);
    hold_pages(cache, block, true, layers, index);
    cache->blocks[block].window_dropped = false;
    list_append(cache, block);
}

static void drop_oldest_window(struct prefix_cache *cache) {
    const uint32_t block = cache->passed.oldest;
    list_remove(cache, &cache->blocks[block]);
    release_pages(cache, block, true);
    cache->blocks[block].window_dropped = true;
}

static void release_all_pages(struct prefix_cache *cache, uint32_t block) {
    release_pages(cache, block, false);
    if (!cache->blocks[block].window_dropped) release_pages(cache, block, true);
}

static void release_places(struct prefix_cache *cache, uint32_t block) {
    struct block *b = &cache->blocks[block];
    page_pool_release(cache->space->blocks, block_places(cache, block), n_places(cache, b));
    b->is_stored = false;
}

/* Removes a block that is in its list from the cache. */
static void drop(struct prefix_cache *cache, uint32_t block) {
    struct block *b = &cache->blocks[block];
    assert(b->n_users == 0 && b->n_window_users == 0 && b->n_children == 0);
    list_remove(cache, b);
    uint32_t *link = &cache->buckets[b->hash & cache->bucket_mask];
    while (*link != block) link = &cache->blocks[*link].next;
    *link = b->next;
    if (b->parent != PREFIX_NONE) cache->blocks[b->parent].n_children--;
    if (b->is_stored) release_places(cache, block);
    else release_all_pages(cache, block);
    b->next = cache->vacant;
    cache->vacant = block;
    cache->n_blocks--;
}

void prefix_cache_drop_oldest_stored(struct prefix_cache *cache) {
    drop(cache, cache->stored.oldest);
}

/* Transfers a block to or from its host blocks.  Pages of layers with a window come last there: a
 * block may have none. */
static int move_block(const struct prefix_cache *cache, uint32_t block, kv_move_pages move,
                      struct error *err) {
    const uint32_t *pages = block_pages(cache, block), *places = block_places(cache, block);
    uint32_t place = 0, windowed_place = cache->n_layers - cache->n_windowed;
    int code = 0;
    for (uint32_t l = 0; l < cache->n_layers && !code; l++) {
        const bool windowed = has_window(cache, l);
        if (windowed && cache->blocks[block].window_dropped) continue;
        code = move(cache->space, &pages[l], 1, places, windowed ? windowed_place++ : place++, err);
    }
    return code;
}

/* Moves an idle block to the host pool, or drops it if there is no space.  A block that has
 * children there always finds space, at least theirs, or they have been dropped.  A failed copy is
 * no reason to drop the block: a device that fails does not read it again. */
static void store_or_drop(struct prefix_cache *cache, uint32_t block) {
    const struct kv_space *space = cache->space;
    struct block *b = &cache->blocks[block];
    const uint32_t n = n_places(cache, b);
    if (cache->place_blocks > 0) kv_drop_stored(space, n);
    if (cache->place_blocks == 0 || page_pool_take(space->blocks, block_places(cache, block), n)) {
        drop(cache, block);
        return;
    }
    (void)move_block(cache, block, kv_pages_out, NULL);
    space->swaps->n_out += n_block_pages(cache, b);
    list_remove(cache, b);
    release_all_pages(cache, block);
    b->is_stored = true;
    list_append(cache, block);
}

bool prefix_cache_is_stored(const struct prefix_cache *cache, uint32_t block) {
    return cache->blocks[block].is_stored;
}

/* Gives a stored block these pages instead of its host blocks, except in layers with a window. */
static void hold_again(struct prefix_cache *cache, uint32_t block, const struct page_list *layers,
                       uint32_t index) {
    list_remove(cache, &cache->blocks[block]);
    hold_pages(cache, block, false, layers, index);
    release_places(cache, block);
    cache->blocks[block].window_dropped = cache->n_windowed > 0;
    list_append(cache, block);
}

int prefix_cache_bring_back(struct prefix_cache *cache, uint32_t block,
                            const struct page_list *layers, uint32_t index, bool needs_window,
                            struct error *err) {
    const struct block *b = &cache->blocks[block];
    assert(b->is_stored && b->n_users > 0 && (!needs_window || !b->window_dropped));
    hold_again(cache, block, layers, index);
    if (needs_window) set_windowed(cache, block, layers, index);
    cache->space->swaps->n_in += n_block_pages(cache, b);
    /* No sequence has taken its host blocks yet, and any later writes to them come after this
     * copy. */
    return move_block(cache, block, kv_pages_in, err);
}

static uint64_t oldest_of(const struct prefix_cache *cache, const struct block_list *list) {
    return list->oldest == PREFIX_NONE ? UINT64_MAX : cache->blocks[list->oldest].since;
}

uint64_t prefix_cache_oldest(const struct prefix_cache *cache) {
    return min_u64(oldest_of(cache, &cache->idle), oldest_of(cache, &cache->passed));
}

uint64_t prefix_cache_oldest_stored(const struct prefix_cache *cache) {
    return oldest_of(cache, &cache->stored);
}

uint64_t prefix_cache_tick(struct prefix_cache *cache) {
    return cache->clock++;
}

void prefix_cache_evict_oldest(struct prefix_cache *cache) {
    if (oldest_of(cache, &cache->passed) < oldest_of(cache, &cache->idle))
        drop_oldest_window(cache);
    else store_or_drop(cache, cache->idle.oldest);
}

void prefix_cache_evict(struct prefix_cache *cache, uint32_t n_pages) {
    while (page_pool_n_free(cache->pool) < n_pages && prefix_cache_oldest(cache) < UINT64_MAX)
        prefix_cache_evict_oldest(cache);
}

/* Adds an entry with this name, a parent in use, and no users.  Drops the oldest unused block if no
 * entry is vacant.  PREFIX_NONE: all are in use. */
static uint32_t add_block(struct prefix_cache *cache, uint32_t parent, uint64_t salt, uint64_t hash,
                          const uint32_t *tokens) {
    const uint32_t oldest =
        cache->stored.oldest != PREFIX_NONE ? cache->stored.oldest : cache->idle.oldest;
    if (cache->vacant == PREFIX_NONE && oldest != PREFIX_NONE) drop(cache, oldest);
    const uint32_t block = cache->vacant;
    if (block == PREFIX_NONE) return PREFIX_NONE;
    struct block *b = &cache->blocks[block];
    cache->vacant = b->next;
    uint32_t *bucket = &cache->buckets[hash & cache->bucket_mask];
    *b = (struct block){
        .hash = hash, .salt = salt, .parent = parent, .next = *bucket, .window_dropped = true};
    *bucket = block;
    if (parent != PREFIX_NONE) {
        assert(cache->blocks[parent].n_users > 0);
        cache->blocks[parent].n_children++;
    }
    memcpy(block_tokens(cache, block), tokens, PAGE_TOKENS * sizeof(*tokens));
    cache->n_blocks++;
    return block;
}

uint32_t prefix_cache_insert(struct prefix_cache *cache, uint32_t parent, uint64_t salt,
                             uint64_t hash, const uint32_t *tokens, const struct page_list *layers,
                             uint32_t index, bool needs_window) {
    uint32_t block = prefix_cache_find(cache, parent, salt, hash, tokens);
    if (block == PREFIX_NONE) {
        block = add_block(cache, parent, salt, hash, tokens);
        if (block == PREFIX_NONE) return PREFIX_NONE;
        hold_pages(cache, block, false, layers, index);
        list_append(cache, block);
    }
    if (cache->blocks[block].is_stored) hold_again(cache, block, layers, index);
    if (needs_window && cache->blocks[block].window_dropped)
        set_windowed(cache, block, layers, index);
    prefix_cache_use(cache, block, needs_window);
    return block;
}

uint32_t prefix_cache_n_blocks(const struct prefix_cache *cache) {
    return cache->n_blocks;
}

uint32_t prefix_cache_n_idle_pages(const struct prefix_cache *cache) {
    return cache->n_idle_pages;
}

uint32_t prefix_cache_n_stored_pages(const struct prefix_cache *cache) {
    return cache->n_stored_pages;
}

uint32_t prefix_cache_n_store_blocks(const struct prefix_cache *cache) {
    return cache->n_store_blocks;
}
