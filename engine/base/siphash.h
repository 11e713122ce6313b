/* siphash.h - SipHash-2-4: a keyed hash of words that clients choose but must not be able to make
 * collide.
 *
 * The hash is as published by Aumasson and Bernstein, but without the last word, which counts
 * bytes.  A caller whose inputs differ in length absorbs such a word itself.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_BASE_SIPHASH_H
#define ENGINE_BASE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

struct siphash {
    uint64_t v[4];
};

void siphash_init(struct siphash *hash, const uint64_t key[2]);
void siphash_absorb(struct siphash *hash, uint64_t word);
/* Absorbs n numbers, two in a word; an odd one has a word of its own. */
void siphash_absorb_tokens(struct siphash *hash, const uint32_t *tokens, size_t n);
/* Absorbs n bytes, eight in a word, the last one filled up with zeros; it does not absorb n. */
void siphash_absorb_bytes(struct siphash *hash, const void *bytes, size_t n);
uint64_t siphash_end(struct siphash *hash); /* no word may be absorbed afterwards */

#endif
