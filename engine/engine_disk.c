/* engine_disk.c - see engine_disk.h. */
#include "engine/engine_disk.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/mailbox.h"
#include "engine/base/sizes.h"
#include "engine/device/backend.h"
#include "engine/device/collective.h"
#include "engine/device/pages.h"
#include "engine/engine.h"
#include "engine/kv/disk/disk.h"
#include "engine/kv/kv_space.h"
#include "engine/kv/reclaim.h"
#include "engine/kv_identity.h"

/* Items that one call saves: a request that arrives meanwhile waits for their copies. */
enum { SAVE_ITEMS = 16 };
/* How long saving may take at the end: supervisors kill what does not stop within ten seconds. */
static const double save_all_s = 8;

static void poke(void *ctx) {
    mailbox_poke(ctx);
}

int engine_disk_open(struct engine_disk *disk, const struct engine_config *config,
                     struct mailbox *box, struct error *err) {
    const struct kv_disk_config tier = {
        .path = config->disk_path, .max_bytes = config->disk_bytes, .wake = poke, .wake_ctx = box};
    return tier.path ? kv_disk_open(&disk->tier, &tier, err) : 0;
}

int engine_disk_begin(struct engine_disk *disk, const struct engine_config *config,
                      const struct model *model, struct kv_space *space, struct error *err) {
    struct digest_value identity;
    if (!disk->tier) return 0;
    int code = kv_identity(&identity, config, model, space, err);
    snprintf(disk->writer, sizeof(disk->writer), "%s %" PRIu32, ranks_setting(config->ranks_share),
             max_u32(config->backend->n_ranks, 1));
    if (!code)
        code =
            kv_disk_begin(disk->tier, identity, page_io_page_bytes(&space->io), disk->writer, err);
    if (code) return code;
    space->disk = disk->tier;
    space->readings = &disk->readings;
    return 0;
}

void engine_disk_close(struct engine_disk *disk) {
    kv_disk_close(disk->tier);
    disk->tier = NULL;
}

int engine_disk_key(const struct engine_disk *disk, enum engine_key purpose, uint64_t key[2],
                    struct error *err) {
    const size_t bytes = 2 * sizeof(key[0]);
    if (disk->tier) {
        const struct digest_value secret = kv_disk_secret(disk->tier, purpose);
        memcpy(key, secret.words, bytes);
        return 0;
    }
    if (getrandom(key, bytes, 0) == (ssize_t)bytes) return 0;
    return error_set(err, ERR_IO, "cannot read random numbers from the system");
}

/* Offers up to n_most cached items to the tier, and hands their copies over. */
static bool save(const struct engine_disk *disk, const struct kv_space *space, uint32_t n_most) {
    struct error err;
    const bool more = kv_save_cached(space, n_most);
    if (page_io_sync(&space->io, &err)) return false; /* the next step will notice, too */
    kv_disk_completed(disk->tier, 0, true);
    return more;
}

bool engine_disk_save(const struct engine_disk *disk, const struct kv_space *space) {
    return disk->tier && save(disk, space, SAVE_ITEMS);
}

void engine_disk_save_all(const struct engine_disk *disk, const struct kv_space *space) {
    const double until_s = clock_seconds() + save_all_s;
    for (bool more = disk->tier != NULL; more && clock_seconds() < until_s;) {
        more = save(disk, space, UINT32_MAX);
        kv_disk_flush(disk->tier, until_s);
    }
}
