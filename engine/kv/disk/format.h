/* format.h - a file of the tier on disk: one block of a prefix, one state, or one checkpoint.
 *
 *   [ head, 152 bytes | tokens, u32 each | zeros up to 64 bytes | pages, one behind the other ]
 *     checksum of all before the pages ──┘    checksum of the pages, in the head
 *
 * A file says all that decides its contents: the identity of its writer, the kind, what its owner
 * tells items apart by (words), the parent's name and the tokens.  A reader compares all of that
 * with what it looks for.  So a name that two items share costs a hit, and no request gets
 * another's cache.  Numbers have the machine's byte order, and a file of the other order is
 * refused.
 *
 * A file may be torn, damaged or foreign: nothing in it is trusted before it is checked.
 *
 * Thread: any.  Memory: none; tokens and pages point into the file's bytes. */
#ifndef ENGINE_KV_DISK_FORMAT_H
#define ENGINE_KV_DISK_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/digest.h"

enum { DISK_BLOCK = 1, DISK_STATE, DISK_CHECKPOINT, DISK_N_KINDS = DISK_CHECKPOINT };
enum { DISK_N_WORDS = 8, DISK_N_NOTES = 2 };

/* What an item is: two items are the same if all of this is. */
struct disk_key {
    uint32_t kind;               /* DISK_BLOCK, … */
    uint32_t n_before, n_tokens; /* of the text: before the item, and the item's own */
    uint64_t words[DISK_N_WORDS];
    struct digest_value parent; /* a block's parent's name, or its checkpoint's; else zero */
    const uint32_t *tokens;     /* [n_tokens], borrowed */
};

struct disk_head {
    struct disk_key key;
    struct digest_value identity;
    uint32_t notes[DISK_N_NOTES]; /* for its owner */
    uint32_t n_pages;
    uint64_t page_bytes;
};

/* Tells whether both name the same item: every member and all tokens are equal. */
bool disk_key_same(const struct disk_key *a, const struct disk_key *b);
/* Returns the item's name under a digest's key. */
struct digest_value disk_key_name(const struct disk_key *key, const uint64_t secret[]);
/* Begins a name; absorbing tokens one by one and then their number ends it. */
void disk_key_begin(struct digest *digest, const struct disk_key *key, const uint64_t secret[]);

/* Returns where the pages begin, and the size of the file.  n_tokens is not more than a file of
 * that size could have. */
size_t disk_format_payload(uint32_t n_tokens);
/* Returns the size of the whole file, with its pages. */
size_t disk_format_bytes(const struct disk_head *head);

/* Writes all but the pages, which are in place, into a file of disk_format_bytes() bytes. */
void disk_format_write(char *file, const struct disk_head *head);
/* Checks a file and reads its head.  ERR_INVALID: it is not whole, or no such file. */
int disk_format_read(struct disk_head *out, const char *file, size_t size);

#endif
