/* salt.c - see salt.h. */
#include "server/api/salt.h"

#include "engine/base/siphash.h"

uint64_t salt_scope(const struct salt_key *key, uint64_t cache_salt, uint64_t client) {
    struct siphash hash;
    siphash_init(&hash, key->words);
    siphash_absorb(&hash, cache_salt);
    siphash_absorb(&hash, client);
    return siphash_end(&hash);
}

uint64_t salt_hash(const struct salt_key *key, const char *text, size_t length) {
    struct siphash state;
    siphash_init(&state, key->words);
    uint64_t word = 0;
    for (size_t i = 0; i < length; i++) {
        word |= (uint64_t)(unsigned char)text[i] << (8 * (i % 8));
        if (i % 8 == 7) {
            siphash_absorb(&state, word);
            word = 0;
        }
    }
    siphash_absorb(&state, word | (uint64_t)(length & 0xFF) << 56);
    const uint64_t hash = siphash_end(&state);
    return hash ? hash : 1; /* 0 means the common cache */
}
