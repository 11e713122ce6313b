/* rounding.h - floats to codes with scales, each to the nearest that there is.
 *
 *   fp8    E4M3, a scale for each row            the largest of a row is 448
 *   int8   -128 to 127, a scale for each row     the largest is 127.5
 *   int4   -8 to 7, a scale for each group       the largest is 7.5
 *
 * Scales are bf16, and codes are chosen for what that is.  Codes of integers are stored with half
 * of their number added; of two in a byte the first is in the lower half.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_QUANTISE_ROUNDING_H
#define ENGINE_QUANTISE_ROUNDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rounding {
    const char *name; /* of the setting */
    uint32_t bits;
    bool is_float, has_groups;
    float largest; /* that a scale of 1 covers */
};

/* Ends with a row without name. */
extern const struct rounding roundings[];

/* Sums of squares: of what was rounded off, and of the values. */
struct rounding_error {
    double error, values;
};

/* Returns the bytes of n codes, a multiple of what a byte holds. */
static inline size_t rounding_bytes(const struct rounding *rounding, size_t n) {
    return n * rounding->bits / 8;
}

/* Rounds a row of n values with a scale for each `group` of them, which divides n.  Writes
 * rounding_bytes(n) codes and n / group scales, and adds to *sum.  Returns false if a value is NaN
 * or infinite. */
bool rounding_row(const struct rounding *rounding, uint32_t group, const float *values, uint32_t n,
                  uint8_t *codes, uint16_t *scales, struct rounding_error *sum);

#endif
