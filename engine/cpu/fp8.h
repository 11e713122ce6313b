/* fp8.h - rows of a head's elements as bytes with a scale (struct host_pool in
 * engine/device/host_pool.h, struct kv_pool in pages.h).
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_CPU_FP8_H
#define ENGINE_CPU_FP8_H

#include <stdint.h>

#include "engine/device/weight.h"

/* Returns the e4m3 code of x, rounded to nearest even and saturated at 448. e4m3 has a sign, 4 bits
 * of exponent (bias 7) and 3 of mantissa.  It has no infinity, and 0x7f is NaN. */
uint8_t fp8_from_f32(float x);
float fp8_to_f32(uint8_t code);

/* Returns the factor that a scale stands for, 2^(scale - 127).  Scale 0, which fp8_pack() never
 * returns, gives 0. */
float fp8_factor(uint8_t scale);
/* Encodes n elements, each `stride` elements behind the previous one, and returns their scale. */
uint8_t fp8_pack(uint8_t *codes, uint32_t codes_stride, const char *from, uint32_t stride,
                 uint32_t n, enum element element);
void fp8_unpack(char *to, uint32_t stride, const uint8_t *codes, uint8_t scale, uint32_t n,
                enum element element);

#endif
