/* rng.c - two rounds of a 64-bit finaliser (Stafford's variant 13) over seed and counter. */
#include "engine/base/rng.h"

#include <sys/random.h>

#include "engine/base/clock.h"

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

double rng_uniform(uint64_t seed, uint64_t index) {
    /* The seed is mixed before the counter is added: neighbouring seeds must not share numbers. */
    const uint64_t golden = 0x9e3779b97f4a7c15;
    uint64_t bits = mix(mix(seed + golden) + (index + 1) * golden);
    return (double)(bits >> 11) * 0x1p-53;
}

uint64_t rng_fresh_seed(void) {
    uint64_t seed;
    if (getrandom(&seed, sizeof(seed), 0) == (ssize_t)sizeof(seed)) return seed;
    return mix(clock_ns());
}
