/* offer.h - copies what leaves the caches in memory to the tier on disk, if there is one.
 *
 * Nothing is copied that is there already, that is not to outlive the process (KV_SALT_PRIVATE), or
 * that the tier has no room for.  A copy that fails only costs hits.
 *
 * Thread: engine.  Memory: the tier's (disk/disk.h). */
#ifndef ENGINE_KV_OFFER_H
#define ENGINE_KV_OFFER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/kv/disk/format.h"

struct disk_id;
struct kv_space;

/* Returns the key of a block of PAGE_TOKENS tokens; parent NULL: it is the first. */
struct disk_key kv_block_key(uint64_t salt, const struct disk_id *parent, const uint32_t *tokens);

/* Pages of an item, in the order in which the file has them. */
struct kv_offer {
    const struct disk_key *key; /* words[0] is the salt */
    const struct disk_id *id;   /* kv_disk_id() of the key */
    uint32_t notes[DISK_N_NOTES];
    uint32_t n_pages;
    const uint32_t *pages;  /* of the pool; NULL: they are in host blocks */
    const uint32_t *blocks; /* host blocks with the pages in order */
    uint64_t written_at;    /* kv_disk_n_submitted() when these blocks were written */
    bool is_last;           /* the item is gone if it is not taken */
};

enum kv_offered {
    OFFER_TAKEN,
    OFFER_SKIPPED, /* stored already, or never stored */
    OFFER_FULL     /* the disk's queue is full: try again later */
};

/* Copies the item's pages, from the pool or from host blocks, and queues them to be written.  A
 * copy that fails is not reported: the item is then not stored. */
enum kv_offered kv_offer(const struct kv_space *space, const struct kv_offer *offer);

/* A pass over what is cached, the newest first, and what is left of its bounds.  Items beyond the
 * size of the disk are not offered: they would only remove newer ones. */
struct kv_saving {
    uint32_t n_items; /* how many more may be copied in this pass; at least 1 */
    uint64_t bytes;   /* of all items, copied or there already */
};

enum kv_save_result {
    SAVE_ON,
    SAVE_LATER, /* there may be more, but not now */
    SAVE_ENOUGH /* the disk has no space for more */
};

/* Offers one item of a pass, and says how to go on. */
enum kv_save_result kv_save_one(const struct kv_space *space, const struct kv_offer *offer,
                                struct kv_saving *saving);

#endif
