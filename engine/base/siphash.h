/* siphash.h - SipHash-2-4: a keyed hash for words that clients choose and must not be able to
 * collide at will.
 *
 * As published by Aumasson and Bernstein, but without its last word, which counts bytes: only a
 * caller whose inputs differ in length absorbs one.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_BASE_SIPHASH_H
#define ENGINE_BASE_SIPHASH_H

#include <stdint.h>

struct siphash {
    uint64_t v[4];
};

void siphash_init(struct siphash *hash, const uint64_t key[2]);
void siphash_absorb(struct siphash *hash, uint64_t word);
uint64_t siphash_end(struct siphash *hash); /* nothing is absorbed afterwards */

#endif
