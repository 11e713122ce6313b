/* digest.c - see digest.h. */
#include "engine/base/digest.h"

#include <string.h>

#include "engine/base/crc32c.h"

/* Each piece has a checksum of its own, so a change in one of them is missed once in 2^32. */
enum { PIECE_BYTES = 1 << 16 };

void digest_init(struct digest *digest, const uint64_t key[DIGEST_KEY_WORDS]) {
    siphash_init(&digest->lanes[0], key);
    siphash_init(&digest->lanes[1], key + 2);
}

void digest_absorb(struct digest *digest, uint64_t word) {
    siphash_absorb(&digest->lanes[0], word);
    siphash_absorb(&digest->lanes[1], word);
}

void digest_absorb_checksums(struct digest *digest, const void *bytes, size_t size) {
    const char *at = bytes;
    digest_absorb(digest, size);
    for (size_t n; size > 0; size -= n, at += n) {
        n = size < PIECE_BYTES ? size : PIECE_BYTES;
        digest_absorb(digest, crc32c(0, at, n));
    }
}

void digest_absorb_bytes(struct digest *digest, const void *bytes, size_t size) {
    const char *at = bytes;
    digest_absorb(digest, size);
    for (size_t n; size > 0; size -= n, at += n) {
        uint64_t word = 0;
        n = size < sizeof(word) ? size : sizeof(word);
        memcpy(&word, at, n);
        digest_absorb(digest, word);
    }
}

struct digest_value digest_end(const struct digest *digest) {
    struct siphash first = digest->lanes[0], second = digest->lanes[1];
    return (struct digest_value){{siphash_end(&first), siphash_end(&second)}};
}
