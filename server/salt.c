/* salt.c - see salt.h.  SipHash as published by Aumasson and Bernstein. */
#include "server/salt.h"

struct sip {
    uint64_t v0, v1, v2, v3;
};

static uint64_t rotate(uint64_t x, int bits) {
    return (x << bits) | (x >> (64 - bits));
}

static void sip_round(struct sip *s) {
    s->v0 += s->v1;
    s->v1 = rotate(s->v1, 13) ^ s->v0;
    s->v0 = rotate(s->v0, 32);
    s->v2 += s->v3;
    s->v3 = rotate(s->v3, 16) ^ s->v2;
    s->v0 += s->v3;
    s->v3 = rotate(s->v3, 21) ^ s->v0;
    s->v2 += s->v1;
    s->v1 = rotate(s->v1, 17) ^ s->v2;
    s->v2 = rotate(s->v2, 32);
}

static void sip_word(struct sip *s, uint64_t word) {
    s->v3 ^= word;
    sip_round(s);
    sip_round(s);
    s->v0 ^= word;
}

uint64_t salt_hash(const struct salt_key *key, const char *text, size_t length) {
    struct sip s = {key->k0 ^ 0x736f6d6570736575, key->k1 ^ 0x646f72616e646f6d,
                    key->k0 ^ 0x6c7967656e657261, key->k1 ^ 0x7465646279746573};
    uint64_t word = 0;
    for (size_t i = 0; i < length; i++) {
        word |= (uint64_t)(unsigned char)text[i] << (8 * (i % 8));
        if (i % 8 == 7) {
            sip_word(&s, word);
            word = 0;
        }
    }
    sip_word(&s, word | (uint64_t)(length & 0xFF) << 56);
    s.v2 ^= 0xFF;
    for (int i = 0; i < 4; i++) sip_round(&s);
    const uint64_t hash = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
    return hash ? hash : 1; /* 0 is the common cache */
}
