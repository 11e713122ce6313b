/* half.h - numbers of 16 bits as floats, in plain C.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_DEVICE_HALF_H
#define ENGINE_DEVICE_HALF_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Returns the value of an f16: sign, 5 bits of exponent (bias 15), 10 of mantissa. */
static inline float half_to_float(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31,
                   mantissa = half & 0x3ff;
    const uint32_t bits = sign | (exponent == 31 ? 255 : exponent + 112) << 23 | mantissa << 13;
    float value;
    if (exponent == 0) {
        value = (float)mantissa * 0x1p-24f;
        return sign ? -value : value;
    }
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Returns false if an f16 is NaN or infinite. */
static inline bool half_is_finite(uint16_t half) {
    return (half & 0x7c00) != 0x7c00;
}

/* Returns half of what an E8M0 code says, 2^(code - 128), as a bf16; the two least ones are
 * subnormal. */
static inline uint16_t half_of_e8m0(uint8_t code) {
    return (uint16_t)(code < 2 ? 0x20 << code : (code - 1) << 7);
}

#endif
