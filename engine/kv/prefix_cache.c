/* prefix_cache.c - blocks in fixed arrays, a chained hash table over them, and lists of those that
 * have pages to give.
 *
 *   n_users          0: the block is in `idle`, and may be evicted
 *   n_needing        users that need its pages in layers of a role; if 0 for layers with a window,
 *                    with n_users > 0 and these pages there, the block is in `passed`, and may drop
 *                    them
 *   is_offloaded     the block has no pages but host blocks that hold what they had; with
 *                    n_users 0 it is in `offloaded`, and may be dropped
 *   dropped          it has no pages in layers of a role, nor had when it was offloaded
 *
 * A block moves to the host pool after its children, and is dropped from there after them.  In both
 * lists a child is older than its parent.
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

#include "engine/base/age_list.h"
#include "engine/base/error.h"
#include "engine/base/siphash.h"
#include "engine/base/sizes.h"
#include "engine/device/pages.h"
#include "engine/kv/checkpoints.h"
#include "engine/kv/disk/disk.h"
#include "engine/kv/kv_feed.h"
#include "engine/kv/kv_space.h"
#include "engine/kv/offer.h"
#include "engine/kv/page_io.h"
#include "engine/kv/page_pool.h"

struct block {
    uint64_t hash, salt;
    uint64_t since; /* when it was appended to its list */
    uint32_t parent;
    uint32_t n_users, n_children;
    uint32_t n_needing[KV_N_ROLES];
    uint32_t token_block; /* KV_NO_PAGE: none */
    uint32_t checkpoint;  /* CHECKPOINT_NONE: none */
    uint32_t next;        /* in its bucket, or in the list of vacant entries */
    bool dropped[KV_N_ROLES];
    bool is_offloaded;
    uint8_t told; /* enum kv_place, to the feed in this epoch of it */
    uint32_t told_epoch;
    uint64_t written_at; /* kv_disk_n_submitted() of its copy to the host pool */
};

struct prefix_cache {
    const struct kv_space *space;
    struct page_pool *pool; /* the space's */
    uint64_t key[2];
    uint32_t n_layers, n_of[KV_N_ROLES], n_entries, n_blocks;
    uint32_t max_host_blocks; /* that an offloaded block takes; 0: none is offloaded */
    uint32_t n_idle_pages;    /* pages that the blocks in lists could give */
    /* Pages of blocks in `offloaded`, and the host blocks that they take; token blocks of blocks
     * in `idle`. */
    uint32_t n_offloaded_pages, n_offloaded_blocks, n_token_blocks;
    uint64_t clock;
    uint32_t vacant; /* head of the list of vacant entries */
    struct age_list idle, passed, offloaded;
    uint32_t bucket_mask;
    uint32_t *buckets;
    uint8_t *roles;        /* [n_layers] */
    struct block *blocks;  /* [n_entries] */
    struct age_link *ages; /* [n_entries]: of the list that a block is in */
    uint32_t *tokens;      /* [n_entries][PAGE_TOKENS] */
    uint32_t *pages;       /* [n_entries][n_layers] */
    uint32_t *host_blocks; /* [n_entries][max_host_blocks] */
    /* With a tier on disk; else NULL. */
    struct disk_id *ids; /* [n_entries] */
    uint32_t *offered;   /* [n_layers]: a block's pages in the order of its file */
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

static uint32_t *block_tokens(const struct prefix_cache *cache, uint32_t block) {
    return cache->tokens + (size_t)block * PAGE_TOKENS;
}

static uint32_t *block_pages(const struct prefix_cache *cache, uint32_t block) {
    return cache->pages + (size_t)block * cache->n_layers;
}

static uint32_t *block_host_blocks(const struct prefix_cache *cache, uint32_t block) {
    return cache->host_blocks + (size_t)block * cache->max_host_blocks;
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
static struct age_list *list_of(struct prefix_cache *cache, const struct block *b) {
    if (b->is_offloaded) return b->n_users == 0 ? &cache->offloaded : NULL;
    if (b->n_users == 0) return &cache->idle;
    const bool may_drop =
        b->n_needing[KV_WINDOWED] == 0 && !b->dropped[KV_WINDOWED] && cache->n_of[KV_WINDOWED] > 0;
    return may_drop ? &cache->passed : NULL;
}

static uint32_t n_block_pages(const struct prefix_cache *cache, const struct block *b) {
    uint32_t n = 0;
    for (unsigned role = 0; role < KV_N_ROLES; role++)
        if (!b->dropped[role]) n += cache->n_of[role];
    return n;
}

/* Returns how many host blocks the block takes, or would take. */
static uint32_t n_host_blocks(const struct prefix_cache *cache, const struct block *b) {
    return (uint32_t)page_io_n_blocks(&cache->space->io, n_block_pages(cache, b));
}

/* Returns how many pages the block, in its list, could give. */
static uint32_t n_idle_pages(const struct prefix_cache *cache, const struct block *b) {
    if (b->is_offloaded) return 0;
    return b->n_users == 0 ? n_block_pages(cache, b) : cache->n_of[KV_WINDOWED];
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
        cache->n_offloaded_pages += (uint32_t)sign * n_block_pages(cache, b);
        cache->n_offloaded_blocks += (uint32_t)sign * n_host_blocks(cache, b);
    } else if (b->token_block != KV_NO_PAGE) cache->n_token_blocks += (uint32_t)sign;
}

static void list_remove(struct prefix_cache *cache, uint32_t block) {
    const struct block *b = &cache->blocks[block];
    struct age_list *list = list_of(cache, b);
    if (!list) return;
    age_list_remove(list, cache->ages, block);
    cache->n_idle_pages -= n_idle_pages(cache, b);
    count_offloaded(cache, b, -1);
}

static void list_append(struct prefix_cache *cache, uint32_t block) {
    struct block *b = &cache->blocks[block];
    struct age_list *list = list_of(cache, b);
    if (!list) return;
    age_list_append(list, cache->ages, block);
    b->since = cache->clock++;
    cache->n_idle_pages += n_idle_pages(cache, b);
    count_offloaded(cache, b, 1);
}

const uint32_t *prefix_cache_pages(const struct prefix_cache *cache, uint32_t block) {
    return block_pages(cache, block);
}

/* Takes references to the block's pages in layers of this role; drop_pages() gives them back. */
static void hold_pages(struct prefix_cache *cache, uint32_t block, enum kv_role role,
                       const struct page_list *layers, uint32_t index) {
    uint32_t *pages = block_pages(cache, block);
    for (uint32_t l = 0; l < cache->n_layers; l++) {
        if (cache->roles[l] != role) continue;
        pages[l] = layers[l].pages[index];
        page_pool_share(cache->pool, &pages[l], 1);
    }
    cache->blocks[block].dropped[role] = false;
}

static void release_pages(struct prefix_cache *cache, uint32_t block, enum kv_role role) {
    const uint32_t *pages = block_pages(cache, block);
    for (uint32_t l = 0; l < cache->n_layers; l++)
        if (cache->roles[l] == role) page_pool_release(cache->pool, &pages[l], 1);
}

static void drop_pages(struct prefix_cache *cache, uint32_t block, enum kv_role role) {
    release_pages(cache, block, role);
    cache->blocks[block].dropped[role] = true;
}

static void release_all_pages(struct prefix_cache *cache, uint32_t block) {
    for (enum kv_role role = 0; role < KV_N_ROLES; role++)
        if (!cache->blocks[block].dropped[role]) release_pages(cache, block, role);
}

static void release_token_block(struct prefix_cache *cache, struct block *b) {
    if (b->token_block != KV_NO_PAGE) page_pool_release(cache->space->blocks, &b->token_block, 1);
    b->token_block = KV_NO_PAGE;
}

/* Drops a block's sparse pages if all users use its token block, or the token block if all use the
 * pages. */
static void drop_unneeded(struct prefix_cache *cache, uint32_t block) {
    struct block *b = &cache->blocks[block];
    const uint32_t n_needing = b->n_needing[KV_SPARSE];
    if (b->n_users == 0 || b->is_offloaded || b->token_block == KV_NO_PAGE || b->dropped[KV_SPARSE])
        return;
    if (n_needing == 0) drop_pages(cache, block, KV_SPARSE);
    else if (n_needing == b->n_users) release_token_block(cache, b);
}

/* ---- the feed ---- */

/* Tells whether the block has its tokens of sparse layers, in pages or in a token block. */
static bool has_sparse(const struct block *b) {
    return !b->dropped[KV_SPARSE] || b->token_block != KV_NO_PAGE;
}

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
    memcpy(event.tokens, block_tokens(cache, block), sizeof(event.tokens));
    return kv_feed_put(cache->space->feed, &event);
}

/* Tells the feed that the block is at this place now.  The reader hears of the new one first, so it
 * never believes that a block that moves is gone. */
static void tell_place(struct prefix_cache *cache, uint32_t block, enum kv_place place) {
    struct block *b = &cache->blocks[block];
    const enum kv_place before = told_place(cache, block);
    if (place == before) return;
    if (place != KV_NOWHERE && !put_event(cache, block, true, place)) return;
    if (before != KV_NOWHERE && !put_event(cache, block, false, before)) return;
    b->told = (uint8_t)place;
    b->told_epoch = kv_feed_epoch(cache->space->feed);
}

/* Tells the feed where the block is, if it is for all and its parent has been told. */
static void tell(struct prefix_cache *cache, uint32_t block) {
    if (!cache->space->feed) return;
    const struct block *b = &cache->blocks[block];
    const bool is_known = b->parent == PREFIX_NONE || told_place(cache, b->parent) != KV_NOWHERE;
    enum kv_place place = b->is_offloaded ? KV_ON_HOST : KV_ON_DEVICE;
    if (b->salt != 0 || !has_sparse(b) || !is_known) place = KV_NOWHERE;
    tell_place(cache, block, place);
}

static void count_needs(struct block *b, uint32_t needs, int sign) {
    for (unsigned role = 0; role < KV_N_ROLES; role++)
        if (needs & 1u << role) b->n_needing[role] += (uint32_t)sign;
}

void prefix_cache_use(struct prefix_cache *cache, uint32_t block, uint32_t needs) {
    struct block *b = &cache->blocks[block];
    assert(!(needs & PREFIX_WINDOW) || !b->dropped[KV_WINDOWED]);
    list_remove(cache, block);
    b->n_users++;
    count_needs(b, needs, 1);
    list_append(cache, block);
    tell(cache, block);
}

void prefix_cache_expire(struct prefix_cache *cache, uint32_t block) {
    struct block *b = &cache->blocks[block];
    assert(b->n_needing[KV_WINDOWED] > 0);
    if (--b->n_needing[KV_WINDOWED] == 0) list_append(cache, block);
}

void prefix_cache_unuse(struct prefix_cache *cache, uint32_t block, uint32_t needs) {
    struct block *b = &cache->blocks[block];
    assert(b->n_users > 0);
    list_remove(cache, block);
    b->n_users--;
    count_needs(b, needs, -1);
    drop_unneeded(cache, block);
    list_append(cache, block);
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
    list_remove(cache, block);
    drop_pages(cache, block, KV_WINDOWED);
}

static void release_host_blocks(struct prefix_cache *cache, uint32_t block) {
    struct block *b = &cache->blocks[block];
    page_pool_release(cache->space->blocks, block_host_blocks(cache, block),
                      n_host_blocks(cache, b));
    b->is_offloaded = false;
}

/* Removes a block that is in its list from the cache. */
static void drop(struct prefix_cache *cache, uint32_t block) {
    struct block *b = &cache->blocks[block];
    assert(b->n_users == 0 && b->n_children == 0);
    if (cache->space->feed) tell_place(cache, block, KV_NOWHERE);
    list_remove(cache, block);
    uint32_t *link = &cache->buckets[b->hash & cache->bucket_mask];
    while (*link != block) link = &cache->blocks[*link].next;
    *link = b->next;
    if (b->parent != PREFIX_NONE) cache->blocks[b->parent].n_children--;
    if (b->is_offloaded) release_host_blocks(cache, block);
    else release_all_pages(cache, block);
    release_token_block(cache, b);
    prefix_cache_drop_checkpoint(cache, block);
    b->next = cache->vacant;
    cache->vacant = block;
    cache->n_blocks--;
}

/* ---- the tier on disk ---- */

static struct disk_key disk_key(const struct prefix_cache *cache, uint32_t block) {
    const struct block *b = &cache->blocks[block];
    return kv_block_key(b->salt, b->parent == PREFIX_NONE ? NULL : &cache->ids[b->parent],
                        block_tokens(cache, block));
}

/* Puts the pages that the block has into the order of host blocks. */
static const uint32_t *pages_in_order(struct prefix_cache *cache, uint32_t block) {
    const uint32_t *pages = block_pages(cache, block);
    uint32_t n = 0;
    for (unsigned i = 0; i < KV_N_PLACED; i++)
        for (uint32_t l = 0; l < cache->n_layers; l++)
            if (cache->roles[l] == kv_place_order[i]) cache->offered[n++] = pages[l];
    return cache->offered;
}

/* Describes the block for the tier; the key must live as long. */
static struct kv_offer describe(struct prefix_cache *cache, uint32_t block, struct disk_key *key) {
    const struct block *b = &cache->blocks[block];
    *key = disk_key(cache, block);
    return (struct kv_offer){
        .key = key,
        .id = &cache->ids[block],
        .n_pages = n_block_pages(cache, b),
        .pages = b->is_offloaded ? NULL : pages_in_order(cache, block),
        .blocks = block_host_blocks(cache, block),
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
    item->key = disk_key(cache, block);
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

/* Offers a checkpoint that is about to be dropped, if the block has one. */
static void offer_checkpoint(const struct prefix_cache *cache, uint32_t block) {
    struct checkpoint_item item;
    if (!cache->ids || cache->blocks[block].checkpoint == CHECKPOINT_NONE) return;
    describe_checkpoint(cache, block, &item);
    item.offer.is_last = true;
    (void)kv_offer(cache->space, &item.offer);
}

static void offer_and_drop(struct prefix_cache *cache, uint32_t block) {
    struct disk_key key;
    if (cache->ids && !cache->blocks[block].dropped[KV_SPARSE]) {
        struct kv_offer offer = describe(cache, block, &key);
        offer.is_last = true;
        (void)kv_offer(cache->space, &offer);
        offer_checkpoint(cache, block);
    }
    drop(cache, block);
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

void prefix_cache_drop_oldest_offloaded(struct prefix_cache *cache) {
    offer_and_drop(cache, cache->offloaded.oldest);
}

/* Transfers a block's pages in layers of this role to or from its host blocks, from *place on. */
static int move_role(const struct prefix_cache *cache, uint32_t block, enum kv_role role,
                     page_io_blocks move, uint32_t *place, struct error *err) {
    const uint32_t *pages = block_pages(cache, block), *blocks = block_host_blocks(cache, block);
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

/* Moves an idle block to host blocks, which it has taken.  A failed copy is no reason to drop the
 * block: a device that fails does not read it again. */
static void offload(struct prefix_cache *cache, uint32_t block) {
    const struct kv_space *space = cache->space;
    struct block *b = &cache->blocks[block];
    (void)move_out(cache, block, NULL);
    space->swaps->n_out += n_block_pages(cache, b);
    list_remove(cache, block);
    release_all_pages(cache, block);
    b->is_offloaded = true;
    b->written_at = space->disk ? kv_disk_n_submitted(space->disk) : 0;
    list_append(cache, block);
    tell(cache, block);
}

bool prefix_cache_is_offloaded(const struct prefix_cache *cache, uint32_t block) {
    return cache->blocks[block].is_offloaded;
}

/* Gives an offloaded block these pages instead of its host blocks, in layers whose pages are
 * needed. */
static void hold_again(struct prefix_cache *cache, uint32_t block, const struct page_list *layers,
                       uint32_t index, uint32_t needs) {
    struct block *b = &cache->blocks[block];
    list_remove(cache, block);
    release_host_blocks(cache, block);
    hold_pages(cache, block, KV_PLAIN, layers, index);
    for (enum kv_role role = 0; role < KV_N_ROLES; role++) {
        if (role == KV_PLAIN || cache->n_of[role] == 0) continue;
        if (needs & 1u << role) hold_pages(cache, block, role, layers, index);
        else b->dropped[role] = true;
    }
    list_append(cache, block);
    tell(cache, block);
}

int prefix_cache_reload(struct prefix_cache *cache, uint32_t block, const struct page_list *layers,
                        uint32_t index, uint32_t needs, struct error *err) {
    const struct block *b = &cache->blocks[block];
    bool was_dropped[KV_N_ROLES];
    assert(b->is_offloaded && b->n_users > 0);
    memcpy(was_dropped, b->dropped, sizeof(was_dropped));
    for (enum kv_role role = 0; role < KV_N_ROLES; role++)
        if (was_dropped[role]) needs &= ~(1u << role);
    hold_again(cache, block, layers, index, needs);
    cache->space->swaps->n_in += n_block_pages(cache, b);
    /* No sequence has taken its host blocks yet, and any later writes to them come after this
     * copy. */
    const int code = move_in(cache, block, was_dropped, err);
    drop_unneeded(cache, block);
    return code;
}

/* Gives the block its pages in layers of this role, which it had dropped. */
static void hold_dropped(struct prefix_cache *cache, uint32_t block, enum kv_role role,
                         const struct page_list *layers, uint32_t index) {
    list_remove(cache, block);
    hold_pages(cache, block, role, layers, index);
    list_append(cache, block);
}

void prefix_cache_hold_sparse(struct prefix_cache *cache, uint32_t block,
                              const struct page_list *layers, uint32_t index) {
    if (cache->blocks[block].dropped[KV_SPARSE])
        hold_dropped(cache, block, KV_SPARSE, layers, index);
    drop_unneeded(cache, block);
    tell(cache, block);
}

void prefix_cache_set_token_block(struct prefix_cache *cache, uint32_t block,
                                  uint32_t token_block) {
    struct block *b = &cache->blocks[block];
    assert(b->n_users > 0);
    if (b->token_block == KV_NO_PAGE) {
        page_pool_share(cache->space->blocks, &token_block, 1);
        b->token_block = token_block;
    }
    drop_unneeded(cache, block);
    tell(cache, block);
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
    if (!has_sparse(b) && b->n_children == 0) return (struct kv_demotion){0};
    return (struct kv_demotion){.to_host = true, .n_blocks = n_host_blocks(cache, b)};
}

void prefix_cache_evict_oldest(struct prefix_cache *cache, struct kv_demotion demotion) {
    const uint32_t block = cache->idle.oldest;
    if (window_is_oldest(cache)) drop_oldest_window(cache);
    else if (demotion.to_host &&
             !page_pool_take(cache->space->blocks, block_host_blocks(cache, block),
                             demotion.n_blocks))
        offload(cache, block);
    else offer_and_drop(cache, block);
}

/* Takes the token block from an unused block, which stays where it is in its list: its children,
 * which are older, stay behind it. */
static void drop_token_block(struct prefix_cache *cache, struct block *b) {
    page_pool_withdraw(cache->space->blocks, PAGE_CACHED, &b->token_block, 1);
    release_token_block(cache, b);
    cache->n_token_blocks--;
}

void prefix_cache_drop_token_blocks(struct prefix_cache *cache, uint64_t n_blocks) {
    for (uint32_t i = cache->idle.oldest; cache->n_token_blocks > 0; i = cache->ages[i].newer) {
        if (page_pool_n_free(cache->space->blocks) >= n_blocks) return;
        if (cache->blocks[i].token_block == KV_NO_PAGE) continue;
        drop_token_block(cache, &cache->blocks[i]);
        tell(cache, i);
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
    memcpy(block_tokens(cache, block), tokens, PAGE_TOKENS * sizeof(*tokens));
    if (cache->ids) {
        const struct disk_key key = disk_key(cache, block);
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
        if (cache->n_of[KV_PLAIN] > 0) hold_pages(cache, block, KV_PLAIN, layers, index);
        list_append(cache, block);
    }
    const struct block *b = &cache->blocks[block];
    if (b->is_offloaded) hold_again(cache, block, layers, index, needs);
    for (enum kv_role role = 0; role < KV_N_ROLES; role++)
        if (needs & 1u << role && b->dropped[role]) hold_dropped(cache, block, role, layers, index);
    prefix_cache_use(cache, block, needs);
    if (token_block != KV_NO_PAGE) prefix_cache_set_token_block(cache, block, token_block);
    drop_unneeded(cache, block);
    tell(cache, block);
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
    offer_checkpoint(cache, block);
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
