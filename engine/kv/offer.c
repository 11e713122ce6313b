/* offer.c - see offer.h. */
#include "engine/kv/offer.h"

#include <string.h>

#include "engine/device/pages.h"
#include "engine/kv/checkpoints.h"
#include "engine/kv/disk/disk.h"
#include "engine/kv/kv_space.h"
#include "engine/kv/page_io.h"

struct disk_key kv_block_key(uint64_t salt, const struct disk_id *parent, const uint32_t *tokens) {
    struct disk_key key = {
        .kind = DISK_BLOCK, .n_tokens = PAGE_TOKENS, .words = {salt}, .tokens = tokens};
    if (!parent) return key;
    key.n_before = parent->n_tokens;
    key.parent = parent->name;
    return key;
}

/* Tells whether the item is on the device. */
static bool is_on_device(const struct kv_space *space, const struct kv_offer *offer) {
    return offer->checkpoint ? !checkpoints_is_stored(space->checkpoints, *offer->checkpoint)
                             : offer->pages != NULL;
}

/* Tells whether the item may be copied now.  Memory of the host whose copy the device has not made
 * yet is not read: waiting would stop the engine. */
static bool can_copy(const struct kv_space *space, const struct kv_offer *offer) {
    if (offer->key->words[0] & KV_SALT_PRIVATE) return false;
    return is_on_device(space, offer) || kv_disk_has_completed(space->disk, offer->written_at);
}

/* Copies a checkpoint, and clears what is left of its last page. */
static int copy_checkpoint(const struct kv_space *space, const struct kv_offer *offer, char *to) {
    const size_t bytes = checkpoints_bytes(space->checkpoints),
                 in_all = offer->n_pages * page_io_page_bytes(&space->io);
    memset(to + bytes, 0, in_all - bytes);
    return checkpoints_copy_out(space->checkpoints, *offer->checkpoint, to, NULL);
}

static int copy_item(const struct kv_space *space, const struct kv_offer *offer, char *to) {
    if (offer->checkpoint) return copy_checkpoint(space, offer, to);
    if (offer->pages) return page_io_read(&space->io, offer->pages, offer->n_pages, to, NULL);
    page_io_take_blocks(&space->io, offer->blocks, offer->n_pages, to);
    return 0;
}

enum kv_offered kv_offer(const struct kv_space *space, const struct kv_offer *offer) {
    bool is_full = false;
    if (!can_copy(space, offer)) return OFFER_SKIPPED;
    struct disk_job *job = kv_disk_begin_write(space->disk, offer->key, offer->id, offer->notes,
                                               offer->n_pages, &is_full);
    if (!job && is_full && offer->is_last) kv_disk_count_dropped(space->disk);
    if (!job) return is_full ? OFFER_FULL : OFFER_SKIPPED;
    kv_disk_end_write(space->disk, job, copy_item(space, offer, job->pages) != 0);
    return OFFER_TAKEN;
}

enum kv_save_result kv_save_one(const struct kv_space *space, const struct kv_offer *offer,
                                struct kv_saving *saving) {
    const uint64_t bytes = disk_format_payload(offer->key->n_tokens) +
                           offer->n_pages * (uint64_t)page_io_page_bytes(&space->io);
    if (bytes > saving->bytes) return SAVE_ENOUGH;
    saving->bytes -= bytes;
    switch (kv_offer(space, offer)) {
    case OFFER_TAKEN: return --saving->n_items == 0 ? SAVE_LATER : SAVE_ON;
    case OFFER_FULL: return SAVE_LATER;
    case OFFER_SKIPPED: break;
    }
    return SAVE_ON;
}
