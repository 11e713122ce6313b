/* salt.c - see salt.h. */
#include "server/api/salt.h"

#include <string.h>

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
    /* The last word has what is left of the text, and the length in its last byte. */
    const size_t n_left = length % sizeof(uint64_t);
    uint64_t last = (uint64_t)(length & 0xFF) << 56;
    if (n_left > 0) memcpy(&last, text + length - n_left, n_left);
    siphash_absorb_bytes(&state, text, length - n_left);
    siphash_absorb(&state, last);
    const uint64_t hash = siphash_end(&state);
    return hash ? hash : 1; /* 0 means the common cache */
}
