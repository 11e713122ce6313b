/* offer.h - copies what leaves the caches in memory to the tier on disk, if there is one.
 *
 * An item is a block of the prefix cache, its checkpoint, or a state.  Nothing is copied that is
 * there already, that is not to outlive the process (KV_SALT_PRIVATE), or that the tier has no
 * space for.  A copy that fails only costs hits.
 *
 * Thread: engine.  Memory: the tier's (disk/disk.h). */
#ifndef ENGINE_KV_OFFER_H
#define ENGINE_KV_OFFER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/kv/disk/format.h"

struct disk_id;
struct kv_space;

/* Returns the key by which the tier knows a block of PAGE_TOKENS tokens; it points to `tokens`.
 * parent: the id of the block before it; NULL: it is a text's first. */
struct disk_key kv_block_key(uint64_t salt, const struct disk_id *parent, const uint32_t *tokens);

/* An item and where its pages are, in the order in which the file has them.  A checkpoint takes as
 * many pages of a file as it has bytes for. */
struct kv_offer {
    const struct disk_key *key; /* words[0] is the salt */
    const struct disk_id *id;   /* kv_disk_id() of the key */
    uint32_t notes[DISK_N_NOTES];
    uint32_t n_pages;
    const uint32_t *pages;      /* of the pool; NULL: they are in host blocks */
    const uint32_t *blocks;     /* host blocks with the pages in order */
    const uint32_t *checkpoint; /* it is one, and has neither; else NULL */
    uint64_t written_at; /* kv_disk_n_submitted() when host blocks or a stored one were written */
    bool is_last;        /* the item is dropped afterwards: if there is no space it is counted */
};

/* What became of an offered item. */
enum kv_offered {
    OFFER_TAKEN,
    OFFER_SKIPPED, /* on disk already, private, or not to be copied now */
    OFFER_FULL     /* the disk's queue is full: try again later */
};

/* Copies the item's pages, from the pool or from host blocks, and queues them to be written.  The
 * space must have a disk.  A copy that fails is OFFER_TAKEN, but nothing is written. */
enum kv_offered kv_offer(const struct kv_space *space, const struct kv_offer *offer);

/* What is left of the bounds of a pass over all that is cached, the newest first.  Items beyond the
 * size of the disk are not offered: they would only remove newer ones. */
struct kv_saving {
    uint32_t n_items; /* that may still be copied in this pass; at least 1 */
    uint64_t bytes;   /* that the pass may still offer, whether they are copied or there already */
};

/* How to go on with a pass. */
enum kv_save_result {
    SAVE_ON,    /* go on with the next item */
    SAVE_LATER, /* there may be more, but not now */
    SAVE_ENOUGH /* the disk has no space for more */
};

/* Offers one item of a pass, subtracts it from the bounds, and says how to go on. */
enum kv_save_result kv_save_one(const struct kv_space *space, const struct kv_offer *offer,
                                struct kv_saving *saving);

#endif
