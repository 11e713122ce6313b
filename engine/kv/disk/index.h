/* index.h - which items the tier on disk has, how many bytes they are, and which one is oldest.
 *
 *   name ──hash──► entry ─┬─ kind, n_tokens, bytes
 *                         └─ older / newer      least recently used first
 *
 * It is made from the names of files alone, so a start reads none of them.  Lengths of states are
 * counted, too: a text is looked for under the lengths that there are.
 *
 * Thread: one at a time (disk.c has the lock).  Memory: grows with the items, at most
 * DISK_MAX_ITEMS. */
#ifndef ENGINE_KV_DISK_INDEX_H
#define ENGINE_KV_DISK_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/digest.h"

struct disk_index; /* opaque: the fields live in index.c */

enum { DISK_MAX_ITEMS = 1 << 22 };

/* What the name of a file says. */
struct disk_id {
    struct digest_value name;
    uint32_t kind;
    uint32_t n_tokens; /* of the text, up to the item's end */
};

struct disk_entry {
    struct disk_id id;
    uint64_t bytes;  /* 0: it is being written */
    uint64_t used_s; /* when it was used last, before this start; only disk_index_sort() asks */
};

int disk_index_create(struct disk_index **out);    /* ERR_NOMEM */
void disk_index_destroy(struct disk_index *index); /* NULL is allowed */

/* Adds an entry as the newest.  ERR_FULL: there are too many, or it is there already.
 * ERR_NOMEM. */
int disk_index_add(struct disk_index *index, const struct disk_entry *entry);
/* Puts all entries in the order of used_s.  Within a second those with more tokens are older,
 * because they are of no use without those with fewer. */
void disk_index_sort(struct disk_index *index);
/* Returns the entry, or NULL; it is valid until the next call that changes the index. */
const struct disk_entry *disk_index_find(const struct disk_index *index, const struct disk_id *id);
void disk_index_touch(struct disk_index *index, const struct disk_id *id); /* makes it newest */
/* Sets the bytes of an entry, which makes it newest. */
void disk_index_set_bytes(struct disk_index *index, const struct disk_id *id, uint64_t bytes);
void disk_index_remove(struct disk_index *index, const struct disk_id *id); /* if it is there */
/* Returns the least recently used entry that is not being written, or NULL. */
const struct disk_entry *disk_index_oldest(const struct disk_index *index);

/* Returns how many entries there are, with those that are being written. */
uint32_t disk_index_n_items(const struct disk_index *index);
uint64_t disk_index_bytes(const struct disk_index *index); /* of all entries */
/* Writes the lengths of states that are longer than n_min and at most n_max, ascending, and returns
 * their number; at most `most`, the longest. */
uint32_t disk_index_lengths(const struct disk_index *index, uint32_t n_min, uint32_t n_max,
                            uint32_t *lengths, uint32_t most);

#endif
