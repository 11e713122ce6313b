/* digest.h - a hash of 128 bits under a key: two SipHashes of the same words.
 *
 * Callers whose inputs differ in length absorb the length, too (siphash.h).
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_BASE_DIGEST_H
#define ENGINE_BASE_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/siphash.h"

enum { DIGEST_KEY_WORDS = 4 };

struct digest {
    struct siphash lanes[2];
};

/* The hash itself. */
struct digest_value {
    uint64_t words[2];
};

void digest_init(struct digest *digest, const uint64_t key[DIGEST_KEY_WORDS]);
void digest_absorb(struct digest *digest, uint64_t word);
/* Absorbs the bytes' number and, piece by piece, their checksums (crc32c.h): for large files. */
void digest_absorb_checksums(struct digest *digest, const void *bytes, size_t size);
/* Absorbs the bytes' number and the bytes. */
void digest_absorb_bytes(struct digest *digest, const void *bytes, size_t size);
/* Returns the hash of what was absorbed so far; more may follow. */
struct digest_value digest_end(const struct digest *digest);

static inline bool digest_same(struct digest_value a, struct digest_value b) {
    return a.words[0] == b.words[0] && a.words[1] == b.words[1];
}

#endif
