/* siphash.c - see siphash.h. */
#include "engine/base/siphash.h"

#include <string.h>

static inline uint64_t rotate(uint64_t x, int n) {
    return x << n | x >> (64 - n);
}

static inline void mix(uint64_t v[4]) {
    v[0] += v[1], v[1] = rotate(v[1], 13) ^ v[0], v[0] = rotate(v[0], 32);
    v[2] += v[3], v[3] = rotate(v[3], 16) ^ v[2];
    v[0] += v[3], v[3] = rotate(v[3], 21) ^ v[0];
    v[2] += v[1], v[1] = rotate(v[1], 17) ^ v[2], v[2] = rotate(v[2], 32);
}

void siphash_init(struct siphash *hash, const uint64_t key[2]) {
    *hash = (struct siphash){{key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d,
                              key[0] ^ 0x6c7967656e657261, key[1] ^ 0x7465646279746573}};
}

static inline void absorb(uint64_t v[4], uint64_t word) {
    v[3] ^= word;
    mix(v);
    mix(v);
    v[0] ^= word;
}

void siphash_absorb(struct siphash *hash, uint64_t word) {
    absorb(hash->v, word);
}

void siphash_absorb_tokens(struct siphash *hash, const uint32_t *tokens, size_t n) {
    struct siphash own = *hash; /* in registers: a long prompt has 100,000 */
    for (size_t i = 0; i + 1 < n; i += 2) absorb(own.v, tokens[i] | (uint64_t)tokens[i + 1] << 32);
    if (n % 2) absorb(own.v, tokens[n - 1]);
    *hash = own;
}

void siphash_absorb_bytes(struct siphash *hash, const void *bytes, size_t n) {
    struct siphash own = *hash; /* in registers, as above */
    const unsigned char *p = bytes;
    uint64_t word;
    for (; n >= sizeof(word); p += sizeof(word), n -= sizeof(word)) {
        memcpy(&word, p, sizeof(word));
        absorb(own.v, word);
    }
    word = 0;
    memcpy(&word, p, n);
    if (n > 0) absorb(own.v, word);
    *hash = own;
}

uint64_t siphash_end(struct siphash *hash) {
    uint64_t *v = hash->v;
    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++) mix(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
