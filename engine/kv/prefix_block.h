/* prefix_block.h - a block of the prefix cache: its entry, the pages that it holds, and the list
 * that it is in.  Only the files of the prefix cache include this.
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
 * Thread: engine.  Memory: the cache's tables. */
#ifndef ENGINE_KV_PREFIX_BLOCK_H
#define ENGINE_KV_PREFIX_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/age_list.h"
#include "engine/device/pages.h"
#include "engine/kv/disk/disk.h"
#include "engine/kv/kv_feed.h"
#include "engine/kv/kv_space.h"
#include "engine/kv/prefix_cache.h"

struct page_pool;

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

static inline uint32_t *prefix_block_tokens(const struct prefix_cache *cache, uint32_t block) {
    return cache->tokens + (size_t)block * PAGE_TOKENS;
}

static inline uint32_t *prefix_block_pages(const struct prefix_cache *cache, uint32_t block) {
    return cache->pages + (size_t)block * cache->n_layers;
}

static inline uint32_t *prefix_block_host_blocks(const struct prefix_cache *cache, uint32_t block) {
    return cache->host_blocks + (size_t)block * cache->max_host_blocks;
}

/* ---- what a block holds: prefix_block.c ---- */

/* Returns how many pages the block has, or had when it was offloaded. */
uint32_t prefix_block_n_pages(const struct prefix_cache *cache, const struct block *b);
/* Returns how many host blocks the block takes, or would take. */
uint32_t prefix_block_n_host_blocks(const struct prefix_cache *cache, const struct block *b);
/* Tells whether the block has its tokens of sparse layers, in pages or in a token block. */
bool prefix_block_has_sparse(const struct block *b);
/* Takes the block out of its list before one of its members changes, and puts it into the right one
 * as the newest afterwards. */
void prefix_block_unlist(struct prefix_cache *cache, uint32_t block);
void prefix_block_list(struct prefix_cache *cache, uint32_t block);
/* Takes references to the block's pages in layers of this role; prefix_block_drop() gives them
 * back.  index: of the page in the lists. */
void prefix_block_hold(struct prefix_cache *cache, uint32_t block, enum kv_role role,
                       const struct page_list *layers, uint32_t index);
void prefix_block_drop(struct prefix_cache *cache, uint32_t block, enum kv_role role);
/* Gives all of its pages back, its host blocks, or its token block. */
void prefix_block_release(struct prefix_cache *cache, uint32_t block);
void prefix_block_release_host_blocks(struct prefix_cache *cache, uint32_t block);
void prefix_block_release_token_block(struct prefix_cache *cache, struct block *b);
/* Drops a block's sparse pages if all users use its token block, or the token block if all use the
 * pages. */
void prefix_block_drop_unneeded(struct prefix_cache *cache, uint32_t block);

/* ---- what the feed is told of it: prefix_feed.c ---- */

/* Tells the feed where the block is, if it is for all and its parent has been told. */
void prefix_feed_tell(struct prefix_cache *cache, uint32_t block);
/* Tells the feed that the block is at this place now.  There must be a feed. */
void prefix_feed_tell_place(struct prefix_cache *cache, uint32_t block, enum kv_place place);

/* ---- what the tier on disk gets of it: prefix_disk.c ---- */

/* Returns the name of the block's file. */
struct disk_key prefix_disk_key(const struct prefix_cache *cache, uint32_t block);
/* Offers a block that is about to be dropped, with its checkpoint; or the checkpoint alone.  Does
 * nothing without a tier. */
void prefix_disk_offer(struct prefix_cache *cache, uint32_t block);
void prefix_disk_offer_checkpoint(const struct prefix_cache *cache, uint32_t block);

/* ---- its way to the host pool and back: prefix_host.c ---- */

/* Moves an idle block to host blocks, which it has taken. */
void prefix_host_move_out(struct prefix_cache *cache, uint32_t block);
/* Gives an offloaded block these pages instead of its host blocks, in layers whose pages are
 * needed. */
void prefix_host_hold_again(struct prefix_cache *cache, uint32_t block,
                            const struct page_list *layers, uint32_t index, uint32_t needs);

#endif
