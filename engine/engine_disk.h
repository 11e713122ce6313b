/* engine_disk.h - an engine's tier on disk (kv/disk/disk.h): its beginning, its keys, and when what
 * is cached is saved there.
 *
 * What is evicted is written when that happens.  The rest is saved in pauses, while there are no
 * requests, and at the end.
 *
 * Thread: create and destroy by the engine's; the rest belongs to the engine thread.  Memory: the
 * tier's. */
#ifndef ENGINE_ENGINE_DISK_H
#define ENGINE_ENGINE_DISK_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/kv/read_ahead.h"

struct engine_config;
struct error;
struct kv_disk;
struct kv_space;
struct mailbox;
struct model;

struct engine_disk {
    struct kv_disk *tier; /* NULL: there is none, and nothing here does anything */
    struct kv_readings readings;
    char writer[40]; /* how many ranks there are: others find none of its files */
};

/* What secrets are for. */
enum engine_key { KEY_OF_PREFILL = 1, KEY_OF_SALTS = 2 };

/* Opens the tier that the configuration names, which looks at its files while the model is loaded.
 * It pokes the mailbox when something has arrived. */
int engine_disk_open(struct engine_disk *disk, const struct engine_config *config,
                     struct mailbox *box, struct error *err);
/* Gives the space, complete but for its caches, the tier. */
int engine_disk_begin(struct engine_disk *disk, const struct engine_config *config,
                      const struct model *model, struct kv_space *space, struct error *err);
void engine_disk_close(struct engine_disk *disk);

/* Fills in a key of two words: random, or a secret of the tier. */
int engine_disk_key(const struct engine_disk *disk, enum engine_key purpose, uint64_t key[2],
                    struct error *err);

/* Saves a few cached items; returns true if there are more.  No step is in flight. */
bool engine_disk_save(const struct engine_disk *disk, const struct kv_space *space);
/* Saves all that is cached, as far as there is time. */
void engine_disk_save_all(const struct engine_disk *disk, const struct kv_space *space);

#endif
