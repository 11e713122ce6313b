/* half.h - numbers of 16 bits as floats, in plain C.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_DEVICE_HALF_H
#define ENGINE_DEVICE_HALF_H

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

#endif
