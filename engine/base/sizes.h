/* sizes.h - the arithmetic of sizes that every folder needs: minimum, maximum and rounding up.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_BASE_SIZES_H
#define ENGINE_BASE_SIZES_H

#include <stdint.h>

static inline uint32_t min_u32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

static inline uint32_t max_u32(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static inline uint64_t min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* Returns how many units n takes, the last one perhaps in part.  It has 64 bits, so that sums of
 * 32-bit numbers do not wrap. */
static inline uint64_t div_up(uint64_t n, uint64_t unit) {
    return (n + unit - 1) / unit;
}

/* Returns the least multiple of the unit that is not below n. */
static inline uint64_t round_up(uint64_t n, uint64_t unit) {
    return div_up(n, unit) * unit;
}

#endif
