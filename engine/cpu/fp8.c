/* fp8.c - see fp8.h.
 *
 *   f32    s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm     both order their magnitudes as integers do, so
 *   e4m3   s     eeee mmm                         rounding carries into the exponent by itself */
#include "engine/cpu/fp8.h"

#include <math.h>
#include <string.h>

#include "engine/cpu/vec.h"
#include "engine/device/host_pool.h"

enum { INFINITY_BITS = 0x7f800000, LARGEST = 0x7e, NOT_A_NUMBER = 0x7f };
enum { DROPPED = 23 - 3, BIAS_APART = (127 - 7) << 3 };

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static float of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Rounds the bits of a float that is not negative to an e4m3 magnitude.  Codes below 2^-6 are
 * multiples of 2^-9, to which adding 2^14 rounds: an f32 there has steps of 2^-9. */
static uint32_t round_magnitude(uint32_t bits) {
    const float x = of_bits(bits);
    if (x < 0x1p-6f) return bits_of(x + 0x1p14f) - bits_of(0x1p14f);
    const uint32_t half_less = (1u << (DROPPED - 1)) - 1, odd = bits >> DROPPED & 1;
    return min_u32(((bits + half_less + odd) >> DROPPED) - BIAS_APART, LARGEST);
}

uint8_t fp8_from_f32(float x) {
    const uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffff;
    if (magnitude > INFINITY_BITS) return NOT_A_NUMBER;
    return (uint8_t)((bits >> 24 & 0x80) | round_magnitude(magnitude));
}

float fp8_to_f32(uint8_t code) {
    return e4m3_to_f32(code);
}

/* Returns the smallest scale at which `largest` does not saturate, up to the largest scale allowed.
 * 448 = 1.75 * 2^8: a mantissa above 1.75 carries into the exponent and takes the next scale. */
static uint8_t scale_of(float largest, enum element element) {
    const uint32_t carry = 0x7fffff - 0x600000, exponent = (bits_of(largest) + carry) >> 23,
                   most = element == ELEMENT_F16 ? FP8_MOST_SCALE_F16 : FP8_MOST_SCALE;
    return (uint8_t)min_u32(exponent > 9 ? exponent - 8 : 1, most);
}

float fp8_factor(uint8_t scale) {
    return of_bits((uint32_t)scale << 23);
}

uint8_t fp8_pack(uint8_t *codes, uint32_t codes_stride, const char *from, uint32_t stride,
                 uint32_t n, enum element element) {
    float largest = 0;
    for (size_t i = 0; i < n; i++) {
        const float x = fabsf(load_as_f32(from, i * stride, element));
        largest = x > largest ? x : largest; /* NaN does not compare as larger */
    }
    const uint8_t scale = scale_of(largest, element);
    const float inverse = fp8_factor((uint8_t)(2 * 127 - scale));
    for (size_t i = 0; i < n; i++)
        codes[i * codes_stride] = fp8_from_f32(load_as_f32(from, i * stride, element) * inverse);
    return scale;
}

void fp8_unpack(char *to, uint32_t stride, const uint8_t *codes, uint8_t scale, uint32_t n,
                enum element element) {
    const float factor = fp8_factor(scale);
    for (size_t i = 0; i < n; i++)
        store_f32_as(to, i * stride, fp8_to_f32(codes[i]) * factor, element);
}
