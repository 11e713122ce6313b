/* fp8.h - rows of a head's elements as bytes with a scale (engine/device/backend.h, struct
 * host_pool and struct kv_pool).
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_CPU_FP8_H
#define ENGINE_CPU_FP8_H

#include <stdint.h>

#include "engine/device/backend.h"

/* e4m3: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinity, 0x7f is NaN.  Rounds to
 * nearest even and saturates at 448. */
uint8_t fp8_from_f32(float x);
float fp8_to_f32(uint8_t code);

/* What a scale stands for: 2^(scale - 127); 0 of 0, which nobody packs. */
float fp8_factor(uint8_t scale);
/* n elements, each `stride` of them behind the one before.  fp8_pack() returns their scale. */
uint8_t fp8_pack(uint8_t *codes, uint32_t codes_stride, const char *from, uint32_t stride,
                 uint32_t n, enum dtype dtype);
void fp8_unpack(char *to, uint32_t stride, const uint8_t *codes, uint8_t scale, uint32_t n,
                enum dtype dtype);

#endif
